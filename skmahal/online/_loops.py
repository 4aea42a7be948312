"""Many steps of a learner with targets as one compiled loop; needs numba."""

import numpy as np
from numba import njit

from . import _steps

# The formulas of single steps, compiled.
_lego_length = njit(cache=True, nogil=True)(_steps.lego_length)
_itml_stretch = njit(cache=True, nogil=True)(_steps.itml_stretch)


@njit(cache=True, nogil=True)
def _product(stored, W, V, z):
    """``(stored + Wᵀ V) z``, for W and V by rows."""
    w = np.dot(stored, z)
    for p in range(len(W)):
        w += np.dot(V[p], z) * W[p]
    return w


@njit(cache=True, nogil=True)
def _square(w):
    total = 0.0
    for value in w:
        total += np.float64(value) * np.float64(value)
    return total


@njit(cache=True, nogil=True)
def target_steps(U, differences, signs, targets, lego, parameter):
    """Steps for pairs in their order, until the log is full.

    `U` is the stored matrix, W and V of the log by rows, how many of them are in the
    stored matrix already, and how many there are. Steps are those of LEGO, with the
    parameter η, or of ITML, with γ. Returns how many pairs were seen and how many
    steps the log has then; -1 and the pair where numbers overflow.
    """
    stored, W, V, added, count = U
    for pair in range(len(differences)):
        if count == len(W):
            return pair, count
        pending = slice(added, count)
        w = _product(stored, W[pending], V[pending], differences[pair])
        square = _square(w)
        if not np.isfinite(square):
            return -1, pair
        target = targets[0] if signs[pair] > 0 else targets[1]
        if not square > 0 or signs[pair] * (square - target) <= 0:
            continue
        if lego:
            stretch = _lego_length(square, target, parameter) / square
        else:
            stretch = _itml_stretch(square, target, parameter)
        scale = (np.sqrt(stretch) - 1) / square
        if scale == 0:
            continue
        v = _product(stored.T, V[pending], W[pending], w)
        W[count] = scale * w
        V[count] = v
        if not (np.isfinite(W[count]).all() and np.isfinite(v).all()):
            return -1, pair
        count += 1
    return len(differences), count
