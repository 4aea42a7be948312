"""The graph of neighbours as a transformer."""

from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from skmahal._compat import StrOptions

from ._queries import KNeighborsQueries
from ._unlabelled import UnlabelledNeighborsBase


class SketchedMahalanobisNeighborsTransformer(
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    KNeighborsQueries,
    UnlabelledNeighborsBase,
):
    """Turn points into their sparse graph of nearest neighbours.

    The counterpart of :class:`!sklearn.neighbors.KNeighborsTransformer` over the index
    of :class:`SketchedMahalanobisNeighbors`, for estimators that take a precomputed
    graph (``metric="precomputed"``): one index serves them while the metric changes.

    Parameters
    ----------
    mode : {"connectivity", "distance"}, default="distance"
        Ones, or distances.
    n_neighbors : int, default=5
        Number of neighbours of a point. In the mode "distance" one more is found: a
        point of the index is its own first neighbour, which many estimators do not
        count.
    metric_learner : None, array-like of shape (k, n_features), or estimator
        The metric, as in :class:`SketchedMahalanobisNeighbors`.
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
    components_ : ndarray of shape (k, n_features)
        The metric's U as of now.
    m_, L_, R_, lead_, engine_, metric_learner_, n_samples_fit_
        As in :class:`SketchedMahalanobisNeighbors`.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of features seen in `fit`, where all of them are strings.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.cluster import DBSCAN
    >>> from sklearn.pipeline import make_pipeline
    >>> from skmahal import SketchedMahalanobisNeighborsTransformer
    >>> X = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
    >>> graph = SketchedMahalanobisNeighborsTransformer(n_neighbors=2)
    >>> dbscan = DBSCAN(eps=0.5, min_samples=2, metric="precomputed")
    >>> make_pipeline(graph, dbscan).fit_predict(X)
    array([0, 0, 0, 1, 1, 1])
    """

    _parameter_constraints = {
        **UnlabelledNeighborsBase._parameter_constraints,
        "mode": [StrOptions({"connectivity", "distance"})],
    }

    def __init__(
        self,
        *,
        mode="distance",
        n_neighbors=5,
        metric_learner=None,
        m="auto",
        L=10,
        R="auto",
        eps=0.2,
        delta=0.01,
        lead="auto",
        sketch="gaussian",
        n_candidates="certified",
        random_state=None,
        n_jobs=None,
    ):
        self.mode = mode
        self.n_neighbors = n_neighbors
        self.metric_learner = metric_learner
        self.m = m
        self.L = L
        self.R = R
        self.eps = eps
        self.delta = delta
        self.lead = lead
        self.sketch = sketch
        self.n_candidates = n_candidates
        self.random_state = random_state
        self.n_jobs = n_jobs

    def transform(self, X):
        """Find the graph from queries to points. O(kd + n(m + lead)) a query.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features)
            Queries.

        Returns
        -------
        Xt : sparse matrix of shape (n_queries, n_samples_fit), CSR
            The entries of a row are in order of distance.
        """
        self._check_fitted()
        K = self._checked_n_neighbors(None, most=None)
        if self.mode == "distance":
            self._check_one_more(K)
            K += 1
        return self.kneighbors_graph(X, n_neighbors=K, mode=self.mode)

    def _check_one_more(self, n_neighbors):
        if n_neighbors + 1 > self.n_samples_fit_:
            raise ValueError(
                f"n_neighbors={n_neighbors} and the extra neighbour of the mode "
                f"'distance' are more than the {self.n_samples_fit_} points."
            )

    @property
    def _n_features_out(self):
        return self.n_samples_fit_
