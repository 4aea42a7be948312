"""Attacks by adaptive queries, where the guarantee says that none succeeds, and else.

The guarantee has two parts. L sketches are representative: whatever the vector, at most
a share β of them are off by more than eps, but for a chance of delta/2 when they are
drawn. And the R of them that serve a question are drawn afresh, so that the median is
off with a probability p, a hypergeometric tail. However the questions were chosen, the
number of wrong answers is then at most Binomial(questions, p); it is held against the
quantile that this passes once in 10⁶ times.
"""

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist

from skmahal import MetricMaintenance, SketchedMahalanobisNeighbors
from skmahal._core import bounds, keyed, plan
from tests.adversary import (
    ATTACKS,
    OneSketch,
    Refreshing,
    Structure,
    placed_lengths,
    placing,
    reported_lengths,
    unit,
)

RARE = 1e-6
EPS, DELTA = 0.5, 0.01
K, M, COUNT = 128, 16, 1500
COPIES = 200

each_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)


def two_points(k):
    """A point and its negative."""
    first = unit(np.random.default_rng(0).normal(size=k))
    return np.stack([first, -first]).astype(np.float32)


def safe_number(k, m):
    """How many sketches the guarantee asks for."""
    L = int(bounds.representative_sketches(k, m, EPS, DELTA / 2, plan.BETA))
    assert plan.adaptively_safe(k, m, L, EPS, DELTA / 2, "gaussian")
    return L


def outvoted(L, R):
    """Probability that a median of R out of L representative sketches is off."""
    return stats.hypergeom.sf(R // 2, L, int(plan.BETA * L), R)


def most_failures(trials, p):
    """Failures of probability p that are exceeded less than once in 10⁶ times."""
    return stats.binom.isf(RARE, trials, p)


def estimator(points, **parameters):
    """An index whose neighbours are those of smallest estimate."""
    return SketchedMahalanobisNeighbors(
        1, eps=EPS, delta=DELTA, lead=0, n_candidates=1, random_state=0, **parameters
    ).fit(points)


class Witness:
    """An index whose answers are held against the truth as they are given."""

    def __init__(self, index, points):
        self._index, self._points = index, points
        self.asked = self.wrong = self.estimated = 0

    def distances(self, X):
        return self._seen(self._index.distances(X), cdist(X, self._points))

    def pair_distances(self, i, j):
        truth = np.linalg.norm(self._points[i] - self._points[j], axis=1)
        return self._seen(self._index.pair_distances(i, j), truth)

    def kneighbors(self, X, n_neighbors, return_distance=False):
        found = self._index.kneighbors(X, n_neighbors, return_distance=False)
        nearest = cdist(X, self._points).argmin(axis=1)
        self.estimated += np.sum(found[:, 0] != nearest)
        return found

    def partial_fit(self, X):
        self._points = np.vstack([self._points, X])
        self._index.partial_fit(X)

    def remove_points(self, indices):
        self._points = np.delete(self._points, indices, axis=0)
        self._index.remove_points(indices)

    def _seen(self, answers, truth):
        errors = np.abs(answers / truth - 1)
        self.asked += errors.size
        self.wrong += np.sum(errors > EPS)
        self.estimated += np.sum(errors > 1e-3)
        return answers


def reports(index, points, vectors, attack):
    """What the index says of copies of each vector, relative to their lengths.

    Copies of other lengths are served by other sketches, so a report that was only
    lucky does not count as learnt.
    """
    scales = np.linspace(0.5, 2, COPIES)[:, np.newaxis]
    ask = placed_lengths if attack is placing else reported_lengths
    lengths = [ask(index, points, scales * v) for v in vectors]
    return np.stack(lengths) / scales.T


def is_moved(reported):
    """Whether the report of some vector is mostly off by more than eps."""
    return bool(np.any(np.abs(np.median(reported, axis=1) - 1) > EPS))


@pytest.fixture(scope="module", params=["one vote", "votes enough"])
def safe_index(request):
    """As many sketches as make the guarantee hold; with one vote, p is β."""
    L = safe_number(K, M)
    R = bounds.adaptive_votes(L, plan.BETA, DELTA / 2)
    R = 1 if request.param == "one vote" else R
    assert plan.pays(M, R, 0, K), "the answers must be estimates"
    return estimator(two_points(K), m=M, L=L, R=R), outvoted(L, R)


@pytest.fixture(scope="module")
def certain_structure():
    """The same for a structure with so many votes that no answer is ever off."""
    k, m = 16, 12
    L = safe_number(k, m)
    R = bounds.adaptive_votes(L, plan.BETA, RARE / (4 * COUNT))
    engine = MetricMaintenance(
        None, two_points(k), eps=EPS, delta=DELTA, m=m, L=L, R=R, seed=0
    )
    return Structure(engine), outvoted(L, R)


def hold_under(attack, index, p, points, count=COUNT):
    """Attack an index; hold the answers, and what is said of the vectors found.

    The n estimates of a query share their sketches and may go wrong together; some one
    of them does with probability n p at the most.
    """
    witness = Witness(index, points)
    vectors = attack(witness, points, count, np.random.default_rng(1))
    assert witness.estimated > 0, "there is nothing to learn from exact answers"
    n = len(points)
    assert witness.wrong <= n * most_failures(max(1, witness.asked // n), n * p)
    reported = reports(index, points, vectors, attack)
    assert not is_moved(reported)
    for copies in reported:
        assert np.sum(np.abs(copies - 1) > EPS) <= most_failures(COPIES, p)


@each_attack
def test_every_attack_breaks_a_single_sketch(attack):
    points = two_points(K)
    one = OneSketch(points, m=M, random_state=0)
    vectors = attack(one, points, COUNT, np.random.default_rng(1))
    lengths = reports(one, points, vectors, attack)
    assert lengths.min() < 0.5 or lengths.max() > 2


@each_attack
def test_every_attack_moves_an_index_of_few_sketches(attack):
    points = two_points(K)
    index = estimator(points, m=M, L=3, R=3)
    assert not plan.adaptively_safe(K, M, 3, EPS, DELTA / 2, "gaussian")
    vectors = attack(index, points, 4 * COUNT, np.random.default_rng(1))
    assert is_moved(reports(index, points, vectors, attack))


@each_attack
def test_no_attack_moves_the_index_where_the_guarantee_holds(attack, safe_index):
    hold_under(attack, *safe_index, two_points(K))


@each_attack
def test_with_votes_enough_no_answer_to_an_attack_is_off_at_all(
    attack, certain_structure
):
    structure, p = certain_structure
    assert most_failures(COUNT, 2 * p) == 0
    hold_under(attack, structure, p, two_points(structure.engine.k))


@each_attack
def test_after_a_refresh_an_attack_is_worth_nothing(attack):
    """The reports follow the law of a vector that was chosen before the sketches."""
    points, share = two_points(K), 0.05
    index = Refreshing(estimator(points, m=M, L=3, R=3), every=20)
    vectors = attack(index, points, COUNT, np.random.default_rng(1))
    eps = bounds.accuracy(M, 3, share)
    afresh = Refreshing(index._index, every=1)
    for copies in reports(afresh, points, vectors, attack):
        assert np.sum(np.abs(copies - 1) > eps) <= most_failures(COPIES, share)


def trap(vector, rng, decoys=30, queries=60):
    """Points and queries: the first point is nearest to all, and lies along `vector`.

    The decoys are further by less than the length by which a lure is misreported, and
    more than a search looks at before it has bounds.
    """
    directions = unit(rng.normal(size=(decoys, len(vector))))
    about = unit(rng.normal(size=(queries, len(vector))))
    return np.vstack([vector, 1.1 * directions]), 0.01 * about


def neighbours_missed(index, points, monkeypatch):
    """How many certified searches go wrong after an attack on what was nearest."""
    attack = ATTACKS["summing_by_neighbours"]
    rng = np.random.default_rng(1)
    [vector] = attack(index, points, COUNT, rng)
    lures, queries = trap(vector, rng)
    index.partial_fit(lures).remove_points([0, 1]).set_params(n_candidates="certified")

    def left_to_brute_force(*_):
        pytest.fail("the bounds, not brute force, are on trial")

    monkeypatch.setattr(index._engine, "_find_exactly", left_to_brute_force)
    found = index.kneighbors(queries, return_distance=False)
    return np.sum(found != 0), most_failures(len(queries), DELTA)


def test_certified_neighbours_stay_right_where_the_guarantee_holds(monkeypatch):
    points = two_points(K)
    index = estimator(points, m=M, L=safe_number(K, M))
    assert index.engine_ == "sketched"
    missed, most = neighbours_missed(index, points, monkeypatch)
    assert missed <= most


def test_certified_neighbours_of_one_sketch_are_missed_after_an_attack(monkeypatch):
    points = two_points(K)
    missed, most = neighbours_missed(estimator(points, m=M, L=1), points, monkeypatch)
    assert missed > most


@pytest.mark.stress
@each_attack
def test_no_longer_attack_moves_a_larger_index(attack):
    k, m, points = 256, 16, two_points(256)
    L = safe_number(k, m)
    R = bounds.adaptive_votes(L, plan.BETA, DELTA / 20)
    assert plan.pays(m, R, 0, k), "the answers must be estimates"
    index = estimator(points, m=m, L=L, R=R)
    hold_under(attack, index, outvoted(L, R), points, count=5 * COUNT)


@pytest.fixture(scope="module")
def many_places():
    """A safe index of points that an attacker moves, as it was when fitted."""
    L, rng = safe_number(K, M), np.random.default_rng(0)
    R = bounds.adaptive_votes(L, plan.BETA, DELTA / 2)
    return estimator(unit(rng.normal(size=(300, K))), m=M, L=L, R=R), outvoted(L, R)


def lengths_by_moving_points(index, vectors):
    """Lengths of vectors: points are moved there, and one query is asked every time."""
    places, found = np.arange(index.n_samples_fit_), []
    for start in range(0, len(vectors), len(places)):
        batch = vectors[start : start + len(places)]
        index.update_points(places[: len(batch)], batch)
        found.append(index.distances(np.zeros((1, K)))[0, : len(batch)])
    return np.concatenate(found)


def moved_by_one_query(index):
    """Reports of the extremes that answers to one query, about moved points, tell."""
    rng = np.random.default_rng(1)
    vectors = unit(rng.normal(size=(12_000, K)))
    squares = lengths_by_moving_points(index, vectors) ** 2
    extremes = np.linalg.eigh(vectors.T @ (vectors * (squares - 1)[:, None]))[1]
    scales = np.linspace(0.5, 2, 25)
    # One place at a time, so that every report is of another version.
    return np.stack(
        [
            [lengths_by_moving_points(index, scale * v[None])[0] for scale in scales]
            for v in extremes[:, [0, -1]].T
        ]
        / scales
    )


def test_points_moved_by_the_answers_to_one_query_find_nothing_out(many_places):
    index, p = many_places
    reported = moved_by_one_query(index)
    assert not is_moved(reported)
    for copies in reported:
        assert np.sum(np.abs(copies - 1) > EPS) <= most_failures(len(copies), p)


def test_sketches_that_stayed_with_a_query_would_be_found_out(many_places, monkeypatch):
    plain = keyed.query_bytes
    monkeypatch.setattr(keyed, "query_bytes", lambda Q, m, _: plain(Q, m, 0))
    assert is_moved(moved_by_one_query(many_places[0]))
