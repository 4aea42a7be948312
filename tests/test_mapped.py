"""Points that are mapped from a file stay there, also while the metric changes."""

import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skmahal import MetricMaintenance, SketchedMahalanobisNeighbors
from skmahal._core.kernels import available
from skmahal._core.saved import is_mapped
from tests.core.data import clusters
from tests.oracle import Oracle, assert_nearest
from tests.scripts import run_script

linux = pytest.mark.skipif(
    sys.platform != "linux" or not available(), reason="reads /proc, and needs codes"
)
X = clusters(900, 60, count=30, noise=0.2).astype(np.float32)
Q = clusters(920, 60, count=30, noise=0.2)[900:].astype(np.float32)


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "points.npy", X)
    return np.load(tmp_path / "points.npy", mmap_mode="r+")


def points_of(index):
    return index._maintenance.X


def test_results_are_those_of_points_in_memory(mapped):
    rng = np.random.default_rng(1)
    here, there = (SketchedMahalanobisNeighbors(4).fit(rows) for rows in (X, mapped))
    for _ in range(4):
        assert is_mapped(points_of(there))
        for ask in (
            lambda index: index.kneighbors(Q)[0],
            lambda index: index.kneighbors(Q[:1])[0],
            lambda index: index.radius_neighbors(Q[:1], 3.0)[0][0],
            lambda index: index.pair_distances([0, 5], [9, 800]),
            lambda index: index.sum_distances(Q),
            lambda index: index.sample(Q, 5, random_state=0),
        ):
            assert_allclose(ask(here), ask(there), rtol=1e-5)
        assert_allclose(here.distances(Q), there.distances(Q), rtol=0.5)
        step = rng.normal(size=(60, 1)), rng.normal(size=(60, 1)) / 8
        for index in (here, there):
            index.update_metric(low_rank=step)
    oracle = Oracle(there.components_, X)
    assert_nearest(*there.kneighbors(Q), oracle.query_all(Q), 1e-5, 1e-5)
    assert there.check() < 1e-11


def test_the_file_is_never_written_to(mapped):
    index = SketchedMahalanobisNeighbors().fit(mapped)
    index.update_points([3], X[:1] + 1)
    assert not is_mapped(points_of(index))
    index.partial_fit(X[:2]).remove_points([0])
    index.update_metric(np.eye(60)[:9])
    assert_array_equal(mapped, X)
    oracle = Oracle(index.components_, points_of(index))
    assert_nearest(*index.kneighbors(Q), oracle.query_all(Q), 1e-5, 1e-5)


@pytest.mark.parametrize("make", [SketchedMahalanobisNeighbors().fit, None])
def test_bad_numbers_in_a_file_are_refused(mapped, make):
    mapped[700, 3] = np.nan
    make = make or (lambda rows: MetricMaintenance(None, rows))
    with pytest.raises(ValueError, match="X contains NaN"):
        make(mapped)


def test_a_copy_of_a_map_is_in_memory(mapped):
    """It is of the same class, which says nothing about where it is."""
    copied = mapped.copy()
    assert isinstance(copied, np.memmap)
    index = SketchedMahalanobisNeighbors(2).fit(copied)
    assert not is_mapped(points_of(index))
    index.kneighbors(copied[:5])


def test_other_types_and_orders_are_copied(tmp_path):
    for name, rows in {"whole": X.astype(int), "turned": np.asfortranarray(X)}.items():
        np.save(tmp_path / f"{name}.npy", rows)
        loaded = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
        index = SketchedMahalanobisNeighbors(2).fit(loaded)
        assert not is_mapped(points_of(index))
        truth = Oracle(None, rows).query_all(Q)
        assert_nearest(*index.kneighbors(Q), truth, 1e-5, 1e-5)


MEASURED = """
import threading, time

def resident():
    with open("/proc/self/statm") as file:
        return 4096 * int(file.read().split()[1])

class Peak:
    def __enter__(self):
        self.most, self.ended = 0, False
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
    def watch(self):
        while not self.ended:
            self.most = max(self.most, resident())
            time.sleep(0.005)
    def __exit__(self, *_):
        self.ended = True
        self.thread.join()

skmahal.warm_up((np.float32,))
shape, most = ({n}, {d}), {most}
X = np.memmap({file!r}, np.float32, "w+", shape=shape)
rng = np.random.default_rng(0)
centres = rng.standard_normal((50, {d}), dtype=np.float32)
for start in range(0, {n}, 5000):
    rows = X[start : start + 5000]
    rows[:] = centres[rng.integers(50, size=len(rows))]
    rows += 0.5 * rng.standard_normal(rows.shape, dtype=np.float32)
X.flush()
del X, rows
X = np.memmap({file!r}, np.float32, "r", shape=shape)
Q = X[:: {n} // 6][:6] + np.float32(0.01)
before, peak = resident() if {relative} else 0, Peak()
with peak:
    index = SketchedMahalanobisNeighbors(5, random_state=0).fit(X)
    index.kneighbors(Q)
    for q in Q:
        index.kneighbors(q[np.newaxis])
    for _ in range(3):
        index.update_metric(low_rank=tuple(rng.normal(size=(2, {d}, 1)) / {d} ** 0.5))
        distances, indices = index.kneighbors(Q)
    index.distances(Q[:1])
print("peak", (peak.most - before) / 1e6, "MB")
assert peak.most - before < most, peak.most - before
U = index.components_
found = np.full((6, 5), np.inf)
for start in range(0, {n}, 20000):
    rows = np.array(X[start : start + 20000], dtype=float) @ U.T
    for at, q in enumerate(Q.astype(float) @ U.T):
        squares = ((rows - q) ** 2).sum(axis=1)
        found[at] = np.sort(np.append(found[at], np.sqrt(squares)))[:5]
np.testing.assert_allclose(distances, found, rtol=1e-5)
"""


@pytest.mark.slow
@linux
def test_memory_is_for_codes_and_not_for_points(tmp_path):
    """Codes are a quarter of the points, and leading coordinates less than a sixteenth.

    The rest is for a sample of 2,000 points in float64, and what is made of it.
    """
    n, d = 70_000, 1024
    most = int((1 / 4 + 1 / 16) * 4 * n * d + 10 * 2000 * d * 8)
    file = str(tmp_path / "points")
    sizes = {"n": n, "d": d, "most": most, "file": file, "relative": True}
    run_script(MEASURED.format(**sizes))


@linux
@pytest.mark.stress
def test_four_gigabytes_are_searched_in_one_and_a_half(tmp_path):
    n, d = 976_000, 1024
    sizes = {"n": n, "d": d, "most": 1.5e9, "relative": False}
    script = MEASURED.format(**sizes, file=str(tmp_path / "points"))
    run_script(script, warnings=False)
