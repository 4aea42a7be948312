"""A metric that moves by rank-one steps: updates alone, and updates with queries."""

import time

import numpy as np

from skmahal import SketchedMahalanobisNeighbors

from . import _data, _peers, _plots, _report, _timing
from ._data import ExactNeighbors, Problem, transformed

K = 10
QUERIES_A_STEP = 10

GOAL_PRODUCT = 1.7
GOAL_REBUILDS = {_peers.Faiss.name: 50, _peers.Hnsw.name: 500}
GOAL_STEP = 3
GOAL_UPDATE_AND_QUERY = {"clustered": 100, "isotropic": 40}

_STRETCH = 1.05


class Ours:
    """The index, moved by `update_metric`."""

    def __init__(self, X, U, n_jobs):
        self.index = SketchedMahalanobisNeighbors(
            K, metric_learner=U, random_state=0, n_jobs=n_jobs
        ).fit(X)

    def update(self, w, v):
        self.index.update_metric(low_rank=(w[:, None], v[:, None]))

    def neighbours(self, q):
        return self.index.kneighbors(q[None], return_distance=False)[0]


class ByHand:
    """Exact and incremental: only the squared lengths ``xᵀAx`` follow an update.

    A step as of LEGO or ITML is ``A += β vvᵀ``, which adds ``β (Xv)²`` to the lengths:
    one product with X. A query is one more, ``xᵀAx - 2 X(Aq)``, and argpartition.
    """

    def __init__(self, X, U):
        self.X, self.U = X, U.copy()
        Y = X @ U.T
        self.lengths = np.einsum("ij,ij->i", Y, Y)

    def update(self, w, v):
        # Uᵀw is a multiple of v in such steps.
        beta = 2 * (v @ (w @ self.U)) / (v @ v) + w @ w
        T = self.X @ v
        T *= T
        T *= beta
        self.lengths += T
        self.U += np.outer(w, v)

    def neighbours(self, q):
        D = self.X @ (self.U.T @ (self.U @ q))
        D *= -2
        D += self.lengths
        best = np.argpartition(D, K - 1)[:K]
        return best[np.argsort(D[best])]


class Steps:
    """Rank-one steps as of LEGO or ITML: differences of points made longer or shorter.

    ``U += c w (Uᵀw)ᵀ`` with w = U z stretches z by 5 %, or shrinks it as much, in turn,
    so that the metric stays of one size. U is the sum of all steps in float64; the
    steps themselves are float32.
    """

    def __init__(self, X, U, seed=0):
        self._X, self.U = X, U.astype(np.float64)
        self._rng = np.random.default_rng(seed)
        self._count = 0

    def next(self):
        i, j = self._rng.choice(len(self._X), 2, replace=False)
        w = self.U @ (self._X[i] - self._X[j])
        v = np.float32(self.U.T @ w)
        self._count += 1
        factor = _STRETCH if self._count % 2 else 1 / _STRETCH
        w = np.float32((factor - 1) / (w @ w) * w)
        self.U += np.outer(w.astype(np.float64), v)
        return w, v


def run(options, progress):
    """Times of an update, of a rebuild, and of updates with queries."""
    n, d = (2000, 128) if options.quick else (20_000, 1024)
    few = options.quick
    progress.begin("online", 5)
    progress.step("rank-one updates")
    X, Q = _data.clustered(n, d, 500)
    U = _data.dense_metric(d)
    updates = measure_updates(X, U, Q, options.n_jobs, rounds=6 if few else 80)
    progress.step("rebuilds")
    rebuilds = measure_rebuilds(X, U, rounds=1 if few else 2)
    progress.step("an update and ten queries")
    steps = measure_steps(X, U, Q, options.n_jobs, rounds=6 if few else 40)
    shape = {"n": n, "d": d, "k": d, "K": K}
    rows = [{**shape, **updates, "rebuilds": rebuilds}, {**shape, **steps}]
    for name, points in [("clustered", None), ("isotropic", _data.isotropic)]:
        progress.step(f"an update and one query, {name}")
        if points is not None:
            X, Q = points(n, d, 500)
        found = measure_update_and_query(X, U, Q, options.n_jobs, 4 if few else 20)
        rows.append({**shape, "data": name, **found})
    return _report.Result("online", rows, judge(rows))


def measure_updates(X, U, Q, n_jobs, rounds):
    """Times of updates and of ``X @ v``, in turn, each after a flush of the caches."""
    ours, steps, flush = Ours(X, U, n_jobs), Steps(X, U), _timing.CacheFlush()
    ours.index.kneighbors(Q)
    times = {"update": [], "product": []}
    for _ in range(rounds + 1):
        w, v = steps.next()
        flush()
        times["product"].append(_timing.timed(X.__matmul__, v)[0])
        flush()
        times["update"].append(_timing.timed(ours.update, w, v)[0])
    settle, _ = _timing.timed(ours.index.kneighbors, Q)
    return {name: _timing.summary(t[1:]) for name, t in times.items()} | {
        "first_update": times["update"][0],
        "queries_after": settle,
    }


def measure_rebuilds(X, U, rounds):
    """Times of transforming all points and building an index of the result."""
    times = {}
    for peer in _peers.installed([_peers.Faiss, _peers.Hnsw]):
        # A transform and a copy take little: more rounds for them.
        count = rounds if peer is _peers.Hnsw else 4 * rounds
        times[peer.name] = _timing.summary(
            [_timing.timed(_rebuilt, peer, X, U)[0] for _ in range(count)]
        )
    return times


def measure_steps(X, U, Q, n_jobs, rounds):
    """Times of an update and ten single queries, of ours and by hand, in turn.

    By hand there is a run with all threads of BLAS and one with a single thread, and
    the faster counts. Recall is that of the metric after the last step.
    """
    contenders = {
        ("skmahal", None): Ours(X, U, n_jobs),
        ("by hand", None): ByHand(X, U),
        ("by hand", 1): ByHand(X, U),
    }
    contenders["skmahal", None].index.kneighbors(Q)
    steps, rng = Steps(X, U, seed=1), np.random.default_rng(2)
    times = {run: [] for run in contenders}
    for _ in range(rounds + 1):
        w, v = steps.next()
        queries = Q[rng.choice(len(Q), QUERIES_A_STEP, replace=False)]
        for (name, limit), contender in contenders.items():
            time.sleep(0.02)
            with _timing.threads(limit):
                seconds, _ = _timing.timed(_step, contender, w, v, queries)
            times[name, limit].append(seconds)
    exact = ExactNeighbors(Problem(X, steps.U, Q), K)
    found, recall = {}, {}
    for (name, limit), seconds in times.items():
        entry = _timing.summary(seconds[1:]) | {"threads": limit or "all"}
        if name not in found or entry["median"] < found[name]["median"]:
            indices = [contenders[name, limit].neighbours(q) for q in Q]
            found[name], recall[name] = entry, exact.recall(np.array(indices))
    ratio = found["by hand"]["median"] / found["skmahal"]["median"]
    return {"contenders": found, "recall": recall, "ratio": ratio}


def measure_update_and_query(X, U, Q, n_jobs, rounds):
    """Times of an update and one query, and of transform, faiss flat and one query."""
    ours, steps = Ours(X, U, n_jobs), Steps(X, U, seed=3)
    ours.index.kneighbors(Q)
    times = {"skmahal": [], _peers.Faiss.name: []}
    for at in range(rounds + 1):
        w, v = steps.next()
        query = Q[at : at + 1]
        time.sleep(0.1)
        times["skmahal"].append(_timing.timed(_step, ours, w, v, query)[0])
        if at % 4 == 0 and _peers.installed([_peers.Faiss]):
            U = np.float32(steps.U)
            seconds, _ = _timing.timed(
                lambda U, query: _rebuilt(_peers.Faiss, X, U).kneighbors(query),
                U,
                query,
            )
            times[_peers.Faiss.name].append(seconds)
    exact = ExactNeighbors(Problem(X, steps.U, Q[:100]), K)
    recall = exact.recall(np.array([ours.neighbours(q) for q in Q[:100]]))
    found = {name: _timing.summary(t[1:]) for name, t in times.items() if t}
    ratio = None
    if _peers.Faiss.name in found:
        ratio = found[_peers.Faiss.name]["mean"] / found["skmahal"]["mean"]
    return {"contenders": found, "recall": {"skmahal": recall}, "ratio": ratio}


def judge(rows):
    """The goals for updates, and for updates with queries."""
    update, step, *pairs = rows
    place = f"n={update['n']:,}, d={update['d']:,}"
    ours, product = update["update"], update["product"]
    note = f"median {_report.ceil_text(ours['median'] / product['median'])}"
    what = f"rank-one update_metric, {place}, against a cold X @ v, mean"
    ratio = ours["mean"] / product["mean"]
    goals = [_report.at_most(what, ratio, GOAL_PRODUCT, note=note)]
    for name, goal in GOAL_REBUILDS.items():
        what = f"rank-one update_metric, {place}, against transform + {name}"
        if name in update["rebuilds"]:
            ratio = update["rebuilds"][name]["median"] / ours["median"]
            goals.append(_report.at_least(what, ratio, goal))
        else:
            goals.append(_report.unjudged(what, f"{name} is not installed"))
    what = "rank-one update and 10 single queries, against by hand"
    goals.append(_with_recall(what, step, GOAL_STEP))
    for row in pairs:
        what = f"rank-one update and 1 query, {row['data']}, {place}, against "
        what += f"transform + {_peers.Faiss.name}, mean"
        if row["ratio"] is None:
            goals.append(_report.unjudged(what, "faiss is not installed"))
        else:
            goals.append(_with_recall(what, row, GOAL_UPDATE_AND_QUERY[row["data"]]))
    return goals


def show(result):
    """Print times and ratios of updates, rebuilds, and updates with queries."""
    update, step, *pairs = result.rows
    print(f"n={update['n']:,}, d=k={update['d']:,}\n")
    named = {
        "update_metric, rank one": update["update"],
        "X @ v, cold cache": update["product"],
        **{f"transform + {name}": t for name, t in update["rebuilds"].items()},
    }
    columns = ["a change of the metric", "median", "mean", "× ours"]
    _report.print_table(columns, _lines(named))
    first, after = (
        _report.seconds_text(update[name]) for name in ("first_update", "queries_after")
    )
    print(f"\nfirst update {first}; 500 queries after all updates {after}\n")
    for title, row in [
        ("an update and ten queries", step),
        *((f"an update and one query, {row['data']}", row) for row in pairs),
    ]:
        _report.print_table(
            [title, "median", "mean", "× ours"], _lines(row["contenders"])
        )
        print(f"recall of skmahal {row['recall']['skmahal']:.4f}\n")


def plot(result, path):
    """Bars of the ratios with their goals."""
    update, step, *pairs = result.rows
    fig, axes = _plots.figure(1, 1, (8.5, 3.8))
    ours, product = update["update"], update["product"]
    bars = {
        "update: X @ v, cold": (product["mean"] / ours["mean"], 1 / GOAL_PRODUCT),
        "update and ten queries: by hand": (step["ratio"], GOAL_STEP),
    }
    for name, entry in update["rebuilds"].items():
        ratio = entry["median"] / ours["median"]
        bars[f"update: transform + {name}"] = (ratio, GOAL_REBUILDS[name])
    for row in pairs:
        if row["ratio"] is not None:
            goal = GOAL_UPDATE_AND_QUERY[row["data"]]
            name = f"update and one query, {row['data']}: transform + faiss flat"
            bars[name] = (row["ratio"], goal)
    values, marks = zip(*bars.values(), strict=True)
    title = f"rank-one updates, n={update['n']:,}, d={update['d']:,}"
    _plots.ratio_bars(axes[0], list(bars), values, marks, title)
    axes[0].set_xlabel("times faster than (red: goal)")
    _plots.save(fig, path)


def _step(contender, w, v, queries):
    contender.update(w, v)
    for q in queries:
        contender.neighbours(q)


def _rebuilt(peer, X, U):
    return peer().fit(X, U, np.ascontiguousarray(transformed(X, U)), K)


def _with_recall(what, row, goal):
    recall = row["recall"]["skmahal"]
    note = f"recall {recall:.4f}"
    return _report.at_least(what, row["ratio"], goal, holds=recall == 1, note=note)


def _lines(named):
    """A line of times for each name; the first is ours."""
    ours = next(iter(named.values()))["median"]
    return [
        [
            name,
            _report.seconds_text(entry["median"]),
            _report.seconds_text(entry["mean"]),
            f"{entry['median'] / ours:.3g}",
        ]
        for name, entry in named.items()
    ]
