"""A program that uses the package, whose types mypy checks in ``make lint``."""

from typing import Any, assert_type

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from skmahal import (
    MahalanobisSketch,
    MetricMaintenance,
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    components_from,
    enable_metric_learn,
    sample_seeds,
    show_versions,
    warm_up,
)
from skmahal.inspection import Audit, Guarantee, SketchQualityDisplay
from skmahal.online import LEGO

Floats = NDArray[np.floating[Any]]


def neighbours() -> None:
    X = np.random.default_rng(0).normal(size=(100, 3))
    index = SketchedMahalanobisNeighbors(3, metric_learner=np.eye(3), m="auto")
    assert_type(index.fit(X, ids=range(100)), SketchedMahalanobisNeighbors)
    distances, found = index.kneighbors(X[:5])
    assert_type(distances, Floats)
    assert_type(found, np.ndarray)
    assert_type(index.kneighbors(X[:5], return_distance=False), Any)
    assert_type(index.distances(X[:5]), Floats)
    assert_type(index.guarantee(), Guarantee)
    assert_type(index.audit(100), Audit)
    index.fit(X.tolist()).fit(pd.DataFrame(X)).fit(sparse.csr_array(X))
    index.update_metric([[1.0, 0.0, 0.0]], rows=0, additive=True)
    index.update_metric({"V": np.eye(3)}).remove_points([0, 1]).partial_fit(X[:2])
    sample_seeds(index, 3, power=2, random_state=0).sum()
    SketchQualityDisplay.from_estimator(index).plot(name="index")


def learners() -> None:
    X, y = np.random.default_rng(0).normal(size=(100, 3)), np.arange(100) % 2
    learner = LEGO(eta=0.1, init=np.eye(3), preprocessor=lambda at: X[at])
    assert_type(learner.fit(X, y).partial_fit(X[:2], y[:2]), LEGO)
    knn = SketchedMahalanobisClassifier(metric_learner=learner, weights="distance")
    assert_type(knn.fit(X, y).predict(X), np.ndarray)
    knn.update_metric(learner).update_labels([3], [1])
    assert_type(MahalanobisSketch(2).fit(X).transform(X), Floats)


def functions() -> None:
    U = components_from(V=np.eye(3))
    held = MetricMaintenance(U, np.eye(3), m=2, seed=0)
    assert_type(held.query_all([1.0, 2.0, 3.0]), Floats)
    held.update_low_rank(np.ones(3), np.ones(3))
    warm_up([np.float32])
    assert_type(enable_metric_learn(), bool)
    show_versions()


def mistakes() -> None:
    index = SketchedMahalanobisNeighbors(sketch="sparse")  # type: ignore[arg-type]
    index.kneighbors(n_neighbors="3")  # type: ignore[call-overload]
    index.sample([[0.0]], power=3)  # type: ignore[arg-type]
