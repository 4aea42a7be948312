import numpy as np
import pytest

from skmahal import MetricMaintenance
from skmahal._core.lead import leading_directions


def decaying(rng, n=400, k=60, rate=0.7):
    basis, _ = np.linalg.qr(rng.normal(size=(k, k)))
    return rng.normal(size=(n, k)) * rate ** np.arange(k) @ basis.T + 5, basis


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_directions_are_those_of_the_centred_svd(dtype):
    rng = np.random.default_rng(0)
    rows, _ = decaying(rng)
    P = leading_directions(rows.astype(dtype), 5, rng)
    _, _, turn = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(turn[:5] @ P), np.eye(5), atol=5e-2)
    np.testing.assert_allclose(P.T @ P, np.eye(5), atol=1e-5)
    assert P.dtype == dtype


def test_constant_rows_have_no_direction():
    P = leading_directions(np.ones((9, 4)), 3, np.random.default_rng(0))
    assert P.shape == (4, 0)


def test_stale_directions_stay_valid():
    rng = np.random.default_rng(2)
    X, _ = decaying(rng)
    index = MetricMaintenance(None, X, m=8, lead=4, delta=1e-6, seed=0)
    index.update_low_rank(10 * rng.normal(size=(60, 20)), rng.normal(size=(60, 20)))
    truth = np.linalg.norm((X[:, None] - X[:5]) @ index.U.T, axis=2).T
    found, _ = index.kneighbors(X[:5], 6)
    np.testing.assert_allclose(found, np.sort(truth, axis=1)[:, :6], atol=1e-9)
