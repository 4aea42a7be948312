"""A step of an online learner with many features, beside the dense formulas."""

from time import perf_counter

import numpy as np
from sklearn.preprocessing import normalize

from skmahal.online import LEGO, POLA, OnlineITML

from . import _data, _plots, _report

FEATURES = 2000
GOAL_SECONDS = 0.01

_LEARNERS = {"LEGO": LEGO, "OnlineITML": OnlineITML, "POLA": POLA}
# An eigenvalue decomposition takes seconds.
_DENSE_STEPS = 3


def random_pairs(n, d, dtype):
    """Differences of length about one in all directions, and random labels."""
    rng = np.random.default_rng(0)
    pairs = rng.standard_normal((n, 2, d)) / np.sqrt(2 * d)
    return pairs.astype(dtype), np.where(rng.random(n) < 0.5, 1, -1)


def gene_pairs(n, d, dtype):
    """Cells of unit length, similar where they are of one kind."""
    data = _data.load(_data.SCRNA)
    X, y = data["X"][:, :d].astype(np.float64), data["y"]
    X = normalize(X)
    first, second = np.random.default_rng(0).integers(len(X), size=(2, n))
    pairs = np.stack([X[first], X[second]], axis=1).astype(dtype)
    return pairs, np.where(y[first] == y[second], 1, -1)


def run(options, progress):
    """Time every step of every learner on every stream."""
    n, d = (200, 200) if options.quick else (2000, FEATURES)
    streams = {"random": random_pairs, "genes": gene_pairs}
    rows, notes = [], []
    progress.begin("learner_steps", 2 * len(streams))
    for name, make in streams.items():
        for dtype in (np.float64, np.float32):
            progress.step(f"{name}, {np.dtype(dtype)}")
            try:
                pairs, y = make(n, d, dtype)
            except _data.AbsentError as error:
                notes.append(f"{name} is left out: {error}.")
                continue
            dense = dense_step(pairs[:_DENSE_STEPS], y)
            for learner, kind in _LEARNERS.items():
                row = {"stream": name, "type": str(np.dtype(dtype)), "d": d}
                row.update(learner=learner, dense=dense if learner == "POLA" else None)
                rows.append({**row, "steps": steps(kind(), pairs, y)})
    return _report.Result("learner_steps", rows, judge(rows, options.quick), notes)


def steps(learner, pairs, y):
    """Seconds of every step, one pair a call, as a stream brings them."""
    found = []
    for at in range(len(pairs)):
        begun = perf_counter()
        learner.partial_fit(pairs[at : at + 1], y[at : at + 1])
        found.append(perf_counter() - begun)
    return found


def dense_step(pairs, y):
    """Seconds of POLA's formulas on A itself, with all its eigenvalues."""
    A, begun = np.eye(pairs.shape[2]), perf_counter()
    for v in pairs[:, 0].astype(np.float64) - pairs[:, 1]:
        square = v @ v
        A = A - (v @ A @ v) / (square**2 + 1) * np.outer(v, v)
        values, vectors = np.linalg.eigh(A)
        A = (vectors * np.maximum(values, 0)) @ vectors.T
    return (perf_counter() - begun) / len(pairs)


def judge(rows, quick):
    """The mean of a stream, with all that its steps put off."""
    goals = []
    for row in rows:
        what = f"{row['stream']}, {row['type']}, d={row['d']:,}: a step of "
        what += row["learner"]
        mean = float(np.mean(row["steps"]))
        measured = f"{_report.seconds_text(mean)} in the mean of {len(row['steps']):,}"
        met = None if quick else mean < GOAL_SECONDS
        goals.append(_report.Goal(what, "< 10 ms", measured, met))
    return goals


def show(result):
    """Print the mean, quantiles, and the last quarter of every stream."""
    columns = ["stream", "type", "learner", "mean", "median", "90 %", "99 %"]
    columns += ["last quarter", "dense"]
    lines = []
    for row in result.rows:
        found = np.array(row["steps"])
        times = [found.mean(), *np.quantile(found, [0.5, 0.9, 0.99])]
        times.append(found[-len(found) // 4 :].mean())
        cells = [_report.seconds_text(time) for time in times]
        cells.append(_report.seconds_text(row["dense"]) if row["dense"] else "-")
        lines.append([row["stream"], row["type"], row["learner"], *cells])
    _report.print_table(columns, lines)


def plot(result, path):
    """The mean of every hundred steps, over the stream."""
    streams = list(dict.fromkeys(row["stream"] for row in result.rows))
    fig, axes = _plots.figure(1, max(1, len(streams)), (10, 3.8))
    for ax, stream in zip(axes, streams, strict=False):
        for row in result.rows:
            if row["stream"] == stream:
                means = 1e3 * np.reshape(row["steps"], (-1, 100)).mean(axis=1)
                label = f"{row['learner']}, {row['type']}"
                ax.plot(100 * (1 + np.arange(len(means))), means, label=label)
        ax.axhline(1e3 * GOAL_SECONDS, color="0.6", linestyle=":")
        ax.set(xlabel="pairs", ylabel="ms a step", title=f"{stream}, d={row['d']:,}")
        ax.set_ylim(bottom=0)
        ax.legend(fontsize=8)
    _plots.save(fig, path)
