"""Neighbours: batches and single queries, beside the exact and approximate peers."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from sklearn.neighbors import NearestNeighbors

from . import _data, _peers, _plots, _report, _timing
from ._data import Problem
from ._truth import Truth, surviving_share, transformed

WORST = 1 / 1.15
FEW_SURVIVE = 0.05
GOAL_FEW_SURVIVE = 3
GOAL_MAHALANOBIS = 10_000

_SMALL_BATCH = 20
_MOST_CALLS = 100
_MAHALANOBIS_POINTS = 512
_MAHALANOBIS_QUERIES = 4


@dataclass(frozen=True)
class Case:
    """Data under a metric, and the batch sizes to ask for its neighbours in."""

    data: str
    metric: str
    make: Callable[[], Problem]
    batches: tuple = (500, 1)
    K: int = 10
    goals: dict = field(default_factory=dict)
    real: bool = False
    approximate: bool = False
    mahalanobis: bool = False

    @property
    def name(self):
        return f"{self.data}, {self.metric}" + (f", K={self.K}" * (self.K != 10))


def run(options, progress):
    """Measure every case; data that are not there are skipped with a note."""
    cases = quick_cases() if options.quick else complete_cases()
    if options.exact_only:
        cases = [replace(case, approximate=False) for case in cases]
    progress.begin("neighbors", 1 + len(cases))
    progress.step("imports and compilation")
    rows, skipped, notes = [], [], [_warm_up(cases, options.n_jobs)]
    for case in cases:
        progress.step(case.name)
        try:
            rows += measure(case, options.n_jobs, rounds=2 if options.quick else 7)
        except _data.AbsentError as absent:
            what = f"kneighbors, {case.name}"
            skipped.append(_report.unjudged(what, f"skipped: {absent}"))
        _timing.clean()
    return _report.Result("neighbors", rows, judge(rows) + skipped, notes)


def quick_cases():
    """Seconds: one of each kind."""
    return [
        Case(
            "clustered 2,000 × 256",
            "Euclidean",
            lambda: Problem(*_with(None, _data.clustered(2000, 256, 40))),
            batches=(40, 1),
            goals={40: 3, 1: 8},
            real=True,
        ),
        Case(
            "clustered 1,000 × 128",
            "dense U",
            lambda: Problem(*_with(_data.dense_metric, _data.clustered(1000, 128, 40))),
            batches=(40, 1),
            mahalanobis=True,
        ),
        Case(
            "isotropic 500 × 64",
            "Euclidean",
            lambda: Problem(*_with(None, _data.isotropic(500, 64, 40))),
            batches=(40, 10),
            K=5,
        ),
    ]


def complete_cases():
    """Those that goals are set for, then those where sketches may not pay."""
    return [*_synthetic_cases(), *_real_cases(), *_hard_cases()]


def measure(case, n_jobs, rounds):
    """A row for each batch size of the case."""
    problem = case.make()
    problem = problem._replace(Q=problem.Q[: max(case.batches)])
    X, U, Q = problem
    Y = np.ascontiguousarray(transformed(X, U))
    truth = Truth(problem, Y, case.K)
    share = surviving_share(Y, transformed(Q, U), truth.kth, case.K)
    contenders = _contenders(case, n_jobs)
    fits = {c.name: _timing.timed(c.fit, X, U, Y, case.K)[0] for c in contenders}
    firsts = {c.name: _timing.timed(c.kneighbors, Q[:1])[0] for c in contenders}
    recalls = {c.name: truth.recall(c.kneighbors(Q)) for c in contenders}
    shared = {
        "data": case.data,
        "metric": case.metric,
        "n": len(X),
        "d": X.shape[1],
        "k": problem.k,
        "K": case.K,
        "real": case.real,
        "surviving_share": share,
        "settings": _settings(contenders[0].index),
    }
    rows = []
    for batch in case.batches:
        found = _race(contenders, Q, batch, rounds)
        for name, entry in found.items():
            entry["recall"] = recalls[name]
            entry["fit"], entry["first_call"] = fits[name], firsts[name]
        row = {**shared, "batch": batch, "goal": case.goals.get(batch)}
        rows.append({**row, **_ratios(found), "contenders": found})
    if case.mahalanobis:
        _add_mahalanobis(rows, problem, case.K)
    return rows


def judge(rows):
    """The goals for neighbours."""
    goals = [_judge_row(row) for row in rows if row["goal"] is not None]
    goals += [_judge_real(row) for row in rows if row["real"]]
    goals.append(_judge_worst(rows))
    for row in rows:
        if "mahalanobis" in row:
            what = f"against scikit-learn metric='mahalanobis', {_place(row)}"
            ratio = row["mahalanobis"]["ratio"]
            holds = _right(row)
            goals.append(_report.at_least(what, ratio, GOAL_MAHALANOBIS, holds=holds))
    return goals


def show(result):
    """Print a row for every case and batch size, and what the contenders took."""
    columns = ["case", "batch", "left", "skmahal", "recall", "best exact peer", "", "×"]
    columns.append("× after a rest")
    lines = []
    for row in result.rows:
        ours, best = row["contenders"]["skmahal"], row["best_exact"]
        lines.append(
            [
                _case(row),
                row["batch"],
                f"{row['surviving_share']:.1%}",
                _report.seconds_text(ours["median"]),
                f"{ours['recall']:.4f}",
                best,
                _report.seconds_text(row["contenders"][best]["median"]),
                _report.floor_text(row["ratio"]),
                _report.floor_text(row["rested_ratio"]),
            ]
        )
    print("seconds a query; left: share of the points that a bound leaves open\n")
    _report.print_table(columns, lines)
    print("\nevery contender, seconds a query\n")
    lines = [line for row in result.rows for line in _contender_lines(row)]
    columns = ["case", "batch", "contender", "threads", "seconds", "× ours", "recall"]
    _report.print_table([*columns, "fit", "first call"], lines)


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


def _synthetic_cases():
    sizes = [(50_000, 512, 3, 8), (50_000, 2048, 10, 18), (20_000, 5120, 20, 25)]
    cases = [
        Case(
            f"clustered {n:,} × {d:,}",
            "Euclidean",
            lambda n=n, d=d: Problem(*_with(None, _data.clustered(n, d))),
            batches=(500, 1, 10, 100, 1000) if d == 512 else (500, 1),
            goals={500: batch, 1: single},
            approximate=d == 512,
        )
        for n, d, batch, single in sizes
    ]
    dense = Case(
        "clustered 20,000 × 1,024",
        "dense U",
        lambda: Problem(*_with(_data.dense_metric, _data.clustered(20_000, 1024))),
        mahalanobis=True,
    )
    return [*cases, dense]


def _real_cases():
    return [
        Case("mnist", "Euclidean", _mnist(None), real=True, approximate=True),
        Case("mnist", "shrunk covariance", _mnist(_data.shrunk_metric), real=True),
        Case("scrna", "Euclidean", _scrna(None), real=True, approximate=True),
        Case("scrna", "learned, 256 rows", _scrna(_data.learned_metric), real=True),
    ]


def _hard_cases():
    def drawn(n, d):
        return lambda: Problem(*_with(None, _data.isotropic(n, d)))

    return [
        Case("isotropic 20,000 × 64", "Euclidean", drawn(20_000, 64)),
        Case("isotropic 20,000 × 512", "Euclidean", drawn(20_000, 512)),
        Case("mnist", "whitened", _mnist(_data.whitening_metric)),
        Case("mnist", "Euclidean", _mnist(None), K=50),
        Case("isotropic 500 × 64", "Euclidean", drawn(500, 64)),
        Case(
            "clustered 500 × 512",
            "Euclidean",
            lambda: Problem(*_with(None, _data.clustered(500, 512))),
        ),
    ]


def _with(metric, points):
    """(X, U, Q): `metric` makes U from the number of features, or is None."""
    X, Q = points
    return X, None if metric is None else metric(X.shape[1]), Q


def _mnist(metric):
    def make():
        X, Q = _data.mnist()
        return Problem(X, None if metric is None else metric(X), Q)

    return make


def _scrna(metric):
    def make():
        X, Q, y = _data.scrna()
        return Problem(X, None if metric is None else metric(X, y), Q)

    return make


def _contenders(case, n_jobs):
    peers = _peers.installed(_peers.EXACT)
    if case.approximate:
        peers += _peers.installed(_peers.APPROXIMATE)
    return [_peers.Ours(n_jobs), *(peer() for peer in peers)]


def _warm_up(cases, n_jobs):
    """Use every contender once on small data; what that took, in words."""
    widest = max(cases, key=lambda case: case.approximate)
    took = [
        f"{contender.name} {_timing.timed(_peers.warm_up, contender)[0]:.1f} s"
        for contender in _contenders(widest, n_jobs)
    ]
    return f"First use on small data, with imports and compilation: {', '.join(took)}."


def _race(contenders, Q, batch, rounds):
    """Times of each contender for one batch size, its better number of threads."""
    calls = min(_MOST_CALLS, len(Q) // batch) if batch < 100 else 1
    tiles = [Q[at * batch : (at + 1) * batch] for at in range(calls)]
    runs, rivals = {}, []
    for contender in contenders:
        for limit in _limits(contender, batch):
            run = (contender.name, limit)
            runs[run] = _timing.pinned(_asker(contender, tiles), limit)
            if contender.exact and contender.name != "skmahal":
                rivals.append(run)
    times = _timing.alternate(runs, rounds=rounds, rivals=rivals)
    found, rested = {}, {}
    for (name, limit), seconds in times.in_a_row.items():
        first = _timing.median(times.rested[name, limit]) / (calls * batch)
        rested[name] = min(first, rested.get(name, first))
        entry = _timing.summary(seconds, per=calls * batch)
        entry["threads"] = "all" if limit is None else limit
        if name not in found or entry["median"] < found[name]["median"]:
            found[name] = entry
    for name, entry in found.items():
        entry["rested"] = rested[name]
    return found


def _limits(contender, batch):
    """Numbers of threads to try: peers may take one where a call is short."""
    try_one = batch < _SMALL_BATCH and contender.name != "skmahal"
    return [None, 1] if try_one and contender.exact else [None]


def _asker(contender, tiles):
    def ask():
        for tile in tiles:
            contender.kneighbors(tile)

    return ask


def _ratios(found):
    """The fastest exact peer, and how many times our time it took.

    Of calls in a row; and of the first after a rest, by the fastest there.
    """
    rivals = [peer.name for peer in _peers.EXACT if peer.name in found]
    best = min(rivals, key=lambda name: found[name]["median"])
    rested = min(found[name]["rested"] for name in rivals)
    return {
        "best_exact": best,
        "ratio": found[best]["median"] / found["skmahal"]["median"],
        "rested_ratio": rested / found["skmahal"]["rested"],
    }


def _settings(index):
    """What the index chose for itself."""
    names = ["engine_", "m_", "L_", "R_", "lead_"]
    return {name: getattr(index, name, None) for name in names}


def _add_mahalanobis(rows, problem, K):
    """Time of scikit-learn's own metric, from few pairs: it is the same for each."""
    X, U, Q = problem
    inverse = (U.T @ U).astype(np.float64)
    index = NearestNeighbors(
        n_neighbors=K,
        algorithm="brute",
        metric="mahalanobis",
        metric_params={"VI": inverse},
        n_jobs=-1,
    ).fit(X[:_MAHALANOBIS_POINTS])
    queries = Q[:_MAHALANOBIS_QUERIES]
    pairs = len(queries) * min(_MAHALANOBIS_POINTS, len(X))
    runs = {
        limit: _timing.pinned(lambda: index.kneighbors(queries), limit)
        for limit in (None, 1)
    }
    times = _timing.alternate(runs, rounds=3)
    medians = {
        limit: _timing.median(seconds) for limit, seconds in times.in_a_row.items()
    }
    best = min(medians, key=medians.get)
    pair = {"pair": medians[best] / pairs, "pairs_timed": pairs}
    pair["threads"] = "all" if best is None else best
    for row in rows:
        ours = row["contenders"]["skmahal"]["median"]
        row["mahalanobis"] = {**pair, "ratio": pair["pair"] * len(X) / ours}


def _judge_row(row):
    what = f"kneighbors, {_place(row)}"
    return _report.at_least(
        what, row["ratio"], row["goal"], holds=_right(row), note=_against(row)
    )


def _judge_real(row):
    few = row["surviving_share"] <= FEW_SURVIVE
    share = f"{row['surviving_share']:.1%} of the points left"
    what, note = f"kneighbors, {_place(row)}", f"{_against(row)}, {share}"
    goal = GOAL_FEW_SURVIVE if few else 1
    return _report.at_least(what, row["ratio"], goal, holds=_right(row), note=note)


def _judge_worst(rows):
    worst = min(rows, key=lambda row: row["ratio"])
    what = "slower than the best exact peer anywhere, at most"
    holds = all(_right(row) for row in rows)
    note = f"{_place(worst)}, {_against(worst)}"
    return _report.at_most(
        what, 1 / worst["ratio"], round(1 / WORST, 2), holds=holds, note=note
    )


def _right(row):
    return row["contenders"]["skmahal"]["recall"] >= _report.RECALL


def _against(row):
    recall = row["contenders"]["skmahal"]["recall"]
    rested = _report.floor_text(row["rested_ratio"])
    return f"against {row['best_exact']}, {rested} after a rest, recall {recall:.4f}"


def _case(row):
    K = "" if row["K"] == 10 else f", K={row['K']}"
    return f"{row['data']}, {row['metric']}{K}"


def _place(row):
    batch = row["batch"]
    return f"{_case(row)}, " + ("one a call" if batch == 1 else f"{batch} queries")


def _label(row):
    return _case(row) + (f", {row['batch']:,} a call" if row["batch"] > 1 else "")


def _contender_lines(row):
    ours = row["contenders"]["skmahal"]["median"]
    for name, entry in row["contenders"].items():
        yield [
            _case(row),
            row["batch"],
            name,
            entry["threads"],
            _report.seconds_text(entry["median"]),
            f"{entry['median'] / ours:.3g}",
            f"{entry['recall']:.4f}",
            _report.seconds_text(entry["fit"]),
            _report.seconds_text(entry["first_call"]),
        ]
    if "mahalanobis" in row:
        pair = row["mahalanobis"]
        yield [
            _case(row),
            row["batch"],
            f"metric='mahalanobis', from {pair['pairs_timed']:,} pairs",
            pair["threads"],
            _report.seconds_text(pair["pair"] * row["n"]),
            f"{pair['ratio']:.3g}",
            "-",
            "-",
            "-",
        ]
