"""What all estimators share: parameters, fitting, changes and neighbour queries."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from copy import copy
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn import get_config
from sklearn.exceptions import EfficiencyWarning
from sklearn.utils.validation import check_is_fitted

from skmahal import _metric_learner as learners
from skmahal._compat import (
    CallbackSupport,
    HasMethods,
    Interval,
    KNeighborsMixin,
    Options,
    RadiusNeighborsMixin,
    StrOptions,
    fit_task,
)
from skmahal._core import checks
from skmahal._core.bounds import SKETCHES
from skmahal._core.guarantees import METHODS, Guarantee
from skmahal._core.index import WORKING_BYTES
from skmahal._core.kernels import available
from skmahal._core.maintenance import MetricMaintenance
from skmahal._core.points import records_from
from skmahal._core.search import without_own
from skmahal._core.threads import one_blas_thread, thread_count
from skmahal._core.types import Engine, Floats, Metric, Mode, Rows
from skmahal._estimator import (
    Persistent,
    require_width,
    restore_attributes,
    seed_from,
    validated,
)

from ._records import Arrivals, Positions, as_ids, has_field

ROWS: dict[str, Any] = {"accept_sparse": "csr", "dtype": (np.float64, np.float32)}
_FLOATS = frozenset(map(np.dtype, ROWS["dtype"]))
_MODES = ("connectivity", "distance")

# Parameters of MetricMaintenance with the same name here.
_OF_MAINTENANCE: tuple[str, ...] = ("eps", "delta", "m", "L", "R", "lead", "sketch")
_OF_MAINTENANCE += ("n_neighbors", "adaptive", "recall")

_AUTO = StrOptions({"auto"})
_POSITIVE = Interval(Integral, 1, None, closed="left")

# What scikit-learn calls the Euclidean and the Mahalanobis metric.
_METRICS = ("minkowski", "euclidean", "l2", "mahalanobis")

# With so many points or more, an index without numba warns that it is slow.
_MANY_POINTS = 20_000

# Tasks of a `fit`: learn the metric, index the points, and measure recall or scores.
MOST_TASKS = 3

# Threads share the work of one query if it reads more bytes of codes than _LARGE, and
# that of many queries if these need at least _LITTLE products of coordinates. With
# fewer, BLAS is limited to one thread.
_LARGE = 1 << 24
_LITTLE = 1 << 23


def of_index(name, doc):
    """A property with an attribute of the index; scikit-learn's error before `fit`."""

    def read(self: Any) -> Any:
        return getattr(self._fitted(), name)

    return property(read, doc=doc)


class SketchedNeighborsBase(CallbackSupport, Persistent):
    """An index of points under a metric, behind scikit-learn's conventions.

    Points, metric and sketches are in `_maintenance`. `fit` fits a copy and takes over
    its attributes in one step: other threads see the old fit or the new one, and an
    error leaves the object as it was.
    """

    _parameter_constraints = {
        "n_neighbors": [_POSITIVE],
        "metric_learner": [None, dict, "array-like", HasMethods("fit")],
        "m": [_POSITIVE, _AUTO],
        "L": [_POSITIVE],
        "R": [_POSITIVE, _AUTO],
        "eps": [Interval(Real, 0, 1, closed="neither")],
        "delta": [Interval(Real, 0, 1, closed="neither")],
        "lead": [Interval(Integral, 0, None, closed="left"), _AUTO],
        "sketch": [StrOptions(set(SKETCHES))],
        "n_candidates": [_POSITIVE, StrOptions({"exact", "certified"})],
        "recall": [None, Interval(Real, 0, 1, closed="neither")],
        "adaptive": ["boolean"],
        "max_points": [_POSITIVE, None],
        "metric": [StrOptions(set(_METRICS))],
        "p": [Options(Real, {2})],
        "metric_params": [dict, None],
        "random_state": ["random_state"],
        "n_jobs": [Integral, None],
    }

    components_ = of_index("U", "U at present; a copy.")
    m_ = of_index("m", "Rows of a sketch.")
    L_ = of_index("L", "Number of sketches.")
    R_ = of_index("R", "Sketches for a distance query.")
    lead_ = of_index("lead", "Leading directions kept.")
    n_samples_fit_ = of_index("n", "Number of points.")
    # Functions of scikit-learn that take an index in place of points read this.
    _fit_X = of_index("X", "The points.")

    @property
    def ids_(self) -> np.ndarray:
        """Ids of the points, a copy; their positions if none were given."""
        index = self._fitted().index
        with index.lock.reading():
            if has_field(index, "id"):
                return index.records["id"].copy()
            return np.arange(index.n)

    def points(self, ids: ArrayLike | None = None) -> np.ndarray | sparse.csr_matrix:
        """The points with the given ids, in the type of the index. O(d) each.

        Parameters
        ----------
        ids : int, str or array-like of them, default=None
            Ids; None is all points in order of position.

        Returns
        -------
        X : {ndarray, sparse matrix} of shape (n_points, n_features)
            A copy.

        Examples
        --------
        >>> from skmahal import SketchedMahalanobisNeighbors
        >>> X = [[0.0, 1.0], [2.0, 3.0]]
        >>> index = SketchedMahalanobisNeighbors(1).fit(X, ids=["a", "b"])
        >>> index.points("b"), len(index), "c" in index
        (array([[2., 3.]]), 2, False)
        """
        index = self._fitted().index
        with index.lock.reading():
            if ids is None:
                return index.X.copy()
            return index.X[self._positions.of(ids, index)]

    def __len__(self):
        """Number of points; 0 before `fit`."""
        return self._maintenance.n if "_maintenance" in vars(self) else 0

    def __bool__(self):
        # Otherwise an estimator that is not fitted, of length 0, would be false.
        return True

    def __contains__(self, one):
        """Whether a point has this id. O(1) on average."""
        index = self._fitted().index
        with index.lock.reading():
            return self._positions.has(one, index)

    @property
    def recall_(self) -> float:
        """Mean recall of searches by cells, as last measured; 1.0 if there are none."""
        found = self._fitted().index.measured(self.n_neighbors)
        return 1.0 if found is None else found.measured

    @property
    def engine_(self) -> Engine:
        """How distances are computed at present.

        If `m` was set and `adaptive` was not, "sketched" if ``m_ * R_ + lead_ < k``,
        and "exact" otherwise.
        """
        held = self._fitted()
        if held.engine != "sketched" or held.parameters["m"] == "auto":
            return held.engine
        return "sketched" if self._sketches_pay(held) else "exact"

    def _sketches_pay(self, held):
        """Whether sketches have fewer columns than exact rows."""
        columns = held.m * held.R
        # An "auto" lead is chosen when it is read, which takes time.
        return columns < held.k and columns + held.lead < held.k

    def update_metric(
        self,
        metric: Metric | None = None,
        *,
        rows: ArrayLike | None = None,
        additive: bool = False,
        low_rank: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Change the metric; the index follows without being built again.

        A change of rank p costs one pass over the points, O(p n d), and so does a whole
        new U that differs by rank p. With any other U all norms are computed, O(n k d).

        Parameters
        ----------
        metric : fitted learner, dict or array-like, default=None
            The new metric, as for the parameter `metric_learner`; with `rows`, the
            values of these rows, (n_rows, n_features). The steps that an online learner
            has made since it was last passed are added as one update.
        rows : int or array-like of int, default=None
            Rows of U to change, each at most once.
        additive : bool, default=False
            Add to `rows` instead of setting them.
        low_rank : tuple (W, V), default=None
            ``U += W Vᵀ``, with W of shape (k, p) and V of shape (n_features, p).

        Returns
        -------
        self : object

        Examples
        --------
        >>> from skmahal import SketchedMahalanobisNeighbors
        >>> index = SketchedMahalanobisNeighbors(1).fit([[0.0, 2.0], [3.0, 0.0]])
        >>> index.kneighbors([[0.0, 0.0]])
        (array([[2.]]), array([[0]]))
        >>> index.update_metric([[0.0, 2.0]], rows=[1]).kneighbors([[0.0, 0.0]])
        (array([[3.]]), array([[1]]))
        """
        held = self._fitted()
        given = metric, rows, additive, low_rank
        change = checks.as_change(*given, held.index.k, held.index.d)
        if change.low_rank is not None:
            self._change_metric(held.index.add_low_rank, *change.low_rank)
        elif change.rows is not None:
            set_or_add = held.update_u if additive else held.set_rows
            self._change_metric(set_or_add, change.metric, change.rows)
        else:
            self._follow(held, metric)
        return self

    def _follow(self, held, metric):
        """Add the steps of an online learner since it was last followed, or set U."""
        token = learners.token_of(metric)
        with one_blas_thread():
            U = learners.components_of(metric, "metric", held.d)
        with held.index.lock.changing():
            steps, token = learners.steps_since(self._followed, metric, token)
            if steps is None:
                self._change_metric(held.set_metric, U)
            elif steps.rank:
                self._change_metric(held.index.add_low_rank, *steps, result=U)
            self._followed = token

    def _change_metric(self, change, *args, **kwargs):
        """Change U, and stop following a learner unless the change is refused."""
        jobs = thread_count(self.n_jobs)
        with self._maintenance.index.lock.changing(), one_blas_thread():
            followed, self._followed = self._followed, None
            try:
                change(*args, jobs=jobs, **kwargs)
            except (ValueError, TypeError, IndexError):
                self._followed = followed
                raise

    def remove_points(
        self, indices: ArrayLike | None = None, *, ids: ArrayLike | None = None
    ) -> Self:
        """Remove points; later ones move up, as with `numpy.delete`. O(n) per column.

        Parameters
        ----------
        indices : int, array-like of int, or array-like of bool, default=None
            Positions of the points, or a mask. Negative ones count from the end, and
            one that occurs twice counts once. At least one point must be left.
        ids : int, str or array-like of them, default=None
            Ids of the points, in place of `indices`.

        Returns
        -------
        self : object
        """
        index = self._fitted().index
        with index.lock.changing():
            positions = np.unique(self._chosen(index, indices, ids))
            self._remove(positions, "indices" if ids is None else "ids")
        return self

    def _remove(self, positions, given):
        """Remove points at distinct positions, `given` as "indices" or as "ids"."""
        n = self._maintenance.n
        if len(positions) == n:
            raise ValueError(f"{given} would remove every one of the {n} points.")
        self._arrivals.reset()
        self._maintenance.remove(positions)

    def refresh_sketches(self) -> Self:
        """Draw a new secret key and new sketches. O(n k (lead + L m)), when next used.

        Whatever estimates have revealed about the old sketches is then useless.

        Returns
        -------
        self : object
        """
        self._fitted().refresh_sketches()
        return self

    def check(self) -> float:
        """Assert every invariant of the index. O(n k (d + lead + L m)).

        Returns
        -------
        drift : float
            The largest relative error of a squared length under the metric.
        """
        return self._fitted().check()

    def guarantee(self, n_queries: int = 1000) -> Guarantee:
        """State what the index promises at present, in numbers and in words.

        O(1), unless the recall is due to be measured.

        Parameters
        ----------
        n_queries : int, default=1000
            Number of queries, chosen by the neighbours of earlier ones, that are all to
            have exact neighbours. It matters if `n_candidates` is "certified".

        Returns
        -------
        guarantee : Guarantee
            Its numbers are described in :class:`skmahal.inspection.Guarantee`. `fixed`
            and `adaptive` bound the probability that a result breaks its promise: for
            queries that do not depend on earlier results, and for queries that may be
            chosen by them. 0 is a result that is certain, 1 is no promise. If `m` or
            `R` was set, the promise becomes weaker as points are added.

        Examples
        --------
        >>> from skmahal import SketchedMahalanobisNeighbors
        >>> index = SketchedMahalanobisNeighbors(1).fit([[0.0], [3.0]])
        >>> index.guarantee().adaptive.kneighbors
        0.0
        """
        held, n_queries = self._fitted(), checks.as_count("n_queries", n_queries)
        with held.index.lock.reading():
            K = checks.as_count("n_neighbors", self.n_neighbors)
            candidates = self._candidates(held, min(K, held.n))
            neighbors = candidates if isinstance(candidates, str) else "budget"
            offers = [name for name in METHODS if hasattr(self, name)]
            ways = held.ways()
            if held.parameters["m"] != "auto" and self.engine_ == "exact":
                ways = dict.fromkeys(ways, "exact")
            return held._guarantee(n_queries, neighbors, ways, K, offers)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _saved(self, state):
        if "_maintenance" in state:
            state["_maintenance"] = state["_maintenance"].saved()
            del state["_positions"], state["_arrivals"]
        return super()._saved(state)

    def _restored(self, state):
        if "_maintenance" in state:
            held = MetricMaintenance.restored(state["_maintenance"])
            state |= {"_maintenance": held}
            state |= {"_positions": Positions(), "_arrivals": Arrivals()}
            require_width(state, held.d)
        return super()._restored(state)

    def _fitted(self):
        """The maintained index; scikit-learn's error before `fit`."""
        try:
            return self._maintenance
        except AttributeError:
            check_is_fitted(self)
            raise

    def _build(self, X, y=None, ids=None, known=None, **columns):
        """Learn the metric and index validated points.

        `columns` are fields of the records of the points. Of the points, the last
        `max_points` are kept. `known` says which of them have targets, for the learner;
        None if all have.
        """
        if self.recall is not None and self.n_candidates != "exact":
            raise ValueError(
                f"recall needs n_candidates='exact', got {self.n_candidates!r}."
            )
        if X.shape[0] >= _MANY_POINTS and not available():
            _suggest_numba()
        given = self._given_metric()
        taught = (X, y) if known is None else (X[known], y[known])
        if known is not None and not known.any():
            taught = X, None
        name = "metric_params" if given is self.metric_params else "metric_learner"
        with fit_task(self, "learn the metric") as task:
            resolve = learners.resolve_components
            U, learner = resolve(given, *taught, X.shape[1], name, task.within)
        if ids is not None:
            columns["id"] = as_ids(ids, X.shape[0])
        if self.max_points is not None:
            columns["arrival"] = np.arange(X.shape[0])
            X = X[-self.max_points :]
        records = None
        if columns:
            last = {name: held[-X.shape[0] :] for name, held in columns.items()}
            records = records_from(last)
        parameters = {name: getattr(self, name) for name in _OF_MAINTENANCE}
        seed, jobs = seed_from(self.random_state), thread_count(self.n_jobs)
        with fit_task(self, "index the points"), one_blas_thread():
            held = MetricMaintenance(U, X, records=records, seed=seed, **parameters)
            with held.index.lock.reading():
                held.index.searcher(jobs, None if self.recall is None else 0)
        if self.recall is not None:
            with fit_task(self, "measure the recall"), one_blas_thread():
                held.index.prepare(jobs)
        self.metric_learner_, self._followed = learner, learners.token_of(learner)
        self._maintenance = held
        self._positions, self._arrivals = Positions(), Arrivals()

    def _given_metric(self):
        """The parameter `metric_learner`, or the metric as scikit-learn spells it."""
        if not self.metric_params:
            if self.metric == "mahalanobis" and self.metric_learner is None:
                raise ValueError(
                    "metric='mahalanobis' needs metric_params={'V': covariance} or "
                    "{'VI': its inverse}, or a metric_learner, got neither."
                )
            return self.metric_learner
        if self.metric_learner is not None:
            raise ValueError(
                "metric_params must be None if metric_learner is given, got "
                f"{list(self.metric_params)}."
            )
        keys = self.metric_params.keys()
        if self.metric != "mahalanobis" or len(keys) > 1 or keys - {"V", "VI"}:
            raise ValueError(
                "metric_params must be {'V': covariance} or {'VI': its inverse} with "
                f"metric='mahalanobis', got the keys {list(self.metric_params)} with "
                f"metric={self.metric!r}."
            )
        return self.metric_params

    def _append(self, X, y=None, ids=None, known=None, **columns):
        """Add points; an online learner learns from them, and the metric follows it.

        Arguments are those of :meth:`_build`. If the index is a window that is full,
        the points that came first are replaced, and their positions are returned.
        """
        held = self._maintenance
        index, X = held.index, in_type(X, held.dtype)
        with index.lock.changing(), self._arrivals.reset_on_error():
            columns |= self._new_ids(index, ids, X.shape[0])
            n, points, new = index.n, index.points, held._new_points("X", X)
            left = self._leaving(index, X.shape[0])
            columns |= self._arrivals.column(new.shape[0], index)
            if self.max_points is not None:
                new = new[-self.max_points :]
            # More points leave than are added if the window was made smaller.
            left, surplus = left[: new.shape[0]], left[new.shape[0] :]
            last = {name: rows[-new.shape[0] :] for name, rows in columns.items()}
            records = records_from(last) if last else None
            old_rows, old = index.X[left], changed(index.records, left, {})

            def put():
                if left.size:
                    index.assign(left, new, records)
                else:
                    index.append(new, records)

            def undo():
                if index.points is not points:
                    index.truncate(n)
                    if left.size:
                        index.assign(left, old_rows, old)

            taught = (X, y) if known is None else (X[known], y[known])
            self._teach(*taught, put, undo)
            if "id" in last:
                at = [*left.tolist(), *range(n, index.n)]
                ids = old["id"].tolist(), last["id"].tolist()
                self._positions.follow(points, index, *ids, at)
            if surplus.size:
                self._arrivals.reset()
                index.remove(surplus)
        return left

    def _teach(self, X, y, change, undo):
        """Let an online learner learn, make a change, and follow the learner.

        An error undoes all of it, unless the metric has changed already.
        """
        held, learner = self._maintenance, self.metric_learner_
        if y is None or not len(y) or not learners.learns_online(learner):
            change()
            return
        U, followed, before = held.U, self._followed, vars(learner).copy()
        try:
            learner.partial_fit(X, y)
            change()
            self._follow(held, learner)
        except BaseException:
            held.index.finished()
            if np.array_equal(held.U, U):
                undo()
                restore_attributes(learner, before)
                self._followed = followed
            raise

    def _new_ids(self, index, ids, count):
        """The ids of new points, as a column, or nothing if the index has no ids."""
        if not has_field(index, "id"):
            if ids is None:
                return {}
            raise ValueError("ids must be None: the index was fitted without ids.")
        if ids is None:
            raise ValueError("ids are needed: the index was fitted with ids.")
        ids = as_ids(ids, count)
        if ids.dtype.kind != index.records.dtype["id"].kind:
            kinds = {"i": "integers", "U": "strings"}
            expected = kinds[index.records.dtype["id"].kind]
            raise ValueError(f"ids must be {expected}, as those of `fit` are.")
        for one in ids.tolist():
            if self._positions.has(one, index):
                raise ValueError(
                    f"ids: a point of the index has the id {one!r} already; "
                    "update_points replaces it."
                )
        return {"id": ids}

    def _leaving(self, index, count):
        """Positions of the points that leave a window when `count` are added."""
        if self.max_points is None:
            return np.empty(0, dtype=np.intp)
        most = checks.as_count("max_points", self.max_points)
        if not has_field(index, "arrival"):
            raise ValueError(
                f"max_points was None when the index was fitted, and is {most} now: "
                "fit it again."
            )
        over = max(0, index.n + min(count, most) - most)
        return self._arrivals.oldest(over, index.records["arrival"])

    def _chosen(self, index, indices, ids, unique=False):
        """Positions of points that were given by position or by id."""
        if (indices is None) == (ids is None):
            both = "neither" if ids is None else "both"
            raise ValueError(f"Either indices or ids must be given, got {both}.")
        if ids is None:
            how = {"unique": unique, "masks": True}
            return checks.as_indices("indices", indices, index.n, **how)
        positions = self._positions.of(ids, index)
        if unique:
            values, counts = np.unique(positions, return_counts=True)
            if len(values) < len(positions):
                again = np.flatnonzero(positions == values[counts > 1][0])[1]
                raise ValueError(
                    "ids must be different, got "
                    f"{np.atleast_1d(ids)[again].item()!r} more than once."
                )
        return positions

    def _replace(self, indices, X, ids=None, **columns):
        """Replace points by validated ones; they keep their ids."""
        held = self._maintenance
        index, X = held.index, in_type(X, held.dtype)
        with index.lock.changing():
            indices = self._chosen(index, indices, ids, unique=True)
            if X.shape[0] != len(indices):
                raise ValueError(
                    f"X has {X.shape[0]} rows, expected {len(indices)}, one for each "
                    f"of {'indices' if ids is None else 'ids'}."
                )
            columns |= self._arrivals.column(len(indices), index)
            points = index.points
            held.update_x(X, indices, changed(index.records, indices, columns))
            self._positions.follow(points, index)
        return indices

    def _queries(self, X, index):
        """Queries in the type of the points: C-contiguous rows, or CSR."""
        # scikit-learn's validation takes more time than one query.
        plain = (
            type(X) is np.ndarray
            and X.ndim == 2
            and len(X) > 0
            and X.shape[1] == index.d
            and X.dtype in _FLOATS
            and not hasattr(self, "feature_names_in_")
            and checks.surely_finite(X)
        )
        if not plain:
            X = validated(self, X, reset=False, **ROWS)
        if X.dtype != index.dtype:
            X = in_type(X, index.dtype)
        if plain and X.flags.c_contiguous and X.flags.aligned:
            return X
        return X if sparse.issparse(X) else np.require(X, requirements="CA")

    def _candidates(self, held, K, own=0):
        """`n_candidates` for K neighbours; `own` is 1 if queries are points."""
        if held.adaptive:
            return "exact"
        if isinstance(self.n_candidates, str):
            checks.as_choice("n_candidates", self.n_candidates, ("exact", "certified"))
            count = self.n_candidates
        else:
            count = checks.as_count("n_candidates", self.n_candidates)
            if count < K:
                raise ValueError(
                    f"n_candidates must be an integer of at least {K}, the number of "
                    f"neighbours to find, got {count}."
                )
            count = count + own if count + own < held.n else "exact"
        # Sketches that cost as much as exact rows are not used.
        if count != "exact" and not self._sketches_pay(held):
            return "exact"
        return count


class KNeighborsQueries(KNeighborsMixin):
    """`kneighbors` and its graph, for a `SketchedNeighborsBase`.

    Functions of scikit-learn take only its own class as an index.
    """

    # Without distances, the positions alone are returned.
    @overload
    def kneighbors(
        self,
        X: Rows | None = None,
        n_neighbors: int | None = None,
        return_distance: Literal[True] = True,
        return_ids: bool = False,
    ) -> tuple[Floats, np.ndarray]: ...

    @overload
    def kneighbors(
        self,
        X: Rows | None = None,
        n_neighbors: int | None = None,
        return_distance: bool = True,
        return_ids: bool = False,
    ) -> Any: ...

    def kneighbors(
        self,
        X: Rows | None = None,
        n_neighbors: int | None = None,
        return_distance: bool = True,
        return_ids: bool = False,
    ) -> Any:
        """Find the nearest points of each query, and their exact distances.

        A query costs O(kd), bounds of all points, and O(d) for every point that these
        do not exclude: O(kd + nd) at most. If `recall` is set, that share of the
        nearest points is found on average, from the bounds of some of the points.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), default=None
            Queries. None finds the neighbours of every point of the index, each without
            the point itself.
        n_neighbors : int, default=None
            Number of neighbours; None is the one given to the constructor.
        return_distance : bool, default=True
            Whether to return the distances.
        return_ids : bool, default=False
            Whether to return ids of the points in place of their positions.

        Returns
        -------
        neigh_dist : ndarray of shape (n_queries, n_neighbors)
            Distances, in ascending order. Only with `return_distance`.
        neigh_ind : ndarray of shape (n_queries, n_neighbors)
            Positions of the points, or their ids; ties go to the lower position.
        """
        held = self._fitted()
        index = held.index
        Q = None if X is None else self._queries(X, index)
        with index.lock.reading():
            rows, own = (index.X, np.arange(index.n)) if Q is None else (Q, None)
            distances, indices = self._nearest(held, rows, n_neighbors, own)
            if return_ids and has_field(index, "id"):
                indices = index.records["id"][indices]
        return (distances, indices) if return_distance else indices

    def kneighbors_graph(
        self,
        X: Rows | None = None,
        n_neighbors: int | None = None,
        mode: Mode = "connectivity",
    ) -> sparse.csr_matrix:
        """Graph of the nearest points of each query; cost as in :meth:`kneighbors`.

        Parameters
        ----------
        X, n_neighbors : as in :meth:`kneighbors`
            Queries, and number of neighbours.
        mode : {"connectivity", "distance"}, default="connectivity"
            Ones, or distances.

        Returns
        -------
        A : sparse matrix of shape (n_queries, n_samples_fit), CSR
            The entries of a row are in order of distance.
        """
        checks.as_choice("mode", mode, _MODES)
        fitted = copy(self)
        with fitted._fitted().index.lock.reading():
            distances, indices = fitted.kneighbors(X, n_neighbors)
            n = fitted.n_samples_fit_
        counts = np.full(len(indices), indices.shape[1])
        return _graph(distances.ravel(), indices.ravel(), counts, n, mode)

    def _nearest(self, held, Q, n_neighbors=None, own=None):
        """Neighbours of rows Q; the index must be locked for reading.

        `own` are the positions of queries that are points of the index, which are not
        their own neighbours.
        """
        index, more = held.index, int(own is not None)
        K = self.n_neighbors if n_neighbors is None else n_neighbors
        if index.n == more:
            raise ValueError(
                f"n_neighbors is {K!r}, but the index has no other point than this one."
            )
        why = ", the number of other points" if more else ", the number of points"
        K = checks.as_count("n_neighbors", K, most=index.n - more, why=why)
        jobs, limited = workers(self.n_jobs, index, Q.shape[0], K=K + more)
        with limited:
            if self.n_candidates == "exact" or held.adaptive:
                found = index.kneighbors(Q, K + more, jobs, approximate=True)
            else:
                candidates = self._candidates(held, K, more)
                found = held._kneighbors(Q, K + more, candidates, jobs)
        return found if own is None else without_own(own, *found)


class RadiusNeighborsQueries(RadiusNeighborsMixin):
    """`radius_neighbors` and its graph, for a `SketchedNeighborsBase`."""

    # Without distances, the positions alone are returned.
    @overload
    def radius_neighbors(
        self,
        X: Rows | None = None,
        radius: float | None = None,
        return_distance: Literal[True] = True,
        sort_results: bool = False,
        return_ids: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]: ...

    @overload
    def radius_neighbors(
        self,
        X: Rows | None = None,
        radius: float | None = None,
        return_distance: bool = True,
        sort_results: bool = False,
        return_ids: bool = False,
    ) -> Any: ...

    def radius_neighbors(
        self,
        X: Rows | None = None,
        radius: float | None = None,
        return_distance: bool = True,
        sort_results: bool = False,
        return_ids: bool = False,
    ) -> Any:
        """Find all points within a distance, exactly.

        A query costs O(kd), bounds of all points, and O(d) for every point that these
        do not exclude: O(kd + nd) at most.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), default=None
            Queries. None finds the neighbours of every point of the index, each without
            the point itself.
        radius : float, default=None
            The distance, compared in the type of the points; None is the constructor's.
        return_distance : bool, default=True
            Whether to return the distances.
        sort_results : bool, default=False
            Whether to order by distance instead of by position.
        return_ids : bool, default=False
            Whether to return ids of the points in place of their positions.

        Returns
        -------
        neigh_dist, neigh_ind : ndarrays of shape (n_queries,) of arrays
            Distances, only with `return_distance`, and positions of the points, or
            their ids.
        """
        index = self._fitted().index
        radius = checks.as_length("radius", self.radius if radius is None else radius)
        Q = None if X is None else self._queries(X, index)
        with index.lock.reading():
            Q = index.X if Q is None else Q
            jobs, limited = workers(self.n_jobs, index, Q.shape[0])
            with limited:
                found = index.radius_neighbors(Q, radius, jobs)
            named = return_ids and has_field(index, "id")
            ids = index.records["id"].copy() if named else None
        distances, indices = (np.empty(Q.shape[0], dtype=object) for _ in range(2))
        for i, (near, at) in enumerate(zip(*found, strict=True)):
            if X is None:
                near, at = near[at != i], at[at != i]
            if sort_results:
                order = np.lexsort((at, near))
                near, at = near[order], at[order]
            distances[i], indices[i] = near, at if ids is None else ids[at]
        return (distances, indices) if return_distance else indices

    def radius_neighbors_graph(
        self,
        X: Rows | None = None,
        radius: float | None = None,
        mode: Mode = "connectivity",
        sort_results: bool = False,
    ) -> sparse.csr_matrix:
        """Graph of all points within a distance; cost as in :meth:`radius_neighbors`.

        Parameters
        ----------
        X, radius, sort_results : as in :meth:`radius_neighbors`
            Queries, distance, and whether to order the entries of a row by distance.
        mode : {"connectivity", "distance"}, default="connectivity"
            Ones, or distances.

        Returns
        -------
        A : sparse matrix of shape (n_queries, n_samples_fit), CSR
        """
        checks.as_choice("mode", mode, _MODES)
        fitted = copy(self)
        with fitted._fitted().index.lock.reading():
            found = fitted.radius_neighbors(X, radius, sort_results=sort_results)
            n = fitted.n_samples_fit_
        counts = [len(indices) for indices in found[1]]
        distances, indices = (np.concatenate(arrays) for arrays in found)
        return _graph(distances, indices, counts, n, mode)


def changed(records, indices, columns):
    """A copy of some records, with other columns; None if there are no records."""
    records = None if records is None else records[indices]
    for name, column in columns.items():
        records[name] = column
    return records


def in_type(X, dtype):
    """Rows of another floating type, or an error if a value is too large for it."""
    if X.dtype == dtype:
        return X
    with np.errstate(over="ignore"):
        X = X.astype(dtype)
    checks.check_finite("X", X.data if sparse.issparse(X) else X)
    return X


@lru_cache(maxsize=1)
def _suggest_numba():
    """Warn once that a search of many points is slow without numba."""
    warnings.warn(
        f"numba is not installed: searches of {_MANY_POINTS:,} points or more are "
        "several times slower without it. pip install 'skmahal[fast]' installs it.",
        EfficiencyWarning,
        stacklevel=5,  # the call of `fit`, which scikit-learn wraps
    )


def memory():
    """Bytes for one of up to four arrays that share scikit-learn's working memory."""
    return get_config()["working_memory"] * (1 << 20) / 4


def workers(n_jobs, index, n_queries, little=_LITTLE, K=None):
    """Number of threads for some queries, and the context in which they run.

    A single query uses one thread, unless the index is large, and leaves BLAS its own.
    Queries that need fewer products of coordinates than `little` use one thread. If
    they need fewer than :data:`_LITTLE`, BLAS has one as well: on busy cores it waits
    longer for its threads than such products take. K is the number of neighbours, if
    these are to be found.
    """
    if n_queries == 1:
        plan, width = index.plan, min(index.d, index.k)
        # Handing work to a thread takes as long as reading megabytes of codes.
        large = plan is not None and index.n * (plan.r_one or width) > _LARGE
        large = large and (K is None or not index.begins_in_cells(K))
        return thread_count(n_jobs) if large else 1, nullcontext()
    jobs = min(thread_count(n_jobs), n_queries)
    products = n_queries * index.n * min(index.d, index.k)
    if products < little:
        jobs = 1
    index.working_bytes = min(WORKING_BYTES, int(memory() / jobs))
    limits = jobs > 1 or products < _LITTLE
    return jobs, one_blas_thread() if limits else nullcontext()


def _graph(values, indices, counts, n_points, mode):
    """CSR matrix with `counts` entries per row: `values`, or ones for connectivity."""
    ones = mode == "connectivity"
    values = np.ones(len(indices)) if ones else np.asarray(values, dtype=np.float64)
    ends = np.concatenate([[0], np.cumsum(counts)])
    return sparse.csr_matrix((values, indices, ends), shape=(len(counts), n_points))
