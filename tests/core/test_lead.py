import numpy as np
import pytest

from skmahal import MetricMaintenance
from skmahal._core.lead import leading_directions, worthwhile


def decaying(rng, n=400, k=60, rate=0.7):
    basis, _ = np.linalg.qr(rng.normal(size=(k, k)))
    return rng.normal(size=(n, k)) * rate ** np.arange(k) @ basis.T + 5, basis


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_directions_are_those_of_the_centred_svd(dtype):
    rng = np.random.default_rng(0)
    rows, _ = decaying(rng)
    P, variances = leading_directions(rows.astype(dtype), 5, rng)
    _, sizes, turn = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    share = sizes**2 / (sizes**2).sum()
    np.testing.assert_allclose(variances, share[:5], rtol=1e-3)
    np.testing.assert_allclose(np.abs(turn[:5] @ P), np.eye(5), atol=5e-2)
    np.testing.assert_allclose(P.T @ P, np.eye(5), atol=1e-5)
    assert P.dtype == dtype


def test_constant_rows_have_no_direction():
    P, variances = leading_directions(np.ones((9, 4)), 3, np.random.default_rng(0))
    assert P.shape == (4, 0)
    assert variances.size == 0


def test_flat_spectra_get_no_lead_and_steep_ones_do():
    assert worthwhile(np.full(100, 1e-3), m=32) == 0
    assert worthwhile(0.5 ** np.arange(1, 20), m=4) >= 2


def error(X, Q, r, m, seed):
    index = MetricMaintenance(None, X, m=m, L=5, R=1, lead=r, seed=seed)
    exact = index.exact_all(Q)
    return np.abs(index.query_all(Q) / exact - 1).mean()


def test_the_rule_is_near_the_best_split_of_a_fixed_number_of_columns():
    rng = np.random.default_rng(1)
    rows, _ = decaying(rng, n=430, rate=0.9)
    X, Q = rows[:400], rows[400:]
    _, variances = leading_directions(X, 30, rng)
    columns = 24
    errors = {
        r: np.mean([error(X, Q, r, columns - r, seed) for seed in range(10)])
        for r in range(0, columns, 4)
    }
    chosen = min(errors, key=lambda r: abs(r - worthwhile(variances, columns - r)))
    assert errors[chosen] <= 1.25 * min(errors.values())
    assert errors[chosen] <= 0.7 * errors[0]


def test_stale_directions_stay_valid():
    rng = np.random.default_rng(2)
    X, _ = decaying(rng)
    index = MetricMaintenance(None, X, m=8, lead=4, delta=1e-6, seed=0)
    index.update_low_rank(10 * rng.normal(size=(60, 20)), rng.normal(size=(60, 20)))
    truth = np.linalg.norm((X[:, None] - X[:5]) @ index.U.T, axis=2).T
    found, _ = index.kneighbors(X[:5], 6)
    np.testing.assert_allclose(found, np.sort(truth, axis=1)[:, :6], atol=1e-9)
