"""Both layouts of an image hold what the map gives, whatever happens to the points."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skmahal._core import compiled
from skmahal._core.images import CHUNK, Columns, Rows

K = 7
SIZES = [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5]


@pytest.fixture(params=["compiled", "numpy"])
def backend(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(compiled, "fast", lambda: None)


class Pair:
    """An image and the transformed points that it should be the image of."""

    def __init__(self, kind, n, dtype=np.float64):
        self.rng = np.random.default_rng(n)
        self.points = self.normal(n, K).astype(dtype)
        self.image = kind(None if kind is Rows else self.normal(3, K).astype(dtype))
        self.image.load(self.image.project(self.points).copy())

    def normal(self, *shape):
        return self.rng.normal(size=shape).astype(np.float64)

    def check(self, rtol=1e-10):
        n, truth = len(self.points), self.image.project(self.points)
        size = np.abs(truth).max()
        assert_allclose(self.image.view(n), truth, rtol=0, atol=rtol * size)
        if isinstance(self.image, Columns):
            some = self.rng.permutation(n)[:5]
            assert_allclose(
                self.image.take(some), truth[some], rtol=0, atol=rtol * size
            )
            squares = self.image.blocks(n)[:, -1].ravel()[:n]
            assert_allclose(squares, (truth**2).sum(axis=1), rtol=1e3 * rtol)


kinds = pytest.mark.parametrize("kind", [Rows, Columns])
sizes = pytest.mark.parametrize("n", SIZES)


@kinds
@sizes
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-6), (np.float64, 1e-14)])
def test_an_image_gives_back_what_it_was_loaded_with(kind, n, dtype, rtol):
    Pair(kind, n, dtype).check(rtol)


@kinds
@sizes
@pytest.mark.parametrize("rank", [1, 4])
def test_an_image_follows_the_metric(backend, kind, n, rank):
    pair = Pair(kind, n)
    W, T = pair.normal(K, rank), np.asfortranarray(pair.normal(n, rank))
    pair.image.move(W, T)
    pair.points = pair.points + T @ W.T
    pair.check()


@kinds
@sizes
@pytest.mark.parametrize("count", [1, CHUNK, 2 * CHUNK + 3])
def test_points_are_added_behind_the_others(kind, n, count):
    pair = Pair(kind, n)
    for _ in range(2):
        new = pair.normal(count, K)
        pair.image.append(len(pair.points), new)
        pair.points = np.vstack([pair.points, new])
        pair.check()


@kinds
@sizes
def test_points_are_replaced_and_removed(kind, n):
    pair = Pair(kind, n)
    some = pair.rng.permutation(n)[: 1 + n // 3]
    pair.points[some] = pair.normal(len(some), K)
    pair.image.assign(some, pair.points[some])
    pair.check()
    mask = np.ones(n, dtype=bool)
    mask[some[1:]] = False
    pair.image.keep(mask)
    pair.points = pair.points[mask]
    pair.check()


@kinds
def test_an_image_that_is_read_only_is_copied_before_it_changes(kind):
    pair = Pair(kind, 40)
    before = pair.image._buffer
    before.flags.writeable = False
    pair.image.assign(np.array([3]), pair.points[:1])
    assert pair.image._buffer is not before


def test_chunks_begin_at_lines_of_the_cache():
    assert Pair(Columns, 300, np.float32).image._buffer.ctypes.data % 64 == 0
