"""Compiled loops of the search. They hold no lock, so that threads run side by side.

Squared distances are compared through lower bounds that hold with certainty: a point
is evaluated exactly unless a bound of it is above the K-th distance found so far.
Functions are compiled when they are first called, and kept on disk by numba. Without
numba they are plain Python, and of these only :func:`walk` is called.
"""

from typing import NamedTuple

import numpy as np

try:
    from numba import njit
except ImportError:  # pragma: no cover - depends on what is installed

    def njit(**_):
        return lambda function: function


# Points of a block of leading coordinates, and of a run whose bounds have one minimum.
BLOCK = 128
_RUN = 32

# Points that are evaluated before others are judged by them, beyond the neighbours.
_AHEAD = 16

# Rounding of float32, in which bounds are held.
_EPS = float(np.finfo(np.float32).eps)

# Relative errors of norms, and of sums in float64, are far below this.
_SLACK = 1e-10

# Sums may be taken in any order, and no number here is NaN. Infinities are used.
_SUMS = {"reassoc", "contract", "nsz", "nnan"}


class Candidates(NamedTuple):
    """What exact squared distances are computed from.

    `sizes` are bounds of the lengths of `rows` about `origin`, and `norms` squared
    lengths about it under U, or under the Euclidean metric if U has no rows. Squares
    below `near` of what they are the difference of are computed from coordinates.
    """

    rows: np.ndarray
    origin: np.ndarray
    norms: np.ndarray
    sizes: np.ndarray
    U: np.ndarray
    unit: float
    near: float


class Codes(NamedTuple):
    """Points in 8 bits: ``x ≈ steps[i] codes[i]``, off by at most ``errors[i]``.

    Lengths are in units of `unit`, and relative to the origin of the candidates.
    """

    codes: np.ndarray
    steps: np.ndarray
    errors: np.ndarray
    sizes: np.ndarray
    unit: float


class Queries(NamedTuple):
    """Queries q as given, ``g = UᵀU(q - origin)``, ``‖U(q - origin)‖²`` and ``‖g‖``."""

    points: np.ndarray
    gradients: np.ndarray
    squares: np.ndarray
    lengths: np.ndarray


class Found(NamedTuple):
    """K neighbours of each query as heaps, and how many codes were read for it."""

    indices: np.ndarray
    squares: np.ndarray
    opened: np.ndarray


@njit(cache=True, nogil=True)
def _sift(keys, indices, size, key, index):
    """Put an entry in place of the root of a max-heap ordered by (key, index)."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            keys[other] > keys[child]
            or (keys[other] == keys[child] and indices[other] > indices[child])
        ):
            child = other
        if keys[child] < key or (keys[child] == key and indices[child] < index):
            break
        keys[place] = keys[child]
        indices[place] = indices[child]
        place = child
    keys[place] = key
    indices[place] = index


@njit(cache=True, nogil=True)
def _sort(keys, indices):
    """Turn a max-heap into ascending order of (key, index). O(K log K)."""
    for last in range(len(keys) - 1, 0, -1):
        key, index = keys[last], indices[last]
        keys[last], indices[last] = keys[0], indices[0]
        _sift(keys, indices, last, key, index)


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _difference(q, rows, i):
    """``‖q - rows[i]‖²`` in float64.

    Unsigned numbers as indices: those that may be negative would keep the loop scalar.
    """
    i, total = np.uint64(i), 0.0
    for j in range(np.uint64(len(q))):
        gap = q[j] - np.float64(rows[i, j])
        total += gap * gap
    return total


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _dot(g, rows, i, origin):
    """``g · (rows[i] - origin)`` in float64."""
    i, total = np.uint64(i), 0.0
    for j in range(np.uint64(len(g))):
        total += g[j] * (np.float64(rows[i, j]) - origin[j])
    return total


@njit(cache=True, nogil=True)
def _square_under(U, q, rows, i):
    """``‖U (q - rows[i])‖²`` in float64."""
    gap = q - rows[i]
    image = np.dot(U, gap)
    return np.dot(image, image)


@njit(cache=True, nogil=True)
def _exact(q, g, base, length, rows, i, origin, norm, size, U, near):
    """The squared distance of a query to point `i`.

    Arguments are arrays and numbers, not the tuples that hold them: to take an array
    out of a tuple costs as much as to read a row.
    """
    if len(U) == 0:
        return _difference(q, rows, i)
    square = base - 2 * _dot(g, rows, i, origin) + norm
    if square <= near * (base + norm + length * size):
        square = _square_under(U, q, rows, i)
    return square


@njit(cache=True, nogil=True)
def _put(keys, indices, square, i):
    """Put point `i` among the nearest so far, where it belongs there."""
    if square < keys[0] or (square == keys[0] and i < indices[0]):
        _sift(keys, indices, len(keys), square, i)


@njit(cache=True, nogil=True)
def _round(g, length, unit, rounded):
    """Write g as whole numbers: the step of these, and a bound of what they are off by.

    Sums of products with codes must stay below 2³¹.
    """
    largest = 0.0
    for j in range(len(g)):
        largest = max(largest, abs(g[j]))
    most = min(32767, (2**31 - 1) // (128 * len(rounded)))
    if not largest > 0:
        rounded[:] = 0
        return 0.0, unit * length
    total = 0.0
    for j in range(len(g)):
        # Relative to the largest: squares of small numbers may be zero.
        share = g[j] / largest
        whole = np.rint(share * most)
        rounded[j] = np.int16(whole)
        gap = share - whole / most
        total += gap * gap
    off = largest * np.sqrt(total) + _SLACK * length
    return unit * largest / most, unit * off


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _product(codes, i, rounded):
    """``codes[i] · rounded`` in whole numbers."""
    i, total = np.uint64(i), np.int32(0)
    for j in range(np.uint64(len(rounded))):
        # numba makes products and sums of int32 numbers int64 ones.
        product = np.int32(np.int32(codes[i, j]) * np.int32(rounded[j]))
        total = np.int32(total + product)
    return total


@njit(cache=True, nogil=True)
def _code_bound(product, base, norm, length, size, error, off):
    """A lower bound of a squared distance, from the product of g with a code.

    ``g·x ≤ g·x̂ + ‖g‖ e``, and what rounding of g adds to it.
    """
    upper = product + length * error + off * (size + error)
    return base + norm - 2 * upper - _SLACK * (base + norm + length * size)


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _close_block(bounds, norms, block, at, minima):
    """Add norms to the bounds of a block, and take the least of every run.

    `at` is where the block has its place among the minima.
    """
    start, runs = block * BLOCK, BLOCK // _RUN
    for query in range(len(bounds)):
        for run in range(runs):
            least = np.float32(np.inf)
            for j in range(np.uint64(run * _RUN), np.uint64((run + 1) * _RUN)):
                bound = bounds[query, j] + norms[start + j]
                bounds[query, j] = bound
                least = bound if bound < least else least
            minima[query, at * runs + run] = least


@njit(cache=True, nogil=True)
def _limit(square, base, norm_unit):
    """The bound, as it is held, up to which points may be within a squared distance."""
    limit = (square - base) / norm_unit
    return np.float32(limit + 4 * _EPS * (abs(limit) + base / norm_unit))


@njit(cache=True, nogil=True)
def _smallest_runs(minima, runs, size):
    """The runs of smallest minimum, `size` of them or all."""
    size = min(size, runs)
    keys, places = np.full(size, np.inf, np.float32), np.full(size, -1)
    for run in range(runs):
        if minima[run] < keys[0]:
            _sift(keys, places, size, minima[run], run)
    return places[places >= 0]


@njit(cache=True, nogil=True)
def _refine(
    at, tile, minima, start, count, norm_unit, queries, coded, candidates, found
):
    """Evaluate every point of a segment that bounds leave open for query `at`.

    `tile` has bounds by block, query and point, `minima` those of its runs. The best
    point of the best runs comes first. Codes are read before rows where there are any.
    """
    rows, origin, norms, sizes, U, unit, near = candidates
    codes, steps, errors = coded.codes, coded.steps, coded.errors
    q, g, base = queries.points[at], queries.gradients[at], queries.squares[at]
    length = queries.lengths[at] * unit
    keys, indices = found.squares[at], found.indices[at]
    runs, opened, step, off = (count + _RUN - 1) // _RUN, 0, 0.0, 0.0
    rounded = np.zeros(codes.shape[1], np.int16)
    if keys[0] == np.inf:
        for run in _smallest_runs(minima, runs, len(keys) + _AHEAD):
            block, first = run * _RUN // BLOCK, run * _RUN % BLOCK
            last = min(first + _RUN, count - block * BLOCK)
            place = first + np.argmin(tile[block, at, first:last])
            # Not a number is not within any limit: no point is evaluated twice.
            i, tile[block, at, place] = start + block * BLOCK + place, np.nan
            norm, size = norms[i], sizes[i]
            square = _exact(q, g, base, length, rows, i, origin, norm, size, U, near)
            _put(keys, indices, square, i)
    limit = _limit(keys[0], base, norm_unit)
    for run in range(runs):
        if minima[run] > limit:
            continue
        block, first = run * _RUN // BLOCK, run * _RUN % BLOCK
        for place in range(first, min(first + _RUN, count - block * BLOCK)):
            if not tile[block, at, place] <= limit:
                continue
            i = start + block * BLOCK + place
            norm, size = norms[i], sizes[i]
            if len(codes):
                if opened == 0:
                    step, off = _round(g, queries.lengths[at], unit, rounded)
                opened += 1
                product = step * steps[i] * _product(codes, i, rounded)
                error = np.float64(errors[i])
                bound = _code_bound(product, base, norm, length, size, error, off)
                if bound > keys[0]:
                    continue
            square = _exact(q, g, base, length, rows, i, origin, norm, size, U, near)
            _put(keys, indices, square, i)
            limit = _limit(keys[0], base, norm_unit)
    found.opened[at] += opened


@njit(cache=True, nogil=True, fastmath=_SUMS)
def lead_bounds(first, last, lead, norms, P, scale, queries, bounds):
    """Lower bounds from leading coordinates of some blocks, for one query.

    They are less ‖Uq‖², and in the units of `norms`; `scale` is that of the products.
    """
    g, length, r = queries.gradients[0], queries.lengths[0], len(P)
    factors, share, scale = np.empty(r + 2, np.float32), 0.0, scale * length
    if length > 0:
        share = 1 / length
    rest = 1 + 1e-12
    for c in range(r):
        along = 0.0
        for j in range(np.uint64(len(g))):
            along += P[c, j] * (share * g[j])
        factors[c] = np.float32(scale * along)
        rest -= along * along
    factors[r] = np.float32(scale * np.sqrt(max(rest, 1e-12)))
    factors[r + 1] = np.float32(scale * (r + 16) * _EPS)
    # Sums that begin with a norm round it as often as they have terms.
    keep = np.float32(1 - (r + 16) * _EPS)
    for b in range(first, last):
        block, start = lead[b], b * BLOCK
        out = bounds[start : start + BLOCK]
        for j in range(np.uint64(BLOCK)):
            out[j] = keep * norms[start + j]
        for c in range(len(factors)):
            factor, column = factors[c], block[c]
            for j in range(np.uint64(BLOCK)):
                out[j] += factor * column[j]


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _centre(rows, start, stop, origin, unit, out):
    """``(rows - origin) / unit`` of some rows, in float32."""
    share = 1 / unit
    for i in range(start, stop):
        for j in range(np.uint64(len(origin))):
            gap = np.float64(rows[np.uint64(i), j]) - origin[j]
            out[i - start, j] = np.float32(share * gap)


@njit(cache=True, nogil=True)
def nearest_by_products(
    lead, norms, norm_unit, factors, working_bytes, queries, coded, candidates, found
):
    """Neighbours from products of all points with many queries, then codes, then rows.

    `lead` are blocks of columns (blocks, columns, BLOCK) of leading coordinates;
    without any, products are those with centred rows, as of brute force. `norms` are
    added to the products with `factors` to make bounds, in units of `norm_unit`. Bounds
    are made for as many blocks at a time as fit `working_bytes`.
    """
    count, n, d = len(factors), len(candidates.norms), len(candidates.origin)
    rows, origin, unit = candidates.rows, candidates.origin, candidates.unit
    blocks = (n + BLOCK - 1) // BLOCK
    held = min(blocks, max(1, working_bytes // (4 * count * BLOCK)))
    tile = np.empty((held, count, BLOCK), np.float32)
    minima = np.empty((count, held * (BLOCK // _RUN)), np.float32)
    centred = np.zeros((0 if len(lead) else BLOCK, d), np.float32)
    for first in range(0, blocks, held):
        used = min(held, blocks - first)
        for b in range(used):
            start = (first + b) * BLOCK
            if len(lead):
                np.dot(factors, lead[first + b], tile[b])
            else:
                _centre(rows, start, min(start + BLOCK, n), origin, unit, centred)
                np.dot(factors, centred.T, tile[b])
            _close_block(tile[b], norms, first + b, b, minima)
        start = first * BLOCK
        size = min(n - start, used * BLOCK)
        for at in range(count):
            rest = start, size, norm_unit, queries, coded, candidates, found
            _refine(at, tile, minima[at], *rest)
    for at in range(count):
        _sort(found.squares[at], found.indices[at])


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _code_bounds(products, base, norms, length, sizes, errors, off, unit, out):
    """Bounds of a block of points from products of g with their codes."""
    for j in range(np.uint64(len(out))):
        norm, size, error = norms[j], np.float64(sizes[j]), np.float64(errors[j])
        bound = _code_bound(products[j], base, norm, length, size, error, off) - base
        rounding = 4 * _EPS * (base + norm + length * size)
        out[j] = np.float32((bound - rounding) / unit)


@njit(cache=True, nogil=True)
def code_bounds(first, last, norm_unit, queries, coded, candidates, bounds):
    """Lower bounds from codes of some blocks of points, as :func:`lead_bounds`."""
    codes, steps, errors, sizes, unit = coded
    norms, g, base = candidates.norms, queries.gradients[0], queries.squares[0]
    length = queries.lengths[0] * unit
    rounded = np.zeros(codes.shape[1], np.int16)
    step, off = _round(g, queries.lengths[0], unit, rounded)
    products = np.empty(BLOCK)
    for start in range(first * BLOCK, min(last * BLOCK, len(norms)), BLOCK):
        stop = min(start + BLOCK, len(norms))
        for i in range(start, stop):
            products[i - start] = step * steps[i] * _product(codes, i, rounded)
        norm, size, error = norms[start:stop], sizes[start:stop], errors[start:stop]
        out = bounds[start:stop]
        _code_bounds(products, base, norm, length, size, error, off, norm_unit, out)


@njit(cache=True, nogil=True)
def nearest_by_bounds(bounds, norm_unit, queries, coded, candidates, found):
    """Neighbours of one query from bounds of all points, as :func:`lead_bounds`."""
    n = len(candidates.norms)
    blocks, runs = (n + BLOCK - 1) // BLOCK, BLOCK // _RUN
    minima = np.empty((1, blocks * runs), np.float32)
    nothing = np.zeros(len(bounds), np.float32)
    tile = bounds.reshape(blocks, 1, BLOCK)
    for b in range(blocks):
        _close_block(tile[b], nothing, b, b, minima)
    _refine(0, tile, minima[0], 0, n, norm_unit, queries, coded, candidates, found)
    _sort(found.squares[0], found.indices[0])


@njit(cache=True, nogil=True)
def squares_to(at, queries, candidates, indices, squares):
    """Exact squared distances of query `at` to the given points."""
    rows, origin, norms, sizes, U, unit, near = candidates
    q, g, base = queries.points[at], queries.gradients[at], queries.squares[at]
    length = queries.lengths[at] * unit
    for place in range(len(indices)):
        i = indices[place]
        norm, size = norms[i], sizes[i]
        square = _exact(q, g, base, length, rows, i, origin, norm, size, U, near)
        squares[place] = square


@njit(cache=True, nogil=True)
def nearest_by_scan(queries, candidates, found):
    """Neighbours by evaluating every point."""
    rows, origin, norms, sizes, U, unit, near = candidates
    for at in range(len(queries.squares)):
        q, g, base = queries.points[at], queries.gradients[at], queries.squares[at]
        length = queries.lengths[at] * unit
        keys, indices = found.squares[at], found.indices[at]
        for i in range(len(norms)):
            norm, size = norms[i], sizes[i]
            square = _exact(q, g, base, length, rows, i, origin, norm, size, U, near)
            _put(keys, indices, square, i)
        _sort(keys, indices)


@njit(cache=True, nogil=True, fastmath=_SUMS)
def dots(rows, origin, columns, out):
    """``out[i, c] = (rows[i] - origin) · columns[c]`` in float64, rows read once.

    Columns go in pairs, for which a number is loaded once.
    """
    for i in range(np.uint64(len(rows))):
        for c in range(0, len(columns) - 1, 2):
            one, other, first, second = columns[c], columns[c + 1], 0.0, 0.0
            for j in range(np.uint64(len(origin))):
                value = np.float64(rows[i, j]) - origin[j]
                first += value * one[j]
                second += value * other[j]
            out[i, c] = first
            out[i, c + 1] = second
        if len(columns) % 2:
            one, first = columns[-1], 0.0
            for j in range(np.uint64(len(origin))):
                first += (np.float64(rows[i, j]) - origin[j]) * one[j]
            out[i, len(columns) - 1] = first


@njit(cache=True, nogil=True, fastmath=_SUMS)
def add_product(U, W, V, out, pulled):
    """``out = U + W V`` and ``pulled += Wᵀ U``; returns the squared norm of `out`."""
    total = 0.0
    for i in range(np.uint64(len(U))):
        row, new = U[i], out[i]
        new[:] = row
        for p in range(len(V)):
            weight, step, sums = W[i, p], V[p], pulled[p]
            for j in range(np.uint64(len(row))):
                new[j] += weight * step[j]
                sums[j] += weight * row[j]
        for j in range(np.uint64(len(row))):
            total += new[j] * new[j]
    return total


@njit(cache=True, nogil=True)
def encode(rows, origin, unit, codes, steps, errors, sizes):
    """Write rows in 8 bits each coordinate; see :class:`Codes`. All in float64."""
    d = len(origin)
    for i in range(len(rows)):
        largest, size = 0.0, 0.0
        for j in range(d):
            value = (np.float64(rows[i, j]) - origin[j]) / unit
            largest = max(largest, abs(value))
            size += value * value
        # Rounded as it is stored: codes are multiplied by what rows are divided by.
        step = np.float64(np.float32(largest / 127))
        error = 0.0
        for j in range(d):
            value = (np.float64(rows[i, j]) - origin[j]) / unit
            whole = 0.0
            if step > 0:
                whole = min(max(np.rint(value / step), -127.0), 127.0)
            codes[i, j] = np.int8(whole)
            gap = value - step * whole
            error += gap * gap
        steps[i] = step
        errors[i] = np.float32(np.sqrt(error) * (1 + 4 * _EPS) + 1e-12 * np.sqrt(size))
        sizes[i] = np.float32(np.sqrt(size) * (1 + 4 * _EPS))


@njit(cache=True, nogil=True)
def _mass(node, g, base, power, sums, norms, counts):
    """``Σ d²`` below a node of :mod:`.tree`, or ``sqrt(c Σ d²)`` for power 1."""
    mass = counts[node] * base - 2 * np.dot(g, sums[node]) + norms[node]
    mass = max(mass, 0.0)
    return np.sqrt(counts[node] * mass) if power == 1 else mass


@njit(cache=True, nogil=True)
def walk(g, base, power, sums, norms, counts, uniforms, leaves, masses):
    """Walk down the tree of :mod:`.tree` for one query, once a row of `uniforms`.

    Writes the leaf that each walk reaches, or 0 where it starts over, and its mass.
    """
    rest = g, base, power, sums, norms, counts
    root = _mass(1, *rest)
    for row in range(len(uniforms)):
        node, here = 1, root
        for level in range(uniforms.shape[1] - 1):
            left = 2 * node
            to_left, to_right = _mass(left, *rest), _mass(left + 1, *rest)
            whole = here if power == 1 else to_left + to_right
            u = uniforms[row, level] * whole
            if u < to_left:
                node, here = left, to_left
            elif u >= whole - to_right and to_right > 0:
                node, here = left + 1, to_right
            else:
                node, here = 0, 0.0
                break
        leaves[row] = node
        masses[row] = here
