import numpy as np
import pytest
from scipy.stats import chisquare

from skmahal._core import compiled
from skmahal._core.keyed import choose, multipliers, pair_bytes, query_bytes

Q = np.random.default_rng(0).normal(size=(40, 5))


def messages(key, Q, version=0):
    return query_bytes(Q, multipliers(key, Q.shape[1], Q.dtype), version)


def picks(key, Q, L=12, R=4):
    return choose(key, messages(key, Q), L, R)


def test_a_query_gets_the_same_sketches_in_any_batch_and_order():
    together = picks(b"key", Q)
    np.testing.assert_array_equal(together[::-1], picks(b"key", Q[::-1]))
    np.testing.assert_array_equal(together[7:8], picks(b"key", Q[7:8]))


def test_another_version_gives_another_choice():
    later = choose(b"key", messages(b"key", Q, version=1), 12, 4)
    assert (picks(b"key", Q) != later).any(axis=1).mean() > 0.5


def test_another_key_gives_another_choice():
    assert (picks(b"key", Q) != picks(b"yek", Q)).any(axis=1).mean() > 0.5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zero_has_no_sign(dtype, monkeypatch):
    zero = np.zeros((1, 5), dtype=dtype)
    assert messages(b"key", zero) == messages(b"key", -zero)
    monkeypatch.setattr(compiled, "fast", lambda: None)
    assert messages(b"key", zero) == messages(b"key", -zero)


def test_more_votes_than_words_in_a_digest_are_still_distinct():
    chosen = picks(b"key", Q, L=40, R=30)
    assert all(len(set(row)) == 30 for row in chosen)
    assert chosen.min() >= 0
    assert chosen.max() < 40


def test_all_sketches_serve_where_as_many_are_asked_for():
    np.testing.assert_array_equal(picks(b"key", Q, L=3, R=3)[0], [0, 1, 2])


def test_a_pair_has_no_order_and_its_sketches_change_with_the_version():
    i, j = np.arange(30), np.arange(30)[::-1]
    assert pair_bytes(i, j, 1) == pair_bytes(j, i, 1)
    first, later = (choose(b"key", pair_bytes(i, j, v), 12, 4) for v in (1, 2))
    assert (first != later).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_message_is_the_weighted_sum_of_words_as_whole_numbers(dtype, monkeypatch):
    rows = Q.astype(dtype)
    keys = [int(number) for number in multipliers(b"key", 5, rows.dtype)]
    words = rows.view(np.uint32).tolist()
    sums = [sum(k * w for k, w in zip(keys, row, strict=True)) for row in words]
    start = b"query" + bytes(8)
    expected = [start + (number % 2**64).to_bytes(8, "little") for number in sums]
    assert messages(b"key", rows) == expected
    monkeypatch.setattr(compiled, "fast", lambda: None)
    assert messages(b"key", rows) == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
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
