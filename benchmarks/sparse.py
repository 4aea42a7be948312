"""Neighbours among CSR points with few entries a row, beside scikit-learn."""

import numpy as np
from sklearn.neighbors import NearestNeighbors

from skmahal import SketchedMahalanobisNeighbors

from . import _data, _plots, _report, _timing
from ._data import ExactNeighbors, Problem

K = 10
QUERIES = 20
ENTRIES = 30
GOAL = 1.5
PEER = "scikit-learn brute"


def run(options, progress):
    """Queries under the Euclidean metric and under a U of few rows; updates."""
    n, d = (1000, 5000) if options.quick else (10_000, 100_000)
    progress.begin("sparse", 2)
    X, Q = _data.sparse(n, d, ENTRIES, QUERIES)
    peer = NearestNeighbors(n_neighbors=K, algorithm="brute", n_jobs=-1).fit(X)
    rows = []
    for metric, U in [("Euclidean", None), ("U of 64 rows", _data.low_rank_metric(d))]:
        progress.step(metric)
        row = {"n": n, "d": d, "entries": ENTRIES, "metric": metric}
        rows.append({**row, **measure(X, U, Q, peer, options.n_jobs)})
    return _report.Result("sparse", rows, judge(rows))


def measure(X, U, Q, peer, n_jobs, rounds=7):
    """Times of the queries, ours and of scikit-learn on the CSR points themselves.

    scikit-learn has no metric there, so that its time is that of Euclidean distances.
    """
    index = SketchedMahalanobisNeighbors(
        K, metric_learner=U, random_state=0, n_jobs=n_jobs
    )
    fit, _ = _timing.timed(index.fit, X)
    runs = {
        "skmahal": lambda: index.kneighbors(Q, return_distance=False),
        PEER: lambda: peer.kneighbors(Q, return_distance=False),
    }
    recall = ExactNeighbors(Problem(X, U, Q), K).recall(runs["skmahal"]())
    times = _timing.alternate(runs, rounds=rounds)
    row = {name: _timing.summary(seconds) for name, seconds in times.items()}
    row["ratio"] = row["skmahal"]["median"] / row[PEER]["median"]
    if U is not None:
        rng = np.random.default_rng(0)
        w = 1e-3 * rng.standard_normal((len(U), 1))
        v = 1e-3 * rng.standard_normal((X.shape[1], 1))
        updates = [
            _timing.timed(index.update_metric, low_rank=(w, v))[0] for _ in range(8)
        ]
        product = [_timing.timed(X.__matmul__, v)[0] for _ in range(8)]
        row["update"] = _timing.summary(updates[1:])
        row["product"] = _timing.summary(product[1:])
    return {**row, "fit": fit, "recall": recall}


def judge(rows):
    """At most so many times the time of scikit-learn."""
    return [
        _report.at_most(
            f"kneighbors, CSR {row['n']:,} × {row['d']:,}, {row['entries']} entries a "
            f"row, {row['metric']}, {QUERIES} queries, against {PEER}",
            row["ratio"],
            GOAL,
            holds=row["recall"] == 1,
            note=f"recall {row['recall']:.4f}",
        )
        for row in rows
    ]


def show(result):
    """Print times for each metric."""
    columns = ["metric", f"{QUERIES} queries", PEER, "×", "recall", "fit", "update"]
    lines = [
        [
            row["metric"],
            _report.seconds_text(row["skmahal"]["median"]),
            _report.seconds_text(row[PEER]["median"]),
            _report.ceil_text(row["ratio"]),
            f"{row['recall']:.4f}",
            _report.seconds_text(row["fit"]),
            *(
                _report.seconds_text(row[name]["mean"]) if name in row else "-"
                for name in ("update", "product")
            ),
        ]
        for row in result.rows
    ]
    _report.print_table([*columns, "X @ v"], lines)


def plot(result, path):
    """Bars of how many times faster than scikit-learn."""
    fig, axes = _plots.figure(1, 1, (7, 2))
    labels = [row["metric"] for row in result.rows]
    ratios = [1 / row["ratio"] for row in result.rows]
    title = f"CSR points, {QUERIES} queries, against {PEER}"
    _plots.ratio_bars(axes[0], labels, ratios, [1 / GOAL] * len(labels), title)
    _plots.save(fig, path)
