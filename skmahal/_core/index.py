"""An index of points under a metric that changes: exact queries, and updates.

Readers share the index, and answer for one version of it. A change makes a new
:class:`~.cached.State` beside them and puts it in place of the old one in one step.
"""

from functools import partial

import numpy as np
from scipy import sparse

from . import cached, enclosures
from .cached import Map, State
from .guarantees import recent_queries, remember
from .lock import ReadWriteLock
from .metric import change_between
from .plan import cost_of_images
from .points import (
    DensePoints,
    SparsePoints,
    block,
    owned,
    release,
    row_squares,
)
from .probes import Probes, Work
from .search import DenseSearch, Queries, SparseSearch, extremes, transform
from .threads import run, slices
from .tree import BUCKET, DistanceTree, draw

# Bytes of bounds, or of distances, that a thread holds at a time.
WORKING_BYTES = 1 << 24

# Operations from which on threads share the transformation of queries, or a change of
# the metric. With fewer, another thread would start when this one is done.
_MUCH = 1 << 24

# Squared distances between transformed rows that are a smaller share of the squared
# length may be rounding errors. They are computed from the points.
_NEAR = 1e-12


class Index:
    """Exact distances, neighbours, sums and samples, while metric and points change.

    U (k × d) is the factor of the metric ``A = UᵀU``, None for the Euclidean one, X are
    dense or CSR points of type float32 or float64, of which a copy is made, and
    `records` have one row per point. Only the time of queries depends on `n_neighbors`,
    the number of neighbours that they mostly ask for, and only enclosed distances on
    `eps`, which they are within. `recall` is what approximate neighbours have on
    average; None makes them exact.

    Arguments of methods have been validated. Queries are dense rows, C-contiguous and
    of the type of the points, or CSR rows.
    """

    def __init__(self, U, X, *, records=None, n_neighbors=10, eps=0.2, recall=None):
        points = SparsePoints(X) if sparse.issparse(X) else DensePoints(X)
        if U is not None:
            U = np.array(U, dtype=np.float64, order="C")
            cached.check_metric(U, points.array.dtype)
        self._begin(State(points, U, records), n_neighbors, eps, recall)

    def _begin(self, state, n_neighbors, eps, recall, work=(0.0, 0.0, 0.0)):
        self.lock, self.aims = ReadWriteLock(), (n_neighbors, eps, recall)
        self.n_neighbors, self.recall = n_neighbors, recall
        self.probes = Probes(work)
        self._largest = cached.largest_square(state.points.array.dtype)
        self.working_bytes = WORKING_BYTES
        self._search = self._tree = None
        # Nanoseconds that queries have lost for want of codes of transformed rows.
        self._missed = 0.0
        # Whether arrays, and records, were handed out to be saved.
        self._shared = self._shares_records = False
        self.set_state(state)

    def set_state(self, state):
        """Take a state, and with it the numbers that describe it."""
        points, U = state.points, state.U
        vars(self).update(
            state=state,
            points=points,
            n=points.n,
            d=points.d,
            k=points.d if U is None else len(U),
            dtype=points.array.dtype,
            version=state.version,
            # Whether the exact distance of two points takes fewer than kd operations.
            has_short_pairs=U is None or points.is_sparse,
            is_euclidean=U is None,
        )

    @property
    def X(self):
        """The points as they were given, dense or CSR; do not write to it."""
        return self.state.points.array

    @property
    def U(self):
        """The metric's U as of now, in float64; a copy."""
        U = self.state.U
        return np.eye(self.d) if U is None else U.copy()

    @property
    def records(self):
        """Records of the points, one row each, or None; a view."""
        records = self.state.records
        return None if records is None else records[: self.n]

    @property
    def norms(self):
        """``‖U (x - origin)‖²`` of all points; inside `reading`."""
        with self.lock.deriving:
            self.set_state(cached.derive(self.state, self.aims, for_search=False))
        return self.state.norms[: self.n]

    @property
    def plan(self):
        """How queries are answered, a :class:`~.plan.Plan`; None for CSR points."""
        return self.state.plan

    def add_low_rank(self, W, V, *, result=None, jobs=1):
        """``U += W Vᵀ``. One pass over the points, O(p (nd + kd)).

        `result` is U after the change, as the caller knows it. It is used if it differs
        from the sum by rounding in float64. If it differs by rounding in the type of
        the points, as that of a learner, the sum is kept: squared lengths are those of
        the sum. Otherwise everything is derived from `result`.
        """
        with self.lock.changing():
            state = self.finished()
            # Products of a learner in float32 would be rounded to that.
            W, V = np.asarray(W, dtype=np.float64), np.asarray(V, dtype=np.float64)
            if 2 * V.shape[1] * self.n * self.d < _MUCH:
                jobs = 1
            U, before = np.eye(self.d) if state.U is None else state.U, state.square
            with np.errstate(over="ignore", invalid="ignore"):
                total, pulled, square = cached.low_rank_sum(U, W, V, state.points, jobs)
                if result is not None:
                    total, close = cached.closer(total, result, U, W, V, self.dtype)
                    if not close:
                        return self._use_metric(state, total, jobs)
                cached.check_metric(total, self.dtype, square)
                state = state._replace(U=total, square=float(square))
                if state.norms is not None:
                    rest = pulled, before, self.aims, jobs
                    state = cached.follow(state, W, V, *rest)
                if self.recall is not None:
                    spent = cached.cost_of_following(self.n, self.d, V.shape[1])
                    self.probes.work = self.probes.work.plus(Work(spent))
            self._commit(state, keep_tree=state.images is None)

    def set_metric(self, U, jobs=1):
        """A new U of any number of rows: a low-rank difference, or O(nkd)."""
        with self.lock.changing():
            state, U = self.finished(), np.array(U, dtype=np.float64, order="C")
            cached.check_metric(U, self.dtype)
            change = None
            if len(U) == self.k and state.norms is not None:
                # A learner in float32 rounds every entry of U to that.
                eps = float(np.finfo(self.dtype).eps) / 4
                change = change_between(self.U, U, max(1, self.k // 4), eps)
            if change is None:
                self._use_metric(state, U, jobs)
            elif change.rank:
                self.add_low_rank(*change, result=U, jobs=jobs)

    def _use_metric(self, state, U, jobs):
        """Derive everything from a new U; codes and cells of the points are kept."""
        cached.check_metric(U, self.dtype)
        same = len(U) == self.k
        new = state.without_derived(U=U, **({} if same else {"caches": {}}))
        cells = state.cells
        if state.images is None and not cached.holds_images(state.points, U):
            new = new._replace(coded=state.coded)
            cells = cells and cells._replace(norms=None)
        else:
            cells = cells and cells.stale()
        rest = {"probings": state.probings, "drift": state.drift + 1}
        new = new._replace(cells=cells, **rest)
        if state.norms is not None:
            new = cached.derive(new, self.aims, jobs)
        self._commit(new)

    def append(self, X, records=None):
        """Add points at the end. O(k(d + columns of sketches)) each, amortised."""
        with self.lock.changing():
            n, state = self.n, cached.with_current_rows(self.finished())
            state = cached.appended(state, X, records)
            buckets = np.arange(n // BUCKET, -(-state.points.n // BUCKET))
            self._commit(cached.centred(state), buckets)

    def assign(self, indices, X, records=None):
        """Replace points in place. O(k(d + columns of sketches) + d log n) each.

        Rows of X beyond those of the indices are added at the end, in the same step. If
        that is interrupted, the next call finishes it.
        """
        with self.lock.changing():
            state = self.finished()
            # Rows that are too large are refused before anything is written.
            cached.measure(X, state.points, state.U)
            self.lock.write(self._assign, state.version, indices, X, records)

    def _assign(self, *replacement):
        self.lock.unfinished = partial(self._replace, *replacement)
        self.lock.unfinished()

    def _replace(self, version, indices, X, records):
        """Make a replacement of points; to do so twice is harmless."""
        if self.version == version:
            state = cached.with_current_rows(self.state)
            if self._shared:
                state = cached.unshared(state)
            self.set_state(state)
            self._shared = self._shares_records = False
            n, count = self.n, len(indices)
            old, new = (
                records if records is None else records[part]
                for part in (slice(count), slice(count, None))
            )
            state = cached.replaced(state, indices, X[:count], old)
            buckets = indices // BUCKET
            if count < X.shape[0]:
                state = cached.appended(state, X[count:], new)
                last = np.arange(n // BUCKET, -(-state.points.n // BUCKET))
                buckets = np.concatenate([buckets, last])
            self._install(cached.centred(state), np.unique(buckets))
        self.lock.unfinished = None

    def set_records(self, indices, records):
        """Change the records of some points. O(1) each; the version stays."""
        with self.lock.changing():
            self.finished()
            self.lock.write(self._set_records, indices, records)

    def _set_records(self, indices, records):
        held = self.state.records
        held = held.copy() if self._shares_records else owned(held)
        held = cached.with_records(held, records)
        held[indices] = records
        self.set_state(self.state._replace(records=held))
        self._shares_records = False

    def remove(self, indices):
        """Remove points; later ones move up, as in `numpy.delete`. O(n) a column."""
        with self.lock.changing():
            state = cached.with_current_rows(self.finished())
            mask = np.ones(self.n, dtype=bool)
            mask[indices] = False
            self._commit(cached.without_rows(state, mask))

    def truncate(self, n):
        """Keep the first n points, to undo an :meth:`append`. O(nd)."""
        with self.lock.changing():
            # Points that come next are written behind the first n.
            state = cached.unshared(cached.with_current_rows(self.finished()))
            for name in ("coded", "image_codes"):
                coded = getattr(state, name)
                if coded is not None:
                    state = state._replace(**{name: coded._replace(n=n)})
            if state.cells is not None:
                kept = state.cells.kept(np.arange(self.n) < n)
                state = state._replace(cells=kept)
            self._commit(state._replace(points=state.points.truncated(n)))

    def finished(self):
        """The state, after a replacement of points that was interrupted."""
        if self.lock.unfinished is not None:
            self.lock.write(bool)
        return self.state

    def _commit(self, state, buckets=None, keep_tree=False):
        """Put a changed state in place of the present one."""
        self.lock.write(self._install, state, buckets, keep_tree)

    def _install(self, state, buckets=None, keep_tree=False):
        """Take a changed state while no thread reads; keep, update or drop the tree."""
        tree, self._tree = self._tree, None
        if state.U is not self.state.U:
            self._missed = 0.0
        self.set_state(state._replace(version=self.version + 1))
        if tree is None or keep_tree:
            self._tree = tree
            return
        fits = self.n <= tree.capacity * BUCKET
        if buckets is not None and state.norms is not None and fits:
            # A tree that was behind the metric stays so in its other buckets.
            current, space = tree.version == self.version - 1, cached.space_of(state)
            version = self.version if current else None
            tree.update(space.rows, space.norms, buckets, version)
            self._tree = tree

    def prepare(self, jobs=1):
        """Derive what queries use, which they would do themselves. O(nkd).

        Returns the :attr:`plan`.
        """
        with self.lock.reading():
            self.searcher(jobs)
            if self.recall is not None:
                self.probing(self.n_neighbors, jobs)
            return self.state.plan

    def begins_in_cells(self, K):
        """Whether a single query for K neighbours searches some cells first."""
        if self._search is None or self._search[0] != self.version:
            return False
        approximate = self.recall is not None and self.probes.serves_one(K)
        return approximate or self._search[1].begins_in_cells

    def searcher(self, jobs=1, count=0):
        """The search over the present state, for so many queries; inside `reading`.

        Codes of transformed rows are made once queries under the present metric would
        have saved that time, and at once for a count of None. Those of a count of 0 do
        not use them.
        """
        if self.points.is_mapped:
            # What earlier queries have read of the file.
            release(self.X)
        if self._search is None or self._search[0] != self.version:
            with self.lock.deriving:
                state = cached.derive(self.state, self.aims, jobs)
                self.set_state(state)
                self.search_anew()
        if self._search[1].lacks_images and count != 0:
            self._missed += np.inf if count is None else self.plan.missed(count)
            if self._missed > cost_of_images(self.n, self.k, self.d):
                with self.lock.deriving:
                    if self._search[1].lacks_images:
                        self._missed = 0.0
                        self.set_state(cached.with_image_codes(self.state, jobs))
                        self.search_anew()
        return self._search[1]

    def search_anew(self):
        """Make a search over the present state."""
        state = self.state
        if state.points.is_sparse and state.images is None:
            rest = state.norms[: self.n], state.U
            search = SparseSearch(state.points.array, *rest)
        else:
            held = cached.space_of(state), state.coded, state.plan
            rest = {"cells": state.cells, "images": state.image_codes}
            search = DenseSearch(*held, **rest)
        self._search = self.version, search

    def queries(self, search, Q, jobs=1):
        """Queries as a search takes them, which must not be too large for distances."""
        if isinstance(search, SparseSearch):
            return Q
        is_much = Q.shape[0] * self.k * self.d > _MUCH
        if jobs > 1 and is_much and self.state.U is not None:
            step = slices(Q.shape[0], -(-Q.shape[0] // jobs))
            parts = run(lambda here: self.queries(search, Q[here]), step, jobs)
            every = map(np.concatenate, zip(*parts, strict=True))
            return Queries(*every)
        if self.state.images is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                Q = transform(Q, self.state.U, self.state.points.origin)
        queries = search.queries(Q.toarray() if sparse.issparse(Q) else Q)
        if not extremes(queries.squares)[1] < self._largest:
            raise ValueError(
                f"X has queries that are too large for distances in {self.dtype}."
            )
        return queries

    def _batches(self, search, Q, K=1):
        """Slices of queries whose work fits the working memory."""
        if Q.shape[0] == 1:
            return [slice(0, 1)]
        each = 12 * search.d + 32 * K
        return slices(Q.shape[0], max(1, self.working_bytes // each))

    def kneighbors(self, Q, K, jobs=1, approximate=False):
        """The K nearest points of each query: distances and positions, (queries, K).

        Exact, in ascending order, ties to the lower position. A query costs O(kd), the
        bounds of all points, and O(d) for each point that these leave. `approximate`
        ones have the requested recall, on average over queries like the points or like
        recent ones, and read the points of some cells alone.
        """
        with self.lock.reading():
            probing, found = None, []
            if approximate and self.recall is not None:
                probing = self.probes.for_queries(self, K, Q.shape[0], jobs)
            search = self.searcher(jobs, Q.shape[0] if probing is None else 0)
            for here in self._batches(search, Q, K):
                queries = self.queries(search, Q[here], jobs)
                if probing is not None:
                    near = search.in_cells(queries, K, probing.budget, jobs)[:2]
                else:
                    near = search.kneighbors(queries, K, jobs, self.working_bytes)
                found.append(self._distances_of(Q[here], *near))
            if approximate and self.recall is not None:
                remember(self, Q)
            if len(found) == 1:
                return found[0]
            return tuple(map(np.concatenate, zip(*found, strict=True)))

    def probing(self, K, jobs=1):
        """The :class:`~.recall.Probing` for K neighbours; None if all are exact.

        It is measured when first needed, and again, perhaps with new cells, once metric
        and points have moved. O(nd) for each held point.
        """
        with self.lock.reading():
            return self.probes.probing(self, K, jobs)

    def measured(self, K):
        """The :class:`~.guarantees.Recall` for K neighbours; None if they are exact."""
        with self.lock.reading():
            return None if self.recall is None else self.probes.measured(self, K)

    def recent(self):
        """Recent approximate queries, (queries, d), or None.

        There are none if one of them is too large under the present metric.
        """
        rows = list(recent_queries(self))
        if not rows:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            images = self.transform(np.stack(rows))
            fits = row_squares(images).max() < self._largest
        return np.stack(rows) if fits else None

    @property
    def n_cells(self):
        """Number of cells; 0 if there are none."""
        return 0 if self.state.cells is None else len(self.state.cells.radii)

    def probe(self, Q, K, budget):
        """As :meth:`kneighbors`, among `budget` points of the nearest cells."""
        with self.lock.reading():
            search = self.searcher()
            near = search.in_cells(self.queries(search, Q), K, budget)
            return self._distances_of(Q, *near[:2])

    def recall_of(self, Q, K, budget=None, own=None, jobs=1):
        """Recall of each query, from exact neighbours.

        `budget` is the number of points that are read; None is the one in use. `own`
        are positions of queries that are points, which do not count.
        """
        with self.lock.reading():
            probing, search = self.probing(K, jobs), self.searcher(jobs)
            if probing is None:
                return np.ones(Q.shape[0])
            queries = self.queries(search, Q, jobs)
            more = int(own is not None)
            exact, _ = search.kneighbors(queries, K + more, jobs, self.working_bytes)
            given = queries, K + more, budget or probing.budget, jobs
            squares, indices, _ = search.in_cells(*given)
            # Points at the distance of the last neighbour are as good as it.
            near = squares <= exact[:, -1:] * (1 + 1e-12)
            if own is not None:
                near &= indices != own[:, np.newaxis]
            return np.minimum(np.count_nonzero(near, axis=1), K) / K

    def evaluate(self, Q, candidates, K):
        """The K nearest among `candidates`, a list of positions for each query.

        Distances and positions as in :meth:`kneighbors`. O(d) a candidate.
        """
        with self.lock.reading():
            search = self.searcher()
            squares = np.empty((len(candidates), K))
            indices = np.empty((len(candidates), K), dtype=np.intp)
            for here in self._batches(search, Q):
                queries = self.queries(search, Q[here])
                for at, points in enumerate(candidates[here]):
                    exact = search.squares_to(queries, at, points)
                    order = np.lexsort((points, exact))[:K]
                    indices[here.start + at] = points[order]
                    squares[here.start + at] = exact[order]
            return self._distances_of(Q, squares, indices)

    def _distances_of(self, Q, squares, indices):
        """Distances of points that were found, in order.

        Squares between transformed rows that rounding may have changed are computed
        from the points; the others are exact already.
        """
        distances, state = np.sqrt(squares), self.state
        if state.images is None:
            return distances.astype(self.dtype, copy=False), indices
        queries, places = np.nonzero(squares <= _NEAR * state.norms[indices])
        if queries.size:
            exact = self._from_points(Q, queries, indices[queries, places])
            distances[queries, places] = exact
            order = np.lexsort((indices, distances))
            distances = np.take_along_axis(distances, order, axis=1)
            indices = np.take_along_axis(indices, order, axis=1)
        return distances.astype(self.dtype), indices

    def _from_points(self, Q, queries, indices):
        """``‖U (q - x)‖`` of pairs of a query and a point, from their differences."""
        points, U = self.state.points, self.state.U
        distances = np.empty(len(queries))
        for here in slices(len(queries), points.step):
            gaps = Q[queries[here]].astype(np.float64) - points.array[indices[here]]
            if sparse.issparse(gaps):
                gaps = sparse.csr_matrix(gaps)
                rows = gaps.toarray() if U is None else transform(gaps, U)
            else:
                rows = np.asarray(gaps) if U is None else np.asarray(gaps) @ U.T
            distances[here] = np.sqrt(row_squares(rows))
        return distances

    def radius_neighbors(self, Q, radius, jobs=1):
        """All points within `radius`: lists of distances and of positions, by position.

        O(kd) a query, the bounds of all points, and O(d) for a point that these leave.
        """
        with self.lock.reading():
            search = self.searcher(jobs, Q.shape[0])
            distances, indices = [], []
            with np.errstate(over="ignore"):
                square = np.square(float(radius)) * (1 + 1e-6) + 1e-300
                radius = self.dtype.type(radius)
            if self.state.images is not None:
                # So far apart may rounding put transformed rows of equal points.
                square += _NEAR * self.state.norms[: self.n].max()

            def find(here):
                queries = self.queries(search, Q[here])
                return search.within(queries, square, self.working_bytes)

            step = min(self.working_bytes // (12 * self.d), -(-Q.shape[0] // jobs))
            parts = run(find, slices(Q.shape[0], max(1, step)), jobs)
            found = [pair for part in parts for pair in part]
            for at, (near, squares) in enumerate(found):
                lengths = np.sqrt(squares).astype(self.dtype)
                if self.state.images is not None:
                    limit = _NEAR * self.state.norms[: self.n].max()
                    close = np.flatnonzero(squares <= limit)
                    query = np.full(len(close), at)
                    lengths[close] = self._from_points(Q, query, near[close])
                distances.append(lengths[lengths <= radius])
                indices.append(near[lengths <= radius])
            return distances, indices

    def distances(self, Q, jobs=1, enclosed=False):
        """Exact distances from each query to all points, (queries, n). O(kd + nd).

        With `enclosed`, distances within 1 ± eps where that takes less time.
        """
        with self.lock.reading():
            search = self.searcher(jobs)
            D = np.empty((Q.shape[0], self.n), dtype=self.dtype)
            if isinstance(search, SparseSearch):
                for here in slices(len(D), max(1, self.working_bytes // (8 * self.n))):
                    squares, _ = search.squares(Q[here])
                    D[here] = np.sqrt(np.maximum(squares, 0, out=squares))
                return D
            bounded = enclosed and search.plan.encloses(len(D))
            for here in self._batches(search, Q):
                queries = self.queries(search, Q[here], jobs)
                if bounded and not search.are_far(queries):
                    enclosures.distances(search, queries, self.aims[1], D[here], jobs)
                else:
                    eps = self.aims[1] if enclosed else 1.0
                    search.distances(queries, D[here], jobs, eps)
            if self.state.images is not None:
                limit = np.sqrt(_NEAR * self.state.norms[: self.n])
                rows, places = np.nonzero(limit >= D)
                if rows.size:
                    D[rows, places] = self._from_points(Q, rows, places)
            return D

    def pair_distances(self, i, j):
        """Exact distances between the points i and j, arrays of positions. O(kd)."""
        with self.lock.reading():
            distances = np.empty(len(i), dtype=self.dtype)
            for here in slices(len(i), self.state.points.step):
                rows = self.state.points.array[i[here]]
                pairs = np.arange(rows.shape[0])
                distances[here] = self._from_points(rows, pairs, j[here])
            return distances

    def sums(self, Q, start, stop, power):
        """Sums of ``distance ** power`` over the points start … stop - 1.

        O(kd + d log n) a query for squares of dense points; otherwise O(kd), and O(d)
        for each point.
        """
        with self.lock.reading():
            search = self.searcher()
            queries = self.queries(search, Q)
            if power == 2 and not isinstance(search, SparseSearch):
                return self._current_tree().squared_sums(queries, start, stop, search)
            totals, points = np.empty(Q.shape[0]), np.arange(start, stop)
            for at in range(len(totals)):
                squares = np.maximum(search.squares_to(queries, at, points), 0)
                totals[at] = np.sum(squares ** (power / 2))
            return totals

    def sample(self, Q, size, power, rng, restart=True):
        """Positions drawn with probability ∝ ``distance ** power``, (queries, size).

        O(kd) a query and O(d log n) expected a draw for dense points; one product with
        X for sparse ones. Uniform where every distance is zero. `restart` is that of
        :meth:`~.tree.DistanceTree.sample`, for dense points.
        """
        with self.lock.reading():
            search = self.searcher()
            queries = self.queries(search, Q)
            if not isinstance(search, SparseSearch):
                tree = self._current_tree()
                return tree.sample(queries, size, power, rng, search, restart)
            draws, everywhere = np.empty((Q.shape[0], size), np.intp), np.arange(self.n)
            for at in range(len(draws)):
                squares = search.squares_to(Q, at, everywhere)
                draws[at] = draw(squares ** (power / 2), size, rng)
            return draws

    def _current_tree(self):
        """The tree of sums, built in O(nd) or brought up to the metric in O(n)."""
        with self.lock.deriving:
            space, tree = cached.space_of(self.state), self._tree
            if tree is None:
                rest = space.origin, space.norms, self.version
                tree = DistanceTree(space.rows, *rest)
            elif tree.version != self.version:
                self._tree = None
                tree.follow(space.norms, self.version)
            self._tree = tree
            return tree

    def transform(self, Q):
        """``U (q - origin)`` in float64, what maps of sketches are applied to."""
        state = self.state
        if state.U is not None:
            return transform(Q, state.U, state.points.origin)
        rows = Q.toarray() if sparse.issparse(Q) else Q
        return rows - state.points.origin

    def sample_rows(self, size, rng):
        """Transformed rows of random points, (size, k), in float64."""
        size = min(size, self.n)
        return self.transform(self.X[rng.permutation(self.n)[:size]])

    @property
    def caches(self):
        """The maps that are registered, in order."""
        return list(self.state.caches)

    def cache(self, maps):
        """Register maps (rows × k) of the transformed space.

        Returns their handles. The points under them are derived when first used. It may
        be called inside `reading`. A change that another thread is preparing then drops
        the maps: look for the handles in :attr:`caches`.
        """
        with self.lock.reading():
            with self.lock.deriving:
                maps = [Map(map) for map in maps]
                caches = {**self.state.caches, **dict.fromkeys(maps)}
                self.set_state(self.state._replace(caches=caches))
            return maps

    def forget(self, maps):
        """Drop maps that were registered, and the points under them."""
        with self.lock.deriving:
            caches = {**self.state.caches}
            for map in maps or ():
                caches.pop(map, None)
            self.set_state(self.state._replace(caches=caches))

    def cached_rows(self, map):
        """The points under a registered map, (n, rows), as of now; inside `reading`.

        O(nd rows) when they are first used, O(np rows) after metric changes of rank p.
        """
        return self._cached(map).rows[: self.n]

    def cached_norms(self, map):
        """Squared lengths of :meth:`cached_rows`."""
        return self._cached(map).norms[: self.n]

    def are_current(self, maps):
        """Whether the points under registered maps are derived, and as of now."""
        held = [self.state.caches.get(map) for map in maps]
        return all(cache and cache.version == self.version for cache in held)

    def _cached(self, map):
        cache = self.state.caches[map]
        if cache is None or cache.version != self.version:
            with self.lock.deriving:
                rest = self.aims, 1, False
                state = cached.derive(self.state, *rest)
                cache = state.caches[map]
                if cache is None or cache.version != self.version:
                    cache = cached.current_rows(state, map, self.version)
                    self.set_state(state._replace(caches={**state.caches, map: cache}))
        return cache

    def check(self):
        """Assert invariants; return the largest relative error of norms. O(nkd)."""
        with self.lock.reading():
            search = self.searcher()
            state, n, off = self.state, self.n, 0.0
            rounding = state.square / np.sqrt(self.d)  # of U, where its terms cancel
            for here in slices(n, state.points.step):
                rows = block(state.points.array, here)
                sizes, norms, images = cached.measure(rows, state.points, state.U)
                error = np.abs(state.norms[here] - norms)
                scale = norms + rounding * sizes
                limit = state.errors[here] + 1e-13 * scale + 1e-300
                assert (error <= limit).all(), "squared lengths under the metric"
                assert np.allclose(state.sizes[here], sizes, 1e-12), "squared lengths"
                if state.images is not None:
                    gaps = row_squares(state.images[here] - images)
                    assert (gaps <= 1e-20 * scale).all(), "transformed rows"
                off = max(off, (error / np.maximum(norms, 1e-300)).max(initial=0))
                for map in state.caches:
                    fresh = (rows if images is None else images) @ map.map.T
                    size = np.linalg.norm(map.map) * np.sqrt(state.norms[:n].max())
                    gap = np.abs(self.cached_rows(map)[here] - fresh).max()
                    assert gap <= 1e3 * np.finfo(self.dtype).eps * size, "sketches"
            if isinstance(search, DenseSearch):
                space = cached.space_of(self.state)
                self._current_tree().check(space.rows, space.norms)
                if self.state.coded is not None:
                    self.state.coded.check(space.rows, space.origin)
                if self.state.image_codes is not None:
                    self.state.image_codes.check(self.transform(self.X), 0)
                if self.state.cells is not None:
                    rest = self.state.coded, space.rows, space.origin
                    self.state.cells.check(*rest)
            assert self.records is None or len(self.records) == n, "records"
            return float(off)

    def saved(self):
        """The index as plain values and arrays, which later changes do not write to."""
        with self.lock.reading():
            for K in self.state.probings:
                # One that is made later depends on queries that are not saved.
                self.probing(K)
            self._shared = self._shares_records = True
            self.probes.forget()
            with self.lock.deriving:
                state = cached.with_current_rows(self.state)
                if state.cells is not None:
                    state = cached.derive(state, self.aims)
                self.set_state(state)
                values = cached.saved(self.state)
            return {**values, "aims": self.aims, "work": tuple(self.probes.work)}

    @classmethod
    def restored(cls, values):
        """The index that was saved, or a ValueError that says what is wrong with it."""
        index = cls.__new__(cls)
        n_neighbors, eps, recall = values["aims"]
        aims = int(n_neighbors), float(eps), recall if recall is None else float(recall)
        work = tuple(map(float, values["work"]))
        index._begin(cached.restored(values), *aims, work)
        index._shared = index._shares_records = True
        return index
