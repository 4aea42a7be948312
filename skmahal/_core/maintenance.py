"""The paper's data structure, corrected: sketches that follow metric and points."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from hashlib import blake2b
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from . import bounds
from .checks import (
    as_choice,
    as_count,
    as_fraction,
    as_indices,
    as_length,
    as_low_rank,
    as_matrix,
    as_pairs,
    as_points,
    as_seeds,
)
from .codes import power_of_two
from .compact import SketchesOnly, from_images
from .guarantees import (
    METHODS,
    Audit,
    Guarantee,
    audit_pairs,
    audit_recall,
    guarantee,
    recent_queries,
    remember,
)
from .index import Index
from .metric import row_change
from .plan import cost_of_all
from .saved import expecting, integer_from, opened, require, stamped
from .sketches import Sketches, check_memory, draw
from .threads import slices
from .types import Auto, Candidates, FloatOrFloats, Floats, Indices, Power, Rows, Sketch

_KEY_BYTES = 32
_DEFAULT_L = 10
_MOST_LEAD = 256

# Queries in a batch that stands for all batches, to say how distances are computed.
_MANY = 64

# Points that an audit measures the recall of neighbours on.
_AUDITED = 256

# Ways to compute distances, the weakest promise first, and their names in `costs`.
_ALL_WAYS = "sketched", "pooled", "enclosed", "exact"
_NAMES = {"exact": "exact", "lead": "leading coordinates", "codes": "codes"}
_NAMES["sketch"] = "one sketch"

# A sketch must be _GAIN times faster than distances without it. The cost of making one
# is spread over _CALLS calls for pairs, and is _SKETCHED nanoseconds per product.
_GAIN = 1.5
_CALLS = 8
_SKETCHED = 0.1

# A certified search that leaves more points than this, and than n/16, is done exactly.
_FEW_POINTS = 64

# The most that rounding adds to a bound, relative to the squared lengths.
_SLACK = {np.dtype(np.float32): 2e-4, np.dtype(np.float64): 1e-10}


class MetricMaintenance:
    r"""Distance estimates under a Mahalanobis metric, while metric and points change.

    The online adaptive data structure of Qin, Reddy and Song (2023), with its formulas
    corrected. Each of L sketches :math:`\Pi_j` (m × k) keeps :math:`\tilde x_{ij} =
    \Pi_j U x_i` for every point :math:`x_i`. A keyed hash chooses R of them for a query
    q, and a distance is the median of :math:`\|\Pi_j U q - \tilde x_{ij}\|`. All
    distances of a query are within 1 ± eps with probability at least 1 - delta.

    That is the structure if `m` is a number. By default, distances are computed in the
    cheapest way that keeps the same promise: within 1 ± eps with certainty, from bounds
    on both sides; by one larger sketch; or exactly. :meth:`guarantee` says which.

    The methods are the paper's operations in its order: Initialize (the constructor),
    UpdateU, UpdateX, QueryPair, QueryAll, SubSum and SampleExact. After them come exact
    distances and nearest neighbours. A method takes one row or many.

    Parameters
    ----------
    U : array-like of shape (k, d), or None
        The metric is ``A = UᵀU``; None is the Euclidean metric.
    X : array-like or sparse matrix of shape (n, d)
        Points. A copy is made; float32 stays float32, all other types become float64.
    eps, delta : float, default=0.2 and 0.01
        Relative error of a distance, and probability that a query exceeds it.
    m : int or "auto", default="auto"
        Rows of a sketch. "auto" computes distances in the cheapest way that keeps the
        promise. L sketches then serve `kneighbors` alone, if it is not exact.
    L : int, default=10
        Number of sketches.
    R : int or "auto", default="auto"
        Sketches that serve a query; "auto" is as few as the promise allows.
    lead : int or "auto", default=0
        Leading directions P of the points ``U x_i``, which are kept exactly: only
        ``(I - PPᵀ) U x_i`` is sketched. 0 is the paper's structure. "auto" keeps a
        direction that has more than 1/(2m) of the variance that is left: one more row
        of the sketches would reduce the error by less.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}, default="gaussian"
        Distribution of the sketches.
    n_neighbors : int, default=10
        Number of neighbours that searches are tuned for.
    adaptive : bool, default=False
        Whether queries may be chosen based on earlier results. Then nothing random is
        used: distances are within 1 ± eps with certainty, neighbours are exact, and m,
        L, R, lead, sketch and seed have no effect on results.
    recall : float or None, default=None
        None finds exact neighbours. A number in (0, 1) is the mean recall that
        :meth:`kneighbors` has for queries like the points, or like recent queries.
    seed : int or None, default=None
        Determines the secret key and the sketches; None uses the operating system.
    records : ndarray of n rows, or None
        Records of the points, one row each, as their targets.

    Attributes
    ----------
    index : Index
        Points, metric and exact queries.
    engine : {"enclosed", "sketched", "exact"}
        How distances are computed at present.
    n, d, k, m, L, R, lead : int
        Points, features, rows of U, and the values in use of the parameters.
    U, X, records, dtype, version
        Metric, points, their records and type, and the number of changes so far.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal import MetricMaintenance
    >>> rng = np.random.default_rng(0)
    >>> X, U = rng.normal(size=(1000, 300)), rng.normal(size=(200, 300))
    >>> maintenance = MetricMaintenance(U, X, m=64, L=10, R=5, seed=0)
    >>> maintenance.update_low_rank(rng.normal(size=200), rng.normal(size=300))
    >>> ratios = maintenance.query_all(X[0] + 1) / maintenance.exact_all(X[0] + 1)
    >>> bool(np.all(np.abs(ratios - 1) < 0.25))
    True
    """

    def __init__(
        self,
        U: ArrayLike | None,
        X: Rows,
        *,
        eps: float = 0.2,
        delta: float = 0.01,
        m: int | Auto = "auto",
        L: int = _DEFAULT_L,
        R: int | Auto = "auto",
        lead: int | Auto = 0,
        sketch: Sketch = "gaussian",
        n_neighbors: int = 10,
        adaptive: bool = False,
        recall: float | None = None,
        seed: int | None = None,
        records: np.ndarray | None = None,
    ) -> None:
        """Initialize: keep U and the x_i. Π_j and x̃_ij are computed on first use."""
        self._set_parameters(eps, delta, m, L, R, lead, sketch, adaptive, recall)
        seeds, self._seeded = as_seeds("seed", seed), seed is not None
        n_neighbors = as_count("n_neighbors", n_neighbors)
        X = as_points("X", X)
        if U is not None:
            U = as_matrix("U", U, dtype=np.float64, columns=X.shape[1])
        n, k = X.shape[0], X.shape[1] if U is None else len(U)
        m = self._rows(n, k)
        # Exact queries need no sketches: the default L is not refused before first use.
        if self.L > _DEFAULT_L and not self.adaptive:
            check_memory(self.L, m, n, k, X.dtype.itemsize)
        aims = {"n_neighbors": n_neighbors, "eps": self.eps, "recall": self.recall}
        self.index: Any = Index(U, X, records=records, **aims)
        key = np.random.default_rng(seeds).bytes(_KEY_BYTES)
        self._held, self._pool = self._new_sketches(m, key), None
        self._missed, self._ways = (-1, 0.0), {}

    def _set_parameters(self, eps, delta, m, L, R, lead, sketch, adaptive, recall):
        """Check and keep the parameters of the sketches."""
        self.eps, self.delta = as_fraction("eps", eps), as_fraction("delta", delta)
        self.L = as_count("L", L)
        self.sketch = as_choice("sketch", sketch, bounds.SKETCHES)
        self.adaptive = as_choice("adaptive", adaptive, (False, True))
        self.recall = None if recall is None else as_fraction("recall", recall)
        if self.adaptive and recall is not None:
            raise ValueError(
                f"recall must be None if adaptive is True, got {recall!r}: no recall "
                "holds for queries that are chosen based on earlier results."
            )
        self.parameters = {"eps": self.eps, "delta": self.delta}
        self.parameters |= {"adaptive": self.adaptive, "recall": self.recall}
        self.parameters |= {"L": self.L, "sketch": self.sketch}
        counts = {"m": (m, 1, None), "R": (R, 1, self.L), "lead": (lead, 0, None)}
        for name, (value, least, most) in counts.items():
            if not isinstance(value, str) or value != "auto":
                value = as_count(name, value, least=least, most=most)
            self.parameters[name] = value

    def _rows(self, n, k):
        """Rows of a sketch: the parameter, or as many as keep the promise."""
        if self.parameters["m"] != "auto":
            return self.parameters["m"]
        m = bounds.sketch_rows(n, self.L, self.eps, self.delta, self.sketch)
        return min(m, 1 << (k - 1).bit_length()) if self.sketch == "srht" else m

    def __getattr__(self, name):
        if name in ("n", "d", "k", "dtype", "version", "U", "X", "records"):
            return getattr(self.index, name)
        if name == "engine":
            way = self.ways()["distances"]
            return "sketched" if way == "pooled" else way
        if name == "m":
            return self._sketches.m
        if name == "R" and self.parameters["R"] != "auto":
            return self.parameters["R"]
        if name == "R":
            sizes = self.n, self.k, self.m, self.L, self.eps, self.delta, self.sketch
            return bounds.votes_for_all(*sizes)
        if name == "lead" and self.parameters["lead"] == 0:
            return 0
        if name == "lead":
            with self.index.lock.reading():
                return sum(len(P.map) for P in self._sketches.arrays()[0])
        raise AttributeError(f"MetricMaintenance has no attribute {name!r}.")

    def __repr__(self):
        size = f"n={self.n}, d={self.d}, k={self.k}, m={self.m}, L={self.L}"
        return f"MetricMaintenance({size}, lead={self.parameters['lead']!r})"

    def update_u(self, u: ArrayLike, a: ArrayLike, jobs: int = 1) -> None:
        """UpdateU: add `u` to row `a` of U, so that x̃_ij += Π_j[:, a] uᵀx_i.

        `u` is (d,) or (c, d); rows `a` are distinct. `jobs` threads read the points.
        O(nd), and O(n) per column of each array that follows when it is next used.
        """
        with self.index.lock.changing():
            a = as_indices("a", a, self.k, unique=True)
            u = as_matrix("u", u, dtype=np.float64, columns=self.d, rows=len(a))
            change = row_change(a, u, self.k)
            self.index.add_low_rank(*change, jobs=as_count("jobs", jobs))

    def set_rows(self, u: ArrayLike, a: ArrayLike, jobs: int = 1) -> None:
        """UpdateU by value: set row `a` of U to `u`. Otherwise as :meth:`update_u`."""
        with self.index.lock.changing():
            a = as_indices("a", a, self.k, unique=True)
            u = as_matrix("u", u, dtype=np.float64, columns=self.d, rows=len(a))
            U = self.U
            change, U[a] = row_change(a, u - U[a], self.k), u
            self.index.add_low_rank(*change, result=U, jobs=as_count("jobs", jobs))

    def update_low_rank(self, W: ArrayLike, V: ArrayLike, jobs: int = 1) -> None:
        """UpdateU of all rows: ``U += W Vᵀ``, so that x̃_ij += Π_j W (Vᵀx_i).

        W is (k, p) or (k,), and V is (d, p) or (d,). O(p(nd + kd)), and O(np) per
        column of each array that follows when it is next used.
        """
        with self.index.lock.changing():
            W, V = as_low_rank(W, V, self.k, self.d)
            self.index.add_low_rank(W, V, jobs=as_count("jobs", jobs))

    def set_metric(self, U: ArrayLike, jobs: int = 1) -> None:
        """UpdateU to any other U, also of another k, which draws new sketches.

        A difference of low rank is added in one pass over the points. Otherwise squared
        lengths are computed again, O(nkd), and rows of sketches when next used.
        """
        with self.index.lock.changing():
            U = as_matrix("U", U, dtype=np.float64, columns=self.d)
            self.index.set_metric(U, as_count("jobs", jobs))

    def _new_points(self, name, value):
        """Points in the type of those held, and dense if these are dense."""
        rows = as_points(name, value, self.dtype, columns=self.d)
        to_dense = sparse.issparse(rows) and not sparse.issparse(self.X)
        return rows.toarray() if to_dense else rows

    def update_x(
        self, z: Rows, i: ArrayLike, records: np.ndarray | None = None
    ) -> None:
        """UpdateX: replace the point x_i by `z`, so that x̃_ij = Π_j U z.

        `z` is (d,) or (c, d); the positions `i` are distinct. `records` are those of
        the new points. O(kd + d log n) each, and O(mk) per sketch.
        """
        with self.index.lock.changing():
            i = as_indices("i", i, self.n, unique=True)
            z = self._new_points("z", z)
            rows, c = z.shape[0], len(i)
            if rows != c:
                raise ValueError(f"z has {rows} rows, expected {c}, one for each i.")
            self.index.assign(i, z, records)

    def append(self, X: Rows, records: np.ndarray | None = None) -> None:
        """UpdateX at the end: add points. O(kd + d log n) each, and O(mk) per sketch.

        If m is "auto" and too small for the promise at the new size, new sketches are
        drawn, with enough rows for twice the points.
        """
        with self.index.lock.changing():
            self.index.append(self._new_points("X", X), records)

    def remove(self, indices: ArrayLike) -> None:
        """UpdateX by removal: later points move up, as with `numpy.delete`. O(nd)."""
        with self.index.lock.changing():
            indices, n = np.unique(as_indices("indices", indices, self.n)), self.n
            if indices.size == n:
                raise ValueError(f"indices would remove every one of the {n} points.")
            if indices.size:
                self.index.remove(indices)

    def refresh_sketches(self) -> None:
        """Draw a new key, new Π_j and new leading directions. O(nk(lead + Lm)), later.

        What was learned about the old sketches from results is then worthless.
        """
        with self.index.lock.changing():
            new = self._new_sketches(self.m)

            def exchange():
                for old in (self._held, self._pool):
                    self.index.forget(old and old.drawn)
                self._held, self._pool = new, None

            self.index.lock.write(exchange)

    def query_pair(self, i: ArrayLike, j: ArrayLike) -> FloatOrFloats:
        """QueryPair: estimates of ‖U(x_i - x_j)‖, the median of ‖x̃_ir - x̃_jr‖.

        The R sketches r are chosen by a keyed hash of the pair and of the version.
        `i` and `j` are broadcast. O(mR) per pair. If m is "auto", one larger sketch is
        used where an exact distance, O(kd), costs more.
        """
        with self.index.lock.reading():
            i, j, shape = as_pairs(i, j, self.n)
            way = self._pair_way(len(i))
            if way == "exact":
                found = self.index.pair_distances(i, j)
            else:
                sketches, R = self._used(way)
                found = np.empty(len(i), dtype=self.dtype)
                for part in slices(len(i), self._tile_rows(R * sketches.m)):
                    found[part] = sketches.pair_distances(i[part], j[part], R)
        return found.reshape(shape) if shape else found[0]

    def query_all(self, q: Rows, jobs: int = 1) -> Floats:
        """QueryAll: estimates of all ‖U(q - x_i)‖, the medians of ‖Π_j U q - x̃_ij‖.

        (n,) for one query, (queries, n) for many. O(kd + R(mk + nm) + n lead) each. If
        m is "auto", in the cheapest way that keeps the promise, and `jobs` threads may
        share the work.
        """
        with self.index.lock.reading():
            Q = as_points("q", q, self.dtype, columns=self.d)
            found = self._query_all(Q, as_count("jobs", jobs), served=True)
        return found[0] if np.ndim(q) == 1 else found

    def _query_all(self, Q, jobs=1, served=False):
        """:meth:`query_all` of rows that were checked, inside a read lock.

        `served` says whether the results are returned to the caller: only such queries
        are kept for the audit.
        """
        way = self._way_now(Q.shape[0])
        if way in ("enclosed", "exact"):
            return self.index.distances(Q, jobs, enclosed=True)
        sketches, R = self._used(way)
        found = np.empty((Q.shape[0], self.n), dtype=self.dtype)
        for tile in slices(Q.shape[0], self._tile_rows((R + 2) * self.n)):
            found[tile] = sketches.distances(Q[tile], R)
        if served:
            remember(self, Q)
        return found

    def _way(self, count):
        """How distances of `count` queries to all points are computed."""
        if self.parameters["m"] != "auto" and not self.adaptive:
            return "sketched"
        version, way = self._ways.get(count > 1, (None, None))
        if version == self.version:
            return way
        plan, way = self.index.prepare(), "exact"
        if plan is not None and self._pooling_saves(count, plan):
            way = "pooled"
        elif plan is not None and plan.encloses(count):
            way = "enclosed"
        self._ways[count > 1] = self.version, way
        return way

    def _pooling_saves(self, count, plan):
        """Nanoseconds that one sketch saves for some queries; 0 if it is not used."""
        least = min(plan.costs["all many" if count > 1 else "all one"].values())
        sizes = self.n, self.k, self._pooled_rows(self.n)
        pooled = cost_of_all("sketch", *sizes, 0.0, count > 1, self.dtype.itemsize)
        barred = self.adaptive or self.index.points.is_mapped
        return 0 if barred or _GAIN * pooled >= least else count * (least - pooled)

    def _way_now(self, count):
        """As :meth:`_way`, but a sketch is made only once it would have paid.

        It is made when the time that it would have saved since the last change exceeds
        the time to make it.
        """
        way, version = self._way(count), self.version
        pool = self._pooled if way == "pooled" else None
        if pool is None or (pool.drawn and self.index.are_current(pool.drawn)):
            return way
        missed = self._missed[1] if self._missed[0] == version else 0.0
        plan = self.index.prepare()
        self._missed = version, missed + self._pooling_saves(count, plan)
        # Points that the sketch has are brought up to the metric, others are sketched.
        columns = 2 if pool.drawn else self.d
        if self._missed[1] > columns * self.n * pool.m * _SKETCHED:
            return "pooled"
        return "enclosed" if plan.encloses(count) else "exact"

    def _pair_way(self, count):
        """How distances of `count` pairs are computed."""
        if self.parameters["m"] != "auto" and not self.adaptive:
            return "sketched"
        if self.adaptive or self.index.has_short_pairs or self.index.points.is_mapped:
            return "exact"
        rows = self._pooled_rows(self.n)
        # To sketch all points takes O(nk) a row.
        pays = rows < self.k and _CALLS * count * self.d >= self.n * rows
        return "pooled" if pays else "exact"

    def _used(self, way):
        """The sketches of a way, and how many of them serve a query."""
        return (self._pooled, 1) if way == "pooled" else (self._sketches, self.R)

    def sketches_only(
        self, kind: Literal["sketch", "codes"] | None = None
    ) -> SketchesOnly:
        """A read-only index that does not hold the points: a :class:`SketchesOnly`.

        "sketch" keeps one sketch, whose rows keep the promise of :meth:`query_all` for
        queries that do not depend on results; "codes" keeps ``U x_i`` in 8 bits, with
        errors that are known. None is "codes" if `adaptive`, and else "sketch".
        O(nk(d + m)).
        """
        if kind is None:
            kind = "codes" if self.adaptive else "sketch"
        as_choice("kind", kind, ("sketch", "codes"))
        with self.index.lock.reading():
            points, X, rest = self.index.points, self.index.X, (self.eps, self.delta)
            origin, U = points.origin, self.U
            if kind == "codes":
                unit = power_of_two(np.sqrt(self.index.norms.max()))
                blocks = slices(self.n, points.step)
                images = (self.index.transform(X[here]) / unit for here in blocks)
                U = None if self.index.is_euclidean else U / unit
                return from_images(U, origin, images, unit, *rest)
            # Independent of the other sketches: it reveals nothing about them.
            m = bounds.pooled_rows(self.n, self.eps, self.delta, "gaussian")
            hashed = blake2b(b"handed out", key=self._held.key, digest_size=16)
            seed = int.from_bytes(hashed.digest(), "little") if self._seeded else None
            Pi = draw("gaussian", m, self.k, np.random.default_rng(seed))
            rows = self.index.points.dot((Pi @ U).T)
            unit = power_of_two(np.abs(rows).max())
            rows = (rows / unit).astype(self.dtype)
            return SketchesOnly("sketch", Pi @ U / unit, origin, rows, unit, *rest)

    def sub_sum(
        self, q: Rows, i: int, j: int | None, power: Power = 2
    ) -> FloatOrFloats:
        """SubSum: the exact sum of ``d ** power`` over the points i … j - 1.

        O(kd + d log n) per query for power 2, from the tree; O(kd + (j - i) d) for
        power 1. None for `j` is the number of points.
        """
        with self.index.lock.reading():
            Q = as_points("q", q, self.dtype, columns=self.d)
            i = as_count("i", i, least=0, most=self.n)
            j = self.n if j is None else as_count("j", j, least=i, most=self.n)
            sums = self.index.sums(Q, i, j, as_choice("power", power, (1, 2)))
        return sums[0] if np.ndim(q) == 1 else sums

    def sample_exact(
        self,
        q: Rows,
        size: int = 1,
        power: Power = 1,
        random_state: int | np.random.Generator | None = None,
    ) -> Indices:
        """SampleExact: `size` indices with probability exactly ∝ ``d ** power``.

        (size,) for one query, (queries, size) for many; uniform if every distance is
        zero. `power` is 1 or 2. `random_state` is None, an int or a numpy Generator.
        O(kd) per query and O(d log n) expected per draw.
        """
        Q, size = as_points("q", q, self.dtype, columns=self.d), as_count("size", size)
        power, rng = as_choice("power", power, (1, 2)), random_state
        if not isinstance(rng, np.random.Generator):
            rng = np.random.default_rng(as_seeds("random_state", random_state))
        draws = self.index.sample(Q, size, power, rng)
        return draws[0] if np.ndim(q) == 1 else draws

    def exact_pair(self, i: ArrayLike, j: ArrayLike) -> FloatOrFloats:
        """Exact distances of the points `i` and `j`, broadcast. O(kd) each."""
        with self.index.lock.reading():
            i, j, shape = as_pairs(i, j, self.n)
            found = self.index.pair_distances(i, j)
        return found.reshape(shape) if shape else found[0]

    def exact_all(self, q: Rows, jobs: int = 1) -> Floats:
        """Exact distances of one query, (n,), or of many, (queries, n). O(kd + nd)."""
        Q = as_points("q", q, self.dtype, columns=self.d)
        found = self.index.distances(Q, as_count("jobs", jobs))
        return found[0] if np.ndim(q) == 1 else found

    def radius_neighbors(
        self, Q: Rows, radius: float, jobs: int = 1
    ) -> tuple[list[Floats], list[Indices]]:
        """All points within `radius`: lists of distances and of indices. O(kd + nd)."""
        Q, jobs = as_points("Q", Q, self.dtype, columns=self.d), as_count("jobs", jobs)
        return self.index.radius_neighbors(Q, as_length("radius", radius), jobs)

    def kneighbors(
        self, Q: Rows, K: int, candidates: Candidates = "exact", jobs: int = 1
    ) -> tuple[Floats, Indices]:
        """The K nearest points: exact distances and indices, (queries, K).

        `candidates` "exact" uses no sketch, and `jobs` threads; if a `recall` was set,
        the neighbours have that on average. "certified" evaluates the points that
        sketches cannot exclude: the neighbours are the exact ones with probability at
        least 1 - delta per query. O(kd + n(mR + lead)), and O(d) per point evaluated.
        An integer is the number of points, those of smallest estimate, to evaluate.
        """
        with self.index.lock.reading():
            Q = as_points("Q", Q, self.dtype, columns=self.d)
            K, jobs = as_count("K", K, most=self.n), as_count("jobs", jobs)
            self._check_candidates(candidates, K)
            return self._kneighbors(Q, K, candidates, jobs)

    def _check_candidates(self, candidates, K):
        """Raise an error unless `candidates` can be used for K neighbours."""
        if isinstance(candidates, str):
            as_choice("candidates", candidates, ("exact", "certified"))
        else:
            as_count("candidates", candidates, least=K, most=self.n)

    def _kneighbors(self, Q, K, candidates, jobs):
        """:meth:`kneighbors` of arguments that were checked, inside a read lock."""
        if candidates == "exact" or self.adaptive:
            return self.index.kneighbors(Q, K, jobs, approximate=True)
        R = None if self.parameters["R"] == "auto" else self.R
        sizes = self.k, self.m, self.L, R, self.eps, self.delta, self.sketch
        R, eps = bounds.certificate(K, *sizes)
        weight, slack = 1 / (1 + eps) ** 2, _SLACK[self.dtype]
        distances = np.empty((Q.shape[0], K), dtype=self.dtype)
        indices = np.empty((Q.shape[0], K), dtype=np.intp)
        left = []
        for tile in slices(Q.shape[0], self._tile_rows((R + 2) * self.n)):
            found = distances[tile], indices[tile]
            if candidates == "certified":
                lower, _, _ = self._sketches.squares(Q[tile], R, weight, slack)
                left.extend(tile.start + self._certified(Q[tile], K, lower, *found))
            else:
                squares, _, _ = self._sketches.squares(Q[tile], R)
                near = np.argpartition(squares, candidates - 1, axis=1)
                near = np.ascontiguousarray(near[:, :candidates])
                found[0][:], found[1][:] = self.index.evaluate(Q[tile], near, K)
        if left:
            distances[left], indices[left] = self.index.kneighbors(Q[left], K, jobs)
        remember(self, Q)
        return distances, indices

    def _certified(self, Q, K, lower, distances, indices):
        """Fill in neighbours by lower bounds of squares; return the undecided queries.

        With τ the K-th smallest exact distance of some points, the squares of all K
        neighbours are at most τ²; points whose bound exceeds it are excluded.
        """
        start = min(self.n, max(2 * K, 16))
        near = np.ascontiguousarray(np.argpartition(lower, start - 1)[:, :start])
        tau = self.index.evaluate(Q, near, K)[0][:, -1:].astype(np.float64)
        # A bound that is not a number excludes nothing.
        is_open = ~(lower > np.square(tau * (1 + 4 * np.finfo(self.dtype).eps)))
        np.put_along_axis(is_open, near, True, axis=1)
        most = max(_FEW_POINTS, start, self.n // 16)
        decided = np.count_nonzero(is_open, axis=1) <= most
        few = np.flatnonzero(decided)
        if few.size:
            points = [np.flatnonzero(row) for row in is_open[few]]
            distances[few], indices[few] = self.index.evaluate(Q[few], points, K)
        return np.flatnonzero(~decided)

    @property
    def _pooled(self):
        """One sketch with enough rows for all distances of a query, and no others."""
        with self.index.lock.reading(), self.index.lock.deriving:
            pool, rows = self._pool, self._pooled_rows(self.n)
            grown = pool is not None and pool.k == self.k
            if not grown or pool.m < rows:
                # There will be more points: enough rows for twice as many.
                rows = self._pooled_rows(2 * self.n) if grown else rows
                self.index.forget(pool and pool.drawn)
                self._pool = self._new_pool(rows)
            return self._pool

    def _pooled_rows(self, n):
        """Rows with which one sketch keeps the promise for n points."""
        return bounds.pooled_rows(n, self.eps, self.delta, self.sketch)

    def _new_pool(self, rows, drawn=None):
        """One sketch, which is independent of the others and of earlier ones."""
        name = b"pooled %d %d" % (rows, self.k)
        key = blake2b(name, key=self._held.key, digest_size=_KEY_BYTES).digest()
        return Sketches(self.index, key, self.sketch, 1, rows, 0, 0.0, drawn)

    @property
    def _sketches(self):
        """The sketches for the present n and k: new ones if those held do not fit."""
        with self.index.lock.reading(), self.index.lock.deriving:
            n, k = self.n, self.k
            if self._held.k != k or self._held.m < self._rows(n, k):
                # If there are more points, enough rows for twice as many.
                n = 2 * n if self._held.k == k else n
                self.index.forget(self._held.drawn)
                self._held = self._new_sketches(self._rows(n, k))
            return self._held

    def _new_sketches(self, m, key=None, drawn=None):
        """Sketches of m rows that are drawn on first use; None stands for a new key."""
        if key is None and self._seeded:
            key = blake2b(b"next", key=self._held.key, digest_size=_KEY_BYTES).digest()
        elif key is None:
            # An old pickle must not reveal later keys.
            key = os.urandom(_KEY_BYTES)
        k, (most, share) = self.k, (self.parameters["lead"], 0.0)
        if most == "auto":
            # Estimates that cost less than exact distances still do with P.
            sizes = self.L, self.eps, self.delta, self.sketch
            R = self.parameters["R"]
            R = bounds.votes_for_all(self.n, k, m, *sizes) if R == "auto" else R
            spare = k - m * R if m * R < k else k - m
            most, share = min(_MOST_LEAD, max(0, spare) // 2), 0.5 / m
        return Sketches(self.index, key, self.sketch, self.L, m, most, share, drawn)

    def _tile_rows(self, numbers):
        """How many queries are worked on at a time, if each needs so many numbers."""
        each = self.dtype.itemsize * max(numbers, self.d, self.k)
        return max(1, self.index.working_bytes // each)

    def guarantee(
        self, n_queries: int = 1000, *, candidates: Candidates = "exact"
    ) -> Guarantee:
        """State what is promised at present, in numbers and in words.

        O(1), unless the recall is due to be measured.

        `n_queries` is how many queries that are chosen by earlier neighbours are to
        have exact ones, and `candidates` is as in :meth:`kneighbors`. See
        :class:`skmahal.inspection.Guarantee`.
        """
        n_queries = as_count("n_queries", n_queries)
        with self.index.lock.reading():
            self._check_candidates(candidates, min(self.index.n_neighbors, self.n))
            neighbors = candidates if isinstance(candidates, str) else "budget"
            rest = self.ways(), self.index.n_neighbors
            return self._guarantee(n_queries, neighbors, *rest)

    def ways(self) -> dict[str, str]:
        """How `distances` and `pair_distances` are computed at present.

        "exact", "enclosed", "sketched" by a median, or "pooled", by one sketch. Where
        that depends on how many there are, it is what promises less. O(1) once the
        index has served a query.
        """
        with self.index.lock.reading():
            ways = {self._way(_MANY), self._way(1)}
            way = next(way for way in _ALL_WAYS if way in ways)
            return {"distances": way, "pair_distances": self._pair_way(np.inf)}

    def _guarantee(self, n_queries, neighbors, ways, K, offers=METHODS):
        """The :class:`Guarantee` for ways of distances and of pairs."""
        names = ("n", "k", "d", "m", "L", "R", "lead", "eps", "delta", "sketch")
        rest = {name: getattr(self, name) for name in names}
        rest["pooled"] = self._pooled_rows(self.n)
        rest["costs"] = self._costs(rest["pooled"])
        return guarantee(
            n_queries=n_queries,
            neighbors="exact" if self.adaptive else neighbors,
            recall=self.index.measured(K) if neighbors == "exact" else None,
            n_neighbors=min(K, self.n),
            ways=ways,
            auto_R=self.parameters["R"] == "auto",
            offers=offers,
            **rest,
        )

    def _costs(self, pooled):
        """Bytes beside the points, seconds of a query in a batch and alone, by way."""
        plan, n, k, item = self.index.prepare(), self.n, self.k, self.dtype.itemsize
        if plan is None:
            return {}
        size = {"exact": 0, "codes": n * min(self.d, k), "sketch": item * n * pooled}
        size["lead"] = n * (4 * (plan.r_many + 2) + plan.r_one)
        times = {
            way: [plan.costs[f"all {count}"].get(way) for count in ("many", "one")]
            for way in ("exact", "lead", "codes")
        }
        rest = "sketch", n, k, pooled, 0.0
        if not self.adaptive:
            times["sketch"] = [cost_of_all(*rest, many, item) for many in (True, False)]
        return {
            _NAMES[way]: (size[way], *(each and 1e-9 * each for each in times[way]))
            for way in times
            if any(times[way])
        }

    def audit(self, n_pairs: int = 1000, random_state: int | None = None) -> Audit:
        """Compare distances with exact ones, and judge the sketches in use.

        `random_state` determines the pairs. O(kd) per pair, and O(kd + nd) for each of
        the last queries that sketches have served. See
        :class:`skmahal.inspection.Audit`.
        """
        n_pairs = as_count("n_pairs", n_pairs)
        rng = np.random.default_rng(as_seeds("random_state", random_state))
        rest = self.index.n_neighbors, self.query_pair, self._query_all
        return self._audit(n_pairs, rng, *rest)

    def _audit(self, n_pairs, rng, K, pairs, distances):
        """The :class:`Audit` of functions for pairs and for distances to all points."""
        with self.index.lock.reading():
            i, j = rng.integers(self.n, size=(2, n_pairs))
            way = self._pair_way(n_pairs)
            pools = [(pairs(i, j), self.exact_pair(i, j), way), None]
            if way == "exact" and self._way(_MANY) == "enclosed":
                # Exact pairs would say nothing about the bounds of distances.
                i = i[rng.integers(min(_MANY, n_pairs), size=n_pairs)]
                points, places = np.unique(i, return_inverse=True)
                found = distances(self.X[points])[places, j]
                pools[0] = found, self.exact_pair(i, j), "enclosed"
            if recent := list(recent_queries(self)):
                # The exact neighbours: a point that sketches hide must be seen.
                Q, K = np.stack(recent), min(K, self.n)
                exact, near = self.index.kneighbors(Q, K)
                estimates = np.take_along_axis(distances(Q), near, axis=1)
                drawn = rng.integers(exact.size, size=n_pairs)
                found = estimates.ravel()[drawn], exact.ravel()[drawn]
                pools[1] = *found, self._way(len(Q))
            judged = [pool and self._judged(*pool) for pool in pools]
            recall = self._audit_recall(K, rng)
        return Audit(*judged, self.eps, recall)

    def _judged(self, estimates, exact, way):
        """The :class:`PairAudit` of estimates that were computed in one of the ways."""
        off = 0.0
        if way in ("pooled", "sketched"):
            sketches, R = self._used(way)
            off = float(bounds.failure(self.eps, sketches.m, R, self.sketch))
        return audit_pairs(estimates, exact, self.eps, off, self.delta)

    def _audit_recall(self, K, rng):
        """The :class:`RecallAudit` of random points and of recent queries, or None."""
        if self.index.measured(K) is None:
            return None
        points = rng.permutation(self.n)[:_AUDITED]
        recalls = [self.index.recall_of(self.X[points], K, own=points)]
        if (recent := self.index.recent()) is not None:
            recalls.append(self.index.recall_of(recent, K))
        return audit_recall(recalls, self.recall)

    def check(self) -> float:
        """Assert invariants; return the largest relative error of norms. O(nkd)."""
        with self.index.lock.reading():
            if self._sketches.drawn:
                lead, arrays = self._sketches.arrays()
                shapes = [array.map.shape for array in arrays]
                assert shapes == [(self.m, self.k)] * self.L, "sketches"
                assert len(lead) <= 1, "leading directions"
            return self.index.check()

    def saved(self) -> dict[str, Any]:
        """Everything as plain values, the secret key among them. O(n)."""
        with self.index.lock.reading():
            caches, drawn = self.index.caches, []
            for sketches in (self._sketches, self._pool):
                maps = sketches.drawn if sketches and sketches.drawn else ()
                drawn.append([caches.index(map) for map in maps if map in caches])
            return {
                "parameters": self.parameters,
                "m": self.m,
                "key": self._sketches.key,
                "seeded": self._seeded,
                "drawn": drawn[0],
                "pooled": drawn[1],
                "index": self.index.saved(),
            }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Self:
        """The object whose :meth:`saved` values these are. O(n)."""
        new = cls.__new__(cls)
        new._set_parameters(**state["parameters"])
        m, key = integer_from(state, "m", least=1), state["key"]
        whole = isinstance(key, bytes) and len(key) == _KEY_BYTES
        require(whole, f"the key does not have {_KEY_BYTES} bytes")
        new._seeded, new.index = bool(state["seeded"]), Index.restored(state["index"])
        caches = new.index.caches
        drawn, pooled = (
            [caches[place] for place in state[name]] for name in ("drawn", "pooled")
        )
        if drawn:
            shapes, expected = [array.map.shape for array in drawn], (m, new.k)
            fit = shapes[-new.L :] == [expected] * new.L and len(shapes) <= new.L + 1
            require(fit, f"sketches have shapes {shapes}, expected {expected}")
        new._held, new._pool = new._new_sketches(m, key, drawn or None), None
        new._missed, new._ways = (-1, 0.0), {}
        if pooled:
            require(len(pooled) == 1, f"there are {len(pooled)} pooled sketches")
            new._pool = new._new_pool(len(pooled[0].map), pooled)
        return new

    def __getstate__(self):
        return stamped("MetricMaintenance", self.saved())

    def __setstate__(self, state):
        state = opened("MetricMaintenance", state)
        with expecting("MetricMaintenance"):
            vars(self).update(vars(self.restored(state)))

    def __copy__(self):
        # Two objects that shared arrays would change each other.
        return deepcopy(self)
