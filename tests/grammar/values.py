"""Right and wrong values of every kind of argument."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.decomposition import PCA

N, D, K = 40, 6, 5  # points, features, rows of U
ROWS = 3  # of whatever is given
NAMES = [f"feature {column}" for column in range(D)]

# What scikit-learn, and Python where it asks it, says of arrays without their names.
OTHERS_SAY = (
    r"Expected 2D|dim [34]|0 sample|0 feature|could not convert|[Cc]omplex|float\(\)|"
    r"inhomogeneous|[Ss]parse|[Ll]abel|inconsistent numbers|requires y|at least 1 dim"
)


class Fault(NamedTuple):
    """A wrong value, and a pattern for what the error says of it."""

    value: object
    says: str


class Kind(NamedTuple):
    """Draws right values, and wrong ones by what is wrong with them."""

    good: Callable
    bad: dict


class Form(NamedTuple):
    """A method with the kinds of its arguments; some of them must be given."""

    method: str
    kinds: dict
    needed: tuple = ()


class Call(NamedTuple):
    """A method, its arguments, parameters set beforehand, and what the error says."""

    method: str
    arguments: dict
    fault: str
    says: str
    parameters: dict = {}
    may_be_index_error: bool = False

    def __str__(self):
        given = ", ".join(f"{name}={short(v)}" for name, v in self.arguments.items())
        return f"{self.method}({given}) with {self.parameters}: {self.fault}"


def short(value):
    text = f"{type(value).__name__} {value!r}".replace("\n", " ")
    return text if len(text) < 70 else f"{text[:60]}..."


def normal(rng, *shape):
    return rng.normal(size=shape)


def with_value(rng, array, value):
    """A copy of numbers with one of them, anywhere, replaced."""
    array = np.array(array, dtype=complex if isinstance(value, complex) else None)
    array.flat[rng.integers(array.size)] = value
    return array


def not_finite(rng):
    return rng.choice([np.nan, np.inf, -np.inf])


class Empty:
    """Nothing that could be taken for an array."""


# None of these is an array of numbers of any shape.
NOT_NUMBERS = {
    "text": lambda rng: str(rng.choice(["", "text", "auto", "1 2"])),
    "bytes": lambda rng: b"\xff\xfe",
    "an object": lambda rng: Empty(),
    "a class": lambda rng: Empty,
    "a function": lambda rng: len,
    "a dict": lambda rng: {"a": [1.0] * D},
    "a set": lambda rng: {1.0, 2.0},
    "a generator": lambda rng: (float(i) for i in range(D)),
    "ragged": lambda rng: [[1.0] * D, [1.0] * (D - 1)],
    "ragged deeper": lambda rng: [[[1.0], [2.0]], [[1.0, 3.0]]],
}


def wrong_values(rows, columns):
    """Arrays of the right shape with values that are not real, finite numbers."""
    shape = rows, columns
    return {
        "NaN or infinity": lambda rng: with_value(
            rng, normal(rng, *shape), not_finite(rng)
        ),
        "the same in a list": lambda rng: with_value(
            rng, normal(rng, *shape), not_finite(rng)
        ).tolist(),
        "the same in float16": lambda rng: with_value(
            rng, normal(rng, *shape), not_finite(rng)
        ).astype(np.float16),
        "the same in Fortran's order": lambda rng: np.asfortranarray(
            with_value(rng, normal(rng, *shape), not_finite(rng))
        ),
        "strings": lambda rng: np.full(shape, "x"),
        "a string": lambda rng: with_value(
            rng, normal(rng, *shape).astype(object), "x"
        ),
        "None": lambda rng: with_value(rng, normal(rng, *shape).astype(object), None),
        "an object inside": lambda rng: with_value(
            rng, normal(rng, *shape).astype(object), Empty()
        ),
        "complex": lambda rng: with_value(rng, normal(rng, *shape), 1j),
        "complex in a list": lambda rng: with_value(
            rng, normal(rng, *shape), 1j
        ).tolist(),
        "beyond float64": lambda rng: with_value(
            rng, normal(rng, *shape).astype(object), 10**400
        ),
    }


def wrong_shapes(rows, columns):
    """Numbers that are no matrix, or an empty one."""
    return {
        "a number": lambda rng: float(rng.normal()),
        "three dimensions": lambda rng: normal(rng, rows, columns, 1),
        "four dimensions": lambda rng: normal(rng, 1, rows, columns, 1),
        "no rows": lambda rng: np.empty((0, columns)),
        "no columns": lambda rng: np.empty((rows, 0)),
        "an empty list": lambda rng: [],
    }


def other_than(rng, number, most):
    """A whole number from 1 to `most` other than this one."""
    return int(rng.choice([n for n in range(1, most + 1) if n != number]))


def saying(says, *tables):
    """Faults of several tables, which all have to say the same."""
    return {
        what: lambda rng, make=make: Fault(make(rng), says)
        for table in tables
        for what, make in table.items()
    }


def matrix(name, rows=ROWS, columns=D, *, flat=True, fixed=("rows", "columns")):
    """A dense matrix for a MetricMaintenance, whose errors name it.

    `flat` says that one row may be given flat, and `fixed` what has to be as said.
    """
    bad = {**NOT_NUMBERS, **wrong_values(rows, columns), **wrong_shapes(rows, columns)}
    bad["sparse"] = lambda rng: sparse.csr_matrix(normal(rng, rows, columns))
    bad["None"] = lambda rng: None
    if not flat:
        bad["one dimension"] = lambda rng: normal(rng, columns)
    if "columns" in fixed:
        bad["other columns"] = lambda rng: normal(
            rng, rows, other_than(rng, columns, 2 * columns)
        )
    if "rows" in fixed:
        bad["other rows"] = lambda rng: normal(
            rng, other_than(rng, rows, 2 * rows), columns
        )
    return Kind(
        lambda rng: normal(rng, rows, columns), saying(rf"\b{name}\b|i and j", bad)
    )


def frame(values):
    return pd.DataFrame(values, columns=NAMES)


def points(far=None, *, name="X", fitted=True, none=False, dense=False, named=False):
    """Rows for an estimator, that no distance is known of from the size `far` on.

    `none` says that None is right, and `named` that there have to be names.
    """
    bad = {**NOT_NUMBERS, **wrong_values(ROWS, D), **wrong_shapes(ROWS, D)}
    bad |= {
        "one dimension": lambda rng: normal(rng, D),
        "sparse with NaN or infinity": lambda rng: sparse.csc_matrix(
            with_value(rng, normal(rng, ROWS, D), not_finite(rng))
        ),
        "sparse and complex": lambda rng: sparse.coo_matrix(
            with_value(rng, normal(rng, ROWS, D), 1j)
        ),
        "sparse and empty": lambda rng: sparse.csr_matrix((0, D)),
    }
    if named or not fitted:
        # Anything else is warned of first, as is a frame where there were no names.
        bad["a frame with NaN"] = lambda rng: frame(
            with_value(rng, normal(rng, ROWS, D), np.nan)
        )
        bad["a frame with text"] = lambda rng: frame(
            with_value(rng, normal(rng, ROWS, D).astype(object), "x")
        )
    if fitted:
        bad["other features"] = lambda rng: normal(rng, ROWS, other_than(rng, D, 12))
        bad["sparse of other features"] = lambda rng: sparse.lil_matrix(
            normal(rng, ROWS, other_than(rng, D, 12))
        )
    if dense:
        bad["sparse"] = lambda rng: sparse.csr_array(normal(rng, ROWS, D))
    if not none:
        bad["None"] = lambda rng: None
    faults = saying(rf"\b({name})\b|{OTHERS_SAY}", bad)
    if far is not None:
        faults |= too_far(lambda rng: with_value(rng, normal(rng, ROWS, D), far))
    if named:
        faults = {what: faults[what] for what in faults if "frame" in what}
        faults["other names"] = lambda rng: Fault(
            frame(normal(rng, ROWS, D)).rename(columns={NAMES[rng.integers(D)]: "?"}),
            "feature names should match",
        )
        faults["names in another order"] = lambda rng: Fault(
            frame(normal(rng, ROWS, D))[NAMES[::-1]], "feature names"
        )
        faults["names missing"] = lambda rng: Fault(
            frame(normal(rng, ROWS, D)).drop(columns=NAMES[rng.integers(D)]),
            "feature names",
        )
    good = frame if named else (lambda values: values)
    return Kind(lambda rng: good(normal(rng, ROWS, D)), faults)


def too_far(make):
    return saying(r"\b(X|pairs)\b.*(too (large|far)|overflow)", {"too large": make})


def indices(name, n, *, count=ROWS, unique=True, fixed=True):
    """Positions among n; `fixed` says that there have to be `count` of them."""

    def some(rng):
        return rng.permutation(n)[:count]

    def replaced(rng, value):
        return [value, *some(rng)[1:].tolist()]

    bad = {
        "too large": lambda rng: replaced(rng, n + int(rng.integers(3))),
        "too negative": lambda rng: replaced(rng, -n - 1 - int(rng.integers(3))),
        "one too large": lambda rng: n,
        "beyond int64": lambda rng: replaced(rng, 2**80),
        "beyond intp": lambda rng: np.array([2**64 - 1], dtype=np.uint64),
        "floats": lambda rng: some(rng).astype(float),
        "a float": lambda rng: 1.0,
        "NaN": lambda rng: replaced(rng, np.nan),
        "a mask": lambda rng: rng.random(n + 1) < 0.5,
        "True": lambda rng: True,
        "text": lambda rng: "text",
        "digits": lambda rng: replaced(rng, "1"),
        "None": lambda rng: None,
        "None inside": lambda rng: replaced(rng, None),
        "complex": lambda rng: some(rng) + 0j,
        "an object": lambda rng: Empty(),
        "a dict": lambda rng: {0: 1},
        "a set": lambda rng: {0, 1},
        "a slice": lambda rng: slice(0, 2),
        "a generator": lambda rng: (i for i in range(count)),
        "two dimensions": lambda rng: some(rng)[:, np.newaxis],
        "ragged": lambda rng: [[0], [1, 2]],
        "sparse": lambda rng: sparse.csr_matrix(some(rng)),
        "dates": lambda rng: some(rng).astype("datetime64[D]"),
    }
    if unique:
        bad["repeated"] = lambda rng: np.repeat(some(rng)[:1], count)
        bad["repeated from the end"] = lambda rng: [n - 1, -1, 0][:count]
    if fixed:
        bad["too few or too many"] = lambda rng: rng.permutation(n)[
            : other_than(rng, count, 5)
        ]
        bad["none"] = lambda rng: []
    return Kind(some, saying(rf"\b({name})\b", bad))


def positions(name):
    """Positions of points in any shape, which are paired with others."""
    kind = indices(name, N, unique=False, fixed=False)
    bad = {what: make for what, make in kind.bad.items() if what != "two dimensions"}
    return kind._replace(bad=bad)


def count_of(name, least=1, most=None, *, none=False):
    bad = {
        "too few": lambda rng: least - 1 - int(rng.integers(3)),
        "a float": lambda rng: float(least),
        "NaN": lambda rng: np.nan,
        "infinity": lambda rng: np.inf,
        "True": lambda rng: True,
        "text": lambda rng: "1",
        "a list": lambda rng: [1],
        "an array": lambda rng: np.array([1, 2]),
        "complex": lambda rng: 1j,
        "an object": lambda rng: Empty(),
    }
    if most is not None:
        bad["too many"] = lambda rng: most + 1 + int(rng.integers(3))
        bad["far too many"] = lambda rng: 10**30
    if not none:
        bad["None"] = lambda rng: None
    return Kind(
        lambda rng: int(rng.integers(max(least, 1), least + 3)),
        saying(rf"\b{name}\b", bad),
    )


def number(name, *, none=False, bad=()):
    """A number of at least 0, and what else is not right."""
    faults = {
        "negative": lambda rng: -float(rng.exponential()) - 1e-9,
        "minus infinity": lambda rng: -np.inf,
        "NaN": lambda rng: np.nan,
        "text": lambda rng: "wide",
        "a list": lambda rng: [1.0],
        "an array": lambda rng: np.ones(2),
        "complex": lambda rng: 1j,
        "an object": lambda rng: Empty(),
        **dict(bad),
    }
    if not none:
        faults["None"] = lambda rng: None
    return Kind(lambda rng: float(rng.uniform(1, 4)), saying(rf"\b{name}\b", faults))


def one_of(name, right, *wrong):
    def bad(value):
        return lambda rng: Fault(value, rf"\b{name}\b")

    wrong = [*wrong, "", "unknown", 7.5, None, [], ["a"], {}, Empty(), np.arange(3)]
    return Kind(
        lambda rng: right[rng.integers(len(right))],
        {f"{short(value)}": bad(value) for value in wrong},
    )


power = one_of("power", [1, 2], 0, 3, -1, 1.5, "2", np.nan, 1j)
mode = one_of("mode", ["connectivity", "distance"], "both", b"distance", True)
random_state = Kind(
    lambda rng: int(rng.integers(9)),
    {
        repr(seed): lambda rng, seed=seed: Fault(seed, "random_state|[Ss]eed")
        for seed in [-1, 1.5, "a", 2**40, [1, 2], {}, 1j]
    },
)


class WithComponents:
    """A fitted learner of any metric."""

    def __init__(self, components):
        self.components_ = components

    def fit(self, X, y=None):
        return self


METRIC = matrix("metric", K, D, flat=False, fixed=["columns"])
METRIC = METRIC._replace(
    bad={
        **{
            what: make
            for what, make in METRIC.bad.items()
            if what != "None"  # as if it were not given
        },
        **saying(
            r"\bmetric\b",
            {
                "None inside": wrong_values(K, D)["None"],
                "a dictionary of no metric": lambda rng: {"B": np.eye(D)},
                "a dictionary of two": lambda rng: {"A": np.eye(D), "V": np.eye(D)},
                "a dictionary with NaN": lambda rng: {"U": np.full((K, D), np.nan)},
                "an A of other size": lambda rng: {"A": np.eye(D + 1)},
                "a VI not symmetric": lambda rng: {"VI": normal(rng, D, D)},
                "a singular V": lambda rng: {"V": np.zeros((D, D))},
                "a learner not fitted": lambda rng: PCA(2),
                "a class of learners": lambda rng: PCA,
                "a learner with a wrong metric": lambda rng: WithComponents(
                    with_value(rng, normal(rng, K, D), not_finite(rng))
                ),
                "a learner of other features": lambda rng: WithComponents(
                    normal(rng, K, other_than(rng, D, 9))
                ),
                "a learner of text": lambda rng: WithComponents("text"),
                "a learner of nothing": lambda rng: WithComponents(None),
            },
        ),
    }
)


def low_rank():
    """Pairs (W, V) of which one is wrong, or which is no pair."""
    W, V = matrix("W", K, 2), matrix("V", D, 2)
    bad = {}
    for what, make in W.bad.items():
        if what != "one dimension":
            bad[f"W: {what}"] = lambda rng, make=make: Fault(
                (make(rng).value, V.good(rng)), r"\b[WV]\b"
            )
    for what, make in V.bad.items():
        bad[f"V: {what}"] = lambda rng, make=make: Fault(
            (W.good(rng), make(rng).value), r"\b[WV]\b"
        )
    no_pair = {
        "one array": W.good,
        "three arrays": lambda rng: (W.good(rng), V.good(rng), V.good(rng)),
        "one in a tuple": lambda rng: (W.good(rng),),
        "an empty list": lambda rng: [],
        "text": lambda rng: "WV",
        "a dict": lambda rng: {"W": W.good(rng), "V": V.good(rng)},
        "a number": lambda rng: 1.0,
        "an object": lambda rng: Empty(),
    }
    bad |= saying(r"\blow_rank\b", no_pair)
    return Kind(lambda rng: (W.good(rng), V.good(rng)), bad)


WRONG_TARGETS = {
    "None": lambda rng: None,
    "too few": lambda rng: np.zeros(int(rng.integers(1, ROWS)), dtype=int),
    "too many": lambda rng: np.zeros(ROWS + int(rng.integers(1, 4)), dtype=int),
    "none": lambda rng: [],
    "a number": lambda rng: 1,
    "an object": lambda rng: Empty(),
    "a dict": lambda rng: {},
    "NaN": lambda rng: with_value(rng, np.zeros(ROWS), np.nan),
    "infinity": lambda rng: with_value(rng, np.zeros(ROWS), np.inf),
    "three dimensions": lambda rng: np.zeros((ROWS, 1, 2), dtype=int),
    "ragged": lambda rng: [[0], [1, 2], [3]],
    "sparse": lambda rng: sparse.csr_matrix(np.zeros((ROWS, 1))),
}
Y_SAYS = rf"\by\b|{OTHERS_SAY}"


def labels(*, fitted=True, strict=False, missing=False):
    """Classes; `strict` says that all there are must be in one type.

    With `missing`, some labels may not be known.
    """
    bad = dict(WRONG_TARGETS)
    if missing:
        del bad["NaN"]
    bad["continuous"] = lambda rng: rng.uniform(0.1, 0.9, size=ROWS)
    if fitted and not strict:
        bad["an unknown class"] = lambda rng: with_value(rng, np.zeros(ROWS, int), 99)
        bad["text"] = lambda rng: np.full(ROWS, "text")
        bad["two outputs"] = lambda rng: np.zeros((ROWS, 2), dtype=int)
    return Kind(lambda rng: rng.integers(3, size=ROWS), saying(Y_SAYS, bad))


def other_length():
    """Targets for a score, of which scikit-learn makes what it can."""
    bad = {what: WRONG_TARGETS[what] for what in ("too few", "too many", "none")}
    return Kind(lambda rng: rng.integers(3, size=ROWS), saying(Y_SAYS, bad))


def targets(*, fitted=True):
    bad = dict(WRONG_TARGETS)
    bad["text"] = lambda rng: np.full(ROWS, "text")
    bad["beyond float64"] = lambda rng: [10**400] * ROWS
    bad["complex"] = lambda rng: np.ones(ROWS) * 1j
    if fitted:
        bad["two outputs"] = lambda rng: np.zeros((ROWS, 2))
    return Kind(lambda rng: normal(rng, ROWS), saying(Y_SAYS, bad))


def weights():
    """Weights of points."""
    bad = {
        "too few": lambda rng: np.ones(ROWS - 1),
        "too many": lambda rng: np.ones(ROWS + 1),
        "a number": lambda rng: 1.0,
        "negative": lambda rng: with_value(rng, np.ones(ROWS), -0.5),
        "NaN": lambda rng: with_value(rng, np.ones(ROWS), np.nan),
        "infinity": lambda rng: with_value(rng, np.ones(ROWS), np.inf),
        "two dimensions": lambda rng: np.ones((ROWS, 1)),
        "text": lambda rng: ["heavy"] * ROWS,
        "complex": lambda rng: np.ones(ROWS) * 1j,
        "ragged": lambda rng: [[1.0], [1.0, 2.0], [3.0]],
    }
    return Kind(lambda rng: rng.uniform(size=ROWS), saying(r"\bsample_weight\b", bad))


def ids(n=None):
    """Ids of points that come or, with n, of points that are there."""
    bad = {
        "floats": lambda rng: np.arange(ROWS) + 0.5,
        "two dimensions": lambda rng: np.arange(ROWS)[:, np.newaxis],
        "ragged": lambda rng: [[1], [2, 3], [4]],
        "an object": lambda rng: Empty(),
        "a dict": lambda rng: {0: 1},
        "booleans": lambda rng: rng.random(ROWS) < 2,
    }
    if n is not None:
        bad["unknown"] = lambda rng: [n + int(rng.integers(9))]
        bad["negative"] = lambda rng: [-1]
        bad["text"] = lambda rng: "text"
        return Kind(lambda rng: rng.permutation(n)[:ROWS], saying(r"\bids\b", bad))
    bad |= {
        "too few": lambda rng: np.arange(ROWS - 1),
        "too many": lambda rng: np.arange(ROWS + 1),
        "repeated": lambda rng: np.zeros(ROWS, dtype=int),
        "a number": lambda rng: 1,
        "None inside": lambda rng: [1, None, 2],
        "of two types": lambda rng: [1, "a", 2.5],
    }
    return Kind(lambda rng: rng.permutation(99)[:ROWS], saying(r"\bids\b", bad))


def signs():
    """Targets of pairs: +1 or -1."""
    bad = {
        **WRONG_TARGETS,
        "zeros": lambda rng: np.zeros(ROWS, dtype=int),
        "continuous": lambda rng: rng.uniform(0.1, 0.9, size=ROWS),
        "two": lambda rng: with_value(rng, np.ones(ROWS, dtype=int), 2),
        "text": lambda rng: np.full(ROWS, "text"),
        "complex": lambda rng: np.ones(ROWS) * 1j,
        "two columns": lambda rng: np.ones((ROWS, 2), dtype=int),
        "None inside": lambda rng: [1, None, -1],
    }
    return Kind(lambda rng: rng.choice([-1, 1], size=ROWS), saying(Y_SAYS, bad))


def pairs(*, fitted=True, points_too=False):
    """Pairs of points; `points_too` says that points are right where y is."""
    shape = ROWS, 2 * D

    def folded(make):
        def value(rng):
            wrong = make(rng)
            if isinstance(wrong, np.ndarray):
                return wrong.reshape(ROWS, 2, D)
            return np.reshape(np.array(wrong, dtype=object), (ROWS, 2, D)).tolist()

        return value

    bad = {what: folded(make) for what, make in wrong_values(*shape).items()}
    bad |= NOT_NUMBERS
    bad |= {
        "a number": lambda rng: 1.0,
        "one dimension": lambda rng: normal(rng, D),
        "four dimensions": lambda rng: normal(rng, ROWS, 2, D, 1),
        "triplets": lambda rng: normal(rng, ROWS, 3, D),
        "singles": lambda rng: normal(rng, ROWS, 1, D),
        "no pairs": lambda rng: np.empty((0, 2, D)),
        "sparse": lambda rng: sparse.csr_matrix(normal(rng, ROWS, D)),
        "None": lambda rng: None,
    }
    if not points_too:
        bad["two dimensions"] = lambda rng: normal(rng, ROWS, D)
    if fitted:
        bad["other features"] = lambda rng: normal(rng, ROWS, 2, other_than(rng, D, 9))
    return Kind(
        lambda rng: normal(rng, ROWS, 2, D),
        saying(rf"\bpairs\b|\bX\b|{OTHERS_SAY}", bad),
    )
