"""Interrupted anywhere, a change is made or it is not; nothing is left half done."""

import pickle
import threading
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
import pytest
from scipy import sparse

from skmahal import (
    MetricMaintenance,
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisRegressor,
)
from skmahal._core.exact import ExactMaintenance
from skmahal._threads import one_blas_thread
from skmahal.online import LEGO, POLA, OnlineITML

from .faults import Steps
from .oracle import Oracle

N, D, K = 14, 6, 5
ERRORS = MemoryError, KeyboardInterrupt

# An ordinary run takes one step in so many; a stress run takes all.
STRIDE = 41


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


X, U, Q = normal(N, D), normal(K, D, seed=1), normal(3, D, seed=2)
Q[0] = X[4]
NEW = normal(3, D, seed=3)
LABELS = np.arange(N) % 3
W, V = normal(K, 2, seed=4), normal(D, 2, seed=5)
PAIRS, SIGNS = normal(12, 2, D, seed=6), np.tile([1, -1], 6)


# Indices before the change


def touched(engine, updates=1):
    """An index with every array built, and updates that none of them has seen."""
    engine.check()
    for image in engine._state.images:
        engine._state.current(image)
    for seed in range(updates):
        engine.update_low_rank(normal(K, 1, seed=seed), normal(D, 1, seed=seed + 50))
    return engine


SKETCHED = {"m": 2, "L": 3, "R": 1, "lead": 1}


def exact_engine():
    return touched(ExactMaintenance(U, X))


def sketched_engine():
    return touched(MetricMaintenance(U, X, **SKETCHED, seed=0))


def engine_with_a_full_log():
    return touched(MetricMaintenance(U, X, **SKETCHED, seed=0), updates=16)


def engine_over_sparse_points():
    points = sparse.csr_matrix(np.where(X > -1, X, 0))
    return touched(MetricMaintenance(U, points, **SKETCHED, seed=0))


def euclidean_engine():
    engine = MetricMaintenance(None, X, **SKETCHED, seed=0)
    return touched(engine, updates=0)


def engine_of_planned_size():
    """Sketches that have to be enlarged once there are more points."""
    loose = {"eps": 0.6, "delta": 0.2, "L": 1, "seed": 0}
    return touched(MetricMaintenance(U, X, **loose))


def estimator(kind=SketchedMahalanobisNeighbors, y=None, metric=U, **params):
    params = {"n_neighbors": 2, "random_state": 0, "n_jobs": 1, **SKETCHED, **params}
    index = kind(metric_learner=metric, **params).fit(X, y)
    index.predict(Q) if hasattr(index, "predict") else index.sample(Q)
    touched(index._engine, updates=0)
    if metric is U:
        index.update_metric(low_rank=(W[:, :1], V[:, :1]))
    return index


def exact_estimator():
    return estimator(m="auto")


def classifier(**params):
    return estimator(SketchedMahalanobisClassifier, LABELS, **params)


def regressor():
    return estimator(SketchedMahalanobisRegressor, normal(N, 2, seed=7))


def learning_classifier():
    """One whose metric goes on learning, and which follows it."""
    return classifier(metric=LEGO(random_state=0))


def followed():
    """An index that follows a learner, which has made steps since."""
    learner = LEGO(init=U).fit(PAIRS, SIGNS)
    index = estimator().update_metric(learner)
    index.ahead = learner.partial_fit(PAIRS[:4], -SIGNS[:4])
    return index


def learner(kind):
    return kind(random_state=0, init=U).fit(PAIRS, SIGNS)


def labelled_learner(kind):
    return kind(random_state=0, init=U).fit(X, LABELS)


# What an index answers


def answers_of_engine(engine):
    n = engine.n
    held = engine.X.toarray() if sparse.issparse(engine.X) else engine.X.copy()
    drawn = engine.sample_exact(Q, 4, 2, random_state=0)
    pairs = engine.exact_pair(np.arange(n), np.arange(n)[::-1])
    return [
        engine.U,
        held,
        np.zeros(0) if engine.targets is None else engine.targets.copy(),
        engine.exact_all(Q),
        engine.query_all(Q),
        engine.query_pair(np.arange(n), np.arange(n)[::-1]),
        *engine.kneighbors(Q, 3),
        engine.sub_sum(Q, 1, n - 1),
        drawn,
        pairs,
    ]


def answers_of_estimator(index):
    learner = index.metric_learner_
    return [
        *answers_of_engine(index._engine),
        *index.kneighbors(Q),
        index.predict(Q) if hasattr(index, "predict") else index.distances(Q),
        np.array([index.n_features_in_, index.m_, index.L_, index.R_, index.lead_]),
        np.array([index.engine_]),
        np.zeros(0) if learner is None else learner.components_,
    ]


def answers_of_learner(learner):
    own = [learner.n_steps_, learner.n_skipped_, learner.version_, learner.threshold_]
    return [learner.components_, np.array(own), learner.pair_distance(PAIRS)]


def answers(subject):
    if isinstance(subject, ExactMaintenance):
        of = answers_of_engine
    else:
        of = answers_of_estimator if has_engine(subject) else answers_of_learner
    with one_version(subject):
        return of(subject)


@contextmanager
def as_of_version(state, version):
    before, state.version = state.version, version
    yield
    state.version = before


def one_version(subject):
    """The version decides which sketches serve a query, and may lag by one."""
    if not has_engine(subject):
        return nullcontext()
    return as_of_version(engine_of(subject)._state, 0)


def same(one, other):
    def equal(a, b):
        if a.shape != b.shape or a.dtype.kind not in "fiu":
            return np.array_equal(a, b)
        return np.allclose(a, b, rtol=1e-8, atol=1e-8)

    return all(map(equal, one, other))


# What must hold whatever has happened


def has_engine(subject):
    return isinstance(engine_of(subject), ExactMaintenance)


def engine_of(subject):
    return getattr(subject, "_engine", subject)


def assert_nothing_is_held(engine):
    """No lock, no place in the gate, no limit on BLAS, from any thread's view."""
    gate, free = engine._state.gate, []
    locks = gate._lock, engine._state._lock

    def look():
        for lock in locks:
            free.append(lock.acquire(blocking=False))
            lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert free == [True, True]
    gate.forget_the_gone()
    assert gate.is_empty
    with one_blas_thread():
        pass
    assert not one_blas_thread._inside


def assert_changes_go_on(engine):
    """Every kind of change is followed by right answers."""
    oracle = Oracle(engine.U, engine.X)
    targets = None if engine.targets is None else engine.targets[:3]
    for name, arguments, more in [
        ("append", (NEW + 1,), [targets]),
        ("update_low_rank", (normal(engine.k, 1, seed=8), V[:, :1]), []),
        ("update_x", (NEW[:2] - 1, [0, 7]), [None if targets is None else targets[:2]]),
        ("remove", ([2, 5],), []),
    ]:
        getattr(engine, name)(*arguments, *more)
        getattr(oracle, name)(*arguments)
    engine.check()
    np.testing.assert_allclose(engine.exact_all(Q), oracle.query_all(Q), atol=1e-8)
    ratios = engine.query_all(Q[1:]) / oracle.query_all(Q[1:])
    assert np.isfinite(ratios).all()


class Change(NamedTuple):
    """How to make the subject, and the call that is interrupted."""

    make: callable
    apply: callable

    @property
    def draws(self):
        return "refresh_sketches" in self.apply.__code__.co_names


U2, SMALL_U = normal(K, D, seed=9), normal(2, D, seed=10)
ROWS = normal(2, D, seed=11)

ENGINES = {
    "update_u": lambda e: e.update_u(ROWS, [0, 3]),
    "set_rows": lambda e: e.set_rows(ROWS, [0, 3]),
    "update_low_rank": lambda e: e.update_low_rank(W, V),
    "follow": lambda e: e.follow(W, V, e.U + W @ V.T),
    "set_metric whole": lambda e: e.set_metric(U2),
    "set_metric nearby": lambda e: e.set_metric(e.U + W[:, :1] @ V[:, :1].T),
    "set_metric a little": lambda e: e.set_metric(e.U + 0.01 * U2),
    "set_metric of fewer rows": lambda e: e.set_metric(U2[:4]),
    "update_x": lambda e: e.update_x(NEW, [0, 5, 13]),
    "append": lambda e: e.append(NEW),
    "append far away": lambda e: e.append(np.vstack([X, NEW]) + 1e3),
    "remove": lambda e: e.remove([0, 7, 13]),
    "settle": lambda e: e.settle(),
    "prepare": lambda e: e.prepare(),
    "refresh_sketches": lambda e: e.refresh_sketches(),
}
CHANGES = {
    f"{make.__name__}-{name}": Change(make, apply)
    for make in (exact_engine, sketched_engine)
    for name, apply in ENGINES.items()
    if make is sketched_engine or name != "refresh_sketches"
}
CHANGES |= {
    f"{make.__name__}-{name}": Change(make, ENGINES[name])
    for make, names in {
        engine_with_a_full_log: ["update_low_rank", "update_u", "append"],
        engine_over_sparse_points: ["append", "update_x", "remove", "set_metric whole"],
        euclidean_engine: ["append far away", "refresh_sketches"],
        engine_of_planned_size: ["append", "append far away", "set_metric whole"],
    }.items()
    for name in names
}
CHANGES["euclidean_engine-update_low_rank"] = Change(
    euclidean_engine, lambda e: e.update_low_rank(normal(D, 1), V[:, :1])
)

ESTIMATORS = {
    "fit": lambda i: i.fit(X[:9] + 1),
    "partial_fit": lambda i: i.partial_fit(NEW),
    "update_metric": lambda i: i.update_metric(U2),
    "update_metric to the other engine": lambda i: i.update_metric(SMALL_U),
    "update_metric back": lambda i: i.update_metric(normal(6, D)),
    "update_metric by a learner": lambda i: i.update_metric(learner(LEGO)),
    "update_metric rows": lambda i: i.update_metric(ROWS, rows=[0, 3]),
    "update_metric additive": lambda i: i.update_metric(
        ROWS, rows=[0, 3], additive=True
    ),
    "update_metric low_rank": lambda i: i.update_metric(low_rank=(W, V)),
    "update_points": lambda i: i.update_points([0, 5, 13], NEW),
    "remove_points": lambda i: i.remove_points([0, 7, 13]),
    "refresh_sketches": lambda i: i.refresh_sketches(),
}
CHANGES |= {
    f"{make.__name__}-{name}": Change(make, apply)
    for make in (estimator, exact_estimator)
    for name, apply in ESTIMATORS.items()
}
CHANGES["followed-update_metric"] = Change(followed, lambda i: i.update_metric(i.ahead))
SUPERVISED = {
    "fit": lambda i, y: i.fit(X[:9] + 1, y[:9]),
    "partial_fit": lambda i, y: i.partial_fit(NEW, y[-3:]),
    "update_points": lambda i, y: i.update_points([0, 5, 13], NEW, y[-3:]),
    "remove_points": lambda i, _: i.remove_points([0, 7, 13]),
}
CHANGES |= {
    f"{make.__name__}-{name}": Change(make, lambda i, apply=apply, y=y: apply(i, y))
    for make, y in [
        (classifier, LABELS),
        (regressor, normal(N, 2, seed=12)),
        (learning_classifier, LABELS),
    ]
    for name, apply in SUPERVISED.items()
}
LEARNERS = {
    "fit": lambda e: e.fit(PAIRS[::-1], SIGNS),
    "partial_fit": lambda e: e.partial_fit(PAIRS[::-1], SIGNS),
    "partial_fit with labels": lambda e: e.partial_fit(NEW, [0, 1, 1]),
}
CHANGES |= {
    f"{kind.__name__}-{name}": Change(
        lambda kind=kind, make=make: make(kind), LEARNERS[name]
    )
    for kind in (LEGO, POLA, OnlineITML)
    for make, names in [
        (learner, ["fit", "partial_fit"]),
        (labelled_learner, ["partial_fit with labels"]),
    ]
    for name in names
}


def interrupt(change, at, before, after):
    """Interrupt a change at a step, look at what is left, and go on."""
    subject = change.make()
    steps = Steps(at, ERRORS[at % 2])
    with pytest.raises(ERRORS[at % 2], match="injected"), steps:
        change.apply(subject)
    here = f"step {at}, {steps.where}"
    if has_engine(subject):
        assert_nothing_is_held(engine_of(subject))
        engine_of(subject).check()
    now = answers(subject)
    assert same(now, before) or same(now, after), here
    assert same(answers(pickle.loads(pickle.dumps(subject))), now), here
    # What follows is the same change again, or others, by turns.
    if at // 2 % 2 and same(now, before):
        change.apply(subject)
        # Sketches that are drawn again are others.
        assert change.draws or same(answers(subject), after), here
    elif has_engine(subject):
        assert_changes_go_on(engine_of(subject))


def step_count(change):
    change.apply(change.make())
    subject = change.make()
    with Steps() as steps:
        change.apply(subject)
    return steps.count


def interrupt_everywhere(name, stride, count):
    change = CHANGES[name]
    subject = change.make()
    before = answers(subject)
    total = step_count(change)
    change.apply(subject)
    after = answers(subject)
    threads = threading.active_count()
    for at in range(len(name) % stride, total, stride):
        interrupt(change, at, before, after)
        count("faults")
    assert threading.active_count() == threads


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_made_or_not(name, count):
    interrupt_everywhere(name, STRIDE, count)


@pytest.mark.stress
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_made_or_not_at_every_step(name, count):
    interrupt_everywhere(name, 1, count)
