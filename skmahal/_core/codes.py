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

from .points import block, grown, kept_rows, owned, row_squares
from .saved import FLOATS, array_from, integer_from, require
from .threads import run, slices

# Codes have a multiple of so many columns, which loops read at a time.
_WIDTH = 32
ARRAYS: tuple[str, ...] = ("codes", "steps", "errors", "sizes", "lead")
ARRAYS += ("short", "short_steps", "short_errors", "short_rests")
# Numbers that stay in cache in float64.
_BLOCK_NUMBERS = 1 << 19
MOST_LEAD = 256

_EPS = float(np.finfo(np.float32).eps)

# Lengths beyond this many units are too far from float32's middle for bounds.
MOST_UNITS = 1e6

# Lengths that are smaller may be rounded to zero in float32.
_TINY = 1e-30

# Products with short codes are made with whole numbers up to this.
MOST_WHOLE = 32767


class CodedPoints(NamedTuple):
    """Codes and leading coordinates of n points about an origin.

    Lengths are in units of `unit`, a power of two. A row of `codes` times its step is a
    point, up to its error; `sizes` are lengths. `lead` has the coordinates along the
    first `r_many` rows of P, the length that these leave, and the whole length: it is
    for batches of queries. For single queries there are coordinates along `r_one` rows
    in 8 bits, `short`, with the length that they leave in `short_rests`.
    """

    n: int
    unit: float
    r_many: int
    r_one: int
    P: np.ndarray
    codes: np.ndarray
    steps: np.ndarray
    errors: np.ndarray
    sizes: np.ndarray
    lead: np.ndarray
    short: np.ndarray
    short_steps: np.ndarray
    short_errors: np.ndarray
    short_rests: np.ndarray

    def with_lead(self, r_many, r_one, rows, origin, jobs=1):
        """Codes with other numbers of leading coordinates. O(nd r)."""
        new = {name: np.zeros_like(self.steps) for name in ARRAYS[6:]}
        new["lead"] = np.zeros((len(self.codes), r_many + 2), np.float32)
        new["short"] = np.zeros((len(self.codes), padded(r_one)), np.int8)
        coded = self._replace(r_many=r_many, r_one=r_one, **new)

        def fill(here):
            coded._write_lead(here, (block(rows, here) - origin) / self.unit)

        run(fill, slices(self.n, max(1, _BLOCK_NUMBERS // rows.shape[1])), jobs)
        return coded

    def write(self, positions, rows, origin):
        """Code rows at some positions, in place."""
        centred = (rows - origin) / self.unit
        new = eight_bits(centred, self.codes.shape[1])
        for name, values in zip(ARRAYS[:4], new, strict=True):
            getattr(self, name)[positions] = values
        self._write_lead(positions, centred)

    def _write_lead(self, positions, centred):
        """Write leading coordinates of centred rows at some positions, in place."""
        z = centred @ self.P[: max(self.r_many, self.r_one)].T
        squares, z_one = row_squares(centred), z[:, : self.r_one]
        r_both, slack = (self.r_many, self.r_one), 1e-12 * squares
        left = [np.maximum(squares - row_squares(z[:, :r]), 0) for r in r_both]
        many, one = ((1 + 32 * _EPS) * np.sqrt(sq + slack) + _TINY for sq in left)
        columns = z[:, : self.r_many], many, np.sqrt(squares)
        self.lead[positions] = np.column_stack(columns)
        self.short_rests[positions] = one
        codes, steps, errors, lengths = eight_bits(z_one, self.short.shape[1])
        # Rounding of the query, and of sums in float32, belongs to the errors.
        rounding = np.sqrt(self.r_one) / MOST_WHOLE + 16 * _EPS
        self.short[positions], self.short_steps[positions] = codes, steps
        self.short_errors[positions] = errors + rounding * lengths

    def append(self, rows, origin):
        """The codes with more points at the end; O(d r) each, amortised."""
        end = self.n + len(rows)
        arrays = {name: grown(getattr(self, name), self.n, end) for name in ARRAYS}
        coded = self._replace(n=end, **arrays)
        coded.write(slice(self.n, end), rows, origin)
        return coded

    def kept(self, mask):
        """The codes of the points where `mask` is True, in new arrays. O(n)."""
        arrays = {name: kept_rows(getattr(self, name), mask) for name in ARRAYS}
        return self._replace(n=int(np.count_nonzero(mask)), **arrays)

    def owned(self):
        """Codes in arrays that can be written to."""
        return self._replace(**{name: owned(getattr(self, name)) for name in ARRAYS})

    def saved(self):
        """The codes as plain values."""
        values = {name: getattr(self, name)[: self.n] for name in ARRAYS}
        return {**self._asdict(), **values}

    @classmethod
    def restored(cls, values, n, d):
        """The codes of n points of d coordinates that were saved."""
        require(integer_from(values, "n") == n, f"codes are not of {n} points")
        P = array_from(values, "P", (FLOATS[1],), (None, d))
        most = {"most": min(MOST_LEAD, len(P))}
        many, one = (integer_from(values, name, **most) for name in ("r_many", "r_one"))
        single, whole = (FLOATS[0],), (np.dtype(np.int8),)
        shapes = dict.fromkeys(ARRAYS, (n,))
        shapes["codes"], shapes["lead"] = (n, padded(d)), (n, many + 2)
        shapes["short"] = n, padded(one)
        kinds = dict.fromkeys(ARRAYS, single) | {"codes": whole, "short": whole}
        arrays = {
            name: array_from(values, name, kinds[name], shapes[name]) for name in ARRAYS
        }
        unit = float(values["unit"])
        require(0 < unit < np.inf, f"unit is {unit}")
        return cls(n, unit, many, one, P, **arrays)

    def check(self, rows, origin):
        """Assert that the bounds of codes and leading coordinates hold. O(nd)."""
        assert self.n == len(rows), "codes are of another number of points"
        for here in slices(self.n, max(1, _BLOCK_NUMBERS // rows.shape[1])):
            x = (block(rows, here) - origin) / self.unit
            sizes, d = np.sqrt(row_squares(x)), x.shape[1]
            limit, z = 4 * _EPS * sizes[:, np.newaxis], x @ self.P.T
            coded = self.steps[here, np.newaxis] * self.codes[here].astype(np.float64)
            error = np.sqrt(row_squares(x - coded[:, :d]))
            assert (error <= self.errors[here]).all(), "errors of codes"
            assert (sizes <= self.sizes[here]).all(), "lengths of codes"
            lead, z_one = self.lead[here], z[:, : self.r_one]
            off = np.abs(lead[:, : self.r_many] - z[:, : self.r_many])
            assert (off <= limit).all(), "leading coordinates"
            short = self.short_steps[here, np.newaxis] * self.short[here].astype(float)
            error = np.sqrt(row_squares(z_one - short[:, : self.r_one]))
            assert (error <= self.short_errors[here]).all(), "errors of short codes"
            pairs = (self.r_many, lead[:, -2]), (self.r_one, self.short_rests[here])
            for r, rests in pairs:
                exact = np.sqrt(row_squares(x - z[:, :r] @ self.P[:r]))
                assert (exact <= rests + 1e-6 * sizes).all(), "lengths that are left"


def encode(rows, origin, unit, P, r_many=0, r_one=0, jobs=1, U=None):
    """The :class:`CodedPoints` of rows, with leading coordinates along P. O(nd r).

    With U, they are those of the transformed rows, which hold for this metric. O(nkd).
    """
    n, d = len(rows), rows.shape[1] if U is None else len(U)
    codes = np.zeros((n, padded(d)), np.int8)
    steps, errors, sizes, *rest = np.zeros((6, n), np.float32)
    lead = np.zeros((n, r_many + 2), np.float32)
    short = np.zeros((n, padded(r_one)), np.int8)
    whole = codes, steps, errors, sizes
    coded = CodedPoints(n, unit, r_many, r_one, P, *whole, lead, short, *rest)

    def fill(here):
        centred = block(rows, here) - origin
        coded.write(here, centred if U is None else centred @ U.T, 0)

    run(fill, slices(n, max(1, _BLOCK_NUMBERS // rows.shape[1])), jobs)
    return coded


def eight_bits(values, width):
    """Rows in 8 bits: codes of `width` columns, steps, bounds of errors, and lengths.

    >>> codes, steps, errors, lengths = eight_bits(np.array([[3.0, -1.27, 0.0]]), 4)
    >>> codes, np.round(lengths, 3)
    (array([[127, -54,   0,   0]], dtype=int8), array([3.258]))
    """
    steps = (np.abs(values).max(axis=1, initial=0) / 127).astype(np.float32)
    exact = steps.astype(np.float64)[:, np.newaxis]
    whole = np.rint(values / np.where(exact > 0, exact, 1))
    np.clip(whole, -127, 127, out=whole)
    codes = np.zeros((len(values), width), np.int8)
    codes[:, : values.shape[1]] = whole
    whole *= exact
    gaps = np.subtract(values, whole, out=whole)
    lengths = np.sqrt(row_squares(values))
    errors = np.sqrt(row_squares(gaps)) * (1 + 4 * _EPS) + 1e-12 * lengths + _TINY
    return codes, steps, errors, lengths * (1 + 4 * _EPS)


def padded(columns):
    """Columns of codes: a multiple of what loops read at a time."""
    return -(-columns // _WIDTH) * _WIDTH


def power_of_two(length):
    """The power of two at or above a length; 1 for zero."""
    return float(2.0 ** np.ceil(np.log2(length))) if length > 0 else 1.0


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


def without_codes(squares, d):
    """Lengths alone as :class:`CodedPoints`, from squared lengths. O(n)."""
    n, sizes = len(squares), np.sqrt(squares)
    unit = power_of_two(sizes.max())
    sizes = ((1 + 4 * _EPS) / unit * sizes).astype(np.float32)
    lead = np.repeat(sizes[:, np.newaxis], 2, axis=1)
    none, nothing = np.zeros(0, np.float32), np.zeros((0, 0), np.int8)
    first = n, unit, 0, 0, np.zeros((0, d)), nothing, none, none, sizes, lead
    return CodedPoints(*first, nothing, none, none, none)
