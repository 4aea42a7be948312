"""Memory that an index holds, and that building and first using it takes at most."""

import tracemalloc

from skmahal import SketchedMahalanobisNeighbors

from . import _data, _plots, _report

GOAL_HELD = 1.15
GOAL_PEAK = 1.5

_QUERIES = 200
_ITEM = 4


def run(options, progress):
    """Measure an index under each kind of metric."""
    cases = [(4000, 256, None), (4000, 256, 128)]
    if not options.quick:
        cases = [(50_000, 512, None), (20_000, 1024, 1024), (20_000, 2048, 256)]
    progress.begin("memory", len(cases))
    rows = []
    for n, d, k in cases:
        progress.step(_name(n, d, k))
        rows.append(measure(n, d, k, options.n_jobs))
    return _report.Result("memory", rows, judge(rows))


def measure(n, d, k, n_jobs):
    """Bytes held and at the peak, beside those of the arrays that the index needs."""
    index, (fitted, used) = traced(n, d, k, n_jobs)
    parts = reference(index, n, d, k)
    total = sum(parts.values())
    return {
        "n": n,
        "d": d,
        "k": k or d,
        "metric": "Euclidean" if k is None else "dense U",
        "after_fit": fitted,
        "after_queries": used,
        "parts": parts,
        "reference": total,
        "held_ratio": max(fitted["held"], used["held"]) / total,
        "peak_ratio": max(fitted["peak"], used["peak"]) / total,
    }


def traced(n, d, k, n_jobs):
    """An index, and bytes held and at the peak: after `fit`, and after queries.

    The caller's own X is not counted.
    """
    X, Q = _data.clustered(n, d, _QUERIES)
    U = None if k is None else _data.dense_metric(d)[:k]
    index = SketchedMahalanobisNeighbors(
        10, metric_learner=U, random_state=0, n_jobs=n_jobs
    )
    # What is imported or compiled at first use is not the index's memory.
    SketchedMahalanobisNeighbors(metric_learner=U, n_jobs=n_jobs).fit(
        X[:500]
    ).kneighbors(Q[:20])
    tracemalloc.start()
    fitted = _traced(index.fit, X)
    used = _traced(index.kneighbors, Q)
    tracemalloc.stop()
    return index, (fitted, used)


def reference(index, n, d, k):
    """Bytes of each array that exact queries need.

    Codes take a byte a column, of the points or of transformed rows where U has few
    rows. How many leading coordinates there are is known to the index alone.
    """
    state = index._maintenance.index._state
    rows = 0 if state.images is None else k
    coded = 0 if state.coded is None else 1
    return {
        "points": _ITEM * n * d,
        "U": 0 if k is None else 8 * k * d,
        "transformed rows": _ITEM * n * rows,
        "codes": coded * n * (rows or d),
        "leading coordinates": coded
        * n
        * (_ITEM * (state.plan.r_many + 2) + state.plan.r_one),
    }


def judge(rows):
    """The goals for memory, for the worst of the rows."""
    held = max(rows, key=lambda row: row["held_ratio"])
    peak = max(rows, key=lambda row: row["peak_ratio"])
    return [
        _report.at_most(
            "memory after fit and queries, over that of the arrays needed",
            held["held_ratio"],
            GOAL_HELD,
            note=_label(held),
        ),
        _report.at_most(
            "peak memory of fit and first queries, over the same",
            peak["peak_ratio"],
            GOAL_PEAK,
            note=_label(peak),
        ),
    ]


def show(result):
    """Print bytes and ratios for every case."""
    columns = ["case", "arrays needed", "after fit", "after queries", "held"]
    lines = [
        [
            _label(row),
            _report.bytes_text(row["reference"]),
            _report.bytes_text(row["after_fit"]["held"]),
            _report.bytes_text(row["after_queries"]["held"]),
            _report.ceil_text(row["held_ratio"]),
            _report.bytes_text(row["after_fit"]["peak"]),
            _report.bytes_text(row["after_queries"]["peak"]),
            _report.ceil_text(row["peak_ratio"]),
        ]
        for row in result.rows
    ]
    columns += ["fit peak", "query peak", "peak"]
    _report.print_table(columns, lines)


def plot(result, path):
    """Held and peak memory beside the reference."""
    rows = result.rows
    fig, (ax,) = _plots.figure(1, 1, (8.5, 1.6 + 0.9 * len(rows)))
    for number, row in enumerate(reversed(rows)):
        unit = 1 / row["reference"]
        held = unit * max(row["after_fit"]["held"], row["after_queries"]["held"])
        for shift, value, colour, name in [
            (0.2, held, _plots.OURS, "held"),
            (-0.2, row["peak_ratio"], _plots.PEER, "peak"),
        ]:
            label = name if number == 0 else None
            ax.barh(number + shift, value, height=0.36, color=colour, label=label)
            _plots.text_at_edge(ax, number + shift, _report.ceil_text(value))
    ax.axvline(GOAL_HELD, color=_plots.OURS, ls="--", lw=1, label="goal, held")
    ax.axvline(GOAL_PEAK, color=_plots.PEER, ls="--", lw=1, label="goal, peak")
    ax.set_yticks(range(len(rows)), [_label(row) for row in reversed(rows)])
    ax.set_xlim(0, 1.05 * max(GOAL_PEAK, *(row["peak_ratio"] for row in rows)))
    ax.set_xlabel("memory over that of the arrays needed")
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=4)
    ax.spines[["top", "right"]].set_visible(False)
    _plots.save(fig, path)


def _traced(call, *args):
    """Bytes allocated since tracing began: at the end of a call, at its peak."""
    tracemalloc.reset_peak()
    call(*args)
    held, peak = tracemalloc.get_traced_memory()
    return {"held": held, "peak": peak}


def _label(row):
    k = None if row["metric"] == "Euclidean" else row["k"]
    return _name(row["n"], row["d"], k)


def _name(n, d, k):
    metric = "Euclidean" if k is None else f"U with {k:,} rows"
    return f"{n:,} × {d:,}, {metric}"
