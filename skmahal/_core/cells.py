"""Cells: a partition of the points that survives changes of the metric.

Points are grouped about p centres, and their codes are kept in order of the cells. The
distance of a query to a centre c is that to any point: with ``g = UᵀU(q - origin)``,

    d² = ‖Uq‖² - 2 g·c + ‖Uc‖²,

so that only ‖Uc‖² of p centres follows the metric. The points of a cell are within a
radius ρ of its centre under the Euclidean metric, whatever U is. Therefore

    d² ≥ ‖Uq‖² - 2 g·c - 2 ‖g‖ ρ + min ‖Ux‖²

for all of them, with certainty. A search of all cells by these bounds is exact. One of
the nearest cells alone is approximate, and reads √n/4 points a cell on average.
"""

from typing import NamedTuple

import numpy as np

from .codes import ARRAYS, eight_bits, leading_directions
from .points import block, grown, owned, row_squares
from .saved import FLOATS, array_from, integer_from, require
from .threads import run, slices

# Points from which on there are cells.
LEAST_POINTS = 1024

# Cells for n points, in units of √n; by whether searches are exact, see :func:`make`.
_CELLS = {False: 4, True: 6}

# Points that centres are computed from, for each of them, and how often.
_POINTS_PER_CELL = 32
_ROUNDS = 4

# Coordinates under the metric that points are grouped by, and points these are from.
_MOST_COORDINATES = 128
_SAMPLE = 2000

# A cluster is wide if its mean squared distance from the centre is so many times the
# median of all clusters.
_WIDE = 1.5

# Seeds of centres are drawn in so many rounds, each by distances from those before.
_DRAWS = 8

# Larger factors of coordinates are not rounded to float32.
_MOST_FACTOR = 1e6

# Numbers that stay in cache.
_BLOCK_NUMBERS = 1 << 21

# Share of the points that may be in no cell, or have left theirs.
_LOOSE = 1 / 32

_CODES = ARRAYS[:4]
CENTRES = "centres", "centre_steps", "radii", "centre_sizes"


class Cells(NamedTuple):
    """Cells of points about an origin, in units of `unit`.

    A centre is its code times its step, and no point of a cell is farther from it than
    the radius. `norms` are squared lengths of centres under the metric in units of one,
    or None until they are needed. Codes of points (as in
    :class:`~.codes.CodedPoints`) are in slots: cell c has those from ``starts[c]`` to
    ``starts[c + 1]``, and the slots behind the last cell are of points that came later.
    `n` slots are in use. ``positions[slot]`` is the point in a slot, -1 where it has
    left, and ``slots[point]`` is its slot.
    """

    unit: float
    n: int
    centres: np.ndarray
    centre_steps: np.ndarray
    centre_sizes: np.ndarray
    radii: np.ndarray
    norms: np.ndarray | None
    starts: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    codes: np.ndarray
    steps: np.ndarray
    errors: np.ndarray
    sizes: np.ndarray

    @property
    def have_points(self):
        """Whether any cell has a point."""
        return bool((self.positions[: self.starts[-1]] >= 0).any())

    def arrays(self):
        """All arrays by name."""
        names = ("starts", "positions", *CENTRES, *_CODES)
        return {name: getattr(self, name) for name in names}

    @property
    def are_loose(self):
        """Whether many points are in no cell, or have left theirs."""
        return self.n - self.starts[-1] > _LOOSE * self.n + 256

    def decoded(self, d):
        """Centres about the origin, in units of one."""
        steps = self.unit * np.float64(self.centre_steps)
        return steps[:, np.newaxis] * self.centres[:, :d]

    def measured(self, U):
        """The cells with squared lengths of centres under U; O(pkd)."""
        d = U.shape[1]
        images = self.decoded(d) @ U.T if len(U) else self.decoded(d)
        return self._replace(norms=row_squares(images))

    def moved(self, W, V, pulled):
        """The cells after ``W Vᵀ`` was added to U; `pulled` is ``UᵀW``. O(pd)."""
        if self.norms is None:
            return self
        centres = self.decoded(len(V))
        T, along = centres @ V, centres @ pulled
        change = np.einsum("ij,ij->i", T, 2 * along + T @ (W.T @ W))
        return self._replace(norms=np.maximum(self.norms + change, 0))

    @property
    def _coded(self):
        """Names of the codes of points that there are."""
        return _CODES if len(self.codes) else ()

    def stale(self):
        """Which point is in which cell, without codes: those of all points changed."""
        nothing = {name: getattr(self, name)[:0] for name in _CODES}
        return self._replace(norms=None, **nothing)

    def with_codes(self, coded, positions, replaced):
        """Cells after points were coded at some positions, behind the last or not.

        O(d) each, amortised. Points that are replaced leave their cells.
        """
        if replaced:
            kept, slots = owned(self.positions), owned(self.slots)
            # Done twice after an interruption: slots are then behind the last already.
            left = slots[positions]
            kept[left[left < self.n]] = -1
        else:
            positions = np.arange(positions.start, positions.stop)
            slots = grown(self.slots, positions[0], positions[-1] + 1)
            kept = self.positions
        end = self.n + len(positions)
        kept = grown(kept, self.n, end)
        kept[self.n : end], slots[positions] = positions, np.arange(self.n, end)
        arrays = {"positions": kept, "slots": slots}
        for name in self._coded:
            arrays[name] = grown(getattr(self, name), self.n, end)
            arrays[name][self.n : end] = getattr(coded, name)[positions]
        return self._replace(n=end, **arrays)

    def kept(self, mask):
        """The cells of the points where `mask` is True; later ones move up. O(n)."""
        old = self.positions[: self.n]
        stays = (old >= 0) & mask[old]
        moved = np.cumsum(mask, dtype=np.int32) - 1
        counts = np.concatenate([[0], np.cumsum(stays)])
        positions = moved[old[stays]]
        arrays = {name: getattr(self, name)[: self.n][stays] for name in self._coded}
        rest = {"starts": counts[self.starts], "positions": positions}
        return self._replace(
            n=len(positions), slots=_inverse(positions), **rest, **arrays
        )

    def labels(self, n):
        """The cell of each of n points; -1 for points in none."""
        labels = np.full(n, -1)
        cells = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        positions = self.positions[: len(cells)]
        labels[positions[positions >= 0]] = cells[positions >= 0]
        return labels

    def saved(self):
        """The cells as plain values."""
        values = self._asdict()
        for name in ("positions", *_CODES):
            values[name] = values[name][: self.n]
        values["slots"] = values["slots"][: np.count_nonzero(values["positions"] >= 0)]
        return values

    @classmethod
    def restored(cls, values, n, coded):
        """The cells of n points with codes `coded` that were saved."""
        used, count = integer_from(values, "n", least=n), len(values["centres"])
        whole, width = (np.dtype(np.int8),), coded.codes.shape[1]
        positive, places = (FLOATS[0],), (np.dtype(np.int32),)
        given = dict.fromkeys(CENTRES, (positive, (count,)))
        given |= dict.fromkeys(_CODES, (positive, (used,)))
        given |= {"centres": (whole, (count, width)), "codes": (whole, (used, width))}
        given |= {"positions": (places, (used,)), "slots": (places, (n,))}
        given["starts"] = (np.dtype(np.intp),), (count + 1,)
        given["norms"] = FLOATS[1:], (count,)
        arrays = {name: array_from(values, name, *kind) for name, kind in given.items()}
        starts, slots = arrays["starts"], arrays["slots"]
        ordered = (np.diff(starts) >= 0).all() and starts[0] == 0 and starts[-1] <= used
        require(ordered, "cells are not in order")
        require(slots.min() >= 0 and slots.max() < used, "cells have other points")
        same = np.array_equal(arrays["positions"][slots], np.arange(n))
        require(same, "cells have other points")
        points = np.count_nonzero(arrays["positions"] >= 0)
        require(points == n, f"cells have {points} points, expected {n}")
        require(float(values["unit"]) == coded.unit, "cells have another unit")
        return cls(**arrays, unit=coded.unit, n=used)

    def check(self, coded, rows, origin):
        """Assert that every point is in one slot, and within its cell. O(nd)."""
        n = len(rows)
        positions, slots = self.positions[: self.n], self.slots[:n]
        assert np.array_equal(positions[slots], np.arange(n)), "slots of points"
        assert (positions >= 0).sum() == n, "points in slots"
        for name in _CODES:
            same = getattr(self, name)[slots] == getattr(coded, name)[:n]
            assert same.all(), f"{name} of points in cells"
        labels, centres = self.labels(n), self.decoded(rows.shape[1])
        for here in slices(n, max(1, _BLOCK_NUMBERS // rows.shape[1])):
            cells = labels[here]
            gaps = block(rows, here) - origin - centres[cells]
            outside = np.sqrt(row_squares(gaps)) > self.unit * self.radii[cells]
            assert not (outside & (cells >= 0)).any(), "radii of cells"


def cells_for(n, exact=False):
    """How many cells n points have.

    >>> cells_for(10_000)
    400
    """
    return int(_CELLS[exact] * np.sqrt(n))


def cost_of_making(n, d):
    """Nanoseconds that it takes to make cells for n points of d coordinates."""
    r = min(_MOST_COORDINATES, d)
    return 0.03 * n * r * (cells_for(n) + 2 * d) + 8 * n * d


def make(space, coded, held, exact=False, jobs=1):
    """The :class:`Cells` of the rows of a space, by k-means under its metric.

    Points at the positions `held` are not among those that centres are computed from.
    Cells for `exact` searches have similar radii, others have more similar numbers of
    points. The same rows and metric give the same cells. O(n d r + n p r) for p cells,
    in r leading coordinates under the metric.
    """
    n, rng = len(space.rows), np.random.default_rng(0)
    order = rng.permutation(np.setdiff1d(np.arange(n), held))
    count = min(cells_for(n, exact), len(order))
    chosen = np.sort(order[: _POINTS_PER_CELL * count])
    M = _coordinates(space, coded.P, rng.permutation(chosen)[:_SAMPLE], rng)
    centres = _means(_projected(space, chosen, M, jobs), count, exact, rng, jobs)
    labels = _nearest(space, M, centres, jobs)
    return gathered(labels, space, coded, jobs)


def _coordinates(space, P, chosen, rng):
    """A map (r × d) to the leading coordinates of points under the metric.

    None is the identity. P are leading directions under the Euclidean metric.
    """
    U, d, r = space.U, space.rows.shape[1], _MOST_COORDINATES
    if not len(U):
        return None if d <= r else P[:r] if len(P) else np.eye(r, d)
    if min(len(U), d) <= r:
        return U
    images = (block(space.rows, chosen) - space.origin) @ U.T
    return leading_directions(images, r, rng) @ U


def _projected(space, positions, M, jobs=1):
    """Coordinates of some rows under a map, in float32; None stands for the identity.

    They are relative to the largest length, so that squares are normal numbers.
    """
    scale, length = np.sqrt(space.norms.max() or 1), np.sqrt(space.sizes.max() or 1)
    if M is not None:
        M, dtype = M.T * (length / scale), np.float32
        if np.abs(M).max() > _MOST_FACTOR:
            # Of features that hardly vary.
            dtype = np.float64
        M = M.astype(dtype)

    def part(here):
        rows = block(space.rows, positions[here]) - space.origin
        if M is None:
            return (rows / scale).astype(np.float32)
        return ((rows / length).astype(M.dtype) @ M).astype(np.float32)

    step = max(1, _BLOCK_NUMBERS // space.rows.shape[1])
    return np.concatenate(run(part, slices(len(positions), step), jobs))


def _means(Z, count, exact, rng, jobs):
    """Centres of about `count` clusters of rows, by k-means.

    Seeds are drawn uniformly, so that dense regions have many, or by squared distances
    from earlier ones for `exact` searches, so that few clusters are without a seed. If
    two clusters share a centre, every query has to search both. Therefore, after each
    round but the last, the widest clusters get a second centre, at their farthest
    point.
    """
    centres = Z[rng.choice(len(Z), count, replace=False)]
    if exact:
        centres = _far_apart(Z, count, rng, jobs)
    for left in reversed(range(_ROUNDS)):
        labels, gaps = nearest_rows(Z, centres, jobs)
        # By distance within a cluster: the farthest point is the last.
        order = np.lexsort((gaps, labels))
        starts = np.unique(labels[order], return_index=True)[1]
        sums = np.add.reduceat(Z[order], starts, axis=0)
        counts = np.diff(np.append(starts, len(Z)))
        centres = sums / counts[:, np.newaxis].astype(np.float32)
        if exact and left:
            squares = np.add.reduceat(gaps[order], starts) / counts
            wide = squares > max(_WIDE * np.median(squares), np.quantile(squares, 0.9))
            farthest = order[starts + counts - 1][wide]
            centres = np.concatenate([centres, Z[farthest]])
    return centres


def _far_apart(Z, count, rng, jobs):
    """Rows that are drawn by squared distances from those drawn before."""
    seeds, least = np.empty((0, Z.shape[1]), np.float32), np.ones(len(Z))
    for part in slices(count, -(-count // _DRAWS)):
        shares = least / (least.sum() or 1) + 1e-9 / len(Z)
        size = part.stop - part.start
        drawn = rng.choice(len(Z), size, replace=False, p=shares / shares.sum())
        seeds = np.concatenate([seeds, Z[drawn]])
        gaps = nearest_rows(Z, Z[drawn], jobs)[1]
        least = gaps if part.start == 0 else np.minimum(least, gaps)
    return seeds


def nearest_rows(Z, centres, jobs=1):
    """The nearest centre of each row, and the squared distance to it."""
    half = (row_squares(centres) / 2).astype(centres.dtype)
    labels, squares = np.empty(len(Z), np.int32), np.empty(len(Z))

    def find(here):
        products = Z[here] @ centres.T
        products -= half
        labels[here] = np.argmax(products, axis=1)
        most = np.take_along_axis(products, labels[here, np.newaxis], axis=1)[:, 0]
        squares[here] = np.maximum(row_squares(Z[here]) - 2 * most, 0)

    run(find, slices(len(Z), max(1, _BLOCK_NUMBERS // len(centres))), jobs)
    return labels, squares


def _nearest(space, M, centres, jobs):
    """The nearest centre of every point, in the coordinates of a map M."""
    everywhere = np.arange(len(space.rows))

    def find(here):
        return nearest_rows(_projected(space, everywhere[here], M), centres)[0]

    step = max(1, _BLOCK_NUMBERS // max(len(centres), space.rows.shape[1]))
    return np.concatenate(run(find, slices(len(everywhere), step), jobs))


def gathered(labels, space, coded, jobs=1):
    """The :class:`Cells` of rows in the cells `labels`, -1 for rows in none. O(nd)."""
    positions = np.argsort(labels, kind="stable").astype(np.int32)
    loose = np.count_nonzero(labels < 0)
    positions = np.roll(positions, -loose)
    _, counts = np.unique(labels[labels >= 0], return_counts=True)
    starts = np.concatenate([[0], np.cumsum(counts)])
    means, radii = _balls(space, positions, starts, coded, jobs)
    arrays = (np.ascontiguousarray(getattr(coded, name)[positions]) for name in _CODES)
    rest = None, starts, positions, _inverse(positions)
    cells = Cells(coded.unit, len(positions), *means, radii, *rest, *arrays)
    return cells.measured(space.U)


def _balls(space, positions, starts, coded, jobs):
    """Codes, steps and sizes of the means of cells, and their radii."""
    rows, d, counts = space.rows, space.rows.shape[1], np.diff(starts)
    sums, radii = np.zeros((len(counts), d)), np.zeros(len(counts))
    parts = slices(int(starts[-1]), max(1, _BLOCK_NUMBERS // d))

    def centred(here):
        return (block(rows, positions[here]) - space.origin) / coded.unit

    def summed(here):
        cells, firsts = _cells_in(starts, here)
        return cells, np.add.reduceat(centred(here), firsts, axis=0)

    for cells, part in run(summed, parts, jobs):
        sums[cells] += part
    means = sums / counts[:, np.newaxis]
    centres, steps, _, sizes = eight_bits(means, coded.codes.shape[1])
    exact = np.float64(steps)[:, np.newaxis] * centres[:, :d]

    def farthest(here):
        cells, firsts = _cells_in(starts, here)
        lengths = np.diff(np.append(firsts, here.stop - here.start))
        gaps = centred(here) - np.repeat(exact[cells], lengths, axis=0)
        return cells, np.maximum.reduceat(np.sqrt(row_squares(gaps)), firsts)

    for cells, most in run(farthest, parts, jobs):
        radii[cells] = np.maximum(radii[cells], most)
    radii = (radii * (1 + 1e-6) + 1e-30).astype(np.float32)
    return (centres, steps, sizes.astype(np.float32)), radii


def _cells_in(starts, here):
    """The cells that have slots in a slice, and where each begins in it."""
    first = np.searchsorted(starts, here.start, side="right") - 1
    last = np.searchsorted(starts, here.stop, side="left")
    firsts = np.maximum(starts[first:last], here.start) - here.start
    return slice(first, last), firsts


def _inverse(positions):
    """The slot of each point, from the points in slots."""
    slots = np.empty(len(positions), np.int32)
    slots[positions] = np.arange(len(positions), dtype=np.int32)
    return slots


def followed(cells, space, coded, jobs=1):
    """Cells as of the present rows and metric. O(nd) at most.

    If many points are in no cell, they go to the nearest one.
    """
    if not len(cells.codes):
        return gathered(cells.labels(len(space.rows)), space, coded, jobs)
    if cells.norms is None:
        cells = cells.measured(space.U)
    if not cells.are_loose:
        return cells
    labels, U = cells.labels(len(space.rows)), space.U
    centres = cells.decoded(space.rows.shape[1])
    images = centres @ U.T if len(U) else centres
    loose, scale = np.flatnonzero(labels < 0), np.sqrt(space.norms.max() or 1)
    Z = _projected(space, loose, U if len(U) else None, jobs)
    labels[loose] = nearest_rows(Z, np.float32(images / scale), jobs)[0]
    return gathered(labels, space, coded, jobs)
