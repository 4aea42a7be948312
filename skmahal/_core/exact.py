"""Exact distances under a metric that changes: the engine where sketches do not pay."""

import math
from copy import deepcopy
from itertools import count

import numpy as np
from scipy import sparse

from . import compiled, kernels
from .checks import (
    as_array,
    as_asked,
    as_choice,
    as_count,
    as_indices,
    as_length,
    as_matrix,
    as_positions,
    as_seeds,
    check_finite,
)
from .gate import changes, reads, writes
from .metric import (
    ROUNDING,
    LowRank,
    Metric,
    change_between,
    most_useful_rank,
    row_change,
)
from .roots import Roots
from .saved import expecting, opened, require, stamped
from .state import State
from .tiles import Expansion, Part, lower_bounds, row_squares, squared_distances
from .workers import even_slices, run, slices

# A tile of bounds is written by a product and read again by the search: it should stay
# in cache meanwhile.
TILE_BYTES = 1 << 24
MOST_TILE = 256

_POWERS = (1, 2)
_EPS = {np.dtype(kind): float(np.finfo(kind).eps) for kind in (np.float32, np.float64)}

# One query reads rows from this length on, rather than to be multiplied by them; and
# where there are this many numbers, BLAS shares them among its threads.
_LONG = 128
_MANY = 1 << 21


class ExactMaintenance:
    """Distances, neighbours and samples by brute force, while metric and points change.

    It has the interface of :class:`~skmahal.MetricMaintenance` and no randomness in its
    distances. A query costs O(kd + nk).

    Parameters
    ----------
    U : array-like of shape (k, d), or None
        The metric is ``A = UᵀU``; None is the Euclidean metric.
    X : array-like or sparse matrix of shape (n, d)
        Points. A copy is made; float32 stays float32, everything else becomes float64.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal._core.exact import ExactMaintenance
    >>> index = ExactMaintenance(np.diag([2.0, 1.0]), [[0.0, 0.0], [3.0, 4.0]])
    >>> index.query_all([0.0, 0.0]).round(3)
    array([0.   , 7.211])
    """

    def __init__(self, U, X):
        X = _as_points("X", X)
        if U is not None:
            U = as_matrix("U", U, dtype=X.dtype, columns=X.shape[1])
        self._hold(State(U, X))

    @classmethod
    def over(cls, state):
        """The engine that answers from a state. O(1)."""
        engine = cls.__new__(cls)
        engine._hold(state)
        return engine

    def _hold(self, state, **more):
        """Answer from `state`, and take `more` attributes with it.

        All at once: whatever is interrupted, none of them is of another state.
        """
        own = {"_state": state, "_roots": Roots(state), "tile_bytes": TILE_BYTES}
        vars(self).update(own, **more)

    def __repr__(self):
        return f"{type(self).__name__}(n={self.n}, d={self.d}, k={self.k})"

    def __getstate__(self):
        return stamped(self.saved())

    def __setstate__(self, state):
        kind = type(self).__name__
        state = opened(kind, state)
        with expecting(kind):
            self._restore(state)

    def __copy__(self):
        """A copy of all of it: what two engines shared, only one would follow."""
        return deepcopy(self)

    def _twin(self):
        """An engine with the same attributes, for who draws other sketches."""
        engine = type(self).__new__(type(self))
        engine.__dict__.update(self.__dict__)
        return engine

    @reads
    def saved(self):
        """The engine as plain values and arrays, which a change may write to.

        O(1), and O(n) a column of arrays that lag behind the metric, which are copied.
        """
        return self._state.saved(self._images)

    @classmethod
    def restored(cls, saved):
        """The engine of which these are the values; O(size) to look at them."""
        engine = cls.__new__(cls)
        engine._restore(saved)
        return engine

    def _restore(self, saved):
        self._hold(State.restored(saved))
        require(len(self._state.images) == 1, "there are sketches")

    @property
    def n(self):
        """Number of points."""
        return self._state.n

    @property
    def d(self):
        """Number of features."""
        return self._state.d

    @property
    def k(self):
        """Number of rows of U."""
        return self._state.k

    @property
    def dtype(self):
        """float32 or float64, the type of X."""
        return self._state.dtype

    @property
    def U(self):
        """The metric's U as of now; a copy. O(kd)."""
        return np.array(self._state.metric.U)

    @property
    def X(self):
        """The points as of now, dense or CSR; do not write to it."""
        return self._state.points.array

    @property
    def targets(self):
        """What travels with the points, one row each; None where nothing does."""
        return self._state.current_targets()

    @targets.setter
    def targets(self, targets):
        self._state.targets = targets

    def reading(self):
        """Context in which metric and points stay as they are. O(1)."""
        return self._state.gate.reading()

    def changing(self):
        """Context in which nobody else changes them. O(1)."""
        return self._state.gate.changing()

    def writing(self):
        """Context in which nobody else is at the index. O(1)."""
        return self._state.gate.writing()

    @property
    def is_reading(self):
        """Whether this thread is inside :meth:`reading`."""
        return self._state.gate.is_reading

    def lent(self):
        """The same for a thread that works for one inside it. O(1)."""
        return self._state.gate.lent()

    @property
    def version(self):
        """Number of changes of metric or points so far."""
        return self._state.version

    @writes
    def update_u(self, u, a, jobs=1):
        """Add `u` to row `a` of U. O(nd) now, and O(n) a column as arrays catch up.

        Parameters
        ----------
        u : array-like of shape (d,) or (c, d)
            What to add.
        a : int or array-like of shape (c,)
            The rows, each at most once.
        jobs : int, default=1
            Threads that read the points.
        """
        a, jobs = as_indices("a", a, self.k, unique=True), as_count("jobs", jobs)
        u = as_matrix("u", u, dtype=self.dtype, columns=self.d, rows=len(a))
        self._state.add_low_rank(row_change(a, u, self.k, self.dtype), jobs=jobs)

    @writes
    def set_rows(self, u, a, jobs=1):
        """Set rows `a` of U to `u`; arguments and cost as in :meth:`update_u`."""
        a, jobs = as_indices("a", a, self.k, unique=True), as_count("jobs", jobs)
        u = as_matrix("u", u, dtype=self.dtype, columns=self.d, rows=len(a))
        U = self.U
        gap, U[a] = u - U[a], u
        change = row_change(a, gap, self.k, self.dtype)
        self._state.add_low_rank(change, result=U, jobs=jobs)

    @writes
    def update_low_rank(self, W, V, jobs=1):
        """``U += W Vᵀ``. O(p(nd + kd)) now, and O(np) a column as arrays catch up.

        Parameters
        ----------
        W : array-like of shape (k, p) or (k,)
        V : array-like of shape (d, p) or (d,)
        jobs : int, default=1
            Threads that read the points.
        """
        W = _as_columns("W", W, self.k, self.dtype)
        V = _as_columns("V", V, self.d, self.dtype)
        jobs = as_count("jobs", jobs)
        if W.shape[1] != V.shape[1]:
            raise ValueError(f"W has {W.shape[1]} columns and V has {V.shape[1]}.")
        self._state.add_low_rank(LowRank(W, V), jobs=jobs)

    @writes
    def follow(self, W, V, U, jobs=1):
        """``U += W Vᵀ`` for somebody who knows the sum as well, up to rounding.

        W and V as in :meth:`update_low_rank`, O(p(nd + kd)); no error is left in U.
        """
        W = _as_columns("W", W, self.k, self.dtype)
        V = _as_columns("V", V, self.d, self.dtype)
        U = as_matrix("U", U, dtype=self.dtype, columns=self.d, rows=self.k)
        change = LowRank(W, V)
        self._state.add_low_rank(change, result=U, rounding=ROUNDING, jobs=jobs)

    @changes
    def set_metric(self, U, jobs=1):
        """A new U, by the cheapest route that gives the same answers.

        Changed rows or a low-rank difference are added; otherwise, or where the number
        of rows differs, derived arrays are rebuilt in O(nkd) when next used.
        """
        U = as_matrix("U", U, dtype=self.dtype, columns=self.d)
        jobs = as_count("jobs", jobs)
        self._check_metric(U)
        change = None
        if len(U) == self.k:
            most = most_useful_rank(self.k, self.d, self._width)
            change = change_between(self._state.metric.U, U, most)
        if change is None:
            self._replace_metric(Metric(U, self.d, self.dtype), jobs)
        elif change.rank:
            self.follow(*change, U, jobs=jobs)

    @writes
    def update_x(self, z, i, targets=None):
        """Replace point `i` by `z`. O(kd + k log n) each.

        Parameters
        ----------
        z : array-like of shape (d,) or (c, d)
            New points.
        i : int or array-like of shape (c,)
            Their positions, each at most once.
        targets : ndarray of c rows, or None
            What travels with them.
        """
        i = as_indices("i", i, self.n, unique=True)
        z = self._new_points("z", z)
        if z.shape[0] != len(i):
            raise ValueError(
                f"z has {z.shape[0]} rows, expected {len(i)}, one for each i."
            )
        self._state.assign(i, z, targets)

    @writes
    def append(self, X, targets=None):
        """Add points at the end. O(kd + k log n) each, amortised."""
        self._state.append(self._new_points("X", X), targets)

    @writes
    def remove(self, indices):
        """Remove points; later ones move up, as with `numpy.delete`. O(n(d + k))."""
        indices = np.unique(as_indices("indices", indices, self.n))
        if indices.size == self.n:
            raise ValueError(f"indices would remove every one of the {self.n} points.")
        if indices.size:
            self._state.remove(indices)

    @writes
    def cut(self, n):
        """Keep the first n points, to undo an :meth:`append`. O(1) for dense points."""
        self._state.cut(n)

    def under(self, U):
        """An exact engine over the same points under a metric of other shape. O(kd).

        They share points and gate; this one must not be changed after.
        """
        U = as_matrix("U", U, dtype=self.dtype, columns=self.d)
        self._check_metric(U)
        metric = Metric(U, self.d, self.dtype)
        return ExactMaintenance.over(self._state.under(metric))

    @reads
    def query_pair(self, i, j):
        """Distance between the points `i` and `j`, broadcast. O(k) each."""
        return self.exact_pair(i, j)

    @reads
    def query_all(self, q):
        """Distances of one query, (n,), or of many, (queries, n). O(kd + nk) each."""
        return self.exact_all(q)

    @reads
    def exact_pair(self, i, j):
        """Exact distance between the points `i` and `j`, broadcast. O(k) each."""
        i, j, shape = self._pairs(i, j)
        squares = np.empty(len(i))
        for part in slices(len(i), self._tile_rows(self.k)):
            rows = self._state.take(i[part]) - self._state.take(j[part])
            squares[part] = row_squares(rows)
        return shaped(self._roots.of_pairs(squares, i, j), shape)

    @reads
    def exact_all(self, q):
        """Exact distances of one query or of many. O(kd + nk) each."""
        Q, single = self._queries(q)
        D = np.empty((len(Q), self.n), dtype=self.dtype)
        for tile in self._tiles(len(Q), self.n):
            u = self._state.transform_queries(Q[tile])
            D[tile] = self._roots.of_tile(Q[tile], u, self._exact_squares(u))
        return D[0] if single else D

    @reads
    def exact_kneighbors(self, Q, K, jobs=1):
        """The K nearest points by brute force. O(kd + nk) each."""
        Q, _ = self._queries(Q)
        K, jobs = as_count("K", K, most=self.n), as_count("jobs", jobs)
        return self._exact_kneighbors(Q, K, jobs)

    def kneighbors(self, Q, K, jobs=1):
        """The K nearest points: distances and indices, (queries, K), nearest first.

        O(kd + nk) each, on up to `jobs` threads.
        """
        return self.exact_kneighbors(Q, K, jobs)

    def _nearest(self, Q, K, jobs=1):
        """The same for checked queries, inside :meth:`reading`."""
        K = as_count("K", K, most=self.n)
        return self._exact_kneighbors(np.ascontiguousarray(Q), K, jobs)

    @reads
    def radius_neighbors(self, Q, radius):
        """All points within `radius`: lists of distances and of indices, by index.

        O(kd + n(columns compared)) each, and k for a point that is not excluded.
        """
        Q, _ = self._queries(Q)
        radius = as_length("radius", radius)
        with np.errstate(over="ignore"):
            square, radius = np.square(radius), self.dtype.type(radius)
        distances, indices = [], []
        for tile in self._tiles(len(Q), self.n):
            u = self._state.transform_queries(Q[tile])
            bounds = self._radius_bounds(Q[tile], u) <= square
            for row, within in enumerate(bounds):
                near = np.flatnonzero(within)
                squares = self._squares_to(Q[tile], u, row, near)
                query = Q[tile.start + row][np.newaxis]
                (found,) = self._roots.of_found(
                    query, squares[np.newaxis], near[np.newaxis]
                )
                distances.append(found[found <= radius])
                indices.append(near[found <= radius])
        return distances, indices

    @reads
    def sub_sum(self, q, i, j, power=2):
        """Sum of ``d ** power`` over the points i … j - 1, for one or many queries.

        O(kd + k log n) for power 2, from the tree; O(kd + (j - i) k) for power 1. None
        for `j` is the number of points.
        """
        Q, single = self._queries(q)
        i = as_count("i", i, least=0, most=self.n)
        j = self.n if j is None else as_count("j", j, least=i, most=self.n)
        as_choice("power", power, _POWERS)
        u = self._state.transform_queries(Q)
        sums = self._squared_sums(u, i, j) if power == 2 else self._root_sums(u, i, j)
        return sums[0] if single else sums

    @reads
    def sample_exact(self, q, size=1, power=1, random_state=None):
        """Indices drawn with probability ∝ ``d ** power``, (size,) or (queries, size).

        O(kd) a query, and O(k log n) expected a draw. Where every distance is zero the
        draws are uniform.

        Parameters
        ----------
        q : array-like of shape (d,) or (queries, d)
        size : int, default=1
        power : {1, 2}, default=1
        random_state : None, int or numpy Generator
            Fresh randomness from the operating system unless given.
        """
        Q, single = self._queries(q)
        size = as_count("size", size)
        as_choice("power", power, _POWERS)
        u = self._state.transform_queries(Q)
        rng = random_state
        if not isinstance(rng, np.random.Generator):
            rng = np.random.default_rng(as_seeds("random_state", random_state))
        tree = self._state.current_tree()
        before, attempts = rng.bit_generator.state, count()

        def draw(points):
            # Another one has the same draws, by a generator that nobody else uses.
            mine = _generator_at(rng, before) if next(attempts) else rng
            return tree.sample(u, size, power, mine, points)

        draws = self._state.searched(Q, u, draw)
        return draws[0] if single else draws

    @reads
    def prepare(self, jobs=1):
        """Build what neighbour queries use, which they would do themselves. O(nkd)."""
        self._state.prepare([self._state.rows], jobs)

    @writes
    def settle(self):
        """Bring every array in use up to now. O(n) a column and pending rank."""
        self._state.settle()

    @reads
    def check(self):
        """Assert every invariant; O(nkd). Returns the relative drift of the arrays.

        Drift is the root mean square difference, over that of the transformed rows,
        between what is held and what the truth gives.
        """
        state = self._state
        truth = np.concatenate(
            [state.metric.transform(rows) for _, rows in state.points.blocks()]
        )
        norms = row_squares(truth)
        size = np.sqrt(norms.mean()) + np.finfo(self.dtype).tiny
        drifts = [0.0]
        for image in state.images:
            if image.tick is not None:
                held = state.current(image).view(self.n)
                assert held.shape == (self.n, len(image.project(truth[:1])[0]))
                off = row_squares(held - image.project(truth)).mean()
                drifts.append(np.sqrt(off) / size)
                image.check(self.n)
        off = np.abs(state.current_norms() - norms)
        assert (off <= 64 * state.tolerance * norms.mean() + 1e-300).all(), "norms"
        state.current_tree().check(truth, norms, 64 * state.tolerance)
        assert max(drifts) <= 4 * state.tolerance, f"drift {max(drifts):.3g}"
        return float(max(drifts))

    @property
    def in_use(self):
        """Whether anything was built for queries."""
        return self._state.in_use

    @property
    def looks_at_sketches(self):
        """Whether neighbour queries do; never here."""
        return False

    @property
    def _images(self):
        """What is derived from the points by this engine, in the order of a file."""
        return [self._state.rows]

    @property
    def _width(self):
        """Columns of all derived arrays beside the transformed rows."""
        return 0

    @property
    def _slack(self):
        """Relative error of an expanded square: rounding, and drift of either side.

        Rounding errors of a sum of k products go in all directions, and so grow as the
        root of k.
        """
        rounding = 8 * math.sqrt(self.k) * _EPS[self.dtype]
        return 4 * self._state.tolerance + rounding

    def _replace_metric(self, metric, jobs):
        """Another metric; what is in use is built before anybody has to wait for it."""
        state = self._state.under(metric)
        if self._state.in_use:
            state.prepare([state.rows], jobs)
        with state.gate.writing():
            self._hold(state)

    def _check_metric(self, U):
        if not np.abs(U).max() < np.sqrt(np.finfo(self.dtype).max):
            raise ValueError(f"The metric is too large for {self.dtype}.")

    def _new_points(self, name, value):
        """Points in the type, and for dense storage the form, of those held."""
        rows = _as_points(name, value, self.dtype)
        if rows.shape[1] != self.d:
            raise ValueError(f"{name} has {rows.shape[1]} columns, expected {self.d}.")
        held_sparse = sparse.issparse(self._state.points.array)
        return rows.toarray() if sparse.issparse(rows) and not held_sparse else rows

    def _queries(self, q):
        """Queries by rows, whose layout decides how products of them are rounded."""
        Q = as_matrix("q", q, dtype=self.dtype, columns=self.d)
        return np.ascontiguousarray(Q), np.ndim(q) == 1

    def _pairs(self, i, j):
        i, j = as_positions("i", i), as_positions("j", j)
        try:
            i, j = np.broadcast_arrays(i, j)
        except ValueError as error:
            shapes = f"{np.shape(i)} and {np.shape(j)}"
            raise ValueError(f"i and j have shapes that differ: {shapes}.") from error
        flat = as_indices("i", i.ravel(), self.n), as_indices("j", j.ravel(), self.n)
        return *flat, i.shape

    def _tile_rows(self, columns):
        rows = self.tile_bytes // (self.dtype.itemsize * max(1, int(columns)))
        return int(min(max(1, rows), MOST_TILE))

    def _tiles(self, count, columns):
        """Slices of queries whose tile of `columns` numbers each fits the budget."""
        return slices(count, self._tile_rows(max(columns, self.k)))

    def _exact_squares(self, u):
        return self._over_rows(u, squared_distances)

    def _exact_bounds(self, u):
        return self._over_rows(u, lower_bounds, self._slack)

    def _exact_expansion(self, u):
        """The same, still to be multiplied where rows are held."""
        held = self._state.held_rows()
        if held is None:
            return self._exact_bounds(u)
        norms = self._state.current_norms()
        return Expansion([Part(u, held, norms)], self._slack, self.tile_bytes)

    def _over_rows(self, u, distances, *args):
        norms = self._state.current_norms().astype(self.dtype)
        held = self._state.held_rows()
        if held is not None:
            return distances([Part(u, held, norms)], *args)
        D = np.empty((len(u), self.n), dtype=self.dtype)
        for here, rows in self._state.row_blocks():
            D[:, here] = distances([Part(u, rows, norms[here])], *args)
        return D

    def _squared_sums(self, u, start, stop):
        def squares_between(start, stop):
            rows = self._state.take(slice(start, stop))
            return np.stack([row_squares(rows - one) for one in u])

        tree = self._state.current_tree()
        return tree.squared_sums(u, start, stop, squares_between)

    def _root_sums(self, u, start, stop):
        # In float64, where a near point loses no digits that float32 rows have.
        u, sums = u.astype(np.float64), np.zeros(len(u))
        for part in slices(stop - start, self._tile_rows(max(self.k, len(u)))):
            here = slice(start + part.start, start + part.stop)
            rows = self._state.take(here).astype(np.float64)
            D = squared_distances([Part(u, rows, row_squares(rows))])
            sums += np.sqrt(np.maximum(D, 0)).sum(axis=1)
        return sums

    def _radius_bounds(self, Q, u):
        return self._exact_bounds(u)

    def _squares_to(self, Q, u, row, indices):
        """Exact squared distances of one of the queries to the given points."""
        return self._state.searched(Q, u, lambda points: points.squares(row, indices))

    def _transformed(self, Q, jobs):
        """Queries under the metric; on threads, each with as many as there can be."""
        if jobs == 1 or self._state.metric.is_identity:
            return self._state.transform_queries(Q)
        parts = slices(len(Q), -(-len(Q) // jobs))
        pieces = run(lambda part: self._state.transform_queries(Q[part]), parts, jobs)
        return np.concatenate(pieces)

    def _exact_kneighbors(self, Q, K, jobs):
        found = Found(len(Q), K)
        self._find_exactly(Q, np.arange(len(Q)), found, jobs)
        return self._settled(Q, found)

    def _find_exactly(self, Q, positions, found, jobs):
        """Fill in the neighbours of the queries at `positions`, by brute force."""
        if len(positions) == 1:
            self._find_one(Q[positions], positions, found)
            return

        def find(tile):
            here = positions[tile]
            mine = Q[here]
            u = self._state.transform_queries(mine)
            self._search(mine, u, self._exact_expansion(u), self.n, here, found)

        step = self._tile_rows(max(self.n, self.k))
        run(find, even_slices(len(positions), step, jobs), jobs)

    def _find_one(self, Q, positions, found):
        """The same for one query, which has nobody to share a pass with."""
        u = self._state.transform_queries(Q)
        if self.n * self.k >= _MANY:
            self._search(Q, u, self._exact_bounds(u), self.n, positions, found)
        elif self._reads_rows():
            near = self._state.searched(
                Q, u, lambda points: points.nearest_of_all(found.K)
            )
            found.put(positions, *near)
        else:
            self._search(Q, u, self._exact_expansion(u), self.n, positions, found)

    def _reads_rows(self):
        """Whether compiled loops can read rows, and these are long enough to."""
        long = self.k >= _LONG and compiled.fast() is not None
        return long and self._state.held_rows() is not None

    def _search(self, Q, u, bounds, most, positions, found):
        """Fill in what the bounds decide; the positions of the queries they do not."""
        indices = np.empty((len(u), found.K), dtype=np.intp)
        squares = np.empty((len(u), found.K))
        undecided = self._state.searched(
            Q, u, lambda points: kernels.nearest(bounds, points, most, indices, squares)
        )
        found.put(positions, indices, squares)
        return positions[undecided]

    def _settled(self, Q, found):
        """Distances and indices, with distances near zero computed from the truth."""
        roots = self._roots.of_found(Q, found.squares, found.indices)
        if (roots[:, 1:] > roots[:, :-1]).all():
            return roots, found.indices
        order = np.lexsort((found.indices, roots))
        indices = np.take_along_axis(found.indices, order, axis=1)
        return np.take_along_axis(roots, order, axis=1), indices


class Found:
    """Neighbours of a batch of queries, filled in as they are found."""

    def __init__(self, n_queries, K):
        self.K = K
        self.indices = np.empty((n_queries, K), dtype=np.intp)
        self.squares = np.empty((n_queries, K))

    def put(self, positions, indices, squares):
        if len(self.indices) == 1:
            self.indices, self.squares = indices, squares
        else:
            self.indices[positions], self.squares[positions] = indices, squares


def _generator_at(rng, state):
    """A generator of the kind of `rng`, at a state."""
    other = deepcopy(rng)
    other.bit_generator.state = state
    return other


def _as_points(name, X, dtype=None):
    """Finite rows, dense or CSR; float32 stays float32 unless `dtype` is given."""
    if dtype is None:
        single = getattr(X, "dtype", None) == np.float32
        dtype = np.float32 if single else np.float64
    if not sparse.issparse(X):
        return as_matrix(name, X, dtype=dtype)
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(f"{name} must be a non-empty matrix, got shape {X.shape}.")
    if np.iscomplexobj(X):
        raise ValueError(f"{name} must be real, got complex numbers.")
    # A value too large for `dtype` becomes infinite, which is refused.
    with np.errstate(over="ignore"):
        X = sparse.csr_matrix(as_asked(X), dtype=dtype)
    check_finite(name, X.data)
    return X


def _as_columns(name, value, rows, dtype):
    array = as_array(name, value, dtype)
    if array.ndim == 1:
        array = array[:, np.newaxis]
    return as_matrix(name, array, dtype=dtype, rows=rows)


def shaped(values, shape):
    return values.reshape(shape) if shape else values[0]
