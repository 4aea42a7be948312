"""An object that is saved and loaded gives the same results, then and later."""

import copy
import importlib
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import cloudpickle
import joblib
import numpy as np
import pytest
import skops.io

import skmahal
from skmahal import SketchedMahalanobisClassifier, SketchedMahalanobisNeighbors

# The layout is private; that files of others are refused is a promise.
from skmahal._core import saved
from skmahal.online import OnlineITML
from tests.saving import (
    CASES,
    assert_same_results,
    go_on,
    index,
    learner,
    points,
    queries,
    results,
)


def by_joblib(thing, tmp_path, **how):
    # A file that is mapped must not be written to again.
    file = tmp_path / str(len(list(tmp_path.iterdir())))
    joblib.dump(thing, file)
    return joblib.load(file, **how)


def by_skops(thing, _):
    data = skops.io.dumps(thing)
    return skops.io.loads(data, trusted=skops.io.get_untrusted_types(data=data))


WAYS = {
    "pickle": lambda thing, _: pickle.loads(pickle.dumps(thing)),
    "joblib": by_joblib,
    "joblib-mapped": lambda thing, path: by_joblib(thing, path, mmap_mode="r"),
    "cloudpickle": lambda thing, _: pickle.loads(cloudpickle.dumps(thing)),
    "skops": by_skops,
    "deepcopy": lambda thing, _: copy.deepcopy(thing),
}
OF_EVERY_WAY = ["codes", "few-rows", "auto", "exact-float64-csr", "classifier", "POLA"]
OF_EVERY_WAY += [
    "outliers",
    "learning-classifier",
    "maintenance",
    "sparse-sketch",
    "unfitted",
]


@pytest.fixture(scope="module")
def made():
    """Every case, made once and pickled."""
    return {case: pickle.dumps(make()) for case, make in CASES.items()}


def test_the_cases_are_of_all_kinds(made):
    pytest.importorskip("numba")
    states = {case: pickle.loads(data).__getstate__() for case, data in made.items()}
    held = {case: state.get("_maintenance") for case, state in states.items()}
    for case, array in {"codes": "coded", "few-rows": "images"}.items():
        assert held[case]["index"][array] is not None, case
    for case in ("certified-float64-csr", "auto", "classifier"):
        assert held[case]["drawn"], case
    assert "csr" in held["exact-float32-csr"]["index"]["points"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "way"),
    [
        (case, way)
        for case in CASES
        for way in WAYS
        if way in ("pickle", "skops") or case in OF_EVERY_WAY
    ],
)
def test_every_result_is_kept_bit_by_bit(case, way, tmp_path, made):
    # What pickle keeps, which is tested here, is as good as the original for others.
    thing = CASES[case]() if way == "pickle" else pickle.loads(made[case])
    loaded = WAYS[way](thing, tmp_path)
    assert_same_results(loaded, thing)
    go_on(loaded)
    go_on(thing)
    # What was loaded and changed, once more.
    again = WAYS[way](loaded, tmp_path)
    assert_same_results(again, thing)
    if hasattr(again, "version") or hasattr(again, "n_samples_fit_"):
        again.check()


@pytest.mark.parametrize("case", CASES)
def test_saving_changes_nothing(case, made):
    thing, other = (pickle.loads(made[case]) for _ in range(2))
    pickle.dumps(thing)
    assert_same_results(thing, other)


def test_functions_go_with_cloudpickle():
    knn = index(SketchedMahalanobisClassifier, "exact", weights=lambda d: 1 / (1 + d))
    assert_same_results(pickle.loads(cloudpickle.dumps(knn)), knn)


def test_a_loaded_index_follows_its_learner():
    knn = CASES["learning-classifier"]()
    loaded = pickle.loads(pickle.dumps(knn))
    for one in (knn, loaded):
        one.update_metric(one.metric_learner_)
    np.testing.assert_allclose(loaded.components_, knn.components_, rtol=1e-12)
    loaded.partial_fit(points(rows=5), ["ant", "bee", "cat", "ant", "bee"])
    learnt = loaded.metric_learner_.components_
    np.testing.assert_allclose(loaded.components_, learnt, rtol=1e-12)


def test_a_shallow_copy_shares_the_index():
    original = CASES["certified-float32-dense"]()
    shared = copy.copy(original)
    go_on(shared)
    assert_same_results(original, shared)


def test_a_copy_of_maintained_arrays_is_a_deep_one():
    held = CASES["maintenance"]()
    before, other = results(held), copy.copy(held)
    go_on(other)
    for mine, others in zip(results(held), before, strict=True):
        np.testing.assert_array_equal(mine, others)


def test_queries_of_other_threads_do_not_change_what_is_saved():
    """They bring arrays up to date while these are being written."""
    thing = CASES["certified-float64-dense"]()
    expected = pickle.loads(pickle.dumps(thing))
    state = thing.__getstate__()
    worker = threading.Thread(target=results, args=(thing,))
    worker.start()
    worker.join()
    loaded = copy.copy(expected)
    loaded.__setstate__(pickle.loads(pickle.dumps(state)))
    assert_same_results(loaded, expected)


# --- sharing without pickle -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_skops_has_to_trust_public_classes_alone(case, made):
    thing = pickle.loads(made[case])
    data = skops.io.dumps(thing)
    learner = getattr(thing, "metric_learner_", None)
    classes = [type(thing)] if learner is None else [type(thing), type(learner)]
    names = sorted(f"{kind.__module__}.{kind.__name__}" for kind in classes)
    assert skops.io.get_untrusted_types(data=data) == names
    public = {*skmahal.__all__, *skmahal.online.__all__}
    assert public.issuperset(kind.__name__ for kind in classes)
    assert_same_results(skops.io.loads(data, trusted=classes), thing)


def test_a_pickle_names_no_private_class_of_the_package(made):
    for case, data in made.items():
        kind = type(pickle.loads(data))
        assert b"skmahal._core" not in data.replace(kind.__module__.encode(), b""), case


def test_the_key_is_in_the_file_and_nowhere_else():
    thing = CASES["certified-float64-dense"]()
    state = thing.__getstate__()
    key = state["_maintenance"]["key"]
    assert key in pickle.dumps(thing)
    shown = f"{thing!r} {thing.get_params()} {thing._maintenance!r}"
    assert repr(key) not in shown
    assert key.hex() not in shown
    state["_maintenance"]["key"] = key[:-1]
    kind = type(thing).__name__
    for forged in (state, saved.stamped(kind, saved_part(state))):
        with pytest.raises(ValueError, match="is damaged or was changed") as error:
            thing.__setstate__(forged)
        assert repr(key)[2:10] not in str(error.value)


def saved_part(state):
    """A state without layout, release and digest."""
    return {name: value for name, value in state.items() if name not in saved._STAMP}


# --- releases -------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [1, 7])
@pytest.mark.parametrize("case", ["classifier", "maintenance", "sketch", "LEGO"])
def test_a_file_of_another_layout_names_its_release(case, layout, monkeypatch):
    thing = CASES[case]()
    with monkeypatch.context() as other:
        other.setattr(saved, "LAYOUT", layout)
        other.setattr(skmahal, "__version__", "3.2.1")
        data, shared = pickle.dumps(thing), skops.io.dumps(thing)
    said = rf"saved by skmahal 3\.2\.1, in a layout \({layout}\) that skmahal .* cannot"
    said = f"This {type(thing).__name__} was {said} read: load it with skmahal 3"
    with pytest.raises(ValueError, match=said):
        pickle.loads(data)
    with pytest.raises(ValueError, match=said):
        skops.io.loads(shared, trusted=skops.io.get_untrusted_types(data=shared))


def test_a_file_that_names_no_release_is_refused():
    thing = CASES["maintenance"]()
    state = saved_part(thing.__getstate__())
    with pytest.raises(ValueError, match=r"skmahal .* cannot read: load it with"):
        thing.__setstate__(state)


# --- mapped from a file ---------------------------------------------------------------


def is_mapped(array):
    """Whether an array is, or is a view of, one that is mapped from a file."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def arrays_in(state):
    """All arrays of a saved state that are as long as there are points, or longer."""
    if isinstance(state, np.ndarray):
        return [state] if len(state) >= 100 else []
    parts = state.values() if isinstance(state, dict) else state
    parts = parts if isinstance(parts, list | tuple | type({}.values())) else []
    return [array for part in parts for array in arrays_in(part)]


@pytest.mark.parametrize("case", ["certified-float32-dense", "codes", "few-rows"])
def test_arrays_stay_in_the_file_while_queries_are_made(case, tmp_path):
    thing = CASES[case]()
    results(thing)
    loaded = by_joblib(thing, tmp_path, mmap_mode="r")
    for _ in range(2):
        arrays = arrays_in(loaded._maintenance.saved())
        assert len(arrays) > 3
        for array in arrays:
            assert is_mapped(array)
            assert type(array) is np.ndarray
        results(loaded)
    for array in arrays_in(by_joblib(thing, tmp_path)._maintenance.saved()):
        assert not is_mapped(array)


MEASURED = """
import sys, joblib, numpy as np
from skmahal import SketchedMahalanobisNeighbors

def memory():
    with open("/proc/self/smaps_rollup") as lines:
        sizes = dict(line.split()[:2] for line in lines if ":" in line.split()[0])
    return 1024 * int(sizes["Anonymous:"])

def queried(index):
    index.kneighbors(Q), index.kneighbors(Q[:1]), index.distances(Q)

d = int(sys.argv[2])
Q = np.random.default_rng(5).normal(size=(3, d)).astype(np.float32)
params = {"m": 16, "lead": 8, "random_state": 0, "n_jobs": 1}
X = np.random.default_rng(1).normal(size=(5000, d)).astype(np.float32)
queried(SketchedMahalanobisNeighbors(**params).fit(X))
for mode in ("r", None):
    before = memory()
    index = joblib.load(sys.argv[1], mmap_mode=mode)
    queried(index)
    print(memory() - before)
"""


def memory_for_queries(file, d):
    """Bytes for loading and querying an index: mapped from its file, and read."""
    command = [sys.executable, "-c", MEASURED, str(file), str(d)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def check_memory(n, d, tmp_path):
    X = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32)
    made = SketchedMahalanobisNeighbors(m=16, lead=8, random_state=0, n_jobs=1).fit(X)
    made.kneighbors(X[:3])
    # All sketches are used, so that none is computed after loading.
    made.distances(X[:60])
    joblib.dump(made, tmp_path / "index")
    # Distances of three queries to all points, a few times over, are what it takes.
    room = 100 * n + 2**21
    assert room < X.nbytes / 4
    mapped, read = memory_for_queries(tmp_path / "index", d)
    assert mapped < room
    assert read > X.nbytes
    return X.nbytes


needs_linux = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="reads Linux's memory maps"
)


@pytest.mark.slow
@needs_linux
def test_a_mapped_index_takes_no_memory_for_its_points(tmp_path):
    pytest.importorskip("numba")
    assert check_memory(20_000, 500, tmp_path) == 40_000_000


@needs_linux
@pytest.mark.stress
def test_a_large_mapped_index_takes_no_memory_for_its_points(tmp_path):
    assert check_memory(100_000, 500, tmp_path) == 200_000_000


def test_a_mapped_index_is_searched_by_the_loops_that_are_compiled(tmp_path):
    """To compile them again for arrays that are read-only would take seconds."""
    pytest.importorskip("numba")
    loops = importlib.import_module("skmahal._core._numba")
    thing = CASES["codes"]()
    results(thing)
    loops = [loop for loop in vars(loops).values() if hasattr(loop, "signatures")]
    before = [len(loop.signatures) for loop in loops]
    loaded = by_joblib(thing, tmp_path, mmap_mode="r")
    results(loaded)
    Q = queries(np.float32)
    Q.flags.writeable = False
    loaded.kneighbors(Q)
    assert [len(loop.signatures) for loop in loops] == before


def test_a_mapped_learner_goes_on(tmp_path):
    started = learner(OnlineITML)
    mapped = by_joblib(started, tmp_path, mmap_mode="r")
    for one in (started, mapped):
        one.partial_fit(points(seed=9), np.arange(len(points())) % 3)
    np.testing.assert_array_equal(mapped.components_, started.components_)
