"""The base of classifier and regressor: points with targets, weighted neighbours."""

from copy import copy

import numpy as np
from scipy import sparse

from skmahal._compat import StrOptions, fit_context
from skmahal._core.checks import as_count, as_matrix
from skmahal._core.threads import slices
from skmahal._estimator import validated

from ._base import ROWS, KNeighborsQueries, SketchedNeighborsBase, memory

# Numbers at work for each neighbour of a query, beside its targets.
_PER_NEIGHBOUR = 8


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
        n_candidates="exact",
        recall=None,
        adaptive=False,
        random_state=None,
        n_jobs=None,
    ):
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.metric_learner = metric_learner
        self.m, self.L, self.R = m, L, R
        self.eps, self.delta = eps, delta
        self.lead = lead
        self.sketch = sketch
        self.n_candidates = n_candidates
        self.recall = recall
        self.adaptive = adaptive
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
        """
        fitted = copy(self)
        fitted._build(*fitted._validated(X, y, reset=True))
        self.__dict__ = vars(fitted)
        return self

    def update_points(self, indices, X, y):
        """Replace points and their targets. O(k(d + lead + Lm) + d log n) each.

        Parameters
        ----------
        indices : int or array-like of shape (n_points,)
            Positions, each at most once.
        X, y : as in :meth:`fit`
            The new points, and their targets.

        Returns
        -------
        self : object
        """
        self._fitted()
        X, _, targets = self._validated(X, y)
        self._replace(indices, X, targets)
        return self

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags

    def _validated(self, X, y, reset=False, **options):
        """Points, targets for a metric learner, and targets as they are stored."""
        if sparse.issparse(y):
            raise TypeError("y must be dense, got a sparse matrix.")
        if self._numeric and y is not None:
            try:
                given = np.asarray(y)
                y = given.astype(np.float64) if given.dtype.kind in "OUS" else y
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"y must be an array of numbers: {error}") from error
        X, y = validated(self, X, y, reset=reset, multi_output=True, **ROWS)
        count = y.size // len(y)
        if not reset and count != (expected := self._maintenance.targets.shape[1]):
            raise ValueError(f"y has {count} outputs, expected {expected}.")
        if self._numeric:
            targets = y.reshape(len(y), -1).astype(np.float64)
        else:
            y, targets = self._encoded(y, reset, **options)
        if reset:
            self.outputs_2d_ = y.ndim == 2
        return X, y[:, 0] if y.shape[1:] == (1,) else y, targets

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
            rows_of, targets = index.X if Q is None else Q, index.targets
            count, K = rows_of.shape[0], as_count("n_neighbors", fitted.n_neighbors)
            n_classes = sum(map(len, getattr(fitted, "_classes", ())))
            width = 2 * n_classes + (K + 2) * (targets.shape[1] + _PER_NEIGHBOUR)
            step = max(1, int(memory() // (8 * width)))
            for rows in slices(count, step):
                first = rows.start if Q is None else None
                near, at = fitted._nearest(held, rows_of[rows], first=first)
                weights = neighbour_weights(near, fitted.weights)
                part = decide(fitted, targets[at], weights, *args)
                if out is None:
                    out = [np.empty((count, *a.shape[1:]), a.dtype) for a in part]
                for whole, block in zip(out, part, strict=True):
                    whole[rows] = block
        return out


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
            raise ValueError("weights must not be zero for all neighbours of a query.")
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
    """Values over the sum of the weights of each query, which must not be zero."""
    total = weights.sum(axis=1, keepdims=True)
    if not total.all():
        raise ValueError("weights must not sum to zero over the neighbours of a query.")
    return values / total
