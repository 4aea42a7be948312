"""A saved object that was cut, damaged or changed is refused, or gives its results."""

import copy
import io
import json
import pickle
import zipfile

import numpy as np
import pytest
import skops.io
from scipy import sparse

from skmahal import (
    MahalanobisSketch,
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
)

# Private: somebody who changes a file on purpose also changes its digest.
from skmahal._core.saved import stamped
from skmahal.online import LEGO
from tests.saving import CASES, normal
from tests.test_persistence import saved_part

PUBLIC = [
    SketchedMahalanobisClassifier,
    MahalanobisSketch,
    LEGO,
    SketchedMahalanobisNeighbors,
]
REFUSED = "is damaged or was changed"


def small(search, storage=np.asarray):
    """A classifier whose arrays are all in use, and a change that none has seen."""
    params = {"m": 2, "R": 1, "lead": 1, "L": 3, "random_state": 0}
    X, y = normal(30, 8), np.arange(30) % 2
    params = {"metric_learner": normal(6, 8), "n_candidates": search, **params}
    knn = SketchedMahalanobisClassifier(2, **params)
    knn.fit(storage(np.where(np.abs(X) > 0.3, X, 0)), y)
    everything(knn)
    return knn.update_metric(low_rank=(0.1 * np.arange(6.0), np.ones(8)))


def everything(knn):
    Q, held = normal(4, 8, seed=5), knn._maintenance
    found = [*knn.kneighbors(Q), knn.predict_proba(Q), held.query_all(Q)]
    sums = held.sub_sum(Q, 0, held.n), held.sub_sum(Q, 2, 9)
    return [*found, *sums, held.sample_exact(Q, 4, random_state=0)]


def saved(thing, compression=zipfile.ZIP_STORED):
    return skops.io.dumps(thing, compression=compression)


def loaded(data):
    return skops.io.loads(data, trusted=PUBLIC)


def same(found, expected):
    return all(map(np.array_equal, found, expected))


def error_or_same_results(data, expected):
    """Whether loading was an error; if not, nothing was changed."""
    try:
        thing = loaded(data)
    except Exception:
        return True
    assert same(everything(thing), expected)
    return False


# --- files that were cut or damaged ---------------------------------------------------


def check_cuts(data, count):
    for end in {*np.linspace(0, len(data) - 1, count).astype(int), len(data) - 1}:
        with pytest.raises(Exception, match=r".*"):
            loaded(data[:end])


def check_flips(data, expected, positions):
    """Most bytes are of arrays or of the schema, which a sum of the archive guards."""
    refused = 0
    for position, bit in positions:
        damaged = bytearray(data)
        damaged[position] ^= 1 << bit
        refused += error_or_same_results(bytes(damaged), expected)
    assert refused > 0.8 * len(positions)


def some_positions(data, count, seed=0):
    rng = np.random.default_rng(seed)
    places, bits = rng.integers(len(data), size=count), rng.integers(8, size=count)
    return list(zip(places, bits, strict=True))


def test_a_file_that_was_cut_is_refused():
    check_cuts(saved(small("certified")), 40)


def test_a_file_with_a_flipped_bit_is_refused():
    knn = small("certified")
    data = saved(knn)
    check_flips(data, everything(knn), some_positions(data, 60))


def test_the_directory_of_an_archive_is_guarded():
    """The last bytes of a file say where its parts are."""
    knn = small("exact")
    data, expected = saved(knn), everything(knn)
    rng = np.random.default_rng(1)
    for position in rng.integers(len(data) - 1500, len(data), size=40):
        damaged = bytearray(data)
        damaged[position] ^= 255
        error_or_same_results(bytes(damaged), expected)


@pytest.mark.stress
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("search", ["certified", "exact"])
def test_no_damage_goes_unnoticed(search, compression):
    knn = small(search)
    data = saved(knn, compression)
    check_cuts(data, 1000)
    check_flips(data, everything(knn), some_positions(data, 3000))


def test_an_array_that_was_replaced_in_an_archive_is_refused():
    """The sums of the archive are right, the digest is not."""
    data = saved(small("certified"))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    arrays = [name for name in parts if name.endswith(".npy")]
    assert len(arrays) > 10
    for name in arrays:
        array = np.load(io.BytesIO(parts[name]))
        if not array.size or array.dtype.kind not in "fi":
            continue
        array.flat[array.size // 2] += 1
        buffer = io.BytesIO()
        np.save(buffer, array)
        with pytest.raises(ValueError, match=REFUSED):
            loaded(packed({**parts, name: buffer.getvalue()}))
    schema = json.loads(parts["schema.json"])
    # Values that are the same object share what was read first.
    schema["content"]["content"]["n_neighbors"].update(content="3", __id__=-1)
    with pytest.raises(ValueError, match=REFUSED):
        loaded(packed({**parts, "schema.json": json.dumps(schema)}))


def packed(parts):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return buffer.getvalue()


# --- states that were changed ---------------------------------------------------------


def places(value, path=()):
    """Paths of all values in a state that are neither dictionaries nor lists."""
    if isinstance(value, dict):
        keys = value
    elif isinstance(value, list | tuple):
        keys = range(len(value))
    else:
        return [path]
    return [place for key in keys for place in places(value[key], (*path, key))]


def at(state, path):
    for key in path:
        state = state[key]
    return state


def changed(state, path, change):
    """A state with a value replaced by ``change`` of it."""
    if not path:
        return change(state)
    parts = copy.copy(state) if isinstance(state, dict) else list(state)
    parts[path[0]] = changed(parts[path[0]], path[1:], change)
    return tuple(parts) if isinstance(state, tuple) else parts


def other(value):
    """Any other value of the same type."""
    if isinstance(value, np.ndarray):
        if not value.size:
            return np.ones(1, value.dtype)
        value = value.copy()
        if value.dtype.kind in "fi":
            value.flat[0] += 1
            return value
        return value[::-1]
    if isinstance(value, bytes):
        return value[::-1]
    if isinstance(value, str):
        return value + "?"
    return 3 if value is None else value + 1


def restored(kind, state):
    thing = kind.__new__(kind)
    thing.__setstate__(state)
    return thing


ALL = {
    "certified": lambda: small("certified"),
    "exact": lambda: small("exact"),
    "csr": lambda: small("exact", sparse.csr_matrix),
    "codes": CASES["codes"],
    "few-rows": CASES["few-rows"],
    "maintenance": CASES["maintenance"],
    "LEGO": lambda: LEGO(random_state=0).fit(normal(30, 8), np.arange(30) % 2),
    "POLA": CASES["POLA"],
    "sketch": CASES["sketch"],
    "sparse-sketch": CASES["sparse-sketch"],
}
every_kind = pytest.mark.parametrize("case", ALL)


@every_kind
def test_every_value_is_part_of_the_digest(case):
    thing = ALL[case]()
    state, kind = thing.__getstate__(), type(thing)
    restored(kind, state)
    for path in places(state):
        if path[0] not in ("_release", "_layout"):
            with pytest.raises(ValueError, match=REFUSED):
                restored(kind, changed(state, path, other))


WRONG = {
    "shorter": lambda array: array[:-1],
    "longer": lambda array: np.concatenate([array, array[-1:]]),
    "of other numbers": lambda array: array.astype(complex),
    "flat": lambda array: array.reshape(1, -1) if array.ndim == 1 else array.ravel(),
}
HELD = ("_maintenance", "_factor", "_inverse", "_reservoir", "_components", "index")

# Shorter or longer, these are of other points or of another metric, and as good as any;
# labels may be of any type.
FREE = {
    "shorter": {"points", "labels", "U", "W", "V", "_components", "map", "P"},
    "longer": {"points", "labels", "U", "W", "V", "_components", "map", "P"},
    "of other numbers": {"labels"},
}


def accepts(kind, state):
    """Whether a state is accepted under a digest of its own."""
    try:
        restored(kind, stamped(kind.__name__, state))
    except ValueError as error:
        if REFUSED not in str(error):
            raise
        return False
    return True


@every_kind
def test_shapes_and_types_are_checked_under_any_digest(case):
    thing = ALL[case]()
    state, kind = saved_part(thing.__getstate__()), type(thing)
    assert accepts(kind, state)
    forged = [
        (what, path)
        for path in places(state)
        for what in WRONG
        if path[0] in HELD
        and isinstance(at(state, path), np.ndarray)
        and path[-1] not in FREE.get(what, ())
    ]
    assert len(forged) > 1
    for what, path in forged:
        assert not accepts(kind, changed(state, path, WRONG[what])), (what, path)


HELD_BY = ("_maintenance",)
INDEX = (*HELD_BY, "index")
VALUES = [
    ("certified", (*HELD_BY, "key"), [b"", b"0" * 31, b"0" * 33, "0" * 32]),
    ("certified", (*HELD_BY, "m"), [0, 3, -1, None, 2.5, "2"]),
    ("certified", (*HELD_BY, "parameters", "L"), [0, 2, 4, None]),
    ("certified", (*HELD_BY, "parameters", "R"), [0, 99, "some"]),
    ("certified", (*HELD_BY, "parameters", "eps"), [0.0, 2.0, -1, None]),
    ("certified", (*HELD_BY, "parameters", "delta"), [-0.1, 1.0, "small"]),
    ("certified", (*HELD_BY, "parameters", "sketch"), ["cauchy", None]),
    ("certified", (*INDEX, "version"), [-1, None, 1.5]),
    ("certified", (*INDEX, "caches"), [None, 3]),
    ("certified", ("n_features_in_",), [7, 9, None]),
    ("codes", (*INDEX, "coded", "n"), [0, 5]),
    ("codes", (*INDEX, "coded", "r_many"), [-1, 10**9]),
    ("codes", (*INDEX, "coded", "r_one"), [-1, 10**9]),
    ("codes", (*INDEX, "coded"), [None]),
    ("codes", (*INDEX, "coded", "unit"), [0.0, -1.0, np.inf, np.nan, None]),
    ("LEGO", ("_factor", "added"), [-1, 10**6]),
    ("LEGO", ("_factor", "capacity"), [1, None]),
    ("LEGO", ("_factor", "version"), [-1, "1"]),
    ("LEGO", ("_factor", "stream"), [3, None]),
    ("LEGO", ("_reservoir", "size"), [1, -1]),
    ("LEGO", ("_reservoir", "n_pairs"), [0, None]),
    ("LEGO", ("_reservoir", "rng", "bit_generator"), ["MT19937"]),
    ("LEGO", ("n_features_in_",), [7, 9]),
    ("sketch", ("m_",), [5, 7]),
    ("sketch", ("n_features_in_",), [23, 25]),
]


@pytest.mark.parametrize(
    ("case", "path", "values"), VALUES, ids=[f"{one[0]}-{one[1][-1]}" for one in VALUES]
)
def test_ranges_are_checked_under_any_digest(case, path, values):
    if case == "codes":
        pytest.importorskip("numba")
    thing = ALL[case]()
    state, kind = saved_part(thing.__getstate__()), type(thing)
    for value in values:
        forged = changed(state, path, lambda _, value=value: value)
        assert not accepts(kind, forged), value


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("indices", lambda indices: indices - 9, "(index values|indices) must be"),
        ("indices", lambda indices: indices + 8, "(index values|indices) must be"),
        ("indptr", lambda starts: np.roll(starts, 1), "index pointer"),
        ("indptr", lambda starts: starts + 1, "index pointer"),
    ],
)
def test_positions_outside_of_sparse_points_are_refused(name, change, said):
    """To read them would be to read any memory."""
    thing = ALL["csr"]()
    path = (*INDEX, "points", "csr", name)
    state = changed(saved_part(thing.__getstate__()), path, change)
    with pytest.raises(ValueError, match=f"{REFUSED} .*{said}"):
        restored(type(thing), stamped(type(thing).__name__, state))


def test_an_index_that_was_used_for_long_is_not_taken_for_a_changed_one():
    rng = np.random.default_rng(0)
    knn = small("certified")
    for step in range(300):
        W, V = rng.normal(size=6), rng.normal(size=8)
        knn.update_metric(low_rank=(10.0 ** rng.integers(-3, 3) * W, V))
        if step % 30 == 0:
            everything(knn)
            knn.update_metric(low_rank=(-knn.components_, np.eye(8)))
            knn.update_metric(low_rank=(np.eye(6), 1e-4 * rng.normal(size=(8, 6))))
        copied = pickle.loads(pickle.dumps(knn))
    assert same(everything(copied), everything(knn))
