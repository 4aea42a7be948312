"""The two experiments of the paper: accuracy, time and memory at each sketch size.

Beside the paper's structure there are two rows for what is done without a size: the
default, which chooses how distances are computed, and `adaptive`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from skmahal import MetricMaintenance

from . import _data, _plots, _report, _timing

L, R = 10, 5
WITHOUT_SIZE = {"auto": {}, "adaptive": {"adaptive": True}}

# Queries after which one sketch is made, if that pays.
_WARM = 300
GOALS = {20: 0.91, 320: 0.975}

# The algorithm as printed is run on as many points as take about this long.
_PRINTED_SECONDS = 1.5
_PRINTED_LEAST = 10
_BYTES_A_SECOND = 8e9
_CALL_SECONDS = 8e-6


class PrintedMaintenance:
    """Algorithms Initialize, QueryPair and QueryAll of the paper.

    Initialize uses matrix products in place of its loops; it is not what is timed.
    Where `mended` is true, QueryAll compares a query with the sketch of the same number
    of a point, which the printed indices do not.
    """

    def __init__(self, U, X, m, L, R, seed=0, mended=False):
        self.U, self.X = U.astype(np.float64), X.astype(np.float64)
        self.R, self.mended = R, mended
        self._rng = np.random.default_rng(seed)
        shape = (m, len(U))
        self.PiU = [
            self._rng.normal(scale=m**-0.5, size=shape) @ self.U for _ in range(L)
        ]
        self.sketches = [self.X @ PiU.T for PiU in self.PiU]

    def query_pair(self, i, j):
        """Median distance between the first R sketches of two points."""
        p = [np.linalg.norm(s[i] - s[j]) for s in self.sketches[: self.R]]
        return np.median(p)

    def query_all(self, q):
        """Estimated distances of a query from all points."""
        sampled = self._rng.integers(len(self.PiU), size=self.R)
        n = len(self.X)
        d = np.empty((n, self.R))
        for i in range(n):
            for r in range(self.R):
                x = self.sketches[sampled[r] if self.mended else r][i]
                d[i, r] = np.linalg.norm(self.PiU[sampled[r]] @ q - x)
        estimates = np.empty(n)
        for i in range(n):
            estimates[i] = np.median(d[i])
        return estimates


@dataclass(frozen=True)
class Setup:
    """An experiment, and what the paper prints for it, by sketch size.

    Accuracies are shares, times are seconds of a QueryAll, memory is in MB. Figures
    that the paper gives as a ratio to its largest sketch are computed from that.
    """

    name: str
    make: Callable
    sizes: tuple
    accuracy: dict = field(default_factory=dict)
    seconds: dict = field(default_factory=dict)
    megabytes: dict = field(default_factory=dict)


TCGA = Setup(
    "tcga 800 × 5,120",
    lambda: _data.tcga(20),
    (20, 80, 320, 1280),
    {20: 0.834, 320: 0.90, 1280: 0.904},
    {20: 0.15, 320: 10.49 / 8.5, 1280: 10.49},
    {20: 164, 320: 2228 / 3.06, 1280: 2228},
)
UNIFORM = Setup(
    "uniform 10,000 × 2,560",
    lambda: _data.uniform(10_000, 2560, 20),
    (10, 20, 40, 160, 320, 640, 1280, 2560),
    {10: 0.804, 160: 0.90, 2560: 0.902},
    {10: 1.05, 160: 214.4 / 16.9, 2560: 214.4},
    {10: 830, 160: 2919 / 3.06, 2560: 2919},
)
SMALL = Setup("uniform 400 × 256", lambda: _data.uniform(400, 256, 10), (20, 80))


def run(options, progress):
    """Measure every sketch size of every set-up."""
    setups = [SMALL] if options.quick else [TCGA, UNIFORM]
    progress.begin("paper", sum(len(setup.sizes) + 1 for setup in setups))
    rows, skipped = [], []
    for setup in setups:
        try:
            rows += measure(setup, progress, draws=1 if options.quick else 3)
        except _data.AbsentError as absent:
            what = f"accuracy of distances, {setup.name}"
            skipped.append(_report.unjudged(what, f"skipped: {absent}"))
    return _report.Result("paper", rows, judge(rows) + skipped)


def measure(setup, progress, draws):
    """A row for each sketch size."""
    X, Q = setup.make()
    U = _data.dense_metric(X.shape[1])
    exact = _exact(X, U, Q)
    rows = []
    for m in setup.sizes:
        progress.step(f"{setup.name}, m={m}")
        row = {"setup": setup.name, "n": len(X), "d": X.shape[1], "k": len(U), "m": m}
        row["ours"] = _measure_ours(X, U, Q, m, exact, draws)
        row["printed"] = _measure_printed(X, U, Q, m, exact)
        row["paper"] = {
            "accuracy": setup.accuracy.get(m),
            "query_all": setup.seconds.get(m),
            "megabytes": setup.megabytes.get(m),
        }
        rows.append(row)
    progress.step(f"{setup.name}, without a size")
    sizes = {"setup": setup.name, "n": len(X), "d": X.shape[1], "k": len(U)}
    for name, params in WITHOUT_SIZE.items():
        index = MetricMaintenance(U, X, seed=0, **params)
        for _ in range(0, _WARM, len(Q)):
            index.query_all(Q)
        ours = _measured(index, Q, exact)
        rows.append({**sizes, "m": name, "engine": index.engine, "ours": ours})
    return rows


def judge(rows):
    """The goals for the accuracy at two sketch sizes."""
    return [
        _report.Goal(
            f"accuracy of distances, {row['setup']}, m={row['m']}, lead=0",
            f"≥ {GOALS[row['m']]:.1%}",
            f"{_floored(row['ours']['accuracy'])}{_beside(row)}",
            bool(row["ours"]["accuracy"] >= GOALS[row["m"]]),
        )
        for row in rows
        if row["m"] in GOALS
    ]


def show(result):
    """Print ours, the algorithm as printed, and the paper's figures side by side."""
    print(
        f"L={L}, R={R}, lead=0; accuracy is 1 - mean relative error; one query a call."
        "\nprinted: the paper's algorithm as it stands, in NumPy, timed on some of the "
        "points\nand scaled to all; mended: with its indices put right; paper: figures "
        "printed in\nthe paper, on its machine and, for tcga, on other samples\n"
    )
    columns = ["set-up", "m", "accuracy", "printed", "mended", "paper"]
    columns += ["QueryAll", "printed", "paper", "× printed", "QueryPair", "printed"]
    columns += ["memory", "printed", "paper"]
    _report.print_table(columns, [_line(row) for row in result.rows])


def plot(result, path):
    """Accuracy, time and memory against m, a row of axes for each set-up."""
    setups = list(dict.fromkeys(row["setup"] for row in result.rows))
    fig, axes = _plots.figure(max(1, len(setups)), 3, (13, 3.6 * max(1, len(setups))))
    for number, setup in enumerate(setups):
        of_setup = [row for row in result.rows if row["setup"] == setup]
        rows = [row for row in of_setup if "printed" in row]
        _plot_setup(axes[3 * number : 3 * number + 3], setup, rows)
    printed = "algorithm as printed (its accuracy: indices mended)"
    labels = ["skmahal", printed, "figures printed in the paper"]
    marks = axes[0].lines
    fig.legend(marks, labels[: len(marks)], loc="outside upper center", ncols=3)
    _plots.save(fig, path)


def held_bytes(root):
    """Bytes of all arrays that can be reached from an object, each buffer once."""
    seen, total, stack = {}, 0, [root]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        # Kept, so that no identity is used twice.
        seen[id(item)] = item
        if isinstance(item, np.ndarray):
            if isinstance(item.base, np.ndarray):
                stack.append(item.base)
            else:
                total += item.nbytes
        else:
            stack += _inside(item)
    return total


def _inside(item):
    """What an object refers to, as far as it may hold arrays."""
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, list | tuple | set | frozenset):
        return list(item)
    if isinstance(item, type) or not type(item).__module__.startswith("skmahal"):
        return []
    slots = [getattr(item, name, None) for name in getattr(item, "__slots__", ())]
    return [*vars(item).values(), *slots] if hasattr(item, "__dict__") else slots


def printed_bytes(n, d, k, m, L):
    """Memory of U, the points, ``Π_j U`` and ``Π_j U x_i`` in float64."""
    return 8 * (k * d + n * d + L * m * d + n * L * m)


def _measure_ours(X, U, Q, m, exact, draws):
    index = MetricMaintenance(U, X, m=m, L=L, R=R, lead=0, seed=0)
    found = _measured(index, Q, exact)
    accuracies = [found["accuracy"]]
    for _ in range(draws - 1):
        index.refresh_sketches()
        accuracies.append(_accuracy(index.query_all(Q), exact))
    return {**found, "accuracy": float(np.mean(accuracies)), "accuracies": accuracies}


def _measured(index, Q, exact):
    """Accuracy of a batch, times of single queries and of pairs, and memory."""
    accuracy = _accuracy(index.query_all(Q), exact)
    all_times = [_timing.timed(index.query_all, q)[0] for q in Q[:10]]
    i, j = np.random.default_rng(0).integers(index.n, size=(2, 200))
    pairs, _ = _timing.timed(_ask_pairs, index, i, j)
    return {
        "accuracy": accuracy,
        "query_all": _timing.summary(all_times),
        "query_pair": pairs / len(i),
        "bytes": held_bytes(index),
    }


def _measure_printed(X, U, Q, m, exact):
    seconds = R * (m * X.shape[1] * 8 / _BYTES_A_SECOND + _CALL_SECONDS)
    points = min(len(X), max(_PRINTED_LEAST, int(_PRINTED_SECONDS / seconds)))
    index = PrintedMaintenance(U, X[:points], m, L, R)
    part = exact[:, :points]
    accuracy, times = {}, []
    for mended in (False, True):
        index.mended = mended
        results = [_timing.timed(index.query_all, q) for q in Q[:3].astype(np.float64)]
        times += [seconds * len(X) / points for seconds, _ in results]
        estimates = np.array([estimate for _, estimate in results])
        accuracy[mended] = _accuracy(estimates, part[:3])
    i, j = np.random.default_rng(0).integers(points, size=(2, 200))
    pairs, _ = _timing.timed(_ask_pairs, index, i, j)
    return {
        "accuracy": accuracy[False],
        "accuracy_mended": accuracy[True],
        "query_all": _timing.summary(times),
        "query_pair": pairs / len(i),
        "points_timed": points,
        "bytes": printed_bytes(len(X), X.shape[1], len(U), m, L),
    }


def _ask_pairs(index, i, j):
    for pair in zip(i.tolist(), j.tolist(), strict=True):
        index.query_pair(*pair)


def _exact(X, U, Q):
    """All distances in float64."""
    U = U.astype(np.float64)
    Y, u = X @ U.T, Q @ U.T
    return np.array([np.linalg.norm(Y - row, axis=1) for row in u])


def _accuracy(estimates, exact):
    """One less the mean relative error; distances of zero are left out."""
    real = exact > 0
    return float(1 - np.mean(np.abs(estimates[real] / exact[real] - 1)))


def _floored(share):
    return f"{np.floor(1e4 * share) / 1e2:.2f}%"


def _beside(row):
    printed = row["paper"]["accuracy"]
    return "" if printed is None else f", the paper prints {printed:.1%}"


def _line(row):
    ours = row["ours"]
    if "printed" not in row:
        times = (ours["query_all"]["median"], ours["query_pair"])
        everything, pair = map(_report.seconds_text, times)
        name, size = f"{row['m']}: {row['engine']}", _report.bytes_text(ours["bytes"])
        middle = [everything, "-", "-", "-", pair, "-", size, "-", "-"]
        return [row["setup"], name, f"{ours['accuracy']:.2%}", "-", "-", "-", *middle]
    printed, paper = row["printed"], row["paper"]
    ratio = printed["query_all"]["median"] / ours["query_all"]["median"]
    return [
        row["setup"],
        row["m"],
        f"{ours['accuracy']:.2%}",
        f"{printed['accuracy']:.2%}",
        f"{printed['accuracy_mended']:.2%}",
        _or_dash(paper["accuracy"], lambda share: f"{share:.1%}"),
        _report.seconds_text(ours["query_all"]["median"]),
        _report.seconds_text(printed["query_all"]["median"]),
        _or_dash(paper["query_all"], _report.seconds_text),
        _report.floor_text(ratio),
        _report.seconds_text(ours["query_pair"]),
        _report.seconds_text(printed["query_pair"]),
        _report.bytes_text(ours["bytes"]),
        _report.bytes_text(printed["bytes"]),
        _or_dash(paper["megabytes"], lambda size: f"{size:,.0f} MB"),
    ]


def _or_dash(value, text):
    return "-" if value is None else text(value)


def _shown_accuracy(entry):
    """That of the printed algorithm with its indices mended: as it is, it has none."""
    return entry.get("accuracy_mended", entry["accuracy"])


def _plot_setup(axes, setup, rows):
    curves = {
        "accuracy": (_shown_accuracy, "accuracy", 1),
        "query_all": (lambda e: e["query_all"]["median"], "seconds of a QueryAll", 1),
        "bytes": (lambda e: e["bytes"], "memory, MB", 1e-6),
    }
    keys = ["accuracy", "query_all", "megabytes"]
    m = [row["m"] for row in rows]
    for ax, key, (name, (get, label, unit)) in zip(
        axes, keys, curves.items(), strict=True
    ):
        ax.plot(m, [unit * get(r["ours"]) for r in rows], "o-", color=_plots.OURS)
        as_printed = [unit * get(r["printed"]) for r in rows]
        ax.plot(m, as_printed, "s--", color=_plots.PEER)
        known = [(r["m"], r["paper"][key]) for r in rows if r["paper"][key] is not None]
        if known:
            ax.plot(*zip(*known, strict=True), "x", color=_plots.GOAL, ms=8, mew=2)
        _plots.mark_sizes(ax, m)
        if name != "accuracy":
            ax.set_yscale("log")
            _plots.plain_ticks(ax.yaxis)
        ax.set_xlabel("sketch rows m")
        ax.set_ylabel(label)
        ax.set_title(setup, fontsize=10)
