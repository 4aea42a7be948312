"""What is said to hold is what the tails, and the sketches in use, give."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from scipy import stats

from skmahal._core import bounds, plan
from skmahal._core.guarantee import Failures, guarantee
from skmahal._core.maintenance import MetricMaintenance

NUMBERS = {
    "engine": "sketched",
    "n": 500,
    "k": 400,
    "m": 48,
    "L": 10,
    "R": 5,
    "lead": 16,
    "eps": 0.2,
    "delta": 0.01,
    "sketch": "gaussian",
    "n_neighbors": 5,
}

# Sketches enough for four dimensions, of which a tenth may be bad.
SAFE = {"k": 4, "m": 200, "L": 20, "eps": 0.3, "delta": 0.1}
TINY_TAIL = 1e-6


def held(**changed):
    return guarantee(**{**NUMBERS, **changed})


def test_estimates_that_were_not_chosen_by_answers_fail_as_the_tails_say():
    tail = bounds.failure(0.2, 48, 5)
    assert held().fixed.pair_distances == tail
    assert held().fixed.distances == 500 * tail
    assert held(m=4).fixed.distances == 1


@pytest.mark.parametrize("numbers", [{"m": 2, "R": 1, "auto_R": False}, {"m": 90}, {}])
def test_certified_neighbours_keep_delta_whatever_the_sketches_are(numbers):
    found = held(**numbers)
    assert found.fixed.kneighbors == found.fixed.radius_neighbors == 0.01


def test_a_budget_of_candidates_promises_nothing():
    found = held(neighbors="budget")
    assert found.fixed.kneighbors == found.adaptive.kneighbors == 1
    assert "kneighbors: nothing is promised" in str(found)


def test_too_few_sketches_promise_nothing_to_who_chooses_by_answers():
    found = held()
    assert found.adaptive == Failures(1, 1, 1, 1)
    assert not found.enough_sketches
    assert found.refresh_every == 1


def test_the_sketches_said_to_suffice_do_and_one_less_does_not():
    enough = held().sufficient_L
    few, many = held(L=enough - 1), held(L=enough)
    assert (few.enough_sketches, many.enough_sketches) == (False, True)
    assert few.adaptive.kneighbors == 1
    assert many.adaptive.kneighbors == 0.01
    assert enough == bounds.representative_sketches(400, 48, 0.2, 0.005)


def test_votes_at_auto_keep_delta_under_adaptive_queries_where_sketches_suffice():
    numbers = SAFE["k"], *(SAFE[name] for name in ("m", "L", "eps", "delta"))
    R = plan.votes_for_all(500, *numbers, "gaussian")
    found = held(R=R, **SAFE)
    assert found.adaptive.distances <= SAFE["delta"] * (1 + 1e-12)
    assert found.refresh_every is None
    assert held(R=R - 2, **SAFE).adaptive.distances > SAFE["delta"]


def test_votes_that_were_set_too_low_are_not_hidden_by_enough_sketches():
    found = held(R=1, auto_R=False, **SAFE)
    assert found.enough_sketches
    # Two of twenty sketches may be bad, and the draw of all of them too.
    assert found.adaptive.pair_distances == pytest.approx(0.05 + 2 / 20)
    assert found.adaptive.distances == found.adaptive.kneighbors == 1
    assert found.refresh_every == 1
    assert "R that was set" in str(found)


@pytest.mark.parametrize("changed", [{"sketch": "srht"}, {"m": 8}, {"eps": 0.01}])
def test_no_number_of_sketches_is_named_where_none_is_proven_to_do(changed):
    found = held(**changed)
    assert found.sufficient_L is None
    assert not found.enough_sketches
    assert "No number of sketches" in str(found)


def test_exact_answers_hold_for_everybody():
    found = held(engine="exact")
    assert found.fixed == found.adaptive == Failures(0, 0, 0, 0)
    assert found.enough_sketches
    assert (found.sufficient_L, found.refresh_every) == (0, None)
    assert "exact" in str(found)
    assert "refresh" not in str(found)
    found = held(estimates=False, neighbors="exact")
    assert found.fixed == found.adaptive._replace(radius_neighbors=0.01)
    assert found.fixed.distances == found.fixed.kneighbors == 0


def test_questions_that_are_not_taken_are_not_spoken_of():
    found = held(offers=["kneighbors"])
    assert found.fixed == Failures(kneighbors=0.01)
    assert found.adaptive == Failures(kneighbors=1.0)
    assert "distances:" not in str(found)
    assert held(offers=["kneighbors"], neighbors="exact").refresh_every is None


def test_words_have_the_numbers():
    text = str(held())
    for part in ("500 points", "k=400", "L=10", "m=48", "R=5", "16 leading", "1 ± 0.2"):
        assert part in text
    assert f"L={held().sufficient_L} sketches would do" in text
    assert "refresh_sketches() after every call" in text
    assert "not promised" in text
    assert "0.01 t" in text


def test_a_guarantee_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        held().delta = 0


def with_bad_sketches(share, seed=0):
    """An index of representative sketches: a share of them is wrong everywhere."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(3, SAFE["k"]))
    promise = {name: value for name, value in SAFE.items() if name != "k"}
    index = MetricMaintenance(None, X, **promise, seed=seed)
    for pieces in index._sketches[: int(share * index.L)]:
        for piece in pieces:
            piece.image.map[:] *= 3
    return index


def wrong_answers(index, count=3000):
    """How many queries have some distance off by more than eps."""
    Q = np.random.default_rng(1).normal(size=(count, index.d))
    truth = np.linalg.norm(Q[:, np.newaxis] - index.X, axis=2)
    return (np.abs(index.query_all(Q) / truth - 1) > index.eps).any(axis=1).sum()


def test_bad_sketches_that_are_allowed_for_are_outvoted():
    """Representative sketches may be wrong everywhere, as far as who asks knows."""
    index = with_bad_sketches(plan.BETA)
    most = stats.binom.isf(TINY_TAIL, 3000, SAFE["delta"] / 2)
    assert wrong_answers(index) <= most
    index._asked_R = 1
    assert wrong_answers(index) > most
