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

:func:`choose` decides by a cost model. Sparse points have one way, a product with X.
"""

from typing import NamedTuple

import numpy as np
from scipy import sparse

from . import codes as coding
from .cells import CENTRES, LEAST_POINTS, cells_for, nearest_rows
from .enclosures import least_ratio
from .kernels import available, kernels
from .points import block, read_only, release, row_squares
from .saved import is_mapped, require
from .threads import run, slices

_EPS = float(np.finfo(np.float32).eps)

# Squares below this share of what they are the difference of are computed from
# differences of coordinates: rounding in float64 is then a small share of any square.
NEAR = 1e-5

# Cost in nanoseconds, as measured with numba and OpenBLAS on one core with AVX2: of a
# column of a point in a product of matrices, of a bound made of it, of starting on a
# code and on a row out of order, and of a coordinate of either.
_PRODUCT, _BOUND = 0.025, 0.6
_CODE, _CODE_COLUMN = 200, 0.04
_ROW, _ROW_COLUMN = 100, 0.2

# Of a bound from a code, when codes are read in order; of a coordinate in a product of
# codes with a batch of queries, and of rounding one coordinate of a query for it; of a
# coordinate in a product of all rows with one query, and of a distance made of a
# product.
_IN_ORDER = 4
_CODE_PRODUCT, _ROUND_QUERY = 0.017, 3.5
_VECTOR = 0.15
_FINISH = 1.5

# Distances are exact unless others are so many times cheaper.
_GAIN = 1.25

# Codes of transformed rows are made if neighbours are then found so many times faster.
_WORTH_IMAGES = 1.25

# Nanoseconds to make them: for a coordinate of a transformed row, and for each product
# in its sum.
_IMAGE, _IMAGE_PRODUCT = 20, 0.05

# Cells are made for exact neighbours if these are then found so many times faster.
_WORTH_CELLS = 2

# Points of the nearest cells that are looked at before other cells are judged, in
# units of the mean cell.
_FIRST_CELLS = 8

# Rows that are read for one query at the end, beyond the neighbours.
_LAST = 30

# Numbers of leading coordinates that are tried, on so many queries from a sample.
_LEADS = (0, 32, 64, 96, 128, 192, 256)
_QUERIES = 32
_SAMPLE = 2000
_SAMPLE_BYTES = 1 << 26

# Products of coordinates up to which exact distances are left to the threads of BLAS:
# others start too late.
LITTLE = 1 << 28

_SMALL = 1 << 15  # numbers of a space up to which it has no codes
_FEW = 4  # queries below which each is searched by itself
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


class Plan(NamedTuple):
    """How batches and single queries are answered, and the costs that decided.

    `many` and `one` are for neighbours. `all_many` and `all_one` are for distances to
    all rows: "exact", or enclosed by "lead" or "codes". `r_many` and `r_one` are
    leading coordinates for batches and single queries, 0 if they are not used. With
    `cells_many` and `cells_one`, cells are searched for neighbours first, and queries
    for which they are of no use are answered as said.
    """

    many: str
    one: str
    r_many: int
    r_one: int
    all_many: str
    all_one: str
    cells_many: bool
    cells_one: bool
    costs: dict

    @property
    def uses_cells(self):
        """Whether there must be cells."""
        return self.cells_many or self.cells_one

    @property
    def uses_images(self):
        """Whether there should be codes of transformed rows."""
        return "transformed" in (self.many, self.one)

    def without_images(self, many):
        """The way without codes of transformed rows, and what it costs more."""
        way = self.many if many else self.one
        costs = self.costs["many" if many else "one"]
        if way != "transformed":
            return way, 0.0
        other = min(costs.keys() - {"transformed"}, key=costs.get)
        return other, costs[other] - costs[way]

    def missed(self, count):
        """Nanoseconds that so many queries lose without codes of transformed rows."""
        return count * self.without_images(count >= _FEW)[1]

    def encloses(self, count):
        """Whether distances of so many queries are enclosed rather than exact."""
        return (self.all_one if count == 1 else self.all_many) != "exact"


def cost(way, n, d, r, opened, many):
    """Nanoseconds of a query if r coordinates leave a share `opened` of n points.

    The way "cells" is by r cells, of which some are probed with that share of points,
    and "transformed" by codes of r columns. Codes and products leave that share of
    rows.
    """
    last = _LAST * (_ROW + _ROW_COLUMN * d)
    code, row = opened * _out_of_order(d), opened * (_ROW + _ROW_COLUMN * d)
    if way == "lead" and many:
        return n * ((r + 2) * _PRODUCT + _BOUND + code) + last
    if way == "lead":
        return n * (_IN_ORDER + r * _CODE_COLUMN + code) + r * d * _ROW_COLUMN + last
    if way == "cells":
        return (r + n * opened) * _per_code(d) + last
    columns = r if way == "transformed" else d
    if way in ("codes", "transformed") and many:
        bound = columns * _CODE_PRODUCT + 2 * _BOUND
        return n * (bound + row) + columns * _ROUND_QUERY + 2 * last
    if way in ("codes", "transformed"):
        return n * (_IN_ORDER + columns * _CODE_COLUMN + row) + last
    if way == "rows":
        return n * (d * _PRODUCT + _BOUND + row) + last
    return 0.7 * n * (_ROW + _ROW_COLUMN * d)


def _per_code(d):
    """Nanoseconds of the bound of a cell, or of a point in it."""
    return 2 * _IN_ORDER + d * _CODE_COLUMN


def _out_of_order(d):
    """Nanoseconds of a bound from one code that is read by itself."""
    return _CODE + d * _CODE_COLUMN


def cost_of_images(n, k, d):
    """Nanoseconds to make codes of n transformed rows of k columns."""
    return n * k * (_IMAGE + d * _IMAGE_PRODUCT)


def cost_of_all(way, n, d, r, opened, many, itemsize=4):
    """Nanoseconds of distances to n points if r coordinates leave a share open.

    The way "sketch" is by a sketch of r rows.
    """
    column = _PRODUCT if many else _VECTOR
    if way == "exact":
        return n * (d * column * itemsize / 4 + _FINISH)
    if way == "sketch":
        return n * (r * column * itemsize / 4 + 4 * _FINISH) + 2 * r * d * column
    row = opened * (_ROW + _ROW_COLUMN * d)
    if way == "lead" and many:
        return n * ((r + 2) * _PRODUCT + _FINISH + row) + r * d * 2 * _PRODUCT
    if many:
        return n * (d * _CODE_PRODUCT + _BOUND + _FINISH + row) + d * _ROUND_QUERY
    columns, start = (r, r * d * _ROW_COLUMN) if way == "lead" else (d, 0)
    return n * (_IN_ORDER + columns * _CODE_COLUMN + _FINISH + row) + start


class Shares(NamedTuple):
    """Shares of the points that bounds leave, by the number r of leading coordinates.

    `near` is for neighbours and `all` for distances to all points; `codes` is what
    codes leave of the latter, and `cells` the share of the points in cells that may
    have a neighbour. `vain` are, for other ways, shares of points that bounds do not
    exclude although they are no neighbours, and k is the number of columns of
    transformed rows, 0 if these are to have no codes.
    """

    near: dict
    all: dict
    codes: float
    cells: float = 1.0
    vain: dict = {}
    k: int = 0


def choose(n, d, shares=None, itemsize=4):
    """The cheapest ways for n points of d coordinates, a :class:`Plan`.

    `shares` are :class:`Shares`, None if there are no codes. `itemsize` are bytes of a
    coordinate.

    >>> choose(50_000, 512, Shares({0: 1, 64: 0.003}, {0: 1, 64: 0.01}, 0.0))[:6]
    ('lead', 'lead', 64, 64, 'lead', 'lead')
    >>> choose(20_000, 512, Shares({0: 1, 32: 1.0}, {0: 1, 32: 1.0}, 0.0))[:6]
    ('codes', 'codes', 0, 0, 'codes', 'codes')
    """
    many, all_many, r_many, *costs_many = _ways(n, d, shares, itemsize, many=True)
    one, all_one, r_one, *costs_one = _ways(n, d, shares, itemsize, many=False)
    names = "many", "all many", "one", "all one"
    costs = dict(zip(names, costs_many + costs_one, strict=True))
    use_cells, ways = [], {"many": many, "one": one}
    for name in ways:
        near, by_cells = costs[name], np.inf
        if shares is not None and shares.cells < 1 and n >= LEAST_POINTS:
            by_cells = cost("cells", n, d, cells_for(n, True), shares.cells, False)
        use_cells.append(bool(_WORTH_CELLS * by_cells < min(near.values())))
        if use_cells[-1]:
            # Few queries are left for other ways.
            near.pop("transformed", None)
            ways[name] = min(near, key=near.get)
            near["cells"] = by_cells
    r = r_many, r_one
    return Plan(*ways.values(), *r, all_many, all_one, *use_cells, costs)


def plan_from(values, has_codes):
    """The saved :class:`Plan`, all of whose ways must be known."""
    plan = Plan(**values)
    coded = {"lead", "codes"} if has_codes else set()
    known = {"rows", "scan"} | ({"transformed", *coded} if has_codes else set())
    near, every = (plan.many, plan.one), (plan.all_many, plan.all_one)
    require(known >= set(near), f"there are no codes for {near}")
    require({"exact", *coded} >= set(every), f"there are no codes for {every}")
    return plan


def _ways(n, d, shares, itemsize, many):
    """Ways for neighbours and for all distances, r, and the costs of either."""
    first = "rows" if many else "scan"
    vain = {} if shares is None else shares.vain
    near = {first: cost(first, n, d, 0, vain.get(first, 0.0), many)}
    every = {"exact": cost_of_all("exact", n, d, 0, 0.0, many, itemsize)}
    r = 0
    if shares is not None:
        near["codes"] = cost("codes", n, d, 0, vain.get("codes", 0.0), many)
        every["codes"] = cost_of_all("codes", n, d, 0, shares.codes, many)
    if shares is not None and (many or len(shares.near) > 1):
        tried = [r for r in shares.near if r or many]
        # For single queries, leading coordinates are in 8 bits as well.
        least = 0.0 if many else vain.get("codes", 0.0)
        opened = {r: max(shares.near[r], least) for r in tried}
        lead = {r: cost("lead", n, d, r, opened[r], many) for r in tried}
        enclosed = {r: cost_of_all("lead", n, d, r, shares.all[r], many) for r in tried}
        r = min(lead, key=lead.get)
        if lead[r] >= min(near.values()):
            # Neighbours have no use for leading coordinates.
            r = min(enclosed, key=enclosed.get)
        near["lead"], every["lead"] = lead[r], enclosed[r]
    best, enclosed = min(near, key=near.get), min(every, key=every.get)
    if _GAIN * every[enclosed] >= every["exact"]:
        enclosed = "exact"
    r = r if "lead" in (best, enclosed) else 0
    if shares is not None and shares.k:
        images = cost("transformed", n, d, shares.k, vain["transformed"], many)
        if _WORTH_IMAGES * images < near[best]:
            near["transformed"], best = images, "transformed"
            if not r:
                near.pop("lead", None)
    return best, enclosed, r, near, every


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
        if len(points) < _FEW and U.size <= _SMALL_METRIC and available():
            loops = self.module or kernels(self.space.rows.dtype, "some")
            images, gradients, squares, lengths = loops.transform(points, origin, U)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                images = gradients = points - origin
                if len(U):
                    images = images @ U.T
                    gradients = images @ U
                squares = np.vecdot(images, images)
                lengths = np.sqrt(np.vecdot(gradients, gradients))
        least, most = extremes(lengths)
        if not (least > _LEAST_LENGTH and most < np.inf):
            # Relative to the largest entry, whose square may not be a normal number.
            scales = np.abs(gradients).max(axis=1)
            scales[scales == 0] = 1
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
        by_cells = self.plan.cells_many if count >= _FEW else self.plan.cells_one
        if by_cells and cells and way is None and self.cells is not None:
            return self._by_cells(queries, K, jobs, working_bytes)
        found = indices, squares, _ = self._no_neighbors(count, K)
        far, done = self.are_far(queries), 0
        if count < _FEW:
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
            costs = self.plan.costs["many" if count >= _FEW else "one"]
            least = min(costs[way] for way in costs if way != "cells")
            first = _FIRST_CELLS * self.n // len(self.cells.radii)
            limits = first, True, int(least / _per_code(self.d))

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
        if count < _FEW and self._skips("cells"):
            return self.kneighbors(queries, K, jobs, working_bytes, cells=False)
        if count >= 8 * _PILOT:
            first = queries.some(slice(0, _PILOT))
            if 2 * np.count_nonzero(self.in_cells(first, K, None)[2] < 0) > _PILOT:
                return self.kneighbors(queries, K, jobs, working_bytes, cells=False)
        squares, indices, opened = self.in_cells(queries, K, None, jobs)
        left = np.flatnonzero(opened < 0)
        if left.size:
            if count < _FEW:
                self._pauses["cells"] = _PAUSE
            rest = queries.some(left), K, jobs, working_bytes
            squares[left], indices[left] = self.kneighbors(*rest, cells=False)
        return squares, indices

    @property
    def probes_first(self):
        """Whether a single query begins with some cells."""
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
            most = int(in_order / _out_of_order(self.d))
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


def prepare(space, coded, K, eps, recall=None, jobs=1):
    """Codes, leading coordinates and a plan for a space. O(nd(1 + r)).

    The plan is for K neighbours, and for distances within 1 ± eps. With a `recall`, few
    neighbours are exact, and transformed rows have no codes. Codes that are there are
    kept. The same rows and metric give the same result.
    """
    n, d = space.rows.shape
    if n * d <= _SMALL or not available():
        return None, choose(n, d)
    rng = np.random.default_rng(0)
    P = None if coded is None else coded.P
    chosen, seen, judged = samples(n, d, rng)
    if P is None:
        rows = block(space.rows, seen) - space.origin
        # Beside a mapped file, memory is for codes: a sixteenth of it for these.
        most = d // 64 if is_mapped(space.rows) else d
        P = coding.leading_directions(rows, min(coding.MOST_LEAD, most), rng)
    shares = open_shares(space, chosen, judged, P, K, eps)
    if is_mapped(space.rows):
        # Cells and transformed rows take as much memory as codes.
        shares = shares._replace(cells=1.0, k=0)
    if recall is not None:
        shares = shares._replace(k=0)
    plan = choose(n, d, shares, space.rows.itemsize)
    r = plan.r_many, plan.r_one
    if coded is None:
        unit = coding.power_of_two(np.sqrt(space.sizes.max()))
        coded = coding.encode(space.rows, space.origin, unit, P, *r, jobs)
    elif (coded.r_many, coded.r_one) != r:
        coded = coded.with_lead(*r, space.rows, space.origin, jobs)
    return coded, plan


def samples(n, d, rng):
    """Random positions: of queries, of points that P is computed from, of any points.

    The last ones are what queries are compared with. P fits the points that it is
    computed from better than others, so these would underestimate the shares.
    """
    size = max(1, min(_SAMPLE, _SAMPLE_BYTES // (8 * d)))
    order = rng.permutation(n)
    chosen, others = order[:_QUERIES], order[_QUERIES:]
    if n < 4 * _QUERIES:
        chosen, others = order[:1], order[1:]
    return chosen, np.sort(others[:size]), np.sort(rng.permutation(others)[:size])


def open_shares(space, chosen, judged, P, K, eps):
    """The :class:`Shares` of the points that bounds leave open, from a sample.

    Points at the positions `chosen` are the queries, and those at `judged` stand for
    all n points: the K-th neighbour is as far as the K/n quantile of these.
    """
    norms, U = space.norms, space.U
    rows, queries = (block(space.rows, at) - space.origin for at in (judged, chosen))
    images = gradients = queries
    if len(U):
        images = images @ U.T
        gradients = images @ U
    own = row_squares(images)[:, np.newaxis]
    base = own + norms[judged]
    squares = base - 2 * gradients @ rows.T
    rank = min(len(rows), max(1, round(K * len(rows) / len(norms)))) - 1
    limits = np.partition(squares, rank, axis=1)[:, rank, np.newaxis]
    z, along, shares = rows @ P.T, gradients @ P.T, Shares({}, {}, 1.0)
    least, lengths = least_ratio(eps), np.sqrt(row_squares(gradients))
    sizes = np.sqrt(row_squares(rows))

    def left_open(middle, width):
        return float(np.mean(middle - width < least * (middle + width)))

    for r in [r for r in _LEADS if r < len(P)] + [len(P)]:
        rest = lengths**2 - row_squares(along[:, :r])
        left = sizes**2 - row_squares(z[:, :r])
        width = 2 * np.outer(*(np.sqrt(np.maximum(sq, 0)) for sq in (rest, left)))
        width += (r + 16) * _EPS * np.outer(2 * lengths, sizes)
        middle = base - 2 * along[:, :r] @ z[:, :r].T
        shares.near[r] = float(np.mean(middle - width <= limits))
        shares.all[r] = left_open(middle, width)
    unit = coding.power_of_two(np.abs(rows).max())
    errors = unit * coding.eight_bits(rows / unit, rows.shape[1])[2]
    in_cells = _share_in_cells(rows, norms[judged], gradients, lengths, limits - own)
    codes = left_open(squares, 2 * np.outer(lengths, errors))
    bounds = squares, limits, lengths, sizes, errors
    vain = _vain_shares(rows, images, U, *bounds)
    return shares._replace(codes=codes, cells=in_cells, vain=vain, k=len(U))


def _vain_shares(rows, images, U, squares, limits, lengths, sizes, errors):
    """Shares of a sample that are no neighbours, and that bounds leave, by way.

    The bounds are from products in float32, codes of the rows, and codes of the
    transformed rows.
    """
    rounding = (rows.shape[1] + 16) * _EPS * sizes
    widths = {"rows": np.outer(lengths, rounding), "codes": np.outer(lengths, errors)}
    if len(U):
        own = rows @ U.T
        unit = coding.power_of_two(np.abs(own).max())
        errors = unit * coding.eight_bits(own / unit, own.shape[1])[2]
        widths["transformed"] = np.outer(np.sqrt(row_squares(images)), errors)
    far = squares > limits
    return {
        way: float(np.mean(far & (squares - 2 * width <= limits)))
        for way, width in widths.items()
    }


def _share_in_cells(rows, norms, gradients, lengths, limits):
    """Share of the points in cells that may have a neighbour, from a sample.

    Three quarters of the rows are centres, those that are far from the others among
    them, as seeds of k-means are. `limits` are squared distances less ‖Uq‖².
    """
    first, rest = np.arange(0, len(rows), 2), np.arange(1, len(rows), 2)
    if len(rest) < 8:
        return 1.0
    far = np.argsort(nearest_rows(rows[rest], rows[first])[1], kind="stable")
    centres = np.concatenate([first, rest[far[len(far) // 2 :]]])
    points = rest[far[: len(far) // 2]]
    labels, squares = nearest_rows(rows[points], rows[centres])
    counts, radii = np.bincount(labels, minlength=len(centres)), np.zeros(len(centres))
    least = np.full(len(centres), np.inf)
    np.maximum.at(radii, labels, np.sqrt(squares))
    np.minimum.at(least, labels, norms[points])
    bounds = least - 2 * (gradients @ rows[centres].T + np.outer(lengths, radii))
    return float(np.mean((bounds <= limits) @ counts) / len(points))


def extremes(values):
    """The least and the largest number of an array, or NaN.

    For one number, the functions of NumPy would take most of the time of a query.
    """
    if len(values) == 1:
        return values.item(), values.item()
    return float(values.min()), float(values.max())


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

    lacks_images = False

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
