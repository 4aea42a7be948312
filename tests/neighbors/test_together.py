"""Points and their labels change together or not at all, whatever fails meanwhile."""

from itertools import count

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skmahal import SketchedMahalanobisClassifier
from skmahal._core import images, points, state

from .cases import EXACT, LED, clustered, some_metric

# Neighbours have other labels, so that a label of another point is seen.
X, NEW_X = clustered()[::3], clustered(seed=1)[::12]
Y, NEW_Y = np.arange(len(X)) % 7, 9 + np.arange(len(NEW_X)) % 5
SOME = 2 * np.arange(len(NEW_X))

# Every change, and what it goes through: a failure there must not part the two.
CHANGES = {
    "partial_fit": (
        lambda knn: knn.partial_fit(NEW_X, NEW_Y),
        [
            (images.Rows, "append"),
            (images.Columns, "append"),
            (state.Norms, "append"),
            (state.Log, "append"),
            (state, "grown"),
            (points, "grown"),
            (points.DensePoints, "append"),
            (points.DensePoints, "recentre"),
        ],
    ),
    "update_points": (
        lambda knn: knn.update_points(SOME, NEW_X, NEW_Y),
        [
            (images.Rows, "assign"),
            (images.Columns, "assign"),
            (state.Norms, "assign"),
            (state.Log, "assign"),
            (state, "owned"),
            (points, "owned"),
            (points.DensePoints, "assign"),
        ],
    ),
    "remove_points": (
        lambda knn: knn.remove_points(SOME),
        [
            (images.Rows, "keep"),
            (images.Columns, "keep"),
            (state.Norms, "keep"),
            (state.Log, "kept"),
            (points.DensePoints, "kept"),
        ],
    ),
}
FEW = {**LED, "L": 2}
FAILURES = [
    pytest.param(change, *place, id=f"{change}-{place[0].__name__}.{place[1]}")
    for change, (_, places) in CHANGES.items()
    for place in places
]


def fitted(params):
    """A classifier with updates of the metric that some arrays have not seen."""
    knn = SketchedMahalanobisClassifier(1, metric_learner=some_metric(), **params)
    knn.partial_fit(X, Y, classes=range(20)).predict(X[:3])
    return knn.update_metric(some_metric(2, seed=1), rows=[0, 5])


def labels_of_all(knn):
    """What it says of every point that is in it, was in it or may be."""
    return knn.predict(np.vstack([X, NEW_X]))


def failing_at(nth, error, original):
    """`original`, whose call number `nth` raises in place of being made."""
    calls = count()

    def function(*args, **kwargs):
        if next(calls) == nth:
            raise error("injected")
        return original(*args, **kwargs)

    return function


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("params", [EXACT, FEW], ids=["exact", "sketched"])
@pytest.mark.parametrize(("change", "owner", "name"), FAILURES)
def test_a_failure_leaves_all_of_a_change_or_nothing(
    change, owner, name, params, error, monkeypatch
):
    apply, original = CHANGES[change][0], getattr(owner, name)
    before, after = labels_of_all(fitted(params)), labels_of_all(apply(fitted(params)))
    assert (before != after).any()
    for nth in count():
        knn = fitted(params)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, failing_at(nth, error, original))
            try:
                apply(knn)
                break
            except error:
                pass
        assert len(knn._engine.targets) == knn.n_samples_fit_
        knn._engine.check()
        changed = knn.n_samples_fit_ != len(X) or (knn._engine.X != X).any()
        assert_array_equal(labels_of_all(knn), after if changed else before)
    absent = params is EXACT and owner is images.Columns
    assert nth or absent, "the change does not come by here"
    assert_array_equal(labels_of_all(knn), after)
