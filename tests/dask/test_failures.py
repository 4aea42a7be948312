"""Workers are killed, retired and replaced, and no result is wrong."""

import os
import signal
import threading
import time
from contextlib import contextmanager, nullcontext, suppress

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

from skmahal.dask import SketchedMahalanobisNeighbors, _base
from skmahal.dask._shards import Chunk

from .conftest import wait_for_two
from .oracle import Beside
from .test_operations import chunked, problem, queries, random_change


def a_process(client, rng):
    """The id of the process of a random worker."""
    pids = sorted(client.run(os.getpid, on_error="ignore").values())
    return pids[int(rng.integers(len(pids)))]


def kill(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Killing:
    """A context in which a worker is killed after some time."""

    def __init__(self, client, rng, delay):
        self.timer = threading.Timer(delay, kill, [a_process(client, rng)])

    def __enter__(self):
        self.timer.start()

    def __exit__(self, *error):
        self.timer.join()


def fitted(client, rng, rows=60):
    X, U = problem(rng)
    index = SketchedMahalanobisNeighbors(metric_learner=U, client=client)
    return Beside(index.fit(chunked(X, rows)), X, U)


@pytest.mark.slow
def test_a_worker_is_killed_between_calls(client, rng):
    beside = fitted(client, rng)
    Q = queries(rng, beside.X)
    random_change(rng, beside, 2)
    random_change(rng, beside, 3)
    random_change(rng, beside, 0)
    kill(a_process(client, rng))
    beside.check(Q)
    wait_for_two(client)
    kill(a_process(client, rng))
    random_change(rng, beside, 0)
    random_change(rng, beside, 4)
    beside.check(Q)


@pytest.mark.parametrize("step", [0, 2, 6])
def test_a_worker_is_killed_during_a_change_and_a_query(client, rng, step):
    beside = fitted(client, rng)
    Q = queries(rng, beside.X)
    with Killing(client, rng, 0.02):
        random_change(rng, beside, step)
        beside.check(Q)


def test_edits_that_are_part_of_chunks_survive(client, rng):
    beside = fitted(client, rng, rows=400)
    beside.replace(np.arange(300), rng.normal(size=(300, 6)))
    beside.remove(np.arange(0, 300, 10))
    assert not beside.index._state.shards[0].edits.changes[1:]
    kill(a_process(client, rng))
    beside.check(queries(rng, beside.X))


def test_an_update_that_one_shard_refuses_leaves_the_euclidean_metric(client, rng):
    X = rng.normal(size=(200, 4))
    X[100:] *= 1e120
    index = SketchedMahalanobisNeighbors(client=client).fit(chunked(X, 100))
    before, lazy = index.kneighbors(X[:2]), index.kneighbors(chunked(X[:2]))[1]
    with pytest.raises(ValueError, match=r"overflow|too large"):
        index.update_metric(low_rank=(np.full(4, 1e30), np.ones(4)))
    for _ in range(2):
        for ours, theirs in zip(index.kneighbors(X[:2]), before, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    index.update_metric(low_rank=(np.ones(4), np.ones(4)))
    np.testing.assert_array_equal(client.compute(lazy).result(), before[1])


def fail_to_edit(times):
    """Let the next edits of chunks on this worker fail."""
    edited, left = getattr(Chunk.edited, "edited", Chunk.edited), iter(range(times))

    def failing(self, edits):
        if next(left, None) is not None:
            raise MemoryError
        return edited(self, edits)

    failing.edited = edited
    Chunk.edited = failing if times else edited


@pytest.mark.parametrize("times", [1, 3])
def test_edits_that_do_not_become_part_of_a_chunk_at_once(client, rng, times):
    beside = fitted(client, rng, rows=400)
    client.run(fail_to_edit, times)
    beside.replace(np.arange(300), rng.normal(size=(300, 6)))
    beside.check(queries(rng, beside.X))
    assert len(beside.index._state.shards[0].edits.changes) == (times > 2)
    beside.append(rng.normal(size=(5, 6)))
    beside.replace(np.arange(3), rng.normal(size=(3, 6)))
    beside.check(queries(rng, beside.X))
    client.run(fail_to_edit, 0)


def test_parameters_that_are_set_do_not_matter_for_a_lost_shard(client, rng):
    beside = fitted(client, rng)
    beside.index.set_params(n_candidates="nonsense", m=-1)
    kill(a_process(client, rng))
    kill(a_process(client, rng))
    np.testing.assert_array_equal(
        beside.index.kneighbors(beside.X[:3], 1)[1], [[0], [1], [2]]
    )


def test_a_query_of_an_earlier_state_has_the_metric_of_that(client, rng, monkeypatch):
    """Another thread asks for the present U as soon as the earlier one is sent."""
    beside = fitted(client, rng)
    index, earlier, large_tasks = beside.index, beside.index._state, _base.large_tasks
    random_change(rng, beside, 0)

    @contextmanager
    def interrupted():
        with large_tasks():
            yield
        monkeypatch.undo()
        index._metric_on(client, index._state)

    monkeypatch.setattr(_base, "large_tasks", interrupted)
    U = index._metric_on(client, earlier).result()
    np.testing.assert_array_equal(U, earlier.U)


@pytest.mark.stress
def test_workers_leave_and_come(client, rng):
    beside = fitted(client, rng)
    Q = queries(rng, beside.X)
    random_change(rng, beside, 0)
    client.cluster.scale(1)
    beside.check(Q)
    while len(client.scheduler_info()["workers"]) > 1:
        time.sleep(0.05)
    random_change(rng, beside, 2)
    beside.check(Q)
    client.cluster.scale(2)
    wait_for_two(client)
    random_change(rng, beside, 0)
    beside.check(Q)


def test_two_clients_in_turn(client, rng):
    beside = fitted(client, rng)
    Q = queries(rng, beside.X)
    # A future of which the scheduler knows nothing any more.
    cancelled = client.submit(int, pure=False)
    client.cancel([cancelled])
    with Client(client.cluster, set_as_default=False) as other:
        for used in (other, client, other):
            beside.index.set_params(client=used)
            random_change(rng, beside, 0)
            random_change(rng, beside, 2)
            beside.check(Q)
            assert beside.index.client_ is used
        beside.index.set_params(client=client)
        beside.check(Q)
    beside.check(Q)
    assert cancelled.cancelled()


def test_chunks_without_lineage_are_warned_of(client, rng):
    X = rng.normal(size=(40, 3))
    blocks = [client.scatter(X[:20]), client.scatter(X[20:])]
    blocks = map(dask.delayed(np.asarray), blocks)
    lazy = [da.from_delayed(block, (20, 3), float) for block in blocks]
    index = SketchedMahalanobisNeighbors(client=client)
    with pytest.warns(UserWarning, match="2 chunks have no lineage"):
        index.fit(da.concatenate(lazy))
    kept = client.persist(chunked(X, 20))
    index.fit(kept)


def sent(client):
    """Bytes that the scheduler has sent to workers, and the client to the scheduler."""

    def to_workers(dask_scheduler=None):
        comms = dask_scheduler.stream_comms.values()
        return sum(comm.byte_count for comm in comms)

    time.sleep(0.1)
    return client.run_on_scheduler(to_workers), client.scheduler_comm.byte_count


def test_bytes_of_a_rank_one_update(client, rng):
    """At most 4 (k + d) numbers of 8 bytes and 10 kB a shard, at any time."""
    d, shards = 128, 4
    X = rng.normal(size=(400, d))
    index = SketchedMahalanobisNeighbors(metric_learner=np.eye(d), client=client)
    index.fit(chunked(X, 100))
    limit = shards * (4 * (d + d) * 8 + 10_000)
    for _ in range(3):
        before = sent(client)
        for _ in range(10):
            index.update_metric(low_rank=(rng.normal(size=d), rng.normal(size=d)))
        for used, start in zip(sent(client), before, strict=True):
            assert 10 * shards * 2 * d * 8 < used - start < 10 * limit


def run_with_kills(client, seed, changes=4):
    """Random changes and checks; workers are killed before and during some of them."""
    rng = np.random.default_rng(seed)
    beside = fitted(client, rng)
    for _ in range(changes):
        wait_for_two(client)
        step, how = int(rng.integers(7)), rng.integers(3)
        if how == 0:
            kill(a_process(client, rng))
        with Killing(client, rng, rng.uniform(0, 0.2)) if how == 1 else nullcontext():
            random_change(rng, beside, step)
            beside.check(queries(rng, beside.X))


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(20))
def test_random_changes_while_workers_are_killed(client, seed, count):
    run_with_kills(client, seed)
    count("changes on a cluster that loses workers", 4)


@pytest.mark.stress
def test_workers_with_compiled_loops_are_killed(compiled):
    run_with_kills(compiled, 0)


@pytest.mark.stress
def test_random_changes_while_the_cluster_adapts(client):
    rng = np.random.default_rng(0)
    beside = fitted(client, rng)
    adaptive = client.cluster.adapt(
        minimum=1, maximum=3, interval="200 ms", wait_count=2
    )
    for step in range(20):
        random_change(rng, beside, int(rng.integers(7)))
        beside.check(queries(rng, beside.X))
        time.sleep(0.5 * (step % 3))
    adaptive.stop()
