"""Attacks by adaptive queries: on exact neighbours, on few sketches and on many.

Exact results depend on points, metric and query alone, so that an attacker learns
nothing. For estimates the guarantee has two parts. First, L sketches are
representative with probability 1 - delta/2: for every vector, at most a share β of them
is off by more than eps. Second, the R sketches of a query are a fresh choice, so that
the median is off with a probability p, a hypergeometric tail. The number of wrong
estimates is then at most Binomial(queries, p), however the queries were chosen. It is
compared with the quantile that is exceeded with probability 10⁻⁶.
"""

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from skmahal import MetricMaintenance, SketchedMahalanobisNeighbors
from skmahal._core import bounds, sketches
from skmahal._core.kernels import available
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


@pytest.fixture(autouse=True)
def one_thread():
    """Thousands of small products are slow on several threads of BLAS."""
    with threadpool_limits(1):
        yield


def two_points(k):
    """A point and its negative."""
    first = unit(np.random.default_rng(0).normal(size=k))
    return np.stack([first, -first]).astype(np.float32)


def safe_number(k, m):
    """How many sketches the guarantee needs."""
    return bounds.sufficient_sketches(k, m, EPS, DELTA / 2, "gaussian")


def outvoted(L, R):
    """Probability that a median of R out of L representative sketches is off."""
    return stats.hypergeom.sf(R // 2, L, int(bounds.BETA * L), R)


def most_failures(trials, p):
    """Failures of probability p, a number that is exceeded with probability 10⁻⁶."""
    return stats.binom.isf(RARE, trials, p)


def fitted(points, n_candidates=1, **parameters):
    """An index; by default its neighbours are those of smallest estimate."""
    fixed = {"eps": EPS, "delta": DELTA, "lead": 0, "random_state": 0}
    parameters = {**fixed, "n_candidates": n_candidates, **parameters}
    return SketchedMahalanobisNeighbors(1, **parameters).fit(points)


class Witness:
    """An index whose results are compared with exact ones as they are returned."""

    def __init__(self, index, points, eps=EPS):
        self._index, self._points, self._eps = index, points, eps
        self.seen = self.wrong = self.inexact = self.wrong_neighbours = 0

    def distances(self, X):
        return self._compared(self._index.distances(X), cdist(X, self._points))

    def pair_distances(self, i, j):
        exact = np.linalg.norm(self._points[i] - self._points[j], axis=1)
        return self._compared(self._index.pair_distances(i, j), exact)

    def kneighbors(self, X, n_neighbors, return_distance=False):
        found = self._index.kneighbors(X, n_neighbors, return_distance=False)
        nearest = cdist(X, self._points).argmin(axis=1)
        self.wrong_neighbours += np.sum(found[:, 0] != nearest)
        return found

    def __getattr__(self, name):
        return getattr(self._index, name)

    def partial_fit(self, X):
        self._points = np.vstack([self._points, X])
        self._index.partial_fit(X)

    def remove_points(self, indices):
        self._points = np.delete(self._points, indices, axis=0)
        self._index.remove_points(indices)

    def _compared(self, found, exact):
        errors = np.abs(found / exact - 1)
        self.seen += errors.size
        self.wrong += np.sum(errors > self._eps)
        self.inexact += np.sum(errors > 1e-3)
        return found


def reports(index, points, vectors, attack):
    """Lengths that the index reports for copies of each vector, over the exact ones.

    Copies of other lengths are served by other sketches, so that one lucky report does
    not count as learned.
    """
    scales = np.linspace(0.5, 2, COPIES)[:, np.newaxis]
    report = placed_lengths if attack is placing else reported_lengths
    lengths = [report(index, points, scales * v) for v in vectors]
    return np.stack(lengths) / scales.T


def is_moved(reported):
    """Whether the report of some vector is mostly off by more than eps."""
    return bool(np.any(np.abs(np.median(reported, axis=1) - 1) > EPS))


@pytest.fixture(scope="module", params=["one vote", "votes enough"])
def safe_index(request):
    """As many sketches as make the guarantee hold; with one vote, p is β."""
    L = safe_number(K, M)
    R = bounds.adaptive_votes(L, bounds.BETA, DELTA / 2)
    R = 1 if request.param == "one vote" else R
    index = fitted(two_points(K), m=M, L=L, R=R)
    assert index.engine_ == "sketched"
    return index, outvoted(L, R)


@pytest.fixture(scope="module")
def certain_structure():
    """A structure with so many votes that no estimate is ever off."""
    k, m = 16, 12
    L = safe_number(k, m)
    R = bounds.adaptive_votes(L, bounds.BETA, RARE / (4 * COUNT))
    structure = MetricMaintenance(
        None, two_points(k), eps=EPS, delta=DELTA, m=m, L=L, R=R, seed=0
    )
    return Structure(structure), outvoted(L, R)


def hold_under(attack, index, p, points, count=COUNT):
    """Attack an index; check all estimates, and those of the vectors found.

    The n estimates of a query share their sketches and may be wrong together; one of
    them is with probability n p at most.
    """
    witness = Witness(index, points)
    vectors = attack(witness, points, count, np.random.default_rng(1))
    inexact = witness.inexact + witness.wrong_neighbours
    assert inexact > 0, "exact results would reveal nothing"
    n = len(points)
    assert witness.wrong <= n * most_failures(max(1, witness.seen // n), n * p)
    reported = reports(index, points, vectors, attack)
    assert not is_moved(reported)
    for copies in reported:
        assert np.sum(np.abs(copies - 1) > EPS) <= most_failures(COPIES, p)


@each_attack
def test_no_attack_moves_exact_neighbours(attack):
    """Sketches that the attack moves serve distances; neighbours do not use them."""
    points, rng = two_points(K), np.random.default_rng(1)
    index = fitted(points, n_candidates="exact", m=M, L=3, R=3)
    assert index.engine_ == "sketched"
    assert index.guarantee().adaptive.kneighbors == 0
    witness = Witness(index, points)
    vectors = attack(witness, points, COUNT, rng)
    assert witness.wrong_neighbours == 0
    for vector in vectors:
        lures, queries = trap(vector, rng)
        index.partial_fit(lures)
        points = np.vstack([points, lures])
        exact = cdist(queries, points)
        distances, indices = index.kneighbors(queries)
        np.testing.assert_array_equal(indices[:, 0], exact.argmin(axis=1))
        np.testing.assert_allclose(distances[:, 0], exact.min(axis=1), rtol=1e-6)


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
    index = fitted(points, m=M, L=3, R=3)
    assert not index.guarantee().enough_sketches
    vectors = attack(index, points, 4 * COUNT, np.random.default_rng(1))
    assert is_moved(reports(index, points, vectors, attack))


@pytest.mark.parametrize("name", ["regression", "placing"])
def test_regression_moves_the_ten_sketches_of_the_paper(name):
    points, attack = two_points(K), ATTACKS[name]
    index = fitted(points, m=M, L=10, R=5)
    vectors = attack(index, points, 8 * COUNT, np.random.default_rng(1))
    assert is_moved(reports(index, points, vectors, attack))


@pytest.mark.slow
@each_attack
def test_no_attack_moves_the_index_where_the_guarantee_holds(attack, safe_index):
    hold_under(attack, *safe_index, two_points(K))


@pytest.mark.slow
@each_attack
def test_with_votes_enough_no_estimate_is_off_at_all(attack, certain_structure):
    structure, p = certain_structure
    assert most_failures(COUNT, 2 * p) == 0
    hold_under(attack, structure, p, two_points(structure.maintenance.k))


@pytest.mark.slow
@each_attack
def test_after_a_refresh_an_attack_is_worth_nothing(attack):
    """Estimates are off as often as for a vector chosen before the sketches."""
    points, off = two_points(K), 0.3
    index = fitted(points, m=M, L=3, R=3)
    turns = Refreshing(index, every=20)
    vectors = attack(turns, points, COUNT, np.random.default_rng(1))
    p = float(bounds.failure(off, M, 3))
    for copies in reports(Refreshing(index, every=1), points, vectors, attack):
        assert np.sum(np.abs(copies - 1) > off) <= most_failures(COPIES, p)


def in_a_crowd(k):
    """Two points with others about them, of low dimension but for a little noise."""
    rng = np.random.default_rng(2)
    others = rng.normal(size=(300, 8)) @ rng.normal(size=(8, k))
    others += 0.1 * rng.normal(size=others.shape)
    return np.vstack([two_points(k), others]).astype(np.float32)


def attacked(attack, k, count, **parameters):
    """A witness of an attack on an index in a crowd, and the reports of what it found.

    Reports are of the index in its crowd: the vectors are looked at from its first
    point.
    """
    points = in_a_crowd(k)
    index = fitted(points, eps=0.2, **parameters)
    witness = Witness(index, points, eps=0.2)
    vectors = attack(witness, points, count, np.random.default_rng(1))
    return witness, reports(index, points, vectors, attack)


@each_attack
def test_no_attack_moves_an_adaptive_index(attack):
    witness, reported = attacked(attack, 256, COUNT, adaptive=True)
    assert witness.engine_ == ("enclosed" if available() else "exact")
    assert witness.guarantee().adaptive.distances == 0
    assert witness.wrong == witness.wrong_neighbours == 0
    assert np.abs(reported - 1).max() <= 0.2
    by_others = attack.__name__ in ("placing", "summing_by_neighbours")
    if available() and not by_others:
        assert witness.inexact > 0, "exact distances would prove nothing"


@pytest.mark.stress
def test_a_hundred_thousand_queries_move_ten_sketches_and_no_adaptive_index():
    moved = []
    for name, attack in ATTACKS.items():
        _, reported = attacked(attack, 256, 10**5, m=16, R=5)
        if np.any(np.abs(np.median(reported, axis=1) - 1) > 0.2):
            moved.append(name)
        witness, reported = attacked(attack, 256, 10**5, adaptive=True)
        assert witness.wrong == witness.wrong_neighbours == 0, name
        assert np.abs(reported - 1).max() <= 0.2, name
    assert len(moved) >= 4, moved


@pytest.mark.parametrize("n_candidates", [1, 3, "certified"])
def test_an_adaptive_index_takes_no_notice_of_sketches(n_candidates):
    points = in_a_crowd(64)
    params = {"adaptive": True, "m": 2, "n_candidates": n_candidates}
    index = SketchedMahalanobisNeighbors(5, **params).fit(points)
    exact = SketchedMahalanobisNeighbors(5).fit(points)
    for one, other in zip(
        index.kneighbors(points[:9]), exact.kneighbors(points[:9]), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert index.guarantee().adaptive.kneighbors == 0


def test_adaptive_results_are_equal_to_the_bit_for_different_seeds():
    """Through changes of metric and points, by every method."""
    rng, points = np.random.default_rng(3), in_a_crowd(64)
    one, other = (
        SketchedMahalanobisNeighbors(3, adaptive=True, m=8, random_state=seed)
        for seed in (0, 1)
    )
    for index in (one, other):
        index.fit(points)
    for turn in range(6):
        W, V = rng.normal(size=(2, 64, 1)) / 8
        some, Q = rng.normal(size=(4, 64)), rng.normal(size=(5, 64))
        i, j = rng.integers(300, size=(2, 50))
        answers = []
        for index in (one, other):
            index.update_metric(low_rank=(W, V))
            index.partial_fit(some).update_points([turn, 9], some[:2])
            index.remove_points([20, 21])
            answers.append(
                [
                    index.distances(Q),
                    index.distances(Q[:1]),
                    index.pair_distances(i, j),
                    *index.kneighbors(Q),
                    index.score(Q),
                ]
            )
        for a, b in zip(*answers, strict=True):
            np.testing.assert_array_equal(a, b)


def trap(vector, rng, decoys=30, queries=60):
    """Points and queries: the first point is nearest to all, and lies along `vector`.

    The decoys are further away by less than the lengths that an attack makes wrong, and
    more than a search evaluates before it has bounds.
    """
    directions = unit(rng.normal(size=(decoys, len(vector))))
    about = unit(rng.normal(size=(queries, len(vector))))
    return np.vstack([vector, 1.1 * directions]), 0.01 * about


def neighbours_missed(L):
    """How many certified searches are wrong after an attack, and how many may be."""
    points, rng = two_points(K), np.random.default_rng(1)
    sizes = {"eps": EPS, "delta": DELTA, "m": M, "L": L}
    maintenance = MetricMaintenance(None, points, **sizes, seed=0)
    attack = ATTACKS["summing_by_neighbours"]
    [vector] = attack(Structure(maintenance), points, COUNT, rng)
    lures, queries = trap(vector, rng)
    maintenance.append(lures)
    maintenance.remove([0, 1])
    _, found = maintenance.kneighbors(queries, 1, "certified")
    return np.sum(found != 0), most_failures(len(queries), DELTA)


@pytest.mark.slow
def test_certified_neighbours_stay_right_where_the_guarantee_holds():
    missed, most = neighbours_missed(L=safe_number(K, M))
    assert missed <= most


def test_certified_neighbours_of_one_sketch_are_missed_after_an_attack():
    missed, most = neighbours_missed(L=1)
    assert missed > most


@pytest.mark.stress
@each_attack
def test_no_longer_attack_moves_a_larger_index(attack):
    k, m, points = 256, 16, two_points(256)
    L = safe_number(k, m)
    R = bounds.adaptive_votes(L, bounds.BETA, DELTA / 20)
    index = fitted(points, m=m, L=L, R=R)
    assert index.engine_ == "sketched"
    hold_under(attack, index, outvoted(L, R), points, count=2 * COUNT)


def lengths_by_moving_points(index, vectors):
    """Lengths of vectors: points are moved there, and one query is always the same."""
    places, found = np.arange(index.n_samples_fit_), []
    for start in range(0, len(vectors), len(places)):
        batch = vectors[start : start + len(places)]
        index.update_points(places[: len(batch)], batch)
        found.append(index.distances(np.zeros((1, K)))[0, : len(batch)])
    return np.concatenate(found)


def moved_by_one_query():
    """Reports of the vectors that estimates for one query, of moved points, reveal.

    Also the probability that one report is off by more than eps.
    """
    L, rng = safe_number(K, M), np.random.default_rng(0)
    R = bounds.adaptive_votes(L, bounds.BETA, DELTA / 2)
    index = fitted(unit(rng.normal(size=(500, K))).astype(np.float32), m=M, L=L, R=R)
    vectors = unit(rng.normal(size=(6000, K)))
    squares = lengths_by_moving_points(index, vectors) ** 2
    extremes = np.linalg.eigh(vectors.T @ (vectors * (squares - 1)[:, None]))[1]
    scales = np.linspace(0.5, 2, 15)
    # One point at a time, so that every report is of another version.
    reported = [
        [lengths_by_moving_points(index, scale * v[None])[0] for scale in scales]
        for v in extremes[:, [0, -1]].T
    ]
    return np.array(reported) / scales, outvoted(L, R)


def test_points_moved_by_the_estimates_for_one_query_reveal_nothing():
    reported, p = moved_by_one_query()
    assert not is_moved(reported)
    for copies in reported:
        assert np.sum(np.abs(copies - 1) > EPS) <= most_failures(len(copies), p)


def test_sketches_that_stayed_with_a_query_would_be_revealed(monkeypatch):
    """The choice of sketches depends on the version, and has to: a private name."""
    plain = sketches.query_messages
    fixed = lambda Q, multipliers, _: plain(Q, multipliers, 0)  # noqa: E731
    monkeypatch.setattr(sketches, "query_messages", fixed)
    assert is_moved(moved_by_one_query()[0])
