"""An index whose points carry targets."""

from scipy import sparse

from skmahal._atomic import as_before_on_error
from skmahal._compat import StrOptions, fit_context
from skmahal._core.checks import as_indices
from skmahal._validation import validated

from ._base import ROWS, SketchedNeighborsBase, check_one_row_each
from ._queries import KNeighborsQueries
from ._voting import neighbour_weights

# Numbers at work for each neighbour of a query, to weigh and to count it.
_WEIGHED = 6


class SupervisedNeighborsBase(KNeighborsQueries, SketchedNeighborsBase):
    """Points and targets that are added, replaced and removed together.

    Subclasses say how targets are stored (`_learn_targets` at the first call,
    `_known_targets` after it; both take and give a column for each output) and how
    those of neighbours make a prediction.
    """

    _parameter_constraints = {
        **SketchedNeighborsBase._parameter_constraints,
        "weights": [StrOptions({"uniform", "distance"}), callable, None],
    }

    def __init__(
        self,
        n_neighbors=5,
        *,
        weights="uniform",
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
        self.n_neighbors = n_neighbors
        self.weights = weights
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

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y):
        """Learn the metric and index the points with their targets. O(nkd).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Points. A copy is kept.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        return self._fit_labelled(X, y)

    def update_points(self, indices, X, y):
        """Replace points and their targets. O(k(d + lead + Lm) + k log n) each.

        Parameters
        ----------
        indices : int or array-like of shape (n_points,)
            Positions, each at most once.
        X : {array-like, sparse matrix} of shape (n_points, n_features)
            The new points.
        y : array-like of shape (n_points,) or (n_points, n_outputs)
            Their targets.

        Returns
        -------
        self : object
            The estimator with the new points.
        """
        self._check_fitted()
        X, columns = self._more_labelled(X, y)
        targets = self._known_targets(columns)
        with self._engine.changing():
            indices = as_indices("indices", indices, self.n_samples_fit_, unique=True)
            check_one_row_each(X, indices)
            self._engine.update_x(self._in_type(X), indices, targets)
        return self

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags

    def _labelled(self, X, y, reset=False):
        if sparse.issparse(y):
            raise TypeError("y must be dense, got a sparse matrix.")
        return validated(self, X, y, reset=reset, multi_output=True, **ROWS)

    def _outputs(self, y):
        """Targets in the form that predictions will have."""
        return y

    def _fit_labelled(self, X, y, **known):
        with as_before_on_error(self):
            X, y = self._labelled(X, y, reset=True)
            y = self._outputs(y)
            self.outputs_2d_ = y.ndim == 2
            columns = y.reshape(len(y), -1)
            targets = self._learn_targets(columns, **known)
            self._build(X, _squeezed(columns), targets)
        return self

    def _append_labelled(self, X, y):
        X, columns = self._more_labelled(X, y)
        self._append(X, _squeezed(columns), self._known_targets(columns))
        return self

    def _more_labelled(self, X, y):
        """Points for a fitted index, and their targets, a column for each output."""
        X, y = self._labelled(X, y)
        columns, n_outputs = y.reshape(len(y), -1), self._engine.targets.shape[1]
        if columns.shape[1] != n_outputs:
            raise ValueError(f"y has {columns.shape[1]} outputs, expected {n_outputs}.")
        return X, columns

    def _decided(self, X, decide, width):
        """``decide(targets, weights)``, some arrays, for all queries in batches.

        Targets of the neighbours are (queries, K, outputs). `width` is how many numbers
        a query needs beside them.
        """

        def answer(distances, indices):
            weights = neighbour_weights(distances, self.weights)
            return decide(self._engine.targets[indices], weights)

        K = self._checked_n_neighbors(None, self.n_samples_fit_)
        width += K * (self._engine.targets.shape[1] + _WEIGHED)
        return self._searched(X, None, answer, width)


def _squeezed(columns):
    """Targets as learners take them: one output has one dimension."""
    return columns[:, 0] if columns.shape[1] == 1 else columns
