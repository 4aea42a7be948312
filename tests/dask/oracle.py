"""A local index and brute force beside an index on a cluster."""

import numpy as np

import skmahal


class Beside:
    """An index on a cluster, a local one, and plain arrays, which change together."""

    def __init__(self, index, X, U=None):
        self.index, self.X = index, X.copy()
        self.U = np.eye(X.shape[1]) if U is None else U.copy()
        names = skmahal.SketchedMahalanobisNeighbors().get_params()
        parameters = {k: v for k, v in index.get_params().items() if k in names}
        parameters["metric_learner"] = U
        self.local = skmahal.SketchedMahalanobisNeighbors(**parameters).fit(X)

    def both(self, method, *args, **kwargs):
        for one in (self.index, self.local):
            getattr(one, method)(*args, **kwargs)

    def low_rank(self, W, V):
        self.both("update_metric", low_rank=(W, V))
        self.U = self.U + W.reshape(len(self.U), -1) @ V.reshape(len(self.U.T), -1).T

    def set_metric(self, U):
        self.both("update_metric", {"U": U})
        self.U = U.copy()

    def set_rows(self, rows, values, additive=False):
        self.both("update_metric", values, rows=rows, additive=additive)
        self.U[rows] = values + (self.U[rows] if additive else 0)

    def append(self, X):
        self.both("partial_fit", X)
        self.X = np.vstack([self.X, X])

    def replace(self, at, X):
        self.both("update_points", at, X)
        self.X[at] = X

    def remove(self, at):
        self.both("remove_points", at)
        self.X = np.delete(self.X, at, axis=0)

    def distances(self, Q):
        """Exact distances; equal points have equal ones, to the last digit."""
        rows, where = np.unique(self.X, axis=0, return_inverse=True)
        gaps = (Q[:, np.newaxis] - rows.astype(float)) @ self.U.T
        return np.linalg.norm(gaps, axis=2)[:, where.ravel()]

    def check(self, Q, K=5, rtol=1e-9):
        """Every operation gives what the local index gives, and ties are in order."""
        index, local, D = self.index, self.local, self.distances(Q)
        order = np.argsort(D, axis=1, kind="stable")[:, :K]
        found, at = index.kneighbors(Q, K)
        np.testing.assert_array_equal(at, order)
        same = dict(rtol=rtol, atol=rtol * D.max())
        np.testing.assert_allclose(found, local.kneighbors(Q, K)[0], **same)
        # Between two distances: at one of them, rounding decides.
        values = np.unique(D)[: D.size // 50]
        gap = np.diff(values).argmax()
        radius = float(values[gap : gap + 2].mean())
        pairs = index.radius_neighbors(Q, radius), local.radius_neighbors(Q, radius)
        for ours, theirs in zip(*pairs, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(a, b, **same)
        n = len(self.X)
        i, j = np.arange(0, n, 97), np.arange(n)[::-97]
        same_pairs = index.pair_distances(i, j), local.pair_distances(i, j)
        np.testing.assert_allclose(*same_pairs, **same)
        for power in (1, 2):
            span = n // 7, n - n // 5, power
            sums = index.sum_distances(Q, *span), local.sum_distances(Q, *span)
            np.testing.assert_allclose(*sums, rtol=max(rtol, 1e-9))
        estimates = index.distances(Q).compute(scheduler=index.client_.get)
        assert (np.abs(estimates - D) <= index.eps * D * (1 + 1e-6) + 1e-9).all()
        np.testing.assert_allclose(index.components_, self.U, atol=1e-9)
        assert len(index) == n == sum(index.shard_sizes_)
