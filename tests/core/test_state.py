"""Truth, log and derived arrays: when they catch up, and what an interruption costs."""

import contextlib
import pickle

import numpy as np
import pytest
from scipy import sparse

from skmahal import MetricMaintenance
from skmahal._core import images
from skmahal._core import state as state_module
from skmahal._core.exact import ExactMaintenance
from skmahal._core.points import DensePoints
from tests.oracle import Oracle, assert_nearest

STATED_DRIFT = {np.float32: 4e-5, np.float64: 4e-13}


def make(n=200, d=30, k=20, dtype=np.float64, seed=0, **options):
    rng = np.random.default_rng(seed)
    X, U = rng.normal(size=(n, d)).astype(dtype), rng.normal(size=(k, d)).astype(dtype)
    options = {"m": 6, "L": 3, "lead": 2, "seed": 0} | options
    return MetricMaintenance(U, X, **options), Oracle(U, X), rng


def touch_all(index):
    """Build every derived array."""
    index.check()
    for image in index._state.images:
        index._state.current(image)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ten_thousand_updates_leave_sketches_within_the_stated_drift(dtype):
    index, _, rng = make(n=60, d=12, k=10, dtype=dtype, m=4, L=2)
    touch_all(index)
    for step in range(10_000):
        W, V = 0.02 * rng.normal(size=(10, 1)), rng.normal(size=(12, 1))
        # A pull towards zero keeps the metric from wandering off.
        index.update_low_rank(np.hstack([W, -0.01 * index.U @ V]), np.hstack([V, V]))
        if step % 100 == 0:
            index.query_all(rng.normal(size=12))
    assert index.check() <= STATED_DRIFT[dtype]


def assert_as_fresh(index, q, rtol):
    """Neighbours and distances are those of an index that was never updated."""
    fresh = ExactMaintenance(index.U, index.X)
    found, truth = index.exact_all(q), fresh.exact_all(q)
    np.testing.assert_allclose(found, truth, rtol=rtol, atol=rtol * truth.max())
    assert_nearest(*index.kneighbors(q, 4), truth, rtol, rtol * truth.max())
    index.check()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("factor", [1e3, 1e6])
def test_a_metric_that_shrinks_does_not_leave_old_rounding_behind(factor, dtype):
    index, oracle, rng = make(dtype=dtype)
    q = oracle.X[:6].astype(dtype)
    row = rng.normal(size=(1, 30)).astype(dtype)
    for size in (factor, 1):
        index.set_rows((size * row).astype(dtype), [3])
        touch_all(index)
        index.kneighbors(q, 2)
    assert_as_fresh(index, q, 100 * STATED_DRIFT[dtype])


def test_rounding_is_watched_point_by_point():
    """Half the points lose a feature that made them large; the others stay large."""
    index, oracle, _ = make(dtype=np.float32)
    X = oracle.X.astype(np.float32)
    X[::2, 0] = 0
    X[1::2, 0] = 1e5
    X[1::2, 1] = 1e5
    index.update_x(X, range(200))
    touch_all(index)
    before = index.U
    U = before.copy()
    U[:, 0] = U[:, 1] = 0
    index.update_low_rank(U[:, :2] - before[:, :2], np.eye(30, 2))
    assert_as_fresh(index, X[1:12:2], 1e-3)


def test_many_nearly_low_rank_steps_do_not_lose_their_remainders():
    index, oracle, rng = make(n=60, dtype=np.float32)
    touch_all(index)
    for _ in range(1000):
        step = rng.normal(size=(20, 1)) @ rng.normal(size=(1, 30))
        index.set_metric(index.U * (1 - 1e-6) + 1e-2 * step)
    assert_as_fresh(index, oracle.X[:5].astype(np.float32), 1e-3)


def test_an_update_that_overflows_is_refused_and_changes_nothing():
    index, oracle, _ = make()
    touch_all(index)
    q, before = oracle.X[:3], index.exact_all(oracle.X[:3])
    for size in (1e80, 1e200):
        with pytest.raises(ValueError, match=r"too large|overflow"):
            index.update_low_rank(np.full((20, 1), size), np.full((30, 1), size))
    np.testing.assert_array_equal(index.exact_all(q), before)
    index.check()


def test_points_that_overflow_are_refused():
    X = np.full((20, 30), 1e200)
    with pytest.raises(ValueError, match="X is too large"):
        ExactMaintenance(None, X)
    index, oracle, _ = make()
    touch_all(index)
    for write in (index.append, lambda z: index.update_x(z, [3])):
        with pytest.raises(ValueError, match="X is too large"):
            write(X[:1])
    index.check()
    assert agrees(index, oracle, oracle.X[:3])


def test_a_first_batch_near_zero_does_not_fix_the_origin():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 30)).astype(np.float32)
    far = (X + 1e5).astype(np.float32)
    index = ExactMaintenance(rng.normal(size=(20, 30)).astype(np.float32), X[:10])
    index.append(far)
    index.remove(np.arange(10))
    truth = Oracle(index.U, far).query_all(far[:5])
    assert_nearest(*index.kneighbors(far[:5], 4), truth, 1e-3, 1e-3 * truth.max())


def test_wide_points_cost_no_log_before_the_first_update():
    X = sparse.random(20, 1 << 20, density=1e-5, format="csr", random_state=0)
    index = ExactMaintenance(None, X)
    assert index.kneighbors(X[:1].toarray(), 1)[1][0, 0] == 0
    assert len(pickle.dumps(index)) < 1e6


class Counted:
    """Points that count how often all of them are multiplied by a matrix."""

    def __init__(self, points):
        self.points, self.passes = points, 0

    def __getattr__(self, name):
        return getattr(self.points, name)

    def dot(self, V, jobs=1):
        self.passes += 1
        return self.points.dot(V)

    def blocks(self):
        self.passes += 1
        return self.points.blocks()


def test_an_update_reads_the_points_once_and_catching_up_not_at_all():
    index, oracle, rng = make(lead=0)
    touch_all(index)
    counted = index._state.points = Counted(index._state.points)
    for passes in (1, 2, 3):
        index.update_low_rank(rng.normal(size=(20, 2)), rng.normal(size=(30, 2)))
        assert counted.passes == passes
    index.query_all(oracle.X[:5])
    index.kneighbors(oracle.X[:5], 3)
    index.sub_sum(oracle.X[:5], 0, 100)
    assert counted.passes == 3


def test_only_the_sketches_that_are_sampled_catch_up():
    index, oracle, rng = make(L=20, R=1, lead=0)
    touch_all(index)
    index.update_low_rank(rng.normal(size=20), rng.normal(size=30))
    index.query_all(oracle.X[0])
    now = index._state.log.now
    assert sum(front.tick == now for front in index._fronts) == 1


def test_exact_distances_of_candidates_do_not_wait_for_all_rows():
    index, oracle, rng = make()
    touch_all(index)
    W, V = rng.normal(size=(20, 1)), rng.normal(size=(30, 1))
    index.update_low_rank(W, V)
    oracle.update_low_rank(W, V)
    np.testing.assert_allclose(
        index._state.take(np.array([3, 8])), oracle.X[[3, 8]] @ oracle.U.T
    )
    assert index._state.rows.tick < index._state.log.now


def test_points_added_between_updates_are_not_updated_twice():
    index, oracle, rng = make()
    touch_all(index)
    for _ in range(3):
        W, V = rng.normal(size=(20, 1)), rng.normal(size=(30, 1))
        z = rng.normal(size=(7, 30))
        for target in (index, oracle):
            target.update_low_rank(W, V)
            target.append(z)
            target.update_x(z[:2] + 1, [0, 50])
            target.remove([2, 60])
    index.check()
    np.testing.assert_allclose(index.exact_all(z), oracle.query_all(z), atol=1e-9)


def test_a_long_log_is_folded_and_its_memory_bounded():
    index, _, rng = make()
    touch_all(index)
    for _ in range(100):
        index.update_low_rank(rng.normal(size=20), rng.normal(size=30))
        assert index._state.log.used <= 16
    index.update_low_rank(rng.normal(size=(20, 18)), rng.normal(size=(30, 18)))
    index.update_low_rank(rng.normal(size=20), rng.normal(size=30))
    assert index._state.log.used == 1
    index.check()


def test_the_euclidean_metric_holds_no_copy_of_the_points():
    X = np.random.default_rng(0).normal(size=(100, 40))
    index = ExactMaintenance(None, X)
    index.kneighbors(X[:3], 2)
    assert index._state.rows.tick is None
    assert index._state.metric.is_identity


WRITES = {
    "update_low_rank": lambda rng: (rng.normal(size=(20, 2)), rng.normal(size=(30, 2))),
    "update_u": lambda rng: (rng.normal(size=(2, 30)), [0, 4]),
    "set_metric": lambda rng: (rng.normal(size=(20, 30)),),
    "append": lambda rng: (rng.normal(size=(30, 30)),),
    "update_x": lambda rng: (rng.normal(size=(3, 30)), [1, 5, 190]),
    "remove": lambda rng: ([0, 7, 199],),
}
STEPS = [
    (state_module, "add_product"),
    (state_module, "row_squares"),
    (images, "add_product"),
    (images, "row_squares"),
    (state_module, "grown"),
    (images.Rows, "append"),
    (images.Columns, "append"),
    (images.Rows, "assign"),
    (images.Columns, "assign"),
    (images.Rows, "keep"),
    (images.Columns, "keep"),
    (images.Rows, "move"),
    (images.Columns, "move"),
    (state_module.Log, "write"),
    (state_module.Log, "publish"),
    (state_module.Log, "append"),
    (state_module.Log, "kept"),
    (state_module.DistanceTree, "append"),
    (state_module.DistanceTree, "assign"),
    (state_module.DistanceTree, "remove"),
    (state_module.DistanceTree, "move"),
    (state_module.DistanceTree, "_sum_children"),
    (DensePoints, "append"),
    (DensePoints, "assign"),
    (DensePoints, "kept"),
]


@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize(("owner", "step"), STEPS, ids=lambda step: str(step)[-20:])
@pytest.mark.parametrize("operation", WRITES)
def test_an_interrupted_change_leaves_the_index_as_before_or_as_after(
    operation, owner, step, call, monkeypatch
):
    index, before, rng = make()
    touch_all(index)
    index.update_low_rank(rng.normal(size=20), rng.normal(size=30))
    before.set_metric(index.U)
    after = Oracle(before.U, before.X)
    arguments = WRITES[operation](rng)
    getattr(after, operation)(*arguments)
    original, calls = getattr(owner, step), iter(range(1000))

    def interrupted(*args, **kwargs):
        if next(calls) == call:
            raise MemoryError
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, step, interrupted)
    with contextlib.suppress(MemoryError):
        getattr(index, operation)(*arguments)
    monkeypatch.undo()
    index.check()
    q = before.X[:4]
    answers = [o for o in (before, after) if agrees(index, o, q)]
    assert answers, "neither as before nor as after"
    for name in ("append", "update_low_rank", "remove", "update_x"):
        arguments = WRITES[name](rng)
        getattr(index, name)(*arguments)
        getattr(answers[0], name)(*arguments)
    index.check()
    assert agrees(index, answers[0], q), "later changes went wrong"


def agrees(index, oracle, q):
    found, truth = index.exact_all(q), oracle.query_all(q)
    return found.shape == truth.shape and np.allclose(found, truth)
