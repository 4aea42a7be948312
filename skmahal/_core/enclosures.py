"""Distances to all points within 1 ± eps, with certainty.

Codes and leading coordinates bound a squared distance from both sides. With the
notation of :mod:`.codes`, and c for the estimate of d² from them,

- from leading coordinates, ``|d² - c| ≤ 2 ‖g - PᵀPg‖ t``;
- from codes, ``|d² - c| ≤ 2 ‖g‖ ‖x - x̂‖``.

If ``l ≤ d ≤ h`` and ``h / l ≤ (1 + eps) / (1 - eps)``, then ``2lh / (l + h)`` is within
1 ± eps of d. All other distances are computed exactly. Nothing is random.
"""

import numpy as np

from .kernels import kernels
from .threads import run, slices

_EPS = float(np.finfo(np.float32).eps)

# What rounding in float32 may add to the relative error of a distance.
_ROUNDING = 1e-6

# Bytes of products that are made at a time.
_TILE_BYTES = 1 << 20


def least_ratio(eps):
    """The least ``(l / h)²`` for which a distance is known to within 1 ± eps.

    >>> round(least_ratio(0.2) * 2.25, 4)
    1.0
    """
    eps = eps - _ROUNDING
    return ((1 - eps) / (1 + eps)) ** 2 if eps > 0 else 1.0


def distances(search, queries, eps, out, jobs=1):
    """Write the distances of queries to all rows of a search, (queries, n).

    The search must have a plan for this other than "exact". O(r) a row, and O(d) for
    every row that bounds leave open.
    """
    goal = np.float32(least_ratio(eps)), out.dtype.type(np.sqrt(search.norm_unit))
    loops = search.module or kernels(search.space.rows.dtype, "all")
    enclose = _one if len(out) == 1 else _many
    enclose(search, loops, queries, goal, out, jobs)


def _one(search, loops, queries, goal, out, jobs):
    """Distances of one query, from codes of points or of leading coordinates."""
    coded, P = loops.Codes(*search.codes), search.P[:0]
    if search.plan.all_one == "lead":
        coded, P = loops.Codes(*search.short), search.P[: search.r_one]
    given = P, search.unit, search.norm_unit, queries, coded
    rest = search.norms, goal, loops.Candidates(*search.candidates), out[0]

    def enclose(part):
        loops.enclose_codes(part.start, part.stop, *given, *rest)

    run(enclose, slices(search.n, -(-search.n // jobs)), jobs)


def _many(search, loops, queries, goal, out, jobs):
    """Distances of many queries, from codes or from leading coordinates.

    The width of a bound is the sum of two products, each of a factor of the query and a
    column of the point. Tiles already have it subtracted.
    """
    bases = (queries.squares / search.norm_unit * (1 - 8 * _EPS)).astype(np.float32)
    batch = queries, loops.Candidates(*search.candidates)
    use_codes = search.plan.all_many == "codes"
    if use_codes:
        coded = loops.Codes(*search.codes)
        whole, factors = search.whole_queries(loops, queries, search.unit)
        widths, columns = factors[:, 1:], (coded.errors, coded.rests)
    else:
        factors = search.lead_factors(queries.gradients, queries.lengths)
        rests = np.ascontiguousarray(search.lead[:, -2])
        widths, columns = -factors[:, -2:], (rests, search.sizes)
    widths = np.ascontiguousarray(widths)

    def enclose(here):
        if use_codes:
            tile = np.empty((len(out), here.stop - here.start), np.float32)
            loops.code_tile(here.start, whole, factors, coded, tile)
        else:
            tile = factors @ search.lead[here].T
        rest = search.norms[here], widths, bases, tuple(part[here] for part in columns)
        loops.enclose_tile(tile, here.start, *rest, goal, *batch, out)

    size = max(256, min(-(-search.n // 8), _TILE_BYTES // (4 * len(out))))
    run(enclose, slices(search.n, size), jobs)
