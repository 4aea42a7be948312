import numpy as np
import pytest

from skmahal._core.exact import ExactMaintenance
from skmahal._core.metric import Metric, change_between, most_useful_rank, row_change

RNG = np.random.default_rng(0)
U = RNG.normal(size=(12, 9))


def test_changed_rows_are_found_and_nothing_else():
    new = U.copy()
    new[[2, 7]] += 1
    change = change_between(U, new, most_rank=5)
    assert change.rank == 2
    np.testing.assert_allclose(U + change.W @ change.V.T, new)


def test_no_change_has_rank_zero():
    assert change_between(U, U.copy(), most_rank=5).rank == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rank", [1, 3])
def test_a_low_rank_difference_in_every_row_is_found_up_to_rounding(rank, dtype):
    old = U.astype(dtype)
    step = RNG.normal(size=(12, rank)) @ RNG.normal(size=(rank, 9))
    new = (old + step).astype(dtype)
    change = change_between(old, new, most_rank=4)
    assert change.rank == rank
    error = np.abs(old + change.W @ change.V.T - new).max()
    assert error <= 100 * np.finfo(dtype).eps * np.abs(new).max()


def test_a_difference_of_full_rank_is_not_forced_into_a_low_one():
    assert change_between(U, U + RNG.normal(size=U.shape), most_rank=4) is None


def test_a_small_full_rank_difference_is_not_taken_for_rounding():
    assert change_between(U, U + 1e-9 * RNG.normal(size=U.shape), 4) is None


def test_an_update_is_preferred_exactly_where_it_costs_less():
    k, d, width = 50, 80, 300
    rank = most_useful_rank(k, d, width)
    assert rank * (d + k + width) <= k * (d + width)
    assert (rank + 1) * (d + k + width) > k * (d + width)


@pytest.mark.parametrize("scale", [0, 1])
def test_the_euclidean_metric_acts_as_an_identity_matrix(scale):
    implicit, explicit = (Metric(eye, 9, np.float64) for eye in (None, np.eye(9)))
    rows, W = RNG.normal(size=(4, 9)), scale * RNG.normal(size=(9, 2))
    np.testing.assert_array_equal(implicit.transform(rows), explicit.transform(rows))
    np.testing.assert_array_equal(implicit.pull(rows), explicit.pull(rows))
    np.testing.assert_array_equal(implicit.pull_back(W), explicit.pull_back(W))
    np.testing.assert_array_equal(implicit.U, explicit.U)
    implicit.writable()[0, 0] = 5
    assert implicit.U[0, 0] == 5


def test_row_change_adds_to_the_named_rows():
    W, V = row_change([3, 0], [[1.0] * 9, [2.0] * 9], 12, np.float64)
    added = W @ V.T
    assert (added[3] == 1).all()
    assert (added[0] == 2).all()
    assert np.count_nonzero(added.any(axis=1)) == 2


@pytest.mark.parametrize("new", ["rows", "rank-one", "everything", "nothing"])
def test_the_route_to_a_new_metric_does_not_show_in_the_answers(new):
    X = RNG.normal(size=(60, 9))
    target = {
        "rows": np.vstack([U[:3] + 1, U[3:]]),
        "rank-one": U + np.outer(np.arange(12.0), np.ones(9)),
        "everything": RNG.normal(size=U.shape),
        "nothing": U,
    }[new]
    moved = ExactMaintenance(U, X)
    moved.kneighbors(X, 2)
    moved.set_metric(target)
    np.testing.assert_array_equal(moved.U, target)
    fresh = ExactMaintenance(target, X)
    np.testing.assert_allclose(moved.exact_all(X), fresh.exact_all(X), atol=1e-12)
