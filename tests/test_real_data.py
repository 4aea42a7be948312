"""Exact neighbours, accuracy and memory on real data.

The larger sets are looked for in the folder that SKMAHAL_DATA names, or else in
`skmahal` in the data home of scikit-learn.
"""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.covariance import LedoitWolf
from sklearn.datasets import get_data_home, load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis

import skmahal
from skmahal import SketchedMahalanobisClassifier, SketchedMahalanobisNeighbors

from .oracle import assert_nearest

FOLDER = Path(os.environ.get("SKMAHAL_DATA") or Path(get_data_home()) / "skmahal")


def load(name):
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} is not in {FOLDER}; set SKMAHAL_DATA to its folder")
    return np.load(path, allow_pickle=False)


def mnist():
    data = load("mnist_10k.npz")
    return data["X"] / np.float32(255), data["X_test"][:20] / np.float32(255)


def words():
    X = load("glove_100k.npz")["X"].astype(np.float32)
    return X[20:], X[:20]


def gene_expression():
    X = load("tcga_luad_coadread_800x5120.npz")["X"]
    return X[20:], X[:20]


def single_cells():
    X = load("scrna_bmmc_aml_5120.npz")["X"][:3000]
    return X[20:], X[:20]


def euclidean(X):
    return None


def shrunk_covariance(X):
    return {"VI": LedoitWolf().fit(X[:5000]).get_precision()}


def projection(X):
    """A metric of 64 rows."""
    return {"U": TruncatedSVD(64, random_state=0).fit(X[:1000]).components_}


def distances_between(Q, X):
    """Euclidean distances in float64; by products, as rows are long."""
    Q, X = Q.astype(float), X.astype(float)
    squares = (X**2).sum(axis=1) - 2 * Q @ X.T + (Q**2).sum(axis=1)[:, np.newaxis]
    return np.sqrt(np.maximum(squares, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "metric"),
    [
        (mnist, euclidean),
        (mnist, shrunk_covariance),
        (words, euclidean),
        (words, shrunk_covariance),
        (gene_expression, euclidean),
        (gene_expression, projection),
        (single_cells, euclidean),
        (single_cells, projection),
    ],
)
def test_neighbours_are_those_of_brute_force(data, metric):
    X, Q = data()
    metric = metric(X)
    index = SketchedMahalanobisNeighbors(10, metric_learner=metric).fit(X)
    U = None if metric is None else index.components_
    Y, Z = (X, Q) if U is None else (X @ U.T, Q @ U.T)
    exact = distances_between(Z, Y)
    assert_nearest(*index.kneighbors(Q), exact, rtol=1e-6, atol=0)


LEARNERS = ["LMNN", "NCA"]


def learned(name, X, y):
    """Components of a metric that was learned in few steps."""
    if name == "NCA":
        learner = NeighborhoodComponentsAnalysis(max_iter=3, random_state=0)
    else:
        pytest.importorskip("metric_learn")
        skmahal.enable_metric_learn()
        from metric_learn import LMNN

        learner = LMNN(n_neighbors=3, max_iter=3)
    # The components are near the identity, and so nearly symmetric.
    return {"U": learner.fit(X, y).components_.astype(X.dtype)}


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.filterwarnings("ignore:'force_all_finite' was renamed:FutureWarning")
def test_digits_are_recognised_as_by_exact_knn(learner):
    X, y = load_digits(return_X_y=True)
    X, Q, y, expected = train_test_split(X / 16, y, test_size=1000, random_state=0)
    metric = learned(learner, X, y)
    knn = SketchedMahalanobisClassifier(metric_learner=metric).fit(X, y)
    exact = KNeighborsClassifier(algorithm="brute").fit(X @ metric["U"].T, y)
    assert exact.score(Q @ metric["U"].T, expected) > 0.95
    # Votes that tie by distance may go to either class.
    differ = knn.predict(Q) != exact.predict(Q @ metric["U"].T)
    assert differ.mean() <= 0.002


@pytest.mark.slow
def test_sparse_gene_counts_are_classified_and_never_made_dense():
    data = load("scrna_bmmc_aml_5120.npz")
    X, y = data["X"], data["y"]
    held_out = np.arange(len(X)) % 84 == 0
    points, queries = (sparse.csr_matrix(X[rows]) for rows in (~held_out, held_out))
    knn = SketchedMahalanobisClassifier()
    tracemalloc.start()
    with config_context(working_memory=32):
        labels = knn.fit(points, y[~held_out]).predict(queries)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < X[~held_out].nbytes
    exact = distances_between(X[held_out][:20], X[~held_out])
    assert_nearest(*knn.kneighbors(queries[:20]), exact, rtol=1e-6, atol=0)
    brute = KNeighborsClassifier(algorithm="brute").fit(points, y[~held_out])
    np.testing.assert_array_equal(labels, brute.predict(queries))
