"""A metric that moves by rank-one steps: updates, and steps of update and queries."""

import time

import numpy as np
from scipy.linalg.blas import sger

from skmahal import SketchedMahalanobisNeighbors

from . import _data, _peers, _plots, _report, _timing
from ._data import Problem
from ._truth import Truth, transformed

K = 10
QUERIES_A_STEP = 10

GOAL_PRODUCT = 2
GOAL_REBUILD = 50
GOAL_HNSW = 500
GOAL_STEP = 3

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
    """Exact and incremental: transformed rows and norms follow every update in place.

    ``T = X v``, ``‖y‖² += 2 T (Y w) + T² ‖w‖²``, ``Y += T wᵀ`` and ``U += w vᵀ``; a
    query is ``U q``, one product with the rows, and argpartition.
    """

    def __init__(self, X, U):
        self.X, self.U = X, U.copy()
        self.Y = np.ascontiguousarray(X @ U.T)
        self.norms = np.einsum("ij,ij->i", self.Y, self.Y)

    def update(self, w, v):
        T = self.X @ v
        self.norms += T * (2 * (self.Y @ w) + T * (w @ w))
        # BLAS sees the transposes, which are in Fortran order and so changed in place.
        self._add_outer(self.Y, T, w)
        self._add_outer(self.U, w, v)

    def neighbours(self, q):
        D = self.Y @ (self.U @ q)
        D *= -2
        D += self.norms
        best = np.argpartition(D, K - 1)[:K]
        return best[np.argsort(D[best])]

    @staticmethod
    def _add_outer(A, left, right):
        changed = sger(1.0, right, left, a=A.T, overwrite_a=1)
        if not np.may_share_memory(changed, A):
            raise RuntimeError("BLAS made a copy of the matrix it should change.")


class Steps:
    """Rank-one steps as of LEGO or ITML: differences of points made longer, or shorter.

    ``U += c w (Uᵀw)ᵀ`` with w = U z stretches z by 5 %, or shrinks it as much, in turn,
    so that the metric stays of one size however many steps are made.
    """

    def __init__(self, X, U, seed=0):
        self._X, self._U = X, U.copy()
        self._rng = np.random.default_rng(seed)
        self._count = 0

    def next(self):
        i, j = self._rng.choice(len(self._X), 2, replace=False)
        z = self._X[i] - self._X[j]
        w = self._U @ z
        self._count += 1
        factor = _STRETCH if self._count % 2 else 1 / _STRETCH
        scale = np.float32((factor - 1) / (w @ w))
        v = self._U.T @ w
        self._U += np.outer(scale * w, v)
        return scale * w, v

    @property
    def U(self):
        return self._U


def run(options, progress):
    """Times of an update, of a rebuild, and of a step with queries."""
    n, d = (2000, 128) if options.quick else (20_000, 1024)
    progress.begin("online", 4)
    progress.step("data")
    X, Q = _data.clustered(n, d, 500)
    U = _data.dense_metric(d)
    shape = {"n": n, "d": d, "k": d, "K": K}
    progress.step("rank-one updates")
    updates = measure_updates(
        X, U, Q, options.n_jobs, rounds=6 if options.quick else 80
    )
    progress.step("rebuilds")
    rebuilds = measure_rebuilds(X, U, rounds=1 if options.quick else 2)
    progress.step("steps of an update and ten queries")
    steps = measure_steps(X, U, Q, options.n_jobs, rounds=6 if options.quick else 40)
    rows = [_update_row(updates, rebuilds, shape), {**shape, **steps}]
    return _report.Result("online", rows, judge(rows))


def measure_updates(X, U, Q, n_jobs, rounds):
    """Times of updates and of ``X @ v``, in turn, each after a flush of the caches."""
    ours, steps, flush = Ours(X, U, n_jobs), Steps(X, U), _timing.CacheFlush()
    # Every sketch is in use before it has to follow.
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
    peers = _peers.installed([_peers.Faiss, _peers.Hnsw])
    times = {peer.name: [] for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            times[peer.name].append(_timing.timed(_rebuild, peer, X, U)[0])
    # A transform and a copy take little: more rounds for them.
    if _peers.Faiss.name in times:
        for _ in range(3 * rounds):
            seconds, _ = _timing.timed(_rebuild, _peers.Faiss, X, U)
            times[_peers.Faiss.name].append(seconds)
    return {name: _timing.summary(seconds) for name, seconds in times.items()}


def measure_steps(X, U, Q, n_jobs, rounds):
    """Times of an update and ten single queries, of ours and by hand, in turn.

    By hand there is a run with all threads of BLAS and one with a single thread, and
    the faster counts. At the end neighbours are compared with the truth.
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
        asked = Q[rng.choice(len(Q), QUERIES_A_STEP, replace=False)]
        for (name, limit), contender in contenders.items():
            time.sleep(0.02)
            with _timing.threads(limit):
                seconds, _ = _timing.timed(_step, contender, w, v, asked)
            times[name, limit].append(seconds)
    truth = _truth_after(X, steps.U, Q)
    return _step_row(times, contenders, truth, Q)


def judge(rows):
    """The goals for updates and steps."""
    update, step = rows
    place = f"rank-one update_metric, n={update['n']:,}, d={update['d']:,}"
    holds = step["recall"]["skmahal"] >= _report.RECALL
    worse = max(update["product_ratio"], update["product_ratio_of_means"])
    note = (
        f"median {_report.ceil_text(update['product_ratio'])}, "
        f"mean {_report.ceil_text(update['product_ratio_of_means'])}"
    )
    goals = [
        _report.at_most(
            f"{place}, against a cold X @ v", worse, GOAL_PRODUCT, note=note
        )
    ]
    for name, goal in [
        (_peers.Faiss.name, GOAL_REBUILD),
        (_peers.Hnsw.name, GOAL_HNSW),
    ]:
        what = f"{place}, against transform + {name}"
        if name in update["rebuild_ratios"]:
            ratio = update["rebuild_ratios"][name]
            goals.append(_report.at_least(what, ratio, goal))
        else:
            goals.append(_report.unjudged(what, f"{name} is not installed"))
    what = "online step (rank-one update, 10 single queries), against by hand"
    note = f"recall {step['recall']['skmahal']:.4f}"
    goals.append(
        _report.at_least(what, step["ratio"], GOAL_STEP, holds=holds, note=note)
    )
    return goals


def show(result):
    """Print times and ratios of updates, rebuilds and steps."""
    update, step = result.rows
    print(f"n={update['n']:,}, d=k={update['d']:,}\n")
    ours = update["update"]["median"]
    named = {
        "update_metric, rank one": update["update"],
        "X @ v, cold cache": update["product"],
        **{f"transform + {name}": t for name, t in update["rebuilds"].items()},
    }
    lines = [
        _line(name, entry, entry["median"] / ours) for name, entry in named.items()
    ]
    _report.print_table(["a change of the metric", "median", "mean", "× ours"], lines)
    first, after = (
        _report.seconds_text(update[name]) for name in ("first_update", "queries_after")
    )
    print(f"\nfirst update {first}; 500 queries after all updates {after}\n")
    ours = step["contenders"]["skmahal"]["median"]
    lines = [
        [*_line(name, entry, entry["median"] / ours), f"{step['recall'][name]:.4f}"]
        for name, entry in step["contenders"].items()
    ]
    columns = ["an update and ten queries", "median", "mean", "× ours", "recall"]
    _report.print_table(columns, lines)


def plot(result, path):
    """Bars of the ratios with their goals."""
    update, step = result.rows
    fig, axes = _plots.figure(1, 1, (8.5, 3.2))
    ratios = {
        "X @ v with a cold cache": (1 / update["product_ratio"], 1 / GOAL_PRODUCT),
        "step by hand": (step["ratio"], GOAL_STEP),
    }
    goals = {_peers.Faiss.name: GOAL_REBUILD, _peers.Hnsw.name: GOAL_HNSW}
    for name, ratio in update["rebuild_ratios"].items():
        ratios[f"update: transform + {name}"] = (ratio, goals[name])
    labels = [name.replace("X @ v", "update: X @ v") for name in ratios]
    values, marks = zip(*ratios.values(), strict=True)
    title = f"rank-one updates, n={update['n']:,}, d={update['d']:,}"
    _plots.ratio_bars(axes[0], labels, values, marks, title)
    axes[0].set_xlabel("times faster than (red: goal)")
    _plots.save(fig, path)


def _update_row(updates, rebuilds, shape):
    ours, product = updates["update"], updates["product"]
    return {
        **shape,
        **updates,
        "rebuilds": rebuilds,
        "product_ratio": ours["median"] / product["median"],
        "product_ratio_of_means": ours["mean"] / product["mean"],
        "rebuild_ratios": {
            name: entry["median"] / ours["median"] for name, entry in rebuilds.items()
        },
    }


def _step_row(times, contenders, truth, Q):
    """The better run by hand beside ours, with the recall of both."""
    found, recall = {}, {}
    for (name, limit), seconds in times.items():
        entry = _timing.summary(seconds[1:]) | {"threads": limit or "all"}
        if name in found and found[name]["median"] <= entry["median"]:
            continue
        found[name] = entry
        answers = [contenders[name, limit].neighbours(q) for q in Q]
        recall[name] = truth.recall(np.array(answers))
    ratio = found["by hand"]["median"] / found["skmahal"]["median"]
    return {"contenders": found, "recall": recall, "ratio": ratio}


def _truth_after(X, U, Q):
    problem = Problem(X, U, Q)
    return Truth(problem, transformed(X, U), K)


def _step(contender, w, v, asked):
    contender.update(w, v)
    for q in asked:
        contender.neighbours(q)


def _rebuild(peer, X, U):
    return peer().fit(X, U, np.ascontiguousarray(transformed(X, U)), K)


def _line(name, entry, ratio):
    times = [_report.seconds_text(entry[kind]) for kind in ("median", "mean")]
    return [name, *times, f"{ratio:.3g}"]
