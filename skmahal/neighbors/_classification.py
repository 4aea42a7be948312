"""Classification by a vote of the neighbours."""

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from skmahal._compat import fit_context

from ._supervised import SupervisedNeighborsBase
from ._voting import class_shares, class_votes


class SketchedMahalanobisClassifier(ClassifierMixin, SupervisedNeighborsBase):
    """Classify by the neighbours under a Mahalanobis metric that keeps changing.

    The counterpart of :class:`!sklearn.neighbors.KNeighborsClassifier` over the
    index of :class:`SketchedMahalanobisNeighbors`: neighbours are the exact ones with
    probability 1 - `delta`, and then predictions are those of exact kNN.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours that vote.
    weights : {"uniform", "distance"} or callable, default="uniform"
        Equal votes, votes by inverse distance, or a function from an array of distances
        to one of weights.
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

        The first call is `fit`; the metric is not learned again by later ones.

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
        """The class with most votes; ties go to the first. O(a query) of `kneighbors`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), or None
            Queries. None classifies every point of the index by the others.

        Returns
        -------
        y : ndarray of shape (n_queries,) or (n_queries, n_outputs)
            Classes.
        """
        parts = self._counted(X, lambda votes: votes.argmax(axis=1))
        winners = [
            classes[np.concatenate(codes)]
            for classes, codes in zip(self._classes, parts, strict=True)
        ]
        return np.stack(winners, axis=1) if self.outputs_2d_ else winners[0]

    def predict_proba(self, X):
        """Share of each class in the votes. O(a query) of `kneighbors`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), or None
            Queries, as in :meth:`predict`.

        Returns
        -------
        p : ndarray of shape (n_queries, n_classes), or a list of them for many outputs
            Shares, in the order of `classes_`.
        """
        shares = [np.concatenate(part) for part in self._counted(X, class_shares)]
        return shares if self.outputs_2d_ else shares[0]

    @property
    def classes_(self):
        """The classes, or a list of the classes of every output."""
        return self._classes if self.outputs_2d_ else self._classes[0]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _counted(self, X, reduce):
        """``reduce(votes)`` for batches of queries, by output."""

        def decide(labels, weights):
            return [
                reduce(class_votes(labels[:, :, output], weights, len(classes)))
                for output, classes in enumerate(self._classes)
            ]

        most = max(map(len, self._classes)) if self.__sklearn_is_fitted__() else 0
        return zip(*self._decided(X, decide, width=3 * most), strict=True)

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

    def _check_same_classes(self, classes):
        again = _class_lists(classes, len(self._classes))
        for known, given in zip(self._classes, again, strict=True):
            if not np.array_equal(known, given):
                raise ValueError(
                    f"classes must be those of the first call, {known.tolist()}, got "
                    f"{given.tolist()}."
                )


def _class_lists(classes, n_outputs):
    """Sorted classes of every output, from one array or from a list of them."""
    lists = [classes] if n_outputs == 1 else classes
    if len(lists) != n_outputs or any(np.ndim(known) != 1 for known in lists):
        expected = "an array" if n_outputs == 1 else f"a list of {n_outputs} arrays"
        raise ValueError(f"classes must be {expected}, got {classes!r}.")
    return [np.unique(np.asarray(known)) for known in lists]


def _codes(labels, classes):
    """Position of every label among the classes; one that is not there is an error.

    Examples
    --------
    >>> _codes(np.array(["b", "a", "b"]), np.array(["a", "b"]))
    array([1, 0, 1])
    """
    place = {label: code for code, label in enumerate(classes.tolist())}
    codes = np.array([place.get(label, -1) for label in labels.tolist()], dtype=np.intp)
    if (codes < 0).any():
        unseen = labels.tolist()[np.argmin(codes)]
        raise ValueError(
            f"y contains {unseen!r}, which is not among the classes {classes.tolist()}."
        )
    return codes
