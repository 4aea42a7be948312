"""Compiled loops: what is said while they are made, and without numba."""

import joblib
import numpy as np
import pytest

from skmahal import SketchedMahalanobisNeighbors
from skmahal._core.kernels import available
from tests.scripts import run_script

MESSAGE = "skmahal: compiling this kind of search, once per installation"
SEARCH = """
from skmahal._core import kernels
kernels._PATIENCE = 0.05
X = np.random.default_rng(0).normal(size=(2000, 8))
for _ in range(2):
    SketchedMahalanobisNeighbors(2).fit(X).kneighbors(X[:2])
"""


@pytest.mark.slow
def test_compilation_is_announced_once_and_loading_is_not(tmp_path):
    """Loading takes longer than the patience here, as it may on a busy machine."""
    pytest.importorskip("numba")
    assert run_script(SEARCH, cache=tmp_path).stderr.count(MESSAGE) == 1
    assert run_script(SEARCH, cache=tmp_path).stderr == ""


@pytest.mark.slow
def test_without_numba_many_points_are_worth_one_warning():
    source = """
    from sklearn.exceptions import EfficiencyWarning
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in (1000, 20_000, 30_000):
            X = np.zeros((n, 2))
            X[:, 0] = np.arange(n)
            index = SketchedMahalanobisNeighbors(2).fit(X)  # here
            classifier = SketchedMahalanobisClassifier(2).fit(X, X[:, 0] > 9)
    print([(one.category is EfficiencyWarning, one.filename) for one in caught])
    print(caught[0].message)
    """
    places, message = run_script(source, numba=False).stdout.splitlines()
    assert places == "[(True, '<string>')]"
    assert "numba is not installed" in message
    assert "pip install 'skmahal[fast]'" in message


@pytest.mark.slow
def test_with_numba_there_is_no_warning():
    pytest.importorskip("numba")
    run_script("SketchedMahalanobisNeighbors(2).fit(np.ones((20_000, 2)))")


@pytest.mark.skipif(not available(), reason="needs numba")
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 4)])
@pytest.mark.parametrize("columns", [32, 96, 800])
def test_products_of_codes_in_whole_numbers(shape, columns):
    """Private names: a wrong sum would only exclude a few neighbours."""
    from numba import njit

    from skmahal._core._multiply import multiplier

    rows, queries = shape
    multiply = multiplier(rows, queries)
    first = njit(lambda codes, whole: multiply(codes, 1, whole, 2))
    rng, most = np.random.default_rng(0), (2**31 - 1) // (128 * columns)
    most = min(most, 32767)
    for low, high in ((-127, 127), (127, 127), (-127, -127)):
        codes = rng.integers(low, high + 1, (rows + 2, columns)).astype(np.int8)
        least = most if low == high else -most
        whole = rng.integers(least, most + 1, (queries + 3, columns))
        expected = codes[1 : rows + 1].astype(int) @ whole[2 : queries + 2].T
        found = np.reshape(first(codes, whole.astype(np.int16)), shape)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="needs numba")
@pytest.mark.parametrize("recall", [None, 0.9])
def test_an_index_saved_with_numba_answers_without_it(recall, tmp_path):
    X = np.random.default_rng(0).normal(size=(6000, 64)).astype(np.float32)
    index = SketchedMahalanobisNeighbors(5, radius=8.0, recall=recall).fit(X)
    index.kneighbors(X[:3])
    path = tmp_path / "index.joblib"
    joblib.dump(index, path)
    run_script(
        f"""
        import joblib
        index = joblib.load({str(path)!r})
        X = np.random.default_rng(0).normal(size=(6000, 64)).astype(np.float32)
        truth = Oracle(None, X).query_all(X[:7])
        for queries in (X[:7], X[:1]):
            distances, _ = index.kneighbors(queries)
            exact = np.sort(truth[: len(queries)], axis=1)[:, :5]
            np.testing.assert_allclose(distances, exact, rtol=1e-5, atol=1e-5)
            _, found = index.radius_neighbors(queries)
            for at, near in enumerate(found):
                assert set(near) == set(np.flatnonzero(truth[at] <= 8.0))
            found = index.distances(queries)
            assert (abs(found - truth[: len(queries)]) <= 0.2 * truth.max()).all()
        index.check()
        """,
        numba=False,
    )
