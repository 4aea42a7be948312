"""Accuracy and memory on real data, against exact kNN under the same metric.

The larger sets are looked for in the folder that SKMAHAL_DATA names, or else in
`shared/data` beside the folder of the repository.
"""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis

import skmahal
from skmahal import SketchedMahalanobisClassifier

skmahal.enable_metric_learn()

from metric_learn import LMNN  # noqa: E402

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
FOLDER = Path(os.environ.get("SKMAHAL_DATA", BESIDE))

LEARNERS = {
    "LMNN": LMNN(n_neighbors=3, max_iter=3),
    "NCA": NeighborhoodComponentsAnalysis(max_iter=3, random_state=0),
}

# Two tenths of a point of accuracy.
GAP = 0.002

any_learner = pytest.mark.parametrize("learner", LEARNERS)


def load(name):
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} is not in {FOLDER}; set SKMAHAL_DATA to its folder")
    return np.load(path, allow_pickle=False)


def learn(learner, X, y):
    return LEARNERS[learner].fit(X, y).components_.astype(X.dtype)


def accuracies(U, X, y, Q, truth):
    """Accuracy at default settings, that of exact kNN, and the classifier."""
    knn = SketchedMahalanobisClassifier(metric_learner=U, random_state=0).fit(X, y)
    exact = KNeighborsClassifier(algorithm="brute").fit(X @ U.T, y)
    return knn.score(Q, truth), exact.score(Q @ U.T, truth), knn


@any_learner
@pytest.mark.filterwarnings("ignore:'force_all_finite' was renamed:FutureWarning")
def test_digits_are_recognised_as_by_exact_knn(learner):
    X, y = load_digits(return_X_y=True)
    X, Q, y, truth = train_test_split(X / 16, y, test_size=1000, random_state=0)
    ours, exact, knn = accuracies(learn(learner, X, y), X, y, Q, truth)
    assert knn.engine_ == "sketched"
    assert exact > 0.95
    assert abs(ours - exact) <= GAP


@any_learner
@pytest.mark.filterwarnings("ignore:'force_all_finite' was renamed:FutureWarning")
def test_mnist_is_recognised_as_by_exact_knn(learner):
    data = load("mnist_10k.npz")
    X, Q = (np.float32(data[name]) / 255 for name in ("X", "X_test"))
    y, Q, truth = data["y"], Q[:1000], data["y_test"][:1000]
    U = learn(learner, X[:600], y[:600])
    assert U.shape == (784, 784)
    ours, exact, knn = accuracies(U, X, y, Q, truth)
    assert knn.engine_ == "sketched"
    assert exact > 0.9
    assert abs(ours - exact) <= GAP


def test_sparse_gene_counts_are_classified_and_never_made_dense():
    data = load("scrna_bmmc_aml_5120.npz")
    X, y = data["X"], data["y"]
    held_out = np.arange(len(X)) % 84 == 0
    points, queries = (sparse.csr_matrix(X[rows]) for rows in (~held_out, held_out))
    exact = KNeighborsClassifier(algorithm="brute").fit(points, y[~held_out])
    knn = SketchedMahalanobisClassifier(random_state=0)
    tracemalloc.start()
    with config_context(working_memory=32):
        knn.fit(points, y[~held_out])
        labels = knn.predict(queries)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert knn.engine_ == "sketched"
    assert sparse.issparse(knn._engine.X)
    assert used < X[~held_out].nbytes
    wrong = labels != exact.predict(queries)
    # The neighbours of a query are exact but for one in a hundred.
    assert wrong.mean() <= 0.01
