import numpy as np
import pytest

from skmahal._core.tiles import (
    Part,
    add_product,
    lower_bounds,
    median_of,
    row_squares,
    squared_distances,
)

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("count", range(1, 12))
def test_the_network_gives_the_median(count):
    votes = RNG.normal(size=(count, 4, 30))
    np.testing.assert_allclose(median_of(votes.copy()), np.median(votes, axis=0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", ["C", "F"])
def test_products_are_added_in_place(dtype, layout):
    buffer = RNG.normal(size=(50, 7)).astype(dtype)
    C, A = buffer[:40], np.array(RNG.normal(size=(40, 3)), dtype=dtype, order=layout)
    B = np.array(RNG.normal(size=(7, 3)), dtype=dtype, order=layout)
    expected, rest = C + A @ B.T, buffer[40:].copy()
    add_product(C, A, B)
    np.testing.assert_allclose(C, expected, rtol=1e-5)
    np.testing.assert_array_equal(buffer[40:], rest)
    add_product(C, A[:, :0], B[:, :0])
    add_product(C[:, :0], A, B[:0])
    np.testing.assert_allclose(C, expected, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 2e-3), (np.float64, 1e-6)])
def test_distances_of_very_near_points_keep_their_precision(dtype, rtol):
    A = (RNG.normal(size=(5, 20)) + 10).astype(dtype)
    B = np.vstack([A + 1e-5 * RNG.normal(size=A.shape), A, RNG.normal(size=(9, 20))])
    B = B.astype(dtype)
    exact = ((A[:, None].astype(float) - B) ** 2).sum(axis=2)
    found = squared_distances([Part(A, B, row_squares(B).astype(dtype))])
    np.testing.assert_allclose(found, exact, rtol=rtol)
    assert (found[range(5), range(5, 10)] == 0).all()


def test_lower_bounds_are_never_above_the_truth():
    A = (RNG.normal(size=(50, 20)) + 100).astype(np.float32)
    exact = ((A[:, None].astype(float) - A) ** 2).sum(axis=2)
    parts = [Part(A, A, row_squares(A).astype(A.dtype))]
    assert (lower_bounds(parts, slack=1e-6) <= exact).all()
    assert not (lower_bounds(parts, slack=0) <= exact).all()
