"""The work of single queries as compiled loops; :mod:`.compiled` tells of them.

Functions are compiled when first called and kept on disk. They hold no lock, so threads
run them side by side.
"""

import numpy as np
from numba import njit

CHUNK = 128
_BLOCK = 256

# Sums may be taken in any order, and no number here is NaN. Infinities are used.
_SUMS = {"reassoc", "contract", "nsz", "nnan"}


@njit(cache=True, nogil=True)
def _replace_largest(keys, indices, key, index):
    """Put an entry in place of the root of a max-heap ordered by (key, index)."""
    size, place = len(keys), 0
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
    """Order by (key, index); for as few entries as there are neighbours."""
    for i in range(1, len(keys)):
        key, index, j = keys[i], indices[i], i
        while j and (
            keys[j - 1] > key or (keys[j - 1] == key and indices[j - 1] > index)
        ):
            keys[j] = keys[j - 1]
            indices[j] = indices[j - 1]
            j -= 1
        keys[j] = key
        indices[j] = index


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _chunk_minima(values, minima):
    for chunk in range(len(minima)):
        start = chunk * CHUNK
        least = values[start]
        for j in range(start, min(start + CHUNK, len(values))):
            value = values[j]
            least = value if value < least else least
        minima[chunk] = least


@njit(cache=True, nogil=True)
def add_outer(values, a, b):
    """``values += a[:, np.newaxis] + b``."""
    for i in range(len(values)):
        row, first = values[i], a[i]
        for j in range(len(b)):
            row[j] += first + b[j]


@njit(cache=True, nogil=True, fastmath=_SUMS)
def dots(rows, columns, out):
    """``out[c, i] = rows[i] · columns[c]``, each row read from memory once.

    Columns go in pairs, for which a number is loaded once.
    """
    for i in range(len(rows)):
        row = rows[i]
        for c in range(0, len(columns) - 1, 2):
            one, other = columns[c], columns[c + 1]
            first, second = row[0] * one[0], row[0] * other[0]
            for j in range(1, len(row)):
                first += row[j] * one[j]
                second += row[j] * other[j]
            out[c, i] = first
            out[c + 1, i] = second
        if len(columns) % 2:
            one = columns[-1]
            first = row[0] * one[0]
            for j in range(1, len(row)):
                first += row[j] * one[j]
            out[-1, i] = first


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _square(query, row, limit):
    """``‖query - row‖²`` in float64, or a part of it that is above `limit` already."""
    total = 0.0
    for start in range(0, len(query), _BLOCK):
        part = 0.0
        for j in range(start, min(start + _BLOCK, len(query))):
            gap = np.float64(query[j] - row[j])
            part += gap * gap
        total += part
        if total > limit:
            break
    return total


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _moved_square(query, row, weights, steps, i, gap, limit):
    """The same for ``row + Σ steps[p, i] weights[p]``; `gap` is room for a block."""
    total = 0.0
    for start in range(0, len(query), _BLOCK):
        count = min(_BLOCK, len(query) - start)
        for j in range(count):
            gap[j] = query[start + j] - row[start + j]
        for p in range(len(weights)):
            step = steps[p, i]
            for j in range(count):
                gap[j] -= step * weights[p, start + j]
        part = 0.0
        for j in range(count):
            part += np.float64(gap[j]) * np.float64(gap[j])
        total += part
        if total > limit:
            break
    return total


@njit(cache=True, nogil=True)
def _exact(query, rows, weights, steps, i, gap, limit):
    if len(weights):
        return _moved_square(query, rows[i], weights, steps, i, gap, limit)
    return _square(query, rows[i], limit)


@njit(cache=True, nogil=True)
def _evaluate(query, rows, weights, steps, i, gap, distances, nearest_points):
    """Put point `i` among the nearest so far, where it belongs there."""
    square = _exact(query, rows, weights, steps, i, gap, distances[0])
    if square < distances[0] or (square == distances[0] and i < nearest_points[0]):
        _replace_largest(distances, nearest_points, square, i)


@njit(cache=True, nogil=True)
def _smallest_bounds(bounds, minima, keys, indices):
    """The smallest bounds as a heap; the number of points stands for none.

    Bounds that are infinite, as overflow leaves them, are not among them.
    None is above as many chunk minima, the largest of which saves a heap of many
    numbers most of its exchanges.
    """
    keys[:] = np.inf
    indices[:] = len(bounds)
    for chunk in range(len(minima)):
        if minima[chunk] < keys[0]:
            _replace_largest(keys, indices, minima[chunk], chunk)
    limit = keys[0]
    keys[:] = np.inf
    indices[:] = len(bounds)
    for chunk in range(len(minima)):
        if minima[chunk] > limit or minima[chunk] >= keys[0]:
            continue
        start = chunk * CHUNK
        for j in range(start, min(start + CHUNK, len(bounds))):
            if bounds[j] <= limit and bounds[j] < keys[0]:
                _replace_largest(keys, indices, bounds[j], j)


@njit(cache=True, nogil=True)
def _count_at_most(bounds, minima, limit):
    count = 0
    for chunk in range(len(minima)):
        if minima[chunk] <= limit:
            start = chunk * CHUNK
            for j in range(start, min(start + CHUNK, len(bounds))):
                count += bounds[j] <= limit
    return count


@njit(cache=True, nogil=True)
def nearest(
    bounds, queries, rows, weights, steps, ahead, most, indices, squares, undecided
):
    """See :func:`skmahal._core.kernels.nearest`. Returns how many rows were read."""
    n = bounds.shape[1]
    minima = np.empty((n + CHUNK - 1) // CHUNK, dtype=bounds.dtype)
    keys, first = np.empty(ahead, dtype=bounds.dtype), np.empty(ahead, dtype=np.intp)
    gap = np.empty(_BLOCK, dtype=rows.dtype)
    read = 0
    for q in range(len(bounds)):
        lower, query = bounds[q], queries[q]
        distances, nearest_points = squares[q], indices[q]
        _chunk_minima(lower, minima)
        _smallest_bounds(lower, minima, keys, first)
        distances[:] = np.inf
        nearest_points[:] = n
        for i in first:
            if i < n:
                _evaluate(
                    query, rows, weights, steps, i, gap, distances, nearest_points
                )
        read += ahead
        if _count_at_most(lower, minima, distances[0]) > most:
            undecided[q] = True
            continue
        for i in first:
            if i < n:
                lower[i] = np.inf
        for chunk in range(len(minima)):
            if minima[chunk] > distances[0]:
                continue
            start = chunk * CHUNK
            for i in range(start, min(start + CHUNK, n)):
                if lower[i] > distances[0]:
                    continue
                read += 1
                _evaluate(
                    query, rows, weights, steps, i, gap, distances, nearest_points
                )
        for j in range(ahead):
            if first[j] < n:
                lower[first[j]] = keys[j]
        _sort(distances, nearest_points)
    return read


@njit(cache=True, nogil=True)
def squares_to(query, rows, weights, steps, indices, squares):
    """Exact squared distances of one query to the given points."""
    gap = np.empty(_BLOCK, dtype=rows.dtype)
    for place, i in enumerate(indices):
        squares[place] = _exact(query, rows, weights, steps, i, gap, np.inf)


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _mass(query, norm, power, sums, squares, counts, node):
    """What a walk weighs a node by; see :class:`skmahal._core.tree._Walk`."""
    cross = 0.0
    for j in range(len(query)):
        cross += query[j] * sums[node, j]
    mass = max(counts[node] * norm - 2 * cross + squares[node], 0.0)
    return np.sqrt(counts[node] * mass) if power == 1 else mass


@njit(cache=True, nogil=True)
def walk(
    queries, norms, owner, power, sums, squares, counts, depth, uniforms, nodes, mass
):
    """Walk down from the root; `nodes` get the leaf, or 0 where a walk starts over."""
    for i in range(len(owner)):
        query, norm, node = queries[owner[i]], norms[owner[i]], 1
        here = _mass(query, norm, power, sums, squares, counts, node)
        for level in range(depth):
            left = 2 * node
            to_left = _mass(query, norm, power, sums, squares, counts, left)
            to_right = _mass(query, norm, power, sums, squares, counts, left + 1)
            whole = here if power == 1 else to_left + to_right
            u = uniforms[level, i] * whole
            if u < to_left:
                node, here = left, to_left
            elif u >= whole - to_right and to_right > 0:
                node, here = left + 1, to_right
            else:
                node = 0
                break
        nodes[i] = node
        mass[i] = here
