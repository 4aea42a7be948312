"""Points in 8 bits, and their leading coordinates: bounds that the metric never moves.

With ``g = UᵀU(q - c)`` for the origin c, a squared distance is

    d² = ‖U(q - c)‖² - 2 g·(x - c) + ‖U(x - c)‖²,

and a point enters only by the product ``g·(x - c)`` and one number, its squared length
under the metric. Both of these bound the product from above with certainty:

- the code x̂ of x, 8 bits a coordinate: ``g·x ≤ g·x̂ + ‖g‖ ‖x - x̂‖``;
- leading coordinates ``z = P x`` along r orthonormal rows of P, and the length t of
  what they leave: ``g·x ≤ (P g)·z + ‖g - Pᵀ P g‖ t``.

Neither depends on the metric, and P stays valid for points that come later.
"""

from typing import NamedTuple

import numpy as np
from scipy import linalg

from .kernels import kernels, read_only
from .points import grown, kept_rows, owned, row_squares
from .saved import FLOATS, array_from, integer_from, require
from .threads import run, slices

BLOCK = 128
_WIDTH = 16
ARRAYS = ("codes", "steps", "errors", "sizes")
_SAMPLE = 2000
_SAMPLE_BYTES = 1 << 26
MOST_LEAD = 256

_EPS = float(np.finfo(np.float32).eps)

# Lengths beyond this many units are too far from float32's middle for bounds.
_MOST_UNITS = 1e6


class CodedPoints(NamedTuple):
    """Codes and leading coordinates of n points about an origin.

    Lengths are in units of `unit`, a power of two. `lead` has blocks of BLOCK points by
    columns: coordinates along the first r rows of P, the length that these leave, and
    the whole length.
    """

    n: int
    unit: float
    r: int
    P: np.ndarray
    lead: np.ndarray
    codes: np.ndarray
    steps: np.ndarray
    errors: np.ndarray
    sizes: np.ndarray

    def with_lead(self, r, rows, origin, jobs=1):
        """Codes with another number of leading coordinates. O(ndr)."""
        shape = -(-len(self.codes) // BLOCK), r + 2, BLOCK
        coded = self._replace(r=r, lead=np.zeros(shape, np.float32))
        step = max(BLOCK, (1 << 22) // (8 * rows.shape[1]) // BLOCK * BLOCK)

        def fill(here):
            coded.write_lead(np.arange(here.start, here.stop), rows[here], origin)

        run(fill, slices(self.n, step), jobs)
        return coded

    def write(self, positions, rows, origin):
        """Code rows at some positions, in place."""
        parts = self.codes, self.steps, self.errors, self.sizes
        new = [np.zeros((len(rows), *part.shape[1:]), part.dtype) for part in parts]
        loops, rows = kernels(rows.dtype, "encode"), np.ascontiguousarray(rows)
        loops.encode(read_only(rows), origin, self.unit, *new)
        for part, values in zip(parts, new, strict=True):
            part[positions] = values
        self.write_lead(positions, rows, origin)

    def write_lead(self, positions, rows, origin):
        """Write the leading coordinates of rows at some positions, in place."""
        centred = (rows - origin) / self.unit
        z = centred @ self.P[: self.r].T
        sizes = row_squares(centred)
        rest = np.sqrt(np.maximum(sizes - row_squares(z), 0) + 1e-12 * sizes)
        columns = np.column_stack([z, (1 + 4 * _EPS) * rest, np.sqrt(sizes)])
        blocks, places = np.divmod(positions, BLOCK)
        self.lead[blocks, :, places] = columns

    def append(self, rows, origin):
        """The codes with more points at the end; O(d r) each, amortised."""
        end = self.n + len(rows)
        arrays = (grown(getattr(self, name), self.n, end) for name in ARRAYS)
        blocks = -(-self.n // BLOCK)
        lead = grown(self.lead, blocks, -(-end // BLOCK))
        coded = CodedPoints(end, self.unit, self.r, self.P, lead, *arrays)
        coded.write(np.arange(self.n, end), rows, origin)
        return coded

    def kept(self, mask):
        """The codes of the points where `mask` is True, in new arrays. O(n)."""
        arrays = {name: kept_rows(getattr(self, name), mask) for name in ARRAYS}
        columns = self.lead.transpose(0, 2, 1).reshape(-1, self.lead.shape[1])
        columns = columns[: len(mask)][mask]
        n = len(columns)
        shape = -(-len(arrays["codes"]) // BLOCK), *self.lead.shape[1:]
        lead, (blocks, places) = np.zeros(shape, np.float32), np.divmod(range(n), BLOCK)
        lead[blocks, :, places] = columns
        return self._replace(n=n, lead=lead, **arrays)

    def owned(self):
        """Codes in arrays that can be written to."""
        names = "lead", "codes", "steps", "errors", "sizes"
        return self._replace(**{name: owned(getattr(self, name)) for name in names})

    def saved(self):
        """The codes as plain values."""
        blocks = -(-self.n // BLOCK)
        arrays = {name: getattr(self, name)[: self.n] for name in ARRAYS}
        rest = {"n": self.n, "unit": self.unit, "r": self.r, "P": self.P}
        # Points that come later are written to the last block in place.
        return {**arrays, **rest, "lead": self.lead[:blocks].copy()}

    @classmethod
    def restored(cls, values, n, d):
        """The codes of n points of d coordinates that were saved."""
        singles, doubles = (FLOATS[0],), (FLOATS[1],)
        width, r = -(-d // _WIDTH) * _WIDTH, integer_from(values, "r", most=MOST_LEAD)
        require(integer_from(values, "n") == n, f"codes are not of {n} points")
        P = array_from(values, "P", doubles, (None, d))
        require(r <= len(P), f"there are not {r} directions")
        lead = array_from(values, "lead", singles, (-(-n // BLOCK), r + 2, BLOCK))
        codes = array_from(values, "codes", (np.dtype(np.int8),), (n, width))
        rest = (array_from(values, name, singles, (n,)) for name in ARRAYS[1:])
        unit = float(values["unit"])
        require(0 < unit < np.inf, f"unit is {unit}")
        return cls(n, unit, r, P, lead, codes, *rest)

    def check(self, rows, origin):
        """Assert that the bounds of codes and leading coordinates hold. O(nd)."""
        assert self.n == len(rows), "codes are of another number of points"
        columns = self.lead.transpose(0, 2, 1).reshape(-1, self.r + 2)[: self.n]
        for here in slices(self.n, max(1, (1 << 22) // (8 * rows.shape[1]))):
            x = (rows[here] - origin) / self.unit
            sizes = np.sqrt(row_squares(x))
            coded = self.steps[here, np.newaxis] * self.codes[here].astype(np.float64)
            error = np.sqrt(row_squares(x - coded[:, : x.shape[1]]))
            assert (error <= self.errors[here]).all(), "errors of codes"
            assert (sizes <= self.sizes[here]).all(), "lengths of codes"
            P, z, limit = self.P[: self.r], columns[here, : self.r], 4 * _EPS * sizes
            assert (limit >= np.abs(z - x @ P.T).T).all(), "leading coordinates"
            rest = np.sqrt(row_squares(x - x @ P.T @ P))
            assert (rest <= columns[here, self.r] + 1e-6 * sizes).all(), "lead lengths"

    def fits(self, sizes):
        """Whether lengths are near enough to the unit for bounds to mean something."""
        return bool(sizes.max(initial=0) <= _MOST_UNITS * self.unit)


def encode(rows, origin, P, jobs=1):
    """The :class:`CodedPoints` of rows, without leading coordinates yet. O(nd)."""
    n, d = rows.shape
    unit = power_of_two(_largest_length(rows, origin))
    width = -(-d // _WIDTH) * _WIDTH
    codes = np.zeros((n, width), np.int8)
    steps, errors, sizes = (np.zeros(n, np.float32) for _ in range(3))
    loops = kernels(rows.dtype, "encode")

    def fill(here):
        out = codes[here], steps[here], errors[here], sizes[here]
        loops.encode(read_only(rows[here]), origin, unit, *out)

    run(fill, slices(n, -(-n // (4 * jobs))), jobs)
    lead = np.zeros((-(-n // BLOCK), 2, BLOCK), np.float32)
    return CodedPoints(n, unit, 0, P, lead, codes, steps, errors, sizes)


def power_of_two(length):
    """The power of two at or above a length; 1 for zero."""
    return float(2.0 ** np.ceil(np.log2(length))) if length > 0 else 1.0


def _largest_length(rows, origin):
    largest = 0.0
    for here in slices(len(rows), max(1, (1 << 22) // (8 * rows.shape[1]))):
        largest = max(largest, row_squares(rows[here] - origin).max())
    return np.sqrt(largest)


def leading_directions(rows, most, rng):
    """The top right-singular vectors of centred `rows`, (at most `most`, d), float64.

    Orthonormal rows by decreasing variance. Randomised range finder with two power
    iterations, O(rows · d · most).
    """
    rows = np.asarray(rows, dtype=np.float64)
    rows = rows - rows.mean(axis=0)
    size = np.abs(rows).max(initial=0)
    width = min(most + 8, *rows.shape)
    if size == 0 or most == 0:
        return np.zeros((0, rows.shape[1]))
    rows = rows / size
    basis = rows.T @ rng.standard_normal((len(rows), width))
    for _ in range(2):
        basis, _ = linalg.qr(basis, mode="economic")
        basis = rows.T @ (rows @ basis)
    basis, _ = linalg.qr(basis, mode="economic")
    image = rows @ basis
    _, turn = linalg.eigh(image.T @ image)
    return np.ascontiguousarray((basis @ turn[:, : -most - 1 : -1]).T)


def sample_positions(n, d, rng):
    """Positions of the points that choices are made on, in ascending order."""
    size = max(1, min(_SAMPLE, _SAMPLE_BYTES // (8 * d)))
    return np.sort(rng.permutation(n)[:size])


def without_codes(squares, d):
    """Lengths alone as :class:`CodedPoints`, from squared lengths. O(n)."""
    n, sizes = len(squares), np.sqrt(squares)
    unit = power_of_two(sizes.max())
    sizes = ((1 + 4 * _EPS) / unit * sizes).astype(np.float32)
    lead = np.zeros((-(-n // BLOCK) * BLOCK, 2), np.float32)
    lead[:n] = sizes[:, np.newaxis]
    lead = np.ascontiguousarray(lead.reshape(-1, BLOCK, 2).transpose(0, 2, 1))
    nothing = np.zeros((0, 0), np.int8), *(np.zeros(0, np.float32) for _ in range(2))
    return CodedPoints(n, unit, 0, np.zeros((0, d)), lead, *nothing, sizes)
