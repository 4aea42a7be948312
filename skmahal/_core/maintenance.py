"""The paper's data structure, corrected: sketches that follow metric and points."""

from itertools import chain
from typing import NamedTuple

import numpy as np

from . import compiled, front, kernels, keyed, lead, plan, projections
from .checks import as_count, as_fraction, as_seeds
from .exact import MOST_TILE, ExactMaintenance, Found, shaped
from .gate import changes, reads
from .images import Columns
from .metric import relative_change
from .saved import array_from, generator_from, integer_from, require
from .state import State
from .tiles import (
    ALL_COLUMNS,
    ColumnPart,
    Expansion,
    lower_bounds,
    median_of,
    row_squares,
    squared_distances,
)
from .workers import run, slices

# Queries that share little of what brute force reads.
_FEW = 8

_ROWS_ARE_ALIKE = ("gaussian", "rademacher")

# How far, relative to its size, a metric may go by whole new ones before the leading
# directions and what queries look at are chosen again. Until then they are just older.
_STALE = 0.5

_KEY_BYTES = 32


class Piece(NamedTuple):
    """Some rows of a sketch, as columns of an image."""

    image: Columns
    columns: slice = ALL_COLUMNS


class MetricMaintenance(ExactMaintenance):
    r"""Distance estimates under a Mahalanobis metric, while metric and points change.

    Each of L sketches :math:`\Pi_j` (m × k) keeps :math:`s_{ij} = \Pi_j U x_i` for
    every point. A query is served by R of them, chosen by a keyed hash of the query,
    and a distance is the median of :math:`\|\Pi_j U q - s_{ij}\|`. All distances of a
    query are within 1 ± eps with probability 1 - delta.

    It implements the online adaptive structure of Qin, Reddy and Song (2023) with its
    formulas corrected. Rows go in and out as NumPy arrays; many at once is the native
    form, one is a batch of one.

    Parameters
    ----------
    U : array-like of shape (k, d), or None
        The metric is ``A = UᵀU``; None is the Euclidean metric.
    X : array-like or sparse matrix of shape (n, d)
        Points. A copy is made; float32 stays float32, everything else becomes float64.
    eps : float, default=0.2
        Relative error of a distance.
    delta : float, default=0.01
        Probability that a query's answer breaks the promise.
    m : int or "auto", default="auto"
        Rows of a sketch. "auto" is the smallest for which L sketches keep the promise.
    L : int, default=10
        Number of sketches.
    R : int or "auto", default="auto"
        Sketches that serve a query. "auto" takes as few as each operation's promise
        allows.
    lead : int or "auto", default=0
        Leading directions that are kept exactly and not sketched. 0 is the paper's
        structure; "auto" chooses what makes neighbour queries cheapest on a sample.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}, default="gaussian"
        Distribution of the sketches.
    n_neighbors : int, default=10
        How many neighbours queries will mostly ask for; only their time depends on it.
    seed : int or None, default=None
        Where the sketches and the secret key come from; None is the operating system.

    Attributes
    ----------
    n, d, k : int
        Numbers of points, of features and of rows of U.
    m, L, R, lead : int
        The values in use. R is that of :meth:`query_all`.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal import MetricMaintenance
    >>> rng = np.random.default_rng(0)
    >>> X, U = rng.normal(size=(1000, 300)), rng.normal(size=(200, 300))
    >>> index = MetricMaintenance(U, X, m=64, L=10, R=5, seed=0)
    >>> index.update_low_rank(rng.normal(size=200), rng.normal(size=300))
    >>> q = rng.normal(size=300)
    >>> exact = np.linalg.norm((X - q) @ index.U.T, axis=1)
    >>> bool(np.all(np.abs(index.query_all(q) / exact - 1) < 0.25))
    True
    """

    def __init__(
        self,
        U,
        X,
        *,
        eps=0.2,
        delta=0.01,
        m="auto",
        L=10,
        R="auto",
        lead=0,
        sketch="gaussian",
        n_neighbors=10,
        seed=None,
    ):
        self._promise(eps, delta, m, L, R, lead, sketch, n_neighbors)
        super().__init__(U, X)
        self._draw(seed)

    @classmethod
    def over(cls, state, *, eps, delta, m, L, R, lead, sketch, n_neighbors, seed):
        """Sketches over a state. O(1), and what :meth:`refresh_sketches` costs."""
        index = super().over(state)
        index._promise(eps, delta, m, L, R, lead, sketch, n_neighbors)
        index._draw(seed)
        return index

    def __repr__(self):
        size = f"n={self.n}, d={self.d}, k={self.k}"
        return f"MetricMaintenance({size}, m={self.m}, L={self.L}, lead={self.lead})"

    @property
    def R(self):
        """Sketches that serve a query of :meth:`query_all`, for the present n."""
        if self._asked_R is not None:
            return self._asked_R
        promise = self.eps, self.delta, self.sketch
        return plan.votes_for_all(self.n, self.k, self.m, self.L, *promise)

    @property
    def lead(self):
        """Leading directions that are kept exactly."""
        return len(self._lead.map)

    @property
    def head(self):
        """Rows of a sketch that a neighbour query looks at."""
        return min(self.m, self._front.head)

    @property
    def bank(self):
        """Sketches that a neighbour query looks at as if they were one."""
        return max(1, self._front.head // self.m)

    @property
    def looks_at_sketches(self):
        """Whether neighbour queries do, as who sets `m` has decided.

        Where m is "auto" they do if that is expected to cost less than brute force.
        """
        return self._front.pays or not self._plans_m

    def saved(self):
        """The same as plain values and arrays, the secret key among them. O(1)."""
        sketches = {
            "eps": self.eps,
            "delta": self.delta,
            "m": self.m,
            "plans_m": self._plans_m,
            "L": self.L,
            "R": self._asked_R,
            "lead": self._asked_lead,
            "sketch": self.sketch,
            "n_neighbors": self._expected_K,
            "key": self._key,
            "has_seed": self._has_seed,
            "rng": self._rng.bit_generator.state,
            "seeds": self._seeds,
            "front": self._front._asdict(),
            "moved": float(self._moved),
        }
        return {**super().saved(), "sketches": sketches}

    @property
    def asked(self):
        """Parameters as they were given."""
        return {
            "eps": self.eps,
            "delta": self.delta,
            "m": "auto" if self._plans_m else self.m,
            "L": self.L,
            "R": "auto" if self._asked_R is None else self._asked_R,
            "lead": "auto" if self._asked_lead is None else self._asked_lead,
            "sketch": self.sketch,
            "n_neighbors": self._expected_K,
        }

    def _restore(self, saved):
        self._hold(State.restored(saved))
        own = saved["sketches"]
        names = "eps", "delta", "m", "L", "R", "lead", "sketch", "n_neighbors"
        asked = (own[name] for name in names)
        self._promise(*("auto" if value is None else value for value in asked))
        self._plans_m = bool(own["plans_m"])
        require(self.m is not None, "m is missing")
        self._key = own["key"]
        whole = isinstance(self._key, bytes) and len(self._key) == _KEY_BYTES
        require(whole, f"the key is not of {_KEY_BYTES} bytes")
        self._multipliers = keyed.multipliers(self._key, self.d, self.dtype)
        self._has_seed, self._rng = bool(own["has_seed"]), generator_from(own["rng"])
        integers = (np.dtype(np.int64),)
        self._seeds = array_from(own, "seeds", integers, (1 + self.L,))
        require((self._seeds >= 0).all(), "a seed is negative")
        self._moved = float(own["moved"])
        require(self._moved >= 0, "moved is negative")
        self._front = self._front_from(own["front"])
        self._restore_images(self._state.images[1:])

    def _front_from(self, saved):
        lead = integer_from(saved, "lead", most=self.k)
        head = integer_from(saved, "head", least=1, most=self.L * self.m)
        whole = head <= self.m or head % self.m == 0
        require(whole, f"a front has {head} rows of sketches of {self.m}")
        costs = float(saved["cost"]), float(saved["exact_cost"])
        require(min(costs) >= 0, "a cost is negative")
        return front.Front(lead, head, *costs)

    def _restore_images(self, images):
        """Leading directions, fronts and sketches, from the images in their order."""
        lead, head = self._front.lead, self._front.head
        self._lead = images.pop(0) if lead else _nothing(self.k, self.dtype)
        require(len(self._lead.map) == lead, f"there are not {lead} leading directions")
        sizes = [len(image.map) for image in images]
        expected = [len(rows) for rows in _cut([range(self.m)] * self.L, head)]
        require(sizes == expected, f"sketches have {sizes} rows, expected {expected}")
        self._fronts, self._sketches = _arranged(images, self.m, head)

    @changes
    def refresh_sketches(self, jobs=1):
        """Draw a new key, sketches and directions. O(nk(lead + Lm)), some of it later.

        Whatever was learnt of the old sketches from their answers is worth nothing
        after it, and pruning is as good as at the start.
        """
        state, jobs = self._state, as_count("jobs", jobs)
        # Without a seed, not even who holds an old pickle can foresee them.
        rng = self._rng if self._has_seed else np.random.default_rng()
        key, seeds = rng.bytes(_KEY_BYTES), rng.integers(2**63, size=1 + self.L)
        multipliers = keyed.multipliers(key, self.d, self.dtype)
        drawn = self._drawn_for(state.metric, seeds)
        if state.in_use:
            state.prepare(self._looked_at(*drawn), jobs)
        self._install(state, drawn, _key=key, _multipliers=multipliers, _seeds=seeds)

    @changes
    def append(self, X, targets=None):
        """Add points at the end. O(k(d + lead + Lm)) each, amortised.

        Where m is "auto" and too small for the promise at the new size, sketches are
        drawn anew with rows enough for twice the points, beside the readers.
        """
        n, m = self.n, self.m
        try:
            super().append(X, targets)
            if self._plans_m and m < self._auto_m(self.n):
                self._enlarge()
        except BaseException:
            if self.m == m:
                self.cut(n)
            raise

    @reads
    def query_pair(self, i, j):
        """Estimated distance between the points `i` and `j`, broadcast. O(mR) each.

        The sketches are chosen by a keyed hash of the pair and of the version of metric
        and points.
        """
        i, j, shape = self._pairs(i, j)
        squares = np.empty(len(i))
        for part in slices(len(i), self._tile_rows(self.R * self.m)):
            squares[part] = self._pair_squares(i[part], j[part])
        return shaped(self._roots.of_pairs(squares, i, j), shape)

    @reads
    def query_all(self, q):
        """Estimated distances of one query, (n,), or of many, (queries, n).

        O(kd + R(mk + nm) + n lead) each. All n are within 1 ± eps with probability at
        least 1 - delta.
        """
        Q, single = self._queries(q)
        D = np.empty((len(Q), self.n), dtype=self.dtype)
        for tile in self._tiles(len(Q), (self.R + 2) * self.n):
            u = self._state.transform_queries(Q[tile])
            squares = self._estimates(u, self._picks(Q[tile], self.R))
            D[tile] = self._roots.of_tile(Q[tile], u, squares)
        return D[0] if single else D

    @reads
    def kneighbors(self, Q, K, candidates=None, jobs=1):
        """The K nearest points: exact distances and indices, (queries, K).

        The set is exact with probability at least 1 - delta a query; with an integer
        `candidates`, it is the best among as many points of smallest estimate. Queries
        whose bounds separate too few points are answered by brute force.
        O(kd + n(m R + lead)) each, and k for a point that is not excluded, on up to
        `jobs` threads.
        """
        Q, _ = self._queries(Q)
        K, jobs = as_count("K", K, most=self.n), as_count("jobs", jobs)
        if candidates is not None:
            candidates = as_count("candidates", candidates, least=K, most=self.n)
        return self._nearest(Q, K, jobs, candidates)

    def _nearest(self, Q, K, jobs=1, candidates=None):
        """The same for checked queries, inside :meth:`reading`."""
        Q, K = np.ascontiguousarray(Q), as_count("K", K, most=self.n)
        if candidates is None and not self.looks_at_sketches:
            return self._exact_kneighbors(Q, K, jobs)
        found = Found(len(Q), K)
        R, _ = self._certificate(K)
        bank = self.bank if R == 1 and candidates is None else 1
        picks, u = self._picks(Q, R, bank, jobs), self._transformed(Q, jobs)
        most = front.most_open(self.n, self.k, few=len(Q) <= _FEW)

        def find(here):
            asked = (Q[here],) * 2 if u is Q else (Q[here], u[here])
            if candidates is not None:
                return self._find_budgeted(*asked, picks, candidates, here, found)
            bounds = self._bounds(asked[1], picks[here], K)
            return self._search(*asked, bounds, most, here, found)

        groups = self._groups(picks, jobs, whole=candidates is not None)
        left = np.concatenate(run(find, groups, jobs))
        if left.size:
            self._find_exactly(Q, left, found, jobs)
        return self._settled(Q, found)

    @reads
    def prepare(self, jobs=1):
        """Build what neighbour queries use. O(nk(d + lead + L head))."""
        drawn = self._front, self._lead, self._fronts, self._sketches
        self._state.prepare([self._state.rows, *self._looked_at(*drawn)], jobs)

    def _looked_at(self, chosen, lead, fronts, _):
        """The images among these that neighbour queries use."""
        if self._plans_m and not chosen.pays:
            return []
        used = [lead] if len(lead.map) else []
        return used + fronts

    @property
    def _width(self):
        return self.lead + self.L * self.m

    def _promise(self, eps, delta, m, L, R, lead, sketch, n_neighbors):
        """Take the parameters that do not depend on the points."""
        self.eps = as_fraction("eps", eps)
        self.delta = as_fraction("delta", delta)
        self.L = as_count("L", L)
        self._asked_R = None if _is_auto(R) else as_count("R", R, most=self.L)
        if not isinstance(sketch, str) or sketch not in projections.SKETCHES:
            expected = ", ".join(projections.SKETCHES)
            raise ValueError(f"sketch must be one of {expected}, got {sketch!r}.")
        self.sketch = sketch
        self._asked_lead = None if _is_auto(lead) else as_count("lead", lead, least=0)
        self._plans_m = _is_auto(m)
        self.m = None if self._plans_m else as_count("m", m)
        self._expected_K = as_count("n_neighbors", n_neighbors)

    def _draw(self, seed):
        if self._plans_m:
            self.m = self._auto_m(self.n)
        self._has_seed = seed is not None
        self._rng = np.random.default_rng(as_seeds("seed", seed))
        self._key = self._rng.bytes(_KEY_BYTES)
        self._multipliers = keyed.multipliers(self._key, self.d, self.dtype)
        self._seeds = self._rng.integers(2**63, size=1 + self.L)
        drawn = self._drawn_for(self._state.metric, self._seeds)
        self._install(self._state, drawn)

    def _enlarge(self):
        """Sketches with rows enough for twice the points."""
        larger = self._twin()
        larger.m = self._auto_m(2 * self.n)
        drawn = larger._drawn_for(self._state.metric, self._seeds)
        if self._state.in_use:
            self._state.prepare(self._looked_at(*drawn))
        self._install(self._state, drawn, m=larger.m)

    def _auto_m(self, n):
        m = plan.sketch_rows(n, self.L, self.eps, self.delta, self.sketch)
        return min(m, 1 << (self.k - 1).bit_length()) if self.sketch == "srht" else m

    def _drawn_for(self, metric, seeds):
        """What neighbour queries look at, leading directions, fronts and sketches.

        A front is an image that serves a neighbour query: the first rows of a sketch,
        or all rows of several. A sketch is pieces of images. All is the same for the
        same metric, points and seeds.
        """
        rngs = [np.random.default_rng(seed) for seed in seeds]
        chosen, P = self._planned(metric, rngs[0])
        maps = [self._residual_map(P, metric.k, rng) for rng in rngs[1:]]
        lead = Columns(np.ascontiguousarray(P.T))
        images = [Columns(rows) for rows in _cut(maps, chosen.head)]
        return chosen, lead, *_arranged(images, self.m, chosen.head)

    def _install(self, state, drawn, moved=0.0, **more):
        """Put into use what :meth:`_drawn_for` has drawn for a state, all at once."""
        chosen, lead, fronts, sketches = drawn
        images = _images(lead, sketches)
        names = {"_front": chosen, "_lead": lead, "_moved": moved, **more}
        with state.gate.writing():
            # Both are followed until the old ones are out of use.
            state.images = [*state.images, *images]
            self._hold(state, _fronts=fronts, _sketches=sketches, **names)
            state.images = self._images

    @property
    def _images(self):
        """What is derived from the points by this engine, in the order of a file."""
        return [self._state.rows, *_images(self._lead, self._sketches)]

    def _planned(self, metric, rng):
        """The :class:`~.front.Front` for a sample under `metric`, and P, k × lead."""
        points, k = self._state.points, metric.k
        size = min(lead.SAMPLE, points.most_dense_rows)
        sample = rng.permutation(self.n)[:size]
        rows = metric.transform(points.take(sample))
        K = min(self._expected_K, self.n)
        R, _ = self._certificate(K, k)
        most = self._asked_lead
        if most is None:
            most = min(lead.MOST, max(0, k - self.m * R) // 2)
        P = lead.leading_directions(rows, most, rng)
        leads = front.lead_grid(P.shape[1])
        if self._asked_lead is not None:
            leads = [P.shape[1]]
        heads = {m: self._weight(K, R, m, k) for m in self._heads(R)}
        shrinks = {m: weight * m / self.m for m, weight in heads.items()}
        chosen = front.choose(rows, rows @ P, self.n, K, shrinks, leads, R, rng)
        return chosen, P[:, : chosen.lead]

    def _heads(self, R):
        """How many rows a neighbour query may look at for R votes.

        Rows that are independent and alike make a sketch in any number: a few of one,
        or all of many.
        """
        if R > 1 or self.sketch not in _ROWS_ARE_ALIKE:
            return [self.m]
        most = self.L if self._asked_R is None else 1
        return front.head_grid(self.m, most)

    def _residual_map(self, P, k, rng):
        """``Π (I - P Pᵀ)``, m × k."""
        Pi = projections.toarray(
            projections.draw(self.sketch, self.m, k, rng, self.dtype)
        )
        return Pi - (Pi @ P) @ P.T if P.shape[1] else Pi

    def _replace_metric(self, metric, jobs):
        moved = self._moved + relative_change(self._state.metric, metric)
        keep = moved < _STALE
        drawn = self._as_drawn() if keep else self._drawn_for(metric, self._seeds)
        state = self._state.under(metric)
        if self._state.in_use:
            state.prepare([state.rows, *self._looked_at(*drawn)], jobs)
        self._install(state, drawn, moved if keep else 0.0)

    def _as_drawn(self):
        """What is in use, as :meth:`_drawn_for` gives it: images of nothing yet."""
        pieces = [piece for sketch in self._sketches for piece in sketch]
        images = [self._lead, *(piece.image for piece in pieces)]
        new = {id(image): Columns(image.map) for image in images}
        sketches = [
            [Piece(new[id(image)], columns) for image, columns in sketch]
            for sketch in self._sketches
        ]
        fronts = [new[id(image)] for image in self._fronts]
        return self._front, new[id(self._lead)], fronts, sketches

    def _picks(self, Q, R, bank=1, jobs=1):
        """Which R sketches serve each query; or which bank of them, for R = 1."""
        parts = run(
            lambda part: keyed.query_bytes(Q[part], self._multipliers, self.version),
            slices(len(Q), -(-len(Q) // jobs)),
            jobs,
        )
        messages = parts[0] if len(parts) == 1 else [*chain.from_iterable(parts)]
        return keyed.choose(self._key, messages, self.L // bank, R)

    def _groups(self, picks, jobs, whole):
        """Positions of queries that go together: one sketch where one serves each.

        `whole` says that all bounds of a group are made before any is looked at.
        """
        count, R = picks.shape
        if R > 1:
            tiles = self._tiles(count, (R + 2) * self.n)
            return [np.arange(tile.start, tile.stop) for tile in tiles]
        if count == 1:
            return [np.zeros(1, dtype=np.intp)]
        most = self._tile_rows(max((R + 2) * self.n if whole else self.n, self.k))
        if not whole and self._searches_as_it_multiplies:
            most = MOST_TILE
        most = min(most, -(-count // jobs))
        order = np.argsort(picks[:, 0], kind="stable")
        starts = np.flatnonzero(np.diff(picks[order, 0])) + 1
        groups = [
            group[tile]
            for group in np.split(order, starts)
            for tile in slices(len(group), most)
        ]
        # The largest first, so that no thread is left with one at the end.
        return sorted(groups, key=len, reverse=True)

    @property
    def _searches_as_it_multiplies(self):
        """Whether compiled loops make bounds a segment of the points at a time."""
        return compiled.fast() is not None and self._state.holds_rows

    def _certificate(self, misses, k=None):
        """R, and the relative error that the median of R sketches rarely exceeds."""
        parameters = self.m, self.L, self._asked_R, self.eps, self.delta
        return plan.certificate(misses, k or self.k, *parameters, self.sketch)

    def _weight(self, misses, R, m, k=None):
        """What squares of m rows of R sketches are multiplied by to be bounds."""
        eps = self._certificate(misses, k)[1]
        if m != self.m:
            eps = plan.upper_accuracy(m, R, self.delta / misses, self.sketch)
        return self.m / m / (1 + eps) ** 2

    def _part(self, image, u, weight=1.0, columns=ALL_COLUMNS):
        """Queries and points under some rows of an image's map, as of now."""
        rows = image.map if columns == ALL_COLUMNS else image.map[columns]
        chunks = self._state.current(image).blocks(self.n)
        return ColumnPart(u @ rows.T, chunks, self.n, weight, columns)

    def _parts(self, which, u, weight=1.0):
        """The same under a whole sketch."""
        pieces = self._sketches[which]
        return [self._part(image, u, weight, columns) for image, columns in pieces]

    def _leading_parts(self, u):
        return [self._part(self._lead, u)] if self.lead else []

    def _bounds(self, u, picks, K):
        """Lower bounds for neighbour queries, multiplied for several votes.

        With one vote, all of them look at the same front.
        """
        R = picks.shape[1]
        if R > 1:
            weight = self._weight(K, R, self.m)
            return self._over_votes(u, picks, lower_bounds, weight, self._slack)
        weight = self._weight(K, R, self._front.head)
        looked_at = self._part(self._fronts[picks[0, 0]], u, weight)
        leading = self._leading_parts(u)
        return Expansion([*leading, looked_at], self._slack, self.tile_bytes)

    def _radius_bounds(self, Q, u):
        R, _ = self._certificate(self.n)
        weight = self._weight(self.n, R, self.m)
        picks = self._picks(Q, R)
        return self._over_votes(u, picks, lower_bounds, weight, self._slack)

    def _estimates(self, u, picks):
        return self._over_votes(u, picks, squared_distances)

    def _over_votes(self, u, picks, distances, weight=1.0, *args):
        """Leading part plus the median over sketches of the residual, (queries, n)."""
        votes = np.empty((picks.shape[1], len(u), self.n), dtype=self.dtype)
        for which in np.unique(picks):
            queries, slots = np.nonzero(picks == which)
            parts = self._parts(which, u[queries], weight)
            votes[slots, queries] = distances(parts, *args)
        squares = median_of(votes)
        if self.lead:
            squares += distances(self._leading_parts(u), *args)
        return squares

    def _find_budgeted(self, Q, u, picks, count, here, found):
        estimates = self._estimates(u, picks[here])
        indices = np.empty((len(u), found.K), dtype=np.intp)
        squares = np.empty((len(u), found.K))
        self._state.searched(
            Q,
            u,
            lambda points: kernels.budgeted(estimates, points, count, indices, squares),
        )
        found.put(here, indices, squares)
        return here[:0]

    def _pair_squares(self, i, j):
        messages = keyed.pair_bytes(i, j, self._state.version)
        picks = keyed.choose(self._key, messages, self.L, self.R)
        votes = np.zeros((picks.shape[1], len(i)))
        for which in np.unique(picks):
            pairs, slots = np.nonzero(picks == which)
            for piece in self._sketches[which]:
                votes[slots, pairs] += self._gaps(*piece, i[pairs], j[pairs])
        squares = median_of(votes)
        return squares + self._gaps(*Piece(self._lead), i, j) if self.lead else squares

    def _gaps(self, image, columns, i, j):
        current = self._state.current(image)
        return row_squares(current.take(i, columns) - current.take(j, columns))


def _is_auto(value):
    """Whether it is "auto"; arrays, which are compared by element, are not."""
    return isinstance(value, str) and value == "auto"


def _images(lead, sketches):
    """The images of leading directions, where there are any, and of sketches."""
    pieces = {id(piece.image): piece.image for sketch in sketches for piece in sketch}
    return [*([lead] if len(lead.map) else []), *pieces.values()]


def _cut(maps, head):
    """Maps of images, from those of sketches, for fronts of `head` rows.

    A front is the first rows of a sketch, with an image of the others; or it is several
    whole sketches, and those that are left over stand alone.

    Examples
    --------
    >>> _cut([[1, 2, 3], [4, 5, 6]], head=2)
    [[1, 2], [3], [4, 5], [6]]
    """
    m = len(maps[0])
    bank = head // m
    if bank <= 1:
        parts = [part for rows in maps for part in (rows[:head], rows[head:])]
        return [part for part in parts if len(part)]
    whole = len(maps) - len(maps) % bank
    starts = range(0, whole, bank)
    banks = [np.concatenate(maps[start : start + bank]) for start in starts]
    return banks + maps[whole:]


def _arranged(images, m, head):
    """Fronts, and sketches in pieces, of the images of what :func:`_cut` gives."""
    bank = head // m
    if bank == 1:
        return images, [[Piece(image)] for image in images]
    if bank == 0:
        pairs = zip(images[::2], images[1::2], strict=True)
        return images[::2], [[Piece(front), Piece(tail)] for front, tail in pairs]
    fronts = [image for image in images if len(image.map) == head]
    places = [slice(m * at, m * (at + 1)) for at in range(bank)]
    sketches = [[Piece(front, place)] for front in fronts for place in places]
    return fronts, sketches + [[Piece(image)] for image in images[len(fronts) :]]


def _nothing(k, dtype):
    """The image of no leading directions."""
    return Columns(np.empty((0, k), dtype=dtype))
