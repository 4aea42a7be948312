"""Callbacks of scikit-learn: which tasks of `fit` they see."""

import io
import pickle
import threading
from contextlib import redirect_stdout

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skmahal import (
    MahalanobisOutlierDetector,
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRegressor,
)
from skmahal._compat import CallbackSupport
from skmahal.online import LEGO, POLA, OnlineITML

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1500, 4))
Y = (X[:, 0] > 0).astype(int)
LEARN, INDEX = "learn the metric", "index the points"


def test_nothing_is_offered_without_callbacks_of_scikit_learn():
    offered = hasattr(CallbackSupport, "set_callbacks")
    assert hasattr(LEGO(), "set_callbacks") == offered
    assert hasattr(SketchedMahalanobisNeighbors(), "set_callbacks") == offered


callback = pytest.importorskip("sklearn.callback")


class Recorder:
    """What happened, as "begin fit", "end fit" and so on."""

    def __init__(self, stop_after=None, fail_at=None):
        self.events, self.stop_after, self.fail_at = [], stop_after, fail_at

    def setup(self, estimator, context):
        self.events.append("setup")

    def on_fit_task_begin(self, estimator, context):
        self.events.append(f"begin {context.task_name}")
        if context.task_name == self.fail_at:
            raise RuntimeError("a callback failed")

    def on_fit_task_end(self, estimator, context):
        self.events.append(f"end {context.task_name}")
        ended = sum(event.startswith("end") for event in self.events)
        return ended == self.stop_after

    def teardown(self, estimator, context):
        self.events.append("teardown")

    def tasks(self):
        """Names of the tasks inside `fit`, each of which began and ended."""
        assert self.events[:2] == ["setup", "begin fit"]
        assert self.events[-2:] == ["end fit", "teardown"]
        began, ended = self.events[2:-2:2], self.events[3:-2:2]
        names = [event.removeprefix("begin ") for event in began]
        assert ended == [f"end {name}" for name in names]
        return names


class PassedOn(Recorder):
    """A recorder that estimators inside of others get too."""

    max_propagation_depth = None


CASES = {
    "neighbors": (SketchedMahalanobisNeighbors(), [LEARN, INDEX]),
    "transformer": (SketchedMahalanobisNeighborsTransformer(), [LEARN, INDEX]),
    "classifier": (SketchedMahalanobisClassifier(), [LEARN, INDEX]),
    "regressor": (SketchedMahalanobisRegressor(), [LEARN, INDEX]),
    "outliers": (MahalanobisOutlierDetector(), [LEARN, INDEX, "score the points"]),
    "recall": (
        SketchedMahalanobisNeighbors(recall=0.9),
        [LEARN, INDEX, "measure the recall"],
    ),
    "lego": (LEGO(n_pairs=1), ["learn from pairs"] * 6),
    "itml": (OnlineITML(n_pairs=1), ["learn from pairs"] * 6),
    "pola": (POLA(n_pairs=1), ["learn from pairs"] * 6),
}


@pytest.mark.parametrize("name", CASES)
def test_callbacks_see_the_tasks_of_fit(name):
    estimator, tasks = clone(CASES[name][0]), CASES[name][1]
    recorder = Recorder()
    before = set(vars(estimator.fit(X, Y)))
    estimator.set_callbacks(recorder).fit(X, Y)
    assert recorder.tasks() == tasks
    assert set(vars(estimator)) == before | {"_skl_callbacks"}


@pytest.mark.parametrize("name", CASES)
def test_results_do_not_depend_on_callbacks(name):
    plain = clone(CASES[name][0])
    if "random_state" in plain.get_params():
        plain.set_params(random_state=0)
    seen = clone(plain).set_callbacks(Recorder()).fit(X, Y)
    plain.fit(X, Y)
    np.testing.assert_array_equal(plain.components_, seen.components_)


def test_the_first_partial_fit_is_a_fit():
    for estimator in (SketchedMahalanobisNeighbors(), SketchedMahalanobisClassifier()):
        recorder = Recorder()
        estimator.set_callbacks(recorder).partial_fit(X, Y)
        assert recorder.tasks() == [LEARN, INDEX]
        count = len(recorder.events)
        estimator.partial_fit(X, Y)
        assert len(recorder.events) == count


def test_a_callback_may_stop_a_learner():
    learner = LEGO(n_pairs=1, random_state=0)
    recorder = Recorder(stop_after=2)
    learner.set_callbacks(recorder).fit(X, Y)
    assert recorder.tasks() == ["learn from pairs"] * 2
    assert learner.n_steps_ == 512


@pytest.mark.parametrize("name", CASES)
def test_callbacks_end_and_nothing_changes_if_fit_fails(name):
    estimator, tasks = clone(CASES[name][0]), CASES[name][1]
    recorder = Recorder(fail_at=tasks[-1])
    before = {**vars(estimator.set_callbacks(recorder))}
    with pytest.raises(RuntimeError, match="a callback failed"):
        estimator.fit(X, Y)
    assert recorder.events[-1] == "teardown"
    assert vars(estimator) == before


def test_the_tasks_of_a_learner_are_inside_those_of_the_index():
    recorder = PassedOn()
    index = SketchedMahalanobisClassifier(metric_learner=LEGO(n_pairs=1))
    index.set_callbacks(recorder).fit(X[:300], Y[:300])
    assert recorder.events.count("setup") == recorder.events.count("teardown") == 1
    assert recorder.events.count("end learn from pairs") == 2
    assert not hasattr(index.metric_learner_, "_skl_callbacks")
    # This one has no callbacks, and is fitted without a warning.
    index.set_params(metric_learner=NeighborhoodComponentsAnalysis(max_iter=1))
    index.fit(X[:300], Y[:300])


def test_pipelines_pass_callbacks_on():
    recorder = PassedOn()
    pipeline = make_pipeline(StandardScaler(), SketchedMahalanobisClassifier())
    pipeline.set_callbacks(recorder).fit(X, Y)
    assert f"end {INDEX}" in recorder.events
    assert not hasattr(pipeline[-1], "_skl_callbacks")


def test_an_estimator_with_callbacks_can_be_saved():
    index = SketchedMahalanobisNeighbors().set_callbacks(Recorder()).fit(X)
    again = pickle.loads(pickle.dumps(index))
    np.testing.assert_array_equal(
        again.kneighbors(X[:9])[1], index.kneighbors(X[:9])[1]
    )
    assert len(again._skl_callbacks) == 1


@pytest.mark.parametrize("name", ["recall", "outliers", "lego"])
def test_progress_bars_are_shown_to_the_end(name):
    pytest.importorskip("rich")
    estimator = clone(CASES[name][0])
    with redirect_stdout(io.StringIO()) as shown:
        estimator.set_callbacks(callback.ProgressBar()).fit(X, Y)
    assert type(estimator).__name__ in shown.getvalue()
    assert "100%" in shown.getvalue()
    kinds = [type(thread).__name__ for thread in threading.enumerate()]
    assert not [kind for kind in kinds if "Progress" in kind]
