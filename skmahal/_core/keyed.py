"""Which sketches serve a query: a keyed hash of the query itself.

The same query gets the same sketches in any batch, in any order and on every call, so
asking twice tells nothing new; without the key the choice is fresh randomness.
"""

import hashlib

import numpy as np

from .workers import run, slices

_WORD = 8
_DIGESTS_AT_ONCE = 64
_WORDS_PER_BLOCK = hashlib.blake2b.MAX_DIGEST_SIZE // _WORD


def query_bytes(queries, jobs=1):
    """A digest of each row, the same for -0.0 as for 0.0; on up to `jobs` threads.

    The secret comes in when sketches are chosen. Many machines have instructions for
    SHA-256, and it is long rows that take time.
    """
    rows = np.ascontiguousarray(queries + 0.0)

    def digests(part):
        return [b"query" + hashlib.sha256(row).digest() for row in rows[part]]

    parts = slices(len(rows), max(_DIGESTS_AT_ONCE, -(-len(rows) // jobs)))
    return [digest for part in run(digests, parts, jobs) for digest in part]


def pair_bytes(i, j, version):
    """One byte string for each unordered pair of points at a version of the truth."""
    pairs = np.stack([np.minimum(i, j), np.maximum(i, j)], axis=1).astype(np.int64)
    stamp = int(version).to_bytes(_WORD, "little")
    return [b"pair" + stamp + pair.tobytes() for pair in pairs]


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
    words = _words(key, messages, R)
    if R == 1:
        return (words % np.uint64(L)).astype(np.intp)
    deck = np.tile(np.arange(L), (len(messages), 1))
    everyone = np.arange(len(messages))
    for r in range(R):
        other = r + (words[:, r] % np.uint64(L - r)).astype(np.intp)
        deck[everyone, other], deck[:, r] = deck[:, r].copy(), deck[everyone, other]
    return deck[:, :R]


def _words(key, messages, count):
    """`count` pseudorandom 64-bit words for each message."""
    blocks = -(-count // _WORDS_PER_BLOCK)
    size = _WORD * min(count, _WORDS_PER_BLOCK)
    salts = [block.to_bytes(_WORD, "little") for block in range(blocks)]
    digests = b"".join(
        hashlib.blake2b(message, digest_size=size, key=key, salt=salt).digest()
        for message in messages
        for salt in salts
    )
    words = np.frombuffer(digests, dtype="<u8").reshape(len(messages), -1)
    return words[:, :count]
