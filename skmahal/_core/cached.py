"""Points, metric and what is derived from them, as values of one version.

The source data are the points and U. Derived from them are squared lengths under the
metric, codes and leading coordinates (:mod:`.codes`), transformed rows where U has few
of them, and rows under the maps of sketches. The functions here make a new
:class:`State` of an old one; an array that only grows may be shared by both.
"""

from copy import deepcopy
from typing import NamedTuple

import numpy as np
from scipy import sparse

from . import cells as partition
from . import plan as planning
from . import search
from .cells import Cells
from .codes import MOST_UNITS, CodedPoints, encode, power_of_two
from .kernels import available, kernels
from .points import (
    DensePoints,
    SparsePoints,
    block,
    columns_of,
    grown,
    kept_rows,
    owned,
    records_from,
    row_squares,
)
from .recall import held_positions, probings_from
from .saved import FLOATS, array_from, integer_from, require
from .threads import run, slices

_EPS = float(np.finfo(np.float64).eps)

# Relative error of a squared length at which it is computed from the point again.
_DRIFT = 4e-12

# Rounding errors of U, in units of the type of the points, up to which it is the same.
_ROUNDED = 64

# Relative change of U after which the plan for queries is made again.
_MOVED = 0.5

_NUMBERS = "moved", "square", "drift"

# Rank of the changes that rows of sketches may be behind by.
_MOST_BEHIND = 64


class Map:
    """A linear map (rows × k) of the transformed space, as that of a sketch."""

    def __init__(self, map):
        self.map = np.asarray(map, dtype=np.float64)


class CachedRows(NamedTuple):
    """The points under a map as of a version, (n, rows), and their squared lengths."""

    rows: np.ndarray
    norms: np.ndarray
    version: int


class State(NamedTuple):
    """Points, U and what is derived from them, of one version.

    U is None for the Euclidean metric. `records` have one row per point, as its
    target. `sizes` are ``‖x - origin‖²``, `norms`
    ``‖U(x - origin)‖²`` and `errors` what the latter may be off by; all are None until
    they are first needed. `images` are transformed rows, held if U has few rows.
    `image_codes` are codes of those that are not held, where the plan uses them.
    `caches` has for every :class:`Map` its :class:`CachedRows`, or None before they are
    first used, and `log` the changes ``(version, W, XV)`` that they may be behind by.
    `cells` are kept if a recall is requested or the plan uses them, and `probings` has
    the :class:`~.recall.Probing` for numbers of neighbours. `drift` only grows: by the
    share of squared lengths that a change of the metric adds or takes, of the points or
    of `gaps` between neighbours, and by the share of points that are new. `square` is
    ‖U‖² in Frobenius norm, and `moved` how far U has gone relative to it since `plan`
    was made. Arrays may have more rows than there are points.
    """

    points: DensePoints | SparsePoints
    U: np.ndarray | None
    records: np.ndarray | None = None
    version: int = 0
    sizes: np.ndarray | None = None
    norms: np.ndarray | None = None
    errors: np.ndarray | None = None
    images: np.ndarray | None = None
    coded: CodedPoints | None = None
    image_codes: CodedPoints | None = None
    plan: planning.Plan | None = None
    cells: Cells | None = None
    probings: dict = {}
    drift: float = 0.0
    gaps: np.ndarray | None = None
    gap_norms: np.ndarray | None = None
    square: float = 1.0
    moved: float = 0.0
    log: tuple = ()
    caches: dict = {}

    def without_derived(self, **changes):
        """Points, metric and maps, with nothing derived from them."""
        caches = dict.fromkeys(self.caches)
        rest = {"version": self.version, "caches": caches, **changes}
        return State(self.points, self.U, self.records)._replace(**rest)


def holds_images(points, U):
    """Whether transformed rows are held, and searched in place of the points."""
    return U is not None and len(U) <= points.widest


def space_of(state):
    """The rows that neighbours are searched among, with their metric; dense points."""
    n, points, norms = state.points.n, state.points, state.norms[: state.points.n]
    if state.images is not None:
        k = state.images.shape[1]
        zero = np.zeros(k), norms, norms, np.zeros((0, k))
        return search.Space(state.images[:n], *zero)
    U = np.zeros((0, points.d)) if state.U is None else state.U
    return search.Space(points.array, points.origin, norms, state.sizes[:n], U)


def derive(state, aims, jobs=1, for_search=True):
    """A state with squared lengths, and all that queries use. O(nkd).

    `aims` are the number of neighbours, the eps and the recall that queries have.
    """
    points, U = state.points, state.U
    if state.norms is None:
        n, k = points.n, points.d if U is None else len(U)
        sizes, norms = np.empty(n), np.empty(n)
        images = np.empty((n, k)) if holds_images(points, U) else None

        def fill(here):
            sizes[here], norms[here], rows = measure(
                block(points.array, here), points, U
            )
            if images is not None:
                images[here] = rows

        run(fill, slices(n, points.step), jobs)
        arrays = {"sizes": sizes, "norms": norms, "errors": 4 * _EPS * norms}
        square = points.d if U is None else float(np.vdot(U, U))
        state = state._replace(**arrays, images=images, square=square)
    dense = state.images is not None or not points.is_sparse
    if for_search and dense and state.plan is None:
        coded, plan = planning.prepare(space_of(state), state.coded, *aims, jobs)
        state = state._replace(coded=coded, plan=plan, moved=0.0)
    if for_search and not dense:
        return state._replace(cells=None, probings={})
    # Cells that the plan does not use at present are kept: others would take seconds.
    wanted = aims[2] is not None or state.cells is not None
    if for_search and (wanted or state.plan.uses_cells):
        state = with_cells(state, aims[2] is None, jobs)
    return state


def with_image_codes(state, jobs=1):
    """A state with codes of transformed rows. O(nkd)."""
    points, norms = state.points, state.norms[: state.points.n]
    rest = power_of_two(np.sqrt(norms.max())), np.zeros((0, len(state.U)))
    coded = encode(points.array, points.origin, *rest, jobs=jobs, U=state.U)
    return state._replace(image_codes=coded)


def with_cells(state, exact, jobs=1, anew=False):
    """A state with cells, if there are codes for them; new ones if `anew`."""
    n, coded, cells = state.points.n, state.coded, state.cells
    if coded is None or n < partition.LEAST_POINTS:
        return state._replace(cells=None, probings={})
    if anew or cells is None or not cells.have_points:
        given = space_of(state), coded, held_positions(n)
        new = partition.make(*given, exact, jobs)
        return state._replace(cells=new, probings={})
    return state._replace(cells=partition.followed(cells, space_of(state), coded, jobs))


def measure(rows, points, U):
    """Squared lengths of rows about the origin, under U, and transformed rows.

    The latter are None for CSR rows under the Euclidean metric. Rows whose squared
    distances would overflow are refused.
    """
    dtype = points.array.dtype
    with np.errstate(over="ignore", invalid="ignore"):
        if sparse.issparse(rows):
            squares = rows.multiply(rows.astype(np.float64))
            sizes = np.asarray(squares.sum(axis=1)).ravel()
            images = None if U is None else search.transform(rows, U)
        else:
            centred = rows - points.origin
            sizes = row_squares(centred)
            images = centred if U is None else centred @ U.T
        norms = sizes if images is None else row_squares(images)
        fits = max(norms.max(), sizes.max()) < largest_square(dtype)
    if not fits:
        raise ValueError(f"X is too large under the metric for {dtype}.")
    return sizes, norms, images


def largest_square(dtype):
    """Squared lengths up to which distances fit a type, and their squares float64."""
    return min(float(np.finfo(dtype).max), 1e150) ** 2 / 16


def check_metric(U, dtype, square=np.inf):
    """Refuse a U for which squared lengths may overflow; `square` is ‖U‖² if known."""
    most = min(np.sqrt(float(np.finfo(dtype).max)), 1e100)
    if not square < most**2 and not np.abs(U).max() < most:
        raise ValueError(f"The metric is too large for {dtype}.")


def low_rank_sum(U, W, V, points, jobs=1):
    """``U + W Vᵀ``, ``Uᵀ W`` and the squared norm of the sum, in one pass over U."""
    if points.loops is None and available():
        points.loops = kernels(points.array.dtype, "dots")
    if points.loops is None:
        total = U + W @ V.T
        return total, U.T @ W, float(np.vdot(total, total))
    total, W, V = np.empty_like(U), np.ascontiguousarray(W), np.ascontiguousarray(V.T)
    # The loop is compiled for a U that cannot be written to, as one that is mapped.
    U = np.broadcast_to(U, U.shape)

    def add(here):
        pulled = np.zeros_like(V)
        rest = W[here], V, total[here], pulled
        return points.loops.add_product(U[here], *rest), pulled

    parts = run(add, slices(len(U), -(-len(U) // jobs)), jobs)
    squares, pulled = zip(*parts, strict=True)
    return total, sum(pulled).T, sum(squares)


def closer(total, result, U, W, V, dtype):
    """Which of ``total = U + W Vᵀ`` and `result` is to be used; whether they agree.

    `result` if it is the sum but for rounding in float64. The sum if they differ by
    rounding in `dtype`, which would be large beside the distances of near points. If
    they do not agree, `result`.
    """
    result = np.array(result, dtype=np.float64)
    gaps, eps = np.abs(result - total), float(np.finfo(dtype).eps)
    # Each of the steps that it consists of may have been rounded.
    p, sizes = V.shape[1], [np.abs(part).max() for part in (U, W, V)]
    if gaps.max() <= 8 * (1 + p) * _EPS * (sizes[0] + p * sizes[1] * sizes[2]):
        return result, True
    close = gaps.max() <= _ROUNDED * eps * np.abs(total).max()
    return (total if close else result), bool(close)


def follow(state, W, V, pulled, before, aims, jobs=1):
    """A state after ``W Vᵀ`` was added to its U. One pass over the points.

    `pulled` is ``UᵀW`` and `before` ‖U‖², both of U before the change. Squared lengths
    follow in float64. Each gets a rounding error of some eps, and so does U. If these
    add up, as when a column is scaled up and down again, squared lengths are computed
    from the points.
    """
    points, n, p = state.points, state.points.n, V.shape[1]
    if holds_images(points, state.U) != (state.images is not None):
        return derive(state.without_derived(), aims, jobs)
    both = points.dot(np.hstack([V, pulled]), jobs)
    T, along, gram, norms = both[:, :p], both[:, p:], W.T @ W, state.norms[:n]
    after = norms + np.einsum("ij,ij->i", T, 2 * along + T @ gram)
    spread = state.square / points.d
    parts = norms + np.abs(after) + T**2 @ np.diag(gram) + spread * state.sizes[:n]
    errors = state.errors[:n] + 2 * (1 + p) * _EPS * parts
    images = None if state.images is None else state.images[:n] + T @ W.T
    off = np.flatnonzero(~(errors <= _DRIFT * after))
    for here in slices(len(off), points.step):
        some = off[here]
        _, after[some], rows = measure(points.array[some], points, state.U)
        errors[some] = 4 * _EPS * after[some]
        if images is not None:
            images[some] = rows
    if not after.max() < largest_square(points.array.dtype):
        raise ValueError(f"The change makes distances overflow {points.array.dtype}.")
    moved = np.sqrt(max(0.0, float(np.sum(gram * (V.T @ V)))) / (before or 1.0))
    moved += state.moved
    state = _with_drift(state, W, V, pulled, after)
    state = state._replace(norms=after, errors=errors, moved=moved, image_codes=None)
    if state.images is not None:
        state = state._replace(images=images, coded=None, plan=None)
    elif moved >= _MOVED:
        state = state._replace(plan=None)
    if off.size:
        # What has grown and shrunk again has left its rounding in rows of sketches.
        cells = state.cells and state.cells._replace(norms=None)
        return state._replace(caches=dict.fromkeys(state.caches), log=(), cells=cells)
    if any(cache is not None for cache in state.caches.values()):
        state = state._replace(log=(*state.log, (state.version + 1, W, T)))
        if sum(entry[1].shape[1] for entry in state.log) > _MOST_BEHIND:
            state = with_current_rows(state, state.version + 1)
    return state


def gaps_between(state, i, j):
    """Differences of points, and their squared lengths under the metric, by name."""
    rows = (state.points.array[at] for at in (i, j))
    one, other = (x.toarray() if sparse.issparse(x) else x for x in rows)
    gaps = np.float64(one) - other
    images = gaps if state.U is None else gaps @ state.U.T
    return {"gaps": gaps, "gap_norms": row_squares(images)}


def cost_of_following(n, d, p):
    """Nanoseconds of a change of rank p for n points of d coordinates."""
    return 0.2 * n * d * (1 + p / 8)


def _with_drift(state, W, V, pulled, after):
    """A state whose cells and drift have followed, before its squared lengths do."""
    drift = _drift(state.norms[: state.points.n], after)
    cells, gap_norms = state.cells, None
    if state.gaps is not None:
        # The lengths of points may hide what happens between neighbours.
        T, along = state.gaps @ V, state.gaps @ pulled
        change = np.einsum("ij,ij->i", T, 2 * along + T @ (W.T @ W))
        gap_norms = np.maximum(state.gap_norms + change, 0)
        drift = max(drift, _drift(state.gap_norms, gap_norms))
    if cells is not None:
        has_images = state.images is not None
        cells = cells.stale() if has_images else cells.moved(W, V, pulled)
    drift += state.drift
    return state._replace(drift=drift, gap_norms=gap_norms, cells=cells)


def _drift(before, after):
    """How much squared lengths have changed, as a share of them all."""
    return float(np.abs(after - before).sum() / (np.abs(before).sum() or 1.0))


def current_rows(state, map, version):
    """The points under a map as of a version: caught up by one product, or computed."""
    points, U, cache = state.points, state.U, state.caches[map]
    if cache is None:
        full = map.map if U is None else map.map @ U
        rows = points.dot(full.T).astype(points.array.dtype, order="C")
    else:
        behind = [entry for entry in state.log if entry[0] > cache.version]
        if not behind:
            return cache._replace(version=version)
        W, T = (np.hstack([entry[at] for entry in behind]) for at in (1, 2))
        held = cache.rows[: points.n]
        rows = held + (T @ (map.map @ W).T).astype(held.dtype)
    with np.errstate(over="ignore"):
        # Squares that are too large become infinite, and distances are then exact.
        squares = row_squares(rows).astype(rows.dtype)
    return CachedRows(rows, squares, version)


def with_current_rows(state, version=None):
    """A state whose cached rows are as of now, with nothing in its log."""
    version = state.version if version is None else version
    caches = {
        map: None if cache is None else current_rows(state, map, version)
        for map, cache in state.caches.items()
    }
    return state._replace(caches=caches, log=())


def appended(state, X, records=None):
    """A state with more points at the end; cached rows must be as of now."""
    n, points = state.points.n, state.points.appended(X)
    state = state._replace(points=points)
    if records is not None:
        held = grown(with_records(state.records, records), n, points.n)
        held[n : points.n] = records
        state = state._replace(records=held)
    if state.norms is None:
        return state
    return with_rows(state, X, slice(n, points.n), grow=True)


def replaced(state, indices, X, records=None):
    """A state with other points at some positions, in the same memory."""
    state = state._replace(points=state.points.replaced(indices, X))
    if records is not None:
        held = owned(with_records(state.records, records))
        held[indices] = records
        state = state._replace(records=held)
    if state.norms is None:
        return state
    return with_rows(state, X, indices, grow=False)


def with_records(held, records):
    """Records in a type that others fit as well: strings may be longer."""
    return held.astype(np.promote_types(held.dtype, records.dtype), copy=False)


def with_rows(state, X, here, grow):
    """A state with the rows of X derived at positions, behind the last if `grow`.

    Cached rows must be as of now. O(k(d + columns of sketches)) a row.
    """
    points = state.points
    sizes, norms, images = measure(X, points, state.U)
    transformed = X if images is None else images
    new = {"sizes": sizes, "norms": norms, "errors": 4 * _EPS * norms}
    if state.images is not None:
        new["images"] = images

    def written(held, values):
        held = grown(held, here.start, points.n) if grow else owned(held)
        held[here] = values
        return held

    new = {name: written(getattr(state, name), rows) for name, rows in new.items()}
    caches = {}
    for map, cache in state.caches.items():
        if cache is not None:
            rows = (transformed @ map.map.T).astype(cache.rows.dtype)
            held = written(cache.rows, rows), written(cache.norms, row_squares(rows))
            cache = cache._replace(rows=held[0], norms=held[1])
        caches[map] = cache
    coded, plan, cells = state.coded, state.plan, state.cells
    if coded is not None:
        own = state.images is not None
        given = (images, 0, norms) if own else (X, points.origin, sizes)
        coded = _coded_rows(coded, *given, here, grow)
        if coded is None:
            plan = cells = None
    image_codes = None if plan is None else state.image_codes
    if image_codes is not None:
        image_codes = _coded_rows(image_codes, images, 0, norms, here, grow)
    if cells is not None:
        cells = cells.with_codes(coded, here, replaced=not grow)
    new["drift"] = state.drift + len(norms) / points.n
    new |= {"coded": coded, "plan": plan, "cells": cells, "caches": caches}
    return state._replace(**new, image_codes=image_codes)


def _coded_rows(coded, rows, origin, squares, here, grow):
    """Codes with those of some rows; None if these are too long for the unit.

    `squares` are the squared lengths of the rows about the origin.
    """
    if np.sqrt(squares.max(initial=0)) > MOST_UNITS * coded.unit:
        return None
    if grow:
        return coded.append(rows, origin)
    coded = coded.owned()
    coded.write(here, rows, origin)
    return coded


def without_rows(state, mask):
    """A state of the points where `mask` is True. O(n) a column."""
    arrays = {
        name: kept_rows(getattr(state, name), mask)
        for name in ("records", "sizes", "norms", "errors", "images")
        if getattr(state, name) is not None
    }
    caches = {
        map: cache
        and CachedRows(
            kept_rows(cache.rows, mask), kept_rows(cache.norms, mask), cache.version
        )
        for map, cache in state.caches.items()
    }
    for name in ("coded", "image_codes"):
        coded = getattr(state, name)
        arrays[name] = None if coded is None else coded.kept(mask)
    cells = None if state.cells is None else state.cells.kept(mask)
    drift = state.drift + 1 - np.mean(mask)
    arrays |= {"cells": cells, "drift": float(drift)}
    return state._replace(points=state.points.kept(mask), **arrays, caches=caches)


def unshared(state):
    """A state with its own copy of every array in which rows are written in place."""
    points = state.points
    if not points.is_sparse:
        rest = points.n, points.changed
        points = points.with_buffer(points.buffer.copy(), *rest)
    caches = {map: deepcopy(cache) for map, cache in state.caches.items()}
    state = deepcopy(state._replace(points=None, caches={}))
    return state._replace(points=points, caches=caches)


def centred(state):
    """A state about the present mean, once half as many points have come as there are.

    Everything is derived again then, which costs no more than the changes did.
    """
    points = state.points
    if 2 * points.changed <= points.n:
        return state
    points = points.truncated(points.n)
    points.centre()
    return state.without_derived(points=points)


def saved(state):
    """A state as plain values; rows of sketches must be as of now."""
    n, values = state.points.n, {"points": state.points.saved(), "U": state.U}
    for name in ("sizes", "norms", "errors", "images"):
        array = getattr(state, name)
        values[name] = None if array is None else array[:n]
    values["records"] = None
    if state.records is not None:
        values["records"] = columns_of(state.records[:n])
    values["caches"] = [
        {"map": map.map, "rows": cache and cache.rows[:n]}
        for map, cache in state.caches.items()
    ]
    values["coded"] = None if state.coded is None else state.coded.saved()
    values["plan"] = None if state.plan is None else state.plan._asdict()
    values |= {"gaps": state.gaps, "gap_norms": state.gap_norms}
    values["cells"] = None if state.cells is None else state.cells.saved()
    values["probings"] = [probing._asdict() for probing in state.probings.values()]
    numbers = {name: getattr(state, name) for name in ("version", *_NUMBERS)}
    return {**values, **numbers}


def restored(values):
    """The state that was saved, or a ValueError that says what is wrong with it."""
    kind = SparsePoints if "csr" in values["points"] else DensePoints
    points = kind.restored(values["points"])
    n, d, dtype, doubles = points.n, points.d, points.array.dtype, FLOATS[1:]
    U = None if values["U"] is None else array_from(values, "U", doubles, (None, d))
    k = d if U is None else len(U)
    shapes = {"sizes": (n,), "norms": (n,), "errors": (n,), "images": (n, k)}
    arrays = {
        name: array_from(values, name, doubles, shape)
        for name, shape in shapes.items()
        if values[name] is not None
    }
    if values["records"] is not None:
        arrays["records"] = _restored_records(values["records"], n)
    version, caches = integer_from(values, "version"), {}
    for cache in values["caches"]:
        map = Map(array_from(cache, "map", doubles, (None, k)))
        caches[map] = None
        if cache["rows"] is not None:
            rows = array_from(cache, "rows", (dtype,), (n, len(map.map)))
            norms = row_squares(rows).astype(dtype)
            caches[map] = CachedRows(rows, norms, version)
    if values["coded"] is not None:
        width = k if "images" in arrays else d
        arrays["coded"] = CodedPoints.restored(values["coded"], n, width)
    plan = None
    if values["plan"] is not None:
        require("norms" in arrays, "there are no norms")
        plan = planning.plan_from(values["plan"], has_codes="coded" in arrays)
    if values["cells"] is not None:
        require("coded" in arrays, "there are no codes for cells")
        arrays |= _restored_cells(values, n, d, arrays["coded"])
    rest = {"version": version, "caches": caches, "plan": plan}
    rest.update({name: float(values[name]) for name in _NUMBERS})
    state = State(points, U, **arrays, **rest)
    if not available():
        # Saved where numba is installed: without it, codes and cells are not read.
        return state._replace(coded=None, plan=None, cells=None, probings={})
    return state


def _restored_records(columns, n):
    """Records of n points that were saved."""
    kinds = (np.dtype(np.float64), np.dtype(np.intp))
    arrays = {}
    for name, column in columns.items():
        known = kinds if column.dtype.kind != "U" else (column.dtype,)
        shape = (n, *column.shape[1:])
        arrays[name] = array_from(columns, name, known, shape)
    return records_from(arrays)


def _restored_cells(values, n, d, coded):
    """Cells that were saved, and what was measured with them, by name."""
    cells = Cells.restored(values["cells"], n, coded)
    found = {"cells": cells, "probings": probings_from(values["probings"])}
    if values["gaps"] is not None:
        gaps = array_from(values, "gaps", FLOATS[1:], (None, d))
        norms = array_from(values, "gap_norms", FLOATS[1:], (len(gaps),))
        found |= {"gaps": gaps, "gap_norms": norms}
    return found
