"""Distances to all points, in batches and one query a call, beside exact ones.

Also distances of pairs, and seeds of clusters, which are made of distances.
"""

import numpy as np
from sklearn.cluster import kmeans_plusplus
from sklearn.metrics.pairwise import euclidean_distances

from skmahal import MetricMaintenance, SketchedMahalanobisNeighbors, sample_seeds

from . import _data, _plots, _report, _timing

BATCH = 64
GOAL_ISOTROPIC = 0.87
HAND, SKLEARN = "NumPy by hand", "scikit-learn"

# Calls after which whatever pays for itself over several of them has been made.
_WARM = 40
_FEW = 20


class ByHand:
    """Distances to transformed points by one product, with norms made beforehand."""

    def __init__(self, X, U):
        self.U, self.Y = U, np.ascontiguousarray(_data.transformed(X, U))
        self.norms = np.einsum("ij,ij->i", self.Y, self.Y)

    def __call__(self, Q):
        u = _data.transformed(Q, self.U)
        D = u @ self.Y.T if len(u) > 1 else (self.Y @ u[0])[None]
        D *= -2
        D += self.norms
        D += np.einsum("ij,ij->i", u, u)[:, None]
        return np.sqrt(np.maximum(D, 0, out=D), out=D)


def run(options, progress):
    """Measure every case; those without their data are skipped with a note."""
    cases = quick_cases() if options.quick else complete_cases()
    progress.begin("distances", len(cases) + 1)
    rows, skipped, rounds = [], [], 2 if options.quick else 7
    for name, make, goals in cases:
        progress.step(name)
        try:
            X, Q, U = make()
        except _data.AbsentError as absent:
            skipped.append(_report.unjudged(f"distances, {name}", f"skipped: {absent}"))
            continue
        for count, goal in zip((BATCH, 1), goals, strict=True):
            row = {"case": name, "batch": count, "goal": goal, "n": len(X)}
            rows.append({**row, **measure(X, U, Q, count, options.n_jobs, rounds)})
    progress.step("seeds")
    seeds = measure_seeds(*(2000, 64, 50) if options.quick else (50_000, 128, 200))
    notes = [seeds["text"]]
    return _report.Result("distances", rows, judge(rows) + skipped, notes)


def quick_cases():
    """Small cases that take seconds."""
    return [
        ("decaying 2,000 × 128", lambda: (*_decaying(2000, 128), None), (1, 1)),
        (
            "isotropic 1,000 × 64",
            lambda: (*_data.isotropic(1000, 64, BATCH), None),
            (None, None),
        ),
    ]


def complete_cases():
    """Real data with their goals, then isotropic points, which have no contrast."""
    real = [
        ("mnist", lambda: (*_data.mnist(), None), (2, 4)),
        ("glove", lambda: (*_data.glove(), None), (1.2, 2.5)),
        ("tcga", lambda: (*_data.tcga(BATCH), None), (1.5, 1.5)),
        ("scrna", lambda: (*_data.scrna()[:2], None), (1.3, 2)),
        ("mnist, shrunk covariance", _shrunk, (None, None)),
    ]
    sizes = [(1000, 64), (5000, 64), (20_000, 64), (5000, 512), (20_000, 512)]
    sizes += [(50_000, 128), (5000, 2048)]
    return real + [
        (
            f"isotropic {n:,} × {d:,}",
            lambda n=n, d=d: (*_data.isotropic(n, d, BATCH), None),
            (GOAL_ISOTROPIC, GOAL_ISOTROPIC),
        )
        for n, d in sizes
    ]


def measure(X, U, Q, count, n_jobs, rounds):
    """Times of a query by default, adaptively and by peers, and the largest error."""
    rest = {"metric_learner": U, "random_state": 0, "n_jobs": n_jobs}
    index = SketchedMahalanobisNeighbors(**rest).fit(X)
    certain = SketchedMahalanobisNeighbors(adaptive=True, **rest).fit(X)
    hand = ByHand(X, U)
    calls = 1 if count > 1 else _FEW
    tiles = [Q[at * count : (at + 1) * count] for at in range(calls)]
    for _ in range(_WARM):
        index.distances(tiles[0])
    runs = {
        "skmahal": index.distances,
        "adaptive": certain.distances,
        HAND: hand,
        SKLEARN: lambda q: euclidean_distances(_data.transformed(q, U), hand.Y),
    }
    truth = index._maintenance.exact_all(np.concatenate(tiles))
    errors = {
        name: float(np.abs(np.vstack([run(q) for q in tiles]) / truth - 1).max())
        for name, run in list(runs.items())[:2]
    }
    runs = {
        name: (lambda run=run: [run(q) for q in tiles]) for name, run in runs.items()
    }
    rivals = [HAND, SKLEARN]
    times = _timing.alternate(runs, rounds=rounds, rivals=rivals)
    found = {
        name: _timing.summary(seconds, per=calls * count)
        for name, seconds in times.items()
    }
    peer = min(rivals, key=lambda name: found[name]["median"])
    held, best = index._maintenance, found[peer]["median"]
    costs = held.index.plan.costs["all many" if count > 1 else "all one"]
    return {
        "contenders": found,
        "peer": peer,
        "ratio": best / found["skmahal"]["median"],
        "adaptive_ratio": best / found["adaptive"]["median"],
        "ways": [held._way(count), certain._maintenance._way(count)],
        "predicted": 1e-9 * min(costs.values()),
        "errors": errors,
    }


def measure_seeds(n, d, clusters):
    """Seeds by the law of k-means++, beside scikit-learn; in words."""
    X, _ = _data.clustered(n, d, 1)
    index = MetricMaintenance(None, X, seed=0)
    runs = {
        "skmahal": lambda: sample_seeds(index, clusters, random_state=0),
        SKLEARN: lambda: kmeans_plusplus(X, clusters, n_local_trials=1, random_state=0),
    }
    times = _timing.alternate(runs, rounds=3)
    found = {name: _timing.median(seconds) for name, seconds in times.items()}
    text = ", ".join(f"{n} {_report.seconds_text(s)}" for n, s in found.items())
    sizes = f"{clusters} seeds among {n:,} × {d} clustered points"
    ratio = _report.floor_text(found[SKLEARN] / found["skmahal"])
    return {**found, "text": f"{sizes}: {text}, {ratio}."}


def judge(rows):
    """Goals for the default, which fail where a distance is off by more than eps."""
    goals = []
    for row in rows:
        off = max(row["errors"].values())
        note = f"against {row['peer']}, largest error {off:.3f}"
        what, rest = f"distances, {_place(row)}", {"holds": off <= 0.2, "note": note}
        if row["goal"] is not None:
            goals.append(_report.at_least(what, row["ratio"], row["goal"], **rest))
    return goals


def show(result):
    """Print a line for each case and batch."""
    columns = ["case", "batch", "way", "skmahal", "adaptive", "best exact", "×"]
    columns += ["adaptive ×", "goal", "error", "predicted", "by"]
    lines = [
        [
            row["case"],
            row["batch"],
            " / ".join(dict.fromkeys(row["ways"])),
            *(
                _report.seconds_text(row["contenders"][name]["median"])
                for name in ("skmahal", "adaptive", row["peer"])
            ),
            _report.floor_text(row["ratio"]),
            _report.floor_text(row["adaptive_ratio"]),
            "-" if row["goal"] is None else f"{row['goal']:.3g}",
            f"{max(row['errors'].values()):.3f}",
            _report.seconds_text(row["predicted"]),
            row["peer"],
        ]
        for row in result.rows
    ]
    print("seconds a query; predicted is the cost model, without one sketch\n")
    _report.print_table(columns, lines)


def plot(result, path):
    """Bars of ratios, batches on the left and single queries on the right."""
    longest = max(len(result.rows) // 2, 4)
    fig, axes = _plots.figure(1, 2, (15, 1.2 + 0.34 * longest))
    for ax, batch in zip(axes, (BATCH, 1), strict=True):
        rows = [row for row in result.rows if row["batch"] == batch]
        labels, ratios = ([row[name] for row in rows] for name in ("case", "ratio"))
        title = f"{batch} a call" if batch > 1 else "one query a call"
        _plots.ratio_bars(ax, labels, ratios, [row["goal"] for row in rows], title)
        ax.set_xlabel("times faster than the best exact way (red: goal)")
    _plots.save(fig, path)


def _decaying(n, d, seed=0):
    """Points and queries whose variance falls from column to column."""
    X, Q = _data.isotropic(n, d, BATCH, seed)
    scales = np.float32(0.9) ** np.arange(d, dtype=np.float32)
    return X * scales, Q * scales


def _shrunk():
    X, Q = _data.mnist()
    return X, Q, _data.shrunk_metric(X)


def _place(row):
    batch = "one a call" if row["batch"] == 1 else f"{row['batch']} queries"
    return f"{row['case']}, {batch}"
