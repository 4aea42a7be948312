"""Parameters that are wrong at the fit, or at a query after it."""

import numpy as np
from scipy import sparse
from sklearn.decomposition import PCA

from .values import D, Empty, K, N, WithComponents

WHOLE = [0, -1, 2.5, "many", np.nan, [1], 1j, np.array([1, 2])]
SHARE = [0, 1, -0.1, 1.1, np.nan, np.inf, "auto", None, [0.1], 1j]
NO_METRIC = [
    "euclidean",
    7,
    {},
    Empty(),
    np.full((K, D), np.nan),
    np.full((K, D), 1j),
    np.ones((K, D + 1)),
    np.ones(D),
    np.empty((0, D)),
    np.full((K, D), "x"),
    [[1.0] * D, [1.0]],
    sparse.csr_matrix(np.ones((K, D))),
    WithComponents(np.ones((K, D))),  # which cannot be cloned
    PCA,
    {"B": np.eye(D)},
    {"U": np.ones((K, D)), "A": np.eye(D)},
    {"U": np.ones((K, D + 1))},
    {"A": -np.eye(D)},
]
AT_FIT = {
    "n_neighbors": [*WHOLE, None],
    "m": [*WHOLE, None],
    "L": [*WHOLE, None, "auto"],
    "R": [*WHOLE, None, 11],
    "eps": SHARE,
    "delta": SHARE,
    "lead": [-1, 0.5, "some", None, np.nan, [1]],
    "sketch": ["fourier", None, 3, ["gaussian"]],
    "n_candidates": [*WHOLE, None, "all"],
    "adaptive": [None, "yes", 2, [True]],
    "max_points": WHOLE,
    "metric": ["cosine", None, 3, ["euclidean"], np.sum],
    "p": [1, 3, 2.5, None, "two", np.nan],
    "metric_params": [3, "V", {"V": np.eye(D)}, [1]],
    "random_state": ["a", -1, 1.5, [1], 2**40],
    "n_jobs": [0, 1.5, "all", [1], np.nan],
    "metric_learner": NO_METRIC,
}
AT_FIT["metric_learner"] = [*NO_METRIC, np.full((K, D), 1e200)]
AT_FIT_OF_INDEX = {**AT_FIT, "radius": [-1.0, np.nan, "wide", None, [1.0], 1j]}
AT_FIT_OF_LABELLED = {**AT_FIT, "weights": ["near", 3, ["uniform"], np.ones(3)]}
AT_FIT_OF_CLASSIFIER = {**AT_FIT_OF_LABELLED, "class_weight": ["even", 3, np.ones(3)]}
AT_FIT_OF_RADIUS = {
    name: AT_FIT[name]
    for name in ("max_points", "metric", "p", "metric_params", "n_jobs")
}
AT_FIT_OF_RADIUS |= {
    "radius": AT_FIT_OF_INDEX["radius"],
    "mode": ["both", None, 3],
    "metric_learner": AT_FIT["metric_learner"],
}
AT_FIT_OF_TRANSFORMER = {**AT_FIT, "mode": ["both", None, 3]}
AT_FIT_OF_OUTLIERS = {
    "n_neighbors": AT_FIT["n_neighbors"],
    "method": ["both", None, 3, ["lof"]],
    "contamination": [0, 0.6, -0.1, np.nan, "some", None, [0.1], 1j],
    "novelty": [None, "yes", 2, [True]],
    "metric_learner": AT_FIT["metric_learner"],
    "n_jobs": AT_FIT["n_jobs"],
}
AT_FIT_OF_SKETCH = {
    "m": [*WHOLE, None],
    "eps": [0, -0.1, np.nan, "auto", None, [0.1], 1j],
    "delta": SHARE,
    "metric_learner": NO_METRIC,
    "sketch": AT_FIT["sketch"],
    "random_state": AT_FIT["random_state"],
}
AT_FIT_OF_CENTROID = {
    "metric_learner": AT_FIT["metric_learner"],
    "shrinkage": [-0.1, 1.1, np.nan, "ledoit", None, [0.1], 1j],
    "priors": ["uniform", 0.5, [0.5, 0.5], [0.5] * 3, [1.5, -1, 0.5], [0, 0.5, 0.5]],
}
SIZES = [0, -1, 1.5, "a", None, np.nan]
NO_START = ["covariance", 3.0, None, np.eye(D + 1), np.full((D, D), np.nan), np.ones(D)]
AT_FIT_OF_LEARNER = {
    "init": NO_START,
    "reservoir_size": SIZES,
    "n_pairs": SIZES,
    "preprocessor": [3, "points", True, np.nan],
    "random_state": AT_FIT["random_state"],
}
AT_FIT_OF_TARGETS = {
    **AT_FIT_OF_LEARNER,
    "similar_target": [0.0, -1.0, "near", np.nan, [1.0]],
    "dissimilar_target": [0.0, -1.0, "far", np.nan, [1.0]],
}

# Parameters that are set after the fit, before a query.
AT_NEIGHBOURS = {
    "n_neighbors": [0, -1, 2.5, N + 1, "many", None, np.nan, [1], True],
    "n_jobs": [0, 1.5, "all", [1], np.nan],
}


def of_weights(wrong):
    return lambda distances: wrong(distances)


# Predictions use all points if there are fewer than neighbours.
AT_VOTES = {
    **AT_NEIGHBOURS,
    "n_neighbors": [0, -1, 2.5, "many", None, np.nan, [1], True],
    "weights": [
        "near",
        3,
        ["uniform"],
        of_weights(lambda distances: distances[:, :1]),
        of_weights(lambda distances: np.full(distances.shape, np.nan)),
        of_weights(lambda distances: np.zeros(distances.shape)),
        of_weights(lambda distances: None),
        of_weights(lambda distances: "text"),
        of_weights(lambda distances: distances + 1j),
    ],
}
AT_BUDGET = {**AT_NEIGHBOURS, "n_candidates": [0, -1, 1, 2.5, "all", None, [5], True]}
AT_SCORES = {"n_jobs": AT_NEIGHBOURS["n_jobs"]}
AT_RADIUS = {"radius": [-1.0, np.nan, "wide", None, [1.0], 1j]}
AT_GRAPH = {**AT_NEIGHBOURS, "mode": ["both", None, 3]}
