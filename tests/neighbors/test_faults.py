"""Points and their targets change together or not at all, whatever fails meanwhile."""

from contextlib import suppress

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skmahal import SketchedMahalanobisClassifier
from tests.faults import Steps

from .cases import CERTIFIED, EXACT, clustered, some_metric

# Neighbours have other labels, so that the label of another point is noticed.
X, NEW_X = clustered()[::3], clustered(seed=1)[::12]
Y, NEW_Y = np.arange(len(X)) % 7, 9 + np.arange(len(NEW_X)) % 5
SOME = 2 * np.arange(len(NEW_X))

CHANGES = {
    "partial_fit": lambda knn: knn.partial_fit(NEW_X, NEW_Y),
    "update_points": lambda knn: knn.update_points(SOME, NEW_X, NEW_Y),
    "remove_points": lambda knn: knn.remove_points(SOME),
    "fit": lambda knn: knn.fit(NEW_X, NEW_Y),
}
# So many of the steps of a change fail, one after the other.
TRIED = 20


def fitted(params):
    """A classifier with updates of the metric that some arrays have not followed."""
    knn = SketchedMahalanobisClassifier(1, metric_learner=some_metric(), **params)
    knn.partial_fit(X, Y, classes=range(20)).predict(X[:3])
    return knn.update_metric(some_metric(2, seed=1), rows=[0, 5])


def labels_of_all(knn):
    """Predictions for every point that is in the index, was in it or may be."""
    return knn.predict(np.vstack([X, NEW_X]))


@pytest.mark.slow
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("params", [EXACT, CERTIFIED], ids=["exact", "certified"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_failure_leaves_all_of_a_change_or_nothing(name, params, error):
    change = CHANGES[name]
    before, after = labels_of_all(fitted(params)), labels_of_all(change(fitted(params)))
    assert (before != after).any()
    with Steps() as steps:
        change(fitted(params))
    stride = max(1, steps.count // TRIED)
    for at in range(0, steps.count, stride):
        knn, fault = fitted(params), Steps(at, error)
        # The last steps may not be made: some results are kept from call to call.
        with suppress(error), fault:
            change(knn)
        found = labels_of_all(knn)
        whole = after if (found != before).any() else before
        assert_array_equal(found, whole, err_msg=str(fault.where))
        knn.check()
