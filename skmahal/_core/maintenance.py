"""The paper's data structure, corrected: sketches that follow metric and points."""

import numpy as np

from . import keyed, lead, plan, projections, select
from .checks import as_count, as_fraction
from .exact import ExactMaintenance, Found, shaped, slices
from .state import Image
from .tiles import lower_bounds, median_of, row_squares, squared_distances

_DENSE_SHARE = 8


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
        structure; "auto" chooses from the spectrum of a sample.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}, default="gaussian"
        Distribution of the sketches.
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
        seed=None,
    ):
        self.eps = as_fraction("eps", eps)
        self.delta = as_fraction("delta", delta)
        self.L = as_count("L", L)
        self._asked_R = None if R == "auto" else as_count("R", R, most=self.L)
        if sketch not in projections.SKETCHES:
            expected = ", ".join(projections.SKETCHES)
            raise ValueError(f"sketch must be one of {expected}, got {sketch!r}.")
        self.sketch = sketch
        self._asked_lead = None if lead == "auto" else as_count("lead", lead, least=0)
        super().__init__(U, X)
        self._plans_m = m == "auto"
        self.m = self._auto_m(self.n) if self._plans_m else as_count("m", m)
        self._rng = np.random.default_rng(np.random.SeedSequence(seed))
        self._key = self._rng.bytes(32)
        self._seeds = self._rng.integers(2**63, size=1 + self.L)
        self._install(self._images_under(self._state.metric, self._seeds))

    def __repr__(self):
        size = f"n={self.n}, d={self.d}, k={self.k}"
        return f"MetricMaintenance({size}, m={self.m}, L={self.L}, lead={self.lead})"

    @property
    def R(self):
        """Sketches that serve a query of :meth:`query_all`, for the present n."""
        if self._asked_R is not None:
            return self._asked_R
        promise = self.eps, self.delta, self.sketch
        return plan.votes_for_all(self.n, self.m, self.L, *promise)

    @property
    def lead(self):
        """Leading directions that are kept exactly."""
        return len(self._lead.map)

    def refresh_sketches(self):
        """Draw new sketches and leading directions. O(nk(lead + Lm)) when next used.

        Whatever was learnt of the old sketches from their answers is worth nothing
        after it, and pruning is as good as at the start.
        """
        seeds = self._rng.integers(2**63, size=1 + self.L)
        images = self._images_under(self._state.metric, seeds)
        self._seeds = seeds
        self._install(images)

    def append(self, X):
        """Add points at the end. O(k(d + lead + Lm)) each, amortised.

        Where m is "auto" and too small for the promise at the new size, sketches are
        drawn anew with rows enough for twice the points.
        """
        super().append(X)
        if self._plans_m and self.m < self._auto_m(self.n):
            self.m = self._auto_m(2 * self.n)
            self._install(self._images_under(self._state.metric, self._seeds))

    def query_pair(self, i, j):
        """Estimated distance between the points `i` and `j`, broadcast. O(mR) each.

        The sketches are chosen by a keyed hash of the pair and of the version of metric
        and points.
        """
        i, j, shape = self._pairs(i, j)
        squares = np.empty(len(i))
        for part in slices(len(i), self._tile_rows(self.R * self.m)):
            squares[part] = self._pair_squares(i[part], j[part])
        return shaped(self._pair_roots(squares, i, j), shape)

    def query_all(self, q):
        """Estimated distances of one query, (n,), or of many, (queries, n).

        O(kd + R(mk + nm) + n lead) each. All n are within 1 ± eps with probability at
        least 1 - delta.
        """
        Q, single = self._queries(q)
        D = np.empty((len(Q), self.n), dtype=self.dtype)
        for tile in self._tiles(len(Q), (self.R + 2) * self.n):
            u = self._state.transform(Q[tile])
            picks = self._picks(Q[tile], self.R)
            squares = self._squares(u, picks, squared_distances)
            D[tile] = self._roots(Q[tile], u, squares)
        return D[0] if single else D

    def kneighbors(self, Q, K, candidates=None):
        """The K nearest points: exact distances and indices, (queries, K).

        The set is exact with probability at least 1 - delta a query; with an integer
        `candidates`, it is the best among as many points of smallest estimate. Queries
        whose bounds separate too few points are answered by brute force.
        O(kd + n(m R + lead)) each, and k for a point that is not excluded.
        """
        Q, _ = self._queries(Q)
        found = Found(len(Q), as_count("K", K, most=self.n))
        R, shrink = self._certificate(K)
        if candidates is not None:
            candidates = as_count("candidates", candidates, least=K, most=self.n)
        for tile in self._tiles(len(Q), (R + 2) * self.n):
            u = self._state.transform(Q[tile])
            picks = self._picks(Q[tile], R)
            if candidates is not None:
                self._find_budgeted(found, u, picks, tile.start, candidates)
                continue
            hard = self._find_certified(found, u, picks, tile.start, shrink)
            if hard.size:
                self._find_exactly(found, u[hard], tile.start + hard)
        return self._settled(Q, found)

    @property
    def _width(self):
        return self.lead + self.L * self.m

    def _auto_m(self, n):
        m = plan.sketch_rows(n, self.L, self.eps, self.delta, self.sketch)
        return min(m, 1 << (self.k - 1).bit_length()) if self.sketch == "srht" else m

    def _images_under(self, metric, seeds):
        """Leading directions and sketches for `metric`, the same for the same seeds."""
        rngs = [np.random.default_rng(seed) for seed in seeds]
        P = self._leading(metric, rngs[0])
        return [
            Image(np.ascontiguousarray(P.T)),
            *(Image(self._residual_map(P, metric.k, rng)) for rng in rngs[1:]),
        ]

    def _install(self, images):
        self._lead, *self._sketches = images
        self._state.images = [self._state.rows, *images]

    def _leading(self, metric, rng):
        """P, k × lead: of a sample of the points under `metric`."""
        most = self._asked_lead
        if most is None:
            votes, _ = self._certificate(1)
            most = min(lead.MOST, max(0, metric.k - self.m * votes) // 2)
        if not most:
            return np.zeros((metric.k, 0), dtype=self.dtype)
        points = self._state.points
        size = min(lead.SAMPLE, points.most_dense_rows)
        sample = np.sort(rng.permutation(self.n)[:size])
        rows = metric.transform(points.take(sample))
        P, variances = lead.leading_directions(rows, most, rng)
        if self._asked_lead is None:
            P = P[:, : lead.worthwhile(variances, self.m)]
        return P

    def _residual_map(self, P, k, rng):
        """``Π (I - P Pᵀ)``, m × k."""
        Pi = projections.toarray(
            projections.draw(self.sketch, self.m, k, rng, self.dtype)
        )
        return Pi - (Pi @ P) @ P.T if P.shape[1] else Pi

    def _replace_metric(self, metric):
        images = self._images_under(metric, self._seeds)
        super()._replace_metric(metric)
        self._install(images)

    def _picks(self, Q, R):
        return keyed.choose(self._key, keyed.query_bytes(Q), self.L, R)

    def _certificate(self, misses):
        """R, and what estimates of the residual are multiplied by to be bounds."""
        parameters = self.k, self.m, self.L, self._asked_R, self.eps, self.delta
        R, eps = plan.certificate(misses, *parameters, self.sketch)
        return R, 1 / (1 + eps) ** 2

    def _squares(self, u, picks, distances, *args, shrink=1.0):
        """Squared estimates (queries, n): leading part and median of the residuals."""
        squares = self._residuals(u, picks, distances, *args)
        if shrink != 1:
            squares *= np.asarray(shrink, dtype=squares.dtype)
        if self.lead:
            squares += self._to_image(self._lead, u, distances, *args)
        return squares

    def _residuals(self, u, picks, distances, *args):
        votes = np.empty((picks.shape[1], len(u), self.n), dtype=self.dtype)
        for which in np.unique(picks):
            queries, slots = np.nonzero(picks == which)
            image = self._sketches[which]
            votes[slots, queries] = self._to_image(image, u[queries], distances, *args)
        return median_of(votes)

    def _to_image(self, image, u, distances, *args):
        rows = self._state.current(image)
        z = image.project(u)
        return distances(z, rows, row_squares(z), image.squares(self.n), *args)

    def _radius_bounds(self, Q, u):
        R, shrink = self._certificate(self.n)
        picks = self._picks(Q, R)
        return self._squares(u, picks, lower_bounds, self._slack, shrink=shrink)

    def _find_certified(self, found, u, picks, start, shrink):
        """Fill in what the bounds decide; the positions of the queries they do not."""
        bounds = self._squares(u, picks, lower_bounds, self._slack, shrink=shrink)
        most = self.n // _DENSE_SHARE
        hard = []
        for row in range(len(u)):
            evaluate = self._evaluator(u[row])
            neighbours = select.nearest(bounds[row], found.K, evaluate, most)
            if neighbours is None:
                hard.append(row)
            else:
                found.put(start + row, neighbours)
        return np.array(hard, dtype=np.intp)

    def _find_budgeted(self, found, u, picks, start, candidates):
        estimates = self._squares(u, picks, squared_distances)
        for row in range(len(u)):
            evaluate = self._evaluator(u[row])
            best = select.budgeted(estimates[row], found.K, evaluate, candidates)
            found.put(start + row, best)

    def _pair_squares(self, i, j):
        messages = keyed.pair_bytes(i, j, self._state.version)
        picks = keyed.choose(self._key, messages, self.L, self.R)
        votes = np.empty((picks.shape[1], len(i)))
        for which in np.unique(picks):
            pairs, slots = np.nonzero(picks == which)
            rows = self._state.current(self._sketches[which])
            votes[slots, pairs] = row_squares(rows[i[pairs]] - rows[j[pairs]])
        squares = median_of(votes)
        if self.lead:
            rows = self._state.current(self._lead)
            squares += row_squares(rows[i] - rows[j])
        return squares
