"""Both engines against the oracle, on every kind of data, sketch and precision."""

import numpy as np
import pytest
from scipy import sparse

from skmahal import MetricMaintenance
from skmahal._core.exact import ExactMaintenance
from skmahal._core.projections import SKETCHES
from tests.oracle import Oracle, assert_nearest

DELTA = 1e-6
N, D = 300, 24


def exact(U, X):
    return ExactMaintenance(U, X)


def sketched(kind, lead):
    def make(U, X):
        # A Hadamard matrix has no more rows than the space it maps.
        m = min(8, D if U is None else len(U)) if kind == "srht" else 8
        # At delta = 1e-6 a certified answer of a correct build fails once in 10⁶.
        return MetricMaintenance(
            U, X, m=m, L=9, lead=lead, sketch=kind, delta=DELTA, seed=0
        )

    return make


ENGINES = {"exact": exact}
ENGINES |= {f"{kind}-lead{r}": sketched(kind, r) for kind in SKETCHES for r in (0, 3)}
ENGINES["gaussian-auto"] = sketched("gaussian", "auto")


def normal(rng):
    return rng.normal(size=(N, D))


def clustered(rng):
    return np.repeat(rng.normal(size=(10, D)), N // 10, axis=0) + 1e-3 * normal(rng)


def duplicated(rng):
    return np.repeat(rng.normal(size=(N // 3, D)), 3, axis=0)


def far(rng):
    return normal(rng) + 1e4


def heavy_tailed(rng):
    return rng.standard_t(1.5, size=(N, D))


def constant_columns(rng):
    X = normal(rng)
    X[:, ::2] = 3
    return X


def mostly_zero(rng):
    return sparse.random(N, D, density=0.1, format="csr", random_state=0)


DATA = [normal, clustered, duplicated, far, heavy_tailed, constant_columns, mostly_zero]
METRICS = {"euclidean": None, "wide": 40, "narrow": 10, "rank-one": 1}


def make_metric(name, rng):
    k = METRICS[name]
    return None if k is None else rng.normal(size=(k, D))


class Consistency:
    """What holds for any engine on any data."""

    @pytest.fixture(autouse=True)
    def build(self, engine, data, metric, dtype):
        rng = self.rng = np.random.default_rng(7)
        X, U = data(rng).astype(dtype), make_metric(metric, rng)
        U = None if U is None else U.astype(dtype)
        self.engine, self.oracle = ENGINES[engine](U, X), Oracle(U, X)
        self.dtype = dtype
        self.rtol = 1e-9 if dtype == np.float64 else 2e-3
        near = self.oracle.X[:3] + 0.1 * rng.normal(size=(3, D))
        self.Q = np.vstack([self.oracle.X[[0, 5]], near]).astype(dtype)

    @property
    def atol(self):
        """Distances are absolute at the size of the transformed points."""
        centred = (self.oracle.X - self.oracle.X.mean(axis=0)) @ self.oracle.U.T
        return self.rtol * 1e-2 * np.abs(centred).max()

    def test_neighbours_are_the_oracles(self):
        truth = self.oracle.query_all(self.Q)
        for K in (1, 4, self.engine.n):
            found = self.engine.kneighbors(self.Q, K)
            assert_nearest(*found, truth, self.rtol, self.atol)

    def test_neighbours_within_a_radius_are_the_oracles(self):
        truth = self.oracle.query_all(self.Q)
        radius = float(np.median(truth[:, 1:]))
        distances, indices = self.engine.radius_neighbors(self.Q, radius)
        for row, (found, where) in enumerate(zip(distances, indices, strict=True)):
            np.testing.assert_allclose(found, truth[row, where], self.rtol, self.atol)
            surely = truth[row] < radius * (1 - self.rtol) - self.atol
            assert set(np.flatnonzero(surely)) <= set(where)
            assert (found <= radius * (1 + self.rtol)).all()

    def test_exact_distances_are_the_oracles(self):
        truth = self.oracle.query_all(self.Q)
        found = self.engine.exact_all(self.Q)
        np.testing.assert_allclose(found, truth, self.rtol, self.atol)
        i, j = self.rng.integers(N, size=(2, 50))
        found = self.engine.exact_pair(i, j)
        np.testing.assert_allclose(
            found, self.oracle.query_pair(i, j), self.rtol, self.atol
        )

    def test_a_point_of_the_index_is_at_distance_zero(self):
        points = self.oracle.X[:5].astype(self.dtype)
        assert (self.engine.query_all(points)[range(5), range(5)] == 0).all()
        assert (self.engine.kneighbors(points, 1)[0] == 0).all()
        assert (self.engine.query_pair(range(5), range(5)) == 0).all()

    def test_sums_are_the_oracles(self):
        spans = [(0, N), (0, 1), (3, 200), (128, 256), (127, 129), (5, 5)]
        for (i, j), power in [(span, p) for span in spans for p in (1, 2)]:
            truth = self.oracle.sub_sum(self.Q, i, j, power)
            found = self.engine.sub_sum(self.Q, i, j, power)
            atol = (j - i) * self.atol ** (power / 2)
            np.testing.assert_allclose(found, truth, 10 * self.rtol, atol)

    def test_one_query_is_a_batch_of_one(self):
        both = self.engine.query_all(self.Q)
        np.testing.assert_allclose(
            self.engine.query_all(self.Q[3]), both[3], self.rtol, self.atol
        )
        assert np.ndim(self.engine.query_pair(0, 1)) == 0

    def test_answers_follow_updates(self):
        rng, k = self.rng, self.engine.k
        steps = [
            ("update_low_rank", rng.normal(size=(k, 2)), rng.normal(size=(D, 2))),
            ("update_u", rng.normal(size=(1, D)), [k - 1]),
            ("append", rng.normal(size=(150, D))),
            ("set_rows", rng.normal(size=(1, D)), [0]),
            ("update_x", rng.normal(size=(2, D)), [1, 299]),
            ("remove", np.arange(0, 200, 3)),
            ("set_metric", rng.normal(size=(k + 1, D))),
        ]
        for name, *arguments in steps:
            getattr(self.engine, name)(*map(self._cast, arguments))
            getattr(self.oracle, name)(*map(self._cast, arguments))
            truth = self.oracle.query_all(self.Q)
            found = self.engine.kneighbors(self.Q, 3)
            assert_nearest(*found, truth, self.rtol, self.atol)
            self.engine.check()

    def _cast(self, argument):
        array = np.asarray(argument)
        return array if array.dtype.kind == "i" else array.astype(self.dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("metric", ["euclidean", "wide"])
@pytest.mark.parametrize("engine", ["exact", "gaussian-lead0", "gaussian-auto"])
class TestEveryDataSet(Consistency):
    pass


@pytest.mark.parametrize("dtype", [np.float64])
@pytest.mark.parametrize("data", [normal, heavy_tailed])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("engine", ENGINES)
class TestEverySketch(Consistency):
    pass
