"""An index whose points carry nothing but their position."""

from skmahal._atomic import as_before_on_error
from skmahal._compat import fit_context
from skmahal._core.checks import as_indices

from ._base import SketchedNeighborsBase, check_one_row_each


class UnlabelledNeighborsBase(SketchedNeighborsBase):
    """Points that are added and replaced by themselves."""

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y=None):
        """Learn the metric and index the points. O(nkd).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Points. A copy is kept.
        y : array-like of shape (n_samples,), default=None
            Targets, for a `metric_learner` that needs them.

        Returns
        -------
        self : object
            The fitted index.
        """
        return self._fit_points(X, y)

    @fit_context(prefer_skip_nested_validation=False)
    def partial_fit(self, X, y=None):
        """Add points at the end. O(k(d + lead + Lm)) each; the first call is `fit`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Points to add.
        y : array-like of shape (n_samples,), default=None
            Targets, for a `metric_learner` that needs them in the first call, or that
            learns online and goes on; any other is not fitted again.

        Returns
        -------
        self : object
            The index with the points.
        """
        if not self.__sklearn_is_fitted__():
            return self._fit_points(X, y)
        self._append(self._points(X), y)
        return self

    def update_points(self, indices, X):
        """Replace points. O(k(d + lead + Lm) + k log n) each.

        Parameters
        ----------
        indices : int or array-like of shape (n_points,)
            Positions, each at most once.
        X : {array-like, sparse matrix} of shape (n_points, n_features)
            The new points.

        Returns
        -------
        self : object
            The index with the new points.
        """
        self._check_fitted()
        X = self._in_type(self._points(X))
        with self._engine.changing():
            indices = as_indices("indices", indices, self.n_samples_fit_, unique=True)
            check_one_row_each(X, indices)
            self._engine.update_x(X, indices)
        return self

    def _fit_points(self, X, y):
        with as_before_on_error(self):
            self._build(self._points(X, reset=True), y)
        return self
