"""The key that chooses sketches, and the sketches, are told to nobody."""

import io
import logging
import pickle
import pprint
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
PARAMS = {"m": 3, "L": 4, "R": 3, "lead": 2}

# The shortest of what is looked for is met by chance once in 10^8 characters.
LEAST_DIGITS = 8


def fitted(estimator=SketchedMahalanobisNeighbors, **params):
    made = estimator(**{**PARAMS, **params}).fit(X, Y)
    assert made.engine_ == "sketched"
    return made


def secrets_of(engine):
    """Every form in which the key, the seeds or the sketches may be written."""
    words = [np.frombuffer(engine._key, dtype=kind) for kind in ("<u8", ">u8", "<u4")]
    state = engine._rng.bit_generator.state["state"]
    numbers = [*np.concatenate(words), *engine._seeds, *engine._multipliers]
    numbers += [*state.values(), *(int.from_bytes(engine._key, o) for o in _ORDERS)]
    numbers += [int(word) for word in _seed_of(engine)]
    texts = [str(int(number)) for number in numbers]
    texts += [f"{int(number):x}" for number in numbers]
    entries = [image.map.flat[0] for image in engine._fronts]
    texts += [repr(float(entry))[:12] for entry in entries]
    texts += [engine._key.hex(), repr(engine._key)[2:-1], ascii(list(engine._key))]
    return {text for text in texts if len(text) >= LEAST_DIGITS}


_ORDERS = ("little", "big")


def _seed_of(engine):
    bits = engine._rng.bit_generator
    # It has a public name since NumPy 1.25.
    seed = bits.seed_seq if hasattr(bits, "seed_seq") else bits._seed_seq
    return np.atleast_1d(seed.entropy)


def assert_kept(engine, text):
    told = [secret for secret in secrets_of(engine) if secret in text]
    assert told == []


def test_what_is_looked_for_is_found_where_it_is_told():
    engine = fitted()._engine
    for told in (
        engine._key.hex(),
        f"key={engine._key!r}",
        f"{list(engine._key)}",
        f"seed {engine._seeds[2]}",
        pprint.pformat(engine._rng.bit_generator.state),
        np.array2string(engine._multipliers),
    ):
        with pytest.raises(AssertionError):
            assert_kept(engine, f"something {told} else")


@pytest.mark.parametrize("estimator", EVERY)
def test_texts_and_parameters_do_not_tell_the_key(estimator):
    made = fitted(estimator)
    engine = made._engine
    made.kneighbors(X[:3])
    texts = [repr(made), str(made), made._repr_html_(), repr(engine), str(engine)]
    texts += [repr(made.get_params()), repr(made.__sklearn_tags__())]
    texts += [repr(clone(made)), repr(made.guarantee()), str(made.guarantee())]
    assert_kept(engine, "\n".join(texts))
    assert "seed" not in made.get_params()


def test_the_structure_for_arrays_does_not_tell_the_key():
    engine = MetricMaintenance(None, X, m=3, L=4)
    assert_kept(engine, repr(engine))
    public = [name for name in dir(engine) if not name.startswith("_")]
    values = [getattr(engine, name) for name in public]
    with np.printoptions(threshold=1 << 30):
        assert_kept(engine, "\n".join(map(repr, values)))


@pytest.mark.parametrize("estimator", EVERY)
def test_no_public_attribute_tells_the_key(estimator):
    made = fitted(estimator)
    public = [name for name in dir(made) if not name.startswith("_")]
    values = [getattr(made, name) for name in public]
    with np.printoptions(threshold=1 << 30):
        assert_kept(made._engine, "\n".join(map(repr, values)))


def test_an_audit_does_not_tell_the_key():
    index = fitted()
    index.distances(X[:3])
    audit = index.audit(50)
    text = f"{audit!r} {audit} {audit.random.sample.tolist()}"
    assert_kept(index._engine, text)


@pytest.mark.parametrize(
    "bad_call", [case[1] for case in bad.BAD_CALLS.values()], ids=bad.BAD_CALLS
)
def test_errors_do_not_tell_the_key(bad_call):
    index = bad.fitted("sketched").set_params(random_state=None).fit(bad.X)
    with pytest.raises(bad.any_error) as caught:
        bad_call(index)
    # The trace shows the source of every frame, and no values.
    assert_kept(index._engine, "".join(traceback.format_exception(caught.value)))


def test_errors_about_values_do_not_tell_the_key():
    index = fitted()
    calls = [
        lambda: index.kneighbors(1e200 * X[:1]),
        lambda: index.update_metric(1e200 * X[:40]),
        lambda: index.update_metric(low_rank=(1e200 * X[:40, :1], X[:40, :1])),
        lambda: index.partial_fit(1e200 * X[:1]),
        lambda: index.set_params(seed=3),
        lambda: index.set_params(n_candidates=1).kneighbors(X[:1]),
    ]
    for refused in calls:
        with pytest.raises(ValueError, match=r".") as caught:
            refused()
        assert_kept(index._engine, str(caught.value))


def test_nothing_is_logged_printed_or_warned(capsys):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root, level = logging.getLogger(), logging.getLogger().level
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
    assert_kept(index._engine, stream.getvalue() + captured.out + captured.err)
    assert "skmahal" not in stream.getvalue()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize("estimator", EVERY)
def test_without_a_seed_nobody_can_foresee_the_key(estimator):
    """NumPy's and Python's global states are known to others in the process."""
    import random

    keys = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        keys.append(fitted(estimator)._engine._key)
    assert keys[0] != keys[1]


def test_without_a_seed_sketches_and_their_choice_differ_from_fit_to_fit():
    engines = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        engines.append(fitted()._engine)
    one, other = engines
    assert not np.allclose(one._fronts[0].map, other._fronts[0].map)
    # Of 4 ways to take 3, 200 queries choose alike once in 4^200.
    Q = normal(200, 40, seed=1)
    picks = [np.sort(engine._picks(Q, 3), axis=1) for engine in engines]
    assert (picks[0] != picks[1]).any()


def test_the_key_is_as_long_as_its_hash_takes_and_new_at_every_fit():
    index = fitted()
    key = index._engine._key
    assert len(key) == 32
    assert index.fit(X)._engine._key != key


def test_a_clone_has_no_key():
    assert not hasattr(clone(fitted()), "_engine")


@pytest.mark.parametrize(
    "again", [lambda made: pickle.loads(pickle.dumps(made)), deepcopy]
)
def test_a_pickle_has_the_key_and_answers_the_same(again):
    index = fitted(eps=0.9)
    assert index._engine._key in pickle.dumps(index)
    other = again(index)
    assert other._engine._key == index._engine._key
    Q = normal(20, 40, seed=1)
    assert_array_equal(other.distances(Q), index.distances(Q))
    assert_array_equal(other.kneighbors(Q)[1], index.kneighbors(Q)[1])
    i, j = np.arange(20), np.arange(20, 40)
    assert_array_equal(other.pair_distances(i, j), index.pair_distances(i, j))


@pytest.mark.parametrize("random_state", [None, 0])
def test_who_has_a_pickle_cannot_foresee_a_refresh_without_a_seed(random_state):
    index = fitted(eps=0.9, random_state=random_state)
    one, other = (pickle.loads(pickle.dumps(index)) for _ in range(2))
    maps = [made.refresh_sketches()._engine._fronts[0].map for made in (one, other)]
    assert np.allclose(*maps) == (random_state == 0)


def test_the_documents_say_that_pickles_have_the_key():
    text = " ".join(SketchedMahalanobisNeighbors.__doc__.split())
    assert "Pickles of a fitted index contain both" in text
