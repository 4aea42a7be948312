"""Bad input is refused by name, and leaves the learner unchanged."""

import pickle
from functools import cache

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning, NotFittedError

from skmahal.online import LEGO
from skmahal.online._factor import MovingFactor

from .streams import LEARNERS, pair_stream

N, D = 40, 3
PAIRS, Y = pair_stream(N, D)
X, LABELS = PAIRS[:, 0], np.arange(N) % 3
EVERY = pytest.mark.parametrize("name", LEARNERS)


@cache
def pickled(name):
    learner = clone(LEARNERS[name]).set_params(random_state=0).fit(PAIRS, Y)
    return pickle.dumps(learner.partial_fit(X, LABELS).set_threshold(0.7))


def fitted(name):
    return pickle.loads(pickled(name))


def assert_refused(learner, call, error, names):
    """`call(learner)` raises `error` that says `names`, and nothing has changed."""
    before = pickle.dumps(learner.__getstate__())
    with pytest.raises(error, match=names):
        call(learner)
    assert pickle.dumps(learner.__getstate__()) == before


def with_value(array, value):
    array = np.array(array, dtype=float)
    array.flat[-1] = value
    return array


BAD_BATCHES = {
    "y of zero": (PAIRS, with_value(Y, 0), "y must be .1 .* got 0.0 at position 39"),
    "y of labels": (PAIRS, np.full(N, "same"), "y must be .1"),
    "y with nan": (PAIRS, with_value(Y, np.nan), "y must be .1 .* got .*nan"),
    "y missing": (PAIRS, None, "y is needed"),
    "y too short": (PAIRS, Y[1:], "inconsistent numbers of samples"),
    "y two-dimensional": (PAIRS, np.ones((N, 2)), "1d array"),
    "nan": (with_value(PAIRS, np.nan), Y, "pairs contains NaN"),
    "infinity": (with_value(PAIRS, np.inf), Y, "pairs contains infinity"),
    "complex": (PAIRS + 1j, Y, "Complex"),
    "triplets": (np.ones((4, 3, D)), np.ones(4), r"\(n_pairs, 2, n_f.* \(4, 3, 3\)"),
    "no pairs": (PAIRS[:0], Y[:0], "0 sample"),
    "four dimensions": (np.ones((4, 2, D, 1)), np.ones(4), "got one of 4 dimensions"),
    "no features": (np.ones((4, 2, 0)), np.ones(4), r"no features, got .*\(4, 2, 0\)"),
    "strings": (np.full((4, 2, D), "x"), np.ones(4), "convert|numeric"),
    "points with nan": (with_value(X, np.nan), LABELS, "X contains NaN"),
    "points without labels": (X, None, "requires y"),
    "points with numbers for labels": (X, LABELS + 0.5, "label|continuous"),
    "points and too few labels": (X, LABELS[1:], "inconsistent numbers"),
    "sparse points": (sparse.csr_array(X), LABELS, "[Ss]parse"),
    "one-dimensional points": (X[0], LABELS[:D], "2D array"),
}
BAD_SIZES = {
    "pairs": (PAIRS[:, :, :2], Y, "pairs has 2 features, but .* expecting 3"),
    "points": (X[:, :2], LABELS, "X has 2 features, but .* expecting 3"),
}


@EVERY
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(("pairs", "y", "says"), BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_bad_batches_are_refused(name, method, pairs, y, says):
    for learner in (clone(LEARNERS[name]), fitted(name)):
        call = lambda learner: getattr(learner, method)(pairs, y)  # noqa: E731
        assert_refused(learner, call, (ValueError, TypeError), says)


@EVERY
@pytest.mark.parametrize(("pairs", "y", "says"), BAD_SIZES.values(), ids=BAD_SIZES)
def test_a_stream_keeps_its_dimension(name, pairs, y, says):
    learner = fitted(name)
    assert_refused(learner, lambda e: e.partial_fit(pairs, y), ValueError, says)


@EVERY
@pytest.mark.parametrize(
    "method", ["pair_distance", "pair_score", "predict", "decision_function"]
)
def test_bad_pairs_have_no_distance(name, method):
    learner = fitted(name)
    bad = {
        r"shape \(n_pairs, 2, n_features\), got shape \(40, 3\)": X,
        "pairs has 2 features": PAIRS[:, :, :2],
        "pairs contains NaN": with_value(PAIRS, np.nan),
    }
    for says, pairs in bad.items():
        call = lambda e, pairs=pairs: getattr(e, method)(pairs)  # noqa: E731
        assert_refused(learner, call, ValueError, says)


@EVERY
@pytest.mark.parametrize("scale", [1e80, 1e160, 1e300])
def test_points_too_far_apart_are_refused(name, scale):
    pairs = np.concatenate([PAIRS[:5], scale * PAIRS[5:6]])
    learner = fitted(name)
    try:
        learner.partial_fit(pairs, Y[:6])
    except ValueError as error:
        assert "too far apart" in str(error)  # noqa: PT017
        assert scale > 1e80 or name == "POLA"
        call = lambda e: e.partial_fit(pairs, Y[:6])  # noqa: E731
        assert_refused(learner, call, ValueError, "too far apart")
    assert np.isfinite(learner.components_).all()


@EVERY
def test_points_too_far_apart_give_an_error_and_no_warning(name):
    """Warnings are errors here, and would come instead of it."""
    pairs = np.full((60, 2, 2), 1e200) * [[[0.0], [1.0]]]
    with pytest.raises(ValueError, match="too far apart"):
        type(LEARNERS[name])().fit(pairs, np.tile([1, -1], 30))


@EVERY
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("form", ["pairs", "points"])
@pytest.mark.parametrize("method", ["__matmul__", "append"])
@pytest.mark.parametrize("at", [0, 1, 17])
def test_a_batch_that_is_interrupted_leaves_no_trace(
    name, error, form, method, at, monkeypatch
):
    """In the first product of a step, or when it is made."""
    learner = fitted(name)
    left = [at]

    def interrupted(original):
        def function(self, *args):
            if left[0] == 0:
                raise error("here")
            left[0] -= 1
            return original(self, *args)

        return function

    batch = (PAIRS, -Y) if form == "pairs" else (X, LABELS)
    with monkeypatch.context() as patch:
        plain = getattr(MovingFactor, method)
        patch.setattr(MovingFactor, method, interrupted(plain))
        for call in ("fit", "partial_fit"):
            left[0] = at
            assert_refused(
                learner, lambda e, c=call: getattr(e, c)(*batch), error, "here"
            )
    untouched = fitted(name)
    for one in (learner, untouched):
        one.partial_fit(*batch)
    np.testing.assert_array_equal(learner.components_, untouched.components_)


@EVERY
@pytest.mark.parametrize(
    ("init", "says"),
    [
        (np.eye(2), r"init must be .* \(k, 3\) to match X, got shape \(2, 2\)"),
        (np.full((3, 3), np.nan), "init contains NaN"),
        ("covariance", "init"),
        (3.0, "init"),
    ],
)
def test_a_bad_start_is_refused(name, init, says):
    learner = fitted(name).set_params(init=init)
    assert_refused(learner, lambda e: e.fit(PAIRS, Y), (ValueError, TypeError), says)


BAD_PARAMETERS = [
    {"eta": 0},
    {"eta": "fast"},
    {"similar_target": 0.0},
    {"dissimilar_target": -1.0},
    {"reservoir_size": 0},
    {"n_pairs": 0},
    {"random_state": "seed"},
]


@pytest.mark.parametrize("bad", BAD_PARAMETERS, ids=repr)
def test_bad_parameters_are_refused_by_name(bad):
    says = f"'{next(iter(bad))}' parameter of LEGO"
    learner = LEGO().fit(PAIRS, Y).set_params(**bad)
    assert_refused(learner, lambda e: e.fit(PAIRS, Y), ValueError, says)
    assert_refused(LEGO(**bad), lambda e: e.partial_fit(PAIRS, Y), ValueError, says)


def test_targets_in_the_wrong_order_are_refused():
    learner = LEGO(similar_target=2.0, dissimilar_target=1.0)
    says = "similar_target must be at most dissimilar_target, got 2 and 1"
    assert_refused(learner, lambda e: e.fit(PAIRS, Y), ValueError, says)


@EVERY
@pytest.mark.parametrize("threshold", ["far", None, [1.0], True, 1j])
def test_a_threshold_is_a_number(name, threshold):
    call = lambda e: e.set_threshold(threshold)  # noqa: E731
    assert_refused(fitted(name), call, ValueError, "threshold must be a real number")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"strategy": "best"}, "strategy must be one of 'accuracy'.* got 'best'"),
        ({"strategy": "max_tpr"}, "min_rate must be a number from 0 to 1.*None"),
        ({"strategy": "max_tnr", "min_rate": 1.5}, "min_rate must .* got 1.5"),
        ({"strategy": "f_beta", "beta": None}, "beta must be a number"),
        ({"strategy": "f_beta", "beta": -1}, "beta must be a number"),
    ],
)
def test_bad_calibrations_are_refused(arguments, says):
    call = lambda e: e.calibrate_threshold(PAIRS, Y, **arguments)  # noqa: E731
    assert_refused(fitted("LEGO"), call, ValueError, says)


INDICES = np.arange(2 * N).reshape(N, 2)
BAD_INDICES = {
    "too large": (INDICES + 1, r"preprocessor has no points for pairs .*index 80"),
    "fractions": (INDICES + 0.5, "pairs must be integers, .* got float64"),
    "a mask": (INDICES > 3, "pairs must be integers, .* got bool"),
    "points": (X, r"pairs must be indices of shape \(n_pairs, 2\).* \(40, 3\)"),
    "sparse": (sparse.csr_array(INDICES), "[Ss]parse"),
}


@EVERY
@pytest.mark.parametrize(("pairs", "says"), BAD_INDICES.values(), ids=BAD_INDICES)
def test_bad_indices_are_refused(name, pairs, says):
    learner = fitted(name).set_params(preprocessor=PAIRS.reshape(-1, D))
    for call in (lambda e: e.partial_fit(pairs, Y), lambda e: e.pair_distance(pairs)):
        assert_refused(learner, call, (ValueError, TypeError), says)


def lookup(indices):
    raise KeyError("lost.png")


BAD_PREPROCESSORS = {
    "fails": (lookup, r"preprocessor has no points for pairs \(KeyError: 'lost.png'"),
    "loses points": (lambda i: np.ones((3, D)), r"\(80, n_features\).* \(3, 3\)"),
    "gives numbers": (lambda i: np.ones(len(i)), r"preprocessor must .* \(80,\)"),
    "gives nan": (lambda i: np.full((len(i), D), np.nan), "pairs contains NaN"),
    "other features": (lambda i: np.ones((len(i), 2)), "pairs has 2 features"),
    "sparse": (lambda i: sparse.csr_array((80, D)), "preprocessor must give a dense"),
}


@EVERY
@pytest.mark.parametrize(
    ("preprocessor", "says"), BAD_PREPROCESSORS.values(), ids=BAD_PREPROCESSORS
)
def test_bad_preprocessors_are_refused(name, preprocessor, says):
    def learn(learner):
        # Functions cannot be pickled, which is how states are compared.
        learner.preprocessor = preprocessor
        try:
            learner.partial_fit(INDICES, Y)
        finally:
            learner.preprocessor = None

    assert_refused(fitted(name), learn, ValueError, says)


@EVERY
def test_indices_need_a_preprocessor(name):
    call = lambda e: e.pair_distance(INDICES)  # noqa: E731
    assert_refused(fitted(name), call, ValueError, "indices need a preprocessor")


@EVERY
def test_the_metric_refuses_what_is_no_point(name):
    metric = fitted(name).get_metric()
    for u, v in [(X[0, :2], X[1]), (X[0, :2], X[1, :2]), (X[:3], X[3:6]), (1.0, 2.0)]:
        with pytest.raises(ValueError, match=r"u must be a vector of shape \(3,\)"):
            metric(u, v)
    with pytest.raises(ValueError, match=r"v must .* got shape \(1, 3\)"):
        metric(X[0], X[:1])


@EVERY
@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"strategy": "best"}, "strategy must be one of"),
        ({"strategy": "max_tpr"}, "min_rate must be a number"),
        ({"rate": 0.5}, "rate"),
        ("accuracy", "calibration_params must be a dictionary or None, got 'accuracy'"),
    ],
)
def test_a_fit_that_cannot_be_calibrated_is_undone(name, params, says):
    call = lambda e: e.fit(-PAIRS, Y, calibration_params=params)  # noqa: E731
    assert_refused(fitted(name), call, (ValueError, TypeError), says)


def test_labels_in_a_column_give_a_warning():
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        LEGO().fit(PAIRS, Y[:, np.newaxis])


@EVERY
def test_what_needs_a_fit_says_so(name):
    learner = clone(LEARNERS[name])
    calls = [
        lambda: learner.transform(X),
        lambda: learner.pair_distance(PAIRS),
        lambda: learner.predict(PAIRS),
        lambda: learner.get_metric(),
        lambda: learner.get_mahalanobis_matrix(),
        lambda: learner.set_threshold(1.0),
        lambda: learner.calibrate_threshold(PAIRS, Y),
        lambda: learner.state_token(),
        lambda: learner.updates_since(("", 0)),
    ]
    for call in calls:
        with pytest.raises(NotFittedError):
            call()


@pytest.mark.parametrize(
    ("scale", "how"), [(1e-100, "near each other"), (1e100, "far apart")]
)
def test_scales_that_have_no_step_size_are_refused(scale, how):
    pairs = scale * np.random.default_rng(0).normal(size=(90, 2, 4))
    with pytest.raises(ValueError, match=f"pairs has points too {how}"):
        LEGO().fit(pairs, np.resize([1, -1], 90))
