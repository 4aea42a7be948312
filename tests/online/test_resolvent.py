"""The inverse that is held beside A is its inverse, after any terms."""

import pickle
from copy import copy

import numpy as np
import pytest

from skmahal.online import POLA
from skmahal.online._resolvent import _ROOM, Resolvent
from skmahal.online._square import MovingSquare

from .streams import pair_stream

D, SHIFT = 24, 0.1


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def semidefinite():
    U = normal(D, 2 * D)
    return U @ U.T / D


def dense(matrix, d=D):
    return np.stack([matrix @ row for row in np.eye(d)], axis=1)


def assert_inverse(resolvent, A, rounding=8):
    product = dense(resolvent, len(A)) @ (A + resolvent.shift * np.eye(len(A)))
    condition = np.linalg.norm(A, 2) / resolvent.shift
    error = rounding * condition * np.finfo(np.float32).eps
    np.testing.assert_allclose(product, np.eye(len(A)), rtol=0, atol=error)


@pytest.mark.parametrize("A", [semidefinite(), np.diag(np.arange(D) / D)])
def test_it_is_made_from_any_semidefinite_matrix(A):
    before = A.copy()
    assert_inverse(Resolvent.of(A, SHIFT), A)
    np.testing.assert_array_equal(A, before)


def test_there_is_none_of_a_matrix_that_is_not():
    A = semidefinite()
    A[0, 0] = -1
    assert Resolvent.of(A, SHIFT) is None


@pytest.mark.parametrize("count", [1, _ROOM, _ROOM + 1, 3 * _ROOM])
def test_it_follows_every_term(count):
    A, rng = semidefinite(), np.random.default_rng(1)
    resolvent = Resolvent.of(A, SHIFT)
    # What is added is taken away again, or A would grow.
    terms = np.repeat(rng.normal(size=(count, D)), 2, axis=0)[:count]
    for number, term in enumerate(terms):
        scale = 0.1 if number % 2 == 0 else -0.1
        resolvent = resolvent.followed(scale, term)
        A = A + scale * np.outer(term, term)
    assert resolvent.age == count
    # Rounding errors of as many terms, which go in all directions.
    assert_inverse(resolvent, A, rounding=8 * np.sqrt(count))


def test_a_value_stays_as_it_was_when_others_go_on_from_it():
    A = semidefinite()
    start = Resolvent.of(A, SHIFT).followed(1.0, normal(D, seed=1))
    before = dense(start)
    terms = [normal(D, seed=seed) for seed in (2, 3)]
    later = [start.followed(1.0, term) for term in terms]
    np.testing.assert_array_equal(dense(start), before)
    A = A + np.outer(normal(D, seed=1), normal(D, seed=1))
    for term, after in zip(terms, later, strict=True):
        assert_inverse(after, A + np.outer(term, term))


def moving_square(steps):
    square, rng = MovingSquare(semidefinite()), np.random.default_rng(2)
    A = semidefinite()
    for number in range(steps):
        term = rng.normal(size=D)
        square, A = square.plus(0.01, term), A + 0.01 * np.outer(term, term)
        # It is asked for now and then, and catches up with what there was since.
        if number % 50 == 20:
            square.near_inverse()
    return square, A


@pytest.mark.parametrize("steps", [0, 30, 64, 65, 200])
def test_the_inverse_of_a_moving_matrix_follows_it(steps, monkeypatch):
    made, of = [], Resolvent.of
    monkeypatch.setattr(Resolvent, "of", lambda *args: made.append(1) or of(*args))
    square, A = moving_square(steps)
    assert_inverse(square.near_inverse(), A, rounding=8 * np.sqrt(steps + 1))
    assert len(made) == 1


def test_an_inverse_that_is_forgotten_is_made_from_a_as_it_is():
    square, A = moving_square(30)
    square.forget_inverse()
    assert square.near_inverse().age == 0
    assert_inverse(square.near_inverse(), A)
    np.testing.assert_allclose(dense(square), A, rtol=0, atol=1e-12)


def test_a_term_that_leaves_the_range_of_float32_leaves_no_inverse():
    with np.errstate(all="ignore"):
        assert Resolvent.of(np.eye(3), 0.5).followed(1.0, np.full(3, 1e39)) is None


@pytest.mark.parametrize("steps", [0, 30, 65])
def test_the_scale_of_a_moving_matrix_is_its_largest_eigenvalue(steps):
    square, A = moving_square(steps)
    assert square.scale == pytest.approx(np.linalg.norm(A, 2), rel=0.2)


def test_a_matrix_that_has_shrunk_since_has_its_own_scale():
    square = MovingSquare(np.eye(3))
    for row in np.eye(3):
        square = square.plus(1e-6 - 1, row)
    assert 1e-6 <= square.scale <= 3.1e-6


def test_a_copy_keeps_what_it_learns_to_itself():
    square, _ = moving_square(10)
    before = pickle.dumps(square.__getstate__())
    other = copy(square)
    other.near_inverse()
    other.worked(-1e-3, 10)
    assert pickle.dumps(square.__getstate__()) == before


@pytest.mark.parametrize("value", [0.5, 1e-2, 1e-4])
def test_the_shift_goes_where_eigenvalues_are(value):
    square = MovingSquare(np.eye(D))
    first = square.near_inverse().shift
    for _ in range(D):
        square.worked(-value, 2)
    chosen = square.near_inverse().shift
    if 1 / 3 < value / first < 3:
        assert chosen == first
    else:
        assert chosen == pytest.approx(np.clip(value, 1e-3, 0.5))


@pytest.mark.parametrize("value", [1e-9, 1e9])
def test_a_shift_at_its_bounds_can_be_saved(value):
    """Also where rounding takes the bound times the mean eigenvalue below the bound."""
    means = np.random.default_rng(0).uniform(0.5, 2, size=100_000)
    means = means[1e-3 * means / means < 1e-3]
    assert len(means) > 5
    for mean in means:
        square = MovingSquare(mean * np.eye(D))
        square.near_inverse()
        square.worked(-value, D + 1)
        again = MovingSquare.__new__(MovingSquare)
        again.__setstate__(square.__getstate__())
        assert again.near_inverse().shift == square.near_inverse().shift != 0.01 * mean


def test_an_inverse_does_not_outlive_the_range_of_float32():
    square = MovingSquare(np.eye(3))
    square.near_inverse()
    far = square.plus(1e30, np.eye(3)[0])
    # As many terms as it takes to add them in.
    for _ in range(64):
        far = far.plus(0.01, np.eye(3)[1])
    assert far.near_inverse() is None
    back = far.plus(-1e30, np.eye(3)[0])
    for _ in range(64):
        back = back.plus(0.01, np.eye(3)[1])
    assert_inverse(back.near_inverse(), back.dense(), 64)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("init", ["identity", "zeros"])
def test_a_learner_that_is_saved_goes_on_to_the_bit(init, dtype):
    """Saved after every step, where it goes on from what was saved."""
    pairs, y = pair_stream(200, D)
    pairs = pairs.astype(dtype)
    learner, again = POLA(init=init), POLA(init=init)
    for at in range(200):
        batch = pairs[at : at + 1], y[at : at + 1]
        learner = learner.partial_fit(*batch)
        again = pickle.loads(pickle.dumps(again)).partial_fit(*batch)
        np.testing.assert_array_equal(again.components_, learner.components_)
    assert learner.n_clipped_ > 30


SMALL = {"stored": np.eye(2, dtype=np.float32), "terms": np.zeros((0, 2), np.float32)}


def inverse_state(**changes):
    return {"inverse": {**Resolvent.of(np.eye(D), 1.0).__getstate__(), **changes}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shift": 0.0}, "shift is 0.0"),
        ({"shift": np.nan}, "shift is nan"),
        ({"shift": 1e-9}, "shift is 1e-09"),
        ({"scale": ((1.0, 1.0), np.inf)}, "scale is"),
        ({"work": (1, 2, np.inf)}, "add up to inf"),
        ({"work": (1.5, 2, 0.0)}, "steps is 1.5"),
        ({"work": (1, -2, 0.0)}, "spent is -2"),
        ({"known": 11}, "known is 11"),
        ({"stored": np.eye(D, dtype=np.float32)}, "stored has numbers of type"),
        ({"stored": np.ones((D, D + 1))}, "not square"),
        ({"terms": np.zeros((3, D))}, "terms has shape"),
        (
            inverse_state(stored=np.eye(2, dtype="f"), terms=np.zeros((0, 2), "f")),
            "other",
        ),
        (inverse_state(shift=-1.0), "shifted by -1.0"),
        (inverse_state(shift="0.01"), "shifted by '0.01'"),
        (inverse_state(age=-5), "age is -5"),
        (inverse_state(stored=None), "stored is no array"),
    ],
)
def test_a_state_that_cannot_be_is_refused(change, says):
    square, _ = moving_square(10)
    square.near_inverse()
    other = MovingSquare.__new__(MovingSquare)
    with pytest.raises(ValueError, match=says):
        other.__setstate__({**square.__getstate__(), **change})


def test_a_learner_with_the_matrix_of_another_is_refused():
    pairs, y = pair_stream(10, D)
    state = POLA().fit(pairs, y).__getstate__()
    state["_square"] = MovingSquare(np.eye(D + 1)).__getstate__()
    with pytest.raises(ValueError, match="n_features_in_ is not 25"):
        POLA().__setstate__(state)
