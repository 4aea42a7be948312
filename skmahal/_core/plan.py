"""The one decision how queries are answered, by a model of costs.

:func:`prepare` measures, on a sample, which share of the points each kind of bound
leaves open. :func:`choose` takes the ways of :mod:`.search` that cost least, for
batches and for single queries, and for neighbours and for distances to all points.
"""

from typing import NamedTuple

import numpy as np

from . import codes as coding
from .cells import LEAST_POINTS, cells_for, nearest_rows
from .enclosures import least_ratio
from .kernels import available
from .points import block, row_squares
from .saved import is_mapped, require

_EPS = float(np.finfo(np.float32).eps)

# Cost in nanoseconds, as measured with numba and OpenBLAS on one core with AVX2: of a
# column of a point in a product of matrices, of a bound made of it, of a coordinate of
# a query for each of its leading coordinates, of starting on a code and on a row out of
# order, and of a coordinate of either.
_PRODUCT, _BOUND, _ALONG = 0.025, 0.6, 0.075
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

# Rows that are read for one query at the end, beyond the neighbours.
_LAST = 30

# Numbers of leading coordinates that are tried, on so many queries from a sample.
_LEADS = (0, 32, 64, 96, 128, 192, 256)
_QUERIES = 32
_SAMPLE = 2000
_SAMPLE_BYTES = 1 << 26

_SMALL = 1 << 15  # numbers of a space up to which it has no codes
FEW = 4  # queries below which each is searched by itself


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
        return count * self.without_images(count >= FEW)[1]

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
    code, row = opened * out_of_order(d), opened * (_ROW + _ROW_COLUMN * d)
    if way == "lead" and many:
        return n * ((r + 2) * _PRODUCT + _BOUND + code) + r * d * _ALONG + last
    if way == "lead":
        return n * (_IN_ORDER + r * _CODE_COLUMN + code) + r * d * _ROW_COLUMN + last
    if way == "cells":
        return (r + n * opened) * per_code(d) + last
    columns = r if way == "transformed" else d
    if way in ("codes", "transformed") and many:
        bound = columns * _CODE_PRODUCT + 2 * _BOUND
        return n * (bound + row) + columns * _ROUND_QUERY + 2 * last
    if way in ("codes", "transformed"):
        return n * (_IN_ORDER + columns * _CODE_COLUMN + row) + last
    if way == "rows":
        return n * (d * _PRODUCT + _BOUND + row) + last
    return 0.7 * n * (_ROW + _ROW_COLUMN * d)


def per_code(d):
    """Nanoseconds of the bound of a cell, or of a point in it."""
    return 2 * _IN_ORDER + d * _CODE_COLUMN


def out_of_order(d):
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
        return n * ((r + 2) * _PRODUCT + _FINISH + row) + r * d * _ALONG
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
