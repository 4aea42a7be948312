r"""Sketch matrices :math:`\Pi_j`, leading directions, and the choice of sketches.

:mod:`skmahal._core.bounds` says how well sketches keep norms. Which of them serve a
query is a keyed hash of the query and of the version of metric and points. The same
query gets the same sketches in any batch and in any order, so that repeating it reveals
nothing new; without the key, the choice is fresh randomness. It changes with the
version: otherwise metric and points could be changed until the result of one query
gives its sketches away.
"""

import hashlib
import os
from functools import lru_cache

import numpy as np
from scipy import sparse

from . import codes
from .bounds import check
from .checks import as_count

_WORD = 8
_MOST_WORDS = hashlib.blake2b.MAX_DIGEST_SIZE // _WORD

# Most points, and most numbers, in the sample that leading directions come from.
_SAMPLE_ROWS = 2000
_SAMPLE_NUMBERS = 1 << 21

# Below this share of the squared lengths, a square is lost in rounding.
_NEAR = {np.dtype(np.float32): 3e-4, np.dtype(np.float64): 1e-8}


def draw(sketch, m, k, rng, dtype=np.float64):
    r"""Draw an m x k sketch, an ndarray or, for "countsketch", a CSR array.

    - "gaussian": entries :math:`N(0, 1/m)`.
    - "rademacher": entries :math:`\pm 1/\sqrt m`.
    - "countsketch": one :math:`\pm 1` in each column.
    - "srht": m random rows of the Hadamard matrix whose order is k rounded up to a
      power of two, with random signs on its columns, over :math:`\sqrt m`.

    The same state of `rng` gives the same sketch in either `dtype`, up to rounding.

    >>> np.unique(draw("rademacher", 4, 3, np.random.default_rng(0)))
    array([-0.5,  0.5])
    """
    m, k, dtype = as_count("m", m), as_count("k", k), np.dtype(dtype)
    check(sketch=sketch)
    scale = dtype.type(1 / np.sqrt(m))
    if sketch == "gaussian":
        return (rng.standard_normal((m, k)) / np.sqrt(m)).astype(dtype, copy=False)
    if sketch == "rademacher":
        signs = 2 * rng.integers(2, size=(m, k), dtype=np.int8) - 1
        return signs.astype(dtype) * scale
    order = 1 << (k - 1).bit_length()
    if sketch == "srht" and m > order:
        most = f"at most {order} for sketch='srht' of vectors of size {k}"
        raise ValueError(f"m must be {most}, got {m}.")
    is_count = sketch == "countsketch"
    rows = rng.integers(m, size=k) if is_count else rng.choice(order, m, replace=False)
    signs = (2 * rng.integers(2, size=k, dtype=np.int8) - 1).astype(dtype)
    if is_count:
        return sparse.csr_array((signs, (rows, np.arange(k))), shape=(m, k))
    # An entry of a Hadamard matrix is the parity of the ones its row and column share.
    bits = rows[:, np.newaxis] & np.arange(k)
    for shift in (16, 8, 4, 2, 1):
        bits ^= bits >> shift
    return np.where(bits & 1, -signs, signs) * scale


def toarray(rows):
    """A sparse matrix as a dense array; an array is returned as it is."""
    return rows.toarray() if sparse.issparse(rows) else rows


def leading_directions(rows, most, rng, share=0.0):
    """Leading directions P of centred `rows`, (k, at most `most`).

    P has orthonormal columns, by decreasing variance along them, and ends before the
    first with at most a `share` of the variance that is left. O(rows · k · most).
    """
    rows = rows - rows.mean(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.einsum("ij,ij->", rows, rows))
    if not total < np.inf:
        raise ValueError(f"X is too large under the metric for {rows.dtype}.")
    P = codes.leading_directions(rows, most, rng).T
    variances = np.square(rows @ P).sum(axis=0)
    left = total - np.cumsum(variances) + variances
    return P[:, : np.argmin([*(variances > share * left), False])]


def generator(key, name):
    """A random generator that depends on a key and a name alone."""
    seed = hashlib.blake2b(name, key=key, digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(seed, "little"))


def check_memory(L, m, n, k, itemsize):
    """Refuse sketches that together take more than the memory of this machine."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return
    needed = L * m * (n * itemsize + 8 * k)
    if needed > memory:
        raise MemoryError(
            f"L={L} sketches of m={m} rows take {needed / 1e9:,.1f} GB for {n} points, "
            f"but this machine has {memory / 1e9:,.1f} GB: L must be smaller."
        )


@lru_cache(maxsize=8)
def multipliers(key, d, dtype):
    """Secret numbers for :func:`query_messages`: two for every 32 bits of a row."""
    words = d * dtype.itemsize // 4
    stream = hashlib.shake_256(b"multipliers" + key).digest(2 * _WORD * words)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64).reshape(words, 2)


def query_messages(queries, multipliers, version):
    """One byte string for each row at a version, the same for -0.0 as for 0.0.

    A cryptographic hash of whole rows would be slow. So each row is first reduced to
    two sums ``Σ a_j w_j`` modulo 2^64 over its 32-bit words w_j, with secret factors
    a_j. Two rows that differ agree in both sums with probability at most 2^-66.
    """
    words = np.ascontiguousarray(queries + 0.0).view(np.uint32)
    sums = (words.astype(np.uint64) @ multipliers).astype("<u8").tobytes()
    start, size = b"query" + int(version).to_bytes(_WORD, "little"), 2 * _WORD
    return [start + sums[at : at + size] for at in range(0, len(sums), size)]


def pair_messages(i, j, version):
    """One byte string for each unordered pair of points at a version."""
    pairs = np.stack([np.minimum(i, j), np.maximum(i, j)], axis=1)
    numbers, size = pairs.astype("<i8").tobytes(), 2 * _WORD
    start = b"pair" + int(version).to_bytes(_WORD, "little")
    return [start + numbers[at : at + size] for at in range(0, len(numbers), size)]


def choose(key, messages, L, R):
    """R distinct numbers below L for every message, (messages, R).

    A partial Fisher-Yates shuffle whose r-th draw is the r-th 64-bit word of the keyed
    hash. O(L + R) per message.
    """
    deck = np.tile(np.arange(L), (len(messages), 1))
    if R >= L:
        return deck
    size = _WORD * min(R, _MOST_WORDS)
    salts = [at.to_bytes(_WORD, "little") for at in range(-(-R // _MOST_WORDS))]
    digests = b"".join(
        hashlib.blake2b(message, digest_size=size, key=key, salt=salt).digest()
        for message in messages
        for salt in salts
    )
    words = np.frombuffer(digests, dtype="<u8").reshape(len(messages), -1)
    every = np.arange(len(messages))
    for r in range(R):
        other = r + (words[:, r] % np.uint64(L - r)).astype(np.intp)
        deck[every, other], deck[:, r] = deck[:, r].copy(), deck[every, other]
    return deck[:, :R]


def median_of(votes):
    """Median over the first axis, by a network of elementwise minima and maxima.

    Destroys `votes`. Each pass moves the largest that is left to the end, and half the
    passes decide the middle: for 5 votes, 9 exchanges of whole arrays.

    >>> median_of(np.array([[3.0], [1.0], [2.0]]))
    array([2.])
    """
    count = len(votes)
    smaller = np.empty_like(votes[0])
    for last in range(count - 1, (count - 1) // 2 - 1, -1):
        for i in range(last):
            np.minimum(votes[i], votes[i + 1], out=smaller)
            np.maximum(votes[i], votes[i + 1], out=votes[i + 1])
            votes[i][...] = smaller
    middle = votes[count // 2]
    return middle if count % 2 else (middle + votes[count // 2 - 1]) / 2


class Sketches:
    """The points of an index under P and under L maps Π_j(I - PPᵀ), all of m rows.

    P are :func:`leading_directions` for `most_lead` and `share`. Everything is drawn on
    first use, from the key; the index computes and updates the arrays. Methods are to
    be called inside a read lock of the index.
    """

    def __init__(self, index, key, sketch, L, m, most_lead, share, drawn=None):
        self.index, self.key, self.sketch, self.L, self.m = index, key, sketch, L, m
        self.most_lead, self.share = most_lead, share
        self.k, self.drawn = index.k, drawn

    def arrays(self):
        """Handles of the index: for P, none or one, and for the L sketches."""
        with self.index.lock.deriving:
            index, L, m, k = self.index, self.L, self.m, self.index.k
            # A change of the index that began before they were drawn drops them.
            if not self.drawn or self.drawn[-1] not in index.caches:
                check_memory(L, m, index.n, k, index.dtype.itemsize)
                P, rng = np.zeros((k, 0)), generator(self.key, b"lead")
                if self.most_lead:
                    few = min(_SAMPLE_ROWS, _SAMPLE_NUMBERS // max(k, index.d))
                    rows = index.sample_rows(max(1, few), rng)
                    P = leading_directions(rows, self.most_lead, rng, self.share)
                maps = [np.ascontiguousarray(P.T)] if P.size else []
                for j in range(L):
                    rng = generator(self.key, b"sketch %d" % j)
                    Pi = toarray(draw(self.sketch, m, k, rng))
                    maps.append(Pi - (Pi @ P) @ P.T if P.size else Pi)
                self.drawn = index.cache(maps)
            return self.drawn[:-L], self.drawn[-L:]

    def squares(self, Q, R, weight=1.0, slack=0.0):
        """Squared distances (queries, n), squared lengths of queries and of points.

        With y = Uq: ‖Pᵀ(y - y_i)‖² plus `weight` times the median over R sketches of
        ‖Π_j(I - PPᵀ)(y - y_i)‖², less `slack` times the squared lengths of both.
        """
        index, (lead, arrays) = self.index, self.arrays()
        dtype, y = index.dtype, index.transform(Q)
        picks = np.tile(np.arange(self.L), (len(y), 1))
        if R < self.L:
            factors = multipliers(self.key, index.d, dtype)
            messages = query_messages(toarray(Q), factors, index.version)
            picks = choose(self.key, messages, self.L, R)
        uses = [(arrays[j], *np.nonzero(picks == j)) for j in np.unique(picks)]
        votes = np.empty((R, len(y), index.n), dtype=dtype)
        keep = dtype.type(1 - slack)

        def expanded(array, y):
            z = (y @ array.map.T).astype(dtype)
            found = (dtype.type(-2) * z) @ index.cached_rows(array).T
            found += keep * index.cached_norms(array)
            found += keep * np.einsum("ij,ij->i", z, z)[:, np.newaxis]
            return found

        # Queries far away may overflow: squares are then infinite or not numbers.
        with np.errstate(over="ignore", invalid="ignore"):
            for array, queries, slots in uses:
                votes[slots, queries] = expanded(array, y[queries])
            squares = median_of(votes)
            squares *= dtype.type(weight)
            for array in lead:
                squares += expanded(array, y)
        return squares, np.einsum("ij,ij->i", y, y), index.norms

    def distances(self, Q, R):
        """Estimated distances (queries, n); exact ones where squares are lost."""
        squares, queries, norms = self.squares(Q, R)
        dtype, largest = squares.dtype, np.finfo(squares.dtype).max
        with np.errstate(over="ignore"):
            sizes = np.add.outer(queries.astype(dtype), norms.astype(dtype))
        near = ~((squares > dtype.type(_NEAR[dtype]) * sizes) & (squares <= largest))
        distances = np.sqrt(np.maximum(squares, 0))
        for row in np.flatnonzero(near.any(axis=1)):
            at = np.flatnonzero(near[row])
            exact, [at] = self.index.evaluate(Q[row : row + 1], [at], at.size)
            distances[row, at] = exact[0]
        return distances

    def pair_distances(self, i, j, R):
        """Estimated distances of pairs; exact ones where squares are lost."""
        index, (lead, arrays) = self.index, self.arrays()
        picks = choose(self.key, pair_messages(i, j, index.version), self.L, R)
        uses = [(arrays[r], *np.nonzero(picks == r)) for r in np.unique(picks)]
        uses += [(P, np.arange(len(i)), slice(None)) for P in lead]
        votes, sizes = np.zeros((R, len(i))), np.zeros(len(i))
        for array, pairs, slots in uses:
            rows, norms = index.cached_rows(array), index.cached_norms(array)
            gaps = rows[i[pairs]] - rows[j[pairs]]
            votes[slots, pairs] += np.einsum("ij,ij->i", gaps, gaps, dtype=np.float64)
            sizes[pairs] += norms[i[pairs]] + norms[j[pairs]]
        squares = median_of(votes)
        distances = np.sqrt(squares)
        near = np.flatnonzero(squares <= _NEAR[index.dtype] * sizes)
        if near.size:
            distances[near] = index.pair_distances(i[near], j[near])
        return distances
