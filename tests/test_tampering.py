"""A skops file that was cut, damaged or changed is an error, or changes no answer."""

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
from skmahal.online import LEGO
from tests.saving import CASES, normal

HELD = ("_engine", "_factor", "_reservoir", "_components")
PUBLIC = [
    SketchedMahalanobisClassifier,
    MahalanobisSketch,
    LEGO,
    SketchedMahalanobisNeighbors,
]


def small(engine, storage=np.asarray):
    asked = {"sketched": {"m": 2, "R": 1, "lead": 2}, "exact": {"m": 50, "lead": 0}}
    params = {"L": 3, "random_state": 0, **asked[engine]}
    X, y = normal(30, 8), np.arange(30) % 2
    knn = SketchedMahalanobisClassifier(2, metric_learner=normal(6, 8), **params)
    knn.fit(storage(np.where(np.abs(X) > 0.3, X, 0)), y)
    return asked_and_changed(knn)


def asked_and_changed(knn):
    """With every array in use, and an update that only the tree has seen."""
    everything(knn)
    knn.update_metric(low_rank=(0.1 * np.arange(6.0), np.ones(8)))
    knn._engine.sub_sum(normal(1, 8), 0, 30)
    return knn


def everything(knn):
    Q, engine = normal(4, 8, seed=5), knn._engine
    found = [*knn.kneighbors(Q), knn.predict_proba(Q), engine.query_all(Q)]
    sums = engine.sub_sum(Q, 0, engine.n), engine.sub_sum(Q, 2, 9)
    return [*found, *sums, engine.sample_exact(Q, 4, random_state=0)]


def saved(thing, compression=zipfile.ZIP_STORED):
    return skops.io.dumps(thing, compression=compression)


def loaded(data):
    return skops.io.loads(data, trusted=PUBLIC)


def same(found, expected):
    return all(map(np.array_equal, found, expected))


def error_or_same_answers(data, expected):
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
        refused += error_or_same_answers(bytes(damaged), expected)
    assert refused > 0.8 * len(positions)


def some_positions(data, count, seed=0):
    rng = np.random.default_rng(seed)
    places, bits = rng.integers(len(data), size=count), rng.integers(8, size=count)
    return list(zip(places, bits, strict=True))


def test_a_file_that_was_cut_is_refused():
    check_cuts(saved(small("sketched")), 40)


def test_a_file_with_a_flipped_bit_is_refused():
    knn = small("sketched")
    data = saved(knn)
    check_flips(data, everything(knn), some_positions(data, 60))


def test_the_directory_of_the_archive_is_no_way_in():
    """The last bytes of a file say where its parts are."""
    knn = small("exact")
    data, expected = saved(knn), everything(knn)
    rng = np.random.default_rng(1)
    for position in rng.integers(len(data) - 1500, len(data), size=60):
        damaged = bytearray(data)
        damaged[position] ^= 255
        error_or_same_answers(bytes(damaged), expected)


@pytest.mark.stress
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("engine", ["sketched", "exact"])
def test_no_damage_goes_unnoticed(engine, compression):
    knn = small(engine)
    data = saved(knn, compression)
    check_cuts(data, 1000)
    check_flips(data, everything(knn), some_positions(data, 3000))


# --- files that were changed and packed again -----------------------------------------


class Opened:
    """The parts of a skops file, to be changed and packed again."""

    def __init__(self, data):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            self.parts = {name: archive.read(name) for name in archive.namelist()}
        self.schema = json.loads(self.parts.pop("schema.json"))

    def packed(self):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, part in self.parts.items():
                archive.writestr(name, part)
            archive.writestr("schema.json", json.dumps(self.schema))
        return buffer.getvalue()

    def node(self, path):
        node = self.schema["content"]
        for key in path:
            node = node["content"][key]
        return node

    def array(self, path):
        return np.load(io.BytesIO(self.parts[self.node(path)["file"]]))

    def arrays(self):
        """Paths of all arrays below the attributes."""
        return [
            path
            for path, node in self._below((), self.schema["content"])
            if node["__loader__"] == "NdArrayNode" and len(path) > 1
        ]

    def _below(self, path, node):
        yield path, node
        content = node.get("content")
        keys = content if isinstance(content, dict) else range(len(content or ()))
        if node["__loader__"] in ("DictNode", "ListNode", "TupleNode"):
            for key in keys:
                yield from self._below((*path, key), content[key])

    def change(self, path, change):
        """Replace a value, an array or bytes by ``change`` of it."""
        node = self.node(path)
        if node["__loader__"] == "NdArrayNode":
            buffer = io.BytesIO()
            np.save(buffer, change(self.array(path)))
            self.parts[node["file"]] = buffer.getvalue()
        elif node["__loader__"] == "BytesNode":
            self.parts[node["file"]] = change(self.parts[node["file"]])
        elif node["__loader__"] == "JsonNode":
            node["content"] = json.dumps(change(json.loads(node["content"])))
            # Values that are the same object share what was read first.
            node["__id__"] = -1
        else:
            change(node["content"])
        return self


def refused(thing, path, change, match="is damaged or was changed"):
    data = saved(thing)
    assert Opened(data).change(path, lambda value: value).packed()
    with pytest.raises(ValueError, match=match):
        loaded(Opened(data).change(path, change).packed())


def with_nan(array):
    array = np.array(array)
    array.flat[array.size // 2] = np.nan
    return array


def with_negative(array):
    array = np.array(array)
    array.flat[array.size // 2] = -1
    return array


SPOILT = {
    "shorter": lambda array: array[:-1],
    "longer": lambda array: np.concatenate([array, array[-1:]]),
    "of other numbers": lambda array: array.astype(complex),
    "flat": lambda array: array.reshape(1, -1) if array.ndim == 1 else array.ravel(),
    "not finite": with_nan,
}
ALL = {
    "sketched": lambda: small("sketched"),
    "exact": lambda: small("exact"),
    "csr": lambda: small("exact", sparse.csr_matrix),
    "LEGO": lambda: LEGO(random_state=0).fit(normal(30, 8), np.arange(30) % 2),
    "sparse-sketch": CASES["sparse-sketch"],
}


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("case", ALL)
def test_every_array_is_looked_at(case, spoilt):
    data = saved(ALL[case]())
    loaded(Opened(data).packed())
    paths = [path for path in Opened(data).arrays() if path[0] in HELD]
    assert len(paths) > 2
    for path in paths:
        file = Opened(data)
        before = file.array(path)
        # Labels are of any type, and no integer is NaN.
        excepted = {
            "of other numbers": "labels" in path,
            "not finite": before.dtype.kind != "f",
        }
        if before.size and not excepted.get(spoilt):
            with pytest.raises(ValueError, match="is damaged or was changed"):
                loaded(file.change(path, SPOILT[spoilt]).packed())


STATE = ("_engine",)
SKETCHES = (*STATE, "sketches")


def rolled(array):
    return np.roll(array, 1, axis=0)


def first_ones_larger(array):
    array = np.array(array)
    array[: len(array) // 2 + 1] *= 2
    return array


CHANGES = {
    "points in another order": ((*STATE, "points", "rows"), rolled),
    "points scaled": ((*STATE, "points", "rows"), lambda X: 3 * X),
    "another metric": ((*STATE, "metric", "U"), lambda U: U[::-1]),
    "no metric": ((*STATE, "metric", "U"), lambda U: U[:0]),
    "rows in another order": ((*STATE, "images", 0, "held"), rolled),
    "rows of one time": ((*STATE, "images", 0, "tick"), lambda tick: tick + 1),
    "a time to come": ((*STATE, "images", 0, "tick"), lambda tick: tick + 9),
    "a time that never was": ((*STATE, "images", 0, "tick"), lambda _: "now"),
    "sketches scaled": ((*STATE, "images", 2, "held"), lambda S: 2 * S),
    "another map": ((*STATE, "images", 2, "map"), lambda S: -S),
    "no image": ((*STATE, "images"), lambda images: images.pop()),
    "an image twice": ((*STATE, "images"), lambda images: images.append(images[2])),
    "norms scaled": ((*STATE, "norms", "squares"), first_ones_larger),
    "a negative norm": ((*STATE, "norms", "squares"), with_negative),
    "no norms": ((*STATE, "norms", "tick"), lambda _: None),
    "a log of more": ((*STATE, "log", "W"), lambda W: np.hstack([W, W])),
    "a log that began later": ((*STATE, "log", "start"), lambda start: start + 1),
    "sums of other points": ((*STATE, "tree", "sums"), lambda sums: sums + 9),
    "squares of other points": ((*STATE, "tree", "squares"), first_ones_larger),
    "counts of other points": ((*STATE, "tree", "counts"), first_ones_larger),
    "more buckets": ((*STATE, "tree", "n_buckets"), lambda count: count + 1),
    "a target before the first": ((*STATE, "targets"), with_negative),
    "a target beyond the last": ((*STATE, "targets"), lambda targets: targets + 1),
    "a version before the first": ((*STATE, "version"), lambda _: -1),
    "a short key": ((*SKETCHES, "key"), lambda key: key[:-1]),
    "a long key": ((*SKETCHES, "key"), lambda key: key + b"0"),
    "another number of sketches": ((*SKETCHES, "L"), lambda L: L + 1),
    "sketches of other rows": ((*SKETCHES, "m"), lambda m: m + 1),
    "no rows": ((*SKETCHES, "m"), lambda _: None),
    "more votes than sketches": ((*SKETCHES, "R"), lambda _: 99),
    "another accuracy": ((*SKETCHES, "eps"), lambda _: 2.0),
    "another failure": ((*SKETCHES, "delta"), lambda _: -0.1),
    "an unknown sketch": ((*SKETCHES, "sketch"), lambda _: "cauchy"),
    "more leading directions": ((*SKETCHES, "front", "lead"), lambda lead: lead + 1),
    "a longer front": ((*SKETCHES, "front", "head"), lambda head: head + 1),
    "negative seeds": ((*SKETCHES, "seeds"), with_negative),
    "a generator of no state": ((*SKETCHES, "rng", "bit_generator"), lambda _: "MT"),
    "other features": (("n_features_in_",), lambda d: d + 1),
    "another L_": (("L_",), lambda L: L + 1),
    "a missing part": (STATE, lambda content: content.pop("norms")),
    "another kind": (STATE, lambda content: content.pop("sketches")),
}


@pytest.fixture(scope="module")
def sketched():
    return pickle.dumps(small("sketched"))


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_index_is_refused(what, sketched):
    refused(pickle.loads(sketched), *CHANGES[what])


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("indices", with_negative, "(index values|indices) must be"),
        ("indices", lambda indices: indices + 8, "(index values|indices) must be"),
        ("indptr", lambda starts: np.roll(starts, 1), "index pointer"),
        ("indptr", lambda starts: starts + 1, "index pointer"),
    ],
)
def test_positions_outside_of_sparse_points_are_refused(name, change, said):
    """To read them would be to read any memory."""
    knn = small("exact", sparse.csr_matrix)
    path = (*STATE, "points", "csr", name)
    refused(knn, path, change, f"is damaged or was changed .*{said}")


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (("_factor", "added"), lambda added: 10**6),
        (("_factor", "room"), lambda room: 1),
        (("_factor", "version"), lambda version: -1),
        (("_factor", "stream"), lambda stream: 3),
        (("_reservoir", "size"), lambda size: 1),
        (("_reservoir", "n_pairs"), lambda count: 0),
        (("n_features_in_",), lambda d: d + 1),
    ],
)
def test_a_changed_learner_is_refused(path, change):
    refused(ALL["LEGO"](), path, change)


def test_a_changed_sketch_is_refused():
    sketch = MahalanobisSketch(3, metric_learner=normal(6, 8)).fit(normal(9, 8))
    refused(sketch, ("m_",), lambda m: m + 1)
    refused(sketch, ("n_features_in_",), lambda d: d + 1)
    refused(sketch, ("_components",), with_nan)


@pytest.mark.parametrize("row", [0, 1, 437, 1999])
@pytest.mark.parametrize("metric", [None, normal(4, 5)], ids=["Euclidean", "U"])
def test_any_one_point_that_was_changed_is_noticed(metric, row):
    """By about the size of a point; the others are many times those of a sample."""

    def moved(rows):
        rows = np.array(rows)
        rows[row] += 3
        return rows

    index = SketchedMahalanobisNeighbors(1, metric_learner=metric).fit(normal(2000, 5))
    index.kneighbors(normal(2, 5))
    refused(index, (*STATE, "points", "rows"), moved)


def test_a_later_layout_in_a_file_is_refused(sketched):
    thing = pickle.loads(sketched)
    refused(thing, ("_layout",), lambda layout: layout + 1, "layout \\(2\\)")
    refused(thing, ("_layout",), lambda layout: None, "cannot read")


def test_an_index_that_was_used_for_long_is_not_taken_for_a_changed_one():
    """What rounding leaves, also where the metric has shrunk, is far from a change."""
    rng = np.random.default_rng(0)
    knn = small("sketched")
    for step in range(300):
        W, V = rng.normal(size=6), rng.normal(size=8)
        knn.update_metric(low_rank=(10.0 ** rng.integers(-3, 3) * W, V))
        if step % 20 == 0:
            everything(knn)
        if step % 30 == 0:
            knn.update_metric(low_rank=(-knn.components_, np.eye(8)))
            knn.update_metric(low_rank=(np.eye(6), 1e-4 * rng.normal(size=(8, 6))))
        copied = pickle.loads(pickle.dumps(knn))
    assert same(everything(copied), everything(knn))
