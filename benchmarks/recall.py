"""Approximate neighbours at a recall, beside faiss IVF-Flat and hnswlib.

Also their growth with the number of points, a metric that changes between two queries,
and the recall through many changes of the metric.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
from sklearn.metrics import pairwise_distances_argmin

from skmahal import SketchedMahalanobisNeighbors, warm_up
from skmahal.online import LEGO

from . import _data, _peers, _plots, _report, _timing
from ._data import ExactNeighbors, Problem, transformed
from .online import Steps
from .scaling import _update

K = 10
ASKED = (0.9, 0.95, 0.99)
OURS, EXACT = "skmahal", "skmahal, exact"
IVF, HNSW = _peers.Ivf.name, _peers.Hnsw.name

# Data, recall, peers of which the faster counts, and the most times its time.
GOALS = [
    ("glove", 0.95, (IVF,), 1.2),
    ("glove", 0.95, (HNSW,), 0.5),
    ("glove", 0.99, (IVF,), 1.2),
    ("clustered", 0.99, (IVF, HNSW), 1.5),
]
GOAL_SECONDS = 0.99, 3e-4
GOAL_UPDATE = {IVF: 30, HNSW: 500}
GOAL_GROWTH = 4
GOAL_FIT = 5
GOAL_SHORT = 0.01

# Queries that an index is asked first, that recall is measured on, that are timed.
_WARM, _QUERIES, _TIMED = 200, 1000, 200

# Settings of the peers; larger ones are left out after one with a recall of _ENOUGH.
_LISTS = (2, 4, 8)
_PROBES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256)
_EF = (10, 20, 35, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1200, 1600, 2400, 3200)
_ENOUGH = 0.995
# Settings of a peer that are timed in turn with ours, for each recall.
_FASTEST = 2

_SIZES = (100_000, 1_000_000)
_UPDATES = 40
_CHECKPOINTS = 10
_LEGO_STEPS, _BATCH, _LABELS = 1000, 10, 20
_STRETCHES, _STRETCH = 20, 5


class Contender(NamedTuple):
    """A contender for a recall at one setting, and its call for one query."""

    name: str
    asked: float | None
    setting: str
    recall: float
    call: Callable | None
    seconds: float | None = None

    def row(self):
        """What can be written."""
        values = self._asdict()
        del values["call"]
        return values


def run(options, progress):
    """Measure every case; those without their data are left out with a note."""
    tasks = list(measurements(options))
    # Loops are compiled once per installation: no step of the metric waits for that.
    warm_up()
    progress.begin("recall", len(tasks))
    rows, notes = [], []
    for name, measure in tasks:
        progress.step(name)
        try:
            rows.append(measure())
        except _data.AbsentError as absent:
            notes.append(f"{name} is left out: {absent}.")
    return _report.Result("recall", rows, judge(rows), notes)


def measurements(options):
    """Names of all rows, and calls that measure them."""
    few, jobs = options.quick, options.n_jobs
    n, d = (4000, 64) if few else (200_000, 256)
    count = _WARM + _QUERIES
    points = {} if few else {"glove": partial(_data.glove, count)}
    points["clustered"] = partial(_data.clustered, n, d, count)
    for case, make in points.items():
        yield case, partial(measure_curves, case, make, options)
    yield "an update and a query", partial(measure_update, points["clustered"], jobs)
    for size in (2000, 8000) if few else _SIZES:
        make = partial(_data.clustered, size, d, count)
        yield f"{size:,} points", partial(measure_size, make, jobs)
    data = {"mnist": digits, "glove": partial(labelled, _data.glove, 3 * _QUERIES)}
    if few:
        data = {"clustered": partial(labelled, _data.clustered, 3000, 32)}
    for case, make in data.items():
        for steps, name in STEPS.items():
            moves = partial(measure_moves, case, make, steps, jobs)
            yield f"{name}, {case}", moves


def measure_curves(case, make, options):
    """Recall and time of a query of every contender, one query a call."""
    X, Q = make()
    warm, Q = Q[:_WARM], Q[_WARM:]
    exact, fits, found = ExactNeighbors(Problem(X, None, Q), K), {}, []
    for asked in (*ASKED, None):
        name, setting = (OURS, f"recall={asked}") if asked else (EXACT, "")
        index = index_for(asked, options.n_jobs)
        fits[name] = _timing.timed(index.fit, X)[0]
        one_a_call(index, warm)
        recall = exact.recall(one_a_call(index, Q))
        call = partial(index.kneighbors, return_distance=False)
        found.append(Contender(name, asked, setting, recall, call))
    peers = [_peers.Ivf] if options.exact_only else [_peers.Ivf, _peers.Hnsw]
    curves = {}
    for peer in _peers.installed(peers):
        fits[peer.name], curve = swept(peer, X, Q, exact)
        curves[peer.name] = [entry.row() for entry in curve]
        for asked in ASKED:
            enough = [entry for entry in curve if entry.recall >= asked]
            fastest = sorted(enough, key=attrgetter("seconds"))[:_FASTEST]
            found += [entry._replace(asked=asked) for entry in fastest]
    found = raced(found, Q, rounds=2 if options.quick else 7)
    shape = {"n": len(X), "d": X.shape[1], "K": K, "fits": fits}
    return {"kind": "curves", "case": case, **shape, "found": found, "curves": curves}


def swept(peer, X, Q, exact):
    """Least seconds of a build, and recall and time of a query at every setting."""
    is_ivf, builds, curve = peer is _peers.Ivf, [], []
    for contender in [peer(lists) for lists in _LISTS] if is_ivf else [peer()]:
        builds.append(_timing.timed(contender.fit, X, None, X, K)[0])
        lists = f"{contender.index.nlist} lists, nprobe" if is_ivf else "ef"
        for value in _PROBES if is_ivf else _EF:
            call = partial(_tuned_call, contender, value)
            recall, setting = exact.recall(call(Q)), f"{lists}={value}"
            seconds = min(_timing.timed(ask_all, call, Q)[0] for _ in range(2))
            entry = Contender(peer.name, None, setting, recall, call)
            curve.append(entry._replace(seconds=seconds / _TIMED))
            if recall >= _ENOUGH:
                break
    return min(builds), curve


def raced(contenders, Q, rounds):
    """Rows with the time of a query, taken in turn; the fastest setting of each."""
    calls = {entry: partial(ask_all, entry.call, Q) for entry in contenders}
    times = _timing.alternate(calls, rounds=rounds, budget=90)
    best = {}
    for entry, seconds in times.items():
        row = entry.row() | {"seconds": _timing.median(seconds) / _TIMED}
        row["times"] = seconds
        key = entry.name, entry.asked
        best[key] = min(best.get(key, row), row, key=itemgetter("seconds"))
    return list(best.values())


def ask_all(call, Q):
    """Queries that are timed, one a call."""
    for q in Q[:_TIMED]:
        call(q[None])


def measure_update(make, n_jobs, asked=0.99):
    """Seconds of an update and a query, and of transforming, building and a query."""
    X, Q = make()
    U = _data.dense_metric(X.shape[1])
    index, steps, times = index_for(asked, n_jobs, U).fit(X), Steps(X, U), []
    one_a_call(index, Q[:_WARM])
    for q in Q[_WARM : _WARM + _UPDATES]:
        w, v = steps.next()
        update, _ = _timing.timed(_update, index, w, v)
        times.append(update + _timing.timed(index.kneighbors, q[None])[0])
    fresh = Q[-_TIMED:]
    exact = ExactNeighbors(Problem(X, steps.U, fresh), K)
    recall = {OURS: exact.recall(one_a_call(index, fresh))}
    U = np.float32(steps.U)
    transform, Y = _timing.timed(transformed, X, U)
    row = {"kind": "update", "n": len(X), "d": X.shape[1], "asked": asked}
    row |= {OURS: _timing.summary(times), "transform": transform, "recall": recall}
    if _peers.installed([_peers.Ivf]):
        peer = _peers.Ivf(min(_LISTS))
        build, _ = _timing.timed(peer.fit, X, U, Y, K)
        row[IVF] = build + _timing.timed(peer.kneighbors, fresh[:1])[0]
        recall[IVF] = exact.recall(peer.kneighbors(fresh))
    return row


def measure_size(make, n_jobs, asked=0.95):
    """Seconds of `fit` and of a query, and the recall, at one number of points."""
    X, Q = make()
    index = index_for(asked, n_jobs)
    row = {"kind": "size", "n": len(X), "d": X.shape[1], "asked": asked}
    row["fit"] = _timing.timed(index.fit, X)[0]
    one_a_call(index, Q[:_WARM])
    fresh = Q[-_TIMED:]
    times = [_timing.timed(index.kneighbors, q[None])[0] for q in fresh]
    exact = ExactNeighbors(Problem(X, None, fresh), K)
    row |= {"query": _timing.median(times), "queries": times}
    return row | {"recall": exact.recall(one_a_call(index, fresh))}


def measure_moves(case, make, steps, n_jobs):
    """Recall as the metric moves, for every recall that is asked for.

    At a checkpoint some queries are asked of the index, which may measure its recall on
    them later. The recall is that of many others, asked of a copy, so that they are new
    to the index every time. `shares` of the points are in the cells that are probed in
    the end.
    """
    X, Q, y = make()
    indexes = {asked: index_for(asked, n_jobs).fit(X) for asked in ASKED}
    recalls = {asked: [] for asked in ASKED}
    judged, parts = Q[:_QUERIES], iter(np.array_split(Q[_QUERIES:], _CHECKPOINTS))
    for change, is_checkpoint in steps(X, y):
        for index in indexes.values():
            index.update_metric(**change)
        if is_checkpoint:
            fresh = next(parts)
            exact = ExactNeighbors(Problem(X, index.components_, judged), K)
            for asked, index in indexes.items():
                # Queries would be exact until it pays to measure; this does it now.
                index.guarantee()
                found = one_a_call(deepcopy(index), judged)
                recalls[asked].append(exact.recall(found))
                one_a_call(index, fresh)
    held = [index.guarantee().recall for index in indexes.values()]
    shares = [1.0 if recall is None else recall.share for recall in held]
    row = {"kind": "moves", "case": case, "steps": STEPS[steps], "n": len(X)}
    return row | {"recalls": [*recalls.items()], "shares": shares}


def lego_steps(X, y):
    """A learner of a few labelled points at a time, until it has changed so often."""
    learner, rng, checkpoints = LEGO(random_state=0), np.random.default_rng(0), 0
    while checkpoints < _CHECKPOINTS:
        rows = rng.choice(len(X), _BATCH, replace=False)
        learner.partial_fit(X[rows], y[rows])
        is_due = learner.version_ * _CHECKPOINTS >= _LEGO_STEPS * (checkpoints + 1)
        checkpoints += is_due
        yield {"metric": learner}, is_due


def strong_steps(X, y):
    """Random directions, each made some times as long."""
    U, rng = np.eye(X.shape[1]), np.random.default_rng(0)
    for step in range(1, _STRETCHES + 1):
        v = rng.standard_normal((len(U), 1))
        v /= np.linalg.norm(v)
        w = (_STRETCH - 1) * (U @ v)
        U += w @ v.T
        yield {"low_rank": (w, v)}, step % (_STRETCHES // _CHECKPOINTS) == 0


STEPS = {
    lego_steps: f"{_LEGO_STEPS:,} steps of LEGO",
    strong_steps: f"{_STRETCHES} stretches by {_STRETCH}",
}


def judge(rows):
    """Goals, which fail where our recall is less than was asked for."""
    curves = {row["case"]: row for row in _of_kind(rows, "curves")}
    last = curves["clustered"]
    goals = [
        _judge_peer(curves[case], *goal) for case, *goal in GOALS if case in curves
    ]
    goals.append(_judge_seconds(last, *GOAL_SECONDS))
    build = last["fits"].get(HNSW)
    goals += _judge_update(*_of_kind(rows, "update"), build)
    goals += _judge_sizes(*_of_kind(rows, "size"), last["n"], build)
    return goals + [_judge_moves(row) for row in _of_kind(rows, "moves")]


def _judge_peer(row, asked, peers, most):
    what = f"{_place(row, asked)}, against {' or '.join(peers)}"
    entries = [entry for name in peers if (entry := _entry(row, name, asked))]
    if not entries:
        return _report.unjudged(what, "not measured, or no setting has the recall")
    ours, peer = _entry(row, OURS, asked), min(entries, key=itemgetter("seconds"))
    holds, ratio = ours["recall"] >= asked, ours["seconds"] / peer["seconds"]
    note = f"{_recall(ours)}; {peer['setting']} {_recall(peer)}"
    return _report.at_most(what, ratio, most, holds=holds, note=note)


def _judge_seconds(row, asked, most):
    ours, text = _entry(row, OURS, asked), _report.seconds_text
    met = ours["seconds"] <= most and ours["recall"] >= asked
    measured = f"{text(ours['seconds'])}, {_recall(ours)}"
    return _report.Goal(_place(row, asked), f"≤ {text(most)}", measured, met)


def _judge_update(row, build):
    """Means count, since updates may put work off."""
    rebuilds = rebuild_seconds(row, build)
    goals = []
    for name, goal in GOAL_UPDATE.items():
        what = f"rank-one update and 1 query, recall {row['asked']}, n={row['n']:,}, "
        what += f"against transform + {name}, mean"
        if name not in rebuilds:
            goals.append(_report.unjudged(what, f"{name} is not measured"))
            continue
        ratio, recall = rebuilds[name] / row[OURS]["mean"], row["recall"][OURS]
        rest = {"holds": recall >= row["asked"], "note": f"recall {recall:.4f}"}
        goals.append(_report.at_least(what, ratio, goal, **rest))
    return goals


def _judge_sizes(least, most, n, build):
    place = f"{most['n']:,} × {most['d']}, recall {most['asked']}"
    what = f"growth of a query from {least['n']:,} to {place}"
    holds = most["recall"] >= most["asked"]
    note = f"{_report.seconds_text(most['query'])}, {_recall(most)}"
    ratio = most["query"] / least["query"]
    goals = [_report.at_most(what, ratio, GOAL_GROWTH, holds=holds, note=note)]
    what = f"fit of {place}, against a build of {HNSW}"
    if build is None:
        return [*goals, _report.unjudged(what, f"{HNSW} is not measured")]
    seconds = extrapolated(build, n, most["n"])
    note = f"{_report.seconds_text(seconds)} extrapolated from {n:,} points as n log n"
    ratio = seconds / most["fit"]
    return [*goals, _report.at_least(what, ratio, GOAL_FIT, holds=holds, note=note)]


def _judge_moves(row):
    least = [(asked, min(recalls)) for asked, recalls in row["recalls"]]
    met = all(recall >= asked - GOAL_SHORT for asked, recall in least)
    measured = ", ".join(f"{recall:.4f} for {asked}" for asked, recall in least)
    what = f"least recall through {row['steps']}, {row['case']}"
    return _report.Goal(what, f"≥ asked - {GOAL_SHORT}", measured, met)


def rebuild_seconds(row, build):
    """Seconds of transforming and building, of those that were measured."""
    builds = {IVF: row.get(IVF), HNSW: build}
    return {name: row["transform"] + t for name, t in builds.items() if t is not None}


def extrapolated(seconds, n, size):
    """Seconds of a build of `size` points in O(n log n), from those of n points.

    >>> round(extrapolated(1.0, 1000, 10_000), 2)
    13.33
    """
    return float(seconds * size * np.log(size) / (n * np.log(n)))


def show(result):
    """Print a table for each kind of row."""
    curves = _of_kind(result.rows, "curves")
    for row in curves:
        _show_curves(row)
    (update,) = _of_kind(result.rows, "update")
    _show_update(update, curves[-1]["fits"].get(HNSW))
    lines = [
        [f"{row['n']:,} × {row['d']}", f"{row['recall']:.4f}"]
        + [_report.seconds_text(row[name]) for name in ("fit", "query")]
        for row in _of_kind(result.rows, "size")
    ]
    _report.print_table(["recall=0.95", "recall", "fit", "one query"], lines)
    print("\nshare: that of the points in the cells that are probed in the end\n")
    lines = [
        [f"{row['case']}, {row['steps']}", asked, f"{min(recalls):.4f}", f"{share:.3f}"]
        for row in _of_kind(result.rows, "moves")
        for (asked, recalls), share in zip(row["recalls"], row["shares"], strict=True)
    ]
    _report.print_table(["metric", "asked", "least recall", "share"], lines)


def _show_update(row, build):
    times = {OURS: row[OURS]["mean"], **rebuild_seconds(row, build)}
    lines = [
        [
            name if name == OURS else f"transform + {name}",
            f"{row['recall'][name]:.4f}" if name in row["recall"] else "-",
            _report.seconds_text(seconds),
            _report.floor_text(seconds / times[OURS]),
        ]
        for name, seconds in times.items()
    ]
    title = f"an update and a query, n={row['n']:,}, recall={row['asked']}"
    _report.print_table([title, "recall", "mean", "× ours"], lines)
    print()


def _show_curves(row):
    fits = (f"{name} {_report.seconds_text(t)}" for name, t in row["fits"].items())
    print(f"{row['case']}, {row['n']:,} × {row['d']}; fit: {', '.join(fits)}\n")
    lines = []
    for entry in sorted(
        row["found"], key=lambda entry: (entry["asked"] or 1, entry["name"] != OURS)
    ):
        ours = _entry(row, OURS, entry["asked"]) or entry
        lines.append(
            [
                entry["name"],
                entry["asked"] or "all",
                entry["setting"],
                f"{entry['recall']:.4f}",
                _report.seconds_text(entry["seconds"]),
                f"{entry['seconds'] / ours['seconds']:.2f}",
            ]
        )
    for name, curve in row["curves"].items():
        most = max(entry["recall"] for entry in curve)
        for asked in ASKED:
            if most < asked:
                lines.append([name, asked, "all", f"at most {most:.4f}", "-", "-"])
    columns = ["one query a call", "asked", "setting", "recall", "a query", "× ours"]
    _report.print_table(columns, lines)
    print()


def plot(result, path):
    """Recall against time for each contender, and recall as the metric moves."""
    curves, moves = (_of_kind(result.rows, kind) for kind in ("curves", "moves"))
    columns = -(-(len(curves) + len(moves)) // 2)
    fig, axes = _plots.figure(2, columns, (4.6 * columns, 7.2))
    for ax, row in zip(axes, curves, strict=False):
        _plot_curves(ax, row)
    for ax, row in zip(axes[len(curves) :], moves, strict=False):
        _plot_moves(ax, row)
    for ax in axes[len(curves) + len(moves) :]:
        ax.set_axis_off()
    _plots.save(fig, path)


def _plot_curves(ax, row):
    ours = [_entry(row, OURS, asked) for asked in ASKED] + [_entry(row, EXACT, None)]
    named = {name: _best(curve) for name, curve in row["curves"].items()}
    colours = {OURS: _plots.OURS, IVF: _plots.PEER, HNSW: _plots.OTHER}
    for name, entries in {OURS: ours, **named}.items():
        x, y = ([entry[key] for entry in entries] for key in ("seconds", "recall"))
        ax.plot(1e3 * np.array(x), y, "o-", color=colours[name], ms=4, label=name)
    for asked in ASKED:
        ax.axhline(asked, color="black", lw=0.5, ls=":")
    ax.set(xscale="log", xlabel="milliseconds a query (skmahal: last point exact)")
    ax.set(ylabel="recall", ylim=(0.8, 1.005))
    _plots.plain_ticks(ax.xaxis)
    ax.set_title(f"{row['case']}, {row['n']:,} × {row['d']}", fontsize=10)
    ax.legend(fontsize=8, loc="lower right")


def _plot_moves(ax, row):
    shades = (0.45, 0.7, 1.0)
    for (asked, recalls), shade in zip(row["recalls"], shades, strict=True):
        x = np.arange(1, len(recalls) + 1)
        ax.plot(x, recalls, "o-", color=_plots.OURS, alpha=shade, ms=4, label=asked)
        ax.axhline(asked - GOAL_SHORT, color=_plots.GOAL, lw=1)
    ax.set(xlabel="checkpoint (red: goals)", ylabel="recall of held-out queries")
    ax.set_ylim(0.84, 1.005)
    ax.set_title(f"{row['case']}, {row['steps']}", fontsize=10)
    ax.legend(fontsize=8, loc="lower right", ncols=3, title="asked")


def index_for(recall, n_jobs, U=None):
    """Our index, before `fit`."""
    rest = {"metric_learner": U, "random_state": 0, "n_jobs": n_jobs}
    return SketchedMahalanobisNeighbors(K, recall=recall, **rest)


def one_a_call(index, Q):
    """Positions of the neighbours of queries that are asked one at a time."""
    found = [index.kneighbors(q[None], return_distance=False) for q in Q]
    return np.concatenate(found)


def digits():
    """Digits, those held out, and labels.

    Those held out are in random order: consecutive ones are often by one writer.
    """
    X, Q = _data.mnist()
    order = np.random.default_rng(0).permutation(len(Q))
    return X, Q[order], _data.load(_data.MNIST)["y"]


def labelled(make, *args):
    """Points and queries, and the nearest of the first few points as labels."""
    X, Q = make(*args)
    return X, Q, pairwise_distances_argmin(X, X[:_LABELS])


def _best(entries):
    """Entries in order of time that have more recall than all faster ones."""
    best = []
    for entry in sorted(entries, key=itemgetter("seconds")):
        if not best or entry["recall"] > best[-1]["recall"]:
            best.append(entry)
    return best


def _tuned_call(contender, value, Q):
    return contender.tuned(value).kneighbors(Q)


def _of_kind(rows, kind):
    return [row for row in rows if row["kind"] == kind]


def _entry(row, name, asked):
    """What a contender had at a recall; None if it was not reached or not measured."""
    for entry in row["found"]:
        if entry["name"] == name and entry["asked"] == asked:
            return entry
    return None


def _place(row, asked):
    return f"{row['case']} {row['n']:,} × {row['d']}, recall {asked}, one a call"


def _recall(entry):
    return f"recall {entry['recall']:.4f}"
