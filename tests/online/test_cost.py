"""What a step costs, in counted products and sizes, not in seconds."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from skmahal._core import compiled
from skmahal.online import POLA, _log, _projection, _square
from skmahal.online._resolvent import _ROOM as _INVERSE_ROOM
from skmahal.online._resolvent import Resolvent

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


@pytest.fixture
def inverses(monkeypatch):
    """Products of the inverse and a vector, and how often it was made from A."""
    seen = {"products": 0, "made": 0}
    product, made = Resolvent.__matmul__, Resolvent.of

    def counted(self, other):
        seen["products"] += 1
        return product(self, other)

    def counted_of(A, shift):
        seen["made"] += 1
        return made(A, shift)

    monkeypatch.setattr(Resolvent, "__matmul__", counted)
    monkeypatch.setattr(Resolvent, "of", counted_of)
    return seen


def test_a_dissimilar_pair_of_pola_is_one_product(
    products, squares, decompositions, monkeypatch
):
    factors, factor = [], _square.MovingSquare.factor
    monkeypatch.setattr(
        _square.MovingSquare, "factor", lambda A: factors.append(1) or factor(A)
    )
    pairs, _ = pair_stream(100, D)
    learner = POLA().fit(pairs / 9, np.full(100, -1))
    assert len(squares) == 100
    assert products == []
    assert learner.version_ >= 100
    # Room is made once in D / 8 pairs, which is O(kd) for each of them.
    assert len(factors) == 100 // (D // 8)
    assert decompositions == []


def test_a_similar_pair_of_pola_decomposes_only_small_matrices(
    products, squares, decompositions
):
    pairs, y = pair_stream(300, D)
    learner = POLA(tol=1e-4).fit(pairs, y)
    assert learner.n_clipped_ > 100
    assert {name for name, _ in decompositions} <= {"eigh", "eigvalsh", "solve"}
    assert max(size for _, size in decompositions) < D // 2
    # For the loss, and for two rounds of a step.
    assert len(squares) < 3.5 * 300
    # Of U: for the step, and for how A follows.
    assert len(products) <= 2 * np.sum(y > 0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", [1, 30])
def test_products_of_a_step_do_not_grow_with_the_stream(
    size, dtype, squares, inverses, monkeypatch
):
    """As A loses its small eigenvalues, step by step, to the projections."""
    plain = []
    monkeypatch.setattr(
        _projection,
        "_from_krylov",
        lambda *args, solve=_projection._from_krylov: plain.append(1) or solve(*args),
    )
    rng = np.random.default_rng(0)
    pairs = (size * rng.normal(size=(12, 50, 2, D)) / np.sqrt(2 * D)).astype(dtype)
    learner, counts = POLA(), []
    for batch in pairs:
        before = inverses["products"], len(squares)
        learner.partial_fit(batch, np.where(rng.random(50) < 0.5, 1, -1))
        counts.append((inverses["products"] - before[0], len(squares) - before[1]))
    assert learner.n_clipped_ > 100
    single, double = np.max(counts, axis=0) / 50
    assert single < 40
    assert double < 4
    assert len(plain) <= 2
    # In O(d³), so that it is O(d²) for each of its products.
    assert inverses["made"] <= 1 + inverses["products"] / D


def test_a_space_that_is_soon_exhausted_takes_few_products(products, squares):
    # A has two distinct eigenvalues: the Krylov space has two dimensions.
    init = np.diag(np.repeat([1.0, 2.0], D // 2))
    pairs, _ = pair_stream(1, D)
    POLA(init=init).fit(5 * pairs, [1])
    # Those that find the size of A, and two rounds.
    assert len(squares) == 1 + _square._POWERS + 2
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
        # The inverse is in single precision.
        numbers += (d * d + _INVERSE_ROOM * (d + 1)) // 2
    assert 8 * k * d < min(sizes)
    assert max(sizes) < 8 * numbers + 4_000
