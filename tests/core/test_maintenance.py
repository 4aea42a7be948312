"""The paper's operations against the oracle, on every kind of data and sketch."""

import copy
import pickle
import threading
import time

import numpy as np
import pytest
from scipy import sparse

from skmahal import MetricMaintenance
from skmahal._core.bounds import SKETCHES
from tests.oracle import Oracle, assert_nearest

# At this delta a certified search of a correct build is wrong once in 10⁶ queries.
DELTA = 1e-6
N, D = 300, 24


def make(U, X, kind="gaussian", lead=0, **options):
    # A Hadamard matrix has no more rows than the space it maps.
    m = min(8, D if U is None else len(U)) if kind == "srht" else 8
    options = {"m": m, "L": 9, "delta": DELTA, "seed": 0} | options
    return MetricMaintenance(U, X, lead=lead, sketch=kind, **options)


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
LEADS = (0, 3, "auto")


class Consistency:
    """What holds for any data, metric and sketch."""

    @pytest.fixture(autouse=True)
    def build(self, kind, lead, data, metric, dtype):
        rng = self.rng = np.random.default_rng(7)
        X, k = data(rng).astype(dtype), METRICS[metric]
        U = None if k is None else rng.normal(size=(k, D))
        self.index, self.oracle = make(U, X, kind, lead), Oracle(U, X)
        self.dtype = dtype
        self.rtol = 1e-9 if dtype == np.float64 else 2e-3
        near = self.oracle.X[:3] + 0.1 * rng.normal(size=(3, D))
        self.Q = np.vstack([self.oracle.X[[0, 5]], near]).astype(dtype)

    @property
    def atol(self):
        """Distances are absolute at the size of the transformed points."""
        centred = (self.oracle.X - self.oracle.X.mean(axis=0)) @ self.oracle.U.T
        return self.rtol * 1e-2 * np.abs(centred).max()

    @pytest.mark.parametrize("candidates", ["exact", "certified"])
    def test_neighbours_are_the_oracles(self, candidates):
        exact = self.oracle.query_all(self.Q)
        for K in (1, 4, self.index.n):
            found = self.index.kneighbors(self.Q, K, candidates)
            assert found[0].dtype == self.dtype
            assert_nearest(*found, exact, self.rtol, self.atol)

    def test_a_budget_evaluates_exactly(self):
        exact = self.oracle.query_all(self.Q)
        distances, indices = self.index.kneighbors(self.Q, 3, 60)
        named = np.take_along_axis(exact, indices, axis=1)
        np.testing.assert_allclose(distances, named, self.rtol, self.atol)
        assert (np.diff(distances, axis=1) >= 0).all()
        found = self.index.kneighbors(self.Q, 3, self.index.n)
        assert_nearest(*found, exact, self.rtol, self.atol)

    def test_neighbours_within_a_radius_are_the_oracles(self):
        exact = self.oracle.query_all(self.Q)
        radius = float(np.median(exact[:, 1:]))
        distances, indices = self.index.radius_neighbors(self.Q, radius)
        for row, (found, where) in enumerate(zip(distances, indices, strict=True)):
            np.testing.assert_allclose(found, exact[row, where], self.rtol, self.atol)
            surely = exact[row] < radius * (1 - self.rtol) - self.atol
            assert set(np.flatnonzero(surely)) <= set(where)
            assert (found <= radius * (1 + self.rtol)).all()

    def test_exact_distances_are_the_oracles(self):
        exact = self.oracle.query_all(self.Q)
        found = self.index.exact_all(self.Q)
        np.testing.assert_allclose(found, exact, self.rtol, self.atol)
        i, j = self.rng.integers(N, size=(2, 50))
        exact = self.oracle.query_pair(i, j)
        found = self.index.exact_pair(i, j)
        np.testing.assert_allclose(found, exact, self.rtol, self.atol)

    def test_a_point_of_the_index_is_at_distance_zero(self):
        points = self.oracle.X[:5].astype(self.dtype)
        assert (self.index.query_all(points)[range(5), range(5)] == 0).all()
        for candidates in ("exact", "certified", 50):
            assert (self.index.kneighbors(points, 1, candidates)[0] == 0).all()
        assert (self.index.query_pair(range(5), range(5)) == 0).all()

    def test_sums_are_the_oracles(self):
        spans = [(0, N), (0, 1), (3, 200), (128, 256), (127, 129), (5, 5)]
        for (i, j), power in [(span, p) for span in spans for p in (1, 2)]:
            exact = self.oracle.sub_sum(self.Q, i, j, power)
            found = self.index.sub_sum(self.Q, i, j, power)
            atol = (j - i) * self.atol ** (power / 2)
            np.testing.assert_allclose(found, exact, 10 * self.rtol, atol)

    def test_one_query_is_a_batch_of_one(self):
        both = self.index.query_all(self.Q)
        one = self.index.query_all(self.Q[3])
        np.testing.assert_allclose(one, both[3], 10 * self.rtol, self.atol)
        assert np.ndim(self.index.query_pair(0, 1)) == 0
        assert self.index.query_pair([[0, 1]], [[2], [3]]).shape == (2, 2)

    def test_results_follow_updates(self):
        rng, k = self.rng, self.index.k
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
            getattr(self.index, name)(*map(self._cast, arguments))
            getattr(self.oracle, name)(*map(self._cast, arguments))
            exact = self.oracle.query_all(self.Q)
            for candidates in ("exact", "certified"):
                found = self.index.kneighbors(self.Q, 3, candidates)
                assert_nearest(*found, exact, self.rtol, self.atol)
            self.index.query_pair(0, 1)
            self.index.check()

    def _cast(self, argument):
        array = np.asarray(argument)
        return array if array.dtype.kind == "i" else array.astype(self.dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("metric", ["euclidean", "wide"])
@pytest.mark.parametrize(("kind", "lead"), [("gaussian", 0), ("gaussian", "auto")])
class TestEveryDataSet(Consistency):
    pass


@pytest.mark.parametrize("dtype", [np.float64])
@pytest.mark.parametrize("data", [heavy_tailed])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", SKETCHES)
@pytest.mark.parametrize("lead", LEADS)
class TestEverySketch(Consistency):
    pass


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def decaying(rng, n=400, k=100):
    basis, _ = np.linalg.qr(rng.normal(size=(k, k)))
    return rng.normal(size=(n, k)) * 0.9 ** np.arange(k) @ basis.T


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_estimates_follow_every_kind_of_update(dtype, is_sparse, rng):
    """A failure of correct sketches, at this m and R, has probability below 10⁻⁹."""
    X, U = rng.normal(size=(200, 30)).astype(dtype), rng.normal(size=(60, 30))
    given = sparse.csr_matrix(X) if is_sparse else X
    index = make(U, given, m=100, R=9, lead=5)
    oracle = Oracle(U, X)
    steps = [
        ("update_low_rank", rng.normal(size=(60, 3)), rng.normal(size=(30, 3))),
        ("update_u", rng.normal(size=(2, 30)), [3, 7]),
        ("set_rows", rng.normal(size=(2, 30)), [5, 1]),
        ("append", rng.normal(size=(40, 30)).astype(dtype)),
        ("update_x", rng.normal(size=(3, 30)).astype(dtype), [0, 9, 239]),
        ("remove", np.arange(10, 60)),
        ("set_metric", rng.normal(size=(60, 30))),
        ("set_metric", rng.normal(size=(80, 30))),
        ("append", rng.normal(size=(40, 30)).astype(dtype)),
    ]
    Q = rng.normal(size=(4, 30)).astype(dtype)
    i, j = rng.integers(180, size=(2, 30))
    for name, *arguments in steps:
        before = index.query_all(Q)
        getattr(index, name)(*arguments)
        getattr(oracle, name)(*arguments)
        found, exact = index.query_all(Q), oracle.query_all(Q)
        assert np.abs(found / exact - 1).max() < 0.4
        assert before.shape != found.shape or (before != found).any()
        ratios = index.query_pair(i, j) / np.where(i == j, 1, oracle.query_pair(i, j))
        assert np.abs(ratios[i != j] - 1).max() < 0.4
        index.check()


@pytest.mark.parametrize(("dtype", "size"), [(np.float32, 1e6), (np.float64, 1e12)])
def test_a_column_scaled_up_and_back_leaves_no_rounding_errors(dtype, size, rng):
    X = normal(rng).astype(dtype)
    index, fresh = (make(np.eye(D), X, R=9) for _ in range(2))
    Q = rng.normal(size=(3, D)).astype(dtype)
    index.exact_all(Q)
    index.query_all(Q)
    V = np.eye(D)[:, [3]]
    for step in ((size - 1) * V, (1 - size) * V):
        index.update_low_rank(step, V)
        index.query_all(Q)
    # All sketches are used, so that the version does not matter.
    rtol = 1e-3 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(index.query_all(Q), fresh.query_all(Q), rtol)
    index.check()


def test_sparse_queries_are_those_of_their_dense_form(rng):
    X = sparse.random(100, 40, density=0.2, format="csr", random_state=0)
    index = make(None, X)
    Q = X[:6]
    for name, *more in [("query_all",), ("exact_all",), ("kneighbors", 3, "certified")]:
        method = getattr(index, name)
        for a, b in zip(method(Q, *more), method(Q.toarray(), *more), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-9)


def test_a_query_has_the_same_estimates_in_any_batch_and_order(rng):
    index = make(None, normal(rng), m=4, R=3, L=20)
    Q = rng.normal(size=(300, D))
    together = index.query_all(Q)
    np.testing.assert_allclose(index.query_all(Q[::-1])[::-1], together, rtol=1e-9)
    np.testing.assert_allclose(index.query_all(Q[17]), together[17], rtol=1e-9)


def test_small_working_memory_changes_no_result(rng):
    index = make(None, normal(rng), lead=2)
    Q = rng.normal(size=(40, D))
    before = index.query_all(Q), index.kneighbors(Q, 3, "certified")
    index.index.working_bytes = 1
    np.testing.assert_allclose(index.query_all(Q), before[0], rtol=1e-9)
    np.testing.assert_array_equal(index.kneighbors(Q, 3, "certified")[1], before[1][1])


def test_rows_grow_with_the_points_where_m_is_auto(rng):
    index = MetricMaintenance(None, rng.normal(size=(5, 30)), seed=0)
    q = rng.normal(size=30)
    index.query_all(q)
    m = index.m
    index.append(rng.normal(size=(3, 30)))
    assert index.m == m
    index.append(rng.normal(size=(5000, 30)))
    assert index.m > m
    assert index.query_all(q).shape == (5008,)
    fixed = MetricMaintenance(None, rng.normal(size=(5, 30)), m=m, seed=0)
    fixed.append(rng.normal(size=(5000, 30)))
    assert fixed.m == m


def test_refreshed_sketches_are_new_and_seeded_ones_repeat(rng):
    X, q = normal(rng), rng.normal(size=D)
    seeded = [make(None, X, seed=3) for _ in range(2)]
    free = [pickle.loads(pickle.dumps(make(None, X, seed=None))) for _ in range(2)]
    twice = pickle.loads(pickle.dumps(free[0]))
    for index in (*seeded, *free, twice):
        before = index.query_all(q)
        index.refresh_sketches()
        assert (index.query_all(q) != before).mean() > 0.99
    np.testing.assert_array_equal(seeded[0].query_all(q), seeded[1].query_all(q))
    # Without a seed, an old pickle does not show what comes after a refresh.
    assert (free[0].query_all(q) != twice.query_all(q)).mean() > 0.99


def test_auto_lead_keeps_directions_that_pay(rng):
    few = MetricMaintenance(None, decaying(rng), m=8, R=1, lead="auto", seed=0)
    assert 5 <= few.lead <= (100 - 8) // 2
    none = MetricMaintenance(
        None, rng.normal(size=(2000, 200)), m=8, R=1, lead="auto", seed=0
    )
    assert none.lead == 0
    # Where nine sketches have fewer rows than k, they still do with the directions.
    many = MetricMaintenance(None, decaying(rng), m=8, R=9, lead="auto", seed=0)
    assert 0 < many.lead < 100 - 9 * 8


def test_leading_directions_make_estimates_of_decaying_data_better(rng):
    X = decaying(rng)
    exact = Oracle(None, X).query_all(X[:20] + 0.1)
    errors = []
    for lead in (0, 10, "auto"):
        index = MetricMaintenance(None, X, m=16, R=1, lead=lead, seed=0)
        errors.append(np.abs(index.query_all(X[:20] + 0.1) / exact - 1).mean())
    assert errors[1] < 0.8 * errors[0]
    assert errors[2] < 0.8 * errors[0]


def test_all_directions_make_estimates_exact(rng):
    X = normal(rng)
    index = MetricMaintenance(None, X, m=2, R=1, lead=D + 5, seed=0)
    assert index.lead == D
    Q = rng.normal(size=(3, D))
    np.testing.assert_allclose(index.query_all(Q), index.exact_all(Q), rtol=1e-6)


@pytest.mark.parametrize("use", ["nothing", "sketches", "updates"])
@pytest.mark.parametrize("lead", [0, 4])
def test_a_restored_object_gives_the_same_results(use, lead, rng):
    X, U = normal(rng), rng.normal(size=(30, D))
    index = make(U, X, lead=lead, records=np.arange(N))
    Q = rng.normal(size=(5, D))
    if use != "nothing":
        index.query_all(Q)
    if use == "updates":
        index.update_low_rank(rng.normal(size=30), rng.normal(size=D))
        index.remove([3, 4])
        index.refresh_sketches()
    copies = [
        pickle.loads(pickle.dumps(index)),
        copy.deepcopy(index),
        copy.copy(index),
        MetricMaintenance.restored(index.saved()),
    ]
    for other in copies:
        assert repr(other) == repr(index)
        assert (other.version, other.R, other.lead) == (
            index.version,
            index.R,
            index.lead,
        )
        np.testing.assert_allclose(other.query_all(Q), index.query_all(Q), rtol=1e-9)
        np.testing.assert_array_equal(other.records, index.records)
        other.check()
    copies[0].update_x(X[0] + 1, 0)
    copies[2].update_x(X[0] + 2, 0)
    np.testing.assert_array_equal(index.X[0], X[0])


def test_a_damaged_pickle_is_refused(rng):
    state = make(None, normal(rng)).__getstate__()
    for name, value in [("key", b"short"), ("m", 0), ("parameters", {})]:
        with pytest.raises(ValueError, match="MetricMaintenance is damaged"):
            MetricMaintenance.__new__(MetricMaintenance).__setstate__(
                {**state, name: value}
            )


@pytest.fixture
def memory_of(monkeypatch):
    """A function that makes the machine have so many bytes of memory."""

    def patch(size):
        pages = size // 4096
        monkeypatch.setattr(
            "os.sysconf", lambda name: pages if "PHYS" in name else 4096
        )

    return patch


@pytest.mark.parametrize("L", [10**6, 10**12])
def test_more_sketches_than_fit_the_memory_are_refused_at_once(L, rng, memory_of):
    memory_of(16 * 2**30)
    X = rng.normal(size=(1000, 784))
    with pytest.raises(MemoryError, match=rf"^L={L} .* GB for 1000 points, .* 17.2 GB"):
        MetricMaintenance(None, X, L=L)


def test_a_default_L_that_does_not_fit_is_refused_when_sketches_are_needed(
    rng, memory_of
):
    """Exact queries need no sketches."""
    index = MetricMaintenance(None, rng.normal(size=(100, 30)), m=8, seed=0)
    memory_of(4096)
    index.kneighbors(np.zeros(30), 3)
    with pytest.raises(MemoryError, match=r"^L=10 sketches"):
        index.query_all(np.zeros(30))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": 0.0}, "eps must be a number between 0 and 1, got 0.0"),
        ({"delta": 1}, "delta must be a number between 0 and 1, got 1"),
        ({"m": 0}, "m must be an integer of at least 1, got 0"),
        ({"m": "many"}, "m must be an integer of at least 1, got 'many'"),
        ({"L": 2.5}, "L must be an integer of at least 1, got 2.5"),
        ({"R": 10, "L": 9}, "R must be an integer from 1 to 9, got 10"),
        ({"lead": -1}, "lead must be an integer of at least 0, got -1"),
        ({"sketch": "fourier"}, "sketch must be 'gaussian' or .* got 'fourier'"),
        ({"seed": -1}, "seed must be None or made of integers of at least 0"),
        ({"n_neighbors": 0}, "n_neighbors must be an integer of at least 1, got 0"),
    ],
)
def test_bad_parameters_are_refused_by_name(options, message, rng):
    with pytest.raises(ValueError, match=f"^{message}"):
        make(None, normal(rng), **options) if "sketch" not in options else (
            MetricMaintenance(None, normal(rng), **options)
        )


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("update_u", (np.ones(3), 0), ValueError, "u has 3 columns, expected 24"),
        ("update_u", (np.ones(D), 24), IndexError, "a: index 24 is out of range"),
        ("update_u", (np.ones((2, D)), [1, 1]), ValueError, "a: index 1 is repeated"),
        ("set_rows", (np.full(D, np.nan), 0), ValueError, "u contains NaN"),
        ("update_low_rank", (np.ones(3), np.ones(D)), ValueError, "W has 3 rows"),
        ("update_low_rank", (np.ones(D), np.ones((D, 2))), ValueError, "W has 1 col"),
        ("set_metric", (np.ones((2, 3)),), ValueError, "U has 3 columns, expected 24"),
        ("update_x", (np.ones((2, D)), [0]), ValueError, "z has 2 rows, expected 1"),
        ("append", (np.full(D, np.inf),), ValueError, "X contains NaN or infinity"),
        ("remove", (range(N),), ValueError, "indices would remove every one"),
        ("remove", ([0.5],), ValueError, "indices must be integers"),
        ("query_pair", ([0, 1], [1, 2, 3]), ValueError, "i and j have shapes"),
        ("query_pair", (0, N), IndexError, "j: index 300 is out of range"),
        ("query_all", (np.ones(3),), ValueError, "q has 3 columns, expected 24"),
        ("query_all", ([["a"]],), ValueError, "q must be an array of numbers"),
        ("sub_sum", (np.ones(D), 5, 3), ValueError, "j must be an integer from 5"),
        ("sub_sum", (np.ones(D), 0, 3, 3), ValueError, "power must be 1 or 2, got 3"),
        ("sample_exact", (np.ones(D), 0), ValueError, "size must be an integer"),
        ("kneighbors", (np.ones(D), 0), ValueError, "K must be an integer from 1"),
        ("kneighbors", (np.ones(D), 5, 4), ValueError, "candidates must be an int"),
        ("kneighbors", (np.ones(D), 5, "all"), ValueError, "candidates must be 'ex"),
        ("radius_neighbors", (np.ones(D), -1), ValueError, "radius must be a number"),
    ],
)
def test_bad_arguments_are_refused_by_name(name, arguments, error, message, rng):
    index = make(None, normal(rng))
    before, version = index.query_all(np.ones(D)), index.version
    with pytest.raises(error, match=f"^{message}"):
        getattr(index, name)(*arguments)
    assert index.version == version
    np.testing.assert_array_equal(index.query_all(np.ones(D)), before)


@pytest.mark.parametrize("size", [1e17, 1e30])
def test_queries_far_away_neither_warn_nor_fail(size, rng):
    """Also where squares overflow the type of the points."""
    X = normal(rng).astype(np.float32)
    index, q = make(None, X, lead=3), np.full((1, D), size, dtype=np.float32)
    exact = np.linalg.norm(q.astype(float) - X, axis=1)
    np.testing.assert_allclose(index.query_all(q)[0], exact, rtol=0.9)
    for candidates in ("certified", 20):
        distances, _ = index.kneighbors(q, 2, candidates)
        np.testing.assert_allclose(distances[0], exact[:2], rtol=1e-5)


def test_readers_see_one_version_while_sketches_are_replaced(rng):
    """Sketches are drawn by many readers, and dropped by a writer, at the same time."""
    index = MetricMaintenance(None, rng.normal(size=(50, 20)), lead=2, seed=0)
    Q, failures, done = rng.normal(size=(3, 20)), [], threading.Event()

    def read():
        try:
            while not done.is_set():
                index.query_all(Q)
                index.query_pair([0, 1], [2, 3])
                index.kneighbors(Q, 2, "certified")
                _ = index.lead
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for step in range(8):
            index.set_metric(rng.normal(size=(15 + step % 3, 20)))
            index.refresh_sketches()
            index.append(rng.normal(size=(20, 20)))
            index.update_u(np.ones(20), 3)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failures
    index.check()


def test_reading_m_does_not_undo_what_another_thread_adds(monkeypatch):
    """Sketches that no longer fit are dropped by a reader while points are added."""
    rng = np.random.default_rng(0)
    held = MetricMaintenance(None, rng.normal(size=(100, 8)), seed=0)
    held.append(rng.normal(size=(20_000, 8)))
    take, reader, waiting = held.index.set_state, [], threading.Event()

    def slow(state):
        if threading.get_ident() in reader:
            waiting.set()
            # The writer commits now, if it does not wait for this thread.
            time.sleep(0.3)
        take(state)

    def read():
        reader.append(threading.get_ident())
        return held.m

    monkeypatch.setattr(held.index, "set_state", slow)
    thread = threading.Thread(target=read)
    thread.start()
    assert waiting.wait(60)
    held.append(rng.normal(size=(5, 8)))
    thread.join()
    assert held.n == 20_105
    assert held.version == 2
