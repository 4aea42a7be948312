"""How many Python functions of the package one operation goes through."""

import sys
from pathlib import Path

import numpy as np
import pytest

import skmahal
from skmahal import SketchedMahalanobisNeighbors

PACKAGE = str(Path(skmahal.__file__).parent)


class Calls:
    """Calls of functions of the package in a block, counted by `sys.setprofile`.

    `modules` are the files they are in, `depth` the most that are active at a time.
    """

    def __enter__(self):
        self.count, self.depth, self._active, self.modules = 0, 0, 0, set()
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _on_event(self, frame, event, _):
        if event not in ("call", "return"):
            return
        filename = frame.f_code.co_filename
        if not filename.startswith(PACKAGE):
            return
        if event == "return":
            self._active -= 1
            return
        self.count += 1
        self._active += 1
        self.depth = max(self.depth, self._active)
        self.modules.add(filename)


def counted(name, operation):
    """The calls of an operation that was made before, printed for `pytest -s`."""
    operation()
    with Calls() as calls:
        operation()
    print(
        f"{name}: {calls.count} calls in {len(calls.modules)} modules, "
        f"{calls.depth} deep"
    )
    return calls


POINTS = {
    "few": (500, 20),
    "many": (3000, 100),
    "few of many features": (300, 2000),
}


@pytest.fixture(params=POINTS)
def index(request):
    X = np.random.default_rng(0).normal(size=POINTS[request.param])
    return SketchedMahalanobisNeighbors(n_jobs=1).fit(X)


@pytest.mark.parametrize("changed", [False, True], ids=["euclidean", "changed metric"])
def test_kneighbors_of_one_query(index, changed):
    d = index.n_features_in_
    if changed:
        index.update_metric(low_rank=(np.ones((d, 1)), np.ones((d, 1)) / d))
    query = np.random.default_rng(1).normal(size=(1, d))
    calls = counted("kneighbors", lambda: index.kneighbors(query))
    assert calls.count <= 50
    assert len(calls.modules) <= 10
    assert calls.depth <= 10


def test_update_metric_of_low_rank(index):
    d, rng = index.n_features_in_, np.random.default_rng(1)
    index.kneighbors(rng.normal(size=(1, d)))
    change = rng.normal(size=(d, 1)) / d, rng.normal(size=(d, 1))
    calls = counted("update_metric", lambda: index.update_metric(low_rank=change))
    assert calls.count <= 55
    assert len(calls.modules) <= 8
