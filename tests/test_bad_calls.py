"""Any bad call is refused by name, and leaves everything as it was."""

import copy
import inspect
import re
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import InvalidParameterError

import skmahal
from skmahal import (
    MahalanobisCentroidClassifier,
    MahalanobisOutlierDetector,
    MahalanobisSketch,
    MetricMaintenance,
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRadiusTransformer,
    SketchedMahalanobisRegressor,
    components_from,
    online,
    sample_seeds,
    warm_up,
)
from skmahal.online import LEGO, POLA, OnlineITML

from . import grammar
from .grammar import Language, methods, parameters, together
from .grammar.values import D, K, N, frame, labels, targets
from .snapshots import snapshot

ERRORS = (ValueError, TypeError, NotFittedError, InvalidParameterError)

RNG = np.random.default_rng(0)
X, Q, U = RNG.normal(size=(N, D)), RNG.normal(size=(4, D)), RNG.normal(size=(K, D))
LABELS, TARGETS = np.arange(N) % 3, RNG.normal(size=N)
PAIRS, SIGNS = RNG.normal(size=(N, 2, D)), np.resize([1, -1], N)

EXACT = {"n_neighbors": 2, "metric_learner": U, "random_state": 0}
SKETCHED = {**EXACT, "m": 2, "L": 3, "R": 1, "lead": 1}
SMALL = {"m": 2, "L": 4, "R": 1, "lead": 1, "seed": 0}
TARGET = {"similar_target": 0.8, "dissimilar_target": 1.7}

INDEX = Language(
    methods.of_index(),
    together.of_index(),
    parameters.AT_FIT_OF_INDEX,
    [
        ("kneighbors", parameters.AT_NEIGHBOURS),
        ("kneighbors_graph", parameters.AT_NEIGHBOURS),
        ("radius_neighbors", parameters.AT_RADIUS),
        ("radius_neighbors_graph", parameters.AT_RADIUS),
    ],
)
SKETCHED_INDEX = INDEX._replace(
    at_queries=[*INDEX.at_queries, ("kneighbors", parameters.AT_BUDGET)]
)
CLASSIFIER = Language(
    methods.of_classifier(),
    together.of_updates(y=labels().good),
    parameters.AT_FIT_OF_CLASSIFIER,
    [("predict", parameters.AT_VOTES), ("predict_proba", parameters.AT_VOTES)],
)
REGRESSOR = Language(
    methods.of_regressor(),
    together.of_updates(y=targets().good),
    parameters.AT_FIT_OF_LABELLED,
    [("predict", parameters.AT_VOTES)],
)
TRANSFORMER = Language(
    methods.of_transformer(),
    together.of_updates(),
    parameters.AT_FIT_OF_TRANSFORMER,
    [("transform", parameters.AT_GRAPH)],
)
RADIUS_TRANSFORMER = Language(
    methods.of_radius_transformer(),
    together.of_updates(),
    parameters.AT_FIT_OF_RADIUS,
    [("radius_neighbors", parameters.AT_RADIUS)],
)
CENTROID = Language(
    methods.of_centroid(), together.of_metric(), parameters.AT_FIT_OF_CENTROID
)
OUTLIERS = Language(
    methods.of_outliers(novelty=False),
    together.of_updates(),
    parameters.AT_FIT_OF_OUTLIERS,
    [("kneighbors", parameters.AT_NEIGHBOURS)],
)
NOVELTIES = OUTLIERS._replace(
    forms=methods.of_outliers(novelty=True),
    at_queries=[("score_samples", parameters.AT_SCORES)],
)
SKETCH = Language(methods.of_sketch(), at_fit=parameters.AT_FIT_OF_SKETCH)
MAINTENANCE = Language(methods.of_maintenance(), together.of_maintenance())
COMPONENTS_FROM = Language(methods.of_components_from(), together.of_components_from())
LEARNER = Language(
    methods.of_learner(),
    together.of_learner(),
    parameters.AT_FIT_OF_LEARNER,
)
TARGET_LEARNER = LEARNER._replace(at_fit=parameters.AT_FIT_OF_TARGETS)


def index(X=X, **params):
    return SketchedMahalanobisNeighbors(**params).fit(X)


def following():
    """A classifier with a learner that goes on learning."""
    learner = LEGO(init=U, random_state=0, **TARGET)
    params = {"n_neighbors": 2, "metric_learner": learner, "random_state": 0}
    knn = SketchedMahalanobisClassifier(**params)
    return knn.partial_fit(X, LABELS, classes=[0, 1, 2])


SUBJECTS = {
    "index, exact": (lambda: index(**EXACT), INDEX),
    "index, sketched": (lambda: index(**SKETCHED), SKETCHED_INDEX),
    "index, float32": (
        lambda: index(X.astype(np.float32), **SKETCHED),
        SKETCHED_INDEX._replace(forms=methods.of_index(far=1e39)),
    ),
    "index, sparse": (lambda: index(sparse.csr_matrix(X), **SKETCHED), SKETCHED_INDEX),
    "index, two threads": (lambda: index(n_jobs=2, **EXACT), INDEX),
    "index, of a frame": (
        lambda: index(frame(X), **EXACT),
        Language(methods.of_index(named=True)),
    ),
    "classifier": (
        lambda: SketchedMahalanobisClassifier(**SKETCHED).partial_fit(
            X, LABELS, classes=[0, 1, 2]
        ),
        CLASSIFIER,
    ),
    "classifier that learns": (following, CLASSIFIER),
    "regressor": (
        lambda: SketchedMahalanobisRegressor(**SKETCHED).fit(X, TARGETS),
        REGRESSOR,
    ),
    "transformer": (
        lambda: SketchedMahalanobisNeighborsTransformer(**SKETCHED).fit(X),
        TRANSFORMER,
    ),
    "radius transformer": (
        lambda: SketchedMahalanobisRadiusTransformer(metric_learner=U).fit(X),
        RADIUS_TRANSFORMER,
    ),
    "centroid": (lambda: MahalanobisCentroidClassifier(U).fit(X, LABELS), CENTROID),
    "outliers": (
        lambda: MahalanobisOutlierDetector(2, metric_learner=U).fit(X),
        OUTLIERS,
    ),
    "novelties": (
        lambda: MahalanobisOutlierDetector(2, metric_learner=U, novelty=True).fit(X),
        NOVELTIES,
    ),
    "sketch": (lambda: MahalanobisSketch(3, random_state=0).fit(X), SKETCH),
    "maintenance": (lambda: MetricMaintenance(U, X, **SMALL), MAINTENANCE),
    "maintenance, sparse": (
        lambda: MetricMaintenance(U, sparse.csr_matrix(X), **SMALL),
        MAINTENANCE,
    ),
    "sketches only": (
        lambda: index(**EXACT).sketches_only(),
        Language(methods.of_compact()),
    ),
    "sample_seeds": (lambda: sample_seeds, Language(methods.of_seeds())),
    "components_from": (lambda: components_from, COMPONENTS_FROM),
    "warm_up": (lambda: warm_up, Language(methods.of_warm_up())),
    "LEGO": (lambda: LEGO(random_state=0, **TARGET).fit(PAIRS, SIGNS), TARGET_LEARNER),
    "OnlineITML": (
        lambda: OnlineITML(random_state=0).fit(PAIRS, SIGNS),
        TARGET_LEARNER,
    ),
    "POLA": (lambda: POLA(random_state=0).fit(PAIRS, SIGNS), LEARNER),
}


def made(name):
    """A subject that has been queried, changed and queried again."""
    subject = SUBJECTS[name][0]()
    results(subject)
    if getattr(subject, "metric_learner_", None) is not None:
        subject.partial_fit(X[:3], LABELS[:3]).remove_points([0, 1, 2])
    elif hasattr(subject, "update_metric"):
        subject.update_metric(low_rank=(np.ones((K, 1)) / 9, Q[:1].T))
    results(subject)
    return subject


def results(subject):
    """Results of a subject, bit by bit; its invariants are checked."""
    calls = {
        "kneighbors": lambda method: method(queries(subject), 3),
        "predict": lambda method: method(PAIRS[:4] if learns(subject) else Q),
        "transform": lambda method: method(Q),
        "distances": lambda method: method(queries(subject)),
        "sum_distances": lambda method: method(queries(subject)),
        "query_all": lambda method: method(Q),
        "pair_distance": lambda method: method(PAIRS),
        "check": lambda method: method() >= 0,
    }
    found = [
        call(getattr(subject, method))
        for method, call in calls.items()
        if hasattr(subject, method)
    ]
    return snapshot(found)


def state_of(subject):
    """The digest of what is saved of a subject, and of its learner."""
    if inspect.isfunction(subject):
        return None
    learner = getattr(subject, "metric_learner_", None)
    parts = [part for part in (subject, learner) if part is not None]
    return [part.__getstate__()["_digest"] for part in parts]


def learns(subject):
    return isinstance(subject, online._base.OnlineLearner)


def queries(subject):
    return frame(Q) if hasattr(subject, "feature_names_in_") else Q


def error_of(subject, call):
    """Make the call; the error that it raised, or None."""
    method = (
        type(subject) if call.method == "__init__" else getattr(subject, call.method)
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            method(**call.arguments)
    except Exception as error:
        return error
    return None


def complaint(subject, call):
    """What is wrong with the response to a bad call; None if nothing is."""
    kept = {}
    if call.parameters:
        kept = {name: subject.get_params()[name] for name in call.parameters}
        subject.set_params(**call.parameters)
    before, given = state_of(subject), snapshot(call.arguments)
    error = error_of(subject, call)
    changed = state_of(subject) != before
    if kept:
        subject.set_params(**kept)
    if error is None:
        return f"{call} is accepted"
    kinds = (*ERRORS, IndexError) if call.may_be_index_error else ERRORS
    if type(error) not in kinds:
        return f"{call} raises {error!r}"
    if not re.search(call.says, str(error)):
        return f"{call} says {str(error)[:300]!r}, not {call.says!r}"
    if changed:
        return f"{call} changes the state"
    if snapshot(call.arguments) != given:
        return f"{call} changes its arguments"
    return None


def complaints(name, calls):
    """Complaints about the bad calls of a subject, which stays as it was."""
    subject, found = made(name), []
    for call in calls:
        found.append(complaint(subject, call))
        if found[-1] is not None:
            subject = made(name)
    assert results(subject) == results(made(name))
    return [what for what in found if what is not None]


def rng_of(name):
    return np.random.default_rng(list(SUBJECTS).index(name))


def report(found):
    return f"{len(found)} complaints:\n" + "\n".join(found[:40])


# Most of their code is that of the others, so that a part of the calls is enough.
LIKE_OTHERS = ["index, sparse", "index, two threads", "maintenance, sparse"]
every_subject = pytest.mark.parametrize("name", SUBJECTS)
NO_ESTIMATORS = ("main", "comp", "warm", "samp", "sketches only")
every_estimator = pytest.mark.parametrize(
    "name", [name for name in SUBJECTS if not name.startswith(NO_ESTIMATORS)]
)


@pytest.mark.slow
@every_subject
def test_bad_calls_are_refused_by_name_and_leave_no_trace(name):
    """One of every production of the grammar."""
    rng, language = rng_of(name), SUBJECTS[name][1]
    calls = list(grammar.every(language, rng))
    found = complaints(name, calls[::5] if name in LIKE_OTHERS else calls)
    assert not found, report(found)


@pytest.mark.stress
@every_subject
def test_thousands_of_bad_calls_leave_no_trace(name, count):
    rng, language = rng_of(name), SUBJECTS[name][1]
    found = complaints(name, (grammar.draw(language, rng) for _ in range(400)))
    assert not found, report(found)
    count("bad calls", 400)


@every_subject
def test_what_the_grammar_calls_right_is_right(name):
    """So that what is wrong with a bad call is its fault."""
    rng = np.random.default_rng(0)
    subject = made(name)
    for form in SUBJECTS[name][1].forms:
        arguments = grammar.right(form, rng)
        needed = {name: arguments[name] for name in form.needed}
        for given in (arguments, needed):
            call = grammar.Call(form.method, given, "right", "")
            error = error_of(copy.deepcopy(subject), call)
            assert error is None, f"{call}: {error!r}"


@every_estimator
def test_nothing_is_returned_before_fit(name):
    rng = np.random.default_rng(0)
    subject, language = SUBJECTS[name][0](), SUBJECTS[name][1]
    for form in language.forms:
        if "fit" in form.method:
            continue
        estimator = clone(subject)
        before = state_of(estimator)
        call = grammar.Call(form.method, grammar.right(form, rng), "not fitted", "")
        error = error_of(estimator, call)
        assert type(error) is NotFittedError, (call, error)
        assert "not fitted yet" in str(error)
        assert state_of(estimator) == before


@every_estimator
def test_a_first_fit_that_is_refused_leaves_an_estimator_unfitted(name):
    rng = np.random.default_rng(0)
    subject, language = SUBJECTS[name][0](), SUBJECTS[name][1]
    first = [form for form in language.forms if form.method == "fit"]
    for _ in range(40):
        call = grammar.draw(
            language._replace(forms=first, together=[], at_queries=[]), rng
        )
        for method in ("fit", "partial_fit"):
            if hasattr(subject, method):
                found = complaint(clone(subject), call._replace(method=method))
                assert found is None, found


# Methods without arguments that could be wrong, and those of scikit-learn.
NOT_DRAWN = {"get_feature_names_out", "set_output", "set_callbacks"}
NOT_DRAWN |= {"check", "saved", "restored"}


def test_the_grammar_has_every_public_method():
    known = {}
    for make, language in SUBJECTS.values():
        subject = make()
        kind = subject if inspect.isfunction(subject) else type(subject)
        methods = {form.method for form in language.forms}
        known[kind] = known.get(kind, set()) | methods
    public = {getattr(skmahal, name) for name in skmahal.__all__}
    public |= {getattr(online, name) for name in online.__all__}
    without_arguments = {skmahal.enable_metric_learn, skmahal.show_versions}
    assert known.keys() == public - without_arguments
    for kind in filter(inspect.isclass, known):
        methods = {
            name
            for name in dir(kind)
            if not name.startswith("_")
            and callable(getattr(kind, name))
            and name not in dir(BaseEstimator)
            and not (name.startswith("set_") and name.endswith("_request"))
        }
        assert methods - NOT_DRAWN <= known[kind], kind
