"""The work of single queries as compiled loops; :mod:`.compiled` tells of them.

Functions are compiled when first called and kept on disk. They hold no lock, so threads
run them side by side. They are in one file, as what is kept on disk is made anew when
the file of a function changes, and not when that of a function it calls does.
"""

import numpy as np
from numba import njit

# Points whose bounds have their minimum taken together.
_RUN = 32

# Numbers of a candidate between two looks at whether it is too far, and how many
# candidates are read side by side: one alone waits for memory.
_BLOCK = 512
_ABREAST = 4

# Entries of points that are open for queries, before these are evaluated. If that many
# queries ask for a point, rows are taken by parts of so many bytes.
_MOST_OPEN = 1 << 18
_SHARED = 2
_PART_BYTES = 1 << 22

# Rows that brute force multiplies by all queries in one product.
_ROWS_AT_ONCE = 512

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
def _gap(query, rows, i, start, stop):
    """``‖query - rows[i]‖²`` over a block of columns, in the type of the rows.

    Unsigned numbers as indices: those that may be negative would keep the loop scalar.
    """
    total = rows.dtype.type(0)
    for j in range(np.uint64(start), np.uint64(stop)):
        gap = query[j] - rows[i, j]
        total += gap * gap
    return total


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _gaps(query, rows, points, start, stop, totals):
    """The same for four points, added to their totals."""
    a, b = np.uint64(points[0]), np.uint64(points[1])
    c, d = np.uint64(points[2]), np.uint64(points[3])
    zero = rows.dtype.type(0)
    to_a, to_b, to_c, to_d = zero, zero, zero, zero
    for j in range(np.uint64(start), np.uint64(stop)):
        gap = query[j] - rows[a, j]
        to_a += gap * gap
        gap = query[j] - rows[b, j]
        to_b += gap * gap
        gap = query[j] - rows[c, j]
        to_c += gap * gap
        gap = query[j] - rows[d, j]
        to_d += gap * gap
    totals[0] += to_a
    totals[1] += to_b
    totals[2] += to_c
    totals[3] += to_d


@njit(cache=True, nogil=True)
def _square(query, rows, i, limit):
    """``‖query - rows[i]‖²``, or a part of it that is above `limit` already."""
    total = 0.0
    for start in range(0, len(query), _BLOCK):
        stop = min(start + _BLOCK, len(query))
        total += _gap(query, rows, np.uint64(i), start, stop)
        if total > limit:
            break
    return total


@njit(cache=True, nogil=True)
def _squares_abreast(query, rows, points, limit, totals):
    """The same for as many points as are read side by side."""
    totals[:] = 0
    for start in range(0, len(query), _BLOCK):
        stop = min(start + _BLOCK, len(query))
        _gaps(query, rows, points, start, stop, totals)
        if min(min(totals[0], totals[1]), min(totals[2], totals[3])) > limit:
            break


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _less_step(gap, step, weight):
    for j in range(len(gap)):
        gap[j] -= step * weight[j]


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _length(gap):
    total = 0.0
    for j in range(len(gap)):
        total += np.float64(gap[j]) * np.float64(gap[j])
    return total


@njit(cache=True, nogil=True)
def _moved_square(query, rows, weights, steps, i, limit):
    """As :func:`_square` for ``rows[i] + Σ steps[p, i] weights[p]``."""
    total = 0.0
    for start in range(0, len(query), _BLOCK):
        here = slice(start, start + _BLOCK)
        gap = query[here] - rows[i, here]
        for p in range(len(weights)):
            _less_step(gap, steps[p, i], weights[p, here])
        total += _length(gap)
        if total > limit:
            break
    return total


@njit(cache=True, nogil=True)
def _exact(query, candidates, i, limit):
    """The exact squared distance of a candidate, as far as it is within `limit`."""
    rows, weights, steps = candidates
    if len(weights):
        return _moved_square(query, rows, weights, steps, i, limit)
    return _square(query, rows, i, limit)


@njit(cache=True, nogil=True)
def _put(square, i, distances, nearest_points):
    """Put point `i` among the nearest so far, where it belongs there."""
    if square < distances[0] or (square == distances[0] and i < nearest_points[0]):
        _replace_largest(distances, nearest_points, square, i)


@njit(cache=True, nogil=True)
def _evaluate(query, candidates, points, count, distances, nearest_points, totals):
    """Put the first `count` of some points, as many as go abreast, among the nearest.

    Fewer are filled up with the first, so that equal points have equal sums.
    """
    rows, weights, _ = candidates
    if len(weights):
        for i in points[:count]:
            square = _exact(query, candidates, i, distances[0])
            _put(square, i, distances, nearest_points)
        return
    points[count:] = points[0]
    _squares_abreast(query, rows, points, distances[0], totals)
    for place in range(count):
        _put(totals[place], points[place], distances, nearest_points)


@njit(cache=True, nogil=True)
def _in_order(bits, sign, rest):
    """The bits of a float as a whole number that is ordered as floats are; or back.

    Minima of whole numbers are vectors of them; those of floats are not for this
    compiler.
    """
    return bits ^ ((bits >> sign) & rest)


@njit(cache=True, nogil=True)
def _minima(bounds, sign, rest, minima):
    """The least of every run of bounds, both as bits."""
    for run in range(len(minima)):
        values, least = bounds[run * _RUN : (run + 1) * _RUN], rest
        for j in range(len(values)):
            least = min(least, _in_order(values[j], sign, rest))
        minima[run] = _in_order(least, sign, rest)


@njit(cache=True, nogil=True)
def _close(tile, points, minima):
    """Minima of a chunk of bounds for every query; no bound where no point is."""
    tile[:, max(points, 0) :] = np.inf
    for q in range(len(tile)):
        if tile.itemsize == 4:
            sign, rest = np.int32(31), np.int32(0x7FFFFFFF)
            bits = tile[q].view(np.int32), minima[q].view(np.int32)
            _minima(bits[0], sign, rest, bits[1])
        else:
            sign, rest = np.int64(63), np.int64(0x7FFFFFFFFFFFFFFF)
            bits = tile[q].view(np.int64), minima[q].view(np.int64)
            _minima(bits[0], sign, rest, bits[1])


@njit(cache=True, nogil=True)
def _run_of(segment, q, run):
    """The bounds of query `q` in a run, as far as there are points."""
    tile, _, _, points = segment
    runs = tile.shape[2] // _RUN
    start = run % runs * _RUN
    stop = start + min(_RUN, points - run * _RUN)
    return tile[run // runs, q, start:stop]


@njit(cache=True, nogil=True)
def _smallest_bounds(segment, q, limit, keys, places):
    """The smallest bounds up to `limit` as a heap; -1 stands for none.

    Bounds that are infinite, as overflow leaves them, are not among them. None is above
    as many minima, the largest of which saves a heap of many numbers most of its
    exchanges.
    """
    minima = segment[1][q]
    keys[:] = np.inf
    for run in range(len(minima)):
        if minima[run] < keys[0]:
            _replace_largest(keys, places, minima[run], 0)
    limit = min(limit, keys[0])
    keys[:] = np.inf
    places[:] = -1
    for run in range(len(minima)):
        if minima[run] > limit or minima[run] >= keys[0]:
            continue
        bounds = _run_of(segment, q, run)
        for j in range(len(bounds)):
            if bounds[j] <= limit and bounds[j] < keys[0]:
                _replace_largest(keys, places, bounds[j], run * _RUN + j)


@njit(cache=True, nogil=True)
def _use(segment, q, places):
    """Mark the bounds at some places as used; NaN is not at most anything."""
    tile = segment[0]
    width = tile.shape[2]
    for place in places:
        if place >= 0:
            tile[place // width, q, place % width] = np.nan


@njit(cache=True, nogil=True)
def _open(segment, q, limit, keys, places):
    """Write the places of bounds of at most `limit`; how many there are."""
    minima, count = segment[1][q], 0
    for run in range(len(minima)):
        if minima[run] > limit:
            continue
        bounds = _run_of(segment, q, run)
        for j in range(len(bounds)):
            # Written in any case and kept where it counts: no branch to be mistaken in.
            keys[count] = bounds[j]
            places[count] = run * _RUN + j
            count += bounds[j] <= limit
    return count


@njit(cache=True, nogil=True)
def _evaluate_all(keys, places, start, size, query, candidates, goal, room):
    """Evaluate the points at some places whose bounds do not exclude them by then."""
    distances, (waiting, totals), count = goal[0], room, 0
    for at in range(len(places)):
        if places[at] < 0 or keys[at] > distances[0] - size:
            continue
        waiting[count] = start + places[at]
        count += 1
        if count == _ABREAST:
            _evaluate(query, candidates, waiting, count, *goal, totals)
            count = 0
    if count:
        _evaluate(query, candidates, waiting, count, *goal, totals)


@njit(cache=True, nogil=True)
def _evaluate_open(segment, sizes, queries, candidates, found, rest, begins, ends):
    """Evaluate what is open for some queries, each at begins[q] … ends[q] of `rest`.

    Where several queries ask for most points, rows are taken by parts that stay in
    cache until all queries have been there.
    """
    keys, places = rest
    _, _, start, points = segment
    indices, squares = found
    room = np.empty(_ABREAST, dtype=np.intp), np.empty(_ABREAST)
    step = max(points, 1)
    if np.sum(ends - begins) > _SHARED * points:
        step = max(1, _PART_BYTES // max(1, candidates[0][:1].nbytes))
    for stop in range(step, points + step, step):
        for q in range(len(queries)):
            first = begins[q]
            while begins[q] < ends[q] and places[begins[q]] < stop:
                begins[q] += 1
            here, goal = slice(first, begins[q]), (squares[q], indices[q])
            asked = start, sizes[q], queries[q], candidates, goal, room
            _evaluate_all(keys[here], places[here], *asked)


@njit(cache=True, nogil=True)
def _search(segment, sizes, queries, candidates, ahead, left, found, undecided):
    """Evaluate what the bounds on a segment of the points leave open, best first.

    A segment is a tile of bounds (chunks, queries, points of a chunk), the minima of
    its runs (queries, runs), the first point and the number of points. To a bound comes
    the size of the query. Bounds are used up. `left` is how many points may still be
    open; where there are more the query is undecided.
    """
    tile, _, start, points = segment
    indices, squares = found
    best = np.empty(ahead, dtype=tile.dtype), np.empty(ahead, dtype=np.intp)
    most = max(points + 1, min(_MOST_OPEN, points * len(queries) + 1))
    rest = np.empty(most, dtype=tile.dtype), np.empty(most, dtype=np.intp)
    room = np.empty(_ABREAST, dtype=np.intp), np.empty(_ABREAST)
    begins, ends = np.zeros(len(queries), np.intp), np.zeros(len(queries), np.intp)
    used = 0
    for q in range(len(queries)):
        if undecided[q]:
            continue
        if used + points >= most:
            asked = segment, sizes, queries, candidates, found
            _evaluate_open(*asked, rest, begins, ends)
            used = 0
        goal, size = (squares[q], indices[q]), sizes[q]
        _smallest_bounds(segment, q, goal[0][0] - size, *best)
        _evaluate_all(*best, start, size, queries[q], candidates, goal, room)
        _use(segment, q, best[1])
        limit = goal[0][0] - size
        count = _open(segment, q, limit, rest[0][used:], rest[1][used:])
        left[q] -= count + np.sum((best[1] >= 0) & (best[0] <= limit))
        undecided[q] = left[q] < 0
        if not undecided[q]:
            begins[q], ends[q] = used, used + count
            used += count
    _evaluate_open(segment, sizes, queries, candidates, found, rest, begins, ends)


@njit(cache=True, nogil=True)
def _tile(room, chunks, queries, width, dtype):
    """Bounds of as many chunks as `room` bytes hold, and the minima of their runs."""
    one = np.empty((queries, width), dtype=dtype).nbytes
    chunks = min(chunks, max(1, room // one))
    tile = np.empty((chunks, queries, width), dtype=dtype)
    return tile, np.empty((queries, chunks * (width // _RUN)), dtype=dtype)


@njit(cache=True, nogil=True)
def _begin(found, n):
    indices, squares = found
    squares[:] = np.inf
    indices[:] = n


@njit(cache=True, nogil=True)
def _finish(found):
    indices, squares = found
    for q in range(len(indices)):
        _sort(squares[q], indices[q])


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _add(values, more):
    for j in range(len(more)):
        values[j] += more[j]


@njit(cache=True, nogil=True)
def _factors(queries, weight, slack, sizes):
    """What columns and squared lengths of points are multiplied by for bounds.

    They are less what all bounds of a query have in common, which goes to `sizes`.
    """
    share, columns = (1 - slack) * weight, queries.shape[1]
    factors = np.empty((len(queries), columns + 1), dtype=queries.dtype)
    double = queries.dtype.type(-2 * weight)
    for q in range(len(queries)):
        square = 0.0
        for j in range(columns):
            factors[q, j] = double * queries[q, j]
            square += np.float64(queries[q, j]) ** 2
        factors[q, -1] = share
        sizes[q] += share * square
    return factors


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _combine(factors, chunk, out):
    for j in range(len(out)):
        out[j] = factors[0] * chunk[0, j]
    for c in range(1, len(factors)):
        factor, column = factors[c], chunk[c]
        for j in range(len(out)):
            out[j] += factor * column[j]


@njit(cache=True, nogil=True)
def _multiply(factors, chunk, out):
    """``factors @ chunk``; for one query by a loop, as calling BLAS takes as long."""
    if len(factors) == 1:
        _combine(factors[0], chunk, out[0])
    else:
        np.dot(factors, chunk, out)


@njit(cache=True, nogil=True)
def nearest_by_columns(points, slack, room, asked, answer):
    """Neighbours from images of the points in chunks of columns.

    `points` are the images and the number of points. An image is its chunks, the
    queries under its map and their weight; `slack` and `room` are those of an
    :class:`~.tiles.Expansion`. `asked` are the queries, candidates and how many of them
    to evaluate first; `answer` is how many may be open at the most, and where to write.
    """
    (leads, leading, lead_weight), (chunks, projected, weight), n = points
    (queries, candidates, ahead), (most, found, undecided) = asked, answer
    width, count = chunks.shape[2], len(projected)
    sizes = np.zeros(count)
    factors = _factors(projected, weight, slack, sizes)
    lead_factors = _factors(leading, lead_weight, slack, sizes)
    tile, minima = _tile(room, len(chunks), count, width, chunks.dtype)
    more = np.empty((count, width), dtype=chunks.dtype)
    runs = width // _RUN
    left = np.full(count, most)
    _begin(found, n)
    for first in range(0, len(chunks), len(tile)):
        used = min(len(tile), len(chunks) - first)
        start = first * width
        for at in range(used):
            _multiply(factors, chunks[first + at], tile[at])
            if len(leads):
                _multiply(lead_factors, leads[first + at], more)
                for q in range(count):
                    _add(tile[at, q], more[q])
            here = minima[:, at * runs : (at + 1) * runs]
            _close(tile[at], n - start - at * width, here)
        segment = tile, minima[:, : used * runs], start, min(n - start, used * width)
        _search(segment, sizes, queries, candidates, ahead, left, found, undecided)
    _finish(found)


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _add_share(values, share, more):
    for j in range(len(more)):
        values[j] += share * more[j]


@njit(cache=True, nogil=True)
def nearest_by_rows(points, slack, room, asked, answer):
    """The same from rows: `points` are those, their squared lengths and the queries."""
    points, squares, projected = points
    (queries, candidates, ahead), (most, found, undecided) = asked, answer
    n, count, width = len(points), len(projected), _ROWS_AT_ONCE
    runs, chunks = width // _RUN, (n + width - 1) // width
    sizes = np.zeros(count)
    factors = _factors(projected, 1.0, slack, sizes)[:, :-1].copy()
    tile, minima = _tile(room, chunks, count, width, points.dtype)
    left = np.full(count, most)
    _begin(found, n)
    for first in range(0, chunks, len(tile)):
        used = min(len(tile), chunks - first)
        for at in range(used):
            start = (first + at) * width
            rows = points[start : start + width]
            if len(rows) == width:
                np.dot(factors, rows.T, tile[at])
            else:
                tile[at, :, : len(rows)] = np.dot(factors, rows.T)
            for q in range(count):
                _add_share(tile[at, q], 1 - slack, squares[start : start + width])
            _close(tile[at], n - start, minima[:, at * runs : (at + 1) * runs])
        start = first * width
        segment = tile, minima[:, : used * runs], start, min(n - start, used * width)
        _search(segment, sizes, queries, candidates, ahead, left, found, undecided)
    _finish(found)


@njit(cache=True, nogil=True)
def nearest_by_reading(queries, candidates, found):
    """The same by evaluating every point.

    To its end, as memory is read ahead for as long as nothing is left out.
    """
    indices, squares = found
    n = len(candidates[0])
    _begin(found, n)
    for q in range(len(queries)):
        for i in range(n):
            square = _exact(queries[q], candidates, i, np.inf)
            _put(square, i, squares[q], indices[q])
    _finish(found)


@njit(cache=True, nogil=True)
def nearest(bounds, queries, candidates, ahead, most, found, undecided):
    """The same from a tile of bounds, (queries, points)."""
    count, n = bounds.shape
    width = (n + _RUN - 1) // _RUN * _RUN
    tile, minima = _tile(0, 1, count, width, bounds.dtype)
    tile[0, :, :n] = bounds
    _close(tile[0], n, minima)
    left, sizes = np.full(count, most), np.zeros(count)
    _begin(found, n)
    segment = tile, minima, 0, n
    _search(segment, sizes, queries, candidates, ahead, left, found, undecided)
    _finish(found)


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _add_squares(squares, column):
    for j in range(len(column)):
        squares[j] += np.float64(column[j]) * np.float64(column[j])


@njit(cache=True, nogil=True)
def add_to_columns(chunks, weights, steps):
    """See :func:`skmahal._core.images.add_to_columns`."""
    width, n = chunks.shape[2], steps.shape[1]
    squares = np.empty(width)
    for chunk in range((n + width - 1) // width):
        start = chunk * width
        stop = min(start + width, n)
        change = np.dot(weights, np.ascontiguousarray(steps[:, start:stop]))
        squares[:] = 0
        for c in range(len(weights)):
            column = chunks[chunk, c, : stop - start]
            _add(column, change[c])
            _add_squares(squares, column)
        for j in range(stop - start):
            chunks[chunk, -1, j] = squares[j]


@njit(cache=True, nogil=True)
def weighted_sums(bits, multipliers, sums):
    """``Σ w_j multipliers[j]`` modulo 2^64 over the 32-bit words of every row.

    `bits` are those of floats; -0.0 counts as 0.0.
    """
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for i in range(len(bits)):
        total = np.uint64(0)
        for j in range(np.uint64(bits.shape[1])):
            word = np.uint64(bits[i, j])
            if bits.itemsize == 4:
                word = word if word != 1 << 31 else np.uint64(0)
                total += word * multipliers[j]
            else:
                word = word if word != 1 << 63 else np.uint64(0)
                total += (word & low) * multipliers[np.uint64(2) * j]
                total += (word >> half) * multipliers[np.uint64(2) * j + np.uint64(1)]
        sums[i] = total


@njit(cache=True, nogil=True)
def squares_to(query, candidates, indices, squares):
    """Exact squared distances of one query to the given points."""
    for place, i in enumerate(indices):
        squares[place] = _exact(query, candidates, i, np.inf)


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _mass(query, norm, power, nodes, node):
    """What a walk weighs a node by; see :class:`skmahal._core.tree._Walk`."""
    sums, squares, counts, _ = nodes
    cross = 0.0
    for j in range(len(query)):
        cross += query[j] * sums[node, j]
    mass = max(counts[node] * norm - 2 * cross + squares[node], 0.0)
    return np.sqrt(counts[node]) * np.sqrt(mass) if power == 1 else mass


@njit(cache=True, nogil=True)
def _leaf(query, power, nodes, uniforms):
    """Walk down from the root: the leaf, or 0 to start over, and its mass."""
    norm = np.dot(query, query)
    node, here = 1, _mass(query, norm, power, nodes, 1)
    for level in range(len(uniforms) - 1):
        left = 2 * node
        to_left = _mass(query, norm, power, nodes, left)
        to_right = _mass(query, norm, power, nodes, left + 1)
        whole = here if power == 1 else to_left + to_right
        u = uniforms[level] * whole
        if u < to_left:
            node, here = left, to_left
        elif u >= whole - to_right and to_right > 0:
            node, here = left + 1, to_right
        else:
            return 0, 0.0
    return node, here


@njit(cache=True, nogil=True)
def leaves(asked, nodes, found, mass):
    """The leaf that every walk reaches, or 0 where it starts over, and its mass.

    `asked` are the queries that nodes are weighed by, whose walk it is, the power and
    random numbers (levels, walks).
    """
    queries, owner, power, uniforms = asked
    for i in range(len(owner)):
        walk = _leaf(queries[owner[i]], power, nodes, uniforms[:, i])
        found[i], mass[i] = walk


@njit(cache=True, nogil=True)
def _edges(query, candidates, start, stop, power):
    """Sums of the distances, to a power, to the points start … stop - 1 so far."""
    edges, edge = np.empty(stop - start), 0.0
    for at in range(len(edges)):
        square = _exact(query, candidates, start + at, np.inf)
        edge += np.sqrt(square) if power == 1 else square
        edges[at] = edge
    return edges


@njit(cache=True, nogil=True)
def draw(asked, nodes, points, candidates, found):
    """See :meth:`skmahal._core.tree.DistanceTree.sample`; -1 is to start over.

    `points` are the queries for candidates, the rest as for :func:`leaves`. Walks that
    meet at a leaf share its distances.
    """
    _, owner, power, uniforms = asked
    capacity, starts = len(nodes[0]) // 2, nodes[3]
    leaf, mass = np.empty(len(owner), dtype=np.intp), np.empty(len(owner))
    leaves(asked, nodes, leaf, mass)
    keys = owner * (2 * capacity) + leaf
    last, edges = -1, np.empty(0)
    for i in np.argsort(keys):
        found[i] = -1
        if leaf[i] == 0:
            continue
        start, stop = starts[leaf[i] - capacity], starts[leaf[i] - capacity + 1]
        if keys[i] != last:
            last = keys[i]
            edges = _edges(points[owner[i]], candidates, start, stop, power)
        total = mass[i] if power == 1 else edges[-1]
        at = np.searchsorted(edges, uniforms[-1, i] * total, side="right")
        if at < len(edges):
            found[i] = start + at


@njit(cache=True, nogil=True)
def roots(squares, points, norms, share, out):
    """Square roots into `out`; whether any square is at most a share of a norm."""
    near = False
    for q in range(len(squares)):
        for j in range(squares.shape[1]):
            out[q, j] = np.sqrt(squares[q, j])
            near |= squares[q, j] <= share * norms[points[q, j]]
    return near
