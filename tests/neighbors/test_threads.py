"""Many readers beside one writer: each answer is right for one version of the index."""

import threading
import time
from itertools import count

import numpy as np
import pytest

from skmahal import SketchedMahalanobisClassifier, SketchedMahalanobisNeighbors
from skmahal._core.state import State

D, K_ROWS, N = 30, 20, 300
PARAMS = {
    "exact": {"m": 1000},
    "sketched": {"m": 6, "L": 3, "lead": 2, "delta": 1e-9, "random_state": 0},
}
SECONDS = 2.0


def points(n, seed):
    rng = np.random.default_rng(seed)
    centres = 5 * np.random.default_rng(0).normal(size=(12, D))
    return centres[rng.integers(12, size=n)] + rng.normal(size=(n, D))


class Versions:
    """What was true, by version; the last may not be true yet.

    A reader takes the versions it has seen to be the earliest that explain its answers,
    none before the one it had seen last.
    """

    def __init__(self, truth, readers):
        self._truths, self._last = {0: truth}, 0
        self._seen = [0] * readers

    @property
    def now(self):
        """The last that is surely true."""
        return max(0, self._last - 1)

    def announce(self, truth):
        self._truths[self._last + 1] = truth
        self._last += 1
        for old in [at for at in self._truths if at < min(self._seen)]:
            del self._truths[old]

    def explain(self, reader, first, right):
        """Whether some version since `first`, and not before the last seen, is right.

        `first` is at least what the reader had seen when it asked.
        """
        for at in range(max(first, self._seen[reader]), self._last + 1):
            if right(*self._truths[at]):
                self._seen[reader] = at
                return True
        return False


def writer_steps(U, X, rng):
    """An endless sequence of changes: method, arguments, and what is true then."""
    for seed in count(100):
        W, V = 0.05 * rng.normal(size=(K_ROWS, 1)), rng.normal(size=(D, 1))
        U = U + W @ V.T
        yield "update_metric", {"low_rank": (W, V)}, (U, X)
        new = points(8, seed)
        X = np.vstack([X, new[:5]])
        yield "partial_fit", {"X": new[:5]}, (U, X)
        gone = rng.permutation(N)[:5]
        X = np.delete(X, gone, axis=0)
        yield "remove_points", {"indices": gone}, (U, X)
        U = rng.normal(size=(K_ROWS, D))
        yield "update_metric", {"metric": U}, (U, X)
        X = X.copy()
        X[[0, 7, 99]] = new[5:]
        yield "update_points", {"indices": [0, 7, 99], "X": new[5:]}, (U, X)
        yield "refresh_sketches", {}, (U, X)


def share(index, truth, asks, seconds, steps):
    """Readers that ask, and a writer, until time is up; wrong answers and counts."""
    versions = Versions(truth, len(asks))
    wrong, asked, failures, stop = [], [0] * len(asks), [], threading.Event()

    def reader(me):
        rng = np.random.default_rng(me)
        try:
            while not stop.is_set():
                first = versions.now
                right = asks[me](index, rng)
                if not versions.explain(me, first, right):
                    wrong.append((me, first))
                asked[me] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=reader, args=(me,)) for me in range(len(asks))]
    for thread in threads:
        thread.start()
    done, end = 0, time.monotonic() + seconds
    for method, arguments, truth in steps:
        versions.announce(truth)
        getattr(index, method)(**arguments)
        done += 1
        if time.monotonic() > end or failures:
            break
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]
    return wrong, asked, done


def ask_neighbours(index, rng):
    Q = points(2, rng.integers(10**6))
    distances, indices = index.kneighbors(Q, 3)

    def right(U, X):
        if indices.max() >= len(X):
            return False
        truth = np.linalg.norm((X - Q[:, np.newaxis]) @ U.T, axis=2)
        expected = np.sort(truth, axis=1)[:, :3]
        found = np.take_along_axis(truth, indices, axis=1)
        return np.allclose(distances, expected) and np.allclose(found, expected)

    return right


def ask_sums(index, rng):
    q = points(1, rng.integers(10**6))
    total = index.sum_distances(q)[0]

    def right(U, X):
        return np.isclose(total, (((X - q) @ U.T) ** 2).sum(), rtol=1e-7)

    return right


def ask_distances(index, rng):
    q = points(1, rng.integers(10**6))
    sketched = index.engine_ == "sketched"
    distances = (index._engine.exact_all if sketched else index.distances)(q)[0]

    def right(U, X):
        truth = np.linalg.norm((X - q) @ U.T, axis=1)
        return len(truth) == len(distances) and np.allclose(distances, truth)

    return right


ASKS = [ask_neighbours, ask_distances, ask_neighbours, ask_sums] * 2


def assert_answers_are_of_versions(engine, seconds, count):
    U, X = np.random.default_rng(0).normal(size=(K_ROWS, D)), points(N, 0)
    index = SketchedMahalanobisNeighbors(metric_learner=U, **PARAMS[engine]).fit(X)
    steps = writer_steps(U, X, np.random.default_rng(1))
    wrong, asked, done = share(index, (U, X), ASKS, seconds, steps)
    assert not wrong
    assert min(asked) > 1
    assert done > 10
    index.check()
    count("queries checked", sum(asked))
    count("changes beside them", done)


@pytest.mark.parametrize("engine", PARAMS)
def test_every_answer_is_that_of_some_version(engine, count):
    assert_answers_are_of_versions(engine, SECONDS, count)


@pytest.mark.stress
@pytest.mark.parametrize(("engine", "seconds"), [("exact", 30), ("sketched", 60)])
def test_every_answer_is_that_of_some_version_for_long(engine, seconds, count):
    assert_answers_are_of_versions(engine, seconds, count)


# All points but one are at the query: a draw can only be the other.


def steps_around_one_other(rng, k):
    """Changes that leave one point apart from the others, and where it is then."""
    n, other = 300, 150
    while True:
        W, V = 0.1 * rng.normal(size=(k, 1)), rng.normal(size=(D, 1))
        yield "update_metric", {"low_rank": (W, V)}, (n, other)
        gone = rng.choice(np.delete(np.arange(n), other), size=20, replace=False)
        n, other = n - 20, other - int((gone < other).sum())
        yield "remove_points", {"indices": gone}, (n, other)
        # About 300, so that there is always a place far behind the one apart.
        more = 300 - n + rng.integers(-5, 6)
        n += more
        yield "partial_fit", {"X": np.zeros((more, D))}, (n, other)
        if other < 60:
            i = n - 100
            X = np.zeros((2, D))
            X[1] = 1
            yield "update_points", {"indices": [other, i], "X": X}, (n, i)
            other = i


def ask_a_draw(index, rng):
    (drawn,) = index.sample(np.zeros((1, D)), 3, random_state=int(rng.integers(2**31)))

    def right(n, other):
        return (drawn == other).all()

    return right


def assert_draws_are_of_versions(engine, seconds, count):
    X = np.zeros((300, D))
    X[150] = 1
    U = np.eye(D)[:K_ROWS] if engine == "exact" else np.eye(D)
    index = SketchedMahalanobisNeighbors(metric_learner=U, **PARAMS[engine]).fit(X)
    steps = steps_around_one_other(np.random.default_rng(1), len(U))
    wrong, asked, done = share(index, (300, 150), [ask_a_draw] * 8, seconds, steps)
    assert not wrong
    assert min(asked) > 1
    assert done > 10
    count("draws checked", 3 * sum(asked))


@pytest.mark.parametrize("engine", PARAMS)
def test_every_draw_is_that_of_some_version(engine, count):
    assert_draws_are_of_versions(engine, SECONDS / 2, count)


@pytest.mark.stress
def test_every_draw_is_that_of_some_version_for_long(count):
    assert_draws_are_of_versions("sketched", 30, count)


LONG_CHANGES = {
    "refresh_sketches": lambda index: index.refresh_sketches(),
    "a new metric": lambda index: index.update_metric(2 * normal_metric(K_ROWS, 5)),
    "a metric of fewer rows": lambda index: index.update_metric(normal_metric(12, 6)),
    "a metric for the other engine": lambda i: i.update_metric(normal_metric(2, 7)),
    "points for which sketches are too small": lambda i: i.partial_fit(points(N, 9)),
}


def normal_metric(k, seed):
    return np.random.default_rng(seed).normal(size=(k, D))


@pytest.mark.parametrize("name", LONG_CHANGES)
def test_readers_do_not_wait_for_what_is_prepared(name, monkeypatch):
    """The writer waits, before it has built anything, until a reader has answers."""
    promise = PARAMS["sketched"]
    if "points" in name:
        promise = {"eps": 0.9, "delta": 0.1, "L": 1, "lead": 0, "random_state": 0}
    index = SketchedMahalanobisNeighbors(
        3, metric_learner=normal_metric(K_ROWS, 0), n_jobs=1, **promise
    ).fit(points(N, 0))
    assert index.engine_ == "sketched"
    q = points(2, 1)
    index.sample(q)
    prepare, preparing, answered = State.prepare, threading.Event(), threading.Event()
    waited = []

    def wait_for_a_reader(state, images, jobs=1):
        if threading.current_thread() is writer:
            preparing.set()
            waited.append(answered.wait(30))
        prepare(state, images, jobs)

    monkeypatch.setattr(State, "prepare", wait_for_a_reader)
    writer = threading.Thread(target=LONG_CHANGES[name], args=(index,))
    writer.start()
    assert preparing.wait(30)
    for ask in (index.kneighbors, index.distances, index.sample):
        ask(q)
    answered.set()
    writer.join(60)
    assert not writer.is_alive()
    assert waited
    assert all(waited)
    index.check()


def test_labels_are_those_of_the_neighbours_that_were_found():
    """Labels say which cluster a point is of; one version's are another's no more."""
    X = np.repeat(10 * np.eye(10), 20, axis=0)
    knn = SketchedMahalanobisClassifier(1).fit(X, np.repeat(np.arange(10), 20))
    wrong, stop = [], threading.Event()

    def reader():
        while not stop.is_set():
            found = knn.predict(10 * np.eye(10))
            if (found != np.arange(10)).any():
                wrong.append(found)

    threads = [threading.Thread(target=reader) for _ in range(3)]
    for thread in threads:
        thread.start()
    end, rng = time.monotonic() + SECONDS, np.random.default_rng(0)
    while time.monotonic() < end:
        gone = np.sort(rng.permutation(200)[:100])
        labels = knn._engine.targets[gone, 0]
        kept = np.setdiff1d(np.arange(200), gone)
        if len(np.unique(knn._engine.targets[kept, 0])) == 10:
            knn.remove_points(gone)
            knn.partial_fit(10 * np.eye(10)[labels], labels)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not wrong


OF_ALL_POINTS = {
    "kneighbors": lambda index: index.kneighbors()[0],
    "graph": lambda index: index.kneighbors_graph(mode="distance").toarray(),
    "within": lambda index: index.radius_neighbors_graph(mode="distance").toarray(),
}


@pytest.mark.parametrize("engine", PARAMS)
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_answers_about_all_points_are_those_of_some_version(engine, n_jobs):
    """One point comes and goes; an answer that mixes both is like neither."""
    X = points(60, 0)
    asked = {"radius": 8.0, "n_jobs": n_jobs, **PARAMS[engine]}
    index = SketchedMahalanobisNeighbors(3, **asked).fit(X)
    right = {}
    for name, ask in OF_ALL_POINTS.items():
        right[name] = [ask(index), ask(index.remove_points(59))]
        index.partial_fit(X[59:])
    stop, wrong, answered = threading.Event(), [], []

    def reader(name):
        while not stop.is_set():
            found = OF_ALL_POINTS[name](index)
            answered.append(name)
            if not any(
                found.shape == truth.shape and np.allclose(found, truth)
                for truth in right[name]
            ):
                wrong.append((name, found.shape))

    threads = [threading.Thread(target=reader, args=[name]) for name in right]
    for thread in threads:
        thread.start()
    end = time.monotonic() + SECONDS / 2
    while time.monotonic() < end:
        index.remove_points(59)
        index.partial_fit(X[59:])
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert set(answered) == set(right)
    assert not wrong


@pytest.mark.parametrize("engine", PARAMS)
@pytest.mark.parametrize("count", [1, 4])
def test_points_that_go_before_a_query_begins_are_not_its_neighbours(
    engine, count, monkeypatch
):
    """They are removed when the number of neighbours has been looked at."""
    U = normal_metric(K_ROWS, 0)
    index = SketchedMahalanobisNeighbors(
        20, metric_learner=U, n_jobs=1, **PARAMS[engine]
    ).fit(points(N, 0))
    batches = index._batches

    def remove_then_go_on(*args, **kwargs):
        index.remove_points(np.arange(10, N))
        return batches(*args, **kwargs)

    monkeypatch.setattr(index, "_batches", remove_then_go_on)
    with pytest.raises(ValueError, match="from 1 to 10, got 20"):
        index.kneighbors(points(count, 1))
