"""A that is held beside U is UᵀU, after any steps."""

import pickle

import numpy as np
import pytest

from skmahal._core.metric import LowRank
from skmahal.online import POLA
from skmahal.online._square import _ROOM, MovingSquare

from .streams import pair_stream

D = 12


def dense(square):
    return np.stack([square @ row for row in np.eye(D)], axis=1)


def steps(count, scale=0.1):
    rng = np.random.default_rng(0)
    return [
        LowRank(*(scale * rng.normal(size=(size, 1)) for size in (D + 3, D)))
        for _ in range(count)
    ]


def followed(count):
    U = np.random.default_rng(1).normal(size=(D + 3, D))
    square = MovingSquare(U.T @ U)
    for change in steps(count):
        square = square.moved(change, change.W[:, 0] @ U)
        U = U + change.W @ change.V.T
    return U, square


@pytest.mark.parametrize("count", [0, 1, _ROOM // 2, _ROOM // 2 + 1, 3 * _ROOM])
def test_a_follows_every_step_of_u(count):
    U, square = followed(count)
    np.testing.assert_allclose(dense(square), U.T @ U, rtol=0, atol=1e-12 * len(U))


def test_a_value_stays_as_it_was_when_others_go_on_from_it():
    U, square = followed(_ROOM // 2 - 1)
    before = dense(square)
    one, other = steps(2, scale=1.0)
    later = [square.moved(step, step.W[:, 0] @ U) for step in (one, other)]
    np.testing.assert_array_equal(dense(square), before)
    for step, after in zip((one, other), later, strict=True):
        V = U + step.W @ step.V.T
        np.testing.assert_allclose(dense(after), V.T @ V, rtol=0, atol=1e-11)


@pytest.mark.parametrize("rank", [1, 5, D])
def test_a_factor_has_as_many_rows_as_its_matrix_has_rank(rank):
    U = np.random.default_rng(2).normal(size=(rank, D)) * 10.0 ** -np.arange(D)
    square = MovingSquare(U.T @ U).plus(2.0, np.ones(D))
    A = U.T @ U + 2
    R = square.factor()
    assert len(R) <= rank + 1
    np.testing.assert_allclose(R.T @ R, A, rtol=0, atol=1e-14 * np.linalg.norm(A))


def test_a_step_of_nothing_moves_nothing():
    _, square = followed(1)
    nothing = LowRank(np.zeros((D + 3, 1)), np.ones((D, 1)))
    assert square.moved(nothing, np.zeros(D)) is square


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_of_pola_is_that_of_its_components_after_many_steps(dtype):
    pairs, y = pair_stream(2000, D)
    learner = POLA().fit(pairs.astype(dtype), y)
    assert learner.n_clipped_ > 100
    U = learner.components_.astype(np.float64)
    size = np.linalg.norm(U.T @ U, 2)
    error = np.linalg.norm(dense(learner._square) - U.T @ U, 2)
    # Rounding errors of as many steps, which go in all directions.
    assert error < 8 * np.sqrt(learner.version_) * np.finfo(dtype).eps * size


def test_a_saved_value_goes_on_to_the_bit():
    U, square = followed(_ROOM)
    again = pickle.loads(pickle.dumps(square))
    for change in steps(_ROOM, scale=1.0):
        image = change.W[:, 0] @ U
        square, again = (one.moved(change, image) for one in (square, again))
        np.testing.assert_array_equal(dense(again), dense(square))
