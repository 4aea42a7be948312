"""Arguments that are right, and do not go together."""

import numpy as np

from .values import (
    METRIC,
    ROWS,
    Call,
    D,
    K,
    N,
    WithComponents,
    indices,
    low_rank,
    matrix,
    normal,
    other_than,
)


def of_updates(**y):
    return [
        lambda rng: Call(
            "remove_points", {"indices": rng.permutation(N)}, "all points", "every"
        ),
        lambda rng: Call(
            "update_points",
            {
                "indices": rng.permutation(N)[: other_than(rng, ROWS, 5)],
                "X": normal(rng, ROWS, D),
                **{name: draw(rng) for name, draw in y.items()},
            },
            "a position for each row",
            r"\bindices\b",
        ),
        *of_metric(),
    ]


def of_metric():
    W, V = "W has 1 columns and V has 2", "low_rank cannot be combined"

    def update(fault, says, **make):
        return lambda rng: Call(
            "update_metric",
            {name: draw(rng) for name, draw in make.items()},
            fault,
            says,
        )

    pair, U = low_rank().good, METRIC.good
    a, values = indices("rows", K).good, matrix("metric").good
    return [
        update(
            "ranks that differ",
            W,
            low_rank=lambda rng: (normal(rng, K, 1), normal(rng, D, 2)),
        ),
        update("low rank and a metric", V, low_rank=pair, metric=U),
        update("low rank and rows", V, low_rank=pair, rows=a),
        update("low rank and additive", V, low_rank=pair, additive=lambda rng: True),
        update(
            "additive without rows", r"\brows\b", metric=U, additive=lambda rng: True
        ),
        update("nothing", "metric or low_rank"),
        update("rows alone", r"\bmetric\b", rows=a),
        update(
            "a step that overflows",
            "too large|overflow",
            low_rank=lambda rng: (np.full((K, 1), 1e200), np.full((D, 1), 1e200)),
        ),
        update(
            "a metric that overflows",
            "too large|overflow",
            metric=lambda rng: 1e200 * U(rng),
        ),
        update(
            "a learner with rows",
            r"\bmetric\b",
            metric=lambda rng: WithComponents(values(rng)),
            rows=a,
        ),
    ]


def of_index():
    return [
        *of_updates(),
        lambda rng: Call(
            "sum_distances",
            {"X": normal(rng, ROWS, D), "start": 9, "stop": int(rng.integers(9))},
            "stop before start",
            r"\bstop\b",
        ),
        lambda rng: Call(
            "kneighbors",
            {"X": None, "n_neighbors": N},
            "more than others",
            "n_neighbors",
        ),
        lambda rng: Call(
            "pair_distances",
            {"i": rng.integers(N, size=2), "j": rng.integers(N, size=3)},
            "shapes that differ",
            "i and j",
        ),
    ]


def of_maintenance():
    def call(fault, says, method, **arguments):
        return lambda rng: Call(
            method, {name: make(rng) for name, make in arguments.items()}, fault, says
        )

    return [
        call("all points", "every", "remove", indices=lambda rng: rng.permutation(N)),
        call(
            "a range that is backwards",
            r"\bj\b",
            "sub_sum",
            q=lambda rng: normal(rng, D),
            i=lambda rng: 9,
            j=lambda rng: int(rng.integers(9)),
        ),
        call(
            "fewer candidates than neighbours",
            r"\bcandidates\b",
            "kneighbors",
            Q=lambda rng: normal(rng, D),
            K=lambda rng: 5,
            candidates=lambda rng: 4,
        ),
        call(
            "shapes that differ",
            "i and j",
            "query_pair",
            i=lambda rng: rng.integers(N, size=2),
            j=lambda rng: rng.integers(N, size=3),
        ),
        call(
            "ranks that differ",
            "W has 1 columns",
            "update_low_rank",
            W=lambda rng: normal(rng, K, 1),
            V=lambda rng: normal(rng, D, 2),
        ),
        call(
            "a step that overflows",
            "too large|overflow",
            "update_low_rank",
            W=lambda rng: np.full((K, 1), 1e200),
            V=lambda rng: np.full((D, 1), 1e200),
        ),
        call(
            "points that are too large",
            "too large",
            "append",
            X=lambda rng: np.full((1, D), 1e200),
        ),
        call(
            "points that are too large",
            "too large",
            "update_x",
            z=lambda rng: np.full((1, D), 1e200),
            i=lambda rng: 0,
        ),
        call(
            "queries that are too large",
            "too large",
            "query_all",
            q=lambda rng: np.full(D, 1e200),
        ),
        call(
            "more votes than sketches",
            r"\bR\b",
            "__init__",
            U=lambda rng: None,
            X=lambda rng: normal(rng, N, D),
            L=lambda rng: 3,
            R=lambda rng: 4,
        ),
        call(
            "a metric that is too large",
            "too large|overflow",
            "set_metric",
            U=lambda rng: np.full((K, D), 1e200),
        ),
    ]


def of_learner():
    def calibrate(fault, says, sign, **arguments):
        return lambda rng: Call(
            "calibrate_threshold",
            {"pairs": normal(rng, ROWS, 2, D), "y": np.full(ROWS, sign), **arguments},
            fault,
            says,
        )

    return [
        calibrate("no dissimilar pairs", r"\by\b", 1, strategy="max_tpr", min_rate=0.5),
        calibrate("no dissimilar pairs", r"\by\b", 1, strategy="max_tnr", min_rate=0.5),
        calibrate("no similar pairs", r"\by\b", -1, strategy="max_tpr", min_rate=0.5),
        calibrate("no similar pairs", r"\by\b", -1, strategy="max_tnr", min_rate=0.5),
        calibrate("no similar pairs", r"\by\b", -1, strategy="f_beta"),
        calibrate("no rate", r"\bmin_rate\b", 1, strategy="max_tpr"),
    ]


def of_components_from():
    def given(*names):
        return lambda rng: Call(
            "__call__", {name: np.eye(D) for name in names}, "not one", "exactly one"
        )

    return [given(), given("A", "V"), given("VI", "V"), given("A", "VI", "V")]
