"""An index without points keeps its promises, and says that it cannot be changed."""

import pickle

import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from skmahal import MetricMaintenance, SketchedMahalanobisNeighbors, SketchesOnly
from tests.core.data import clusters
from tests.oracle import Oracle

KINDS = ("sketch", "codes")
X = clusters(600, 500, count=20, noise=0.3)
U = np.random.default_rng(1).normal(size=(200, 500))
Q = clusters(620, 500, count=20, noise=0.3)[600:]
TRUTH = Oracle(U, X)


@pytest.fixture(scope="module", params=["dense", "float32", "csr"])
def index(request):
    points = {"dense": X, "float32": X.astype(np.float32), "csr": sparse.csr_matrix(X)}
    made = SketchedMahalanobisNeighbors(metric_learner=U, random_state=0)
    return made.fit(points[request.param])


def test_sketches_alone_are_within_eps(index):
    alone = index.sketches_only()
    assert isinstance(alone, SketchesOnly)
    assert_allclose(alone.distances(Q), TRUTH.query_all(Q), rtol=0.2)
    i, j = np.arange(50), np.arange(50, 100)
    assert_allclose(alone.pair_distances(i, j), TRUTH.query_pair(i, j), rtol=0.2)
    assert alone.pair_distances(3, 3) == 0
    assert "within 1 ± 0.2" in alone.guarantee()


def test_codes_alone_are_within_errors_that_are_stated(index):
    alone, truth = index.sketches_only("codes"), TRUTH.query_all(Q)
    rounding = 1e-6 * truth if index.distances(Q).dtype == np.float32 else 1e-12
    assert (np.abs(alone.distances(Q) - truth) <= alone.errors + rounding).all()
    assert alone.errors.max() < 0.05 * truth.min()
    assert "errors[i]" in alone.guarantee()


@pytest.mark.slow
def test_codes_hold_for_queries_along_their_errors():
    alone = MetricMaintenance(None, X).sketches_only("codes")
    x = X - alone.origin
    gaps = x - alone.unit * alone._points(slice(None))
    gaps /= np.linalg.norm(gaps, axis=1, keepdims=True)
    for length in (-1e6, -1.0, -1e-3, 1e-3, 1.0, 1e6):
        hostile = X[:50] + length * gaps[:50]
        truth = Oracle(None, X).query_all(hostile)
        errors = np.abs(alone.distances(hostile) - truth)
        assert (errors <= alone.errors + 1e-12 * truth).all()
    own = np.abs(np.diagonal(alone.distances(X[:50] + gaps[:50])) - 1)
    assert (own > 0.9 * alone.errors[:50]).all(), "the bound is reached"


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_are_those_of_smallest_estimate(index, kind):
    alone = index.sketches_only(kind)
    distances, indices = alone.kneighbors(Q, 7)
    D = alone.distances(Q)
    assert_array_equal(indices, np.argsort(D, axis=1, kind="stable")[:, :7])
    assert_array_equal(distances, np.sort(D, axis=1)[:, :7])
    assert_array_equal(alone.kneighbors(Q, 7, return_distance=False), indices)
    truth = TRUTH.query_all(Q)
    nearest = np.take_along_axis(truth, indices[:, :1], axis=1)[:, 0]
    off = 2 * alone.errors.max() if kind == "codes" else 0.5 * truth.min(axis=1)
    assert (nearest <= truth.min(axis=1) + off).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-50, 1e45])
def test_points_of_any_scale(kind, scale):
    index = MetricMaintenance(None, scale * X, seed=0)
    alone, truth = index.sketches_only(kind), index.exact_all(scale * Q)
    errors = np.abs(alone.distances(scale * Q) - truth)
    assert (errors <= (0.2 * truth if kind == "sketch" else alone.errors)).all()
    assert alone.errors is None or alone.errors.max() < 0.05 * truth.min()


def test_points_far_from_their_mean():
    far = np.vstack([X[:300] + 1e8, X[300:] - 1e8])
    index = MetricMaintenance(None, far, seed=0)
    truth = index.exact_all(far[:5])
    errors = np.abs(index.sketches_only().distances(far[:5]) - truth)
    # The lengths that rounding is relative to are some 1e9.
    assert (errors <= 0.2 * truth + 1e-5).all()


def test_an_adaptive_index_hands_out_codes():
    index = SketchedMahalanobisNeighbors(adaptive=True).fit(X)
    assert index.sketches_only().kind == "codes"
    assert index.sketches_only("sketch").kind == "sketch"


def test_it_has_no_points_and_small_files():
    index = MetricMaintenance(None, X.astype(np.float32), seed=0)
    for kind, share in (("sketch", 0.75), ("codes", 0.3)):
        alone = index.sketches_only(kind)
        # The map is not of the points.
        of_points = alone.nbytes - (0 if alone.map is None else alone.map.nbytes)
        assert of_points < share * X.astype(np.float32).nbytes
        assert len(pickle.dumps(alone)) < alone.nbytes + 2000
        assert not hasattr(alone, "X")
        assert "n=600" in repr(alone)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_saved_and_damage_is_seen(index, kind, tmp_path):
    alone = index.sketches_only(kind)
    joblib.dump(alone, tmp_path / "alone")
    for copy in (pickle.loads(pickle.dumps(alone)), joblib.load(tmp_path / "alone")):
        assert_array_equal(copy.distances(Q), alone.distances(Q))
    state = alone.__getstate__()
    for name, value in (("rows", state["rows"][:, 1:]), ("kind", "other"), ("eps", 2)):
        with pytest.raises(ValueError, match="damaged"):
            SketchesOnly.__new__(SketchesOnly).__setstate__({**state, name: value})


@pytest.mark.parametrize(
    "name", ["update_metric", "partial_fit", "update_points", "remove_points", "fit"]
)
def test_changes_are_refused_with_a_reason(index, name):
    alone = index.sketches_only()
    assert not hasattr(alone, name)
    with pytest.raises(AttributeError, match=f"no '{name}': it holds no points"):
        getattr(alone, name)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = alone.other


def test_bad_arguments_are_named(index):
    with pytest.raises(ValueError, match="kind must be 'sketch' or 'codes'"):
        index.sketches_only("other")
    alone = index.sketches_only()
    with pytest.raises(ValueError, match="X has 3 columns, expected 500"):
        alone.distances(np.ones((2, 3)))
    with pytest.raises(ValueError, match="n_neighbors must be an integer"):
        alone.kneighbors(Q, 601)


def test_what_is_handed_out_tells_nothing_of_the_sketches_in_use():
    index = MetricMaintenance(None, X, m=16, L=3, seed=0)
    index.query_all(Q)
    alone = index.sketches_only()
    for map in index.index.caches:
        shared = np.abs(map.map @ alone.map.T)
        lengths = np.linalg.norm(map.map, axis=1)[:, None]
        assert (shared < 0.4 * lengths * np.linalg.norm(alone.map, axis=1)).all()
