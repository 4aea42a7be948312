"""Other libraries take the estimators in place of scikit-learn's.

``make test-clients`` installs the libraries and runs this file. Where a library is
absent, its tests are skipped.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits, make_classification
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    NearestNeighbors,
)

from skmahal import (
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRegressor,
)

# Warnings of the libraries are theirs.
pytestmark = pytest.mark.filterwarnings("ignore", "error:::skmahal")


def library(name):
    return pytest.importorskip(name, reason=f"make test-clients installs {name}")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


# --- imbalanced-learn -----------------------------------------------------------------


class Seeded(KNeighborsClassifier):
    """scikit-learn's classifier with a `random_state`, which a sampler sets."""

    def __init__(self, n_neighbors=5, *, random_state=None):
        super().__init__(n_neighbors)
        self.random_state = random_state


OURS = SimpleNamespace(
    index=SketchedMahalanobisNeighbors, classifier=SketchedMahalanobisClassifier
)
THEIRS = SimpleNamespace(
    index=lambda n: NearestNeighbors(n_neighbors=n), classifier=Seeded
)


def edited(index):
    """The first step of the cleaning rule, which searches without labels."""
    under = library("imblearn.under_sampling")
    return under.EditedNearestNeighbours(n_neighbors=index)


SAMPLERS = {
    "SMOTE": lambda knn: {"k_neighbors": knn.index(6), "random_state": 0},
    "ADASYN": lambda knn: {"n_neighbors": knn.index(6), "random_state": 0},
    "EditedNearestNeighbours": lambda knn: {"n_neighbors": knn.index(4)},
    "NeighbourhoodCleaningRule": lambda knn: {
        "n_neighbors": knn.classifier(3),
        "edited_nearest_neighbours": edited(knn.index(4)),
    },
    "CondensedNearestNeighbour": lambda knn: {
        "n_neighbors": knn.classifier(1),
        "random_state": 0,
    },
    "OneSidedSelection": lambda knn: {
        "n_neighbors": knn.classifier(1),
        "random_state": 0,
    },
    "InstanceHardnessThreshold": lambda knn: {
        "estimator": knn.classifier(5),
        "random_state": 0,
    },
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_of_imbalanced_learn_draw_the_same_points(name):
    of_name = {
        **vars(library("imblearn.under_sampling")),
        **vars(library("imblearn.over_sampling")),
    }
    X, y = make_classification(
        300, 6, n_informative=4, n_classes=3, weights=[0.7, 0.2], random_state=0
    )
    ours, theirs = (
        of_name[name](**SAMPLERS[name](knn)).fit_resample(X, y)
        for knn in (OURS, THEIRS)
    )
    assert len(ours[0]) != len(X)
    for found, expected in zip(ours, theirs, strict=True):
        assert_allclose(found, expected)


# --- cleanlab -------------------------------------------------------------------------


def test_cleanlab_scores_outliers_under_the_metric():
    outlier = library("cleanlab.outlier")
    X, A = normal(200, 4), normal(4, 4, seed=1)
    Q = np.vstack([normal(20, 4, seed=2), [[9.0, -9.0, 9.0, -9.0]]])
    spelled = {"metric": "mahalanobis", "metric_params": {"VI": A @ A.T + np.eye(4)}}
    scores = [
        outlier.OutOfDistribution({"knn": index.fit(X)}).score(features=Q)
        for index in (
            SketchedMahalanobisNeighbors(10, **spelled),
            NearestNeighbors(n_neighbors=10, algorithm="brute", **spelled),
        )
    ]
    assert_allclose(*scores)
    assert np.argmin(scores[0]) == 20


# --- UMAP -----------------------------------------------------------------------------


def test_umap_takes_neighbours_and_graphs():
    umap = library("umap")
    X, y = load_digits(return_X_y=True)
    X, y, new, their_y = X[:400], y[:400], X[400:500], y[400:500]
    common = {"n_neighbors": 15, "random_state": 0, "n_epochs": 50}
    near, at = SketchedMahalanobisNeighbors(15).fit(X).kneighbors(X)
    ours = umap.UMAP(precomputed_knn=(at, near), **common).fit(X)
    assert_allclose(ours.graph_.toarray(), umap.UMAP(**common).fit(X).graph_.toarray())

    index = SketchedMahalanobisNeighborsTransformer(n_neighbors=15)
    graph = index.fit_transform(X)
    ours = umap.UMAP(metric="precomputed", **common).fit(graph.maximum(graph.T))
    placed = ours.transform(index.transform(new))
    assert KNeighborsClassifier().fit(ours.embedding_, y).score(placed, their_y) > 0.75


# --- river ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "classes"),
    [
        (SketchedMahalanobisClassifier, KNeighborsClassifier, ["high", "low"]),
        (SketchedMahalanobisRegressor, KNeighborsRegressor, None),
    ],
)
def test_river_validates_from_the_first_point_on(ours, theirs, classes):
    """Each point is predicted from all earlier ones, of which there may be few."""
    compat, evaluate = library("river.compat"), library("river.evaluate")
    metrics, stream = library("river.metrics"), library("river.stream")
    X = normal(60, 3)
    y = X[:, 0] if classes is None else np.where(X[:, 0] > 0, *classes)
    options = {} if classes is None else {"classes": classes}
    model = compat.convert_sklearn_to_river(ours(5), **options)
    first = model.predict_one(dict(enumerate(X[0])))
    metric = metrics.Accuracy() if classes else metrics.MAE()
    found = evaluate.progressive_val_score(stream.iter_array(X, y), model, metric)
    expected = [first] + [
        theirs(min(n, 5)).fit(X[:n], y[:n]).predict(X[n : n + 1])[0]
        for n in range(1, 60)
    ]
    if classes is None:
        assert_allclose(found.get(), np.abs(y - expected).mean())
    else:
        assert_allclose(found.get(), np.mean(y == expected))
        assert_array_equal(sorted(model.predict_proba_one({0: 0, 1: 0, 2: 0})), classes)
