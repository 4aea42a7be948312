"""The data structure of Qin, Reddy and Song (2023) as its algorithms are printed.

In float64 and with the loops that the paper has, so that its cost can be seen beside
that of an implementation that shares work. ``Π_j U`` is computed beforehand, as the
paper's experiments do.
"""

import numpy as np


class PrintedMaintenance:
    """Algorithms Initialize, QueryPair and QueryAll of the paper.

    Initialize uses matrix products in place of its loops; it is not what is timed.
    Where `mended` is true, QueryAll compares a query with the sketch of the same number
    of a point, which the printed indices do not.
    """

    def __init__(self, U, X, m, L, R, seed=0, mended=False):
        self.U, self.X = U.astype(np.float64), X.astype(np.float64)
        self.R, self.mended = R, mended
        self._rng = np.random.default_rng(seed)
        shape = (m, len(U))
        self.PiU = [
            self._rng.normal(scale=m**-0.5, size=shape) @ self.U for _ in range(L)
        ]
        self.sketches = [self.X @ PiU.T for PiU in self.PiU]

    def query_pair(self, i, j):
        """Median distance between the first R sketches of two points."""
        p = [np.linalg.norm(s[i] - s[j]) for s in self.sketches[: self.R]]
        return np.median(p)

    def query_all(self, q):
        """Estimated distances of a query from all points."""
        sampled = self._rng.integers(len(self.PiU), size=self.R)
        n = len(self.X)
        d = np.empty((n, self.R))
        for i in range(n):
            for r in range(self.R):
                x = self.sketches[sampled[r] if self.mended else r][i]
                d[i, r] = np.linalg.norm(self.PiU[sampled[r]] @ q - x)
        estimates = np.empty(n)
        for i in range(n):
            estimates[i] = np.median(d[i])
        return estimates


def printed_bytes(n, d, k, m, L):
    """Memory of U, the points, ``Π_j U`` and ``Π_j U x_i`` in float64."""
    return 8 * (k * d + n * d + L * m * d + n * L * m)
