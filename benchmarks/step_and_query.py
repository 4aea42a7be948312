"""A step of the metric and the next query, as the number of points grows.

``python -m benchmarks.publish`` draws the picture of the README from the result.
"""

import time

import numpy as np

from . import _data, _peers, _plots, _report, _timing
from ._data import ExactNeighbors, Problem
from .online import ByHand, K, Ours, Steps, _rebuilt

FEATURES = 256
SIZES = (1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)

OURS, HAND = "skmahal", "NumPy by hand"
PEERS = {
    "transform + faiss flat": _peers.Faiss,
    "transform + scikit-learn": _peers.ScikitLearn,
    "transform + hnswlib": _peers.Hnsw,
}

_ROUNDS = 60
# Rebuilds are repeated for so many seconds, but not more often than this.
_SECONDS, _REBUILDS = 10, 15
_CHECKED = 20


def run(options, progress):
    """Least seconds of a step and a query, for every contender and size."""
    sizes = (1000, 4000) if options.quick else SIZES
    progress.begin("step_and_query", len(sizes))
    rows = []
    for n in sizes:
        progress.step(f"{n:,} × {FEATURES}")
        rows.append(measure(n, FEATURES, options))
    return _report.Result("step_and_query", rows, judge(rows))


def measure(n, d, options):
    """Times of a step and a query; all contenders have the same steps and queries."""
    X, Q = _data.clustered(n, d, _ROUNDS)
    U = _data.dense_metric(d)
    steps, index = Steps(X, U), Ours(X, U, options.n_jobs)
    # Exact peers have all threads and one thread in turn, and the better counts.
    hands = {limit: ByHand(X, U) for limit in (None, 1)}
    # What pays for itself over several queries is made before.
    index.index.kneighbors(Q)
    times, recall = {OURS: [], HAND: []}, {}
    runs = [
        (OURS, index, None),
        *((HAND, hand, limit) for limit, hand in hands.items()),
    ]
    for q in Q:
        w, v = steps.next()
        for name, contender, limit in runs:
            time.sleep(0.02)
            with _timing.threads(limit):
                times[name].append(_timing.timed(_followed, contender, w, v, q)[0])
    exact = ExactNeighbors(Problem(X, steps.U, Q[:_CHECKED]), K)
    for name, contender, _ in runs:
        found = [contender.neighbours(q) for q in Q[:_CHECKED]]
        recall[name] = exact.recall(np.array(found))
    skipped, U = [_peers.Hnsw] if options.exact_only else [], np.float32(steps.U)
    for name, peer in PEERS.items():
        if peer in skipped or not _peers.installed([peer]):
            continue
        times[name] = []
        while sum(times[name]) < _SECONDS and len(times[name]) < _REBUILDS:
            q, is_odd = Q[len(times[name])], len(times[name]) % 2
            with _timing.threads(1 if peer.exact and is_odd else None):
                seconds, rebuilt = _timing.timed(_searched, peer, X, U, q)
            times[name].append(seconds)
        recall[name] = exact.recall(rebuilt.kneighbors(Q[:_CHECKED]))
    found = {name: _timing.summary(seconds) for name, seconds in times.items()}
    return {"n": n, "d": d, "K": K, "contenders": found, "recall": recall}


def judge(rows):
    """Neighbours must be exact; there is no goal for the times."""
    least = min(row["recall"][OURS] for row in rows)
    return [_report.Goal("step and query: recall", "1", f"{least:.4f}", least == 1)]


def show(result):
    """Print the least time of every contender at every size."""
    names = list(result.rows[-1]["contenders"])
    lines = [
        [
            f"{row['n']:,}",
            *(_report.seconds_text(row["contenders"][name]["min"]) for name in names),
        ]
        for row in result.rows
    ]
    print(f"least time of a step of the metric and one query, d={FEATURES}\n")
    _report.print_table(["points", *names], lines)


def plot(result, path):
    """Time against the number of points."""
    draw(series(result.rows), path)


def series(rows):
    """Points and least seconds of every contender, by name."""
    return {
        name: [(row["n"], row["contenders"][name]["min"]) for row in rows]
        for name in rows[-1]["contenders"]
    }


def draw(series, path):
    """Lines on logarithmic axes, each with its name and its last time beside it."""
    fig, (ax,) = _plots.figure(1, 1, (7.6, 4.4))
    styles = {
        OURS: {"color": _plots.OURS, "lw": 3, "marker": "o"},
        HAND: {"color": _plots.OTHER, "ls": ":", "marker": "."},
    }
    peer = {"color": _plots.PEER, "marker": "."}
    ends = []
    for name, points in series.items():
        x, y = zip(*points, strict=True)
        (line,) = ax.loglog(x, y, **styles.get(name, peer))
        ends.append((y[-1], name, line.get_color()))
    low, high = ax.get_ylim()
    heights = _plots.apart([end for end, _, _ in ends], (high / low) ** 0.05)
    for (end, name, colour), height in zip(ends, heights, strict=True):
        text = f"{name}, {_report.seconds_text(end)}"
        weight = "bold" if name == OURS else "normal"
        at = (x[-1] * 1.2, height)
        ax.annotate(text, at, color=colour, va="center", weight=weight)
    _plots.mark_sizes(ax, [1000, 10_000, 100_000])
    ticks = {1e-3: "1 ms", 1e-2: "10 ms", 0.1: "0.1 s", 1: "1 s", 10: "10 s"}
    ax.set_yticks(list(ticks), ticks.values())
    ax.minorticks_off()
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xlabel(f"points with {FEATURES} features")
    ax.set_title("Time of a step of the metric and the next query", loc="left")
    _plots.save(fig, path)


def _followed(contender, w, v, q):
    contender.update(w, v)
    return contender.neighbours(q)


def _searched(peer, X, U, q):
    """Transform and build, and search once."""
    index = _rebuilt(peer, X, U)
    index.kneighbors(q[None])
    return index
