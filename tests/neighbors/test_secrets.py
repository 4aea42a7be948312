"""The secret key, which determines the sketches, is in no text and in no message."""

import io
import logging
import pickle
import random
import traceback
import warnings
from copy import deepcopy

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone

from skmahal import (
    MetricMaintenance,
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRegressor,
)

from . import test_bad_input as bad
from .cases import normal

EVERY = [
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisClassifier,
    SketchedMahalanobisRegressor,
]
X, Y = normal(60, 40), np.arange(60) % 2
PARAMS = {"m": 3, "L": 4, "R": 3, "lead": 2, "n_candidates": "certified"}

# A shorter text might be found by chance.
LEAST_DIGITS = 8


def fitted(estimator=SketchedMahalanobisNeighbors, **params):
    made = estimator(**{**PARAMS, **params}).fit(X, Y)
    assert made.engine_ == "sketched"
    return made


def key_of(made):
    """The key, the only bytes of 32 in what is saved."""
    found, waiting = [], [made.__getstate__()]
    while waiting:
        value = waiting.pop()
        if isinstance(value, bytes) and len(value) == 32:
            found.append(value)
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
    [key] = found
    return key


def forms_of(key):
    """Texts in which the key may be written."""
    words = [np.frombuffer(key, dtype=kind) for kind in ("<u8", ">u8", "<u4")]
    numbers = [*np.concatenate(words), *(int.from_bytes(key, o) for o in ORDERS)]
    texts = [str(int(number)) for number in numbers]
    texts += [f"{int(number):x}" for number in numbers]
    texts += [key.hex(), repr(key)[2:-1], ascii(list(key))]
    return {text for text in texts if len(text) >= LEAST_DIGITS}


ORDERS = ("little", "big")


def assert_hidden(key, text):
    assert [form for form in forms_of(key) if form in text] == []


def test_a_key_that_is_shown_is_found():
    key = key_of(fitted())
    for shown in (key.hex(), f"key={key!r}", f"{list(key)}"):
        with pytest.raises(AssertionError):
            assert_hidden(key, f"something {shown} else")


@pytest.mark.parametrize("estimator", EVERY)
def test_texts_parameters_and_public_attributes_do_not_show_the_key(estimator):
    made = fitted(estimator)
    made.kneighbors(X[:3])
    texts = [repr(made), str(made), made._repr_html_(), repr(clone(made))]
    texts += [repr(made.get_params()), repr(made.__sklearn_tags__())]
    texts += [repr(made.guarantee()), str(made.guarantee())]
    public = [name for name in dir(made) if not name.startswith("_")]
    with np.printoptions(threshold=1 << 30):
        texts += [repr(getattr(made, name)) for name in public]
    assert_hidden(key_of(made), "\n".join(texts))
    assert "seed" not in made.get_params()


def test_the_structure_for_arrays_does_not_show_the_key():
    held = MetricMaintenance(None, X, m=3, L=4)
    held.query_all(X[0])
    public = [name for name in dir(held) if not name.startswith("_")]
    with np.printoptions(threshold=1 << 30):
        values = [repr(getattr(held, name)) for name in public]
    assert_hidden(key_of(held), "\n".join([repr(held), *values]))


def test_an_audit_does_not_show_the_key():
    index = fitted()
    index.distances(X[:3])
    audit = index.audit(50)
    assert_hidden(key_of(index), f"{audit!r} {audit} {audit.random.sample.tolist()}")


@pytest.mark.parametrize(
    "bad_call", [case[1] for case in bad.BAD_CALLS.values()], ids=bad.BAD_CALLS
)
def test_errors_do_not_show_the_key(bad_call):
    index = bad.fitted("sketched").set_params(random_state=None).fit(bad.X)
    with pytest.raises(bad.any_error) as caught:
        bad_call(index)
    # The trace shows the source of every frame, and no values.
    assert_hidden(key_of(index), "".join(traceback.format_exception(caught.value)))


def test_errors_about_values_do_not_show_the_key():
    index = fitted()
    calls = [
        lambda: index.kneighbors(1e200 * X[:1]),
        lambda: index.update_metric(1e200 * X[:39]),
        lambda: index.update_metric(low_rank=(1e200 * X[:40, :1], X[:40, :1])),
        lambda: index.partial_fit(1e200 * X[:1]),
        lambda: index.set_params(seed=3),
        lambda: index.set_params(n_candidates=1).kneighbors(X[:1]),
    ]
    for refused in calls:
        with pytest.raises(ValueError, match=r".") as caught:
            refused()
        assert_hidden(key_of(index), str(caught.value))


def test_nothing_is_logged_printed_or_warned(capsys):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root, level = logging.getLogger(), logging.getLogger().level
    # The first query of a process may say that it compiles.
    fitted().kneighbors(X[:3])
    capsys.readouterr()
    root.addHandler(handler)
    root.setLevel(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            index = fitted()
            index.kneighbors(X[:3])
            index.distances(X[:3])
            index.update_metric(X[:2], rows=[0, 1]).refresh_sketches().audit(20)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    captured = capsys.readouterr()
    assert "skmahal" not in stream.getvalue()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize("estimator", EVERY)
def test_without_a_seed_the_key_cannot_be_predicted(estimator):
    """The global states of NumPy and Python are known to others in the process."""
    keys = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        keys.append(key_of(fitted(estimator)))
    assert keys[0] != keys[1]


def test_without_a_seed_estimates_differ_from_fit_to_fit():
    Q = normal(20, 40, seed=1)
    index = fitted(eps=0.9)
    one, key = index.distances(Q), key_of(index)
    assert not np.allclose(one, index.fit(X).distances(Q))
    assert key_of(index) != key


def test_a_clone_has_no_key():
    with pytest.raises(ValueError, match="not enough values"):
        key_of(clone(fitted()))


@pytest.mark.parametrize(
    "again", [lambda made: pickle.loads(pickle.dumps(made)), deepcopy]
)
def test_a_pickle_has_the_key_and_gives_the_same_results(again):
    index = fitted(eps=0.9)
    assert key_of(index) in pickle.dumps(index)
    other = again(index)
    assert key_of(other) == key_of(index)
    Q = normal(20, 40, seed=1)
    assert_array_equal(other.distances(Q), index.distances(Q))
    assert_array_equal(other.kneighbors(Q)[1], index.kneighbors(Q)[1])
    i, j = np.arange(20), np.arange(20, 40)
    assert_array_equal(other.pair_distances(i, j), index.pair_distances(i, j))


@pytest.mark.parametrize("random_state", [None, 0])
def test_a_pickle_does_not_predict_a_refresh_without_a_seed(random_state):
    index = fitted(eps=0.9, random_state=random_state)
    one, other = (pickle.loads(pickle.dumps(index)) for _ in range(2))
    Q = normal(20, 40, seed=1)
    found = [made.refresh_sketches().distances(Q) for made in (one, other)]
    assert np.allclose(*found) == (random_state == 0)


def test_the_documentation_says_that_pickles_have_the_key():
    text = " ".join(SketchedMahalanobisNeighbors.__doc__.split())
    assert "pickles of a fitted index contain both" in text
