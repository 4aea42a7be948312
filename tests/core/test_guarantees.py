"""A guarantee says what the tails, and the sketches in use, give."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from scipy import sparse, stats

from skmahal import MetricMaintenance, SketchedMahalanobisNeighbors
from skmahal._core import bounds
from skmahal._core.guarantees import (
    Audit,
    Failures,
    audit_pairs,
    guarantee,
    relative_errors,
)

NUMBERS = {
    "n": 500,
    "k": 400,
    "d": 400,
    "m": 48,
    "pooled": 320,
    "L": 10,
    "R": 5,
    "lead": 16,
    "eps": 0.2,
    "delta": 0.01,
    "sketch": "gaussian",
    "n_neighbors": 5,
    "costs": {},
}

# Sketches enough for four dimensions, of which a tenth may be bad.
SAFE = {"k": 4, "m": 200, "L": 20, "eps": 0.3, "delta": 0.1}
TINY_TAIL = 1e-6


def held(distances="sketched", pairs=None, **changed):
    ways = {"distances": distances, "pair_distances": pairs or distances}
    return guarantee(ways=ways, **{**NUMBERS, **changed})


def test_estimates_that_were_not_chosen_by_answers_fail_as_the_tails_say():
    tail = bounds.failure(0.2, 48, 5)
    assert held().fixed.pair_distances == tail
    assert held().fixed.distances == 500 * tail
    assert held(m=4).fixed.distances == 1


@pytest.mark.parametrize("numbers", [{"m": 2, "R": 1, "auto_R": False}, {"m": 90}, {}])
def test_certified_neighbours_keep_delta_whatever_the_sketches_are(numbers):
    found = held(neighbors="certified", **numbers)
    assert found.fixed.kneighbors == 0.01
    assert "with probability at least 0.99 per query" in str(found)


@pytest.mark.parametrize("neighbors", ["exact", "certified", "budget"])
def test_exact_searches_hold_for_fixed_and_for_adaptive_queries(neighbors):
    found = held(neighbors=neighbors)
    assert found.fixed.radius_neighbors == found.adaptive.radius_neighbors == 0
    exact = found.fixed.kneighbors == found.adaptive.kneighbors == 0
    assert exact == (neighbors == "exact")
    assert ("- kneighbors: exact." in str(found)) == exact
    assert (found.R_neighbors == 0) == exact


def test_a_budget_of_candidates_promises_nothing():
    found = held(neighbors="budget")
    assert found.fixed.kneighbors == found.adaptive.kneighbors == 1
    assert "kneighbors: nothing is promised" in str(found)


def test_too_few_sketches_promise_nothing_for_adaptive_queries():
    found = held(neighbors="certified")
    assert found.adaptive == Failures(1, 0, 1, 1)
    assert not found.enough_sketches
    assert "adaptive=True promises" in str(found)


def test_the_sketches_said_to_suffice_do_and_one_less_does_not():
    enough = held().sufficient_L
    few, many = (held(L=L, neighbors="certified") for L in (enough - 1, enough))
    assert (few.enough_sketches, many.enough_sketches) == (False, True)
    assert few.adaptive.kneighbors == 1
    assert many.adaptive.kneighbors == 0.01
    assert enough == bounds.representative_sketches(400, 48, 0.2, 0.005)


def test_votes_at_auto_keep_delta_under_adaptive_queries_where_sketches_suffice():
    numbers = SAFE["k"], *(SAFE[name] for name in ("m", "L", "eps", "delta"))
    R = bounds.votes_for_all(500, *numbers, "gaussian")
    found = held(R=R, **SAFE)
    assert found.adaptive.distances <= SAFE["delta"] * (1 + 1e-12)
    assert held(R=R - 2, **SAFE).adaptive.distances > SAFE["delta"]


def test_votes_that_were_set_too_low_are_not_hidden_by_enough_sketches():
    found = held(R=1, auto_R=False, neighbors="certified", **SAFE)
    assert found.enough_sketches
    # Two of twenty sketches may be bad, and the draw of all of them too.
    assert found.adaptive.pair_distances == pytest.approx(0.05 + 2 / 20)
    assert found.adaptive.distances == found.adaptive.kneighbors == 1


@pytest.mark.parametrize("changed", [{"sketch": "srht"}, {"m": 8}, {"eps": 0.01}])
def test_no_number_of_sketches_is_named_where_none_is_proven_to_do(changed):
    found = held(**changed)
    assert found.sufficient_L is None
    assert not found.enough_sketches
    assert "sketches promise it" not in str(found)


@pytest.mark.parametrize("way", ["exact", "enclosed"])
def test_results_that_are_certain_hold_for_all_queries(way):
    found = held(distances=way, pairs="exact")
    assert found.engine == way
    assert found.fixed == found.adaptive == Failures(0, 0, 0, 0)
    assert (found.enough_sketches, found.sufficient_L) == (True, 0)
    words = "distances: exact" if way == "exact" else "certain to be within 1 ± 0.2"
    assert words in str(found)
    assert "For every query, however it was chosen" in str(found)


def test_one_sketch_holds_for_fixed_queries_alone():
    found = held(distances="pooled", pairs="exact")
    assert found.engine == "sketched"
    assert found.fixed.distances == 500 * bounds.failure(0.2, 320)
    assert found.adaptive == Failures(0, 0, 1, 0)
    assert "One sketch of 320 rows serves distances" in str(found)
    assert "adaptive=True promises distances" in str(found)
    found = held(distances="enclosed", pairs="pooled")
    assert "One sketch of 320 rows serves pair_distances" in str(found)
    assert "adaptive=True promises pair_distances" in str(found)
    found = held(distances="pooled", pairs="pooled")
    assert "320 rows serves distances and pair_distances" in str(found)


@pytest.mark.parametrize("count", [1, 10, 99, 1000])
def test_certified_neighbours_hold_for_a_number_of_adaptive_queries(count):
    """If no other results come from the sketches that exclude points."""
    found = held(distances="pooled", neighbors="certified", n_queries=count)
    assert found.adaptive.kneighbors == min(1, count * 0.01)
    assert found.n_queries == count
    leaking = held(distances="sketched", neighbors="certified", n_queries=count)
    assert leaking.adaptive.kneighbors == 1
    rare = held(
        distances="enclosed", neighbors="certified", n_queries=count, delta=1e-8
    )
    assert rare.adaptive.kneighbors == pytest.approx(count * 1e-8)
    assert count == 1 or f"for all of {count} queries" in str(rare)


def test_fewer_columns_than_rows_of_u_bound_the_sketches_that_suffice():
    wide, low = held(k=400, d=400), held(k=400, d=30)
    assert low.sufficient_L == bounds.representative_sketches(30, 48, 0.2, 0.005)
    assert low.sufficient_L < wide.sufficient_L


def test_methods_that_an_estimator_does_not_have_are_left_out():
    found = held(offers=["kneighbors"], neighbors="certified")
    assert found.fixed == Failures(kneighbors=0.01)
    assert found.adaptive == Failures(kneighbors=1.0)
    assert "distances:" not in str(found)
    exact = held(offers=["kneighbors"])
    assert str(exact).splitlines()[-1] == "- kneighbors: exact."


def test_words_have_the_numbers():
    costs = {"exact": (0, 1e-4, 5e-4), "codes": (2e6, None, 1e-4)}
    found = held(neighbors="certified", costs=costs)
    text = str(found)
    for part in ("500 points", "k=400", "L=10", "m=48", "R=5", "16 leading", "1 ± 0.2"):
        assert part in text
    size = 4e-9 * 500 * 48 * found.sufficient_L
    assert f"L={found.sufficient_L} sketches" in text
    assert f"take {size:.0f} GB" in text
    assert "delta=1e-05 does for 1000 queries" in text
    assert "- exact: 0.0 MB, 100 or 500 µs." in text
    assert "- codes: 2.0 MB, 100 µs alone." in text


@pytest.mark.parametrize("m", [16, 40, 48, 90, 160, 300])
def test_probabilities_in_words_are_not_above_the_promise(m):
    found = held(m=m)
    for line in str(found).splitlines():
        if "probability at least" in line:
            name = line[2:].split(":")[0]
            words = line.split("at least ")[1].split(" per ")[0]
            small = words.startswith("1 - ")
            failure = float(words[4:]) if small else 1 - float(words)
            exact = getattr(found.fixed, name)
            assert exact * (1 - 1e-6) <= failure <= 1.2 * exact + 1e-4


def test_a_guarantee_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        held().delta = 0


def with_bad_sketches(share, R="auto"):
    """An index of representative sketches, of which a share is wrong everywhere.

    Sketches are replaced in the maps of the index, because no public name spoils them.
    """
    X = np.random.default_rng(0).normal(size=(3, SAFE["k"]))
    promise = {name: value for name, value in SAFE.items() if name != "k"}
    index = MetricMaintenance(None, X, **promise, R=R, seed=0)
    index.query_pair(0, 0)
    for array in index.index.caches[: int(share * index.L)]:
        array.map[:] *= 3
    index.update_u(np.zeros(SAFE["k"]), 0)
    index.set_metric(np.eye(SAFE["k"]) * 2)
    return index


def wrong_queries(index, count=3000):
    """How many queries have some distance off by more than eps."""
    Q = np.random.default_rng(1).normal(size=(count, index.d))
    exact = 2 * np.linalg.norm(Q[:, np.newaxis] - index.X, axis=2)
    return (np.abs(index.query_all(Q) / exact - 1) > index.eps).any(axis=1).sum()


def test_bad_sketches_that_are_allowed_for_are_outvoted():
    """Representative sketches may include a share BETA that is wrong everywhere."""
    most = stats.binom.isf(TINY_TAIL, 3000, SAFE["delta"] / 2)
    assert wrong_queries(with_bad_sketches(bounds.BETA)) <= most
    assert wrong_queries(with_bad_sketches(bounds.BETA, R=1)) > most


def test_an_audit_passes_sound_estimates_and_fails_others():
    exact = np.ones(1000)
    sound = audit_pairs(1.05 * exact, exact, eps=0.1, promised=1e-4, delta=0.01)
    estimates = np.where(np.arange(1000) < 30, 1.2, 1.0)
    unsound = audit_pairs(estimates, exact, eps=0.1, promised=1e-4, delta=0.01)
    assert (sound.passed, unsound.passed) == (True, False)
    assert unsound.p_value == stats.binom.sf(29, 1000, 0.01)
    assert unsound.ratios[1.0] == 1.2
    assert Audit(sound, None, 0.1).passed
    audit = Audit(sound, unsound, 0.1)
    assert not audit.passed
    assert (audit.n_pairs, audit.outside, audit.allowed) == (1000, 0.0, 0.01)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = audit.other


def test_relative_errors_of_zero_distances_are_zero_or_infinite():
    errors = relative_errors(np.array([1.1, 0.0, 0.1]), np.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(errors, [0.1, 0.0, np.inf])


@pytest.mark.parametrize("n", [300, 2000])
def test_what_many_pairs_may_be_computed_by_is_promised(n):
    """One pair is exact, and thousands may be by a sketch."""
    rng = np.random.default_rng(0)
    X, U = rng.normal(size=(n, 400)), rng.normal(size=(400, 400))
    index = MetricMaintenance(U, X, seed=0)
    estimator = SketchedMahalanobisNeighbors(metric_learner=U, random_state=0).fit(X)
    i, j = rng.integers(n, size=(2, 4 * n))
    exact = index.exact_pair(i, j)
    assert np.abs(index.query_pair(i, j) - exact).max() > 1e-3 * exact.max()
    for found in (index.guarantee(), estimator.guarantee()):
        assert 0 < found.fixed.pair_distances <= 0.01
        assert found.adaptive.pair_distances == 1
    few = MetricMaintenance(U[:20], X[:10], eps=0.05)
    i, j = rng.integers(10, size=(2, 60))
    np.testing.assert_allclose(few.query_pair(i, j), few.exact_pair(i, j))


def test_new_sketches_take_the_place_of_old_ones():
    X = np.random.default_rng(0).normal(size=(200, 2000))
    index = MetricMaintenance(None, X, m=8, L=3, seed=0)
    for _ in range(3):
        index.query_all(X[:2])
        index.refresh_sketches()
        assert index.index.caches == []


@pytest.mark.parametrize("candidates", ["all", 0, 2.5, None, 4000])
def test_candidates_are_those_of_a_search(candidates):
    index = MetricMaintenance(None, np.eye(20), n_neighbors=3)
    with pytest.raises(ValueError, match="candidates must be"):
        index.guarantee(candidates=candidates)
    assert index.guarantee(candidates=5).fixed.kneighbors == 1


def test_sparse_points_under_few_rows_are_audited():
    """Their transformed rows are dense, and may be enclosed."""
    rng = np.random.default_rng(0)
    X = sparse.random(3000, 400, density=0.2, format="csr", random_state=0)
    U = rng.normal(size=(60, 400)) * 0.8 ** np.arange(60)[:, np.newaxis]
    index = MetricMaintenance(U, X, seed=0)
    estimator = SketchedMahalanobisNeighbors(metric_learner=U, random_state=0).fit(X)
    for audited in (index, estimator):
        assert audited.audit(100, random_state=0).passed
