"""Matrices that follow steps of low rank: U, and an inverse of ``A = UᵀU`` for POLA."""

import secrets

import numpy as np
from scipy.linalg.blas import dgemm, dger, dsymv, sgemm
from scipy.linalg.lapack import dpotrf, dpotri

from skmahal._core.metric import LowRank
from skmahal._core.saved import FLOATS, array_from, integer_from, require

# A step is added at once to a matrix of at most so many numbers.
_SMALL = 2**14
# Shifts of an inverse, in units of the mean eigenvalue of A.
FIRST_SHIFT, _LEAST_SHIFT, _MOST_SHIFT = 0.01, 1e-3, 0.5

_EPS = float(np.finfo(float).eps)
_GEMM = {"f": sgemm, "d": dgemm}


class MovingFactor:
    """The matrix ``U = stored + Σ w vᵀ``, with one pair of columns (w, v) per step.

    The latest `capacity` columns, or at least half as many, are the log of steps, with
    which an index can follow. By default it holds d / 4 of them, from 16 to 64 or
    d / 32; beyond that an index does better with a new U. A step costs O(k + d), and
    O(kd) when it is added to the stored matrix: at once if U is small, else together
    with others. A small U is kept in float64, because every step rounds it.

    :func:`copy.copy` costs O(1). Copies share memory and never affect each other, so
    that a copy serves to undo steps; U itself is never written to. `version` is the
    number of earlier steps, and `stream` the name of the sequence of versions.

    >>> from copy import copy
    >>> start = MovingFactor(np.eye(2), capacity=4)
    >>> factor = copy(start)
    >>> factor.append(np.array([1.0, 0.0]), np.array([0.0, 3.0]))
    >>> W, V = factor.since((start.stream, start.version))
    >>> factor.components(), W @ V.T
    (array([[1., 3.], [0., 1.]]), array([[0., 3.], [0., 0.]]))
    """

    # Attributes that are saved as they are.
    _names: tuple[str, ...] = ("version", "stream")

    def __init__(self, U, capacity=None, version=0, stream=None):
        if capacity is None:
            d = U.shape[1]
            capacity = max(16, min(d // 4, 64), d // 32)
        self._small = U.size <= _SMALL
        dtype = np.dtype(np.float64) if self._small else U.dtype
        self.stored, self.shape = np.ascontiguousarray(U, dtype), U.shape
        self.dtype = dtype
        self.version = version
        self.stream = secrets.token_hex(16) if stream is None else stream
        self._W = np.empty((capacity, U.shape[0]), dtype)
        self._V = np.empty((capacity, U.shape[1]), dtype)
        # Rows of the log in use: by this object, and by any copy that shares it.
        self._count, self._used = 0, [0]
        # Rows that are part of the stored matrix, and whether no copy shares that.
        self._added, self._is_own = 0, False

    @property
    def pending(self):
        """W and V of the steps that are not in the stored matrix, one step a row."""
        steps = slice(self._added, self._count)
        return self._W[steps], self._V[steps]

    def __matmul__(self, z):
        product = self.stored.dot(z)
        if self._added < self._count:
            W, V = self.pending
            product += W.T.dot(V.dot(z))
        return product

    def pull_back(self, w):
        """``Uᵀ w``, O(kd)."""
        product = w.dot(self.stored)
        if self._added < self._count:
            W, V = self.pending
            product += W.dot(w).dot(V)
        return product

    def components(self):
        """U as a new array, O(kd) per pending step."""
        W, V = self.pending
        return self.stored + W.T @ V if len(W) else self.stored.copy()

    def append(self, w, v, scale=1.0):
        """Make the step ``U += w vᵀ``, times a number."""
        at, capacity = self._count, len(self._W)
        if at == capacity or self._used[0] != at:
            # The log is full, or a copy has written the next row.
            first = capacity // 2 if at == capacity else 0
            at -= first
            W, V = np.empty_like(self._W), np.empty_like(self._V)
            W[:at], V[:at] = self._W[first : self._count], self._V[first : self._count]
            self._W, self._V, self._used = W, V, [at]
            self._added -= first
        self._V[at] = v
        np.multiply(w, scale, self._W[at])
        self._count = self._used[0] = at + 1
        self.version += 1
        if not self._small and self._count - self._added < capacity // 2:
            return
        if not self._is_own:
            self.stored, self._is_own = self.stored.copy(), True
        # The transpose of a C-ordered array is what BLAS writes to without a copy.
        if self._small:
            dger(scale, v, w, 1, 1, self.stored.T, 1, 1, 1)
        else:
            W, V = self.pending
            _GEMM[self.dtype.char](1.0, V.T, W.T, 1.0, self.stored.T, 0, 1, 1)
        self._added = self._count

    def since(self, token):
        """All steps since a stream and version, or None if the log lacks some."""
        stream, version = token
        first = self._count - (self.version - version)
        if stream != self.stream or not 0 <= first <= self._count:
            return None
        steps = slice(first, self._count)
        return LowRank(self._W[steps].T.copy(), self._V[steps].T.copy())

    def __copy__(self):
        self._is_own = False
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def saved(self):
        """The matrix and its log as plain values, which share memory with this."""
        self._is_own = False
        log = {"W": self._W[: self._count], "V": self._V[: self._count]}
        sizes = {"capacity": len(self._W), "added": self._added}
        names = {name: getattr(self, name) for name in self._names}
        return {"U": self.stored, **log, **sizes, **names}

    @classmethod
    def restored(cls, state):
        """The object that was saved as `state`, as a new stream."""
        U = array_from(state, "U", FLOATS, (None, None))
        W = array_from(state, "W", (U.dtype,), (None, U.shape[0]))
        V = array_from(state, "V", (U.dtype,), (len(W), U.shape[1]))
        capacity = integer_from(state, "capacity", least=max(2, len(W)))
        version = integer_from(state, "version")
        require(isinstance(state["stream"], str), "the stream has no name")
        factor = object.__new__(cls)
        MovingFactor.__init__(factor, U, capacity, version)
        factor._W[: len(W)], factor._V[: len(V)] = W, V
        factor._count, factor._used = len(W), [len(W)]
        least = len(W) - (0 if factor._small else capacity // 2)
        factor._added = integer_from(state, "added", least=max(least, 0), most=len(W))
        return factor


class ShiftedInverse(MovingFactor):
    """``M = (A + sI)⁻¹`` for a small shift s, `age` steps after it was computed."""

    _names = (*MovingFactor._names, "shift", "age")

    def __init__(self, matrix, shift):
        super().__init__(matrix, 128)
        self.shift, self.age = float(shift), 0

    @classmethod
    def of(cls, U, shift=None):
        """M for ``A = UᵀU``, with about this shift. O(kd²)."""
        U = U.components()
        A = U.T @ U
        mean = A.diagonal().mean()
        shift = FIRST_SHIFT * mean if shift is None else shift
        shift = np.clip(shift, _LEAST_SHIFT * mean, _MOST_SHIFT * mean)
        shift = max(float(shift), np.finfo(float).tiny / _EPS)
        A.flat[:: len(A) + 1] += shift
        factor, failed = dpotrf(A.T, lower=True, overwrite_a=True)
        if failed:
            raise ValueError("pairs has points too far apart: the step overflows.")
        lower = np.tril(dpotri(factor, lower=True, overwrite_c=True)[0])
        return cls(lower + np.tril(lower, -1).T, shift)

    def __matmul__(self, q):
        W, V = self.pending
        # This reads one half of the symmetric matrix.
        return dsymv(1.0, self.stored.T, q) + V.dot(q).dot(W)

    def add(self, alpha, v):
        """Follow ``A += α vvᵀ`` by the Sherman-Morrison formula."""
        product = self @ v
        self.append(-alpha / (1 + alpha * (v @ product)) * product, product)
        self.age += 1

    def remove(self, x, shift):
        """Follow a projection that removes an eigenvector x, of eigenvalue ``-shift``.

        If ``Mx = hx + gn`` with orthogonal unit vectors x and n, M changes by
        ``(1/s - h) xxᵀ - g(nxᵀ + xnᵀ) + g²e/(1 - eh) nnᵀ``, where ``e = s - shift``.
        """
        x = x / np.sqrt(x @ x)
        product = self @ x
        h, e = x @ product, self.shift - shift
        n = product - h * x
        g = np.sqrt(n @ n)
        last = g * g * e / max(1 - e * h, _EPS)
        values, vectors = np.linalg.eigh([[1 / self.shift - h, -g], [-g, last]])
        # Both terms are symmetric, as the stored matrix must be.
        for value, (along, across) in zip(values, vectors.T, strict=True):
            term = along * x + (across / g if g else 0) * n
            self.append(value * term, term)
        self.age += 1

    def solve(self, b, enough, shift=None, *, alpha=None, floor=None):
        """Solve ``(A + ℓI) x = b`` for a given ℓ, or for the least with ``α bᵀx ≤ 1``.

        With ``x = My`` the system is ``(I - (s - ℓ)M) y = b``. It is solved on a Krylov
        space of M until the residual has the length `enough`; with α, that and `floor`,
        the least ℓ, are in units of the largest eigenvalue of A.

        Returns x, ℓ, about the largest eigenvalue of A, and the number of products.
        """
        length, check, before = np.sqrt(b @ b), 3, None
        for basis, T, border in lanczos(self, b):
            count = len(T)
            if border and count < check:
                continue
            inverses, vectors = np.linalg.eigh(T)
            inverses = np.maximum(inverses, _EPS * inverses[-1])
            values = np.maximum(1 / inverses - self.shift, 0)
            parts, limit = length * vectors[0], enough
            if alpha is not None:
                limit = enough * values[0]
                shift = least_shift(values, parts, alpha, floor * values[0])
            y = vectors @ (parts / (inverses * (values + shift)))
            off = abs(self.shift - shift) * border * abs(y[-1])
            if off <= limit or not border:
                x = (T @ y) @ basis[:-1] + border * y[-1] * basis[-1]
                return x, shift, values[0], count
            # Check again when the residual, at its latest rate, is small enough.
            now, wait = np.log(off / limit), 2
            if before is not None:
                wait = now * (count - before[0]) / (before[1] - now)
                wait = min(8, max(1, wait)) if wait > 0 else 8
            before, check = (count, now), count + wait

    @classmethod
    def restored(cls, state):
        """As for :class:`MovingFactor`, of a square matrix in float64."""
        inverse, shift = super().restored(state), float(state["shift"])
        square = inverse.shape[0] == inverse.shape[1] and inverse.dtype == np.float64
        require(square, "an inverse is not a square matrix in float64")
        require(0 < shift < np.inf, f"the shift is {shift}")
        inverse.shift, inverse.age = shift, integer_from(state, "age")
        return inverse


def lanczos(M, b):
    """Extend an orthonormal basis of the Krylov space of a symmetric M and b.

    Yields after each product the basis as rows, with the next vector; the tridiagonal
    matrix of M on the basis; and the entry next to it, which is zero at the end.

    >>> M, b = np.diag([3.0, 2.0, 1.0]), np.array([1.0, 1.0, 0.0])
    >>> for basis, T, border in lanczos(M, b):
    ...     print(len(basis), np.linalg.eigvalsh(T).round(6), border.round(6))
    2 [2.5] 0.5
    3 [2. 3.] 0.0
    """
    d = len(b)
    basis, T = np.zeros((min(d, 16) + 1, d)), np.zeros((17, 17))
    basis[0] = b / np.sqrt(b @ b)
    for count in range(1, d + 1):
        if count == len(basis):
            basis = np.concatenate([basis, np.zeros_like(basis)])
            T = np.pad(T, (0, len(T)))
        known = basis[:count]
        vector = M @ known[-1]
        T[count - 1, count - 1] = known[-1] @ vector
        border = np.sqrt(vector @ vector)
        for _ in range(2):
            # The second time it has unit length, and is orthogonal up to rounding.
            vector = vector / np.sqrt(vector @ vector)
            vector -= (known @ vector) @ known
            share = np.sqrt(vector @ vector)
            border *= share
        if count == d or not share > 0.5:
            border = np.float64(0)
        else:
            basis[count] = vector / share
        yield basis[: count + 1], T[:count, :count], border
        if not border:
            return
        T[count, count - 1] = T[count - 1, count] = border


def least_shift(values, parts, alpha, floor=0.0):
    r"""The least :math:`\ell` with :math:`\alpha \sum_i c_i^2 / (a_i + \ell) \le 1`.

    Here :math:`a_i` are the `values`, eigenvalues of A in descending order, and
    :math:`c_i` the `parts`, coordinates of v. The result is at least `floor`. Newton's
    method on the reciprocal of the sum, which is concave, approaches it from below.

    >>> round(float(least_shift(np.array([2.0, 1.0]), np.array([0.0, 2.0]), 1.0)), 6)
    3.0
    """
    squares, largest = alpha * parts**2, values[0]
    shift = max(floor, squares.sum() - largest, (squares - values).max())
    while True:
        shares = squares / (values + shift)
        total = shares.sum()
        step = (total - 1) * total / (shares / (values + shift)).sum()
        if not step > 2 * _EPS * shift:
            return shift
        shift += step
