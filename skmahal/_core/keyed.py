"""Which sketches serve a query: a keyed hash of the query and of the version.

The same query gets the same sketches in any batch, in any order and on every call, so
asking twice tells nothing new; without the key the choice is fresh randomness. After a
change of metric or points the choice is another: who moves these by what one query was
answered would get to know its sketches.

A row is long and a cryptographic hash of all of it slow. So it is first made one number
by secret multipliers, under which two rows rarely meet (Carter and Wegman), and that
number goes through the keyed hash.
"""

import hashlib

import numpy as np

from . import compiled

_WORD = 8
_WORDS_PER_BLOCK = hashlib.blake2b.MAX_DIGEST_SIZE // _WORD


def multipliers(key, d, dtype):
    """Secret numbers of 64 bits, one for every 32 bits of a row of d numbers.

    Examples
    --------
    >>> multipliers(b"secret", 3, np.dtype(np.float64)).shape
    (6,)
    """
    words = d * dtype.itemsize // 4
    stream = hashlib.shake_256(b"multipliers" + key).digest(_WORD * words)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def query_bytes(queries, multipliers, version):
    """One byte string for each row at a version, the same for -0.0 as for 0.0.

    ``Σ k_j w_j`` modulo 2^64 over the 32-bit words of a row. For two rows that differ
    it is the same with probability 2^-33 at the most.
    """
    if compiled.fast() is not None:
        rows, sums = np.ascontiguousarray(queries), np.empty(len(queries), np.uint64)
        bits = compiled.read_only(rows).view(f"u{rows.itemsize}")
        compiled.fast().weighted_sums(bits, multipliers, sums)
    else:
        words = np.ascontiguousarray(queries + 0.0).view(np.uint32)
        sums = (words * multipliers).sum(axis=1, dtype=np.uint64)
    start = b"query" + _stamp(version)
    return [start + number for number in _byte_strings(sums)]


def _byte_strings(numbers):
    data = numbers.astype("<u8").tobytes()
    return [data[at : at + _WORD] for at in range(0, len(data), _WORD)]


def pair_bytes(i, j, version):
    """One byte string for each unordered pair of points at a version of the truth."""
    pairs = np.stack([np.minimum(i, j), np.maximum(i, j)], axis=1).astype(np.int64)
    start = b"pair" + _stamp(version)
    return [start + pair.tobytes() for pair in pairs]


def _stamp(version):
    return int(version).to_bytes(_WORD, "little")


def choose(key, messages, L, R):
    """R distinct numbers below L for every message, (messages, R).

    A partial Fisher-Yates shuffle whose r-th draw is the r-th 64-bit word of the keyed
    hash. O(R) words a message.

    Examples
    --------
    >>> picks = choose(b"secret", [b"a query", b"another"], L=10, R=3)
    >>> picks.shape
    (2, 3)
    >>> bool((picks == choose(b"secret", [b"a query", b"another"], L=10, R=3)).all())
    True
    """
    if R >= L:
        return np.tile(np.arange(L), (len(messages), 1))
    if R == 1:
        words = (int.from_bytes(word, "little") for word in _digests(key, messages, 1))
        return np.array([[word % L] for word in words], dtype=np.intp)
    words = _words(key, messages, R)
    deck = np.tile(np.arange(L), (len(messages), 1))
    everyone = np.arange(len(messages))
    for r in range(R):
        other = r + (words[:, r] % np.uint64(L - r)).astype(np.intp)
        deck[everyone, other], deck[:, r] = deck[:, r].copy(), deck[everyone, other]
    return deck[:, :R]


def _words(key, messages, count):
    """`count` pseudorandom 64-bit words for each message, (messages, count)."""
    digests = b"".join(_digests(key, messages, count))
    words = np.frombuffer(digests, dtype="<u8").reshape(len(messages), -1)
    return words[:, :count]


def _digests(key, messages, count):
    """The same as byte strings, of at least as many words for each message."""
    blocks = -(-count // _WORDS_PER_BLOCK)
    size = _WORD * min(count, _WORDS_PER_BLOCK)
    salts = [block.to_bytes(_WORD, "little") for block in range(blocks)]
    return [
        hashlib.blake2b(message, digest_size=size, key=key, salt=salt).digest()
        for message in messages
        for salt in salts
    ]
