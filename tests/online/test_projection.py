"""Products in single precision, mended in double, give what double gives."""

import numpy as np
import pytest

from skmahal.online import POLA, _refined
from skmahal.online._projection import taken_out
from skmahal.online._resolvent import Resolvent
from skmahal.online._square import _ROOM, MovingSquare
from skmahal.online._steps import subtracted

from .streams import DensePOLA, pair_stream

D, TOL = 259, 1e-10


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def semidefinite(kind):
    """A matrix whose largest eigenvalue is one."""
    basis, _ = np.linalg.qr(normal(D, D))
    spectrum = {
        "few values": np.repeat([1.0, 0.3], [5, D - 5]),
        "decaying": np.linspace(0.02, 1, D) ** 2,
        "singular": np.maximum(np.linspace(-0.5, 1, D), 0),
        "nearly singular": np.logspace(-12, 0, D),
    }[kind]
    return (basis.T * spectrum) @ basis, basis[-1] + basis[-2]


KINDS = ("few values", "decaying", "singular", "nearly singular")


@pytest.fixture
def products(monkeypatch):
    """How many products of A there were, in single and in double precision."""
    seen = {"single": 0, "double": 0}
    for kind, name in ((Resolvent, "single"), (MovingSquare, "double")):
        plain = kind.__matmul__

        def counted(self, q, plain=plain, name=name):
            seen[name] += 1
            return plain(self, q)

        monkeypatch.setattr(kind, "__matmul__", counted)
    return seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alpha", [1e-3, 0.3, 30.0])
@pytest.mark.parametrize("inside", [True, False])
def test_the_answer_solves_its_equation_to_the_tolerance(kind, alpha, inside):
    A, v = semidefinite(kind)
    v = v if inside else normal(D, seed=1) / 10
    found = taken_out(MovingSquare(A), v, alpha, TOL, D)
    lowest = np.linalg.eigvalsh(A - alpha * np.outer(v, v))[0]
    if abs(lowest) > 1e-9:
        assert found.negative == (lowest < 0)
    if found.negative:
        value = -alpha * found.root**2
        off = alpha * found.along * v - A @ found.vector + value * found.vector
        assert value == pytest.approx(lowest, abs=1e-9)
    else:
        off = v - A @ found.vector
    error = found.error(np.linalg.norm(off), alpha, np.linalg.norm(v))
    # The scale is estimated from below, which only asks for more.
    assert error < 2 * TOL
    assert found.along == pytest.approx(v @ found.vector, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("smallest", [1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("beyond", [-1e-2, -1e-6, 1e-6, 1e-2, 1.0])
def test_signs_that_single_precision_cannot_tell_are_right(smallest, beyond):
    """Where the least eigenvalue of ``A - α vvᵀ`` is near zero, on either side."""
    basis, _ = np.linalg.qr(normal(D, D))
    values = np.repeat([smallest, 1.0], [20, D - 20])
    U = np.sqrt(values)[:, np.newaxis] * basis
    v = normal(D, seed=1)
    alpha = (1 + beyond) / np.sum((basis @ v) ** 2 / values)
    A = (basis.T * values) @ basis
    change, clipped = subtracted(U, v, alpha, TOL, MovingSquare(A))
    values, vectors = np.linalg.eigh(A - alpha * np.outer(v, v))
    exact = (vectors * np.maximum(values, 0)) @ vectors.T
    moved = U + change.W @ change.V.T
    assert np.linalg.norm(moved.T @ moved - exact, 2) < 10 * TOL
    if abs(values[0]) > 1e-12:
        assert clipped == (values[0] < 0)


@pytest.mark.parametrize("alpha", [1e-3, 0.3])
def test_nearly_all_products_are_in_single_precision(products, alpha):
    A, _ = semidefinite("decaying")
    square = MovingSquare(A)
    # To know the size of A takes products too, but not for every step.
    assert square.scale == pytest.approx(1, rel=0.2)
    products["double"] = 0
    taken_out(square, normal(D, seed=1) / 10, alpha, TOL, D)
    assert 1 <= products["double"] <= 4
    assert products["single"] > 4 * products["double"]


@pytest.mark.parametrize("scale", [1e-60, 1e20, 1e100])
def test_what_single_precision_cannot_hold_is_done_in_double(products, scale):
    A, _ = semidefinite("decaying")
    v = normal(D, seed=1) / 10
    plain = taken_out(A, v, 0.3, TOL, D)
    found = taken_out(MovingSquare(scale * A), v, 0.3 * scale, TOL, D)
    assert found.negative == plain.negative
    np.testing.assert_allclose(found.vector, plain.vector, atol=1e-7)
    assert products["double"] > 10


def test_what_does_not_converge_is_done_in_double(monkeypatch, products):
    monkeypatch.setattr(_refined, "_ROUNDS", 1)
    A, _ = semidefinite("decaying")
    v = normal(D, seed=1) / 10
    found = taken_out(MovingSquare(A), v, 0.3, TOL, D)
    plain = taken_out(A, v, 0.3, TOL, D)
    np.testing.assert_array_equal(abs(found.vector), abs(plain.vector))
    assert products["double"] > 10


@pytest.mark.parametrize(("dtype", "limit"), [(np.float64, 1e-8), (np.float32, 1e-5)])
def test_steps_of_many_features_are_those_of_the_dense_formulas(dtype, limit, products):
    pairs, y = pair_stream(60, D, dtype=dtype)
    pairs *= 3
    learner, oracle = POLA().fit(pairs, y), DensePOLA(np.eye(D))
    for (a, b), sign in zip(pairs.astype(np.float64), y, strict=True):
        oracle.step(a - b, sign)
    assert learner.n_clipped_ > 10
    assert products["single"] > 2 * products["double"]
    off = np.linalg.norm(learner.get_mahalanobis_matrix() - oracle.A)
    assert off < limit * np.linalg.norm(oracle.A)


def test_single_precision_follows_for_as_long_as_the_stream_goes_on(products):
    pairs, y = pair_stream(3 * _ROOM, D)
    learner = POLA().fit(3 * pairs, y)
    # Each is two terms of A.
    assert learner.version_ > _ROOM
    # One for the loss, and a few to hold answers against A.
    assert products["double"] < 5 * learner.n_steps_
