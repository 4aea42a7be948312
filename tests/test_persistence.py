"""Saved and loaded, an object answers and goes on as the one that was saved."""

import copy
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
from skmahal._core import saved
from skmahal._core.maintenance import MetricMaintenance
from skmahal.online import OnlineITML
from tests.oracle import Oracle
from tests.saving import (
    CASES,
    answers,
    assert_same_answers,
    go_on,
    index,
    learner,
    normal,
    points,
    queries,
)

FILES = Path(__file__).parent / "files"


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
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(scope="module")
def made():
    """Every case, made once and pickled."""
    return {case: pickle.dumps(make()) for case, make in CASES.items()}


def test_the_cases_are_of_all_kinds(made):
    engines = {
        case: pickle.loads(made[case])._engine
        for case in ("sketched-float64-csr", "exact-float32-dense", "auto")
    }
    kinds = {case: isinstance(e, MetricMaintenance) for case, e in engines.items()}
    assert list(kinds.values()) == [True, False, True]
    structures = [CASES[case]() for case in ("structure", "structure-of-banks")]
    assert structures[0].head < structures[0].m
    assert structures[1].bank > 1
    for engine in [*engines.values(), *structures]:
        state = engine._state
        ticks = [image.tick for image in [*state.images, state.tree]]
        assert min(tick for tick in ticks if tick is not None) < state.log.now


@every_way
@pytest.mark.parametrize("case", CASES)
def test_every_answer_is_kept_bit_by_bit(case, way, tmp_path, made):
    # What pickle keeps, which is seen first, is as good as the original for the others.
    thing = CASES[case]() if way == "pickle" else pickle.loads(made[case])
    loaded = WAYS[way](thing, tmp_path)
    assert_same_answers(loaded, thing)
    go_on(loaded)
    go_on(thing)
    # What was loaded and changed, once more.
    again = WAYS[way](loaded, tmp_path)
    assert_same_answers(again, thing)
    if hasattr(again, "_engine"):
        again._engine.check()


@pytest.mark.parametrize("case", CASES)
def test_saving_changes_nothing(case, made):
    thing, other = (pickle.loads(made[case]) for _ in range(2))
    pickle.dumps(thing)
    assert_same_answers(thing, other)


def test_functions_go_with_cloudpickle():
    knn = index(SketchedMahalanobisClassifier, "exact", weights=lambda d: 1 / (1 + d))
    assert_same_answers(pickle.loads(cloudpickle.dumps(knn)), knn)


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
    original = CASES["sketched-float32-dense"]()
    shared = copy.copy(original)
    go_on(shared)
    assert_same_answers(original, shared)
    engine = original._engine
    np.testing.assert_array_equal(copy.copy(engine).U, engine.U)
    assert copy.copy(engine).X is not None


def test_queries_of_other_threads_do_not_spoil_what_is_saved():
    """They bring arrays up to date in place, those that are being written too."""
    thing = CASES["sketched-float64-dense"]()
    expected = pickle.loads(pickle.dumps(thing))
    state = thing.__getstate__()
    worker = threading.Thread(target=answers, args=(thing,))
    worker.start()
    worker.join()
    loaded = copy.copy(expected)
    loaded.__setstate__(pickle.loads(pickle.dumps(state)))
    assert_same_answers(loaded, expected)


# --- sharing without pickle -----------------------------------------------------------


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
    assert_same_answers(skops.io.loads(data, trusted=classes), thing)


def test_a_pickle_names_no_private_class_of_the_package(made):
    for case, data in made.items():
        kind = type(pickle.loads(data))
        for module in (b"skmahal._core", b"skmahal.online._log"):
            own = kind.__module__.encode()
            assert module not in data.replace(own, b""), case


def test_the_key_is_in_the_file_and_nowhere_else():
    thing = CASES["sketched-float64-dense"]()
    key = thing._engine._key
    assert key in pickle.dumps(thing)
    shown = f"{thing!r} {thing.get_params()} {thing._engine!r} {thing._engine._state!r}"
    assert repr(key) not in shown
    assert key.hex() not in shown
    state = thing.__getstate__()
    state["_engine"]["sketches"]["key"] = key[:-1]
    with pytest.raises(ValueError, match="the key is not of 32 bytes") as error:
        thing.__setstate__(state)
    assert repr(key)[2:10] not in str(error.value)


# --- releases -------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["classifier", "structure", "sketch", "LEGO"])
@every_way
def test_a_file_of_a_later_layout_names_its_release(case, way, tmp_path, monkeypatch):
    thing = CASES[case]()
    monkeypatch.setattr(saved, "LAYOUT", 7)
    monkeypatch.setattr(skmahal, "__version__", "3.2.1")
    state = thing.__getstate__()
    monkeypatch.setattr(type(thing), "__getstate__", lambda self: state)
    said = r"saved by skmahal 3\.2\.1, in a layout \(7\) that skmahal 3\.2\.1 cannot"
    with pytest.raises(ValueError, match=f"This {type(thing).__name__} was {said}"):
        WAYS[way](thing, tmp_path)


def test_a_file_that_names_no_release_is_refused():
    thing = CASES["structure"]()
    state = {key: v for key, v in thing.__getstate__().items() if key != "_layout"}
    with pytest.raises(ValueError, match=r"skmahal .* cannot read: load it with"):
        thing.__setstate__(state)


def golden():
    """What is in tests/files, where every layout that was released has a file."""
    X, U = normal(40, 8).astype(np.float32), normal(6, 8, seed=1)
    asked = {"m": 2, "L": 4, "R": 1, "lead": 2, "random_state": 0}
    knn = SketchedMahalanobisClassifier(1, metric_learner=U, **asked)
    knn.fit(X, np.array(["ant", "bee"])[np.arange(40) % 2])
    knn.predict(X[:2])
    knn.update_metric(low_rank=(np.arange(6.0), np.ones(8)))
    return knn, X, U + np.outer(np.arange(6.0), np.ones(8))


@pytest.mark.parametrize("layout", saved._LAYOUTS)
def test_files_of_all_layouts_can_be_read(layout):
    """Written by ``skops.io.dump(golden()[0], FILES / f"layout-{layout}.skops")``."""
    file = FILES / f"layout-{layout}.skops"
    loaded = skops.io.load(file, trusted=[SketchedMahalanobisClassifier])
    assert loaded.__getstate__()["_layout"] == saved.LAYOUT
    _, X, U = golden()
    np.testing.assert_allclose(loaded.components_, U, rtol=1e-5)
    distances, found = loaded.kneighbors(X + 1e-3, 1)
    np.testing.assert_array_equal(found[:, 0], np.arange(40))
    truth = Oracle(U, X).query_all(X + 1e-3).diagonal()
    np.testing.assert_allclose(distances[:, 0], truth, rtol=1e-3)
    np.testing.assert_array_equal(loaded.predict(X[:4]), ["ant", "bee"] * 2)
    loaded._engine.check()


# --- mapped from a file ---------------------------------------------------------------


def held_arrays(engine):
    """All arrays that are as long as the points."""
    state, arrays = engine._state, [engine.X]
    if state.metric._U is not None:
        arrays.append(state.metric._U)
    arrays += [image._buffer for image in state.images if image.tick is not None]
    return [*arrays, state.norms.view(state.n)]


@pytest.mark.parametrize("engine", ["exact", "sketched"])
def test_arrays_stay_in_the_file_while_queries_are_answered(engine, tmp_path):
    thing = index(SketchedMahalanobisNeighbors, engine, np.float32)
    answers(thing)
    loaded = by_joblib(thing, tmp_path, mmap_mode="r")
    for _ in range(2):
        for array in held_arrays(loaded._engine):
            assert saved.is_mapped(array)
            assert type(array) is np.ndarray
        answers(loaded)
    for array in held_arrays(by_joblib(thing, tmp_path)._engine):
        assert not saved.is_mapped(array)


MEASURED = """
import sys, joblib, numpy as np
from skmahal import SketchedMahalanobisNeighbors

def memory():
    with open("/proc/self/smaps_rollup") as lines:
        sizes = dict(line.split()[:2] for line in lines if ":" in line.split()[0])
    return 1024 * int(sizes["Anonymous:"])

def asked(index):
    index.kneighbors(Q), index.kneighbors(Q[:1]), index.distances(Q)

d = int(sys.argv[2])
Q = np.random.default_rng(5).normal(size=(3, d)).astype(np.float32)
params = {"m": 16, "lead": 8, "random_state": 0, "n_jobs": 1}
X = np.random.default_rng(1).normal(size=(5000, d)).astype(np.float32)
asked(SketchedMahalanobisNeighbors(**params).fit(X))
for mode in ("r", None):
    before = memory()
    index = joblib.load(sys.argv[1], mmap_mode=mode)
    asked(index)
    print(memory() - before)
"""


def memory_for_queries(file, d):
    """Bytes for loading and asking an index that is mapped, and one that is read."""
    command = [sys.executable, "-c", MEASURED, str(file), str(d)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def check_memory(n, d, tmp_path):
    X = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32)
    made = SketchedMahalanobisNeighbors(m=16, lead=8, random_state=0, n_jobs=1).fit(X)
    made.kneighbors(X[:3])
    made.distances(X[:3])
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


@needs_linux
def test_a_mapped_index_takes_no_memory_for_its_points(tmp_path):
    assert check_memory(20_000, 500, tmp_path) == 40_000_000


@needs_linux
@pytest.mark.stress
def test_a_large_mapped_index_takes_no_memory_for_its_points(tmp_path):
    assert check_memory(100_000, 500, tmp_path) == 200_000_000


def test_a_mapped_index_is_answered_by_the_loops_that_are_compiled(tmp_path):
    """To compile them anew for arrays that are read-only would take half a minute."""
    fast = saved and pytest.importorskip("skmahal._core._fast", exc_type=ImportError)
    thing = index(SketchedMahalanobisNeighbors, "sketched", np.float32)
    answers(thing)
    loops = [loop for loop in vars(fast).values() if hasattr(loop, "signatures")]
    before = [len(loop.signatures) for loop in loops]
    loaded = by_joblib(thing, tmp_path, mmap_mode="r")
    answers(loaded)
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
