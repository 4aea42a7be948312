"""Classification by a vote of the neighbours."""

from copy import copy

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from skmahal._compat import fit_context
from skmahal._core.saved import require

from ._supervised import SupervisedNeighborsBase, divided_by_weight

_MOST_LISTED = 10


class SketchedMahalanobisClassifier(ClassifierMixin, SupervisedNeighborsBase):
    """Classify by the neighbours under a Mahalanobis metric that keeps changing.

    The counterpart of :class:`!sklearn.neighbors.KNeighborsClassifier` on the index of
    :class:`SketchedMahalanobisNeighbors`. By default neighbours are exact.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours that vote.
    weights : {"uniform", "distance"}, callable or None, default="uniform"
        Equal votes, votes by inverse distance, or a function from an array of distances
        to one of weights. None is "uniform".
    metric_learner, m, L, R, eps, delta : as in SketchedMahalanobisNeighbors
        The metric, and sketches, which serve only if `n_candidates` is not "exact".
    lead, sketch, n_candidates, recall, adaptive, random_state, n_jobs : as there
        Sketches, the way to search, by default exact, seed and number of threads.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,), or a list of them for several outputs
        The classes.
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

    @fit_context(prefer_skip_nested_validation=False)
    def partial_fit(self, X, y, classes=None):
        """Add points with labels. O(k(d + lead + Lm)) each; the first call is `fit`.

        Parameters
        ----------
        X, y : as in :meth:`fit`
            Points to add, and their labels. A `metric_learner` that learns online
            continues to learn; no other is fitted again.
        classes : array-like of shape (n_classes,), or a list of them, default=None
            All classes there will be, for the first call; None is those in `y`. Later
            calls may repeat it.

        Returns
        -------
        self : SketchedMahalanobisClassifier
        """
        if not hasattr(self, "_maintenance"):
            fitted = copy(self)
            fitted._build(*fitted._validated(X, y, reset=True, classes=classes))
            self.__dict__ = vars(fitted)
            return self
        if classes is not None:
            again = class_lists(classes, len(self._classes))
            for known, given in zip(self._classes, again, strict=True):
                if not np.array_equal(known, given):
                    raise ValueError(
                        f"classes must be those of the first call, {listed(known)}, "
                        f"got {listed(given)}."
                    )
        self._append(*self._validated(X, y))
        return self

    def predict(self, X):
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

    def predict_proba(self, X):
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
    def classes_(self):
        """The classes, or a list of the classes of every output."""
        return self._classes if self.outputs_2d_ else self._classes[0]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _encoded(self, y, reset, classes=None):
        """Labels, and their positions among the classes, (n_samples, n_outputs)."""
        if reset and y.shape[1:] == (1,):
            # One column of labels is one output, with scikit-learn's warning.
            y = column_or_1d(y, warn=True)
        columns = y.reshape(len(y), -1)
        if reset:
            check_classification_targets(columns)
            if classes is None:
                self._classes = [np.unique(column) for column in columns.T]
            else:
                self._classes = class_lists(classes, columns.shape[1])
        pairs = zip(columns.T, self._classes, strict=True)
        return y, np.stack([codes_of(*pair) for pair in pairs], axis=1)

    def _restored(self, state):
        state = super()._restored(state)
        if "_maintenance" in state:
            targets = state["_maintenance"].targets
            counts = [len(classes) for classes in state["_classes"]]
            fits = targets.dtype.kind == "i" and targets.shape[1:] == (len(counts),)
            require(fits, f"targets are not positions of {len(counts)} outputs")
            within = (targets >= 0).all() and (targets < counts).all()
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
        bins = (labels[:, :, output] + starts).ravel()
        votes = np.bincount(bins, weights.ravel(), minlength=n_queries * len(classes))
        votes = votes.reshape(n_queries, len(classes))
        # Votes are compared before a division rounds them.
        if result == "winner":
            results.append(classes[votes.argmax(axis=1)])
        else:
            results.append(divided_by_weight(votes, votes))
    if result == "winner" and fitted.outputs_2d_:
        return [np.stack(results, axis=1)]
    return results


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


def codes_of(labels, classes):
    """Position of every label among the classes; an unknown label is an error."""
    if labels.dtype.kind == classes.dtype.kind in "biufUS":
        places = np.searchsorted(classes, labels)
        places[places == len(classes)] = 0
        codes = np.where(classes[places] == labels, places, -1)
    else:
        place = {label: code for code, label in enumerate(classes.tolist())}
        codes = np.array([place.get(label, -1) for label in labels.tolist()], np.intp)
    if (codes < 0).any():
        unseen = labels[[np.argmin(codes)]].tolist()[0]
        raise ValueError(
            f"y contains {unseen!r}, which is not among the classes {listed(classes)}."
        )
    return codes


def listed(classes):
    """Classes for a message, of many the first ten.

    >>> listed(np.arange(12))
    '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...] (12 in all)'
    """
    names = ", ".join(map(repr, classes[:_MOST_LISTED].tolist()))
    if len(classes) <= _MOST_LISTED:
        return f"[{names}]"
    return f"[{names}, ...] ({len(classes)} in all)"
