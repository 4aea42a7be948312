"""The methods of every public class with the kinds of their arguments."""

import numpy as np
from scipy import sparse

from skmahal import MetricMaintenance

from .values import (
    METRIC,
    ROWS,
    D,
    Empty,
    Fault,
    Form,
    K,
    Kind,
    N,
    count_of,
    ids,
    indices,
    labels,
    low_rank,
    matrix,
    mode,
    normal,
    number,
    one_of,
    other_length,
    pairs,
    points,
    positions,
    power,
    random_state,
    saying,
    short,
    signs,
    targets,
    too_far,
    weights,
    with_value,
)

compact = one_of("kind", ["sketch", "codes", None], "all", 3)
del compact.bad[short(None)]


def of_compact():
    X, few = matrix("X", fixed=["columns"]), count_of("n_neighbors", most=N)
    del X.bad["sparse"]
    return [
        Form("distances", {"X": X}, ("X",)),
        Form("kneighbors", {"X": X, "n_neighbors": few}, ("X",)),
        Form("pair_distances", {"i": positions("i"), "j": positions("j")}, ("i", "j")),
        Form("guarantee", {}),
    ]


def of_seeds():
    index = Kind(lambda rng: MetricMaintenance(None, normal(rng, N, D)), {})
    parts = {"index": index, "n_clusters": count_of("n_clusters", most=N)}
    parts |= {"power": power, "random_state": random_state}
    return [Form("__call__", parts, ("index", "n_clusters"))]


def of_updates(X, **y):
    """What every index takes to follow its metric and points, and targets `y`."""
    rows = indices("rows", K)
    del rows.bad["None"]
    more, weighted = ("X", *y), {"sample_weight": weights()} if y else {}
    return [
        Form(
            "update_points",
            {"indices": indices("indices", N), "X": X, **y, **weighted},
            ("indices", *more),
        ),
        Form("update_points", {"ids": ids(N), "X": X, **y}, ("ids", *more)),
        Form("remove_points", {"ids": ids(N)}, ("ids",)),
        Form("points", {"ids": ids(N)}),
        Form(
            "remove_points",
            {"indices": indices("indices", N, unique=False, fixed=False)},
            ("indices",),
        ),
        Form("update_metric", {"metric": METRIC}, ("metric",)),
        Form(
            "update_metric",
            {"metric": matrix("metric", ROWS, D), "rows": rows},
            ("metric",),
        ),
        Form("update_metric", {"low_rank": low_rank()}, ("low_rank",)),
        Form("refresh_sketches", {}),
        Form("guarantee", {}),
        Form("check", {}),
    ]


def of_labels(y):
    """How targets of points that are there are changed."""
    by_position = {"indices": indices("indices", N), "y": y}
    return [
        Form(
            "update_labels",
            {**by_position, "sample_weight": weights()},
            ("indices", "y"),
        ),
        Form("update_labels", {"ids": ids(N), "y": y}, ("ids", "y")),
    ]


def of_neighbours(X):
    few = count_of("n_neighbors", most=N, none=True)
    return [
        Form("kneighbors", {"X": X, "n_neighbors": few}),
        Form("kneighbors_graph", {"X": X, "n_neighbors": few, "mode": mode}),
    ]


def of_index(named=False, far=1e300):
    X, X_or_none = points(far, named=named), points(far, none=True, named=named)
    radius = number("radius", none=True)
    return [
        Form("fit", {"X": points(1e300, fitted=False), "ids": ids()}, ("X",)),
        Form("partial_fit", {"X": X}, ("X",)),
        *of_updates(X),
        *of_neighbours(X_or_none),
        Form("radius_neighbors", {"X": X_or_none, "radius": radius}),
        Form(
            "radius_neighbors_graph", {"X": X_or_none, "radius": radius, "mode": mode}
        ),
        Form("distances", {"X": X}, ("X",)),
        Form("pair_distances", {"i": positions("i"), "j": positions("j")}, ("i", "j")),
        Form(
            "sample",
            {
                "X": X,
                "n_samples": count_of("n_samples"),
                "power": power,
                "random_state": random_state,
            },
            ("X",),
        ),
        Form(
            "sum_distances",
            {"X": X, "start": count_of("start", least=0, most=N), "power": power},
            ("X",),
        ),
        Form(
            "sum_distances",
            {"X": X, "stop": count_of("stop", least=0, most=N, none=True)},
            ("X",),
        ),
        Form("score", {"X": X}, ("X",)),
        Form("audit", {"n_pairs": count_of("n_pairs"), "random_state": random_state}),
        Form("guarantee", {"n_queries": count_of("n_queries")}),
        Form("sketches_only", {"kind": compact}),
    ]


def of_classifier():
    X, far = points(1e300), points(1e300, fitted=False)
    y, weight = labels(missing=True), {"sample_weight": weights()}
    classes = one_of("classes", [[0, 1, 2], None], [0, 1], [[0, 1, 2]], 3)
    # None is right, and so are no classes other than those of the first call.
    del classes.bad[short(None)], classes.bad[short(np.arange(3))]
    return [
        Form(
            "fit",
            {"X": far, "y": labels(fitted=False, missing=True), **weight, "ids": ids()},
            ("X", "y"),
        ),
        Form("partial_fit", {"X": X, "y": y, "classes": classes, **weight}, ("X", "y")),
        *of_updates(X, y=y),
        *of_labels(y),
        *of_neighbours(points(1e300, none=True)),
        Form("predict", {"X": points(1e300, none=True)}, ("X",)),
        Form("predict_proba", {"X": points(1e300, none=True)}, ("X",)),
        Form("score", {"X": X, "y": other_length()}, ("X", "y")),
    ]


def of_centroid():
    X, far = points(1e300, dense=True), points(1e300, fitted=False, dense=True)
    y, first, known = labels(), labels(fitted=False), points(dense=True)
    for kind in (y, first):
        kind.bad["two outputs"] = lambda rng: Fault(np.zeros((ROWS, 2), int), "y|input")
    # Any call may add classes.
    del y.bad["an unknown class"]
    classes = one_of("classes", [[0, 1, 2], None], [0, 1], [[0, 1, 2]], 3)
    del classes.bad[short(None)], classes.bad[short(np.arange(3))]
    weights = matrix("sample_weight", 1, ROWS)
    weights = Kind(lambda rng: rng.uniform(size=ROWS), weights.bad)
    for what in ("None", "a number"):
        del weights.bad[what]
    updates = [form for form in of_updates(X, y=y) if form.method == "update_metric"]
    more = {"X": X, "y": y, "classes": classes, "sample_weight": weights}
    return [
        Form("fit", {"X": far, "y": first, "sample_weight": weights}, ("X", "y")),
        Form("partial_fit", more, ("X", "y")),
        *updates,
        Form("predict", {"X": known}, ("X",)),
        Form("predict_proba", {"X": known}, ("X",)),
        Form("decision_function", {"X": X}, ("X",)),
        Form("score", {"X": known, "y": other_length()}, ("X", "y")),
    ]


def of_regressor():
    X, far, y = points(1e300), points(1e300, fitted=False), targets()
    return [
        Form("fit", {"X": far, "y": targets(fitted=False), "ids": ids()}, ("X", "y")),
        Form("partial_fit", {"X": X, "y": y, "sample_weight": weights()}, ("X", "y")),
        *of_updates(X, y=y),
        *of_labels(y),
        *of_neighbours(points(1e300, none=True)),
        Form("predict", {"X": points(1e300, none=True)}, ("X",)),
        Form("score", {"X": X, "y": other_length()}, ("X", "y")),
    ]


def of_transformer():
    X, far = points(1e300), points(1e300, fitted=False)
    return [
        Form("fit", {"X": far}, ("X",)),
        Form("fit_transform", {"X": far}, ("X",)),
        Form("partial_fit", {"X": X}, ("X",)),
        *of_updates(X),
        *of_neighbours(points(1e300, none=True)),
        Form("transform", {"X": points(1e300, none=True)}, ("X",)),
    ]


def of_radius_transformer():
    X, far = points(1e300), points(1e300, fitted=False)
    radius, X_or_none = number("radius", none=True), points(1e300, none=True)
    graph = {"X": X_or_none, "radius": radius, "mode": mode}
    return [
        Form("fit", {"X": far}, ("X",)),
        Form("fit_transform", {"X": far}, ("X",)),
        Form("partial_fit", {"X": X}, ("X",)),
        *of_updates(X),
        Form("radius_neighbors", {"X": X_or_none, "radius": radius}),
        Form("radius_neighbors_graph", graph),
        Form("transform", {"X": X_or_none}, ("X",)),
    ]


def of_outliers(novelty):
    X, far = points(1e300), points(1e300, fitted=False)
    forms = [
        Form("fit", {"X": far}, ("X",)),
        Form("partial_fit", {"X": X}, ("X",)),
        *of_updates(X),
        *of_neighbours(points(1e300, none=True)),
    ]
    if not novelty:
        return [*forms, Form("fit_predict", {"X": far}, ("X",))]
    names = "predict", "decision_function", "score_samples"
    return [*forms, *(Form(name, {"X": X}, ("X",)) for name in names)]


def of_sketch():
    return [
        Form("fit", {"X": points(fitted=False)}, ("X",)),
        Form("fit_transform", {"X": points(fitted=False)}, ("X",)),
        Form("transform", {"X": points()}, ("X",)),
    ]


def of_learner():
    X, y = pairs(), signs()
    first = pairs(fitted=False, points_too=True)
    far = too_far(lambda rng: 1e300 * normal(rng, ROWS, 2, D))
    more = pairs(points_too=True)._replace(bad={**pairs(points_too=True).bad, **far})
    classes = labels(fitted=False)
    rate = {"above one": lambda rng: 1.5}
    strategy = one_of("strategy", ["accuracy", "f_beta"], "best", b"accuracy", True)
    needed = ("pairs", "y")
    return [
        Form("fit", {"pairs": first, "y": y}, needed),
        Form(
            "fit",
            {"pairs": points(name="X|pairs", fitted=False, dense=True), "y": classes},
            needed,
        ),
        Form("partial_fit", {"pairs": more, "y": y}, needed),
        Form(
            "partial_fit",
            {"pairs": points(name="X|pairs", dense=True), "y": classes},
            needed,
        ),
        Form(
            "fit_transform",
            {"X": points(name="X|pairs", fitted=False, dense=True), "y": classes},
            ("X", "y"),
        ),
        Form("transform", {"X": points(name="X|pairs", dense=True)}, ("X",)),
        *(
            Form(method, {"pairs": X}, ("pairs",))
            for method in (
                "pair_distance",
                "pair_score",
                "decision_function",
                "predict",
            )
        ),
        Form("score", {"pairs": X, "y": both_signs()}, needed),
        Form("set_threshold", {"threshold": threshold()}, ("threshold",)),
        Form(
            "calibrate_threshold",
            {"pairs": X, "y": both_signs(), "strategy": strategy},
            needed,
        ),
        Form(
            "calibrate_threshold",
            {
                "pairs": X,
                "y": both_signs(),
                "strategy": exactly("f_beta"),
                "beta": number("beta", bad={"infinity": lambda rng: np.inf}),
            },
            needed,
        ),
        Form(
            "calibrate_threshold",
            {
                "pairs": X,
                "y": both_signs(),
                "strategy": exactly("max_tpr"),
                "min_rate": number("min_rate", bad=rate)._replace(
                    good=lambda rng: rng.random()
                ),
            },
            (*needed, "min_rate"),
        ),
        Form("updates_since", {"token": tokens()}, ("token",)),
        Form("state_token", {}),
        Form("get_mahalanobis_matrix", {}),
        Form("get_metric", {}),
    ]


def exactly(value):
    return Kind(lambda rng: value, {})


def both_signs():
    """Signs of both kinds, without which there is no rate and no curve."""
    return signs()._replace(good=lambda rng: rng.permutation([1, -1, -1]))


def threshold():
    bad = ["far", None, [1.0], True, 1j, np.ones(2), Empty(), np.nan]
    return Kind(
        lambda rng: rng.random(),
        {short(v): lambda rng, v=v: Fault(v, r"\bthreshold\b") for v in bad},
    )


def tokens():
    """What no learner has given, nor any other could have."""
    bad = [
        "text",
        3,
        (),
        ("a",),
        ("a", 1, 2),
        ("a", "b"),
        ["a", 2],
        ("a", 1.5),
        Empty(),
    ]
    return Kind(
        lambda rng: ("of another learner", 3),
        {short(v): lambda rng, v=v: Fault(v, r"\btoken\b") for v in bad},
    )


def of_maintenance():
    q, Q = matrix("q", fixed=["columns"]), matrix("Q", fixed=["columns"])
    few = count_of("K", most=N)
    i, j = positions("i"), positions("j")
    U, X = matrix("U", K, D, fixed=["columns"]), matrix("X", fixed=["columns"])
    del q.bad["sparse"], Q.bad["sparse"], X.bad["sparse"]
    pairs_of = {"i": i, "j": j}
    rows = {"u": matrix("u"), "a": indices("a|u", K)}
    z = matrix("z")
    del z.bad["sparse"]
    jobs = count_of("jobs")
    ranges = {
        "i": count_of("i", least=0, most=N)._replace(good=lambda rng: 3),
        "j": count_of("j", least=3, most=N, none=True),
    }
    W, V = matrix("W", K, 2, fixed=["rows"]), matrix("V", D, 2, fixed=["rows"])
    return [
        Form("__init__", parts_of_maintenance(), ("U", "X")),
        Form("update_u", {**rows, "jobs": jobs}, tuple(rows)),
        Form("set_rows", {**rows, "jobs": jobs}, tuple(rows)),
        Form("update_low_rank", {"W": W, "V": V, "jobs": jobs}, ("W", "V")),
        Form("set_metric", {"U": U, "jobs": jobs}, ("U",)),
        Form("update_x", {"z": z, "i": indices("i", N)}, ("z", "i")),
        Form("append", {"X": X}, ("X",)),
        Form(
            "remove",
            {"indices": indices("indices", N, unique=False, fixed=False)},
            ("indices",),
        ),
        Form("refresh_sketches", {}),
        Form("sketches_only", {"kind": compact}),
        Form("guarantee", {"n_queries": count_of("n_queries")}),
        Form(
            "audit",
            {"n_pairs": count_of("n_pairs"), "random_state": seeds("random_state")},
        ),
        Form("ways", {}),
        Form("query_pair", pairs_of, ("i", "j")),
        Form("exact_pair", pairs_of, ("i", "j")),
        Form("query_all", {"q": q}, ("q",)),
        Form("exact_all", {"q": q, "jobs": jobs}, ("q",)),
        Form(
            "kneighbors",
            {"Q": Q, "K": few, "jobs": jobs},
            ("Q", "K"),
        ),
        Form(
            "kneighbors",
            {
                "Q": Q,
                "K": few._replace(good=lambda rng: 4),
                "candidates": count_of("candidates", least=4, most=N),
            },
            ("Q", "K"),
        ),
        Form("radius_neighbors", {"Q": Q, "radius": number("radius")}, ("Q", "radius")),
        Form("sub_sum", {"q": q, **ranges, "power": power}, ("q", "i", "j")),
        Form(
            "sample_exact",
            {
                "q": q,
                "size": count_of("size"),
                "power": power,
                "random_state": seeds("random_state"),
            },
            ("q",),
        ),
    ]


def seeds(name):
    bad = [-1, 1.5, "a", {}, 1j, Empty()]
    return Kind(
        lambda rng: int(rng.integers(9)),
        {short(v): lambda rng, v=v: Fault(v, rf"\b{name}\b") for v in bad},
    )


def fraction(name):
    bad = {
        "zero": lambda rng: 0,
        "one": lambda rng: 1.0,
        "above one": lambda rng: 1 + rng.exponential(),
    }
    kind = number(name, bad=bad)
    return kind._replace(good=lambda rng: rng.uniform(0.1, 0.5))


def parts_of_maintenance():
    X, U = matrix("X", N, D, fixed=[]), matrix("U", K, D, fixed=["columns"])
    del X.bad["sparse"], U.bad["None"]
    X.bad["sparse and complex"] = lambda rng: Fault(
        sparse.csr_matrix(with_value(rng, normal(rng, N, D), 1j)), r"\bX\b"
    )
    sketch = one_of("sketch", ["gaussian", "rademacher"], "fourier")
    return {
        "U": U,
        "X": X,
        "eps": fraction("eps"),
        "delta": fraction("delta"),
        "m": count_of("m"),
        "L": count_of("L")._replace(good=lambda rng: 3),
        "R": count_of("R")._replace(good=lambda rng: 1),
        "lead": count_of("lead", least=0),
        "sketch": sketch,
        "n_neighbors": count_of("n_neighbors"),
        "seed": seeds("seed"),
    }


def of_components_from():
    def symmetric(rng):
        half = normal(rng, D, D)
        return half @ half.T

    forms = []
    for name in ("A", "VI", "V"):
        kind = matrix(name, D, D, fixed=["rows", "columns"])
        wrong = {
            "not symmetric": lambda rng: normal(rng, D, D),
            "indefinite": lambda rng: symmetric(rng) - 1e3 * np.eye(D),
            "negative": lambda rng: -np.eye(D),
            "zero": lambda rng: np.zeros((D, D)),
        }
        bad = {**kind.bad, **saying(rf"\b{name}\b", wrong)}
        forms.append(Form("__call__", {name: Kind(symmetric, bad)}, (name,)))
    return forms


def of_warm_up():
    bad = [
        None,
        3,
        "x",
        np.float32,
        [int],
        ["f2"],
        [Empty()],
        [np.float64, "i4"],
    ]
    faults = {short(v): lambda rng, v=v: Fault(v, r"\bdtypes\b") for v in bad}
    kind = Kind(lambda rng: [np.float64], faults)
    return [Form("__call__", {"dtypes": kind})]
