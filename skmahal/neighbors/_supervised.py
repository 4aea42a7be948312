"""The base of classifier and regressor: points with targets, weighted neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from copy import copy
from functools import partial
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.utils import check_array

from skmahal._compat import StrOptions, fit_context, fit_tasks
from skmahal._core.checks import as_count, as_matrix
from skmahal._core.threads import slices
from skmahal._core.types import (
    Auto,
    Candidates,
    Metric,
    MetricName,
    RandomState,
    Rows,
    Sketch,
    Weights,
)
from skmahal._estimator import validated

from ._base import (
    MOST_TASKS,
    ROWS,
    KNeighborsQueries,
    SketchedNeighborsBase,
    changed,
    memory,
)
from ._records import as_weights

# Numbers in memory for each neighbour of a query, beside its targets.
_PER_NEIGHBOUR = 8

# As in scikit-learn, word for word.
_ALL_ZERO = (
    "All neighbors of some sample is getting zero weights. Please modify 'weights' to "
    "avoid this case if you are using a user-defined function."
)


class SupervisedNeighborsBase(KNeighborsQueries, SketchedNeighborsBase):
    """Points and targets that are added, replaced and removed together.

    Targets are stored in the index, one column per output: as they are if a subclass
    sets `_numeric`, or else as its ``_encoded(y, reset)`` encodes them.
    """

    _parameter_constraints = {
        **SketchedNeighborsBase._parameter_constraints,
        "weights": [StrOptions({"uniform", "distance"}), callable, None],
    }

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        weights: Weights = "uniform",
        metric_learner: Metric | None = None,
        m: int | Auto = "auto",
        L: int = 10,
        R: int | Auto = "auto",
        eps: float = 0.2,
        delta: float = 0.01,
        lead: int | Auto = "auto",
        sketch: Sketch = "gaussian",
        n_candidates: Candidates = "exact",
        recall: float | None = None,
        adaptive: bool = False,
        max_points: int | None = None,
        metric: MetricName = "minkowski",
        p: Literal[2] = 2,
        metric_params: Mapping[str, ArrayLike] | None = None,
        random_state: RandomState = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.metric_learner = metric_learner
        self.max_points = max_points
        self.m = m
        self.L = L
        self.R = R
        self.eps = eps
        self.delta = delta
        self.lead = lead
        self.sketch = sketch
        self.n_candidates = n_candidates
        self.recall = recall
        self.adaptive = adaptive
        self.metric = metric
        self.p = p
        self.metric_params = metric_params
        self.random_state = random_state
        self.n_jobs = n_jobs

    @fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: Rows,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        ids: ArrayLike | None = None,
    ) -> Self:
        """Learn the metric, if there is a learner, and index the points. O(nkd).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Points. A copy is kept, unless they are mapped from a file.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets. A classifier takes None, or NaN, for a point whose label is not
            known yet. A point has all labels of several outputs, or none. An estimator
            as `metric_learner` is fitted to the points with labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Numbers of at least 0 that multiply the weights of points in predictions.
            None is 1 for all. Points of weight 0 are not counted as neighbours.
        ids : array-like of shape (n_samples,), default=None
            Different integers or strings that name the points. With None, the positions
            of the points are their ids, which change when points are removed.

        Returns
        -------
        self : object
        """
        fitted = copy(self)
        X, y, known, columns = fitted._validated(X, y, sample_weight, reset=True)
        if not columns["weight"].any():
            raise ValueError("sample_weight must not be zero for all points.")
        with fit_tasks(fitted, MOST_TASKS, X, y):
            fitted._build(X, y, ids, known, **columns)
        self.__dict__ = fitted.__dict__
        return self

    def update_points(
        self,
        indices: ArrayLike | None = None,
        X: Rows | None = None,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        ids: ArrayLike | None = None,
    ) -> Self:
        """Replace points and their targets. O(k(d + lead + Lm) + d log n) each.

        Parameters
        ----------
        indices : int, array-like of int, or array-like of bool, default=None
            Positions, each at most once, or a mask.
        X, y, sample_weight : as in :meth:`fit`
            The new points, their targets and weights, 1 if None. They keep their ids.
        ids : int, str or array-like of them, default=None
            Ids of the points, in place of `indices`.

        Returns
        -------
        self : object
        """
        held = self._fitted()
        with held.index.lock.changing(), self._keeping_classes():
            X, _, _, columns = self._validated(X, y, sample_weight)
            self._replace(indices, X, ids, **columns)
        return self

    def update_labels(
        self,
        indices: ArrayLike | None = None,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        ids: ArrayLike | None = None,
    ) -> Self:
        """Set or correct the targets of points of the index. O(1) each.

        A `metric_learner` that learns online learns from points that had no label
        before.

        Parameters
        ----------
        indices, ids : as in :meth:`update_points`
            Positions or ids of the points.
        y : array-like of shape (n_points,) or (n_points, n_outputs)
            Their targets, as in :meth:`fit`.
        sample_weight : array-like of shape (n_points,), default=None
            Their weights; None leaves these as they are.

        Returns
        -------
        self : object

        Examples
        --------
        >>> from skmahal import SketchedMahalanobisClassifier
        >>> X, y = [[0.0], [1.0], [5.0]], ["low", "low", None]
        >>> knn = SketchedMahalanobisClassifier(1).fit(X, y, ids=[10, 11, 12])
        >>> knn.predict([[4.0]])
        array(['low'], dtype='<U3')
        >>> knn.update_labels(ids=[12], y=["high"]).predict([[4.0]])
        array(['high'], dtype='<U4')
        """
        index = self._fitted().index
        with index.lock.changing(), self._keeping_classes():
            at = self._chosen(index, indices, ids, unique=True)
            if y is None:
                raise ValueError("y must be given: one target for each point.")
            targets, known = self._plain([y] if np.ndim(y) == 0 else y)
            targets = check_array(targets, dtype=None, ensure_2d=False, input_name="y")
            if len(targets) != len(at):
                given = "indices" if ids is None else "ids"
                raise ValueError(
                    f"y has {len(targets)} targets, expected {len(at)}, one for each "
                    f"of {given}."
                )
            targets, _, columns = self._columns(targets, known, sample_weight)
            if sample_weight is None:
                del columns["weight"]
            old = index.records[at]
            new = changed(index.records, at, columns)
            late = np.flatnonzero(~self._are_known(old) & self._are_known(new))
            change, undo = (partial(index.set_records, at, rows) for rows in (new, old))
            self._teach(index.X[at[late]], targets[late], change, undo)
        return self

    def _keeping_classes(self):
        """A context that restores the classes if it raises."""
        return nullcontext()

    def _are_known(self, records):
        """Which records have targets."""
        return np.ones(records.shape, dtype=bool)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags

    def _validated(self, X, y, sample_weight=None, reset=False, **options):
        """Points, and what :meth:`_columns` makes of their targets and weights."""
        y, known = self._plain(y, reset, **options)
        X, y = validated(self, X, y, reset=reset, multi_output=True, **ROWS)
        return X, *self._columns(y, known, sample_weight, reset, **options)

    def _plain(self, y, reset=False, **options):
        """Targets, filled in where missing, and which are known; None if all are."""
        if sparse.issparse(y):
            raise TypeError("y must be dense, got a sparse matrix.")
        if y is None or not self._numeric:
            return (y, None) if y is None else self._filled(y, reset, **options)
        try:
            given = np.asarray(y)
            return given.astype(np.float64) if given.dtype.kind in "OUS" else y, None
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"y must be an array of numbers: {error}") from error

    def _columns(self, y, known, sample_weight, reset=False, **options):
        """Targets for a metric learner, which of them are known, and columns.

        The columns are targets and weights as they are stored.
        """
        count = y.size // len(y)
        expected = count if reset else self._maintenance.records["target"].shape[1]
        if count != expected:
            raise ValueError(f"y has {count} outputs, expected {expected}.")
        weights = as_weights(sample_weight, len(y))
        if self._numeric:
            targets = y.reshape(len(y), -1).astype(np.float64)
        else:
            y, targets = self._encoded(y, known, reset, **options)
        if reset:
            self.outputs_2d_ = y.ndim == 2
        y = y[:, 0] if y.shape[1:] == (1,) else y
        return y, known, {"target": targets, "weight": weights}

    def _decided(self, X, decide, *args):
        """Arrays that `decide` makes of the targets and weights of neighbours.

        ``decide(fitted, targets, weights, *args)`` gets targets of shape (queries, K,
        outputs), and returns a list of arrays with one row per query.
        """
        fitted, out = copy(self), None
        held = fitted._fitted()
        index = held.index
        Q = None if X is None else fitted._queries(X, index)
        with index.lock.reading():
            rows_of, records = index.X if Q is None else Q, index.records
            count, K = rows_of.shape[0], as_count("n_neighbors", fitted.n_neighbors)
            n_classes = sum(map(len, getattr(fitted, "_classes", ())))
            n_outputs = records["target"].shape[1]
            width = 2 * n_classes + (K + 2) * (n_outputs + _PER_NEIGHBOUR)
            step = max(1, int(memory() // (8 * width)))
            for rows in slices(count, step):
                own = np.arange(rows.start, rows.stop) if Q is None else None
                near, at, votes = fitted._voters(held, rows_of[rows], K, own)
                weights = neighbour_weights(near, fitted.weights)
                if votes is not None:
                    weights = votes if weights is None else weights * votes
                part = decide(fitted, records["target"][at], weights, *args)
                if out is None:
                    out = [np.empty((count, *a.shape[1:]), a.dtype) for a in part]
                for whole, block in zip(out, part, strict=True):
                    whole[rows] = block
        return out

    def _voters(self, held, Q, K, own=None):
        """The K nearest points that have targets and a weight, or as many as there are.

        Distances, positions, and weights of the points; None if all of these are 1. If
        there are fewer than K, other points of weight 0 take their places, at the
        distance of the last one that has a weight.
        """
        index = held.index
        n, records = index.n - int(own is not None), index.records
        K = size = min(K, n) or 1
        near, at = self._nearest(held, Q, K, own)
        votes = self._votes(records, at)
        left = np.flatnonzero((votes == 0).any(axis=1))
        while left.size and size < n:
            # Among more neighbours there may be enough that vote.
            size = min(4 * size, n)
            if not isinstance(self.n_candidates, str):
                # `self` is a copy.
                self.n_candidates = max(self.n_candidates, size)
            for part in slices(len(left), max(1, int(memory() // (64 * size)))):
                some = left[part]
                rest = None if own is None else own[some]
                more, places = self._nearest(held, Q[some], size, rest)
                counted = self._votes(records, places)
                order = np.argsort(counted == 0, axis=1, kind="stable")[:, :K]
                near[some], at[some], votes[some] = (
                    np.take_along_axis(found, order, axis=1)
                    for found in (more, places, counted)
                )
            left = left[(votes[left] == 0).any(axis=1)]
        if left.size:
            if not votes.any(axis=1).all():
                raise ValueError(
                    "No point of the index has both a label and a weight: there is "
                    "nothing to predict from."
                )
            last = np.where(votes > 0, near, 0).max(axis=1, keepdims=True)
            near = np.where(votes > 0, near, last)
        return near, at, None if (votes == 1).all() else votes

    def _votes(self, records, at):
        """Weights of the points at positions; 0 where a point has no target."""
        records = records[at]
        return np.where(self._are_known(records), records["weight"], 0.0)


def neighbour_weights(distances, weights):
    """Weights of neighbours, or None for equal ones.

    "distance" is the inverse distance; if a neighbour is at distance zero, only such
    neighbours count. A function must give a finite number for every distance, and not
    zero for all neighbours of a query.

    >>> neighbour_weights(np.array([[1.0, 2.0], [0.0, 2.0]]), "distance")
    array([[1. , 0.5],
           [1. , 0. ]])
    """
    if callable(weights):
        weights, shape = weights(distances), distances.shape
        if np.shape(weights) != shape:
            raise ValueError(
                f"weights must give an array of the shape of the distances, {shape}, "
                f"got {np.shape(weights)}."
            )
        weights = as_matrix("weights", weights, dtype=np.float64)
        if not weights.any(axis=1).all():
            raise ValueError(_ALL_ZERO)
        return weights
    if weights is None or (isinstance(weights, str) and weights == "uniform"):
        return None
    if not isinstance(weights, str) or weights != "distance":
        expected = "'uniform', 'distance', None or a function"
        raise ValueError(f"weights must be {expected}, got {weights!r}.")
    with np.errstate(divide="ignore", over="ignore"):
        inverse = 1 / distances
    at_zero = np.isinf(inverse)
    rows = at_zero.any(axis=1)
    inverse[rows] = at_zero[rows]
    return inverse


def divided_by_weight(values, weights):
    """Values divided by the sum of the weights of each query, if that is not zero."""
    total = weights.sum(axis=1, keepdims=True)
    if not total.all():
        raise ValueError("weights must not sum to zero over the neighbours of a query.")
    return values / total
