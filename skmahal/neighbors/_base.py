"""What every estimator over an index shares: parameters, fitting, updates, batches."""

from contextlib import contextmanager
from numbers import Integral, Real

import numpy as np
from scipy import sparse
from sklearn import get_config
from sklearn.utils.validation import check_is_fitted

from skmahal._atomic import give_back
from skmahal._compat import HasMethods, Interval, StrOptions
from skmahal._core import plan
from skmahal._core.checks import (
    as_count,
    as_indices,
    as_matrix,
    check_finite,
    surely_finite,
)
from skmahal._core.engines import engine_from, make_engine, with_metric
from skmahal._core.exact import TILE_BYTES
from skmahal._core.guarantee import Failures, guarantee
from skmahal._core.maintenance import MetricMaintenance
from skmahal._core.projections import SKETCHES
from skmahal._core.saved import require
from skmahal._core.workers import run, slices
from skmahal._metric_learner import (
    LearnsMetric,
    components_of,
    learns_online,
    resolve_components,
    steps_since,
    token_of,
)
from skmahal._persistence import require_width
from skmahal._random import seed_from
from skmahal._threads import one_blas_thread, thread_count
from skmahal._validation import validated

_MIB = 1 << 20
_NUMBER = 8  # bytes of an index, of a vote and of a square, whatever the points are
ROWS = {"accept_sparse": "csr", "dtype": (np.float64, np.float32)}
_FLOATS = frozenset(map(np.dtype, ROWS["dtype"]))

# Parameters that an engine is made from, beside its seed.
_BUILT_FROM = "eps", "delta", "m", "L", "R", "lead", "sketch", "n_neighbors"

_AUTO = StrOptions({"auto"})
_POSITIVE = Interval(Integral, 1, None, closed="left")


class SketchedNeighborsBase(LearnsMetric):
    """An index behind scikit-learn's conventions.

    Subclasses store parameters in `__init__` and add queries. The index lives in
    `_engine`, and all that changes with the metric and the points is in there.
    """

    _parameter_constraints = {
        "n_neighbors": [_POSITIVE],
        "metric_learner": [None, "array-like", HasMethods("fit")],
        "m": [_POSITIVE, _AUTO],
        "L": [_POSITIVE],
        "R": [_POSITIVE, _AUTO],
        "eps": [Interval(Real, 0, 1, closed="neither")],
        "delta": [Interval(Real, 0, 1, closed="neither")],
        "lead": [Interval(Integral, 0, None, closed="left"), _AUTO],
        "sketch": [StrOptions(set(SKETCHES))],
        "n_candidates": [_POSITIVE, StrOptions({"certified"})],
        "random_state": ["random_state"],
        "n_jobs": [Integral, None],
    }

    @property
    def components_(self):
        """The metric's U as of now, k × d; a copy."""
        return self._engine.U

    @property
    def m_(self):
        """Rows of a sketch, at the present size; what they would be where exact."""
        if self.engine_ == "sketched":
            return self._engine.m
        built = self._built
        if built["m"] != "auto":
            return built["m"]
        promise = built["eps"], built["delta"], built["sketch"]
        return plan.sketch_rows(self._engine.n, built["L"], *promise)

    @property
    def R_(self):
        """Sketches that serve a query for distances, at the present size."""
        built = self._built
        if built["R"] != "auto":
            return built["R"]
        promise = built["eps"], built["delta"], built["sketch"]
        size = self._engine.n, self._engine.k
        return plan.votes_for_all(*size, self.m_, self.L_, *promise)

    @property
    def lead_(self):
        """Leading directions that are kept exactly; 0 for the exact engine."""
        return self._engine.lead if self.engine_ == "sketched" else 0

    @property
    def engine_(self):
        """The engine in use, "sketched" or "exact": whichever costs less a query."""
        sketched = isinstance(self._engine, MetricMaintenance)
        return "sketched" if sketched else "exact"

    @property
    def n_samples_fit_(self):
        """Number of points in the index."""
        return self._engine.n

    def update_metric(self, metric=None, *, rows=None, additive=False, low_rank=None):
        """Change the metric; the index follows without being built again.

        Parameters
        ----------
        metric : fitted learner, or array-like, default=None
            A learner with `components_`, or U itself, of shape (k, n_features). With
            `rows`, the values of these rows, (n_rows, n_features). The steps that an
            online learner has made since it was last given go in as one update.
        rows : int or array-like of int, default=None
            Rows of U to change, each at most once.
        additive : bool, default=False
            Add to `rows` rather than set them.
        low_rank : tuple (W, V), default=None
            ``U += W Vᵀ``, with W of shape (k, p) and V of shape (n_features, p).

        Returns
        -------
        self : object
            The index under the new metric.

        Notes
        -----
        A change of rank p costs one pass over the points, O(p n d); arrays derived from
        them follow when they are next used. A whole new U is compared with the present
        one: few changed rows or a difference of low rank are added, anything else is
        sketched anew, O(n k d).

        Examples
        --------
        >>> import numpy as np
        >>> from skmahal import SketchedMahalanobisNeighbors
        >>> index = SketchedMahalanobisNeighbors(1).fit([[0.0, 2.0], [3.0, 0.0]])
        >>> index.kneighbors([[0.0, 0.0]])
        (array([[2.]]), array([[0]]))
        >>> index.update_metric([[0.0, 2.0]], rows=[1]).components_
        array([[1., 0.],
               [0., 2.]])
        >>> index.kneighbors([[0.0, 0.0]])
        (array([[3.]]), array([[1]]))
        """
        self._check_fitted()
        with self._engine.changing():
            if low_rank is not None:
                self._update_low_rank(metric, rows, additive, low_rank)
            elif metric is None:
                raise ValueError(
                    "update_metric needs `metric` or `low_rank`, got neither."
                )
            elif rows is not None:
                self._update_rows(metric, rows, additive)
            elif additive:
                raise ValueError("additive=True needs `rows`, got None.")
            else:
                self._replace_metric(metric)
        return self

    def remove_points(self, indices):
        """Remove points; later ones move up, as with `numpy.delete`. O(n) a column.

        Parameters
        ----------
        indices : int or array-like of int
            Positions of the points. At least one point must be left.

        Returns
        -------
        self : object
            The index without the points.
        """
        self._check_fitted()
        with self._engine.changing():
            self._engine.remove(indices)
        return self

    def refresh_sketches(self):
        """Draw a new key and sketches. O(n k (lead + L m)), some of it when next used.

        What somebody learnt about the old sketches from answers is worth nothing after
        it, and leading directions that a changing metric has made stale are found anew.
        With the exact engine there is nothing to draw.

        Returns
        -------
        self : object
            The index with new sketches.
        """
        self._check_fitted()
        with self._engine.changing(), one_blas_thread():
            if self.engine_ == "sketched":
                self._engine.refresh_sketches(jobs=thread_count(self.n_jobs))
        return self

    def check(self):
        """Assert every invariant of the index. O(n k (d + lead + L m)).

        Arrays that lag behind the metric are brought up to date first.

        Returns
        -------
        drift : float
            How far what is held has drifted from what metric and points give: the root
            mean square of the difference, relative to that of the points under the
            metric. An AssertionError is raised beyond 4e-5 for float32 and 4e-13 for
            float64, and for anything else that is not as it must be.

        Examples
        --------
        >>> import numpy as np
        >>> from skmahal import SketchedMahalanobisNeighbors
        >>> index = SketchedMahalanobisNeighbors(metric_learner=np.eye(2)[::-1])
        >>> index.fit([[0.0, 2.0], [3.0, 0.0]]).check()
        0.0
        """
        self._check_fitted()
        with self._engine.reading():
            return self._engine.check()

    def guarantee(self):
        """What the index promises as it is now, in numbers and, as text, in words.

        Returns
        -------
        guarantee : Guarantee
            `engine`, `n`, `k`, `m`, `L`, `R`, `R_neighbors`, `lead`, `eps` and `delta`
            are the numbers in use. `fixed` and `adaptive` bound the probability that an
            answer of `kneighbors`, `radius_neighbors`, `distances` or `pair_distances`
            breaks its promise: for queries that do not depend on earlier answers, and
            for queries that somebody chooses by them. 0 is an exact answer, 1 is no
            promise, None a question that the estimator does not take.
            `enough_sketches` says whether L suffices for adaptive queries,
            `sufficient_L` how many sketches would with `m` set to its present value, or
            None where no number is proven to. `refresh_every` is the number of calls
            after which :meth:`refresh_sketches` makes `fixed` hold for adaptive queries
            too: 1, or None where `adaptive` promises as much without.

        Notes
        -----
        O(1). It holds for the present size, metric and parameters, and is of one time:
        points that are added make it weaker where `m` or `R` was set.

        Examples
        --------
        >>> import numpy as np
        >>> from skmahal import SketchedMahalanobisNeighbors
        >>> X = np.random.default_rng(0).normal(size=(500, 400))
        >>> index = SketchedMahalanobisNeighbors(m=40, random_state=0).fit(X)
        >>> index.guarantee().adaptive.kneighbors
        1.0
        >>> print(index.guarantee())
        An index of 500 points under k=400 rows of U.
        L=10 sketches of m=40 rows: R=9 serve a query for distances, 1 ...
        For queries that do not depend on earlier answers:
        - kneighbors: neighbours are the exact ones, but for a probability of 0.01 ...
        - radius_neighbors: no point within the radius is left out, but for ...
        - distances: all 500 are within 1 ± 0.2, but for a probability of 0.0072 ...
        - pair_distances: a distance is within 1 ± 0.2, but for a probability of ...
        For queries that somebody chooses by earlier answers:
        - kneighbors: nothing is promised.
        - radius_neighbors: nothing is promised.
        - distances: nothing is promised.
        - pair_distances: nothing is promised.
        L=881922 sketches would do, with m=40 set and R at 'auto'.
        With m=400 the index is exact. Other m, L and R take a new fit.
        A refresh_sketches() after every call makes the first list hold. ...
        While nothing but neighbours is seen, the first t queries are all right but ...
        """
        self._check_fitted()
        engine, built = self._engine, self._built
        promise = {name: built[name] for name in ("eps", "delta", "sketch")}
        with engine.reading():
            return guarantee(
                engine=self.engine_,
                n=engine.n,
                k=engine.k,
                m=self.m_,
                L=self.L_,
                R=self.R_,
                lead=self.lead_,
                **promise,
                n_neighbors=min(as_count("n_neighbors", self.n_neighbors), engine.n),
                auto_R=built["R"] == "auto",
                neighbors=self._way_to_neighbors,
                estimates=self._estimates,
                offers=[name for name in Failures._fields if hasattr(self, name)],
            )

    @property
    def _estimates(self):
        """Whether estimated distances cost less than exact ones."""
        if self.engine_ == "exact":
            return False
        return plan.pays(self.m_, self.R_, self.lead_, self._engine.k)

    @property
    def _way_to_neighbors(self):
        """How `kneighbors` finds them, in the words of a guarantee."""
        if self.engine_ == "exact":
            return "exact"
        if self.n_candidates != "certified":
            count = as_count("n_candidates", self.n_candidates)
            return "budget" if count < self._engine.n else "exact"
        return "certified" if self._engine.looks_at_sketches else "exact"

    def _saved(self, state):
        if "_engine" in state:
            state["_engine"] = state["_engine"].saved()
        return super()._saved(state)

    def _restored(self, state):
        if "_engine" in state:
            state["_engine"] = engine = engine_from(state["_engine"])
            require_width(state, engine.d)
            self._check_restored(state, engine)
        return super()._restored(state)

    def _check_restored(self, state, engine):
        """Refuse attributes that do not belong to the engine."""
        built = state["_built"]
        require(set(built) == {*_BUILT_FROM, "seed"}, "parameters are missing")
        require(state["L_"] == built["L"], f"L_ is {state['L_']}")
        if isinstance(engine, MetricMaintenance):
            for name, value in engine.asked.items():
                require(built[name] == value, f"{name} is {built[name]!r}")

    def __sklearn_is_fitted__(self):
        return hasattr(self, "_engine")

    def _check_fitted(self):
        """Raise before `fit`; in the time of a single query, unlike scikit-learn's."""
        if not hasattr(self, "_engine"):
            check_is_fitted(self)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _points(self, X, reset=False):
        """Rows from a user, dense or CSR; float32 is kept, integers become float64."""
        if not reset and self._is_plain(X):
            return X
        return validated(self, X, reset=reset, **ROWS)

    def _is_plain(self, X):
        """Whether there is nothing to say about X, in the time of a single query."""
        return (
            type(X) is np.ndarray
            and X.ndim == 2
            and len(X) > 0
            and X.shape[1] == self.n_features_in_
            and X.dtype in _FLOATS
            and not hasattr(self, "feature_names_in_")
            and surely_finite(X)
        )

    def _build(self, X, y, targets=None):
        """Learn the metric and index points that have been validated."""
        if self.R != "auto" and self.R > self.L:
            raise ValueError(f"R must be at most L={self.L}, got R={self.R}.")
        learnt = resolve_components(self.metric_learner, X, y, X.shape[1], X.dtype)
        U, self.metric_learner_ = learnt
        self.L_ = self.L
        self._built = self._build_parameters()
        jobs = thread_count(self.n_jobs)
        with one_blas_thread():
            self._engine = make_engine(U, X, targets=targets, **self._built)
            self._engine.prepare(jobs)
        self._followed = token_of(self.metric_learner_)

    def _build_parameters(self):
        """What engines are made from until the next fit, whatever `set_params` does."""
        asked = {name: getattr(self, name) for name in _BUILT_FROM}
        return {**asked, "seed": seed_from(self.random_state)}

    def _update_rows(self, values, rows, additive):
        engine = self._engine
        rows = as_indices("rows", rows, engine.k, unique=True)
        shape = {"columns": engine.d, "rows": len(rows)}
        values = as_matrix("metric", values, dtype=engine.dtype, **shape)
        update = engine.update_u if additive else engine.set_rows
        jobs = thread_count(self.n_jobs)
        with self._leaving_the_learner(), one_blas_thread():
            update(values, rows, jobs=jobs)

    def _update_low_rank(self, metric, rows, additive, low_rank):
        if metric is not None or rows is not None or additive:
            raise ValueError(
                "low_rank goes alone, without `metric`, `rows` and `additive`."
            )
        _check_pair(low_rank)
        jobs = thread_count(self.n_jobs)
        with self._leaving_the_learner(), one_blas_thread():
            self._engine.update_low_rank(*low_rank, jobs=jobs)

    @contextmanager
    def _leaving_the_learner(self):
        """The metric goes its own way, unless the change is refused.

        Any other error may come when the metric has changed, and then it is not known
        which steps have been followed.
        """
        followed, self._followed = self._followed, None
        try:
            yield
        except (ValueError, TypeError, IndexError):
            self._followed = followed
            raise

    def _replace_metric(self, metric):
        """Follow the steps of a learner where they are known, else take all of U."""
        engine = self._engine
        U = components_of(metric, "metric", engine.d, engine.dtype)
        steps, token = steps_since(metric, self._followed), token_of(metric)
        jobs = thread_count(self.n_jobs)
        with self._leaving_the_learner(), one_blas_thread():
            if steps is None:
                engine = with_metric(engine, U, jobs, **self._built)
                with engine.writing():
                    self._engine = engine
            elif steps.rank:
                engine.follow(*steps, U, jobs=jobs)
        self._followed = token

    def _append(self, X, y=None, targets=None):
        """Add points; a learner that goes on learning learns from them and is followed.

        What is done is undone where a later step fails.
        """
        learner, X = self.metric_learner_, self._in_type(X)
        with self._engine.changing():
            if y is None or not learns_online(learner):
                self._engine.append(X, targets)
            else:
                self._append_and_learn(learner, X, y, targets)

    def _append_and_learn(self, learner, X, y, targets):
        n, U, followed = self.n_samples_fit_, self.components_, self._followed
        before = vars(learner).copy()
        try:
            learner.partial_fit(X, y)
            self._engine.append(X, targets)
            self._replace_metric(learner)
        except BaseException:
            # The index takes the new metric last of all, and at once.
            if np.array_equal(self.components_, U):
                self._engine.cut(n)
                give_back(learner, before)
                self._followed = followed
            raise

    def _in_batches(self, answer, X, jobs=None, width=0):
        """``answer(rows)`` for batches of dense query rows, in order, on threads.

        The index stays as it is while a batch is answered; and in all of them for who
        is inside its `reading` already.

        `jobs` overrides `n_jobs`. `width` is how many numbers a query needs at work
        beside its tile.
        """
        jobs = jobs or self._thread_count(X)
        batches = self._batches(X, width, jobs=jobs)

        inside = self._engine.lent if self._engine.is_reading else self._engine.reading

        def answer_batch(batch):
            with inside():
                return answer(self._as_held(X[batch]))

        if len(batches) == 1:
            return [answer_batch(batches[0])]
        with one_blas_thread():
            return run(answer_batch, batches, jobs)

    def _batches(self, X, width, jobs=1, threads=1):
        """Slices of queries whose work fits scikit-learn's memory.

        `jobs` batches are at work at a time, each on `threads` threads.
        """
        if X.shape[0] == 1:
            return [slice(0, 1)]
        engine, budget = self._engine, _share_of_memory() / jobs
        engine.tile_bytes = min(TILE_BYTES, int(budget / threads))
        as_they_are = not sparse.issparse(X) and X.dtype == engine.dtype
        as_they_are = as_they_are and X.flags.c_contiguous
        copied = 0 if as_they_are else X.shape[1] * engine.dtype.itemsize
        query_bytes = _NUMBER * width + copied
        return slices(X.shape[0], batch_rows(X.shape[0], query_bytes, budget, jobs))

    def _thread_count(self, X):
        """Threads for the queries X: each has a query, and memory for its distances."""
        if X.shape[0] == 1:
            return 1
        engine = self._engine
        room = int(_share_of_memory() // (engine.n * engine.dtype.itemsize))
        return max(1, min(thread_count(self.n_jobs), X.shape[0], room))

    def _as_held(self, rows):
        """Dense rows in the type of the points."""
        rows = self._in_type(rows)
        return rows.toarray() if sparse.issparse(rows) else rows

    def _in_type(self, rows):
        """Rows in the type of the points, which may be the smaller one."""
        if rows.dtype == self._engine.dtype:
            return rows
        with np.errstate(over="ignore"):
            rows = rows.astype(self._engine.dtype)
        check_finite("X", rows.data if sparse.issparse(rows) else rows)
        return rows

    def _checked_n_neighbors(self, n_neighbors, most):
        n_neighbors = self.n_neighbors if n_neighbors is None else n_neighbors
        if most == 0:
            raise ValueError(
                f"n_neighbors is {n_neighbors!r}, but the only point has no other."
            )
        return as_count("n_neighbors", n_neighbors, most=most)


def _share_of_memory():
    """Bytes for a batch, and for the tiles of all threads.

    A tile is held three times at the most: a product, a sum and what is made of it.
    """
    return get_config()["working_memory"] * _MIB / 4


def _check_pair(low_rank):
    """Raise where it is not two arrays W and V."""
    if not isinstance(low_rank, tuple | list):
        kind = type(low_rank).__name__
        raise ValueError(f"low_rank must be a pair (W, V), got one {kind}.")
    if len(low_rank) != 2:
        count, kind = len(low_rank), type(low_rank).__name__
        raise ValueError(f"low_rank must be a pair (W, V), got a {kind} of {count}.")


def check_one_row_each(X, indices):
    """Raise where there is not one row of X for each of the positions."""
    if X.shape[0] != len(indices):
        raise ValueError(
            f"X has {X.shape[0]} rows, expected {len(indices)}, one for each of "
            "indices."
        )


def batch_rows(count, query_bytes, budget, pieces):
    """How many of `count` queries make a batch, for at least `pieces` of them.

    Examples
    --------
    >>> batch_rows(1000, 2**20, budget=2**25, pieces=1)
    32
    >>> batch_rows(1000, 0, budget=2**25, pieces=4)
    250
    """
    most = -(-count // pieces)
    if query_bytes:
        most = min(most, int(budget // query_bytes))
    return max(1, most)
