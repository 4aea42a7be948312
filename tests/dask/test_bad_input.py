"""Messages say what is wrong, and the index stays as it was."""

import subprocess
import sys
import time

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import sparse
from sklearn.neighbors import NeighborhoodComponentsAnalysis

from skmahal.dask import (
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisRegressor,
)

from .conftest import wait_for_two
from .oracle import Beside
from .test_operations import chunked


def blocks(*arrays, dtype=np.float64):
    """A dask array whose chunks are what they are, whatever its type says."""
    lazy = [
        da.from_delayed(dask.delayed(array), array.shape, dtype) for array in arrays
    ]
    return da.concatenate(lazy)


def test_chunks_that_are_not_points(client, rng):
    X = rng.normal(size=(60, 3))
    bad = X[20:40].copy()
    bad[3, 1] = np.nan
    index = SketchedMahalanobisNeighbors(client=client).fit(chunked(X, 20))
    beside = Beside(index, X)
    cases = {
        r"chunk 1 \(rows 20 to 39\) contains NaN": blocks(X[:20], bad, X[40:]),
        r"chunk 2 \(rows 40 to 59\) has dtype float32, expected float64": blocks(
            X[:20], X[20:40], X[40:].astype(np.float32)
        ),
        "chunk 0 .* has dtype <U3, expected float64": blocks(
            np.full((20, 3), "one"), X[20:]
        ),
        "chunks of unknown sizes": chunked(X, 20)[chunked(X, 20)[:, 0] > 0],
        "columns are split into 2": chunked(X, 20).rechunk((20, 2)),
        "two dimensions": chunked(X, 20)[:, 0],
        r"got shape \(0, 3\)": da.zeros((0, 3)),
        "real numbers, .* complex128": chunked(X, 20) + 1j,
    }
    for message, given in cases.items():
        with pytest.raises(ValueError, match=message):
            index.fit(given)
        with pytest.raises(ValueError, match=message):
            index.partial_fit(given)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        index.fit(sparse.csr_matrix(X))
    beside.check(X[:4] + 0.1)


def test_changes_that_are_refused(client, rng):
    X = rng.normal(size=(60, 3))
    index = SketchedMahalanobisNeighbors(client=client).fit(chunked(X, 20))
    beside = Beside(index, X)
    calls = {
        "out of range": lambda: index.update_points([60], X[:1]),
        "is repeated": lambda: index.update_points([1, 1], X[:2]),
        "expected 2, one for each": lambda: index.update_points([1, 2], X[:1]),
        "remove every one": lambda: index.remove_points(np.arange(60)),
        "X has 2 features": lambda: index.partial_fit(X[:, :2]),
        "4 features": lambda: index.partial_fit(da.ones((4, 4))),
        "contains NaN": lambda: index.partial_fit(np.full((1, 3), np.nan)),
        "W must be|W has": lambda: index.update_metric(low_rank=(np.ones(2), X[0])),
        "needs metric or low_rank": index.update_metric,
        "too large": lambda: index.update_metric(1e120 * np.eye(3)),
        "overflow|too large": lambda: index.update_metric(
            low_rank=(np.full(3, 1e80), np.full(3, 1e80))
        ),
        "n_neighbors must be": lambda: index.kneighbors(X[:1], 61),
        "radius must be": lambda: index.radius_neighbors(X[:1], -1.0),
        "power must be": lambda: index.sample(X[:1], power=3),
        "stop must be": lambda: index.sum_distances(X[:1], 0, 61),
        "n_pairs must be": lambda: index.audit(0),
    }
    for message, call in calls.items():
        with pytest.raises((ValueError, IndexError), match=message):
            call()
        assert len(index) == 60
    beside.check(X[:4] + 0.1)


def test_parameters(client, rng):
    X = rng.normal(size=(60, 3))
    learner = NeighborhoodComponentsAnalysis()
    with pytest.raises(ValueError, match="FrozenEstimator"):
        SketchedMahalanobisNeighbors(metric_learner=learner, client=client).fit(X)
    with pytest.raises(ValueError, match="'n_neighbors' parameter"):
        SketchedMahalanobisNeighbors(0, client=client).fit(X)
    with pytest.raises(ValueError, match="recall needs n_candidates"):
        SketchedMahalanobisNeighbors(
            recall=0.9, n_candidates="certified", client=client
        ).fit(X)


def test_targets(client, rng):
    X, y = rng.normal(size=(60, 3)), np.arange(60) % 3
    knn = SketchedMahalanobisClassifier(client=client).fit(chunked(X, 20), y)
    regressor = SketchedMahalanobisRegressor(client=client)
    missing = np.where(y, y, np.nan)
    with pytest.raises(ValueError, match="y contains NaN"):
        regressor.fit(X, missing)
    with pytest.raises(ValueError, match=r"chunk 0 .* targets that are NaN"):
        regressor.fit(chunked(X, 20), da.from_array(missing))
    with pytest.raises(ValueError, match="labels that are missing"):
        knn.fit(X, np.where(y, y, None))
    with pytest.raises(ValueError, match="y has 59 targets, expected 60"):
        knn.fit(chunked(X, 20), y[:59])
    with pytest.raises(ValueError, match="y has 3 targets, expected 2"):
        knn.partial_fit(X[:2], y[:3])
    with pytest.raises(ValueError, match="y must be given"):
        knn.fit(X, None)
    with pytest.raises(ValueError, match="must have labels as"):
        knn.partial_fit(X[:2], ["a", "b"])
    assert len(knn) == 60
    assert knn.predict(X[:1]).dtype == y.dtype


def test_targets_of_another_kind(client, rng):
    """Another number of outputs at a new fit, and lazy targets of few points."""
    X = rng.normal(size=(50, 3))
    knn = SketchedMahalanobisRegressor(1, client=client).fit(chunked(X, 30), X[:, 0])
    with pytest.raises(ValueError, match="y contains NaN"):
        knn.partial_fit(X[:2] + 9, da.from_array(np.array([0.0, np.nan])))
    knn.partial_fit(X[:2] + 9, da.from_array(np.array([5.0, 6.0])))
    np.testing.assert_allclose(knn.predict(X[:2] + 9), [5, 6])
    with pytest.raises(ValueError, match=r"y has shape \(2, 2\), expected \(2,\)"):
        knn.partial_fit(X[:2], X[:2, :2])
    np.testing.assert_allclose(knn.fit(X, X[:, :2]).predict(X[:2]), X[:2, :2])


class Frame:
    """What is used of a data frame of Dask, which needs pyarrow."""

    def __init__(self, frame):
        self._meta, self.X = frame[:0], frame.to_numpy()

    def to_dask_array(self, lengths):
        return chunked(self.X, 20)


def test_names_of_features(client, rng):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "c"])
    index = SketchedMahalanobisNeighbors(1, client=client).fit(Frame(frame))
    assert index.feature_names_in_.tolist() == ["a", "b", "c"]
    for call in (index.kneighbors, index.partial_fit):
        with pytest.raises(ValueError, match="feature names should match"):
            call(Frame(frame[["c", "b", "a"]]))
    index.fit(chunked(frame.to_numpy(), 20))
    assert not hasattr(index, "feature_names_in_")


def test_candidates_are_as_many_as_neighbours(client, rng):
    X = rng.normal(size=(60, 3))
    index = SketchedMahalanobisNeighbors(n_candidates=30, client=client)
    index.fit(chunked(X, 20))
    for given in (X[:2], chunked(X[:2])):
        with pytest.raises(ValueError, match="n_candidates must be"):
            index.kneighbors(given, 50)
    assert index.kneighbors(X[:2], 25)[1].shape == (2, 25)


def test_shards_of_one_row(client, rng):
    X = rng.normal(size=(4, 3))
    index = SketchedMahalanobisNeighbors(1, client=client).fit(chunked(X, 1))
    assert index.audit().passed
    assert index.guarantee().n == 4


def test_a_closed_client(client, rng):
    X = rng.normal(size=(60, 3))
    with Client(client.cluster, set_as_default=False) as other:
        index = SketchedMahalanobisNeighbors(client=other).fit(chunked(X, 20))
    with pytest.raises(RuntimeError, match="status is 'closed'"):
        index.kneighbors(X[:2])
    index.set_params(client=client)
    with pytest.raises(RuntimeError, match="fit the index again"):
        index.kneighbors(X[:2])
    index.fit(chunked(X, 20)).kneighbors(X[:2])


def test_a_client_of_another_cluster(client, rng):
    X = rng.normal(size=(60, 3))
    index = SketchedMahalanobisNeighbors(client=client).fit(chunked(X, 20))
    beside = Beside(index, X)
    with Client(processes=False, n_workers=1, dashboard_address=":0") as other:
        index.set_params(client=other)
        with pytest.raises(ValueError, match="client must be one of the cluster"):
            index.kneighbors(X[:2])
        assert not client.list_datasets()
        # Without the parameter, the current client is that of the next fit.
        index.set_params(client=None)
        beside.check(X[:4] + 0.1)
        assert index.fit(X).client_ is other


def test_a_client_that_is_restarted(client, rng):
    X = rng.normal(size=(60, 3))
    index = SketchedMahalanobisNeighbors(client=client).fit(chunked(X, 20))
    client.restart(wait_for_workers=False)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="fit the index again"):
            index.kneighbors(X[:2])
    wait_for_two(client)
    Beside(index.fit(chunked(X, 20)), X).check(X[:4] + 0.1)


def test_an_own_cluster_that_was_closed_is_not_used_again(rng):
    X = rng.normal(size=(60, 3))
    index = SketchedMahalanobisNeighbors().fit(X)
    index.client_.close()
    other = SketchedMahalanobisNeighbors().fit(X)
    assert other.kneighbors(X[:2], 1)[1].tolist() == [[0], [1]]
    with pytest.raises(RuntimeError, match="status is 'closed'"):
        index.kneighbors(X[:2])
    other.close()


def test_a_fitted_index_cannot_be_pickled(client, rng):
    index = SketchedMahalanobisNeighbors(client=client)
    index.fit(rng.normal(size=(60, 3)))
    with pytest.raises(TypeError, match="to_local"):
        index.__getstate__()


def test_a_shard_that_is_late_is_named(client, rng):
    X = rng.normal(size=(60, 3))
    index = SketchedMahalanobisNeighbors(client=client).fit(chunked(X, 20))
    busy = client.map(time.sleep, [1.0, 1.0], pure=False)
    with (
        dask.config.set({"skmahal.timeout": "50 ms"}),
        pytest.raises(TimeoutError, match=r"shard \d \(points \d+ to \d+\)"),
    ):
        index.kneighbors(X[:2])
    client.gather(busy)
    assert index.kneighbors(X[:2], 1)[1].tolist() == [[0], [1]]


def test_without_dask_the_message_names_the_extra():
    script = "import sys; sys.modules['distributed'] = None; import skmahal.dask"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert "pip install 'skmahal[dask]'" in done.stderr
