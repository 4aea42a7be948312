"""Classification by a vote of the neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from copy import copy
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from skmahal._compat import StrOptions, fit_context, fit_tasks
from skmahal._core.checks import as_array, as_choice
from skmahal._core.saved import require
from skmahal._core.types import (
    Auto,
    Candidates,
    ClassWeight,
    Floats,
    Metric,
    MetricName,
    RandomState,
    Rows,
    Sketch,
    Weights,
)

from ._base import MOST_TASKS
from ._records import as_objects
from ._supervised import SupervisedNeighborsBase, divided_by_weight

_MOST_LISTED = 10


# Some samplers of imbalanced-learn accept only instances of scikit-learn's classifier.
# It is registered and not inherited, because the index is another one.
@KNeighborsClassifier.register
class SketchedMahalanobisClassifier(ClassifierMixin, SupervisedNeighborsBase):
    """Classify by the neighbours under a Mahalanobis metric that keeps changing.

    The counterpart of :class:`sklearn.neighbors.KNeighborsClassifier` on the index of
    :class:`SketchedMahalanobisNeighbors`. By default neighbours are exact.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours that vote. If there are fewer points, all of them vote.
    weights : {"uniform", "distance"}, callable or None, default="uniform"
        Equal votes, votes by inverse distance, or a function from an array of distances
        to one of weights. None is "uniform".
    class_weight : dict, "balanced" or None, default=None
        Numbers that multiply the votes of classes, 1 for those that are not in the
        dictionary. "balanced" is inversely proportional to the number of points of a
        class in the index, without those of weight 0. For several outputs, a list.
    metric_learner, m, L, R, eps, delta : as in SketchedMahalanobisNeighbors
        The metric, and sketches, which serve only if `n_candidates` is not "exact".
    lead, sketch, n_candidates, recall, adaptive, random_state, n_jobs : as there
        Sketches, the way to search, by default exact, seed and number of threads.
    max_points, metric, p, metric_params : as there
        A window of a stream, and the metric as scikit-learn spells it.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,), or a list of them for several outputs
        The classes, in ascending order. Labels that come later may add to them.
    outputs_2d_ : bool
        Whether there are several outputs.
    components_, engine_, metric_learner_, n_samples_fit_ and others
        As in :class:`SketchedMahalanobisNeighbors`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neighbors import NeighborhoodComponentsAnalysis
    >>> from skmahal import SketchedMahalanobisClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> learner = NeighborhoodComponentsAnalysis(random_state=0)
    >>> knn = SketchedMahalanobisClassifier(metric_learner=learner).fit(X[::2], y[::2])
    >>> round(knn.score(X[1::2], y[1::2]), 2)
    0.95
    """

    _numeric = False
    _parameter_constraints = {
        **SupervisedNeighborsBase._parameter_constraints,
        "class_weight": [dict, list, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        weights: Weights = "uniform",
        class_weight: ClassWeight | None = None,
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
        self.class_weight = class_weight
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
    def partial_fit(
        self,
        X: Rows,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        ids: ArrayLike | None = None,
    ) -> Self:
        """Add points with labels. O(k(d + lead + Lm)) each; the first call is `fit`.

        Parameters
        ----------
        X, y, sample_weight, ids : as in :meth:`fit`
            Points to add, their labels, weights and ids. A `metric_learner` that learns
            online continues to learn; no other is fitted again.
        classes : array-like of shape (n_classes,), or a list of them, default=None
            All classes there will be, for the first call; later calls may repeat it.
            With None in the first call, classes may come with any call.

        Returns
        -------
        self : SketchedMahalanobisClassifier
        """
        if not hasattr(self, "_maintenance"):
            fitted, options = copy(self), {"reset": True, "classes": classes}
            X, y, known, columns = fitted._validated(X, y, sample_weight, **options)
            with fit_tasks(fitted, MOST_TASKS, X, y):
                fitted._build(X, y, ids, known, **columns)
            self.__dict__ = fitted.__dict__
            return self
        check_repeated(classes, self._classes)
        with self._maintenance.index.lock.changing(), self._keeping_classes():
            X, y, known, columns = self._validated(X, y, sample_weight)
            self._append(X, y, ids, known, **columns)
        return self

    def predict(self, X: Rows) -> np.ndarray:
        """Predict the class with most votes; cost as in :meth:`kneighbors`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), or None
            Queries. None classifies every point of the index by the others.

        Returns
        -------
        y : ndarray of shape (n_queries,) or (n_queries, n_outputs)
            Classes. Ties go to the first.
        """
        return self._decided(X, _vote, "winner")[0]

    def predict_proba(self, X: Rows) -> Floats | list[Floats]:
        """Predict the share of each class in the votes; cost as in :meth:`kneighbors`.

        Parameters
        ----------
        X : as in :meth:`predict`
            Queries.

        Returns
        -------
        p : ndarray of shape (n_queries, n_classes), or a list for several outputs
            Shares, in the order of `classes_`.
        """
        fitted = copy(self)
        shares = fitted._decided(X, _vote, "shares")
        return shares if fitted.outputs_2d_ else shares[0]

    @property
    def classes_(self) -> np.ndarray | list[np.ndarray]:
        """The classes in ascending order, or a list of them for several outputs."""
        self._fitted()
        classes = [np.sort(known) for known in self._classes]
        return classes if self.outputs_2d_ else classes[0]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    @contextmanager
    def _keeping_classes(self):
        before = list(self._classes)
        try:
            yield
        except BaseException:
            index = self._maintenance.index
            index.finished()
            most = index.records["target"].max(axis=0)
            # Points that were added before an interruption keep their classes.
            if (most < [len(known) for known in before]).all():
                self._classes[:] = before
            raise

    def _class_weights(self, output):
        """Factors of the votes for the classes of an output."""
        classes, given = self._classes[output], self.class_weight
        if isinstance(given, list):
            if len(given) != len(self._classes):
                raise ValueError(
                    f"class_weight must have one item for each of {len(self._classes)} "
                    f"outputs, got {len(given)}."
                )
            given = given[output]
        elif isinstance(given, dict) and len(self._classes) > 1:
            raise ValueError(
                "class_weight must be a list of dictionaries if there are several "
                "outputs, got a dictionary."
            )
        if given is None:
            return 1.0
        if isinstance(given, dict):
            weights = [given.get(one, 1.0) for one in classes.tolist()]
            weights = as_array("class_weight", weights, np.float64)
            if not (weights >= 0).all() or not np.isfinite(weights).all():
                raise ValueError(
                    f"class_weight must have finite numbers of at least 0, got {given}."
                )
            return weights
        as_choice("class_weight", given, ("balanced",))
        records = self._maintenance.records
        targets = records["target"][records["weight"] > 0, output]
        counts = np.bincount(targets[targets >= 0], minlength=len(classes))
        return counts.sum() / (len(classes) * np.maximum(counts, 1))

    def _are_known(self, records):
        return (records["target"] >= 0).all(axis=-1)

    def _filled(self, y, reset, classes=None):
        """Labels, any others for unknown ones, and which are known; None if all are."""
        known = _are_labels(y)
        if known is None:
            return _in_one_type(y), None
        labels = np.asarray(y, dtype=object)
        if not known.any():
            if reset and classes is None:
                raise ValueError("y has no label: pass classes to partial_fit.")
            return np.zeros(labels.shape, dtype=int), known
        values = _in_one_type(labels[known])
        if not hasattr(y, "dtype"):
            values = np.array(values.tolist())
        filled = np.empty(labels.shape, dtype=values.dtype)
        filled[:], filled[known] = values[0], values
        return filled, known

    def _encoded(self, y, known, reset, classes=None):
        """Labels, and numbers of their classes in order of arrival, -1 if unknown."""
        if reset and y.shape[1:] == (1,):
            # One column of labels is one output, with scikit-learn's warning.
            y = column_or_1d(y, warn=True)
        columns = y.reshape(len(y), -1)
        given = columns if known is None else columns[known]
        if len(given) and (reset or not self._fixed):
            check_classification_targets(given)
        if reset:
            self._fixed = classes is not None
            if classes is None:
                self._classes = [np.unique(column) for column in given.T]
            else:
                self._classes = class_lists(classes, columns.shape[1])
        elif not self._fixed and len(given):
            pairs = zip(self._classes, given.T, strict=True)
            # In place: copies of the estimator that read the index see them too.
            self._classes[:] = [with_new_classes(*pair) for pair in pairs]
        codes = np.full(columns.shape, -1)
        if len(given):
            pairs = zip(given.T, self._classes, strict=True)
            new = np.stack([codes_of(*pair) for pair in pairs], axis=1)
            codes[slice(None) if known is None else known] = new
        return y, codes

    def _restored(self, state):
        state = super()._restored(state)
        if "_maintenance" in state:
            targets = state["_maintenance"].records["target"]
            counts = [len(classes) for classes in state["_classes"]]
            fits = targets.dtype.kind == "i" and targets.shape[1:] == (len(counts),)
            require(fits, f"targets are not positions of {len(counts)} outputs")
            within = (targets >= -1).all() and (targets < counts).all()
            require(within, "a target is not among the classes")
        return state


def _vote(fitted, labels, weights, result):
    """The class with most votes, or the shares of all classes, for every output."""
    n_queries, K, _ = labels.shape
    weights = np.ones((n_queries, K)) if weights is None else weights
    results = []
    for output, classes in enumerate(fitted._classes):
        # Each query counts in its own range of len(classes) bins.
        starts = len(classes) * np.arange(n_queries)[:, np.newaxis]
        # A point without a label has weight 0, whatever it votes for.
        bins = (np.maximum(labels[:, :, output], 0) + starts).ravel()
        votes = np.bincount(bins, weights.ravel(), minlength=n_queries * len(classes))
        votes = votes.reshape(n_queries, len(classes)) * fitted._class_weights(output)
        order = np.argsort(classes)
        votes, classes = votes[:, order], classes[order]
        if not votes.any(axis=1).all():
            raise ValueError(
                "weights and class_weight must not be zero for all neighbours of a "
                "query."
            )
        # Votes are compared before a division rounds them.
        if result == "winner":
            results.append(classes[votes.argmax(axis=1)])
        else:
            results.append(divided_by_weight(votes, votes))
    if result == "winner" and fitted.outputs_2d_:
        return [np.stack(results, axis=1)]
    return results


def _are_labels(y):
    """Which rows of `y` have labels; None if all have.

    >>> _are_labels(["a", None, "b"])
    array([ True, False,  True])
    """
    array = np.asarray(y) if hasattr(y, "dtype") else as_objects(y)
    if array.ndim not in (1, 2) or not array.size or array.dtype.kind in "biuUS":
        return None
    if array.dtype.kind == "f":
        missing = np.isnan(array)
    else:
        # NaN is not equal to itself; the names are those of pandas.
        names = ("NoneType", "NAType", "NaTType")
        missing = np.array(
            [
                type(one).__name__ in names or (isinstance(one, float) and one != one)
                for one in array.ravel().tolist()
            ]
        )
    missing = missing.reshape(len(array), -1)
    if (missing.any(axis=1) != missing.all(axis=1)).any():
        row = np.flatnonzero(missing.any(axis=1) != missing.all(axis=1))[0]
        raise ValueError(
            f"y must have all labels of a point or none, got {array[row].tolist()}."
        )
    return ~missing[:, 0] if missing.any() else None


def _in_one_type(y):
    """Labels, with objects that are not strings converted to numbers.

    >>> _in_one_type(np.array([3, 1], dtype=object)).dtype.kind
    'i'
    """
    array = np.asarray(y) if hasattr(y, "dtype") else None
    if array is None or array.dtype.kind != "O":
        return y
    are_names = [isinstance(one, str | bytes) for one in array.ravel().tolist()]
    if all(are_names) or not array.size:
        return array
    if any(are_names):
        raise ValueError("y must have labels of one type, got numbers and strings.")
    return np.array(array.tolist())


def with_new_classes(classes, labels):
    """Classes, followed by the labels that are not among them."""
    new = np.unique(labels)
    if (new.dtype.kind in "OUS") != (classes.dtype.kind in "OUS"):
        raise ValueError(
            f"y must have labels as the classes {listed(classes)}, got "
            f"{new[:1].tolist()[0]!r}."
        )
    new = new[~np.isin(new, classes)]
    return np.concatenate([classes, new]) if len(new) else classes


def class_lists(classes, n_outputs):
    """Sorted classes of every output, from one array or from a list of them."""
    lists = [classes] if n_outputs == 1 else classes
    try:
        fits = len(lists) == n_outputs and all(np.ndim(known) == 1 for known in lists)
    except (TypeError, ValueError):  # without a length, or ragged
        fits = False
    if not fits:
        expected = "an array" if n_outputs == 1 else f"a list of {n_outputs} arrays"
        raise ValueError(f"classes must be {expected}, got {classes!r}.")
    return [np.unique(np.asarray(known)) for known in lists]


def check_repeated(classes, held):
    """Refuse classes, unless None, that are not those of each output."""
    if classes is None:
        return
    for known, given in zip(held, class_lists(classes, len(held)), strict=True):
        if not np.array_equal(np.sort(known), given):
            raise ValueError(
                f"classes must be those of earlier calls, {listed(known)}, got "
                f"{listed(given)}."
            )


def codes_of(labels, classes):
    """Position of every label among the classes; an unknown label is an error."""
    place = {label: code for code, label in enumerate(classes.tolist())}
    codes = np.array([place.get(label, -1) for label in labels.tolist()], np.intp)
    if (codes < 0).any():
        unseen = labels[[np.argmin(codes)]].tolist()[0]
        raise ValueError(
            f"y contains {unseen!r}, which is not among the classes {listed(classes)}."
        )
    return codes


def listed(classes):
    """Classes for a message; only the first ten if there are more.

    >>> listed(np.arange(12))
    '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...] (12 in all)'
    """
    names = ", ".join(map(repr, classes[:_MOST_LISTED].tolist()))
    if len(classes) <= _MOST_LISTED:
        return f"[{names}]"
    return f"[{names}, ...] ({len(classes)} in all)"
