"""The bounds hold for real sketches, and their inverses invert them."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.stats import binom, chi2, hypergeom

from skmahal._core.bounds import (
    BETA,
    SKETCHES,
    adaptive_failure,
    adaptive_votes,
    certificate,
    failure,
    median_tails,
    representative_sketches,
    sketch_rows,
    sketch_size,
    tails,
    upper_accuracy,
    votes,
    votes_for_all,
)
from skmahal._core.sketches import draw

CHANCE = 1e-6

any_sketch = pytest.mark.parametrize("sketch", SKETCHES)
sizes = st.integers(1, 300)
errors = st.floats(0.01, 3.0)
shares = st.floats(1e-9, 0.4)
few_votes = st.integers(1, 9)
kinds = st.sampled_from(SKETCHES)


def most_often(n, p):
    """Count that n trials of probability at most p exceed with chance 1e-6."""
    return binom.isf(CHANCE, n, min(1.0, float(p)))


def least_often(n, p):
    """Count that n trials of probability p stay below with chance 1e-6."""
    return binom.ppf(CHANCE, n, float(p))


def sketched_norms(sketch, m, v, n, seed):
    rng = np.random.default_rng(seed)
    sketches = (draw(sketch, m, len(v), rng) for _ in range(n))
    return np.array([np.linalg.norm(P @ v) for P in sketches])


HARD_VECTORS = {
    "one coordinate": np.eye(8)[2],
    "two equal coordinates": np.array([1.0, 1.0, 0, 0, 0, 0, 0, 0]) / math.sqrt(2),
    "all equal": np.full(8, 1 / math.sqrt(8)),
    "decaying": 0.5 ** np.arange(8) / np.linalg.norm(0.5 ** np.arange(8)),
}


@pytest.fixture(scope="module", params=HARD_VECTORS)
def hard_vector(request):
    return HARD_VECTORS[request.param]


@pytest.mark.slow
@any_sketch
def test_tails_bound_how_often_a_sketch_is_off(sketch, hard_vector):
    n, eps = 4000, [0.1, 0.3, 0.6, 0.95]
    norms = sketched_norms(sketch, 6, hard_vector, n, seed=0)
    for e, lower, upper in zip(eps, *tails(eps, 6, sketch), strict=True):
        assert np.sum(norms < 1 - e - 1e-12) <= most_often(n, lower)
        assert np.sum(norms > 1 + e + 1e-12) <= most_often(n, upper)


@pytest.mark.parametrize("m", [1, 5, 40])
def test_gaussian_tails_are_exact(m):
    n, eps = 20000, np.array([0.05, 0.2, 0.5])
    chi = np.random.default_rng(1).standard_normal((n, m))
    norms = np.sqrt(np.mean(chi**2, axis=1))
    for e, lower, upper in zip(eps, *tails(eps, m), strict=True):
        assert least_often(n, lower) <= np.sum(norms < 1 - e) <= most_often(n, lower)
        assert least_often(n, upper) <= np.sum(norms > 1 + e) <= most_often(n, upper)


@pytest.mark.parametrize("m", [1, 2, 17, 1000, 10**6])
def test_gaussian_tails_are_those_of_chi_squared(m):
    eps = np.array([1e-4, 0.01, 0.3, 0.99, 1.0, 2.5])
    lower, upper = tails(eps, m)
    assert_allclose(lower, chi2.cdf(m * np.maximum(1 - eps, 0) ** 2, m), rtol=1e-9)
    assert_allclose(upper, chi2.sf(m * (1 + eps) ** 2, m), rtol=1e-9)


@pytest.mark.parametrize(
    ("m", "upper_five_percent", "lower_five_percent"),
    [
        (1, 3.841, 0.00393),
        (5, 11.070, 1.145),
        (10, 18.307, 3.940),
        (50, 67.505, 34.764),
    ],
)
def test_tails_reproduce_the_printed_chi_squared_table(
    m, upper_five_percent, lower_five_percent
):
    _, upper = tails(math.sqrt(upper_five_percent / m) - 1, m)
    lower, _ = tails(1 - math.sqrt(lower_five_percent / m), m)
    assert_allclose([lower, upper], 0.05, atol=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("R", [1, 2, 3, 4, 9])
@any_sketch
def test_median_tails_bound_the_median(sketch, R):
    n, eps = 800, 0.25
    v = HARD_VECTORS["decaying"]
    norms = sketched_norms(sketch, 6, v, n * R, seed=R).reshape(n, R)
    medians = np.median(norms, axis=1)
    lower, upper = median_tails(eps, 6, R, sketch)
    assert np.sum(medians < 1 - eps) <= most_often(n, lower)
    assert np.sum(medians > 1 + eps) <= most_often(n, upper)


@pytest.mark.parametrize("R", [1, 3, 7])
def test_gaussian_median_tails_are_exact_for_odd_votes(R):
    n, m, eps = 20000, 12, 0.1
    chi = np.random.default_rng(R).chisquare(m, size=(n, R))
    medians = np.median(np.sqrt(chi / m), axis=1)
    lower, upper = median_tails(eps, m, R)
    low, high = np.sum(medians < 1 - eps), np.sum(medians > 1 + eps)
    assert least_often(n, lower) <= low <= most_often(n, lower)
    assert least_often(n, upper) <= high <= most_often(n, upper)


@given(errors, sizes, few_votes, kinds)
def test_median_tails_are_binomial_tails_of_tails(eps, m, R, sketch):
    expected = binom.sf((R + 1) // 2 - 1, R, tails(eps, m, sketch))
    assert_allclose(median_tails(eps, m, R, sketch), expected, rtol=1e-9, atol=1e-300)


@given(errors, sizes, kinds)
def test_no_bound_is_worse_than_what_the_variance_gives(eps, m, sketch):
    rough = np.array(tails(eps, m, "countsketch"))
    assert np.all(np.array(tails(eps, m, sketch)) <= rough * (1 + 1e-9))


@given(errors, sizes)
def test_rademacher_lower_tail_is_at_most_the_simple_chernoff_bound(eps, m):
    a = max(1 - eps, 0) ** 2
    lower, _ = tails(eps, m, "rademacher")
    assert lower <= math.exp(-m * (1 - a) ** 2 / 6) * (1 + 1e-9)


@any_sketch
def test_norms_below_zero_do_not_happen(sketch):
    lower, _ = tails([1.0, 1.5], 3, sketch)
    assert np.all(lower == 0)


@any_sketch
def test_small_errors_ask_for_as_many_rows_as_their_square_says(sketch):
    rows = [sketch_size(eps, 0.01, sketch=sketch) for eps in (1e-3, 1e-6)]
    assert_allclose(rows[1] / rows[0], 1e6, rtol=5e-3)


@any_sketch
@pytest.mark.parametrize("R", [1, 2, 5, 21])
def test_failure_falls_with_sketch_size_and_error(sketch, R):
    eps = np.linspace(0.02, 2, 60)
    by_size = np.array([failure(eps, m, R, sketch) for m in range(1, 120)])
    assert np.all(np.diff(by_size, axis=0) <= 1e-12)
    assert np.all(np.diff(by_size, axis=1) <= 1e-12)
    assert np.all((by_size >= 0) & (by_size <= 1))


@any_sketch
def test_failure_falls_with_odd_votes(sketch):
    by_votes = [failure(0.5, 40, R, sketch) for R in range(1, 30, 2)]
    assert np.all(np.diff(by_votes) < 0)


@given(errors, shares, few_votes, kinds)
def test_sketch_size_is_the_smallest_that_keeps_the_promise(eps, share, R, sketch):
    m = sketch_size(eps, share, R, sketch)
    assert failure(eps, m, R, sketch) <= share
    assert m == 1 or failure(eps, m - 1, R, sketch) > share


@given(errors, sizes, shares, kinds)
def test_votes_is_the_smallest_odd_number_that_keeps_the_promise(eps, m, share, sketch):
    R = votes(eps, m, share, sketch)
    if R is None:
        assert max(tails(eps, m, sketch)) >= 0.5 - 1e-3
        return
    assert R % 2 == 1
    assert failure(eps, m, R, sketch) <= share
    assert R == 1 or failure(eps, m, R - 2, sketch) > share


@pytest.mark.parametrize("most", [1, 4, 5, 6])
def test_votes_stop_at_the_most_allowed(most):
    assert votes(0.2, 32, 0.01) == 5
    assert votes(0.2, 32, 0.01, most=most) == (5 if most >= 5 else None)


@given(sizes, few_votes, st.floats(1e-9, 0.2), kinds)
def test_upper_accuracy_inverts_the_upper_tail(m, R, share, sketch):
    eps = upper_accuracy(m, R, share, sketch)
    _, upper = median_tails(eps, m, R, sketch)
    assert upper <= share
    if eps > 1e-12:  # else no norm is larger as often as that
        assert_allclose(upper, share, rtol=1e-6)


def test_upper_accuracy_is_nothing_where_larger_norms_are_rare_anyway():
    assert 0 < upper_accuracy(4, 1, 0.9) < 1e-12


def test_gaussian_sketch_size_is_far_below_the_textbook_constant():
    n, eps = 10_000, 0.1
    textbook = 4 * math.log(n) / (eps**2 / 2 - eps**3 / 3)
    assert sketch_size(eps, 0.01 / n) < textbook / 4


def distortions(sketches, n_angles):
    """Norms of unit vectors of the plane under each sketch, less 1."""
    angle = np.linspace(0, np.pi, n_angles, endpoint=False)
    v = np.array([np.cos(angle), np.sin(angle)])
    return np.abs(np.linalg.norm(sketches @ v, axis=1) - 1)


def test_representative_sketches_serve_every_direction_of_the_plane():
    k, m, eps, delta, beta, trials = 2, 16, 0.6, 0.2, 0.3, 150
    L = int(representative_sketches(k, m, eps, delta, beta))
    rng = np.random.default_rng(0)
    failed = 0
    for _ in range(trials):
        sketches = rng.normal(scale=1 / math.sqrt(m), size=(L, m, k))
        bad = np.sum(distortions(sketches, 720) > eps, axis=0)
        failed += bool(bad.max() > beta * L)
    assert failed <= most_often(trials, delta)


@pytest.mark.parametrize("k", [1, 16, 128, 1024])
@pytest.mark.parametrize("m", [16, 64, 256])
def test_representative_sketches_cannot_all_be_blind_to_a_vector(k, m):
    """A vector in the null space of more than beta L sketches needs (beta L+1)m < k."""
    L = representative_sketches(k, m, 0.5, 0.01, beta=0.1)
    assert math.isinf(L) or (math.floor(0.1 * L) + 1) * m >= k


def test_ten_small_sketches_are_not_representative():
    k, m = 1024, 32
    assert 10 * m < k
    assert representative_sketches(k, m, 0.5, 0.01) > 10


def test_representative_sketches_grow_with_dimension_and_fall_with_size():
    by_dimension = [representative_sketches(k, 64, 0.3, 0.01) for k in (1, 4, 64, 512)]
    by_size = [representative_sketches(64, m, 0.3, 0.01) for m in (32, 64, 128, 512)]
    by_error = [representative_sketches(64, 64, eps, 0.01) for eps in (0.3, 0.6, 1, 4)]
    assert np.all(np.diff(by_dimension) > 0)
    assert np.all(np.diff(by_size) < 0)
    assert np.all(np.diff(by_error) < 0)


def test_representative_sketches_of_a_line_need_no_net():
    """One direction: only the binomial bound of its own tail remains."""
    p, beta, delta = failure(0.5, 32), 0.1, 0.01
    divergence = beta * math.log(beta / p) + 0.9 * math.log(0.9 / (1 - p))
    needed = math.log(1 / delta) / divergence
    assert needed <= representative_sketches(1, 32, 0.5, delta, beta) <= 1.3 * needed


def test_no_number_of_sketches_helps_where_one_is_off_too_often():
    assert failure(0.1, 16) > 0.1
    assert representative_sketches(8, 16, 0.1, 0.01) == math.inf


def majority_of_bad(L, bad, R):
    """P(most of R sketches sampled from L are bad), from binomial coefficients."""
    ways = sum(math.comb(bad, i) * math.comb(L - bad, R - i) for i in range(R // 2 + 1))
    return 1 - ways / math.comb(L, R)


@settings(deadline=None)
@given(st.integers(1, 60), st.floats(0.01, 0.99), st.floats(1e-6, 0.4))
def test_adaptive_votes_is_the_smallest_number_that_outvotes_the_bad(L, beta, share):
    bad = math.floor(beta * L)
    failures = {R: majority_of_bad(L, bad, R) for R in range(1, L + 1, 2)}
    # A share that differs by rounding alone is on neither side.
    assume(all(abs(failure - share) > 1e-12 for failure in failures.values()))
    enough = [R for R, failure in failures.items() if failure <= share]
    assert adaptive_votes(L, beta, share) == (enough[0] if enough else None)


def test_adaptive_votes_sample_without_replacement():
    """21 of 100 sketches outvote 10 bad ones for certain."""
    R = adaptive_votes(100, 0.1, 1e-12)
    assert R <= 21
    assert hypergeom.sf(R // 2, 100, 10, R) <= 1e-12
    assert binom.sf(R // 2, R, 0.1) > 1e-12


def test_adaptive_votes_of_many_sketches_are_binomial():
    enough = (R for R in range(1, 99, 2) if binom.sf(R // 2, R, 0.1) <= 1e-6)
    assert adaptive_votes(10**6, 0.1, 1e-6) == next(enough)


@pytest.mark.parametrize("n", [10, 10_000])
@pytest.mark.parametrize("L", [1, 4, 10])
def test_auto_rows_and_votes_keep_the_promise_for_n_distances(n, L):
    eps, delta = 0.2, 0.01
    m = sketch_rows(n, L, eps, delta, "gaussian")
    R = votes_for_all(n, 784, m, L, eps, delta, "gaussian")
    assert R <= L
    assert n * failure(eps, m, R) <= delta


def test_votes_grow_with_the_points():
    few, many = (
        votes_for_all(n, 784, 80, 15, 0.2, 0.01, "gaussian") for n in (9, 10**6)
    )
    assert few < many


def test_a_certificate_bounds_the_probability_of_any_miss():
    R, eps = certificate(7, 100, 32, 10, None, 0.2, 0.05, "gaussian")
    assert R == 1
    assert 7 * median_tails(eps, 32, R)[1] <= 0.05 * (1 + 1e-9)
    assert certificate(7, 100, 32, 10, 5, 0.2, 0.05, "gaussian")[0] == 5


def test_enough_sketches_make_neighbours_safe_against_adaptive_queries():
    k, m, eps, delta = 4, 200, 0.3, 0.1
    L = int(representative_sketches(k, m, eps, delta / 2))
    R, used = certificate(5, k, m, L, None, eps, delta, "gaussian")
    assert used == eps
    assert R > 1
    assert adaptive_failure(L, BETA, R) <= delta / 10
    assert adaptive_failure(L, BETA, R - 2) > delta / 10
    assert certificate(5, k, m, L - 1, None, eps, delta, "gaussian")[0] == 1


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: tails(0.0, 3), "eps"),
        (lambda: tails([0.1, -1.0], 3), "eps"),
        (lambda: tails(math.nan, 3), "eps"),
        (lambda: tails(math.inf, 3), "eps"),
        (lambda: tails(0.1, 0), "m"),
        (lambda: tails(0.1, 2.5), "m"),
        (lambda: tails(0.1, 3, "fourier"), "sketch"),
        (lambda: median_tails(0.1, 3, 0), "R"),
        (lambda: failure(0.1, 3, R=-1), "R"),
        (lambda: sketch_size(-0.1, 0.1), "eps"),
        (lambda: sketch_size(1e-30, 0.1), "eps"),
        (lambda: sketch_size(0.1, 0.0), "failure"),
        (lambda: sketch_size(0.1, 1.0), "failure"),
        (lambda: sketch_size(0.1, 0.1, R=0), "R"),
        (lambda: sketch_size(0.1, 0.1, sketch=None), "sketch"),
        (lambda: votes(0.1, 3, 2.0), "failure"),
        (lambda: votes(0.1, 3, 0.1, most=0), "most"),
        (lambda: upper_accuracy(0, 1, 0.1), "m"),
        (lambda: upper_accuracy(3, 0, 0.1), "R"),
        (lambda: upper_accuracy(3, 1, math.nan), "failure"),
        (lambda: upper_accuracy(3, 1, 0.1, "fourier"), "sketch"),
        (lambda: representative_sketches(0, 3, 0.1, 0.1), "k"),
        (lambda: representative_sketches(3, 0, 0.1, 0.1), "m"),
        (lambda: representative_sketches(3, 3, 0.0, 0.1), "eps"),
        (lambda: representative_sketches(3, 3, 0.1, 1.1), "delta"),
        (lambda: representative_sketches(3, 3, 0.1, 0.1, beta=0), "beta"),
        (lambda: adaptive_votes(0, 0.1, 0.1), "L"),
        (lambda: adaptive_votes(10, 1.0, 0.1), "beta"),
        (lambda: adaptive_votes(10, 0.1, 0), "failure"),
        (lambda: adaptive_failure(10, 0.1, 11), "R"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, name):
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        call()
