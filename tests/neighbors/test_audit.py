"""An audit passes sketches that are as promised, and fails others."""

import pickle
import threading
from copy import copy, deepcopy

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import linalg, sparse, stats
from sklearn.base import clone

from skmahal import SketchedMahalanobisNeighbors
from skmahal._core.audit import LEVEL, audit_pairs
from skmahal.neighbors._recent import RecentQueries

from .cases import normal

TINY_TAIL = 1e-6
WIDE = 400
PARAMS = {"eps": 0.5, "L": 5, "lead": 0, "random_state": 0}


def index_of(X=None, **params):
    """An index whose distances are estimates that keep the promise."""
    X = normal(100, WIDE) if X is None else X
    index = SketchedMahalanobisNeighbors(**{**PARAMS, **params}).fit(X)
    assert index._estimates
    return index


def maps_of(index):
    """The rows of every sketch, as views that may be changed."""
    engine = index._engine
    assert engine.bank == 1
    images = [[piece.image for piece in pieces] for pieces in engine._sketches]
    return [[image.map for image in sketch] for sketch in images]


def spoil(index, change):
    """Apply a change to the rows of every sketch."""
    for pieces in maps_of(index):
        changed, start = change(np.vstack(pieces)), 0
        for rows in pieces:
            rows[:] = changed[start : start + len(rows)]
            start += len(rows)
    index._engine._state.forget()


def pool(share, size=10_000):
    """Estimates of pairs of distance 1, of which a share is off by more than 0.1."""
    return np.where(np.arange(size) < share * size, 1.2, 1.0)


def judged(estimates, n_pairs, seed=0, promised=1e-5, delta=0.01):
    drawn = np.random.default_rng(seed).choice(estimates, n_pairs)
    return audit_pairs(drawn, np.ones(n_pairs), 0.1, promised, delta)


# --- the test -----------------------------------------------------------------------


def test_the_level_is_the_one_that_is_documented():
    text = " ".join(SketchedMahalanobisNeighbors.audit.__doc__.split())
    assert f"at most {LEVEL} + `promised` / `allowed`" in text


@pytest.mark.parametrize(("promised", "allowed"), [(1e-5, 0.01), (0.03, 0.03)])
def test_the_p_value_is_that_of_an_exact_binomial_test(promised, allowed):
    found = judged(pool(0.02), 500, promised=promised)
    outside = round(found.outside * 500)
    assert outside > 0
    test = stats.binomtest(outside, 500, allowed, alternative="greater")
    assert found.p_value == pytest.approx(test.pvalue)
    assert found.allowed == allowed


def test_a_share_that_is_allowed_fails_as_rarely_as_the_level():
    """A pool on the edge: the worst for which the statement is true."""
    audits = [judged(pool(0.01), 300, seed) for seed in range(2000)]
    failed = sum(not found.passed for found in audits)
    assert failed <= stats.binom.isf(TINY_TAIL, 2000, LEVEL)


def test_a_share_of_several_times_the_allowed_is_noticed():
    power = stats.binom.sf(21, 1000, 0.06)
    assert power > 1 - TINY_TAIL
    assert not judged(pool(0.06), 1000).passed


def test_an_estimate_of_nothing_for_something_is_outside():
    found = audit_pairs(np.zeros(10), np.ones(10), 0.1, 1e-5, 0.01)
    assert found.outside == 1
    assert not found.passed
    found = audit_pairs(np.zeros(10), np.zeros(10), 0.1, 1e-5, 0.01)
    assert found.outside == 0
    assert set(found.ratios.values()) == {1.0}


# --- random pairs -------------------------------------------------------------------


def on_a_line(seed):
    """Points whose differences all have one direction: sketches err on all or none."""
    rng = np.random.default_rng(seed)
    return np.outer(rng.normal(size=60), rng.normal(size=WIDE))


def test_sound_sketches_fail_as_rarely_as_promised_also_on_a_line():
    count = 60
    audits = [
        index_of(on_a_line(seed), random_state=seed).audit(200, random_state=seed)
        for seed in range(count)
    ]
    alarm = LEVEL + max(found.promised / found.allowed for found in audits)
    assert alarm < LEVEL + 1 / 60
    failed = sum(not found.passed for found in audits)
    assert failed <= stats.binom.isf(TINY_TAIL, count, alarm)


def test_rows_that_were_set_too_few_are_judged_by_what_they_can_promise():
    found = index_of(m=8, R=3, eps=0.35).audit(300)
    assert found.promised > 0.01
    assert found.allowed == found.promised


@pytest.mark.parametrize("factor", [0.4, 1.6])
def test_sketches_of_a_wrong_scale_fail(factor):
    index = index_of()
    assert index.audit(200).passed
    spoil(index, lambda rows: factor * rows)
    assert not index.audit(200).passed


def test_sketches_of_fewer_rows_than_they_say_fail():
    index = index_of()
    rows, eps = 1, PARAMS["eps"]
    # The median of five such sketches errs often enough to be seen in 1000 pairs.
    share = stats.binom.sf(2, 5, stats.chi2.cdf((1 - eps) ** 2, rows))
    assert stats.binom.sf(22, 1000, share / 2) > 1 - TINY_TAIL

    def first_rows(map):
        kept = np.zeros_like(map)
        kept[:rows] = map[:rows] * np.sqrt(len(map) / rows)
        return kept

    spoil(index, first_rows)
    assert not index.audit(1000, random_state=0).passed


def test_sketches_that_point_one_way_fail():
    index = index_of()
    spoil(index, lambda rows: np.repeat(rows[:1], len(rows), axis=0))
    assert not index.audit(random_state=0).passed


def test_the_audit_as_a_whole_speaks_of_random_pairs():
    index = index_of()
    index.distances(normal(3, WIDE, seed=1))
    found = index.audit(300, random_state=0)
    names = ("n_pairs", "ratios", "outside", "promised", "allowed", "p_value")
    for name in names:
        assert getattr(found, name) == getattr(found.random, name)
    assert (found.n_pairs, found.eps) == (300, 0.5)
    assert len(found.random.sample) <= 300
    assert found.random.sample[0] == found.ratios[0.0]
    assert not found.random.sample.flags.writeable


# --- recent queries -----------------------------------------------------------------

Q = normal(4, WIDE, seed=1)
ASKING = {
    "kneighbors": lambda index: index.kneighbors(Q),
    "kneighbors_graph": lambda index: index.kneighbors_graph(Q),
    "distances": lambda index: index.distances(Q),
    "distances sparse": lambda index: index.distances(sparse.csr_matrix(Q)),
    "one by one": lambda index: [index.kneighbors(q[np.newaxis]) for q in Q],
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_queries_that_were_answered_are_audited(ask):
    index = index_of()
    assert index.audit(50).recent is None
    ask(index)
    assert_array_equal(index._recent.rows(), Q)
    assert index.audit(50).recent.n_pairs == 50
    assert_array_equal(index._recent.rows(), Q)


def test_recent_pairs_are_estimates_of_distances_to_the_nearest_points():
    index = index_of(n_neighbors=3)
    exact, near = index.kneighbors(Q)
    estimates = np.take_along_axis(index.distances(Q), near, axis=1)
    index.fit(normal(100, WIDE)).kneighbors(Q)
    sample = index.audit(2000, random_state=0).recent.sample
    expected = np.sort((estimates / exact).ravel())
    assert np.abs(sample[:, np.newaxis] - expected).min(axis=1).max() < 1e-12
    assert np.abs(sample[:, np.newaxis] - expected).min(axis=0).max() < 1e-12


def test_a_query_that_sketches_hardly_see_fails_and_new_sketches_pass():
    index = index_of()
    rows = np.vstack([np.vstack(pieces) for pieces in maps_of(index)])
    assert rows.shape == (index.L_ * index.m_, WIDE)
    unseen = linalg.null_space(rows)[:, 0]
    # What cannot be told from zero is computed exactly; this can be.
    seen = 0.1 * rows[0] / linalg.norm(rows[0])
    index.kneighbors(normal(100, WIDE)[:3] + unseen + seen)
    found = index.audit(random_state=0)
    assert found.random.passed
    assert not found.recent.passed
    assert found.recent.ratios[0.0] < 0.5
    assert not found.passed
    assert index.refresh_sketches().audit(random_state=0).passed


def test_queries_that_were_not_chosen_by_answers_pass():
    count = 40
    alarm = 2 * (LEVEL + 1 / 100)
    failed = 0
    for seed in range(count):
        index = index_of(normal(100, WIDE, seed=seed), random_state=seed)
        index.kneighbors(normal(5, WIDE, seed=1000 + seed))
        failed += not index.audit(200, random_state=seed).passed
    assert failed <= stats.binom.isf(TINY_TAIL, count, alarm)


def test_the_last_queries_are_held_and_no_more():
    index = index_of()
    asked = normal(150, WIDE, seed=2)
    index.kneighbors(asked[:100])
    for q in asked[100:]:
        index.distances(q[np.newaxis])
    held = index._recent.rows()
    assert len(held) == 64
    assert_array_equal(held[-50:], asked[100:])


@pytest.mark.parametrize(
    ("row_bytes", "most"), [(4, 64), (2**14, 64), (2**15, 32), (2**30, 1)]
)
def test_wide_queries_are_fewer(row_bytes, most):
    assert RecentQueries(row_bytes).most == most


def test_queries_are_copied():
    index, q = index_of(), Q[:1].copy()
    index.kneighbors(q)
    q[:] = 0
    assert_array_equal(index._recent.rows(), Q[:1])


def test_queries_that_were_refused_are_not_held():
    index = index_of()
    for bad in (Q[:, :-1], np.full((1, WIDE), np.nan), np.full((1, WIDE), 1e200)):
        with pytest.raises(ValueError, match="X"):
            index.kneighbors(bad)
        with pytest.raises(ValueError, match="X"):
            index.distances(bad)
    with pytest.raises(ValueError, match="n_neighbors"):
        index.kneighbors(Q, 101)
    assert index._recent.rows() == []


def test_an_exact_index_holds_no_queries():
    index = SketchedMahalanobisNeighbors().fit(normal(30, 5))
    index.kneighbors(normal(3, 5, seed=1))
    index.distances(normal(3, 5, seed=1))
    assert index._recent.rows() == []
    assert index.audit(10).recent is None


def test_fitting_anew_forgets():
    index = index_of()
    index.kneighbors(Q)
    assert index.fit(normal(60, WIDE))._recent.rows() == []


@pytest.mark.parametrize(
    "again", [lambda index: pickle.loads(pickle.dumps(index)), deepcopy]
)
def test_queries_stay_in_the_process_that_was_asked(again):
    index = index_of()
    index.kneighbors(Q)
    assert Q[0].tobytes() not in pickle.dumps(index)
    other = again(index)
    assert other._recent.rows() == []
    assert other.audit(10).recent is None
    other.kneighbors(Q[:1])
    assert_array_equal(other._recent.rows(), Q[:1])
    assert_array_equal(index._recent.rows(), Q)
    assert not hasattr(clone(index), "_recent")


def test_a_shallow_copy_audits_too():
    index = index_of()
    index.kneighbors(Q)
    assert copy(index).audit(10).recent is not None


def test_queries_do_not_change_the_attributes_of_an_index():
    index = index_of()
    before = vars(index).copy()
    index.kneighbors(Q)
    index.distances(Q)
    assert vars(index) == before


def test_threads_may_ask_while_another_audits():
    index = index_of(n_neighbors=2)
    errors = []

    def ask(seed):
        try:
            for q in normal(100, WIDE, seed=seed):
                index.kneighbors(q[np.newaxis])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert index.audit(20) is not None
        index.update_metric(normal(1, WIDE), rows=[0])
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(index._recent.rows()) == 64
