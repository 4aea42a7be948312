"""A change that is interrupted anywhere is made as a whole or not at all."""

import pickle
import threading
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

# Private: that an index has codes, and that no limit on BLAS is left behind.
from skmahal._core import plan, threads
from skmahal.online import LEGO, POLA, OnlineITML

from .faults import Steps
from .oracle import Oracle

N, D, K = 14, 6, 5
ERRORS = MemoryError, KeyboardInterrupt

# An ordinary run interrupts at one step in so many; a stress run at every step.
STRIDE = 67


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


X, U, Q = normal(N, D), normal(K, D, seed=1), normal(3, D, seed=2)
Q[0] = X[4]
NEW = normal(3, D, seed=3)
LABELS = np.arange(N) % 3
W, V = normal(K, 2, seed=4), normal(D, 2, seed=5)
PAIRS, SIGNS = normal(12, 2, D, seed=6), np.tile([1, -1], 6)

# All sketches serve every query, so that estimates do not depend on the version.
SKETCHED = {"m": 1, "L": 3, "R": 3, "lead": 1}


# --- indices before the change --------------------------------------------------------


def in_use(held, updates=1, rank=1):
    """An index with every array computed, and updates that sketches have not seen."""
    answers_of_maintenance(held)
    for seed in range(updates):
        factors = normal(held.k, rank, seed=seed), normal(D, rank, seed=seed + 50)
        held.update_low_rank(*factors)
    return held


def unsketched():
    """Sketches that are not drawn yet, which do not depend on the metric."""
    held = MetricMaintenance(U, X, **{**SKETCHED, "lead": 0}, seed=0)
    held.kneighbors(Q, 3)
    return held


def sketched(metric=U, points=X):
    return in_use(MetricMaintenance(metric, points, **SKETCHED, seed=0))


def far_behind():
    """Sketches that are behind by as much as they may be."""
    return in_use(MetricMaintenance(U, X, **SKETCHED, seed=0), updates=16, rank=4)


def over_sparse_points():
    return sketched(points=sparse.csr_matrix(np.where(X > -1, X, 0)))


def with_codes():
    """Codes of points, which an index of so few points has in these tests only."""
    assert plan._SMALL == 0
    return sketched()


def of_one_row():
    """A U of so few rows that transformed points are kept."""
    return sketched(metric=U[:1])


def euclidean():
    return in_use(MetricMaintenance(None, X, **SKETCHED, seed=0), updates=0)


def of_planned_size():
    """Sketches that have to be larger once there are more points."""
    loose = {"eps": 0.6, "delta": 0.2, "L": 1, "seed": 0}
    return in_use(MetricMaintenance(U, X, **loose))


def estimator(kind=SketchedMahalanobisNeighbors, y=None, metric=U, **params):
    params = {"n_neighbors": 2, "random_state": 0, "n_jobs": 1, **SKETCHED, **params}
    index = kind(metric_learner=metric, **params).fit(X, y)
    index.predict(Q) if hasattr(index, "predict") else index.sample(Q)
    in_use(index._maintenance, updates=0)
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
    """One whose metric learner continues to learn, and which follows it."""
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


# --- results --------------------------------------------------------------------------


def answers_of_maintenance(held):
    n = held.n
    points = held.X.toarray() if sparse.issparse(held.X) else held.X.copy()
    everywhere = np.arange(n)
    return [
        held.U,
        points,
        np.zeros(0) if held.records is None else held.records.copy(),
        held.exact_all(Q),
        held.query_all(Q),
        held.query_pair(everywhere, everywhere[::-1]),
        *held.kneighbors(Q, 3),
        *held.kneighbors(Q, 3, candidates="certified"),
        held.sub_sum(Q, 1, n - 1),
        held.sample_exact(Q, 4, 2, random_state=0),
        held.exact_pair(everywhere, everywhere[::-1]),
    ]


def answers_of_estimator(index):
    learner = index.metric_learner_
    return [
        *index.kneighbors(Q),
        *answers_of_maintenance(index._maintenance),
        index.predict(Q) if hasattr(index, "predict") else index.distances(Q),
        np.array([index.n_features_in_, index.m_, index.L_, index.R_, index.lead_]),
        np.array([index.engine_]),
        np.zeros(0) if learner is None else learner.components_,
    ]


def answers_of_learner(learner):
    own = [learner.n_steps_, learner.n_skipped_, learner.version_, learner.threshold_]
    return [learner.components_, np.array(own), learner.pair_distance(PAIRS)]


def answers(subject):
    if isinstance(subject, MetricMaintenance):
        return answers_of_maintenance(subject)
    if held_by(subject) is not None:
        return answers_of_estimator(subject)
    return answers_of_learner(subject)


def same(one, other):
    def equal(a, b):
        if a.shape != b.shape or a.dtype.kind not in "fiu":
            return np.array_equal(a, b)
        return np.allclose(a, b, rtol=1e-8, atol=1e-8)

    return all(map(equal, one, other))


# --- what must hold after any interruption --------------------------------------------


def held_by(subject):
    """The maintained index of a subject; None for a learner."""
    if isinstance(subject, MetricMaintenance):
        return subject
    return getattr(subject, "_maintenance", None)


def assert_nothing_is_locked(held):
    """Another thread can read and write, and BLAS has its threads back."""

    def read_and_write():
        held.kneighbors(Q, 1)
        held.update_u(np.zeros(D), 0)

    thread = threading.Thread(target=read_and_write, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert not threads._Pin.inside
    assert threads._Pin.limit is None


def assert_changes_go_on(held):
    """Every kind of change is followed by right results."""
    oracle = Oracle(held.U, held.X)
    targets = None if held.records is None else held.records[:3]
    for name, arguments, more in [
        ("append", (NEW + 1,), [targets]),
        ("update_low_rank", (normal(held.k, 1, seed=8), V[:, :1]), []),
        ("update_x", (NEW[:2] - 1, [0, 7]), [None if targets is None else targets[:2]]),
        ("remove", ([2, 5],), []),
    ]:
        getattr(held, name)(*arguments, *more)
        getattr(oracle, name)(*arguments)
    held.check()
    np.testing.assert_allclose(held.exact_all(Q), oracle.query_all(Q), atol=1e-8)
    ratios = held.query_all(Q[1:]) / oracle.query_all(Q[1:])
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

CHANGES_OF_MAINTENANCE = {
    "update_u": lambda e: e.update_u(ROWS, [0, 3]),
    "set_rows": lambda e: e.set_rows(ROWS, [0, 3]),
    "update_low_rank": lambda e: e.update_low_rank(W, V),
    "set_metric whole": lambda e: e.set_metric(U2),
    "set_metric nearby": lambda e: e.set_metric(e.U + W[:, :1] @ V[:, :1].T),
    "set_metric of fewer rows": lambda e: e.set_metric(U2[:4]),
    "set_metric of one row": lambda e: e.set_metric(U2[:1]),
    "update_x": lambda e: e.update_x(NEW, [0, 5, 13]),
    "update_x of most": lambda e: e.update_x(X[::-1][:9] + 5, np.arange(9)),
    "append": lambda e: e.append(NEW),
    "append far away": lambda e: e.append(np.vstack([X, NEW]) + 1e3),
    "remove": lambda e: e.remove([0, 7, 13]),
    "refresh_sketches": lambda e: e.refresh_sketches(),
    "queries": lambda e: answers_of_maintenance(e),
}
SUBJECTS = {
    unsketched: ["update_low_rank", "update_x", "append", "remove", "set_metric whole"],
    sketched: list(CHANGES_OF_MAINTENANCE),
    far_behind: ["update_low_rank", "append"],
    with_codes: ["update_low_rank", "update_x", "append", "remove", "set_metric whole"],
    over_sparse_points: ["append", "update_x", "remove", "set_metric whole", "queries"],
    of_one_row: ["update_x", "append", "remove", "set_metric whole", "queries"],
    euclidean: ["append far away", "update_x", "refresh_sketches"],
    of_planned_size: ["append", "append far away", "set_metric whole"],
}
CHANGES = {
    f"{make.__name__}-{name}": Change(make, CHANGES_OF_MAINTENANCE[name])
    for make, names in SUBJECTS.items()
    for name in names
}
for make in (euclidean, of_one_row):
    CHANGES[f"{make.__name__}-update_low_rank"] = Change(
        make, lambda e: e.update_low_rank(normal(e.k, 1), V[:, :1])
    )

ESTIMATORS = {
    "fit": lambda i: i.fit(X[:9] + 1),
    "partial_fit": lambda i: i.partial_fit(NEW),
    "update_metric": lambda i: i.update_metric(U2),
    "update_metric of fewer rows": lambda i: i.update_metric(SMALL_U),
    "update_metric of more rows": lambda i: i.update_metric(normal(6, D)),
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
    here, held = f"step {at}, {steps.where}", held_by(subject)
    if held is not None:
        assert_nothing_is_locked(held)
    now = answers(subject)
    assert same(now, before) or same(now, after), here
    assert same(answers(pickle.loads(pickle.dumps(subject))), now), here
    if held is not None:
        held.check()
    # By turns, the same change follows again, or others.
    if at // 2 % 2 and same(now, before):
        change.apply(subject)
        # Sketches that are drawn again are others.
        assert change.draws or same(answers(subject), after), here
    elif held is not None:
        assert_changes_go_on(held)


def step_count(change):
    change.apply(change.make())
    subject = change.make()
    with Steps() as steps:
        change.apply(subject)
    return steps.count


@pytest.fixture(autouse=True)
def codes(request, monkeypatch):
    if "with_codes" in request.node.name:
        monkeypatch.setattr(plan, "_SMALL", 0)


def interrupt_everywhere(name, stride, count):
    change = CHANGES[name]
    subject = change.make()
    before = answers(subject)
    total = step_count(change)
    change.apply(subject)
    after = answers(subject)
    for at in range(len(name) % stride, total, stride):
        interrupt(change, at, before, after)
        count("faults")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_made_or_not(name, count):
    interrupt_everywhere(name, STRIDE, count)


@pytest.mark.stress
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_made_or_not_at_every_step(name, count):
    interrupt_everywhere(name, 1, count)
