"""Brute force in float64, written apart from the package: the truth of the tests."""

import numpy as np


class Oracle:
    """Points and metric as plain arrays; every answer is computed from scratch."""

    def __init__(self, U, X):
        self.X = np.array(X.toarray() if hasattr(X, "toarray") else X, dtype=float)
        self.U = np.eye(self.X.shape[1]) if U is None else np.array(U, dtype=float)

    def update_u(self, u, a):
        self.U[a] += u

    def set_rows(self, u, a):
        self.U[a] = u

    def update_low_rank(self, W, V):
        self.U += np.asarray(W, dtype=float) @ np.asarray(V, dtype=float).T

    def set_metric(self, U):
        self.U = np.array(U, dtype=float)

    def update_x(self, z, i):
        self.X[i] = z

    def append(self, X):
        self.X = np.vstack([self.X, X])

    def remove(self, indices):
        self.X = np.delete(self.X, indices, axis=0)

    def query_pair(self, i, j):
        return np.linalg.norm((self.X[i] - self.X[j]) @ self.U.T, axis=-1)

    def query_all(self, Q):
        Q = np.asarray(Q, dtype=float)
        return np.stack([np.linalg.norm((self.X - q) @ self.U.T, axis=1) for q in Q])

    def sub_sum(self, Q, i, j, power=2):
        return (self.query_all(Q)[:, i:j] ** power).sum(axis=1)


def assert_nearest(distances, indices, truth, rtol, atol):
    """`distances`, `indices` are K nearest under the true distances, ties aside."""
    best = np.sort(truth, axis=1)[:, : distances.shape[1]]
    np.testing.assert_allclose(distances, best, rtol=rtol, atol=atol)
    named = np.take_along_axis(truth, indices, axis=1)
    np.testing.assert_allclose(distances, named, rtol=rtol, atol=atol)
    assert all(len(set(row)) == len(row) for row in indices)
