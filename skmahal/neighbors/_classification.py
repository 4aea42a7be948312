"""Classification by a vote of the neighbours."""

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from skmahal._compat import fit_context
from skmahal._core.saved import require

from ._supervised import SupervisedNeighborsBase
from ._voting import class_shares, class_votes

_MOST_LISTED = 10


class SketchedMahalanobisClassifier(ClassifierMixin, SupervisedNeighborsBase):
    """Classify by the neighbours under a Mahalanobis metric that keeps changing.

    The counterpart of :class:`!sklearn.neighbors.KNeighborsClassifier` over the
    index of :class:`SketchedMahalanobisNeighbors`: neighbours are the exact ones with
    probability 1 - `delta`, and then predictions are those of exact kNN.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours that vote.
    weights : {"uniform", "distance"}, callable or None, default="uniform"
        Equal votes, votes by inverse distance, or a function from an array of distances
        to one of weights. None is "uniform".
    metric_learner : None, array-like of shape (k, n_features), or estimator
        The metric, as in :class:`SketchedMahalanobisNeighbors`. An estimator is cloned
        and fitted with the data given to `fit`.
    m : int or "auto", default="auto"
        Rows of a sketch.
    L : int, default=10
        Number of sketches.
    R : int or "auto", default="auto"
        Sketches that serve a query.
    eps : float, default=0.2
        Relative error of an estimated distance.
    delta : float, default=0.01
        Probability that the neighbours of a query are not the exact ones.
    lead : int or "auto", default="auto"
        Leading directions that are kept exactly and not sketched.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}, default="gaussian"
        Distribution of the sketches.
    n_candidates : int or "certified", default="certified"
        "certified" finds exact neighbours, an integer is a budget of exact distances.
    random_state : int, RandomState instance or None, default=None
        Determines the sketches; None takes them from the operating system.
    n_jobs : int or None, default=None
        Threads over the queries of a call.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,), or a list of them for many outputs
        The classes.
    outputs_2d_ : bool
        Whether there are many outputs.
    components_ : ndarray of shape (k, n_features)
        The metric's U as of now.
    m_, L_, R_, lead_, engine_, metric_learner_, n_samples_fit_
        As in :class:`SketchedMahalanobisNeighbors`.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of features seen in `fit`, where all of them are strings.

    See Also
    --------
    SketchedMahalanobisRegressor : The same for regression.

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

    @fit_context(prefer_skip_nested_validation=False)
    def partial_fit(self, X, y, classes=None):
        """Add points with their labels. O(k(d + lead + Lm)) each.

        The first call is `fit`. Later ones do not learn the metric again, unless
        `metric_learner` learns online (:mod:`skmahal.online`): it then learns from the
        new points too, and the index follows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Points to add.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their labels.
        classes : array-like of shape (n_classes,), or a list of them, default=None
            All classes there will be, for the first call; None is those in `y`. Later
            calls may repeat it.

        Returns
        -------
        self : SketchedMahalanobisClassifier
            The classifier with the points.
        """
        if not self.__sklearn_is_fitted__():
            return self._fit_labelled(X, y, classes=classes)
        if classes is not None:
            self._check_same_classes(classes)
        return self._append_labelled(X, y)

    def predict(self, X):
        """The class with most votes. O(kd + n(m + lead) + n_classes) a query.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), or None
            Queries. None classifies every point of the index by the others.

        Returns
        -------
        y : ndarray of shape (n_queries,) or (n_queries, n_outputs)
            Classes. Ties go to the first.
        """

        def decide(labels, weights):
            counted = self._counted(labels, weights)
            winners = [classes[votes.argmax(axis=1)] for classes, votes in counted]
            return [np.stack(winners, axis=1) if self.outputs_2d_ else winners[0]]

        self._check_fitted()
        return self._decided(X, decide, self._votes_at_work())[0]

    def predict_proba(self, X):
        """Share of each class in the votes. O(kd + n(m + lead) + n_classes) a query.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), or None
            Queries, as in :meth:`predict`.

        Returns
        -------
        p : ndarray of shape (n_queries, n_classes), or a list of them for many outputs
            Shares, in the order of `classes_`.
        """

        def decide(labels, weights):
            counted = self._counted(labels, weights)
            return [class_shares(votes) for _, votes in counted]

        self._check_fitted()
        shares = self._decided(X, decide, self._votes_at_work())
        return shares if self.outputs_2d_ else shares[0]

    @property
    def classes_(self):
        """The classes, or a list of the classes of every output."""
        return self._classes if self.outputs_2d_ else self._classes[0]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _counted(self, labels, weights):
        """The classes of every output and the votes for them, one after the other."""
        for output, classes in enumerate(self._classes):
            yield classes, class_votes(labels[:, :, output], weights, len(classes))

    def _votes_at_work(self):
        """Numbers a query needs: votes of this batch, and what the last gave."""
        return 2 * sum(map(len, self._classes))

    def _outputs(self, y):
        """Labels as they were meant: one column is one output, with a warning."""
        return column_or_1d(y, warn=True) if y.shape[1:] == (1,) else y

    def _learn_targets(self, columns, classes=None):
        check_classification_targets(columns)
        if classes is None:
            self._classes = [np.unique(column) for column in columns.T]
        else:
            self._classes = _class_lists(classes, columns.shape[1])
        return self._known_targets(columns)

    def _known_targets(self, columns):
        """Positions of labels among the classes, (n_samples, n_outputs)."""
        known = zip(columns.T, self._classes, strict=True)
        return np.stack([_codes(*pair) for pair in known], axis=1)

    def _check_restored(self, state, engine):
        super()._check_restored(state, engine)
        counts, targets = [len(known) for known in state["_classes"]], engine.targets
        fits = targets.dtype.kind == "i" and targets.shape[1:] == (len(counts),)
        require(fits, f"targets are not positions of {len(counts)} outputs")
        within = (targets >= 0).all() and (targets < counts).all()
        require(within, "a target is not among the classes")
        for known in state["_classes"]:
            require(np.array_equal(np.unique(known), known), "classes are not in order")

    def _check_same_classes(self, classes):
        again = _class_lists(classes, len(self._classes))
        for known, given in zip(self._classes, again, strict=True):
            if not np.array_equal(known, given):
                raise ValueError(
                    f"classes must be those of the first call, {_listed(known)}, got "
                    f"{_listed(given)}."
                )


def _class_lists(classes, n_outputs):
    """Sorted classes of every output, from one array or from a list of them."""
    lists = [classes] if n_outputs == 1 else classes
    countable = hasattr(lists, "__len__") and len(lists) == n_outputs
    if not countable or not all(map(_is_flat, lists)):
        expected = "an array" if n_outputs == 1 else f"a list of {n_outputs} arrays"
        raise ValueError(f"classes must be {expected}, got {classes!r}.")
    return [np.unique(np.asarray(known)) for known in lists]


def _is_flat(known):
    """Whether it has one dimension; what is ragged has none that NumPy knows."""
    try:
        return np.ndim(known) == 1
    except ValueError:
        return False


def _codes(labels, classes):
    """Position of every label among the classes; one that is not there is an error.

    Examples
    --------
    >>> _codes(np.array(["b", "a", "b"]), np.array(["a", "b"]))
    array([1, 0, 1])
    """
    sortable = labels.dtype.kind == classes.dtype.kind in "biufUS"
    codes = (_places if sortable else _looked_up)(labels, classes)
    if (codes < 0).any():
        unseen = labels[[np.argmin(codes)]].tolist()[0]
        raise ValueError(
            f"y contains {unseen!r}, which is not among the classes {_listed(classes)}."
        )
    return codes


def _places(labels, classes):
    """Positions among sorted classes of the same kind; -1 for none."""
    places = np.searchsorted(classes, labels)
    places[places == len(classes)] = 0
    return np.where(classes[places] == labels, places, -1)


def _looked_up(labels, classes):
    """Positions among classes of any type; -1 for none."""
    place = {label: code for code, label in enumerate(classes.tolist())}
    return np.array([place.get(label, -1) for label in labels.tolist()], dtype=np.intp)


def _listed(classes):
    """Classes for a message, of many the first ten.

    Examples
    --------
    >>> _listed(np.array(["a", "b"]))
    "['a', 'b']"
    >>> _listed(np.arange(12))
    '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...] (12 in all)'
    """
    names = ", ".join(map(repr, classes[:_MOST_LISTED].tolist()))
    if len(classes) <= _MOST_LISTED:
        return f"[{names}]"
    return f"[{names}, ...] ({len(classes)} in all)"
