"""Costs of steps, as counted products and sizes, not in seconds.

Products are counted on private classes, since no public name shows them.
"""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from skmahal.online import POLA, _factor, _pola

from .streams import LEARNERS, pair_stream

D = 128
DECOMPOSITIONS = ("cholesky", "eig", "eigh", "eigvalsh", "inv", "lstsq", "pinv")
DECOMPOSITIONS += ("qr", "solve", "svd")


@pytest.fixture
def counts(monkeypatch):
    """Numbers of products with U and with the inverse, and of new inverses."""
    seen = {"U": 0, "inverse": 0, "new": 0}

    def count(owner, name, what):
        plain = getattr(owner, name)

        def counted(self, *args):
            seen[what] += 1
            return plain(self, *args)

        monkeypatch.setattr(owner, name, counted)

    count(_factor.MovingFactor, "__matmul__", "U")
    count(_factor.MovingFactor, "pull_back", "U")
    count(_pola.ShiftedInverse, "__matmul__", "inverse")
    count(_pola.ShiftedInverse, "__init__", "new")
    return seen


@pytest.fixture
def decompositions(monkeypatch):
    """Name and size of every decomposition by NumPy, in a list that grows."""
    seen = []
    for name in DECOMPOSITIONS:
        plain = getattr(np.linalg, name)

        def counted(matrix, *args, name=name, plain=plain, **kwargs):
            seen.append((name, max(np.shape(matrix))))
            return plain(matrix, *args, **kwargs)

        monkeypatch.setattr(np.linalg, name, counted)
    return seen


@pytest.mark.parametrize("name", ["LEGO", "OnlineITML"])
def test_a_step_is_two_products_and_no_decomposition(name, counts, decompositions):
    pairs, y = pair_stream(100, D)
    learner = clone(LEARNERS[name]).fit(pairs, y)
    assert counts["U"] == learner.n_steps_ + learner.version_
    assert decompositions == []


def test_a_dissimilar_pair_of_pola_is_two_products(counts, decompositions, monkeypatch):
    factors, plain = [], _pola.triangular_factor
    monkeypatch.setattr(
        _pola, "triangular_factor", lambda U: factors.append(1) or plain(U)
    )
    pairs, _ = pair_stream(100, D)
    learner = POLA().fit(pairs / 9, np.full(100, -1))
    assert learner.version_ >= 100
    assert (counts["U"], counts["inverse"]) == (100, 100)
    # Zero rows are made once in D / 8 pairs, which is O(kd) for each of them.
    assert len(factors) == 100 // (D // 8)
    assert decompositions == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 30])
def test_products_of_a_step_do_not_grow_with_the_stream(size, counts, decompositions):
    """Although projections remove small eigenvalues of A, step by step."""
    rng = np.random.default_rng(0)
    pairs = size * rng.normal(size=(12, 50, 2, D)) / np.sqrt(2 * D)
    learner, batches = POLA(), []
    for batch in pairs:
        before = counts["inverse"], counts["U"]
        learner.partial_fit(batch, np.where(rng.random(50) < 0.5, 1, -1))
        batches.append((counts["inverse"] - before[0], counts["U"] - before[1]))
    assert learner.n_clipped_ > 100
    inverse, U = np.max(batches, axis=0) / 50
    assert inverse < 30
    # One for the loss, two for the residual, and rarely two more.
    assert U < 3
    # In O(d³), so that it is O(d²) for each of its products.
    assert counts["new"] <= 1 + 4 * counts["inverse"] / D
    assert max(length for _, length in decompositions) < D // 2


def test_few_distinct_eigenvalues_need_few_products(counts):
    # A has two of them, and a Krylov space two dimensions.
    init = np.diag(np.repeat([1.0, 2.0], D // 2))
    pairs, _ = pair_stream(1, D)
    POLA(init=init).fit(5 * pairs, [1])
    assert counts["U"] == 3
    # Two or three of the space, and one to follow the step.
    assert counts["inverse"] <= 4


@pytest.mark.slow
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
    numbers = k * d + 16 * (k + d) + 8 * d
    if name == "POLA":
        numbers += d * d + 128 * 2 * d
    assert 8 * k * d < min(sizes)
    assert max(sizes) < 8 * numbers + 4_000
