"""
Neighbours of digits under a metric that changes
================================================

Learn a metric, index the points under it, and keep the index while the metric and the
labelled points change. After each step the test digits are classified by a vote of
their neighbours, and the neighbours are compared with brute force.
"""

from time import perf_counter

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NeighborhoodComponentsAnalysis

from skmahal import SketchedMahalanobisClassifier, warm_up

N_NEIGHBORS = 5
N_LATE = 200
N_STEPS = 5


def exact_share(U, X, Q, distances):
    """Share of the queries whose neighbour distances equal those of brute force."""
    best = np.sort(cdist(Q @ U.T, X @ U.T), axis=1)[:, : distances.shape[1]]
    return np.isclose(distances, best, rtol=1e-5, atol=1e-6).all(axis=1).mean()


def stretch(U, v, factor):
    """Rank-one (W, V) after which v is `factor` times as long under the metric.

    Directions orthogonal to v under the metric keep their length.
    """
    w = U @ v
    return ((factor - 1) / (w @ w) * w)[:, None], (U.T @ w)[:, None]


def confused_pair(knn, X, y):
    """Difference of a training point and its nearest neighbour of another class.

    The point is the first one that its own neighbours classify wrongly.
    """
    i = np.flatnonzero(knn.predict(None) != y)[0]
    neighbours = knn.kneighbors(return_distance=False)[i]
    j = next(j for j in neighbours if y[j] != y[i])
    return X[i] - X[j]


def report(step, seconds, knn, X, Q, y_true):
    """Classify, print a row of the table, return the share of exact results."""
    query, correct = timed(knn.score, Q, y_true)
    exact = exact_share(knn.components_, X, Q, knn.kneighbors(Q)[0])
    print(
        f"{step:<34}{correct:>9.3f}{exact:>8.3f}"
        f"{1e3 * seconds:>11.1f}{1e3 * query:>11.1f}"
    )
    return exact


def timed(function, *args, **kwargs):
    """Seconds that a call takes, and its result."""
    start = perf_counter()
    result = function(*args, **kwargs)
    return perf_counter() - start, result


def main():
    X, y = load_digits(return_X_y=True)
    X, Q, y, y_true = train_test_split(
        X / 16, y, test_size=500, stratify=y, random_state=0
    )
    late, y_late = X[-N_LATE:], y[-N_LATE:]
    X, y = X[:-N_LATE], y[:-N_LATE]
    settings = {"n_neighbors": N_NEIGHBORS}
    exact = []

    print(f"digits: {len(X)} points, {X.shape[1]} features, {len(Q)} queries")
    learning, nca = timed(
        NeighborhoodComponentsAnalysis(32, max_iter=30, random_state=0).fit, X, y
    )
    print(f"metric learned in {learning:.1f} s\n")
    # Loops are compiled before anything is timed.
    warm_up((X.dtype,))
    print(f"{'step':<34}{'accuracy':>9}{'exact':>8}{'step ms':>11}{'query ms':>11}")

    knn = SketchedMahalanobisClassifier(**settings)
    seconds, _ = timed(knn.fit, X, y)
    exact.append(report("fit, Euclidean", seconds, knn, X, Q, y_true))

    knn = SketchedMahalanobisClassifier(metric_learner=nca.components_, **settings)
    seconds, _ = timed(knn.fit, X, y)
    exact.append(report("fit, learned metric", seconds, knn, X, Q, y_true))

    seconds = 0.0
    for _ in range(N_STEPS):
        low_rank = stretch(knn.components_, confused_pair(knn, X, y), 1.1)
        seconds += timed(knn.update_metric, low_rank=low_rank)[0]
    step = f"{N_STEPS} rank-one metric updates"
    exact.append(report(step, seconds, knn, X, Q, y_true))

    rows = [0, 1]
    seconds, _ = timed(knn.update_metric, nca.components_[rows], rows=rows)
    exact.append(report("2 rows of U set", seconds, knn, X, Q, y_true))

    seconds, _ = timed(knn.partial_fit, late, y_late)
    X = np.vstack([X, late])
    exact.append(report(f"{N_LATE} points added", seconds, knn, X, Q, y_true))

    old = np.arange(0, 300, 3)
    seconds, _ = timed(knn.remove_points, old)
    X = np.delete(X, old, axis=0)
    exact.append(report(f"{len(old)} points removed", seconds, knn, X, Q, y_true))

    print(
        f"\nexact: share of queries whose {N_NEIGHBORS} neighbours are those of brute "
        f"force.\nAll of them should be; the smallest share is {min(exact):.3f}."
    )


if __name__ == "__main__":
    main()
