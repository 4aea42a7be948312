"""Sketch matrices, leading directions, and the keyed choice of sketches."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.linalg import hadamard
from scipy.stats import chisquare, norm

from skmahal._core.bounds import SKETCHES
from skmahal._core.sketches import (
    check_memory,
    choose,
    draw,
    leading_directions,
    median_of,
    multipliers,
    pair_messages,
    query_messages,
    toarray,
)

any_sketch = pytest.mark.parametrize("sketch", SKETCHES)
any_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def squared_norms(sketch, m, v, n, seed=0):
    rng = np.random.default_rng(seed)
    sketches = (draw(sketch, m, len(v), rng) for _ in range(n))
    return np.array([np.sum((P @ v) ** 2) for P in sketches])


@pytest.mark.slow
@any_sketch
@pytest.mark.parametrize("k", [1, 5, 8, 33])
def test_squared_norms_are_kept_on_average(sketch, k):
    n, m = 2000, min(k, 4)
    v = np.random.default_rng(k).normal(size=k)
    mean = squared_norms(sketch, m, v / np.linalg.norm(v), n).mean()
    assert abs(mean - 1) <= norm.isf(1e-6) * math.sqrt(2 / m / n) + 1e-12


@pytest.mark.slow
@any_sketch
@pytest.mark.parametrize("v", [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
def test_squared_norms_vary_by_at_most_two_over_m(sketch, v):
    n, m = 4000, 3
    squares = squared_norms(sketch, m, np.array(v) / np.linalg.norm(v), n)
    spread = np.std((squares - 1) ** 2) / math.sqrt(n)
    assert np.mean((squares - 1) ** 2) <= 2 / m + norm.isf(1e-6) * spread


@any_sketch
@any_dtype
def test_shape_and_dtype_are_those_asked_for(sketch, dtype):
    P = draw(sketch, 3, 5, np.random.default_rng(0), dtype)
    assert P.shape == toarray(P).shape == (3, 5)
    assert P.dtype == toarray(P).dtype == dtype
    assert (P @ np.ones((5, 2), dtype)).dtype == dtype


@any_sketch
def test_the_same_generator_state_draws_the_same_sketch(sketch):
    first, second, other = (
        toarray(draw(sketch, 8, 40, np.random.default_rng(seed))) for seed in (5, 5, 6)
    )
    assert_array_equal(first, second)
    assert np.any(first != other)


@any_sketch
def test_both_precisions_draw_the_same_sketch(sketch):
    double, single = (
        toarray(draw(sketch, 8, 40, np.random.default_rng(5), dtype))
        for dtype in (np.float64, np.float32)
    )
    assert_allclose(single, double, rtol=1e-6)


def test_countsketch_is_sparse_with_one_sign_in_each_column():
    P = draw("countsketch", 7, 50, np.random.default_rng(0))
    assert sparse.issparse(P)
    assert P.format == "csr"
    assert_array_equal(np.sum(P.toarray() != 0, axis=0), 1)
    assert_array_equal(np.unique(P.data), [-1, 1])


def test_srht_samples_rows_without_replacement():
    P = draw("srht", 100, 128, np.random.default_rng(0))
    assert len(np.unique(P, axis=0)) == 100


def test_rademacher_has_nothing_but_signs():
    P = draw("rademacher", 16, 50, np.random.default_rng(0))
    assert_array_equal(np.unique(P), [-0.25, 0.25])


@pytest.mark.parametrize("k", [1, 2, 5, 8, 12, 100])
def test_srht_has_signed_rows_of_a_hadamard_matrix(k):
    order = 1 << (k - 1).bit_length()
    P = math.sqrt(order) * draw("srht", order, k, np.random.default_rng(0))
    assert_allclose(P.T @ P, order * np.eye(k), atol=1e-9)
    # One of the rows is that of ones, which shows the signs of the columns.
    rows = {tuple(row) for row in hadamard(order)[:, :k]}
    assert any({tuple(row) for row in np.sign(P * ones)} == rows for ones in P)


def test_srht_refuses_more_rows_than_there_are():
    rng = np.random.default_rng(0)
    assert draw("srht", 8, 5, rng).shape == (8, 5)
    with pytest.raises(ValueError, match=r"^m must be at most 8 .* got 9"):
        draw("srht", 9, 5, rng)


@pytest.mark.parametrize(
    ("sketch", "m", "k", "name"),
    [("fourier", 2, 3, "sketch"), ("gaussian", 0, 3, "m"), ("gaussian", 2, 0.5, "k")],
)
def test_bad_arguments_are_refused_by_name(sketch, m, k, name):
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        draw(sketch, m, k, np.random.default_rng(0))


def decaying(n=400, k=60, rate=0.7):
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.normal(size=(k, k)))
    return rng.normal(size=(n, k)) * rate ** np.arange(k) @ basis.T + 5


def test_leading_directions_are_those_of_the_centred_svd():
    rows = decaying()
    P = leading_directions(rows, 5, np.random.default_rng(0))
    _, _, turn = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    assert_allclose(np.abs(turn[:5] @ P), np.eye(5), atol=5e-2)
    assert_allclose(P.T @ P, np.eye(5), atol=1e-12)


def test_constant_rows_have_no_direction():
    P = leading_directions(np.ones((9, 4)), 3, np.random.default_rng(0))
    assert P.shape == (4, 0)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.9])
def test_directions_end_at_the_first_with_too_small_a_share_of_the_variance(share):
    rows, rng = decaying(rate=0.9), np.random.default_rng(0)
    values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2
    left = np.cumsum(values[::-1])[::-1]
    expected = np.argmin([*(values > share * left)[:30], False])
    assert abs(leading_directions(rows, 30, rng, share).shape[1] - expected) <= 1


def test_equally_long_directions_are_not_worth_keeping():
    rows = np.random.default_rng(0).normal(size=(2000, 200))
    assert leading_directions(rows, 50, np.random.default_rng(0), 0.05).shape[1] == 0


Q = np.random.default_rng(0).normal(size=(40, 5))


def messages(key, Q, version=0):
    return query_messages(Q, multipliers(key, Q.shape[1], Q.dtype), version)


def picks(key, Q, L=12, R=4):
    return choose(key, messages(key, Q), L, R)


def test_a_query_gets_the_same_sketches_in_any_batch_and_order():
    together = picks(b"key", Q)
    assert_array_equal(together[::-1], picks(b"key", Q[::-1]))
    assert_array_equal(together[7:8], picks(b"key", Q[7:8]))


def test_another_version_or_key_gives_another_choice():
    first, later = picks(b"key", Q), choose(b"key", messages(b"key", Q, 1), 12, 4)
    assert (first != later).any(axis=1).mean() > 0.5
    assert (first != picks(b"yek", Q)).any(axis=1).mean() > 0.5


@any_dtype
def test_zero_has_no_sign(dtype):
    zero = np.zeros((1, 5), dtype=dtype)
    assert messages(b"key", zero) == messages(b"key", -zero)


def test_more_votes_than_words_in_a_digest_are_still_distinct():
    chosen = picks(b"key", Q, L=40, R=30)
    assert all(len(set(row)) == 30 for row in chosen)
    assert chosen.min() >= 0
    assert chosen.max() < 40


def test_all_sketches_serve_where_R_is_L():
    assert_array_equal(picks(b"key", Q, L=3, R=3)[0], [0, 1, 2])


def test_a_pair_has_no_order_and_its_sketches_change_with_the_version():
    i, j = np.arange(30), np.arange(30)[::-1]
    assert pair_messages(i, j, 1) == pair_messages(j, i, 1)
    first, later = (choose(b"key", pair_messages(i, j, v), 12, 4) for v in (1, 2))
    assert (first != later).any()


@any_dtype
def test_a_message_has_two_weighted_sums_of_words_as_whole_numbers(dtype):
    rows = Q.astype(dtype)
    keys = multipliers(b"key", 5, rows.dtype).T.tolist()
    words = rows.view(np.uint32).tolist()
    for row, message in zip(words, messages(b"key", rows), strict=True):
        sums = [sum(a * w for a, w in zip(key, row, strict=True)) for key in keys]
        tail = b"".join((number % 2**64).to_bytes(8, "little") for number in sums)
        assert message == b"query" + bytes(8) + tail


@any_dtype
def test_rows_that_differ_in_any_one_bit_have_messages_of_their_own(dtype):
    row = np.ones(3, dtype=dtype)
    rows = np.tile(row, (row.nbytes * 8, 1))
    bits = rows.view(np.uint8)
    for bit in range(len(rows)):
        bits[bit, bit // 8] ^= 1 << bit % 8
    found = messages(b"key", rows) + messages(b"key", row[np.newaxis])
    assert len(set(found)) == len(rows) + 1


def test_every_sketch_is_chosen_as_often_as_the_others():
    """Also for queries that are nearly the same; χ² at one in a million."""
    near = 1 + 1e-12 * np.arange(20_000)[:, np.newaxis] * np.ones(5)
    counts = np.bincount(picks(b"key", near, L=10, R=1)[:, 0], minlength=10)
    assert chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize("R", range(1, 12))
def test_the_network_finds_the_median(R):
    votes = np.random.default_rng(R).normal(size=(R, 3, 50))
    assert_allclose(np.median(votes, axis=0), median_of(votes))


def test_sketches_beyond_the_memory_of_the_machine_are_refused():
    check_memory(10, 64, 10_000, 784, 4)
    with pytest.raises(MemoryError, match=r"^L=1000000000 .* GB .* L must be smaller"):
        check_memory(10**9, 64, 10_000, 784, 4)
