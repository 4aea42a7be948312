"""Samples in proportion to distance, as the number of points grows."""

import numpy as np
from scipy.stats import chisquare

from skmahal import SketchedMahalanobisNeighbors

from . import _data, _plots, _report, _timing

FEATURES = 64
GOAL_GROWTH = 3
GOAL_BRUTE = 100

# A law that is right gives a smaller p-value once in a million runs.
_LEAST_P = 1e-6
_CALLS = 50


class AllDistances:
    """Distances to all points, their running sum, and a search in it."""

    def __init__(self, X, U):
        self.U, self.Y = U, np.ascontiguousarray(X @ U.T)
        self.norms = np.einsum("ij,ij->i", self.Y, self.Y)

    def sample(self, q, n_samples, rng):
        u = self.U @ q
        squares = self.Y @ u
        squares *= -2
        squares += self.norms + u @ u
        np.maximum(squares, 0, out=squares)
        sums = np.cumsum(np.sqrt(squares, out=squares), dtype=np.float64)
        return np.searchsorted(sums, sums[-1] * rng.random(n_samples), side="right")


def run(options, progress):
    """Measure every number of points, and test the law of the samples."""
    sizes = [1000, 10_000] if options.quick else [10_000, 100_000, 1_000_000]
    progress.begin("sampling", len(sizes) + 1)
    rows = []
    for n in sizes:
        progress.step(f"n={n:,}")
        rows.append(measure(n, options.n_jobs, rounds=3 if options.quick else 9))
    progress.step("law of the samples")
    p = law(options.n_jobs, draws=5000 if options.quick else 50_000)
    for row in rows:
        row["p_value"] = p
    return _report.Result("sampling", rows, judge(rows))


def measure(n, n_jobs, rounds):
    """Times of a draw by itself, and of a hundred for one query."""
    X, Q = _data.clustered(n, FEATURES, _CALLS)
    U = _data.dense_metric(FEATURES)
    index = SketchedMahalanobisNeighbors(
        metric_learner=U, random_state=0, n_jobs=n_jobs
    )
    fit, _ = _timing.timed(index.fit, X)
    first, _ = _timing.timed(index.sample, Q[:1], random_state=0)
    peer, rng = AllDistances(X, U), np.random.default_rng(0)
    few = Q[: max(3, min(_CALLS, 5_000_000 // n))]
    runs = {
        "ours": lambda: [index.sample(q[None], random_state=0) for q in Q],
        "ours_100": lambda: [index.sample(q[None], 100, random_state=0) for q in Q],
    }
    for limit in (None, 1):
        runs["peer", limit] = _timing.pinned(
            lambda: [peer.sample(q, 1, rng) for q in few], limit
        )
    times = _timing.alternate(runs, rounds=rounds)
    brute = [_timing.summary(times["peer", limit], len(few)) for limit in (None, 1)]
    ours = _timing.summary(times["ours"], len(Q))
    brute = min(brute, key=lambda entry: entry["median"])
    return {
        "n": n,
        "d": FEATURES,
        "k": FEATURES,
        "fit": fit,
        "first_call": first,
        "ours": ours,
        "ours_100": _timing.summary(times["ours_100"], len(Q)),
        "all_distances": brute,
        "ratio": brute["median"] / ours["median"],
    }


def law(n_jobs, draws, n=1000, bins=50):
    """p-value of a χ² test: draws against probabilities proportional to distance."""
    X, Q = _data.clustered(n, FEATURES, 1)
    U = _data.dense_metric(FEATURES)
    index = SketchedMahalanobisNeighbors(
        metric_learner=U, random_state=0, n_jobs=n_jobs
    )
    drawn = index.fit(X).sample(Q, draws, random_state=0)[0]
    d = np.linalg.norm((X - Q[0]).astype(np.float64) @ U.T.astype(np.float64), axis=1)
    which = np.argsort(np.argsort(d)) * bins // n
    expected = np.bincount(which, weights=d) * draws / d.sum()
    return float(chisquare(np.bincount(which[drawn], minlength=bins), expected).pvalue)


def judge(rows):
    """The goals for growth and against all distances."""
    growth = rows[-1]["ours"]["median"] / rows[0]["ours"]["median"]
    holds = rows[-1]["p_value"] >= _LEAST_P
    note = f"χ² test of the samples p={rows[-1]['p_value']:.2g}"
    sizes = f"k={FEATURES}, n={rows[0]['n']:,} to {rows[-1]['n']:,}"
    most = f"k={FEATURES}, n={rows[-1]['n']:,}"
    return [
        _report.at_most(
            f"sample, growth, {sizes}", growth, GOAL_GROWTH, holds=holds, note=note
        ),
        _report.at_least(
            f"sample against computing all distances, {most}",
            rows[-1]["ratio"],
            GOAL_BRUTE,
            holds=holds,
        ),
    ]


def show(result):
    """Print the times of a draw for every number of points."""
    columns = ["n", "one draw", "growth", "100 draws", "all distances", "×"]
    least = result.rows[0]["ours"]["median"]
    lines = [
        [
            f"{row['n']:,}",
            _report.seconds_text(row["ours"]["median"]),
            _report.ceil_text(row["ours"]["median"] / least),
            _report.seconds_text(row["ours_100"]["median"]),
            _report.seconds_text(row["all_distances"]["median"]),
            _report.floor_text(row["ratio"]),
            _report.seconds_text(row["fit"]),
            _report.seconds_text(row["first_call"]),
        ]
        for row in result.rows
    ]
    print(f"one query a call, k={FEATURES}\n")
    _report.print_table([*columns, "fit", "first call"], lines)
    print(f"\nχ² test of the samples: p={result.rows[-1]['p_value']:.3g}")


def plot(result, path):
    """Time of a draw against the number of points."""
    fig, (ax,) = _plots.figure(1, 1, (6.5, 4))
    n = [row["n"] for row in result.rows]
    ours = [1e3 * row["ours"]["median"] for row in result.rows]
    brute = [1e3 * row["all_distances"]["median"] for row in result.rows]
    ax.loglog(n, ours, "o-", color=_plots.OURS, label="sample, one draw")
    ax.loglog(n, brute, "s--", color=_plots.PEER, label="all distances, one draw")
    _plots.mark_sizes(ax, n)
    _plots.plain_ticks(ax.yaxis)
    ax.set_xlabel("points")
    ax.set_ylabel("milliseconds a call")
    ax.set_title(f"a sample in proportion to distance, k={FEATURES}", fontsize=10)
    ax.legend(fontsize=9)
    _plots.save(fig, path)
