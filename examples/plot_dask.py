"""
An index on a cluster that loses a worker
=========================================

Points are spread over the workers of a Dask cluster. The index is fitted there, its
metric changes, and then the process of a worker is killed. The next query is answered
all the same: Dask computes the lost points again from the tasks that made them, and the
change of the metric is not lost, because the client has it. The answers are those of an
index on one machine, before and after.

Here the cluster is two processes of this machine. On a real one, only the line that
makes the client differs.
"""

import os
import signal
import time

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from distributed import Client, LocalCluster
from matplotlib.ticker import MaxNLocator, NullFormatter

import skmahal
from skmahal.dask import SketchedMahalanobisNeighbors

N_POINTS, N_FEATURES, ROUNDS = 8000, 32, 6


def points(block_info=None):
    """A chunk of points, as if it were read from a file."""
    first = block_info[None]["array-location"][0][0]
    rows, columns = block_info[None]["chunk-shape"]
    return np.random.default_rng(first).normal(size=(rows, columns))


def ask(index, queries):
    """Neighbours, and the milliseconds that they took."""
    start = time.perf_counter()
    found = index.kneighbors(queries)
    return found, 1000 * (time.perf_counter() - start)


def main():
    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    )
    client, rng = Client(cluster), np.random.default_rng(0)
    chunks = ((N_POINTS // 4,) * 4, (N_FEATURES,))
    X = da.map_blocks(points, chunks=chunks, dtype=float)

    # Fit, and query.
    index = SketchedMahalanobisNeighbors(5, client=client).fit(X)
    local = skmahal.SketchedMahalanobisNeighbors(5).fit(X.compute())
    queries = rng.normal(size=(20, N_FEATURES))
    times, events, agree = [], {}, []

    def watch():
        found, milliseconds = ask(index, queries)
        expected = local.kneighbors(queries)
        times.append(milliseconds)
        agree.append(bool((found[1] == expected[1]).all()))

    watch()
    for _ in range(ROUNDS):
        watch()

    # Change the metric; both indexes follow.
    events[len(times)] = "metric updated"
    step = rng.normal(size=(N_FEATURES, 2)), 0.2 * rng.normal(size=(N_FEATURES, 2))
    for one in (index, local):
        one.update_metric(low_rank=step)
    for _ in range(ROUNDS):
        watch()

    # Kill a worker.
    events[len(times)] = "worker killed"
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
    for _ in range(ROUNDS):
        watch()
    print(f"{sum(agree)} of {len(agree)} answers are those of the local index.")

    index.close()
    client.close()
    cluster.close()
    return times, events


def plot(times, events):
    """The time of every query, and what happened before it."""
    _, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
    ax.semilogy(range(1, len(times)), times[1:], "o-", color="#1f6f8b")
    for at, event in events.items():
        ax.axvline(at - 0.5, color="#b3261e", lw=1)
        ax.annotate(
            event,
            (at - 0.4, 0.95),
            xycoords=("data", "axes fraction"),
            va="top",
            color="#b3261e",
        )
    ax.set_ylim(min(times) / 1.5, 4 * max(times[1:]))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("number of the call")
    ax.set_ylabel("milliseconds for 20 queries")
    ax.set_title("The call after a loss makes the lost shards again")
    plt.show()


# Worker processes import this file, and must not run it.
if __name__ == "__main__":
    plot(*main())
