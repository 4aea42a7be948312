"""Factors of a Mahalanobis matrix, and changes of U as low-rank values."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

from skmahal._core.index import Index
from skmahal._core.metric import change_between, components_from, row_change

RNG = np.random.default_rng(0)
U = RNG.normal(size=(12, 9))
ROOT = RNG.normal(size=(5, 8))
X = RNG.normal(size=(20, 8))


def distances(U):
    return cdist(X @ U.T, X @ U.T)


@pytest.mark.parametrize("name", ["A", "VI"])
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-9), (np.float32, 1e-3)])
def test_a_semi_definite_matrix_is_factored_at_its_rank(name, dtype, rtol):
    A = (ROOT.T @ ROOT).astype(dtype)
    U = components_from(**{name: A})
    assert U.shape == (5, 8)
    assert U.dtype == dtype
    np.testing.assert_allclose(U.T @ U, A, rtol=rtol, atol=rtol * np.abs(A).max())


def test_a_covariance_gives_the_mahalanobis_distance_of_its_inverse():
    V = np.cov(RNG.normal(size=(50, 8)), rowvar=False)
    expected = cdist(X, X, "mahalanobis", VI=np.linalg.inv(V))
    np.testing.assert_allclose(distances(components_from(V=V)), expected, atol=1e-9)
    inverse = components_from(VI=np.linalg.inv(V))
    np.testing.assert_allclose(distances(inverse), expected, atol=1e-9)


def test_directions_without_variance_are_not_measured():
    V = np.diag([1.0, 4.0, 0.0])
    U = components_from(V=V)
    np.testing.assert_allclose(U.T @ U, np.diag([1.0, 0.25, 0.0]))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_units_of_the_features_do_not_matter(dtype):
    """No feature is taken for rounding because it is measured in kilometres."""
    V = np.cov(RNG.normal(size=(50, 8)), rowvar=False)
    units = 10.0 ** np.arange(-8, 8, 2)
    measured = (V * units * units[:, np.newaxis]).astype(dtype)
    U = components_from(V=measured)
    assert U.shape == (8, 8)
    expected = distances(components_from(V=V))
    rtol = 1e-9 if dtype == np.float64 else 1e-3
    np.testing.assert_allclose(distances(U * units), expected, rtol=rtol, atol=rtol)
    inverse = np.linalg.inv(V) / units / units[:, np.newaxis]
    U = components_from(VI=inverse.astype(dtype))
    np.testing.assert_allclose(distances(U * units), expected, rtol=rtol, atol=rtol)


def test_a_pseudo_inverse_is_symmetric_enough():
    V = np.cov(load_digits().data, rowvar=False)
    VI = np.linalg.pinv(V)
    assert not np.array_equal(VI, VI.T)
    U, A = components_from(VI=VI), components_from(V=V)
    X = load_digits().data[:20]
    expected = cdist(X @ A.T, X @ A.T)
    np.testing.assert_allclose(cdist(X @ U.T, X @ U.T), expected, rtol=1e-6, atol=1e-6)


def test_an_indefinite_matrix_is_refused_with_its_eigenvalue():
    with pytest.raises(ValueError, match=r"VI must be .* eigenvalue -0\.25"):
        components_from(VI=np.diag([1.0, -0.25, 2.0]))


def test_rounding_below_zero_is_not_taken_for_indefinite():
    A = ROOT.T @ ROOT
    A -= 1e-15 * np.eye(8)
    assert len(components_from(A=A)) == 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of A, VI and V"),
        ({"V": np.eye(2), "VI": np.eye(2)}, "got VI, V"),
        ({"V": np.ones((2, 3))}, "V must be square"),
        ({"A": [[1.0, 2.0], [0.0, 1.0]]}, "A must be symmetric"),
        ({"A": np.zeros((2, 2))}, "A is zero"),
        ({"A": [[np.nan]]}, "A contains NaN"),
        ({"A": [[1.0, 1e-6], [0.0, 1.0]]}, "entries up to 1e-06 where A has 1"),
    ],
)
def test_what_is_no_such_matrix_is_refused_by_name(given, message):
    with pytest.raises(ValueError, match=message):
        components_from(**given)


def test_a_matrix_without_a_name_is_refused():
    with pytest.raises(TypeError):
        components_from(np.eye(2))


def test_changed_rows_are_found_and_nothing_else():
    new = U.copy()
    new[[2, 7]] += 1
    change = change_between(U, new, most_rank=5)
    assert change.rank == 2
    np.testing.assert_allclose(U + change.W @ change.V.T, new)


def test_no_change_has_rank_zero():
    assert change_between(U, U.copy(), most_rank=5).rank == 0


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_low_rank_difference_in_every_row_is_found_up_to_rounding(rank, dtype):
    old, eps = U.astype(dtype), np.finfo(dtype).eps
    step = RNG.normal(size=(12, rank)) @ RNG.normal(size=(rank, 9))
    new = (old + step).astype(dtype)
    old, new = old.astype(float), new.astype(float)
    change = change_between(old, new, 4, eps)
    assert change.rank == rank
    error = np.abs(old + change.W @ change.V.T - new).max()
    assert error <= 100 * eps * np.abs(new).max()


def test_a_difference_of_full_rank_is_not_forced_into_a_low_one():
    assert change_between(U, U + RNG.normal(size=U.shape), most_rank=4) is None


def test_a_small_full_rank_difference_is_not_taken_for_rounding():
    assert change_between(U, U + 1e-9 * RNG.normal(size=U.shape), 4) is None


def test_row_change_adds_to_the_named_rows():
    W, V = row_change([3, 0], [[1.0] * 9, [2.0] * 9], 12)
    added = W @ V.T
    assert (added[3] == 1).all()
    assert (added[0] == 2).all()
    assert np.count_nonzero(added.any(axis=1)) == 2


@pytest.mark.parametrize("new", ["rows", "rank-one", "everything", "nothing", "fewer"])
def test_the_route_to_a_new_metric_does_not_show_in_the_answers(new):
    X = RNG.normal(size=(60, 9))
    target = {
        "rows": np.vstack([U[:3] + 1, U[3:]]),
        "rank-one": U + np.outer(np.arange(12.0), np.ones(9)),
        "everything": RNG.normal(size=U.shape),
        "nothing": U,
        "fewer": U[:2],
    }[new]
    moved = Index(U, X)
    moved.kneighbors(X, 2)
    moved.set_metric(target)
    np.testing.assert_array_equal(moved.U, target)
    fresh = Index(target, X)
    np.testing.assert_allclose(moved.distances(X), fresh.distances(X), atol=1e-7)
    moved.check()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e4, 1e8, 1e12])
def test_a_new_metric_after_one_with_a_much_larger_column(size, dtype):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 8)).astype(dtype)
    rows[:, 0] = rng.integers(-1, 2, 500)
    old, new = rng.normal(size=(2, 8, 8))
    old[:, 0] *= size
    for factor in (1, size):
        index = Index(old, rows)
        index.kneighbors(rows[:2], 5)
        index.set_metric(new * np.r_[factor, np.ones(7)])
        index.check()
