"""Compiled loops of the search. They hold no lock, so that threads run side by side.

Squared distances are compared through lower bounds that hold with certainty: a point
is evaluated exactly unless a bound of it is above the K-th distance found so far.
Functions are compiled when they are first called, and kept on disk by numba. Without
numba they are plain Python, and of these only :func:`walk` is called.
"""

from typing import NamedTuple

import numpy as np

from ._multiply import multiplier
from .codes import MOST_WHOLE

try:
    from numba import njit
except ImportError:  # pragma: no cover - depends on what is installed

    def njit(**_):
        return lambda function: function


# Points whose bounds have one minimum, points that are bounded at a time, and points
# whose codes are multiplied with all queries of a batch at a time: so many, or as have
# so many bytes.
RUN = 32
_BLOCK = 512
_ROWS, _ROW_BYTES = 36, 36 << 10

# Points that are evaluated before others are judged by them, beyond the neighbours, and
# points of cells that these are chosen from.
_AHEAD = 8
_AT_FIRST = 128

# Rounding of float32, in which bounds are held.
_EPS = float(np.finfo(np.float32).eps)

# What products that are too small for float32 may take from a bound, and more.
_TINY = 1e-30

# Relative errors of norms, and of sums in float64, are far below this.
_SLACK = 1e-10

# Sums may be taken in any order, and no number here is NaN. Infinities are used.
_SUMS = {"reassoc", "contract", "nsz", "nnan"}


# Products of a row of codes with a query, and of three with three: sums of more would
# not stay in registers.
_one_by_one = multiplier(1, 1)
_three_by_three = multiplier(3, 3)


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
    """Points, or leading coordinates of them, in 8 bits.

    With ``x̂ = steps[i] codes[i]``, the product of a query's g with point i is at most
    ``g·x̂ + a errors[i] + b rests[i]``. For codes of points, a is ‖g‖ and b what g is
    off by when rounded, and `rests` are lengths. For leading coordinates along P, a is
    ‖Pg‖ and b is ‖g - PᵀPg‖, and `rests` are what these coordinates leave of lengths.
    """

    codes: np.ndarray
    steps: np.ndarray
    errors: np.ndarray
    rests: np.ndarray


class Cells(NamedTuple):
    """Points in order of their cells, and the cells.

    `centres` are :class:`Codes` whose errors are radii. The points of cell c are those
    from ``starts[c]`` to ``starts[c + 1]`` of `coded`, and points behind the last are
    in no cell. `positions` says which points they are, and is -1 where a point has
    left. `norms` are those of centres, `least` the least ones of points in a cell.
    """

    centres: Codes
    norms: np.ndarray
    least: np.ndarray
    starts: np.ndarray
    positions: np.ndarray
    coded: Codes
    point_norms: np.ndarray


class Found(NamedTuple):
    """K neighbours of each query as heaps, and how many codes were read for it."""

    indices: np.ndarray
    squares: np.ndarray
    opened: np.ndarray


@njit(cache=True, nogil=True, fastmath=_SUMS - {"nnan"})
def transform_queries(points, origin, U, images, gradients, squares, lengths):
    """Write ``y = U(q - origin)`` and ``g = Uᵀy`` of queries, ‖y‖² and ‖g‖.

    For a small U. Nothing is returned: a signal would break what numba does for that.
    """
    count, d = points.shape
    squares[:], lengths[:] = 0, 0
    for at in range(count):
        gap, g = points[at] - origin, gradients[at]
        if len(U) == 0:
            g[:] = gap
            images[at] = gap
        else:
            g[:] = 0
        for i in range(len(U)):
            row, y = U[i], 0.0
            for j in range(np.uint64(d)):
                y += row[j] * gap[j]
            for j in range(np.uint64(d)):
                g[j] += y * row[j]
            images[at, i] = y
        for y in images[at]:
            squares[at] += y * y
        for j in range(np.uint64(d)):
            lengths[at] += g[j] * g[j]
        lengths[at] = np.sqrt(lengths[at])


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
    most = min(MOST_WHOLE, (2**31 - 1) // (128 * len(rounded)))
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


@njit(cache=True, nogil=True)
def _code_bound(product, base, norm, length, size, error, off):
    """A lower bound of a squared distance, from the product of g with a code.

    ``g·x ≤ g·x̂ + ‖g‖ e``, and what rounding of g adds to it.
    """
    upper = product + length * error + off * (size + error)
    return base + norm - 2 * upper - _SLACK * (base + norm + length * size)


@njit(cache=True, nogil=True)
def _limit(square, base, norm_unit):
    """The bound, as it is held, up to which points may be within a squared distance."""
    limit = (square - base) / norm_unit
    return np.float32(limit + 4 * _EPS * (abs(limit) + base / norm_unit) + _TINY)


@njit(cache=True, nogil=True)
def _smallest(values, size):
    """Places of the smallest values, `size` of them or all that are finite."""
    size = min(size, len(values))
    keys, places = np.full(size, np.inf, np.float32), np.full(size, -1)
    for place in range(len(values)):
        if values[place] < keys[0]:
            _sift(keys, places, size, values[place], place)
    return keys, places


@njit(cache=True, nogil=True)
def _begin(at, bounds, minima, start, queries, candidates, found):
    """Evaluate the points of smallest bound for query `at`, one of each of some runs.

    `bounds` are of the points from `start` on, and `minima` those of runs of them.
    """
    rows, origin, norms, sizes, U, unit, near = candidates
    q, g, base = queries.points[at], queries.gradients[at], queries.squares[at]
    length = queries.lengths[at] * unit
    keys, indices = found.squares[at], found.indices[at]
    for run in _smallest(minima, len(keys) + _AHEAD)[1]:
        if run < 0:
            continue
        place = run * RUN + np.argmin(bounds[run * RUN : (run + 1) * RUN])
        # Not a number is not within any limit: no point is evaluated twice.
        i, bounds[place] = start + place, np.nan
        norm, size = norms[i], sizes[i]
        square = _exact(q, g, base, length, rows, i, origin, norm, size, U, near)
        _put(keys, indices, square, i)


@njit(cache=True, nogil=True)
def _refine(at, bounds, minima, start, norm_unit, queries, coded, candidates, found):
    """Evaluate every point that bounds leave open for query `at`.

    `bounds` and `minima` are as in :func:`_begin`. Codes, if any, are read before rows.
    """
    rows, origin, norms, sizes, U, unit, near = candidates
    codes, steps, errors, _ = coded
    q, g, base = queries.points[at], queries.gradients[at], queries.squares[at]
    length = queries.lengths[at] * unit
    keys, indices = found.squares[at], found.indices[at]
    opened, step, off = 0, 0.0, 0.0
    whole = np.zeros((1, codes.shape[1]), np.int16)
    limit = _limit(keys[0], base, norm_unit)
    for run in range(len(minima)):
        if minima[run] > limit:
            continue
        for place in range(run * RUN, min((run + 1) * RUN, len(bounds))):
            if not bounds[place] <= limit:
                continue
            i = start + place
            norm, size = norms[i], sizes[i]
            if len(codes):
                if opened == 0:
                    step, off = _round(g, queries.lengths[at], unit, whole[0])
                opened += 1
                product = step * steps[i] * _one_by_one(codes, i, whole, 0)[0]
                error = np.float64(errors[i])
                bound = _code_bound(product, base, norm, length, size, error, off)
                if bound > keys[0]:
                    continue
            square = _exact(q, g, base, length, rows, i, origin, norm, size, U, near)
            _put(keys, indices, square, i)
            limit = _limit(keys[0], base, norm_unit)
    found.opened[at] += opened


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _add_norms(bounds, norms, shift, minima):
    """Add norms and a number to products, and take the least of every run."""
    for run in range(len(minima)):
        least = np.float32(np.inf)
        last = min((run + 1) * RUN, len(bounds))
        for j in range(np.uint64(run * RUN), np.uint64(last)):
            bound = bounds[j] + norms[j] + shift
            bounds[j] = bound
            least = bound if bound < least else least
        minima[run] = least


@njit(cache=True, nogil=True)
def nearest_in_tile(
    tile, norms, shifts, start, last, norm_unit, queries, coded, candidates, found
):
    """Neighbours among the points of a tile, from products of many queries with them.

    `tile` has products (queries, points) from the point `start` on; with `norms` and
    `shifts` added, these are bounds. Neighbours are put in order after the `last` tile.
    """
    minima = np.empty((tile.shape[1] + RUN - 1) // RUN, np.float32)
    for at in range(len(tile)):
        _add_norms(tile[at], norms, shifts[at], minima)
        if found.squares[at, 0] == np.inf:
            _begin(at, tile[at], minima, start, queries, candidates, found)
        rest = norm_unit, queries, coded, candidates, found
        _refine(at, tile[at], minima, start, *rest)
        if last:
            _sort(found.squares[at], found.indices[at])


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _round_along(P, g, length, unit, rounded):
    """Write P g as whole numbers: their step, ‖Pg‖, and ‖g - PᵀPg‖ or more."""
    along, total, largest = np.zeros(len(P)), 0.0, 0.0
    direction = g / length if length > 0 else g
    for c in range(len(P)):
        for j in range(np.uint64(len(g))):
            along[c] += P[c, j] * direction[j]
        total += along[c] * along[c]
        largest = max(largest, abs(along[c]))
    for c in range(len(P)):
        if largest > 0:
            rounded[c] = np.int16(np.rint(along[c] / largest * MOST_WHOLE))
    rest, scale = np.sqrt(max(1 - total, 0.0) + 1e-12), length * unit
    return scale * largest / MOST_WHOLE, scale * np.sqrt(total), scale * rest


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _bounds_from(products, start, factors, coded, norms, bounds):
    """Bounds of points from `start` on, from products of their codes with a query.

    `factors` multiply the products, errors and rests.
    """
    step, along, rest = factors
    stop = start + len(bounds)
    # Slices, whose indices are known to be in range: other loops are not vectorised.
    steps, errors = coded.steps[start:stop], coded.errors[start:stop]
    rests = coded.rests[start:stop]
    for j in range(np.uint64(len(bounds))):
        upper = step * steps[j] * np.float32(products[j])
        upper += along * errors[j] + rest * rests[j]
        bounds[j] = norms[j] - upper


@njit(cache=True, nogil=True)
def _block_bounds(start, whole, factors, coded, norms, products, bounds):
    """Bounds of a block of points from `start` on for one query, from their codes.

    `products` is filled in.
    """
    codes = coded.codes
    for j in range(len(bounds)):
        products[j] = _one_by_one(codes, start + j, whole, 0)[0]
    norms = norms[start : start + len(bounds)]
    _bounds_from(products, start, factors, coded, norms, bounds)


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _run_minima(bounds, minima):
    """The least bound of every run of points."""
    for run in range(len(minima)):
        least = np.float32(np.inf)
        last = min((run + 1) * RUN, len(bounds))
        for j in range(np.uint64(run * RUN), np.uint64(last)):
            least = bounds[j] if bounds[j] < least else least
        minima[run] = least


@njit(cache=True, nogil=True)
def _scales(at, P, unit, norm_unit, queries, rounded):
    """Write query `at` as whole numbers: the factors of products, errors and rests.

    They make squared lengths in units of `norm_unit` of these, for :class:`Codes` of
    leading coordinates along P, or of points if P has no rows.
    """
    g, length = queries.gradients[at], queries.lengths[at]
    if len(P):
        step, along, rest = _round_along(P, g, length, unit, rounded)
    else:
        step, off = _round(g, length, unit, rounded)
        # Sums in float32 are off by less than the last term.
        along, rest = length * unit + off, off + 16 * _EPS * length * unit
    scale = (2 + 16 * _EPS) / norm_unit
    factors = 2 / norm_unit * step, scale * along, scale * rest
    return np.float32(factors[0]), np.float32(factors[1]), np.float32(factors[2])


@njit(cache=True, nogil=True)
def code_bounds(first, last, P, unit, norm_unit, queries, coded, norms, out):
    """Lower bounds for one query of the points from `first` on, from their codes.

    They are less ‖Uq‖², and in units of `norm_unit` as `norms` are. `out` are bounds
    and the minima of their runs. `coded` are leading coordinates along P, or points if
    P has no rows.
    """
    bounds, minima = out
    whole = np.zeros((1, coded.codes.shape[1]), np.int16)
    products = np.empty(_BLOCK, np.int32)
    factors = _scales(0, P, unit, norm_unit, queries, whole[0])
    for start in range(first, last, _BLOCK):
        stop = min(start + _BLOCK, last)
        block = bounds[start:stop]
        _block_bounds(start, whole, factors, coded, norms, products, block)
        _run_minima(block, minima[start // RUN : (stop + RUN - 1) // RUN])


@njit(cache=True, nogil=True)
def round_queries(unit, norm_unit, queries, P, whole, factors):
    """Write queries as whole numbers, and the factors of :func:`_scales`."""
    for at in range(len(factors)):
        factors[at] = _scales(at, P, unit, norm_unit, queries, whole[at])


@njit(cache=True, nogil=True)
def _block_products(codes, start, stop, whole, c, products):
    """Products of the codes from `start` to `stop` with three queries from `c` on."""
    last = stop - (stop - start) % 3
    for i in range(start, last, 3):
        sums = _three_by_three(codes, i, whole, c)
        for a in range(3):
            for b in range(3):
                products[b, i - start + a] = sums[3 * a + b]
    for i in range(last, stop):
        for b in range(3):
            products[b, i - start] = _one_by_one(codes, i, whole, c + b)[0]


@njit(cache=True, nogil=True)
def code_tile(start, whole, factors, coded, tile):
    """Bounds of the points from `start` on for queries, to which norms are to be added.

    `whole` and `factors` are from :func:`round_queries`; the number of rows of `whole`
    is a multiple of three. A few codes at a time are multiplied with all queries.
    """
    codes = coded.codes
    rows = max(_ROWS, _ROW_BYTES // codes.shape[1] // 3 * 3)
    products, zeros = np.empty((3, rows), np.int32), np.zeros(rows, np.float32)
    for first in range(0, tile.shape[1], rows):
        here, size = start + first, min(rows, tile.shape[1] - first)
        for c in range(0, len(tile), 3):
            left = min(3, len(tile) - c)
            if left > 1:
                _block_products(codes, here, here + size, whole, c, products)
            else:
                for i in range(size):
                    products[0, i] = _one_by_one(codes, here + i, whole, c)[0]
            for b in range(left):
                three = factors[c + b, 0], factors[c + b, 1], factors[c + b, 2]
                out = tile[c + b, first : first + size]
                _bounds_from(products[b], here, three, coded, zeros, out)


# Division by zero must not be looked for: a loop that does is not vectorised.
@njit(cache=True, nogil=True, fastmath=_SUMS, error_model="numpy")
def _enclose(bounds, norms, base, widths, goal, out):
    """Distances from lower bounds of their squares; returns how many are left open.

    A square is between ``l² = bounds + base`` and ``h² = l² + 2 widths``, where widths
    are enlarged by rounding. If h/l is at most what `goal` allows, the distance is
    ``2lh / (l + h)``; -1 stands for others. `goal` has the least (l/h)², and the length
    of a unit.
    """
    least, unit = goal
    slack, base, two = np.float32(16 * _EPS), np.float32(base), np.float32(2)
    tiny, none, left = np.float32(1e-20), np.float32(-1), 0
    for j in range(np.uint64(len(bounds))):
        width = widths[j] + slack * (norms[j] + base)
        lower = bounds[j] + base
        upper = lower + two * width
        # The product of the squares may be too large for float32.
        low, high = np.sqrt(max(lower, tiny)), np.sqrt(max(upper, tiny))
        middle = two * low * (high / (low + high))
        out[j] = unit * middle if lower > max(least * upper, tiny) else none
    for j in range(np.uint64(len(bounds))):
        left += out[j] < 0
    return left


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
def _fill_open(found, start, at, queries, candidates):
    """Exact distances of query `at` where :func:`_enclose` has left them open."""
    places = np.flatnonzero(found < 0)
    squares = np.empty(len(places))
    squares_to(at, queries, candidates, places + start, squares)
    for place, square in zip(places, squares):  # noqa: B905 - numba has no `strict`
        found[place] = np.sqrt(max(square, 0.0))


@njit(cache=True, nogil=True, fastmath=_SUMS)
def enclose_tile(
    tile, start, norms, factors, bases, columns, goal, queries, candidates, out
):
    """Distances of many queries to the points of a tile: enclosed, or exact.

    `tile` has products (queries, points) from the point `start` on. Each is already
    reduced by its width, the sum of `factors` of the query times `columns` of a point.
    """
    rests, sizes = columns
    stop = start + len(norms)
    bounds, widths = np.empty_like(norms), np.empty_like(norms)
    for at in range(len(tile)):
        a, b = factors[at, 0], factors[at, 1]
        for j in range(np.uint64(len(norms))):
            bounds[j] = tile[at, j] + norms[j]
            widths[j] = a * rests[j] + b * sizes[j]
        found = out[at, start:stop]
        if _enclose(bounds, norms, bases[at], widths, goal, found):
            _fill_open(found, start, at, queries, candidates)


@njit(cache=True, nogil=True, fastmath=_SUMS)
def enclose_codes(
    first, last, P, unit, norm_unit, queries, coded, norms, goal, candidates, out
):
    """Distances of one query to the points from `first` on: enclosed, or exact.

    Other arguments are those of :func:`code_bounds`; see :func:`_enclose`.
    """
    codes, steps, errors, rests = coded
    whole = np.zeros((1, codes.shape[1]), np.int16)
    base = queries.squares[0] / norm_unit * (1 - 8 * _EPS)
    step, along, rest = _scales(0, P, unit, norm_unit, queries, whole[0])
    bounds, widths = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    for start in range(first, last, _BLOCK):
        size = min(_BLOCK, last - start)
        for j in range(size):
            bounds[j] = np.float32(_one_by_one(codes, start + j, whole, 0)[0])
        for j in range(np.uint64(size)):
            i = np.uint64(start) + j
            widths[j] = along * errors[i] + rest * rests[i]
            bounds[j] = norms[i] - step * steps[i] * bounds[j] - widths[j]
        here = slice(start, start + size)
        some, found = (bounds[:size], norms[here], base, widths[:size]), out[here]
        if _enclose(*some, goal, found):
            _fill_open(found, start, 0, queries, candidates)


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _count_open(bounds, limit):
    """How many bounds are at most a limit."""
    count = 0
    for j in range(np.uint64(len(bounds))):
        count += bounds[j] <= limit
    return count


@njit(cache=True, nogil=True)
def nearest_by_bounds(
    first, last, most, out, norm_unit, queries, coded, candidates, found
):
    """Neighbours of one query among some points, from bounds by :func:`code_bounds`.

    All points are taken in parts from `first` to `last`, in ascending order. If bounds
    leave more than `most` points, the search ends without neighbours, and the number of
    codes that were read is -1.
    """
    bounds, minima = out
    if first == 0:
        _begin(0, bounds, minima, 0, queries, candidates, found)
        limit = _limit(found.squares[0, 0], queries.squares[0], norm_unit)
        if most < len(bounds) and _count_open(bounds, limit) > most:
            found.opened[0] = -1
            return
    rest = norm_unit, queries, coded, candidates, found
    part = bounds[first:last], minima[first // RUN : (last + RUN - 1) // RUN]
    _refine(0, *part, first, *rest)
    if last == len(bounds):
        _sort(found.squares[0], found.indices[0])


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _judge_cells(cells, tile, factors, scores, bounds):
    """Squared distances of centres, and lower bounds of those of points in the cells.

    `tile` has the latter before norms. Distances are without the widths that these
    bounds are reduced by. Results are less ‖Uq‖², in units of norms.
    """
    norms, least, radii, rests = cells.norms, cells.least, *cells.centres[2:]
    for c in range(np.uint64(len(scores))):
        bounds[c] = least[c] + tile[c]
        scores[c] = norms[c] + tile[c] + factors[1] * radii[c] + factors[2] * rests[c]


@njit(cache=True, nogil=True)
def _nearest_cells(scores, starts, budget):
    """The cells of smallest score, in order, until they have `budget` points."""
    p = len(scores)
    # Cells near a query have more points than the mean: half as many may be enough.
    count = budget * p // max(2 * starts[-1], 1) + 8
    while True:
        keys, chosen = _smallest(scores, count)
        _sort(keys, chosen)
        size = 0
        for place, c in enumerate(chosen):
            if size >= budget or c < 0:
                return chosen[:place]
            size += starts[c + 1] - starts[c]
        if count >= p:
            return chosen
        count *= 2


@njit(cache=True, nogil=True)
def _search_cell(
    first, last, at, whole, factors, cells, norm_unit, queries, candidates, found
):
    """Evaluate the points of a run of codes that their bounds leave open."""
    rows, origin, norms, sizes, U, unit, near = candidates
    q, g, base = queries.points[at], queries.gradients[at], queries.squares[at]
    length = queries.lengths[at] * unit
    keys, indices, positions = found.squares[at], found.indices[at], cells.positions
    products, bounds = np.empty(_BLOCK, np.int32), np.empty(_BLOCK, np.float32)
    limit = _limit(keys[0], base, norm_unit)
    for start in range(first, last, _BLOCK):
        block = bounds[: min(_BLOCK, last - start)]
        rest = cells.coded, cells.point_norms, products
        _block_bounds(start, whole, factors, *rest, block)
        for j in range(len(block)):
            if not block[j] <= limit or positions[start + j] < 0:
                continue
            i = positions[start + j]
            norm, size = norms[i], sizes[i]
            square = _exact(q, g, base, length, rows, i, origin, norm, size, U, near)
            _put(keys, indices, square, i)
            limit = _limit(keys[0], base, norm_unit)
    found.opened[at] += last - first


@njit(cache=True, nogil=True)
def _begin_in_cells(
    chosen, at, whole, factors, cells, norm_unit, queries, candidates, found
):
    """Evaluate the points of the first cells, those of smallest bound before others.

    Cells are taken until they have :data:`_AT_FIRST` points; returns how many these
    are.
    """
    rows, origin, norms, sizes, U, unit, near = candidates
    q, g, base = queries.points[at], queries.gradients[at], queries.squares[at]
    length = queries.lengths[at] * unit
    keys, indices = found.squares[at], found.indices[at]
    starts, positions, count, size = cells.starts, cells.positions, 0, 0
    while count < len(chosen) and size < _AT_FIRST:
        size += starts[chosen[count] + 1] - starts[chosen[count]]
        count += 1
    bounds, products = np.empty(size, np.float32), np.empty(size, np.int32)
    points, place = np.empty(size, np.int64), 0
    for c in chosen[:count]:
        first, last = starts[c], starts[c + 1]
        block = bounds[place : place + last - first]
        rest = cells.coded, cells.point_norms, products
        _block_bounds(first, whole, factors, *rest, block)
        points[place : place + last - first] = positions[first:last]
        place += last - first
    for j in _smallest(bounds, len(keys) + _AHEAD)[1]:
        if j >= 0:
            i, bounds[j] = points[j], np.inf
            norm, size_i = norms[i], sizes[i]
            square = _exact(q, g, base, length, rows, i, origin, norm, size_i, U, near)
            _put(keys, indices, square, i)
    limit = _limit(keys[0], base, norm_unit)
    for j in range(size):
        i = points[j]
        if bounds[j] <= limit and bounds[j] < np.inf:
            norm, size_i = norms[i], sizes[i]
            square = _exact(q, g, base, length, rows, i, origin, norm, size_i, U, near)
            _put(keys, indices, square, i)
            limit = _limit(keys[0], base, norm_unit)
    found.opened[at] += size
    return count


@njit(cache=True, nogil=True)
def nearest_in_cells(
    budget, all_cells, most, norm_unit, cells, queries, candidates, found
):
    """Neighbours among the points of the nearest cells, until these have `budget`.

    Cells that cannot have a neighbour are left out. Points that are in no cell are
    looked at as well. With `all_cells`, or if these have too few points, all other
    cells follow: neighbours are exact. If these have more than `most` points, the
    search ends without neighbours, and the number of codes that were read is -1.
    """
    starts, unit, P = cells.starts, candidates.unit, candidates.U[:0]
    count = len(queries.squares)
    # Products are made with three queries at a time.
    every = np.zeros((count + -count % 3, cells.coded.codes.shape[1]), np.int16)
    scales = np.empty((count, 3), np.float32)
    round_queries(unit, norm_unit, queries, P, every, scales)
    tile = np.empty((count, len(starts) - 1), np.float32)
    code_tile(0, every, scales, cells.centres, tile)
    scores = np.empty(len(starts) - 1, np.float32)
    bounds = np.empty_like(scores)
    for at in range(count):
        base, whole = queries.squares[at], every[at : at + 1]
        factors = scales[at, 0], scales[at, 1], scales[at, 2]
        given = at, whole, factors, cells, norm_unit, queries, candidates, found
        _judge_cells(cells, tile[at], factors, scores, bounds)
        chosen = _nearest_cells(scores, starts, budget)
        done = _begin_in_cells(chosen, *given)
        bounds[chosen[:done]] = np.inf
        _search_cell(starts[-1], len(cells.positions), *given)
        for c in chosen[done:]:
            limit = _limit(found.squares[at, 0], base, norm_unit)
            if bounds[c] <= limit:
                _search_cell(starts[c], starts[c + 1], *given)
                bounds[c] = np.inf
        limit = _limit(found.squares[at, 0], base, norm_unit)
        if all_cells or limit == np.inf:
            left = 0
            for c in range(len(bounds)):
                left += starts[c + 1] - starts[c] if bounds[c] <= limit else 0
            if left > most:
                found.opened[at] = -1
                continue
            for c in range(len(bounds)):
                if bounds[c] <= limit and bounds[c] < np.inf:
                    _search_cell(starts[c], starts[c + 1], *given)
                    limit = _limit(found.squares[at, 0], base, norm_unit)
        _sort(found.squares[at], found.indices[at])


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

    Four rows and two columns at a time; at the ends the last ones are taken again.
    """
    n, p = out.shape
    for i in range(0, n, 4):
        places = i, min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
        a, b, c, d = rows[i], rows[places[1]], rows[places[2]], rows[places[3]]
        for s in range(0, p, 2):
            t = min(s + 1, p - 1)
            one, other = columns[s], columns[t]
            a_s = b_s = c_s = d_s = a_t = b_t = c_t = d_t = 0.0
            for j in range(np.uint64(len(origin))):
                u, v, o = one[j], other[j], origin[j]
                x, y = np.float64(a[j]) - o, np.float64(b[j]) - o
                z, w = np.float64(c[j]) - o, np.float64(d[j]) - o
                a_s, b_s, c_s, d_s = a_s + x * u, b_s + y * u, c_s + z * u, d_s + w * u
                a_t, b_t, c_t, d_t = a_t + x * v, b_t + y * v, c_t + z * v, d_t + w * v
            sums = (a_s, a_t), (b_s, b_t), (c_s, c_t), (d_s, d_t)
            for k in range(4):
                out[places[k], s], out[places[k], t] = sums[k]


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
