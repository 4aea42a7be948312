"""Exact neighbours: from certain bounds to exact squared distances.

A query is answered in one of six ways, all with exact distances in float64:

- "lead": leading coordinates of all points (in 8 bits for a single query), codes of
  those that these leave, rows of those that codes leave;
- "codes": codes of all points, by a product in whole numbers for a batch, then rows;
- "transformed": the same with codes of the transformed rows, which hold for one metric,
  where it enlarges the errors of the points' own codes;
- "rows": a matrix product of all rows with a batch of queries, then rows;
- "scan": every row;
- by cells (:mod:`.cells`), which bounds exclude as wholes, where points are clustered.

A :class:`~.plan.Plan` says which. Sparse points have one way, a product with X.
"""

from typing import NamedTuple

import numpy as np
from scipy import sparse

from . import codes as coding
from .cells import CENTRES
from .kernels import available, kernels
from .plan import FEW, choose, cost, out_of_order, per_code
from .points import block, read_only, release, row_squares
from .saved import is_mapped
from .threads import run, slices

_EPS = float(np.finfo(np.float32).eps)

# Squares below this share of what they are the difference of are computed from
# differences of coordinates: rounding in float64 is then a small share of any square.
NEAR = 1e-5

# Points of the nearest cells that are looked at before other cells are judged, in
# units of the mean cell.
_FIRST_CELLS = 8

# Products of coordinates up to which exact distances are left to the threads of BLAS:
# others start too late.
LITTLE = 1 << 28

_SMALL_METRIC = 1 << 16  # entries of U up to which a loop is faster than BLAS
_MOST_BATCH = 256  # queries that are searched at a time
_PILOT = 8  # first queries of a batch, on which "lead" is tried
_PAUSE = 16  # single queries that skip what did not help one before them
_PAIRS = 4096  # pairs whose differences are computed at a time
_FARTHEST = 1e25  # squares of more units than this have no bounds in float32
_LEAST_UNIT = 1e-290  # squared lengths in smaller units have no bounds
_LEAST_LENGTH = 1e-140  # the square of a smaller length is not a normal number

# Bytes of bounds that are made at a time: as many as stay in cache. Bounds from leading
# coordinates and codes are worth more: the more of them are known, the fewer points are
# evaluated before the nearest ones.
_TILE_BYTES = {"rows": 1 << 21, "codes": 1 << 23, "lead": 1 << 23}
_TILE_BYTES["transformed"] = _TILE_BYTES["codes"]

# Bytes of rows that are read at a time, if these are mapped from a file.
_MAPPED_BYTES = 1 << 24


class Space(NamedTuple):
    """Rows that neighbours are found among, and the metric over them.

    `norms` are ``‖U(x - origin)‖²`` of the rows, and `sizes` ``‖x - origin‖²``. With no
    rows in U, the metric is Euclidean.
    """

    rows: np.ndarray
    origin: np.ndarray
    norms: np.ndarray
    sizes: np.ndarray
    U: np.ndarray


class Queries(NamedTuple):
    """Queries q, y = U(q - origin), ``g = Uᵀy``, ‖y‖² and ‖g‖."""

    points: np.ndarray
    images: np.ndarray
    gradients: np.ndarray
    squares: np.ndarray
    lengths: np.ndarray

    def some(self, part):
        """Some of the queries: a slice, or their positions."""
        if isinstance(part, slice) and part == slice(0, len(self.squares)):
            return self
        return Queries(*[values[part] for values in self])


class DenseSearch:
    """Neighbours among the rows of a :class:`Space`; without codes, by brute force.

    A change of rows or metric makes another one. `module` has the compiled loops; None
    is to wait until they are compiled.
    """

    def __init__(
        self, space, coded=None, plan=None, module=None, cells=None, images=None
    ):
        self.space, self.module, self.cells = space, module, cells
        rows, origin, norms, sizes, U = space
        n, d = self.n, self.d = rows.shape
        self.is_mapped, self._scaled, self._ordered = is_mapped(rows), None, None
        self._given, self._pauses = {}, {}
        self.plan = choose(n, d) if plan is None else plan
        if coded is None:
            coded = coding.without_codes(sizes, d)
        held = {name: read_only(getattr(coded, name)[:n]) for name in coding.ARRAYS}
        self.P, self.r_many, self.r_one = read_only(coded.P), coded.r_many, coded.r_one
        self.lead, self.sizes, self.unit = held["lead"], held["sizes"], coded.unit
        self.codes = tuple(held[name] for name in coding.ARRAYS[:4])
        self.short = tuple(held[name] for name in coding.ARRAYS[5:])
        self.norm_unit = coding.power_of_two(norms.max())
        self.norms = np.float32((1 - 1e-9 - 8 * _EPS) / self.norm_unit * norms)
        # Beside a mapped file, memory is for codes of the points.
        lacks = self.plan.uses_images and images is None and not self.is_mapped
        self.images, self.image_unit, self.lacks_images = None, 0.0, lacks
        if images is not None:
            held = [read_only(getattr(images, name)[:n]) for name in coding.ARRAYS[:4]]
            # Rounding of products with U, relative to lengths before and after them.
            eps = float(np.finfo(np.float64).eps)
            rounding = 2 * (d + len(U)) * eps * np.linalg.norm(U) / self.norm_unit
            longest = self.unit * float(self.sizes.max()), np.sqrt(norms.max())
            self.images, self.image_unit = (held, rounding, *longest), images.unit
        arrays = map(read_only, (rows, origin, norms, self.sizes, U))
        self.candidates = *arrays, self.unit, NEAR
        # Products with rows that are not centred then lose few digits.
        self.away = np.linalg.norm(origin) / self.unit
        self.is_central = self.away <= 4 and 1e-15 < self.unit < 1e15
        self.is_direct = self.away <= 64 and 1e-15 < self.unit < 1e15

    def queries(self, points):
        """The :class:`Queries` of some points. O(kd) each."""
        _, origin, _, _, U, *_ = self.candidates
        # A copy, which can be written to: loops are compiled for such queries.
        points = np.array(points, dtype=np.float64, order="C")
        if len(points) < FEW and U.size <= _SMALL_METRIC and available():
            loops = self.module or kernels(self.space.rows.dtype, "some")
            images = np.empty((len(points), len(U) or self.d))
            gradients = np.empty_like(points)
            squares, lengths = np.empty((2, len(points)))
            found = images, gradients, squares, lengths
            loops.transform_queries(points, origin, U, *found)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                images = gradients = points - origin
                if len(U):
                    images = images @ U.T
                    gradients = images @ U
                squares = np.vecdot(images, images)
                same = images is gradients
                lengths = np.sqrt(squares if same else np.vecdot(gradients, gradients))
        least, most = extremes(lengths)
        if not (least > _LEAST_LENGTH and most < np.inf):
            # Relative to the largest entry, whose square may not be a normal number.
            scales = np.abs(gradients).max(axis=1)
            scales[scales == 0] = 1
            with np.errstate(over="ignore", invalid="ignore"):
                shares = gradients / scales[:, np.newaxis]
                lengths = scales * np.sqrt(row_squares(shares))
        return Queries(points, images, gradients, squares, lengths)

    def kneighbors(
        self, queries, K, jobs=1, working_bytes=1 << 24, way=None, cells=True
    ):
        """Squared distances and positions of the K nearest rows, in ascending order.

        Ties go to the lower position. A thread holds `working_bytes` of bounds. `way`
        overrides the plan, and so does `cells` if False.
        """
        count = len(queries.squares)
        if not available() or self.n < 4 * K:
            return self._by_partition(queries, K, working_bytes)
        by_cells = self.plan.cells_many if count >= FEW else self.plan.cells_one
        if by_cells and cells and way is None and self.cells is not None:
            return self._by_cells(queries, K, jobs, working_bytes)
        found = indices, squares, _ = self._no_neighbors(count, K)
        far, done = self.are_far(queries), 0
        if count < FEW:
            chosen = "scan" if far else way or self._way(many=False)
            for part in slices(count, 1):
                self._find_one(queries, found, part, chosen, jobs if count == 1 else 1)
            return squares, indices
        chosen = "scan" if far else way or self._way(many=True)
        if chosen == "lead" and way is None and count >= 8 * _PILOT:
            done = _PILOT
            self._find(queries, found, slice(0, done), "lead", working_bytes)
            # The first queries say how many codes the others will read.
            opened = found[2][:done].mean() / self.n
            lead = cost("lead", self.n, self.d, self.r_many, opened, many=True)
            costs = {**self.plan.costs["many"], "lead": lead}
            chosen = min(costs.keys() - {"cells", "transformed"}, key=costs.get)

        def find(part):
            part = slice(done + part.start, done + part.stop)
            self._find(queries, found, part, chosen, working_bytes)

        run(find, slices(count - done, min(_MOST_BATCH, -(-count // jobs))), jobs)
        return squares, indices

    def _way(self, many):
        """The way of the plan; another one while there are no codes for it."""
        if self.images is None:
            return self.plan.without_images(many)[0]
        return self.plan.many if many else self.plan.one

    def in_cells(self, queries, K, budget, jobs=1):
        """As :meth:`kneighbors`, among the points of the nearest cells.

        Cells are taken until they have `budget` points. With None, all cells are
        searched by their bounds, and neighbours are exact. The third array is how many
        codes were read for each query. It is -1 where so many would be that another way
        takes less time; the query is not answered then.
        """
        count = len(queries.squares)
        if self.n < 4 * K or self.are_far(queries):
            found = self.kneighbors(queries, K, jobs, way="scan")
            return *found, np.full(count, self.n)
        found = indices, squares, _ = self._no_neighbors(count, K)
        if budget is not None:
            limits = budget, budget >= self.n, self.n
        else:
            costs = self.plan.costs["many" if count >= FEW else "one"]
            least = min(costs[way] for way in costs if way != "cells")
            first = _FIRST_CELLS * self.n // len(self.cells.radii)
            limits = first, True, int(least / per_code(self.d))

        def find(part):
            given = self._arguments(queries, found, part, "cells")
            loops, batch, _, points, heaps = given
            rest = self.norm_unit, self._in_order(loops), batch, points, heaps
            loops.nearest_in_cells(*limits, *rest)
            if self.is_mapped:
                release(self.space.rows)

        run(find, slices(count, min(_MOST_BATCH, -(-count // jobs))), jobs)
        return squares, indices, found[2]

    def _no_neighbors(self, count, K):
        """Positions, squares and numbers of codes that were read, to be filled in."""
        indices, squares = np.empty((count, K), np.intp), np.empty((count, K))
        indices.fill(self.n)
        squares.fill(np.inf)
        return indices, squares, np.zeros(count, np.intp)

    def _by_cells(self, queries, K, jobs, working_bytes):
        """Exact neighbours by cells, and in another way where these are of no use."""
        count = len(queries.squares)
        if count < FEW and self._skips("cells"):
            return self.kneighbors(queries, K, jobs, working_bytes, cells=False)
        if count >= 8 * _PILOT:
            first = queries.some(slice(0, _PILOT))
            if 2 * np.count_nonzero(self.in_cells(first, K, None)[2] < 0) > _PILOT:
                return self.kneighbors(queries, K, jobs, working_bytes, cells=False)
        squares, indices, opened = self.in_cells(queries, K, None, jobs)
        left = np.flatnonzero(opened < 0)
        if left.size:
            if count < FEW:
                self._pauses["cells"] = _PAUSE
            rest = queries.some(left), K, jobs, working_bytes
            squares[left], indices[left] = self.kneighbors(*rest, cells=False)
        return squares, indices

    @property
    def begins_in_cells(self):
        """Whether a single query searches some cells first."""
        skips = self._pauses.get("cells", 0) > 0
        return self.plan.cells_one and self.cells is not None and not skips

    def _skips(self, way):
        """Whether to skip a way because it did not help a recent single query.

        Queries far from the data tend to follow each other. Only time depends on it.
        """
        left = self._pauses.get(way, 0)
        self._pauses[way] = max(left - 1, 0)
        return left > 0

    def _in_order(self, loops):
        """The cells as loops take them, with norms under the present metric. O(n)."""
        if self._ordered is None:
            cells = self.cells
            held = {name: read_only(values) for name, values in cells.arrays().items()}
            centres = (held[name] for name in CENTRES)
            points = (held[name][: cells.n] for name in coding.ARRAYS[:4])
            positions = held["positions"][: cells.n]
            # Places that points have left, and one behind the last, have no norms.
            norms = np.append(self.norms[positions], np.float32(np.inf))
            norms[:-1][positions < 0] = np.inf
            least = np.minimum.reduceat(norms, cells.starts[:-1])
            own = (cells.norms / self.norm_unit).astype(np.float32)
            rest = held["starts"], positions, loops.Codes(*map(read_only, points))
            first = loops.Codes(*centres), read_only(own), read_only(least)
            self._ordered = loops.Cells(*first, *rest, read_only(norms))
        return self._ordered

    def are_far(self, queries):
        """Whether queries are so far away that bounds in float32 mean nothing."""
        most = _FARTHEST * self.norm_unit
        square, length = extremes(queries.squares)[1], extremes(queries.lengths)[1]
        fits = square < most and self.unit * length < most
        fits = fits and self.image_unit * square**0.5 < most
        return not fits or self.norm_unit < _LEAST_UNIT

    def _arguments(self, queries, found, part, way):
        """The loops for a way, and their arguments for some of the queries."""
        given = self._given.get(way)
        if given is None:
            kind = "codes" if way == "transformed" else way
            loops = self.module or kernels(self.space.rows.dtype, kind)
            codes = loops.Codes(*self.codes)
            if way != "lead":
                codes = codes._replace(codes=codes.codes[:0])
            given = self._given[way] = loops, codes, loops.Candidates(*self.candidates)
        loops, codes, candidates = given
        heaps = loops.Found(*[values[part] for values in found])
        return loops, queries.some(part), codes, candidates, heaps

    def _find(self, queries, found, part, way, working_bytes):
        """Fill in the neighbours of some of the queries, all at once."""
        loops, batch, codes, points, heaps = self._arguments(queries, found, part, way)
        if way == "scan":
            loops.nearest_by_scan(batch, points, heaps)
            return
        for here, *bounds in self._tiles(way, batch, working_bytes):
            place = here.start, here.stop == self.n, self.norm_unit
            loops.nearest_in_tile(*bounds, *place, batch, codes, points, heaps)

    def _tiles(self, way, queries, working_bytes):
        """Slices of points; products of queries with them, norms, and shifts of these.

        The sum of the three is a lower bound of a squared distance less ‖Uq‖², in units
        of `norm_unit`. Products are with leading coordinates, codes or rows.
        """
        gradients, lengths = queries.gradients, queries.lengths
        norms, shifts = self.norms, np.zeros(len(lengths), np.float32)
        direct = self.is_central and self.space.rows.dtype == np.float32
        if way == "lead":
            factors = self.lead_factors(gradients, lengths)
        elif way in ("codes", "transformed"):
            loops = self.module or kernels(self.space.rows.dtype, "codes")
            codes, unit, queries, norms = self._coded(way, loops, queries)
            whole, factors = self.whole_queries(loops, queries, unit)
        else:
            scale, unit = 2 / self.norm_unit, 1.0 if direct else self.unit
            factors = (-scale * unit * gradients).astype(np.float32)
            rounding = (self.d + 16) * _EPS * scale * self.unit * lengths.max()
            away = np.float32(self.away if direct else 0)
            norms = norms - np.float32(rounding) * (self.sizes + away)
            if direct:
                shifts = (scale * (gradients @ self.space.origin)).astype(np.float32)
        count, size = len(lengths), min(_TILE_BYTES[way], working_bytes)
        most = self._most_rows(max(256, size // (4 * count)))
        tile = np.empty(count * most, np.float32)
        for here in slices(self.n, most):
            products = tile[: count * (here.stop - here.start)].reshape(count, -1)
            if way in ("codes", "transformed"):
                loops.code_tile(here.start, whole, factors, codes, products)
            elif way == "lead":
                np.matmul(factors, self.lead[here].T, out=products)
            else:
                rows = block(self.space.rows, here)
                if not direct:
                    rows = ((rows - self.space.origin) / self.unit).astype(np.float32)
                np.matmul(factors, rows.T, out=products)
            yield here, products, norms[here], shifts
            if self.is_mapped:
                release(self.space.rows)

    def _find_one(self, queries, found, part, way, jobs):
        """Fill in the neighbours of one query, whose bounds are made by all threads."""
        if way not in ("lead", "codes", "transformed"):
            return self._find(queries, found, part, way, 1 << 24)
        if way == "lead" and (not self.r_one or self._skips("lead")):
            way = "codes"
        loops, *rest = self._arguments(queries, found, part, way)
        first, unit, batch, norms = self._coded(way, loops, rest[0])
        P, n, most = self.P[:0], self.n, self.n
        if way == "lead":
            first, P = loops.Codes(*self.short), self.P[: self.r_one]
            # To read more codes out of order takes longer than to read all in order.
            in_order = cost("codes", n, self.d, 0, 0.0, many=False)
            most = int(in_order / out_of_order(self.d))
        RUN = loops.RUN
        out = np.empty(n, np.float32), np.empty(-(-n // RUN), np.float32)
        given = P, unit, self.norm_unit, batch, first, norms, out
        parts = slices(n, -(-n // (jobs * RUN)) * RUN)
        run(lambda part: loops.code_bounds(part.start, part.stop, *given), parts, jobs)
        size = -(-self._most_rows(n) // RUN) * RUN if self.is_mapped else n
        given = most, out, self.norm_unit, *rest
        for here in slices(n, size):
            loops.nearest_by_bounds(here.start, here.stop, *given)
            if self.is_mapped:
                release(self.space.rows)
            if found[2][part.start] < 0:
                self._pauses["lead"] = _PAUSE
                for values, start in zip(found, (n, np.inf, 0), strict=True):
                    values[part] = start
                return self._find_one(queries, found, part, "codes", jobs)

    def _coded(self, way, loops, queries):
        """Codes, their unit, the queries that they are multiplied by, and norms.

        Codes of transformed rows are multiplied by transformed queries. Both are
        rounded relative to U and to what is transformed: norms are reduced by that.
        """
        if way != "transformed":
            return loops.Codes(*self.codes), self.unit, queries, self.norms
        codes, rounding, before, after = self.images
        lengths, gaps = np.sqrt(queries.squares), queries.points - self.space.origin
        off = (np.sqrt(np.vdot(gaps, gaps)) + before) * (lengths.max() + after)
        with np.errstate(over="ignore"):
            norms = self.norms - np.float32(rounding * off)
        images = queries._replace(gradients=queries.images, lengths=lengths)
        return loops.Codes(*codes), self.image_unit, images, norms

    def whole_queries(self, loops, queries, unit):
        """Queries in whole numbers, which codes are multiplied by, and their factors.

        Their number is a multiple of three: rows of zeros are added.
        """
        count, width = len(queries.squares), coding.padded(queries.gradients.shape[1])
        whole = np.zeros((count + -count % 3, width), np.int16)
        factors = np.empty((count, 3), np.float32)
        rest = queries, self.P[:0], whole, factors
        loops.round_queries(unit, self.norm_unit, *rest)
        return whole, factors

    def lead_factors(self, gradients, lengths):
        """What leading coordinates are multiplied by to be bounds.

        The last column is a bound of rounding in float32, relative to ‖g‖ ‖x‖.
        """
        scales = np.where(lengths > 0, lengths, 1)[:, np.newaxis]
        along = (gradients / scales) @ self.P[: self.r_many].T
        rest = np.sqrt(np.maximum(1 - row_squares(along), 0) + 1e-12)
        slack = np.full(len(along), (self.r_many + 16) * _EPS)
        columns = lengths[:, np.newaxis] * np.column_stack([along, rest, slack])
        return (-2 * self.unit / self.norm_unit * columns).astype(np.float32)

    def squares(self, queries):
        """Squared distances to all rows, (queries, n), and the unit of each query.

        They are of the type of the rows. Those near zero are computed in float64 from
        differences of coordinates.
        """
        given = self._exact_factors(queries)
        return self._squares_in(queries, given, slice(0, self.n)), given[0]

    def distances(self, queries, out, jobs=1, eps=1.0):
        """Write distances to all rows, (queries, n). O(nd) a query.

        They are exact up to the rounding of a product in the type of the rows, which is
        certain to be within eps: squares for which it may not be are computed in
        float64 from differences of coordinates.
        """
        given = self._exact_factors(queries)
        rounding = (self.d + 16) * float(np.finfo(self.space.rows.dtype).eps)
        share = rounding / (2 * eps)
        lengths = np.sqrt(given[0]).astype(out.dtype)[:, np.newaxis]

        def fill(here):
            tile = self._squares_in(queries, given, here, share)
            np.sqrt(np.maximum(tile, 0, out=tile), out=tile)
            np.multiply(tile, lengths, out=out[:, here], casting="same_kind")

        size = max(1024, _TILE_BYTES["rows"] // (4 * len(out)))
        if len(out) * self.n * self.d > LITTLE:
            size = min(size, -(-self.n // 8))
        run(fill, slices(self.n, self._most_rows(size)), jobs)

    def _most_rows(self, count):
        """So many rows or fewer: as many as are read at a time."""
        if self.is_mapped:
            count = min(count, max(1, _MAPPED_BYTES // self.space.rows[:1].nbytes))
        return min(count, self.n)

    def _exact_factors(self, queries):
        """Units of squares, factors of rows, what is added to each, and of norms."""
        dtype, unit = self.space.rows.dtype, 1.0 if self.is_direct else self.unit
        squares, gradients = queries.squares, queries.gradients
        units = np.maximum(self.norm_unit, 2.0 ** np.ceil(np.log2(squares + 1e-300)))
        factors = ((-2 * unit / units)[:, np.newaxis] * gradients).astype(dtype)
        base = squares / units
        if self.is_direct:
            base = base + 2 * (gradients @ self.space.origin) / units
        return units, factors, base.astype(dtype), self.norm_unit / units

    def _squares_in(self, queries, given, here, share=0.0):
        """Squared distances to the rows in a slice, in the unit of each query.

        Those below a `share` of what they are the difference of are computed again.
        """
        rows, origin, norms, _, _ = self.space
        units, factors, base, ratios = given
        part, dtype = block(rows, here), rows.dtype
        if not self.is_direct:
            part = ((part - origin) / self.unit).astype(dtype)
        one = len(factors) == 1
        tile = np.dot(part, factors[0])[np.newaxis] if one else factors @ part.T
        tile += base[:, np.newaxis]
        if self._scaled is None:
            held = (norms / self.norm_unit).astype(dtype)
            self._scaled = held, norms.max(), float(self.sizes.max())
        held, most_norm, most_size = self._scaled
        same, held = (ratios == 1).all(), held[here]
        tile += held if same else ratios.astype(dtype)[:, np.newaxis] * held
        # What rounding is relative to: all that a square is the difference of.
        share = max(share, 1e-3 if dtype == np.float32 else NEAR)
        away = self.away * self.is_direct
        reach = queries.lengths * self.unit * (most_size + away)
        most = share * (queries.squares + most_norm + reach) / units
        for at in np.flatnonzero(tile.min(axis=1) <= most):
            sizes = self.sizes[here].astype(np.float64)
            limits = queries.lengths[at] * self.unit * (sizes + away)
            limits = share / units[at] * (queries.squares[at] + norms[here] + limits)
            close = np.flatnonzero(tile[at] <= limits)
            exact = self.squares_to(queries, at, here.start + close)
            tile[at, close] = exact / units[at]
        return tile

    def squares_to(self, queries, at, indices):
        """Exact squared distances of one query to some rows, in float64."""
        squares = np.empty(len(indices))
        if available():
            loops = self.module or kernels(self.space.rows.dtype, "some")
            candidates = loops.Candidates(*self.candidates)
            loops.squares_to(at, queries, candidates, read_only(indices), squares)
            return squares
        rows, origin, norms, _, U = self.space
        for here in slices(len(indices), max(1, (1 << 20) // self.d)):
            some = indices[here]
            if not len(U):
                squares[here] = row_squares(rows[some] - queries.points[at])
                continue
            # By rows: equal points have equal products, whatever is beside them.
            base, gaps = queries.squares[at], rows[some] - origin
            products = np.einsum("ij,j->i", gaps, queries.gradients[at])
            found = norms[some] - 2 * products
            sizes = self.unit * self.sizes[some].astype(np.float64)
            size = base + norms[some] + queries.lengths[at] * sizes
            near = np.flatnonzero(base + found <= NEAR * size)
            squares[here] = base + found
            gaps = (queries.points[at] - rows[some[near]]) @ U.T
            squares[here][near] = row_squares(gaps)
        return squares

    def _by_partition(self, queries, K, working_bytes):
        """Neighbours from all squared distances, for a large K or without numba."""
        count = len(queries.squares)
        eps = float(np.finfo(self.space.rows.dtype).eps)
        found = np.empty((count, K)), np.empty((count, K), np.intp)
        sizes = self.unit * (float(self.sizes.max()) + self.away * self.is_direct)
        norm = self.space.norms.max()
        for here in slices(count, max(1, working_bytes // (8 * self.n))):
            part = queries.some(here)
            D, units = self.squares(part)
            for at, values in enumerate(D):
                size = part.squares[at] + 2 * part.lengths[at] * sizes + norm
                rounding = 2 * (self.d + 16) * eps * size / units[at]
                limit = np.partition(values, K - 1)[K - 1] + rounding
                near = np.flatnonzero(values <= limit)
                exact = self.squares_to(part, at, near)
                order = np.lexsort((near, exact))[:K]
                found[0][here.start + at] = exact[order]
                found[1][here.start + at] = near[order]
        return found

    def within(self, queries, square, working_bytes):
        """Positions and squared distances of the rows within a squared distance.

        A list of pairs, one a query, in order of position.
        """
        count = len(queries.squares)
        near = [[np.arange(self.n)]] * count
        if not self.are_far(queries):
            near, base = [[] for _ in range(count)], queries.squares / self.norm_unit
            limits = square / self.norm_unit - base
            limits += 4 * _EPS * (np.abs(limits) + base) + 1e-30
            tiles = self._tiles(self._way(many=True), queries, working_bytes)
            for here, products, norms, shifts in tiles:
                for at, values in enumerate(products):
                    inside = values + norms <= limits[at] - shifts[at]
                    near[at].append(here.start + np.flatnonzero(inside))
        found = []
        for at, indices in enumerate(map(np.concatenate, near)):
            exact = self.squares_to(queries, at, indices)
            found.append((indices[exact <= square], exact[exact <= square]))
        return found


def extremes(values):
    """The least and the largest of some positive numbers, or NaN; at once for one."""
    if len(values) == 1:
        return values.item(), values.item()
    return float(values.min(initial=np.inf)), float(values.max(initial=0.0))


def without_own(own, distances, indices):
    """Neighbours of points of the index without the points themselves.

    `own` are the positions of the queries, and one neighbour more than needed was
    found. A point is absent if enough others at the same place come before it; then the
    last neighbour is dropped in its place.

    >>> without_own(np.array([4]), np.array([[0.0, 1.0]]), np.array([[4, 2]]))
    (array([[1.]]), array([[2]]))
    """
    others = indices != own[:, np.newaxis]
    others[others.all(axis=1), -1] = False
    shape = len(indices), indices.shape[1] - 1
    return distances[others].reshape(shape), indices[others].reshape(shape)


class SparseSearch:
    """Neighbours among CSR rows: one product of X with all queries, then a partition.

    ``d² = ‖Uq‖² - 2 g·x + ‖Ux‖²`` in float64, which takes as many operations as X has
    stored values. `U` is None for the Euclidean metric.
    """

    lacks_images = begins_in_cells = False

    def __init__(self, X, norms, U):
        self.X, self.norms, self.U = X, norms, U
        self.n, self.d = X.shape

    def squares(self, Q):
        """Squared distances of queries to all rows, (queries, n), in units of one."""
        if self.U is None and sparse.issparse(Q):
            Q = Q.astype(np.float64)
            base = np.asarray(Q.multiply(Q).sum(axis=1)).ravel()
            # Of the two, it is Q that is cheap to turn into CSR again.
            products = (self.X @ Q.T.tocsr()).toarray().T
        else:
            images = Q if self.U is None else transform(Q, self.U)
            images = np.asarray(images, dtype=np.float64)
            base = row_squares(images)
            gradients = images if self.U is None else images @ self.U
            products = (self.X @ np.ascontiguousarray(gradients.T)).T
        sizes = base[:, np.newaxis] + self.norms
        D = sizes - 2 * products
        pairs = np.nonzero(NEAR * sizes >= D)
        if pairs[0].size:
            D[pairs] = self._from_differences(sparse.csr_matrix(Q), *pairs)
        return D, np.ones(len(D))

    def _from_differences(self, Q, queries, points):
        """``‖U (q - x)‖²`` of pairs of a CSR query and a row, without cancellation."""
        squares = np.empty(len(queries))
        for here in slices(len(queries), _PAIRS):
            gaps = Q[queries[here]].astype(np.float64) - self.X[points[here]]
            if self.U is not None:
                squares[here] = row_squares(transform(gaps, self.U))
            else:
                squares[here] = np.asarray(gaps.multiply(gaps).sum(axis=1)).ravel()
        return squares

    def kneighbors(self, Q, K, jobs=1, working_bytes=1 << 24):
        """Squared distances and positions of the K nearest rows, in ascending order."""
        count = Q.shape[0]
        squares, indices = np.empty((count, K)), np.empty((count, K), np.intp)
        for here in slices(count, max(1, working_bytes // (24 * self.n))):
            D, _ = self.squares(Q[here])
            for at, values in enumerate(D):
                limit = np.partition(values, K - 1)[K - 1]
                near = np.flatnonzero(values <= limit)
                order = np.lexsort((near, values[near]))[:K]
                indices[here.start + at] = near[order]
                squares[here.start + at] = values[near[order]]
        return squares, indices

    def within(self, Q, square, working_bytes):
        """Positions and squared distances of the rows within a squared distance."""
        found = []
        for here in slices(Q.shape[0], max(1, working_bytes // (24 * self.n))):
            for values in self.squares(Q[here])[0]:
                near = np.flatnonzero(values <= square)
                found.append((near, values[near]))
        return found

    def squares_to(self, Q, at, indices):
        """Squared distances of one query to some rows, in float64."""
        some = SparseSearch(self.X[indices], self.norms[indices], self.U)
        return some.squares(Q[at : at + 1])[0][0]


def transform(rows, U, origin=None):
    """``U (x - origin)`` of dense or CSR rows, (rows, k), in float64.

    Of U only those columns are read in which CSR rows have values.
    """
    if sparse.issparse(rows):
        columns = np.unique(rows.indices)
        images = rows[:, columns].astype(np.float64) @ U[:, columns].T
        return images if origin is None else images - U @ origin
    rows = np.asarray(rows, dtype=np.float64)
    return (rows if origin is None else rows - origin) @ U.T
