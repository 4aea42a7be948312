"""The contenders: skmahal and the libraries that it is measured against.

Each is fitted to the points under a metric U, and finds the positions of the neighbours
of queries. Peers have no metric: they get the transformed points, and transform the
queries of every call in float32.
"""

import os
from importlib.util import find_spec

import numpy as np
from sklearn.neighbors import NearestNeighbors

from skmahal import SketchedMahalanobisNeighbors

from ._data import transformed

CORES = os.cpu_count() or 1

_TILE_BYTES = 1 << 23
_LEVELS = 16
_PCA_POINTS = 20_000


class Ours:
    """SketchedMahalanobisNeighbors at its default settings."""

    name = "skmahal"
    exact = True

    def __init__(self, n_jobs=-1):
        self.n_jobs = n_jobs

    def fit(self, X, U, Y, K):
        self.index = SketchedMahalanobisNeighbors(
            K, metric_learner=U, random_state=0, n_jobs=self.n_jobs
        ).fit(X)
        return self

    def kneighbors(self, Q):
        return self.index.kneighbors(Q, return_distance=False)


class Faiss:
    """IndexFlatL2."""

    name = "faiss flat"
    needs = "faiss"
    exact = True

    def fit(self, X, U, Y, K):
        import faiss

        self.K, self.U = K, U
        self.index = faiss.IndexFlatL2(Y.shape[1])
        self.index.add(Y)
        return self

    def kneighbors(self, Q):
        u = np.ascontiguousarray(transformed(Q, self.U))
        return self.index.search(u, self.K)[1]


class Panorama(Faiss):
    """IndexFlatL2Panorama behind a PCA that keeps all dimensions.

    The PCA is computed by NumPy in float64: that of faiss gives the same, and takes
    minutes for 5,000 dimensions.
    """

    name = "faiss PCA + Panorama"

    def fit(self, X, U, Y, K):
        import faiss

        self.K, self.U = K, U
        d = Y.shape[1]
        mean = Y.mean(axis=0, dtype=np.float64)
        sample = Y[:_PCA_POINTS] - mean
        _, directions = np.linalg.eigh(sample.T @ sample)
        P = directions[:, ::-1].T
        pca = faiss.PCAMatrix(d, d)
        faiss.copy_array_to_vector(P.astype(np.float32, order="C").ravel(), pca.A)
        faiss.copy_array_to_vector((-(P @ mean)).astype(np.float32), pca.b)
        pca.have_bias = pca.is_orthonormal = pca.is_trained = True
        levels = faiss.IndexFlatL2Panorama(d, min(_LEVELS, d))
        self.index = faiss.IndexPreTransform(pca, levels)
        self.index.is_trained = True
        self.index.add(Y)
        return self


class Ivf(Faiss):
    """IndexIVFFlat, approximate, with some times √n lists."""

    name = "faiss IVF-Flat"
    exact = False

    def __init__(self, times=4, probes=8):
        self.times, self.probes = times, probes

    def fit(self, X, U, Y, K):
        import faiss

        self.K, self.U = K, U
        n, d = Y.shape
        # The index uses the quantizer, and does not own it.
        self.quantizer = faiss.IndexFlatL2(d)
        self.index = faiss.IndexIVFFlat(self.quantizer, d, round(self.times * n**0.5))
        # Few points for a list are a warning on standard error otherwise.
        self.index.cp.min_points_per_centroid = 1
        self.index.train(Y)
        self.index.add(Y)
        return self.tuned(self.probes)

    def tuned(self, probes):
        """The index with another number of lists to search."""
        self.index.nprobe = probes
        return self


class Usearch:
    """Exact search of usearch, with no index."""

    name = "usearch exact"
    needs = "usearch"
    exact = True

    def fit(self, X, U, Y, K):
        self.K, self.U, self.Y = K, U, Y
        return self

    def kneighbors(self, Q):
        from usearch.index import MetricKind, search

        u = np.ascontiguousarray(transformed(Q, self.U))
        found = search(self.Y, u, self.K, MetricKind.L2sq, exact=True)
        return np.atleast_2d(found.keys).astype(np.intp)


class ScikitLearn:
    """NearestNeighbors with algorithm="brute"."""

    name = "scikit-learn brute"
    needs = "sklearn"
    exact = True

    def fit(self, X, U, Y, K):
        self.U = U
        self.index = NearestNeighbors(n_neighbors=K, algorithm="brute", n_jobs=-1)
        self.index.fit(Y)
        return self

    def kneighbors(self, Q):
        return self.index.kneighbors(transformed(Q, self.U), return_distance=False)


class ScikitLearnDefault(ScikitLearn):
    """NearestNeighbors as it chooses for itself: a tree or brute force."""

    name = "scikit-learn"

    def fit(self, X, U, Y, K):
        self.U, self.index = U, NearestNeighbors(n_neighbors=K).fit(Y)
        return self


class ByHand:
    """A matrix product, squared norms made beforehand, and argpartition."""

    name = "NumPy by hand"
    needs = "numpy"
    exact = True

    def fit(self, X, U, Y, K):
        self.K, self.U, self.Y = K, U, Y
        self.norms = np.einsum("ij,ij->i", Y, Y)
        self.step = max(1, _TILE_BYTES // (Y.itemsize * len(Y)))
        return self

    def kneighbors(self, Q):
        u = transformed(Q, self.U)
        if len(u) == 1:
            return self._one(u[0])[None]
        tiles = range(0, len(u), self.step)
        return np.concatenate([self._tile(u[at : at + self.step]) for at in tiles])

    def _one(self, u):
        D = self.Y @ u
        D *= -2
        D += self.norms
        best = np.argpartition(D, self.K - 1)[: self.K]
        return best[np.argsort(D[best])]

    def _tile(self, u):
        D = u @ self.Y.T
        D *= -2
        D += self.norms
        best = np.argpartition(D, self.K - 1, axis=1)[:, : self.K]
        order = np.argsort(np.take_along_axis(D, best, axis=1), axis=1)
        return np.take_along_axis(best, order, axis=1)


class Hnsw:
    """hnswlib, approximate."""

    name = "hnswlib"
    needs = "hnswlib"
    exact = False

    def __init__(self, ef=200, ef_construction=200, M=16):
        self.ef, self.ef_construction, self.M = ef, ef_construction, M

    def fit(self, X, U, Y, K):
        import hnswlib

        self.K, self.U = K, U
        self.index = hnswlib.Index(space="l2", dim=Y.shape[1])
        self.index.init_index(
            max_elements=len(Y),
            ef_construction=self.ef_construction,
            M=self.M,
            random_seed=0,
        )
        self.index.set_num_threads(CORES)
        self.index.add_items(Y)
        return self.tuned(self.ef)

    def tuned(self, ef):
        """The index with another length of the list of candidates."""
        self.index.set_ef(max(ef, self.K))
        return self

    def kneighbors(self, Q):
        return self.index.knn_query(transformed(Q, self.U), k=self.K)[0].astype(np.intp)


EXACT = [Faiss, Panorama, Usearch, ScikitLearn, ByHand]


def installed(peers):
    """Those of the peers that can be imported."""
    return [peer for peer in peers if find_spec(peer.needs) is not None]


def missing():
    """Names of the peers that are not installed."""
    everyone = [*EXACT, Hnsw]
    return [peer.name for peer in everyone if find_spec(peer.needs) is None]


def warm_up(contender):
    """Import and compile on small data before anything is timed."""
    X = np.random.default_rng(0).standard_normal((2000, 256), dtype=np.float32)
    contender.fit(X, None, X, 10).kneighbors(X[:20])
    contender.kneighbors(X[:1])
