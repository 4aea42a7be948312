"""An audit passes sketches that are as promised, and fails others."""

import pickle
import threading
from copy import copy, deepcopy

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse, stats

from skmahal import SketchedMahalanobisNeighbors
from skmahal._core import bounds

from .cases import normal

# The level of the test and the probability of a false failure of a test below.
LEVEL = 1e-3
TINY_TAIL = 1e-6
WIDE = 400
PARAMS = {"eps": 0.5, "L": 5, "lead": 0, "random_state": 0}
CERTIFIED = {"n_candidates": "certified"}


def index_of(X=None, **params):
    """An index whose distances are estimates that keep the promise."""
    X = normal(100, WIDE) if X is None else X
    params = {**PARAMS, **params}
    rest = params["L"], params["eps"], params.get("delta", 0.01), "gaussian"
    params.setdefault("m", bounds.sketch_rows(len(X), *rest))
    index = SketchedMahalanobisNeighbors(**params).fit(X)
    assert index.engine_ == "sketched"
    return index


def test_the_level_is_the_one_that_is_documented():
    text = " ".join(SketchedMahalanobisNeighbors.audit.__doc__.split())
    assert f"at most {LEVEL} + `promised` / `allowed`" in text


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


@pytest.mark.parametrize("sketch", ["gaussian", "rademacher", "countsketch", "srht"])
def test_an_index_that_keeps_its_promise_passes(sketch):
    index = index_of(sketch=sketch, m=16, R=3)
    audit = index.audit(n_pairs=500, random_state=0)
    assert audit.n_pairs == 500
    assert audit.passed
    assert audit.outside <= audit.promised + 5 * np.sqrt(audit.promised / 500)
    assert 0.3 < audit.ratios[0.0] < 1 < audit.ratios[1.0] < 3
    assert index.audit(500, random_state=0) == audit
    assert index.audit(500) != audit


def test_rows_that_were_set_too_few_are_judged_by_what_they_can_promise():
    found = index_of(m=8, R=3, eps=0.35).audit(300)
    assert found.promised > 0.01
    assert found.allowed == found.promised


def test_the_p_value_is_that_of_an_exact_binomial_test():
    found = index_of(m=8, R=3, eps=0.35).audit(500, random_state=0)
    outside = round(found.outside * 500)
    assert outside > 0
    test = stats.binomtest(outside, 500, found.allowed, alternative="greater")
    assert found.p_value == pytest.approx(test.pvalue)


@pytest.mark.parametrize("factor", [0.4, 1.6])
def test_estimates_of_a_wrong_scale_fail(factor, monkeypatch):
    index = index_of()
    assert index.audit(200).passed
    exact = index._maintenance.exact_pair
    # Sketches that are wrong have to be made: no public name has them.
    wrong = lambda i, j: factor * exact(i, j)  # noqa: E731
    monkeypatch.setattr(index._maintenance, "query_pair", wrong)
    found = index.audit(200)
    assert not found.passed
    assert found.outside > 0.9


def test_the_audit_as_a_whole_has_the_numbers_of_random_pairs():
    index = index_of()
    index.distances(normal(3, WIDE, seed=1))
    found = index.audit(300, random_state=0)
    for name in ("n_pairs", "ratios", "outside", "promised", "allowed", "p_value"):
        assert getattr(found, name) == getattr(found.random, name)
    assert (found.n_pairs, found.eps) == (300, 0.5)
    assert len(found.random.sample) <= 300
    assert found.random.sample[0] == found.ratios[0.0]
    assert not found.random.sample.flags.writeable
    points, recent = str(found).splitlines()
    assert points == (
        f"{100 * found.outside:.2f} % of 300 distances between points are off by more "
        f"than 50 %; up to {100 * found.allowed:g} % may be: passed."
    )
    assert "between recent queries and neighbours are" in recent


def test_exact_distances_pass_an_audit_of_few_pairs():
    audit = SketchedMahalanobisNeighbors().fit(normal(500, 10)).audit(100)
    assert audit.outside == 0
    assert audit.p_value == 1
    assert audit.passed
    assert audit.recent is None


# --- recent queries -----------------------------------------------------------------

Q = normal(4, WIDE, seed=1)
SERVED = {
    "kneighbors": lambda index: index.kneighbors(Q),
    "kneighbors_graph": lambda index: index.kneighbors_graph(Q),
    "distances": lambda index: index.distances(Q),
    "distances sparse": lambda index: index.distances(sparse.csr_matrix(Q)),
    "one by one": lambda index: [index.kneighbors(q[np.newaxis]) for q in Q],
}


def ratios_to_nearest(index, Q, K=5):
    """Estimate over exact distance of queries to their nearest points, sorted."""
    exact, near = copy(index).set_params(n_candidates="exact").kneighbors(Q, K)
    estimates = deepcopy(index).distances(Q)
    return np.sort((np.take_along_axis(estimates, near, axis=1) / exact).ravel())


def assert_recent(index, Q):
    """The pool of recent pairs of `index` is that of the queries Q."""
    expected = ratios_to_nearest(index, Q)
    recent = index.audit(60 * len(expected), random_state=0).recent
    # Each of the pairs is missed with probability e^-60.
    gaps = np.abs(recent.sample[:, np.newaxis] - expected)
    assert gaps.min(axis=1).max() < 1e-9
    assert gaps.min(axis=0).max() < 1e-9


@pytest.mark.parametrize("serve", SERVED.values(), ids=SERVED)
def test_queries_that_sketches_served_are_audited(serve):
    index = index_of(**CERTIFIED)
    assert index.audit(50).recent is None
    serve(index)
    assert index.audit(50).recent.n_pairs == 50
    assert_recent(index, Q)


@pytest.mark.parametrize("n_candidates", ["exact", "certified", 50])
def test_exact_neighbours_are_not_served_by_sketches(n_candidates):
    index = index_of(n_candidates=n_candidates)
    index.kneighbors(Q)
    assert (index.audit(10).recent is None) == (n_candidates == "exact")
    index = SketchedMahalanobisNeighbors(n_candidates=n_candidates).fit(normal(90, 5))
    index.kneighbors(normal(3, 5, seed=1))
    index.distances(normal(3, 5, seed=1))
    assert index.audit(10).recent is None


def test_a_query_that_sketches_hardly_see_fails_and_new_sketches_pass():
    """Its estimates are learned by regression on estimates, as an attacker would."""
    index = index_of(m=8, L=1, R=1, eps=0.5, delta=0.5)
    X, rng = normal(100, WIDE), np.random.default_rng(2)
    # Squared estimates of x_0 + v are quadratic in v: the form is found by its values.
    base = X[:1]
    basis = rng.normal(size=(WIDE, 12))
    basis = np.linalg.qr(basis)[0].T

    def square(V):
        return index.distances(base + V)[:, 0] ** 2

    units = square(basis)
    form = np.diag(units)
    for a in range(12):
        for b in range(a):
            form[a, b] = form[b, a] = (
                square((basis[a] + basis[b])[np.newaxis])[0] - units[a] - units[b]
            ) / 2
    values, vectors = np.linalg.eigh(form)
    # An estimate that cannot be told from zero is computed exactly; this one can be.
    seen = 0.2 * vectors[:, -1] / np.sqrt(values[-1])
    hidden = (vectors[:, 0] + seen) @ basis
    index = deepcopy(index)  # which has no recent queries
    index.distances(base + hidden)
    index.set_params(n_neighbors=1)
    found = index.audit(200, random_state=0)
    assert not found.recent.passed
    assert found.recent.ratios[0.0] < 0.5
    assert not found.passed
    assert index.refresh_sketches().audit(200, random_state=0).recent.ratios[0.0] > 0.5


@pytest.mark.slow
def test_queries_that_were_not_chosen_by_estimates_pass():
    count = 40
    alarm = 2 * (LEVEL + 1 / 100)
    failed = 0
    for seed in range(count):
        index = index_of(normal(100, WIDE, seed=seed), random_state=seed)
        index.distances(normal(5, WIDE, seed=1000 + seed))
        failed += not index.audit(200, random_state=seed).passed
    assert failed <= stats.binom.isf(TINY_TAIL, count, alarm)


def test_the_last_queries_are_held_and_no_more():
    index = index_of(n_neighbors=1)
    queries = normal(150, WIDE, seed=2)
    index.distances(queries[:100])
    for q in queries[100:]:
        index.distances(q[np.newaxis])
    expected = ratios_to_nearest(index, queries[-128:], K=1)
    recent = index.audit(5000, random_state=0).recent
    gaps = np.abs(recent.sample[:, np.newaxis] - expected)
    assert gaps.min(axis=1).max() < 1e-9
    assert gaps.min(axis=0).max() < 1e-9


def test_queries_are_copied():
    index, q = index_of(), Q.copy()
    index.distances(q)
    q[:] = 0
    assert_recent(index, Q)


def test_queries_that_were_refused_are_not_held():
    index = index_of(**CERTIFIED)
    for bad in (Q[:, :-1], np.full((1, WIDE), np.nan), np.full((1, WIDE), 1e200)):
        with pytest.raises(ValueError, match="X"):
            index.kneighbors(bad)
        with pytest.raises(ValueError, match="X"):
            index.distances(bad)
    with pytest.raises(ValueError, match="n_neighbors"):
        index.kneighbors(Q, 101)
    assert index.audit(10).recent is None


def test_a_new_fit_forgets_queries():
    index = index_of()
    index.distances(Q)
    assert index.fit(normal(60, WIDE)).audit(10).recent is None


@pytest.mark.parametrize(
    "again", [lambda index: pickle.loads(pickle.dumps(index)), deepcopy]
)
def test_queries_stay_in_the_process(again):
    index = index_of()
    index.distances(Q)
    assert Q[0].tobytes() not in pickle.dumps(index)
    other = again(index)
    assert other.audit(10).recent is None
    other.distances(Q[:1])
    assert_recent(other, Q[:1])
    assert_recent(index, Q)
    assert copy(index).audit(10).recent is not None


def test_threads_may_query_while_another_audits():
    index = index_of(n_neighbors=2, **CERTIFIED)
    errors = []

    def query(seed):
        try:
            for q in normal(50, WIDE, seed=seed):
                index.kneighbors(q[np.newaxis])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=query, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert index.audit(20) is not None
        index.update_metric(normal(1, WIDE), rows=[0])
    for thread in threads:
        thread.join()
    assert errors == []


def test_queries_do_not_change_the_attributes_of_an_index():
    index = index_of(**CERTIFIED)
    before = vars(index).copy()
    index.kneighbors(Q)
    index.distances(Q)
    assert vars(index) == before
    assert_array_equal(list(vars(index)), list(before))
