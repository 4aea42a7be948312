"""The index on Dask: overhead of one shard, more shards, and a model of both.

The model of an operation on S shards of n points in all, on W workers with c threads
for a shard:

- a worker has ``r = ⌈S / W⌉`` shards, one after the other;
- a rank-one update sends ``8 (k + d) + h`` bytes to each shard, which reads its points
  once: ``t(S) + r (a n / S + b) / c`` seconds;
- q queries send ``q d · itemsize + h`` bytes to each shard, and ``q K (itemsize + 8)``
  come back: ``2 t(S) + bytes / B + r q (a n / S + b) / c`` seconds. The second call
  fetches points whose distances are too close to be ordered: of many queries, some
  have such points.

The constants a and b of either operation are measured on local indexes of n / 8 and n /
2 points in the worker processes, while all of them are at work: they share memory and
cores. The time t of a call that does nothing on S shards, the bytes B a second, and h,
the bytes of a query beside its numbers, are measured on the cluster, too. All are
measured before and after a case, and their means count. They predict 1, 2 and 4 shards
on as many worker processes, or as there are cores. Points are isotropic: a search then
reads all of them, and its time is proportional to their number. The large case is that
of cores and memory as fast as here when all are at work, and of another network.
"""

import os
import time
from contextlib import contextmanager

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from skmahal import SketchedMahalanobisNeighbors
from skmahal.dask import SketchedMahalanobisNeighbors as ShardedNeighbors

from . import _data, _plots, _report, _timing

K = 10
QUERIES = 500
UPDATES = 30
SHARDS = (1, 2, 4)
# Seconds of an operation that is measured on all workers: they do not begin at once.
AT_WORK = 2.0
GOAL_RATIO, GOAL_SECONDS, GOAL_ERROR = 1.3, 0.05, 0.3

# The case that is predicted, and bytes a second between two machines of it.
LARGE = {"n": 10**9, "d": 1024, "k": 1024, "shards": 100, "workers": 100}
LARGE |= {"threads": 8, "itemsize": 4}
NETWORK = 1e9


def run(options, progress):
    """Measure 1, 2 and 4 shards on worker processes, and what the model needs."""
    n, d = (4000, 64) if options.quick else (50_000, 512)
    X, Q = _data.isotropic(n, d, QUERIES)
    U, rows = _data.dense_metric(d), []
    progress.begin("dask", len(SHARDS) + 1)
    for workers in sorted({min(shards, os.cpu_count()) for shards in SHARDS}):
        with _cluster(workers) as client:
            before = calibrate(client, n, d)
            for shards in SHARDS:
                if min(shards, os.cpu_count()) == workers:
                    progress.step(f"{shards} shards")
                    rows.append(measure(client, shards, workers, X, U, Q))
                    after = calibrate(client, n, d)
                    # Of the first case, which is the same for all.
                    task_bytes = rows[0]["query_bytes"] - Q[:1].nbytes
                    constants = halfway(before, after)
                    rows[-1]["predicted"] = predict(rows[-1], constants, task_bytes)
                    before = after
    progress.step(f"{2 * d:,} features")
    with _cluster(os.cpu_count()) as client:
        constants = calibrate(client, n // 2, 2 * d)
    constants |= {"bytes_per_second": NETWORK}
    large = {**LARGE, "predicted": predict(LARGE, constants, task_bytes)}
    return _report.Result("dask", [*rows, large], judge(rows), notes(large))


def measure(client, shards, workers, X, U, Q):
    """Seconds and bytes of the operations; of one shard, beside a local index."""
    (n, d), rng = X.shape, np.random.default_rng(0)
    row = {"n": n, "d": d, "k": d, "shards": shards, "workers": workers}
    row |= {"threads": 1, "itemsize": X.itemsize}
    points = da.from_array(X, chunks=(-(-n // shards), -1))
    index = ShardedNeighbors(K, metric_learner=U, client=client)
    row["fit"] = _timing.timed(index.fit, points)[0]
    calls = {"queries": lambda: index.kneighbors(Q)}
    if shards == 1:
        one = SketchedMahalanobisNeighbors(K, metric_learner=U, n_jobs=1).fit(X)
        calls["local"] = lambda: one.kneighbors(Q)
    with _timing.threads(1):
        times = _timing.alternate(calls)
    row |= {name: _timing.median(seconds) for name, seconds in times.items()}
    before = _sent(client)
    singles = [_timing.timed(index.kneighbors, q[np.newaxis])[0] for q in Q[:30]]
    row["query"] = _timing.median(singles)
    row["query_bytes"] = (_sent(client) - before) / len(singles)
    before, updates = _sent(client), []
    for _ in range(UPDATES):
        step = 0.01 * rng.normal(size=(2, d))
        updates.append(_timing.timed(index.update_metric, low_rank=tuple(step))[0])
    row["update"], row["update_bytes"] = _timing.median(updates), _sent(client) - before
    row["update_bytes"] /= UPDATES
    return row


def predict(row, constants, task_bytes):
    """Seconds and bytes of an update and of the queries, by the model."""
    names = ("n", "d", "k", "shards", "workers", "threads", "itemsize")
    n, d, k, S, W, threads, itemsize = (row[name] for name in names)
    call = constants["call"] + (S - 1) * constants["more_shards"]
    update, search = (
        -(-S // W) * (constants[name]["point"] * n / S + constants[name]["shard"])
        for name in ("update", "queries")
    )
    there = S * (QUERIES * d * itemsize + task_bytes)
    back = S * QUERIES * K * (itemsize + 8)
    moved = (there + back) / constants["bytes_per_second"]
    return {
        "update": call + update / threads,
        "update_bytes": S * (8 * (k + d) + task_bytes),
        "queries": 2 * call + moved + search / threads,
        "queries_bytes": there + back,
    }


def judge(rows):
    """The goals for overhead, bytes of an update, and errors of the model."""
    first = rows[0]
    limit = GOAL_RATIO * first["local"] + GOAL_SECONDS
    times = f"{_report.seconds_text(first['queries'])} and "
    times += f"{_report.seconds_text(first['local'])} locally"
    goals = [
        _report.Goal(
            f"{QUERIES} queries on one worker",
            "≤ 1.3× local + 50 ms",
            times,
            first["queries"] <= limit,
        )
    ]
    for row in rows:
        most = row["shards"] * (4 * (row["k"] + row["d"]) * row["itemsize"] + 10_000)
        what = f"bytes of a rank-one update, {row['shards']} shards"
        used = f"{row['update_bytes']:,.0f}"
        met = row["update_bytes"] <= most
        goals.append(_report.Goal(what, f"≤ {most:,}", used, met))
    for row in rows:
        for name in ("update", "queries", "update_bytes"):
            ratio = row["predicted"][name] / row[name]
            what = (
                f"{name.replace('_', ', ')}, {row['shards']} shards: model / measured"
            )
            met = abs(ratio - 1) <= GOAL_ERROR
            goals.append(_report.Goal(what, "1 ± 0.3", f"{ratio:.2f}", met))
    return goals


def notes(large):
    """The prediction for the large case, in words."""
    found = large["predicted"]
    return [
        f"The model for {large['n']:,} points of {large['d']:,} features on "
        f"{large['workers']} workers with {large['threads']} cores each: a rank-one "
        f"update takes {_report.seconds_text(found['update'])} and sends "
        f"{_report.bytes_text(found['update_bytes'])}; {QUERIES} queries take "
        f"{_report.seconds_text(found['queries'])} and move "
        f"{_report.bytes_text(found['queries_bytes'])}."
    ]


def show(result):
    """Print measured times beside those of the model."""
    lines = []
    for row in result.rows:
        found = row["predicted"]
        lines.append([f"{row['n']:,} × {row['d']}", row["shards"]])
        for name in ("fit", "query", "queries", "update"):
            lines[-1].append(_report.seconds_text(row[name]) if name in row else "-")
        lines[-1] += [
            _report.seconds_text(found[name]) for name in ("queries", "update")
        ]
    columns = ["points", "shards", "fit", "one query", f"{QUERIES} queries", "update"]
    _report.print_table([*columns, "model: queries", "model: update"], lines)


def plot(result, path):
    """Times against the number of shards, and those of the model."""
    rows = result.rows[:-1]
    fig, axes = _plots.figure(1, 2, (8, 3.6))
    shards = [row["shards"] for row in rows]
    names = {"queries": f"{QUERIES} queries", "update": "a rank-one update"}
    for ax, (name, title) in zip(axes, names.items(), strict=True):
        ax.plot(shards, [1e3 * row[name] for row in rows], "o-", label="measured")
        model = [1e3 * row["predicted"][name] for row in rows]
        ax.plot(shards, model, "s--", color=_plots.PEER, label="model")
        if name == "queries":
            label = "local index"
            ax.axhline(1e3 * rows[0]["local"], color=_plots.OTHER, lw=1, label=label)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("shards")
        ax.set_ylabel("milliseconds")
        ax.set_xticks(shards)
        ax.set_ylim(bottom=0)
        ax.legend(fontsize=8)
    _plots.save(fig, path)


@contextmanager
def _cluster(workers):
    """A client of a cluster of processes with one thread each."""
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": 0}
    options |= {"processes": True, "silence_logs": "CRITICAL"}
    with (
        LocalCluster(n_workers=workers, **options) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def calibrate(client, n, d):
    """Constants of the model, from local indexes on all workers and from calls."""
    X, Q = _data.isotropic(1000, d, QUERIES)
    constants = _calls(client, X, Q)
    sizes, found = (n // 8, n // 2), []
    for size in sizes:
        work = [
            client.submit(_local, size, d, workers=[address], pure=False)
            for address in client.scheduler_info()["workers"]
        ]
        found.append(client.gather(work))
    for name in ("update", "queries"):
        # A call waits for the slowest worker.
        less, more = (max(one[name] for one in each) for each in found)
        point = (more - less) / (sizes[1] - sizes[0])
        shard = max(more - point * sizes[1], 0.0)
        constants[name] = {"point": point, "shard": shard}
    return constants


def halfway(one, other):
    """Means of the constants of two calibrations: machines become slower and faster."""
    return {
        name: halfway(value, other[name])
        if isinstance(value, dict)
        else (value + other[name]) / 2
        for name, value in one.items()
    }


def _local(n, d):
    """A task: seconds of an update and of the queries, of a local index."""
    X, Q = _data.isotropic(n, d, QUERIES)
    index = SketchedMahalanobisNeighbors(K, metric_learner=_data.dense_metric(d))
    index.fit(X).kneighbors(Q)
    step = tuple(0.01 * np.random.default_rng(0).normal(size=(2, d)))
    calls = {
        "update": lambda: index.update_metric(low_rank=step),
        "queries": lambda: index.kneighbors(Q, K + 1),
    }
    return {name: _median_of(call, AT_WORK) for name, call in calls.items()}


def _calls(client, X, Q):
    """Seconds of calls that do nothing, and bytes a second to and from a worker."""
    result, seconds = np.zeros((len(Q), K)), []
    for shards in (1, 4):
        points = da.from_array(X, chunks=(-(-len(X) // shards), -1))
        index = ShardedNeighbors(K, client=client).fit(points)
        calls = [(at, None) for at in range(shards)]
        # No method of an index does nothing on all of its shards.
        seconds.append(_median_of(lambda: index._ask(calls)))  # noqa: B023
    empty = _median_of(lambda: client.submit(_echo, pure=False).result())
    full = _median_of(lambda: client.submit(_echo, Q, result, pure=False).result())
    return {
        "call": seconds[0],
        "more_shards": max(seconds[1] - seconds[0], 0) / 3,
        "bytes_per_second": (Q.nbytes + 2 * result.nbytes) / max(full - empty, 1e-6),
    }


def _median_of(call, least=0.0):
    """Median of the seconds of 30 calls, or of more if they take less than `least`."""
    times = []
    while len(times) < 30 or sum(times) < least:
        times.append(_timing.timed(call)[0])
    return _timing.median(times)


def _echo(*given):
    return given[-1:]


def _sent(client):
    """Bytes that the scheduler has sent to workers, by Dask's count."""

    def count(dask_scheduler=None):
        return sum(comm.byte_count for comm in dask_scheduler.stream_comms.values())

    time.sleep(0.2)
    return client.run_on_scheduler(count)
