"""Exact neighbours in batches and one query a call, beside exact peers."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from sklearn.neighbors import NearestNeighbors

from . import _data, _peers, _plots, _report, _timing
from ._data import ExactNeighbors, Problem, transformed

GOAL_OUTSIDE = 1
GOAL_FEW_POINTS = 1 / 1.15
GOAL_MAHALANOBIS = 10_000

_SMALL_BATCH = 20
# Queries, and calls of one query, from which peers are judged that are so many times
# slower than the best: some take minutes.
_FEW_QUERIES, _FEW_CALLS, _FAR = 50, 10, 4
_MOST_CALLS = 100
_MAHALANOBIS_POINTS = 512
_MAHALANOBIS_QUERIES = 4


@dataclass(frozen=True)
class Case:
    """Data under a metric, the sizes of the batches of queries, and their goals.

    Goals are ratios to the fastest exact peer, or to the peer named by `against`. With
    `outside`, queries uniform in the bounding box of the points are measured as well.
    """

    name: str
    make: Callable[[], Problem]
    goals: dict = field(default_factory=dict)
    batches: tuple = (500, 1)
    K: int = 10
    outside: bool = False
    against: str | None = None
    mahalanobis: bool = False


def run(options, progress):
    """Measure every case; those without their data are skipped with a note."""
    cases = quick_cases() if options.quick else complete_cases()
    progress.begin("neighbors", 1 + len(cases))
    progress.step("imports and compilation")
    rows, skipped, notes = [], [], [_warm_up(cases[0], options.n_jobs)]
    for case in cases:
        progress.step(case.name)
        try:
            rows += measure(case, options.n_jobs, rounds=2 if options.quick else 5)
        except _data.AbsentError as absent:
            what = f"kneighbors, {case.name}"
            skipped.append(_report.unjudged(what, f"skipped: {absent}"))
    return _report.Result("neighbors", rows, judge(rows) + skipped, notes)


def quick_cases():
    """Small cases that take seconds, one of each kind."""
    return [
        Case(
            "clustered 2,000 × 256",
            _problem(_data.clustered, 2000, 256, 40),
            goals={40: 3, 1: 8},
            batches=(40, 1),
            outside=True,
        ),
        Case(
            "clustered 1,000 × 128, dense U",
            _problem(_data.clustered, 1000, 128, 40, metric=_dense),
            batches=(40, 1),
            mahalanobis=True,
        ),
        Case(
            "isotropic 500 × 64",
            _problem(_data.isotropic, 500, 64, 40),
            goals={1: GOAL_FEW_POINTS},
            batches=(40, 1),
            against=_peers.ScikitLearnDefault.name,
        ),
    ]


def complete_cases():
    """The cases with goals, then cases that few bounds help with."""
    return [*_large_cases(), *_real_cases(), *_small_cases(), *_further_cases()]


def measure(case, n_jobs, rounds):
    """A row for each kind of queries and each batch size of the case."""
    problem = case.make()
    X, U, Q = problem
    Y = np.ascontiguousarray(transformed(X, U))
    contenders = _contenders(case, n_jobs)
    fits = {c.name: _timing.timed(c.fit, X, U, Y, case.K)[0] for c in contenders}
    kinds = {"from the data": Q[: max(case.batches)]}
    if case.outside:
        kinds["outside"] = _data.outside(X, max(case.batches))
    rows = []
    for kind, queries in kinds.items():
        exact = ExactNeighbors(problem._replace(Q=queries), case.K)
        for batch in case.batches:
            found = _race(contenders, exact, queries, batch, rounds)
            goal = GOAL_OUTSIDE if kind == "outside" else case.goals.get(batch)
            row = {"case": case.name, "queries": kind, "batch": batch, "goal": goal}
            row |= {"n": len(X), "d": X.shape[1], "k": Y.shape[1], "K": case.K}
            row |= {"fits": fits, "contenders": found, **_ratio(found, case.against)}
            rows.append(row)
    if case.mahalanobis:
        _add_mahalanobis(rows, problem, case.K)
    return rows


def judge(rows):
    """The goals for neighbours; neighbours that are not exact fail them."""
    goals = []
    for row in rows:
        recall = row["contenders"]["skmahal"]["recall"]
        note = f"against {row['peer']}, recall {recall:.4f}"
        what, goal = f"kneighbors, {_place(row)}", row["goal"]
        right = {"holds": recall == 1, "note": note}
        if goal is not None and goal < 1:
            most = round(1 / goal, 2)
            goals.append(_report.at_most(what, 1 / row["ratio"], most, **right))
        elif goal is not None:
            goals.append(_report.at_least(what, row["ratio"], goal, **right))
        if "mahalanobis" in row:
            what = f"against scikit-learn metric='mahalanobis', {_place(row)}"
            ratio = row["mahalanobis"]["ratio"]
            goals.append(
                _report.at_least(what, ratio, GOAL_MAHALANOBIS, holds=recall == 1)
            )
    return goals


def show(result):
    """Print a line for each row, and then the times of all contenders."""
    columns = ["case", "queries", "batch", "skmahal", "recall", "best exact peer"]
    lines = []
    for row in result.rows:
        ours, peer = row["contenders"]["skmahal"], row["peer"]
        lines.append(
            [
                row["case"],
                row["queries"],
                row["batch"],
                _report.seconds_text(ours["median"]),
                f"{ours['recall']:.4f}",
                peer,
                _report.seconds_text(row["contenders"][peer]["median"]),
                _report.floor_text(row["ratio"]),
                "-" if row["goal"] is None else f"{row['goal']:.3g}",
            ]
        )
    print("seconds a query\n")
    _report.print_table([*columns, "", "×", "goal"], lines)
    print("\nall contenders, seconds a query\n")
    lines = [line for row in result.rows for line in _contender_lines(row)]
    columns = ["case", "queries", "batch", "contender", "threads", "seconds", "× ours"]
    _report.print_table([*columns, "recall", "fit"], lines)


def plot(result, path):
    """Bars of ratios, batches on the left and single queries on the right."""
    batches = [row for row in result.rows if row["batch"] > 1]
    singles = [row for row in result.rows if row["batch"] == 1]
    longest = max(len(batches), len(singles), 4)
    fig, axes = _plots.figure(1, 2, (15, 1.2 + 0.34 * longest))
    titles = ["batches", "one query a call"]
    for ax, rows, title in zip(axes, [batches, singles], titles, strict=True):
        labels = [_label(row) for row in rows]
        ratios = [row["ratio"] for row in rows]
        _plots.ratio_bars(ax, labels, ratios, [row["goal"] for row in rows], title)
        ax.set_xlabel("times faster than the best exact peer (red: goal)")
    _plots.save(fig, path)


def _large_cases():
    sizes = [(50_000, 512, 4, 10), (50_000, 2048, 13, 20), (20_000, 5120, 18, 25)]
    cases = [
        Case(
            f"clustered {n:,} × {d:,}",
            _problem(_data.clustered, n, d),
            goals={500: batch, 1: single},
            outside=True,
        )
        for n, d, batch, single in sizes
    ]
    isotropic = Case(
        "isotropic 20,000 × 512",
        _problem(_data.isotropic, 20_000, 512),
        goals={500: 1, 1: 1.5},
        outside=True,
    )
    return [*cases, isotropic]


def _real_cases():
    shrunk, learned = _data.shrunk_metric, _data.learned_metric
    cases = [
        ("mnist, Euclidean", _problem(_data.mnist), 2.5, 3),
        ("mnist, shrunk covariance", _problem(_data.mnist, metric=shrunk), 2, 1.5),
        ("scrna, Euclidean", _problem(_data.scrna), 1.5, 3),
        ("scrna, learned, 256 rows", _problem(_data.scrna, metric=learned), 2, 1),
        ("glove", _problem(_data.glove), 2, 3),
    ]
    return [
        Case(name, make, goals={500: batch, 1: single}, outside=True)
        for name, make, batch, single in cases
    ]


def _small_cases():
    return [
        Case(
            f"isotropic {n:,} × {d}",
            _problem(_data.isotropic, n, d),
            goals={1: GOAL_FEW_POINTS},
            against=_peers.ScikitLearnDefault.name,
        )
        for n, d in [(500, 64), (1000, 20)]
    ]


def _further_cases():
    whitening = _problem(_data.mnist, metric=_data.whitening_metric)
    return [
        Case(
            "clustered 20,000 × 1,024, dense U",
            _problem(_data.clustered, 20_000, 1024, metric=_dense),
            mahalanobis=True,
        ),
        Case("isotropic 20,000 × 64", _problem(_data.isotropic, 20_000, 64)),
        Case("mnist, whitened", whitening),
        Case("mnist, Euclidean, K=50", _problem(_data.mnist), K=50),
        Case("clustered 500 × 512", _problem(_data.clustered, 500, 512)),
    ]


def _problem(points, *sizes, metric=None):
    """What makes a problem of points, queries and perhaps labels, and of a metric."""

    def make():
        X, Q, *labels = points(*sizes)
        return Problem(X, None if metric is None else metric(X, *labels), Q)

    return make


def _dense(X):
    return _data.dense_metric(X.shape[1])


def _contenders(case, n_jobs):
    peers = _peers.installed(_peers.EXACT)
    if case.against == _peers.ScikitLearnDefault.name:
        peers += [_peers.ScikitLearnDefault]
    return [_peers.Ours(n_jobs), *(peer() for peer in peers)]


def _warm_up(case, n_jobs):
    """Use every contender once on small data; what that took, in words."""
    took = [
        f"{contender.name} {_timing.timed(_peers.warm_up, contender)[0]:.1f} s"
        for contender in _contenders(case, n_jobs)
    ]
    return f"First use on small data, with imports and compilation: {', '.join(took)}."


def _race(contenders, exact, Q, batch, rounds):
    """Time and recall of each contender for one batch size.

    Peers may use one thread or all in small batches, and the better counts. Those that
    are far from the best are measured on few queries.
    """
    calls = min(_MOST_CALLS, len(Q) // batch) if batch < 100 else 1
    tiles = [Q[at * batch : (at + 1) * batch] for at in range(calls)]
    few = tiles[:_FEW_CALLS] if calls > 1 else [Q[:_FEW_QUERIES]]
    tried = {peer.name: _timing.timed(_asker(peer, few)) for peer in contenders[1:]}
    most = _FAR * min(seconds for seconds, _ in tried.values())
    runs, rivals, recalls, found = {}, [], {}, {}
    for contender in contenders:
        name, ask = contender.name, _asker(contender, tiles)
        seconds, answer = tried.get(name, (0.0, None))
        if seconds > most:
            entry = _timing.summary([seconds], per=sum(map(len, few)))
            recall = exact.recall(np.concatenate(answer))
            found[name] = entry | {"threads": "all", "recall": recall}
            continue
        recalls[name] = exact.recall(np.concatenate(ask()))
        is_peer = name != "skmahal"
        for limit in [None, 1] if is_peer and batch < _SMALL_BATCH else [None]:
            runs[name, limit] = _timing.pinned(ask, limit)
            if is_peer:
                rivals.append((name, limit))
    for (name, limit), seconds in _timing.alternate(
        runs, rounds=rounds, rivals=rivals
    ).items():
        entry = _timing.summary(seconds, per=calls * batch)
        entry |= {"threads": limit or "all", "recall": recalls[name]}
        if name not in found or entry["median"] < found[name]["median"]:
            found[name] = entry
    return found


def _asker(contender, tiles):
    return lambda: [contender.kneighbors(tile) for tile in tiles]


def _ratio(found, against):
    """The peer to compare with, and how many times our time it took."""
    exact = [peer.name for peer in _peers.EXACT if peer.name in found]
    peer = against or min(exact, key=lambda name: found[name]["median"])
    return {"peer": peer, "ratio": found[peer]["median"] / found["skmahal"]["median"]}


def _add_mahalanobis(rows, problem, K):
    """Time of scikit-learn's own metric from a few pairs: it is the same for each."""
    X, U, Q = problem
    index = NearestNeighbors(
        n_neighbors=K,
        algorithm="brute",
        metric="mahalanobis",
        metric_params={"VI": (U.T @ U).astype(np.float64)},
        n_jobs=-1,
    ).fit(X[:_MAHALANOBIS_POINTS])
    queries = Q[:_MAHALANOBIS_QUERIES]
    pairs = len(queries) * min(_MAHALANOBIS_POINTS, len(X))
    runs = {
        limit: _timing.pinned(lambda: index.kneighbors(queries), limit)
        for limit in (None, 1)
    }
    times = _timing.alternate(runs, rounds=3)
    pair = min(_timing.median(seconds) for seconds in times.values()) / pairs
    for row in rows:
        ratio = pair * len(X) / row["contenders"]["skmahal"]["median"]
        row["mahalanobis"] = {"pair": pair, "pairs_timed": pairs, "ratio": ratio}


def _place(row):
    batch = "one a call" if row["batch"] == 1 else f"{row['batch']} queries"
    kind = ", from outside" if row["queries"] == "outside" else ""
    return f"{row['case']}, {batch}{kind}"


def _label(row):
    kind = ", outside" if row["queries"] == "outside" else ""
    batch = f", {row['batch']:,} a call" if row["batch"] not in (1, 500) else ""
    return f"{row['case']}{kind}{batch}"


def _contender_lines(row):
    ours = row["contenders"]["skmahal"]["median"]
    for name, entry in row["contenders"].items():
        yield [
            row["case"],
            row["queries"],
            row["batch"],
            name,
            entry["threads"],
            _report.seconds_text(entry["median"]),
            f"{entry['median'] / ours:.3g}",
            f"{entry['recall']:.4f}",
            _report.seconds_text(row["fits"][name]),
        ]
    if "mahalanobis" in row:
        pair = row["mahalanobis"]
        name = f"metric='mahalanobis', from {pair['pairs_timed']:,} pairs"
        seconds = _report.seconds_text(pair["pair"] * row["n"])
        cells = ["-", seconds, f"{pair['ratio']:.3g}", "-", "-"]
        yield [row["case"], row["queries"], row["batch"], name, *cells]
