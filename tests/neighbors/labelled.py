"""Labelled points with many ties, and what scikit-learn's exact kNN makes of them."""

import numpy as np
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.utils import get_tags

from .cases import EXACT, LED, SKETCHED

N = 500

# Rows of a metric for which each engine is chosen.
ENGINES = {"exact": (2, EXACT), "sketched": (12, SKETCHED), "sketched-lead": (12, LED)}


def coarse_digits():
    """Points, labels and queries of small whole numbers, so that distances tie."""
    X, y = load_digits(return_X_y=True)
    return X[:N] // 4, y[:N], X[N : N + 200] // 4


def whole_metric(k, d=64):
    """U of small whole numbers: distances under it are exact and often equal."""
    return np.random.default_rng(k).integers(-1, 2, size=(k, d)).astype(float)


def squares_between(Q, X, U):
    """Squared distances, without rounding for whole numbers."""
    gaps = (Q @ U.T)[:, np.newaxis] - X @ U.T
    return (gaps**2).sum(axis=2)


def ranks_between(Q, X, U):
    """Whole numbers in the order of distance, then of position; none are equal."""
    return squares_between(Q, X, U) * len(X) + np.arange(len(X))


def by_rank(estimator, X, y, U, weights="uniform"):
    """scikit-learn's `estimator` fitted to take ranks in place of distances."""
    if weights != "uniform":
        of_distances = inverse if weights == "distance" else weights

        def weights(ranks):
            return of_distances(np.sqrt(ranks // len(X)))

    estimator.set_params(metric="precomputed", weights=weights)
    return estimator.fit(ranks_between(X, X, U), y)


def inverse(distances):
    """Inverse distances; the infinite ones, as ones, drive out the others."""
    with np.errstate(divide="ignore"):
        weights = 1 / distances
    infinite = np.isinf(weights)
    rows = infinite.any(axis=1)
    weights[rows] = infinite[rows]
    return weights


def ties_at(K, Q, X, U):
    """Queries for which more than one point could be the K-th neighbour."""
    best = np.sort(squares_between(Q, X, U), axis=1)
    return best[:, K - 1] == best[:, K]


def bell(distances):
    """Weights that are a function."""
    return np.exp(-distances / 10)


def assert_same_tags(estimator, other):
    """What scikit-learn is told of the data that an estimator takes."""
    one, two = get_tags(estimator), get_tags(other)
    # scikit-learn 1.6 does not say that its neighbours take sparse data.
    two.input_tags.sparse = True
    for name in ("estimator_type", "requires_fit", "non_deterministic"):
        assert getattr(one, name) == getattr(two, name)
    for name in ("classifier_tags", "regressor_tags", "target_tags", "input_tags"):
        assert getattr(one, name) == getattr(two, name)


def stored(X, storage):
    return sparse.csr_matrix(X) if storage == "csr" else X
