import numpy as np
import pytest
from scipy import sparse

from skmahal._core import points as storage
from skmahal._core.buffers import grown
from skmahal._core.points import DensePoints, SparsePoints, far_origin

X = np.round(np.random.default_rng(0).normal(size=(20, 6)), 1)


def both(X):
    return DensePoints(X), SparsePoints(sparse.csr_matrix(X))


@pytest.mark.parametrize("points", both(X), ids=["dense", "sparse"])
def test_changes_are_those_of_a_plain_array(points):
    plain = X.copy()
    points.append(2 * X[:7])
    plain = np.vstack([plain, 2 * X[:7]])
    points.assign(np.array([25, 0]), X[3:5])
    plain[[25, 0]] = X[3:5]
    mask = np.arange(27) % 3 > 0
    points = points.kept(mask)
    plain = plain[mask]
    assert points.n == len(plain)
    np.testing.assert_allclose(points.dense(np.arange(points.n)), plain)
    V = np.ones((6, 2))
    np.testing.assert_allclose(points.dot(V), plain @ V)


def test_points_are_a_copy():
    given = X.copy()
    points = DensePoints(given)
    given[:] = 0
    np.testing.assert_array_equal(points.array, X)


def test_one_row_at_a_time_allocates_a_logarithmic_number_of_times():
    points, buffers = DensePoints(X), set()
    kept = []
    for row in np.tile(X, (50, 1)):
        points.append(row[np.newaxis])
        kept.append(points._buffer)
        buffers.add(id(points._buffer))
    assert len(buffers) <= 8


def test_data_far_from_zero_is_shifted_and_other_data_is_not():
    assert far_origin(X) is None
    np.testing.assert_allclose(far_origin(X + 1e6), X.mean(axis=0) + 1e6)


def test_products_with_far_points_lose_no_precision():
    near = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    far = (np.round(near, 2) * 64 + 2**20).astype(np.float32)
    points, V = DensePoints(far), np.ones((6, 1), dtype=np.float32)
    exact = (far.astype(float) - points.origin) @ V
    np.testing.assert_allclose(points.dot(V), exact, rtol=1e-5, atol=1e-4)


def test_growth_keeps_the_memory_order():
    assert grown(np.ones((3, 4), order="F"), 3, 4).flags.f_contiguous
    assert grown(np.ones((3, 4)), 3, 4).flags.c_contiguous


def test_a_window_that_slides_is_copied_once_a_turn(monkeypatch):
    copies = []
    plain = storage.grown

    def counted(buffer, used, needed):
        copies.append(needed > len(buffer))
        return plain(buffer, used, needed)

    monkeypatch.setattr(storage, "grown", counted)
    window, truth = DensePoints(X), X
    for _ in range(50):
        window.append(X[:5])
        window = window.kept(np.arange(window.n) >= 5)
        truth = np.concatenate([truth, X[:5]])[5:]
        np.testing.assert_array_equal(window.array, truth)
    # Removing copies what stays, and leaves room for what comes.
    assert sum(copies) == 1


def test_room_that_is_mostly_idle_is_given_back():
    window = DensePoints(np.zeros((100, 3)))
    assert len(window.kept(np.arange(100) < 10)._buffer) == 10
