import numpy as np

from skmahal._core.keyed import choose, pair_bytes, query_bytes

Q = np.random.default_rng(0).normal(size=(40, 5))


def picks(key, Q, L=12, R=4):
    return choose(key, query_bytes(Q), L, R)


def test_a_query_gets_the_same_sketches_in_any_batch_and_order():
    together = picks(b"key", Q)
    np.testing.assert_array_equal(together[::-1], picks(b"key", Q[::-1]))
    np.testing.assert_array_equal(together[7:8], picks(b"key", Q[7:8]))


def test_another_key_gives_another_choice():
    assert (picks(b"key", Q) != picks(b"yek", Q)).any(axis=1).mean() > 0.5


def test_zero_has_no_sign():
    zero = np.zeros((1, 5))
    np.testing.assert_array_equal(picks(b"key", zero), picks(b"key", -zero))


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
