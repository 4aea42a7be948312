"""What a step costs, in counted products and sizes, not in seconds."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from skmahal._core import compiled
from skmahal.online import POLA, _log, _square

from .streams import LEARNERS, pair_stream

D = 128
DECOMPOSITIONS = ("cholesky", "eig", "eigh", "eigvalsh", "inv", "lstsq", "pinv")
DECOMPOSITIONS += ("qr", "solve", "svd")


@pytest.fixture
def products(monkeypatch):
    """Products of U and a vector, either way, in a list that grows."""
    seen = []
    # The compiled loops do the same, and do not count.
    monkeypatch.setattr(compiled, "fast", lambda: None)
    for name in ("__matmul__", "__rmatmul__"):
        plain = getattr(_log.MovingFactor, name)

        def counted(self, other, plain=plain):
            seen.append(np.shape(other))
            return plain(self, other)

        monkeypatch.setattr(_log.MovingFactor, name, counted)
    return seen


@pytest.fixture
def squares(monkeypatch):
    """Products of A and a vector, in a list that grows."""
    seen, plain = [], _square.MovingSquare.__matmul__

    def counted(self, other):
        seen.append(np.shape(other))
        return plain(self, other)

    monkeypatch.setattr(_square.MovingSquare, "__matmul__", counted)
    return seen


@pytest.fixture
def decompositions(monkeypatch):
    """Name and size of every decomposition of a matrix, in a list that grows."""
    seen = []
    for name in DECOMPOSITIONS:
        plain = getattr(np.linalg, name)

        def counted(matrix, *args, name=name, plain=plain, **kwargs):
            seen.append((name, max(np.shape(matrix))))
            return plain(matrix, *args, **kwargs)

        monkeypatch.setattr(np.linalg, name, counted)
    return seen


@pytest.mark.parametrize("name", ["LEGO", "OnlineITML"])
def test_a_step_is_two_products_and_no_decomposition(name, products, decompositions):
    pairs, y = pair_stream(100, D)
    learner = clone(LEARNERS[name]).fit(pairs, y)
    assert len(products) == learner.n_steps_ + learner.version_
    assert set(products) == {(D,)}
    assert decompositions == []


def test_a_dissimilar_pair_of_pola_is_one_product(products, decompositions):
    pairs, _ = pair_stream(100, D)
    learner = POLA().fit(pairs / 9, np.full(100, -1))
    assert len(products) == 100
    assert learner.version_ >= 100
    # Room is made once in D / 8 pairs, which is O(kd) for each of them.
    assert {name for name, _ in decompositions} == {"qr"}
    assert len(decompositions) == 100 // (D // 8)


def test_a_similar_pair_of_pola_decomposes_only_small_matrices(
    products, squares, decompositions
):
    pairs, y = pair_stream(300, D)
    learner = POLA(tol=1e-4).fit(pairs, y)
    assert learner.n_clipped_ > 100
    small = [size for name, size in decompositions if name == "eigh"]
    assert {name for name, _ in decompositions} <= {"eigh", "qr"}
    assert max(small) < D // 2
    assert len(squares) < 300 * D // 4
    # Of U: for the loss until A is held, for the step, and for how A follows.
    assert len(products) < 3 * 300


def test_a_space_that_is_soon_exhausted_takes_few_products(products, squares):
    # A has two distinct eigenvalues: the Krylov space has two dimensions.
    init = np.diag(np.repeat([1.0, 2.0], D // 2))
    pairs, _ = pair_stream(1, D)
    POLA(init=init).fit(5 * pairs, [1])
    assert len(squares) == 2
    # The loss, the image of the result, and what A follows it by.
    assert len(products) == 3


@pytest.mark.parametrize("form", ["pairs", "points"])
@pytest.mark.parametrize("name", LEARNERS)
def test_the_memory_of_a_stream_is_bounded(name, form):
    pairs, y = pair_stream(150, 32)
    batch = pairs if form == "pairs" else pairs[:, 0]
    learner = clone(LEARNERS[name]).set_params(reservoir_size=8)
    sizes = []
    for t in range(150):
        learner.partial_fit(batch[t : t + 1], y[t : t + 1])
        sizes.append(len(pickle.dumps(learner)))
    k, d = learner.components_.shape
    numbers = k * d + _log.log_room(d) * (k + d) + 8 * d
    if name == "POLA":
        numbers += d * d + _square._ROOM * (d + 1)
    assert 8 * k * d < min(sizes)
    assert max(sizes) < 8 * numbers + 4_000
