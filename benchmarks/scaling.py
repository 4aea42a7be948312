"""Fit, updates and queries at 10⁵ and at 10⁶ points, each size in a fresh process."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

from skmahal import SketchedMahalanobisNeighbors

from . import _data, _plots, _report, _timing
from ._data import ExactNeighbors, Problem
from .online import Steps

K = 10
UPDATES = 100
QUERIES = 1000
SINGLES = 50
FITS = 3

GIB = 1 << 30
GOAL_MEMORY = 24 * GIB

OPERATIONS = {
    "fit": "fit",
    "update": "a rank-one update",
    "queries": "1,000 queries after the updates",
    "query": "one query a call",
}


def run(options, progress):
    """Measure both sizes, one after the other."""
    sizes, d = ([2000, 20_000], 64) if options.quick else ([100_000, 1_000_000], 256)
    progress.begin("scaling", len(sizes))
    rows = []
    for n in sizes:
        progress.step(f"{n:,} × {d}")
        rows.append(in_process(n, d, options.n_jobs))
    return _report.Result("scaling", rows, judge(rows))


def in_process(n, d, n_jobs):
    """:func:`measure` in a process of its own, whose peak of memory is that of n."""
    root = Path(__file__).resolve().parents[1]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scaling", str(n), str(d), str(n_jobs)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    if done.returncode:
        reason = f"the process ended with {done.returncode}"
        return {"n": n, "d": d, "failed": reason}
    return json.loads(done.stdout.splitlines()[-1])


def measure(n, d, n_jobs):
    """Seconds of each operation, the peak of resident memory, and recall."""
    X, Q = _data.clustered(n, d, QUERIES)
    U = _data.dense_metric(d)
    _warm_up(d, n_jobs)
    index = SketchedMahalanobisNeighbors(
        K, metric_learner=U, random_state=0, n_jobs=n_jobs
    )
    row = {"n": n, "d": d, "k": d, "K": K}
    fits = [_timing.timed(index.fit, X)[0] for _ in range(FITS)]
    # The least: first touching a page of memory takes a time of its own.
    row["fit"], row["fits"] = min(fits), fits
    row["first_queries"] = _timing.timed(index.kneighbors, Q)[0]
    steps = Steps(X, U)
    updates = [_timing.timed(_update, index, *steps.next())[0] for _ in range(UPDATES)]
    row["update"], row["updates"] = float(np.mean(updates)), updates
    row["queries"] = _timing.timed(index.kneighbors, Q)[0]
    row["queries_again"] = _timing.timed(index.kneighbors, Q)[0]
    singles = [_timing.timed(index.kneighbors, q[None])[0] for q in Q[:SINGLES]]
    row["query"], row["single_queries"] = _timing.median(singles), singles
    row["peak_rss"] = _peak_rss()
    row["recall"] = _recall(index, X, steps.U, Q[:100])
    return row


def judge(rows):
    """The goals for growth and for memory."""
    least, most = rows
    what = f"{most['n']:,} × {most['d']}: fit, {UPDATES} updates, {QUERIES:,} queries"
    failed = [row["failed"] for row in rows if "failed" in row]
    if failed:
        return [_report.Goal(what, "in 24 GiB", failed[0], False)]
    holds = all(row["recall"] == 1 for row in rows)
    note = f"{most['peak_rss'] / GIB:.2f} GiB, recall {most['recall']:.4f}"
    fits = most["peak_rss"] <= GOAL_MEMORY
    goals = [_report.Goal(what, "in 24 GiB", note, bool(fits and holds))]
    for key, name in OPERATIONS.items():
        growth, goal = most[key] / least[key], most["n"] / least["n"]
        what = f"growth from {least['n']:,} to {most['n']:,} points, {name}"
        goals.append(_report.at_most(what, growth, goal, holds=holds))
    return goals


def show(result):
    """Print the time of each operation at both sizes, and the growth."""
    if any("failed" in row for row in result.rows):
        print(*(row.get("failed", "") for row in result.rows), sep="\n")
        return
    least, most = result.rows
    names = {**OPERATIONS, "queries_again": "1,000 queries more"}
    names["first_queries"] = "first 1,000 queries"
    lines = [
        [
            name,
            _report.seconds_text(least[key]),
            _report.seconds_text(most[key]),
            _report.ceil_text(most[key] / least[key]),
        ]
        for key, name in names.items()
    ]
    rss = [row["peak_rss"] for row in result.rows]
    lines.append(["peak of resident memory", *map(_report.bytes_text, rss), "-"])
    lines.append(["recall", *(f"{row['recall']:.4f}" for row in result.rows), "-"])
    sizes = [f"{row['n']:,} × {row['d']}" for row in result.rows]
    _report.print_table(["operation", *sizes, "growth"], lines)


def plot(result, path):
    """Time of each operation against the number of points, beside linear growth."""
    rows = [row for row in result.rows if "failed" not in row]
    if not rows:
        return
    fig, (ax,) = _plots.figure(1, 1, (7, 4.2))
    n = [row["n"] for row in rows]
    for key, name in OPERATIONS.items():
        seconds = [row[key] for row in rows]
        (line,) = ax.loglog(n, seconds, "o-", label=name)
        linear = [seconds[0] * size / n[0] for size in n]
        ax.loglog(n, linear, ":", color=line.get_color(), lw=1)
    _plots.mark_sizes(ax, n)
    _plots.plain_ticks(ax.yaxis)
    ax.set_xlabel("points (dotted: linear growth)")
    ax.set_ylabel("seconds")
    ax.legend(fontsize=8)
    _plots.save(fig, path)


def _warm_up(d, n_jobs):
    """Imports and compilation, which a first call pays for."""
    X, Q = _data.clustered(500, d, 20)
    index = SketchedMahalanobisNeighbors(
        K, metric_learner=_data.dense_metric(d), random_state=0, n_jobs=n_jobs
    )
    index.fit(X).kneighbors(Q)
    _update(index, np.zeros(d, np.float32), np.zeros(d, np.float32))


def _update(index, w, v):
    index.update_metric(low_rank=(w[:, None], v[:, None]))


def _recall(index, X, U, Q):
    exact = ExactNeighbors(Problem(X, U, Q), K)
    return exact.recall(index.kneighbors(Q, return_distance=False))


def _peak_rss():
    """Peak of resident memory of this process in bytes.

    `getrusage` counts what the parent held when it made this process, so that Linux's
    own account comes first.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return next(1024 * int(l.split()[1]) for l in lines if l.startswith("VmHWM"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    jobs = None if sys.argv[3] == "None" else int(sys.argv[3])
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]), jobs)))
