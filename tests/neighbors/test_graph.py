"""Transformers of graphs stand in for those of scikit-learn."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.cluster import DBSCAN, SpectralClustering
from sklearn.manifold import TSNE, Isomap
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsTransformer,
    LocalOutlierFactor,
    RadiusNeighborsTransformer,
)
from sklearn.pipeline import make_pipeline

from skmahal import (
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRadiusTransformer,
)

from .cases import SEARCHES, any_way, normal, stored, whole_metric

any_mode = pytest.mark.parametrize("mode", ["distance", "connectivity"])


def groups(n, seed):
    """Whole numbers whose distances do not tie: graphs agree to the last bit."""
    centres = 1.5 * normal(3, D)[np.arange(n) % 3]
    return np.round(1000 * (centres + normal(n, D, seed=seed)))


D = 20
POINTS, MORE = groups(150, seed=1), groups(40, seed=2)
POINTS[7] *= 5  # an outlier
KINDS = np.arange(150) % 3


def test_the_columns_are_named_after_the_points():
    graph = SketchedMahalanobisNeighborsTransformer().fit(normal(9, 3))
    prefix = "sketchedmahalanobisneighborstransformer"
    assert_array_equal(
        graph.get_feature_names_out(), [f"{prefix}{i}" for i in range(9)]
    )
    graph.partial_fit(normal(1, 3)).remove_points([0, 1])
    assert len(graph.get_feature_names_out()) == 8


def test_a_data_frame_of_the_graph_is_refused_as_scikit_learn_does():
    graph = SketchedMahalanobisNeighborsTransformer().set_output(transform="pandas")
    with pytest.raises(ValueError, match="sparse matrix"):
        graph.fit_transform(normal(9, 3))


# --- the graph of scikit-learn's KNeighborsTransformer --------------------------------


class Under(KNeighborsTransformer):
    """scikit-learn's graph of the points under U."""

    def __init__(self, U=None, mode="distance", n_neighbors=5):
        super().__init__(mode=mode, n_neighbors=n_neighbors, algorithm="brute")
        self.U = U

    def fit(self, X, y=None):
        return super().fit(X @ self.U.T)

    def transform(self, X):
        return super().transform(X @ self.U.T)

    def fit_transform(self, X, y=None):
        return self.fit(X).transform(X)


def both(search, **params):
    """The transformer, and scikit-learn's under the same metric."""
    U = whole_metric(d=D)
    params = {"metric_learner": {"U": U}, **SEARCHES[search], **params}
    ours = SketchedMahalanobisNeighborsTransformer(**params)
    theirs = {k: params[k] for k in ("mode", "n_neighbors") if k in params}
    return ours, Under(U, **theirs)


def assert_same_graph(one, other):
    assert sparse.issparse(one)
    assert one.format == other.format == "csr"
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    for part in ("data", "indices", "indptr"):
        assert_array_equal(getattr(one, part), getattr(other, part))


@any_way
@any_mode
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_the_graph_is_that_of_scikit_learn_to_the_last_bit(search, mode, storage):
    ours, theirs = both(search, mode=mode, n_neighbors=7)
    graph = ours.fit_transform(stored(POINTS, storage))
    assert_same_graph(graph, theirs.fit_transform(POINTS))
    assert_same_graph(ours.transform(stored(MORE, storage)), theirs.transform(MORE))


@any_way
@any_mode
def test_the_graph_of_float32_points_has_the_type_of_scikit_learn(search, mode):
    ours, theirs = both(search, mode=mode)
    theirs.U = theirs.U.astype(np.float32)
    X, Q = POINTS.astype(np.float32), MORE.astype(np.float32)
    graph, expected = ours.fit(X).transform(Q), theirs.fit(X).transform(Q)
    assert ours.kneighbors(Q)[0].dtype == np.float32
    assert graph.dtype == expected.dtype == np.float64
    assert_array_equal(graph.indices, expected.indices)
    assert_allclose(graph.data, expected.data, rtol=1e-5)


@any_way
@pytest.mark.parametrize(("mode", "entries"), [("distance", 6), ("connectivity", 5)])
def test_distances_have_one_neighbour_more_and_the_point_itself(search, mode, entries):
    ours, _ = both(search, mode=mode, n_neighbors=5)
    graph = ours.fit_transform(POINTS)
    assert_array_equal(np.diff(graph.indptr), entries)
    first = graph.indices.reshape(-1, entries)[:, 0]
    assert_array_equal(first, np.arange(len(POINTS)))
    if mode == "distance":
        assert not graph.diagonal().any()
        assert (np.diff(graph.data.reshape(-1, entries)) > 0).all()


@any_way
def test_the_graph_follows_points_and_metric(search):
    ours, theirs = both(search)
    ours.fit(POINTS[:100]).transform(MORE)
    ours.partial_fit(POINTS[100:]).update_points([3, 5], MORE[:2]).remove_points([0])
    now = POINTS.copy()
    now[[3, 5]] = MORE[:2]
    U = theirs.U.copy()
    U[1] = whole_metric(1, D)[0]
    ours.update_metric(U[1], rows=[1])
    theirs.set_params(U=U).fit(now[1:])
    assert_same_graph(ours.transform(MORE), theirs.transform(MORE))


CONSUMERS = {
    "KNeighborsClassifier": KNeighborsClassifier(metric="precomputed"),
    "LocalOutlierFactor": LocalOutlierFactor(n_neighbors=5, metric="precomputed"),
    "DBSCAN": DBSCAN(eps=12_000, min_samples=4, metric="precomputed"),
    "SpectralClustering": SpectralClustering(
        3, n_neighbors=13, affinity="precomputed_nearest_neighbors", random_state=0
    ),
    "TSNE": TSNE(
        metric="precomputed", perplexity=4, init="random", max_iter=250, random_state=0
    ),
    "Isomap": Isomap(n_neighbors=60, metric="precomputed"),
}


@any_way
@pytest.mark.parametrize("name", CONSUMERS)
def test_estimators_take_the_graph_for_that_of_scikit_learn(search, name):
    n_neighbors = 60 if name == "Isomap" else 13
    answers = []
    for graph in both(search, n_neighbors=n_neighbors):
        consumer = make_pipeline(graph, clone(CONSUMERS[name]))
        if name in ("TSNE", "Isomap"):
            answers.append(consumer.fit_transform(POINTS))
        elif name == "KNeighborsClassifier":
            consumer.fit(POINTS, KINDS)
            answers.append(consumer.predict_proba(MORE))
        else:
            answers.append(consumer.fit_predict(POINTS))
    assert len(np.unique(answers[0])) > 1
    assert_array_equal(*answers)


# --- all points within a distance -----------------------------------------------------


@any_mode
def test_graphs_of_a_radius_are_those_of_scikit_learn(mode):
    ours = SketchedMahalanobisRadiusTransformer(mode=mode, radius=4e3).fit(POINTS)
    theirs = RadiusNeighborsTransformer(mode=mode, radius=4e3).fit(POINTS)
    for rows in (POINTS, MORE):
        found, expected = ours.transform(rows), theirs.transform(rows)
        assert sparse.issparse(found)
        assert found.format == "csr"
        assert_allclose(found.toarray(), expected.toarray())
        if mode == "distance":
            for start, stop in zip(found.indptr, found.indptr[1:], strict=False):
                assert (np.diff(found.data[start:stop]) >= 0).all()


def test_a_graph_of_a_radius_follows_metric_and_points():
    graph = SketchedMahalanobisRadiusTransformer(radius=4e3, max_points=150)
    graph.fit(POINTS)
    graph.partial_fit(MORE)
    graph.update_metric(low_rank=(np.eye(D, 1), np.eye(D, 1)))
    U = np.diag([2.0] + [1.0] * (D - 1))
    held = graph.points() @ U
    theirs = RadiusNeighborsTransformer(radius=4e3).fit(held)
    expected = theirs.transform(MORE @ U).toarray()
    assert_allclose(graph.transform(MORE).toarray(), expected)
    assert len(graph) == 150


def test_clusters_from_a_graph_of_a_radius():
    graph = SketchedMahalanobisRadiusTransformer(radius=5e3)
    by_graph = make_pipeline(graph, DBSCAN(eps=5e3, metric="precomputed"))
    expected = DBSCAN(eps=5e3).fit_predict(POINTS)
    assert len(np.unique(expected)) > 1
    assert_array_equal(by_graph.fit_predict(POINTS), expected)
