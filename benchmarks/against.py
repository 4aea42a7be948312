"""This checkout against another one: every operation of the benchmarks, in turn.

``python -m benchmarks --against CHECKOUT [name ...]`` starts two processes, which run
the same measurements with skmahal from either checkout, and prints how many times the
time or memory of this checkout the other one took.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from skmahal import MetricMaintenance, SketchedMahalanobisNeighbors
from skmahal.online import LEGO, OnlineITML

from . import (
    _data,
    _peers,
    _report,
    _timing,
    learner_steps,
    memory,
    neighbors,
    online,
    online_learning,
    paper,
    sampling,
    scaling,
)

LEAST = 0.9
ROOT = Path(__file__).resolve().parents[1]

_ROUNDS = 15
_SECONDS = 8.0
_CHUNK = 100

# skmahal comes from the checkout that is named, the benchmarks from this one.
_WORKER = """
import sys
sys.path[0] = sys.argv[1]
import skmahal
assert skmahal.__file__.startswith(sys.argv[1]), skmahal.__file__
sys.path[0] = sys.argv[2]
from benchmarks.against import serve
serve(quick=bool(int(sys.argv[3])))
"""


def compare(other, names, quick):
    """Measure both checkouts in alternation, and print the ratios, smallest first."""
    trees = {"other": other.resolve(), "this": ROOT}
    workers = {name: _Worker(tree, quick) for name, tree in trees.items()}
    groups = [g for g in workers["this"].ask("groups") if g[0] in names]
    rows = []
    for group in groups:
        print(": ".join(group), file=sys.stderr, flush=True)
        labels = [worker.ask("prepare", group) for worker in workers.values()]
        failed = [label for label in labels if isinstance(label, str)]
        if failed:
            print(f"  left out: {failed[0]}", file=sys.stderr, flush=True)
            continue
        for label in labels[0]:
            rows.append(_alternated(workers, group, label))
            print(f"  {label}: {rows[-1]['ratio']:.2f}", file=sys.stderr, flush=True)
    for worker in workers.values():
        worker.stop()
    _show(rows)


class Measure:
    """A call that gives seconds or bytes, and how often it may be made.

    With `mean` the mean of all calls counts, and otherwise their median. A call that
    returns None has come to the end of its stream.
    """

    def __init__(self, call, mean=False, rounds=_ROUNDS):
        self.call, self.mean, self.rounds = call, mean, rounds


class _Worker:
    """A process with skmahal from one checkout, and the benchmarks of this one."""

    def __init__(self, tree, quick):
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(tree), str(ROOT), str(int(quick))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        if not reply:
            raise RuntimeError("A process ended before its measurements did.")
        return json.loads(reply)

    def stop(self):
        self._process.stdin.close()
        self._process.wait()


def _alternated(workers, group, label):
    """Values of both checkouts in turn; which one begins alternates as well."""
    values = {name: [] for name in workers}
    mean, rounds = workers["this"].ask("kind", label)
    if rounds > 1 and not mean:
        for worker in workers.values():
            worker.ask("measure", label)
    begun = time.perf_counter()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - begun > _SECONDS and not mean:
            break
        for name in sorted(workers, reverse=bool(done % 2)):
            values[name].append(workers[name].ask("measure", label))
        if None in values["this"] or None in values["other"]:
            break
    found = {name: _centre(list(filter(None, v)), mean) for name, v in values.items()}
    ratio = found["other"] / found["this"]
    return {"group": group[0], "row": label, **found, "ratio": ratio}


def _centre(values, mean):
    values = sorted(values)
    if mean:
        return sum(values) / len(values)
    return values[len(values) // 2]


def _show(rows):
    columns = ["benchmark", "row", "other", "this", "× faster or smaller", ""]
    lines = []
    for row in sorted(rows, key=lambda row: row["ratio"]):
        text = _report.bytes_text if "bytes" in row["row"] else _report.seconds_text
        cells = [row["group"], row["row"], text(row["other"]), text(row["this"])]
        mark = "" if row["ratio"] >= LEAST else f"below {LEAST}"
        lines.append([*cells, _report.floor_text(row["ratio"]), mark])
    _report.print_table(columns, lines)


def serve(quick):
    """Reply to requests on standard input, one line each."""
    replies, sys.stdout = sys.stdout, sys.stderr
    makers, measures = _groups(quick), {}
    for line in sys.stdin:
        request, *arguments = json.loads(line)
        if request == "groups":
            reply = list(makers)
        elif request == "prepare":
            measures.clear()
            try:
                measures.update(makers[tuple(arguments[0])]())
                reply = list(measures)
            except _data.AbsentError as absent:
                reply = str(absent)
        elif request == "kind":
            measure = measures[arguments[0]]
            reply = [measure.mean, measure.rounds]
        else:
            reply = measures[arguments[0]].call()
        print(json.dumps(reply), file=replies, flush=True)


def _groups(quick):
    """What makes the measures of each group; those of a group share an index."""
    cases = neighbors.quick_cases() if quick else neighbors.complete_cases()
    found = {("neighbors", case.name): _bound(_neighbors, case) for case in cases}
    n, d = (2000, 128) if quick else (20_000, 1024)
    for points in (_data.clustered, _data.isotropic):
        found["online", points.__name__] = _bound(_online, points, n, d)
    for n in [1000] if quick else [10_000, 100_000, 1_000_000]:
        found["sampling", f"{n:,} points"] = _bound(_sampling, n)
    for setup in [paper.SMALL] if quick else [paper.TCGA, paper.UNIFORM]:
        for m in setup.sizes:
            found["paper", f"{setup.name}, m={m}"] = _bound(_paper, setup, m)
    for n, d in [(2000, 64)] if quick else [(100_000, 256), (1_000_000, 256)]:
        found["scaling", f"{n:,} × {d}"] = _bound(_scaling, n, d)
    sizes = [(50_000, 512, None), (20_000, 1024, 1024), (20_000, 2048, 256)]
    for n, d, k in [(4000, 256, None)] if quick else sizes:
        found["memory", f"{n:,} × {d:,}, U {k}"] = _bound(_memory, n, d, k)
    for stream in ["drifting"] if quick else ["drifting", "mnist"]:
        found["online_learning", stream] = _bound(_learning, stream)
    streams = [learner_steps.random_pairs, learner_steps.gene_pairs]
    n, d = (200, 200) if quick else (2000, learner_steps.FEATURES)
    for make in streams[:1] if quick else streams:
        for dtype in ("float64", "float32"):
            key = "learner_steps", f"{make.__name__}, {dtype}"
            found[key] = _bound(_learner_steps, make, n, d, dtype)
    return found


def _bound(make, *arguments):
    return lambda: make(*arguments)


def _neighbors(case):
    X, U, Q = case.make()
    ours = _peers.Ours().fit(X, U, None, case.K)
    kinds = {"": Q}
    if case.outside:
        kinds[", from outside"] = _data.outside(X)
    measures = {}
    for kind, queries in kinds.items():
        for batch in case.batches:
            calls = min(100, len(queries) // batch) if batch < 100 else 1
            tiles = [queries[i * batch : (i + 1) * batch] for i in range(calls)]
            label = f"{case.name}, {batch} a call{kind}"
            measures[label] = _seconds(lambda t: [ours.kneighbors(q) for q in t], tiles)
    return measures


def _online(points, n, d):
    X, Q = points(n, d, 500)
    U = _data.dense_metric(d)
    flush, measures = _timing.CacheFlush(), {}

    def measure(queries):
        ours, steps = online.Ours(X, U, -1), online.Steps(X, U)
        ours.index.kneighbors(Q)
        ours.update(*steps.next())

        def once():
            w, v = steps.next()
            flush()
            return _timing.timed(online._step, ours, w, v, Q[:queries])[0]

        return Measure(once, mean=True, rounds=40)

    for queries in (0, 1, 10):
        label = f"{points.__name__}, an update and {queries} queries"
        measures[label] = measure(queries)
    return measures


def _sampling(n):
    X, Q = _data.clustered(n, sampling.FEATURES, 50)
    U = _data.dense_metric(sampling.FEATURES)
    index = _index(U).fit(X)

    def draw(count):
        for q in Q:
            index.sample(q[None], count, random_state=0)

    return {f"{n:,} points, {c} draws": _seconds(draw, c) for c in (1, 100)}


def _paper(setup, m):
    X, Q = setup.make()
    i, j = np.random.default_rng(0).integers(len(X), size=(2, 200))
    index = MetricMaintenance(
        _data.dense_metric(X.shape[1]), X, m=m, L=paper.L, R=paper.R, lead=0, seed=0
    )
    name = f"{setup.name}, m={m}"
    return {
        f"{name}, QueryAll": _seconds(lambda: [index.query_all(q) for q in Q[:10]]),
        f"{name}, QueryPair": _seconds(paper._ask_pairs, index, i, j),
        f"{name}, bytes": Measure(lambda: paper.held_bytes(index), rounds=1),
    }


def _scaling(n, d):
    X, Q = _data.clustered(n, d, scaling.QUERIES)
    U = _data.dense_metric(d)
    index, steps = _index(U), online.Steps(X, U)
    index.fit(X).kneighbors(Q)
    name = f"{n:,} × {d}"
    return {
        f"{name}, fit": Measure(lambda: _timing.timed(index.fit, X)[0], rounds=3),
        f"{name}, update": Measure(
            lambda: _timing.timed(scaling._update, index, *steps.next())[0],
            mean=True,
            rounds=40,
        ),
        f"{name}, 1,000 queries": _seconds(index.kneighbors, Q),
        f"{name}, one query": _seconds(
            lambda: [index.kneighbors(q[None]) for q in Q[:50]]
        ),
    }


def _memory(n, d, k):
    name, found = f"{n:,} × {d:,}, U {k}", []

    def bytes_of(kind):
        if not found:
            found.append(memory.traced(n, d, k, -1)[1])
        return max(after[kind] for after in found[0])

    return {
        f"{name}, bytes {kind}": Measure(lambda kind=kind: bytes_of(kind), rounds=1)
        for kind in ("held", "peak")
    }


def _learning(stream):
    X, y = (
        online_learning.drifting if stream == "drifting" else online_learning.digits
    )(2000)
    classes = np.unique(y)
    learners = {
        "Euclidean": lambda: None,
        "LEGO": lambda: LEGO(random_state=0),
        "OnlineITML": lambda: OnlineITML(random_state=0),
    }

    def measure(make):
        contender, starts = (
            online_learning.Following(make(), classes),
            iter(range(0, len(X), _CHUNK)),
        )

        def once():
            start = next(starts, None)
            if start is None:
                return None
            batch = slice(start, start + _CHUNK)
            begun = time.perf_counter()
            if start:
                contender.predict(X[batch])
            contender.learn(X[batch], y[batch])
            return time.perf_counter() - begun

        return Measure(once, mean=True, rounds=len(X) // _CHUNK)

    return {f"{stream}, {name}": measure(make) for name, make in learners.items()}


def _learner_steps(make, n, d, dtype):
    pairs, y = make(n, d, np.dtype(dtype))

    def measure(kind):
        learner, starts = kind(), iter(range(0, n, _CHUNK))

        def once():
            start = next(starts, None)
            if start is None:
                return None
            here = slice(start, start + _CHUNK)
            return sum(learner_steps.steps(learner, pairs[here], y[here])) / _CHUNK

        return Measure(once, mean=True, rounds=n // _CHUNK)

    return {
        f"{make.__name__}, {dtype}, {name}": measure(kind)
        for name, kind in learner_steps._LEARNERS.items()
    }


def _index(U):
    return SketchedMahalanobisNeighbors(
        online.K, metric_learner=U, random_state=0, n_jobs=-1
    )


def _seconds(call, *arguments):
    return Measure(lambda: _timing.timed(call, *arguments)[0])
