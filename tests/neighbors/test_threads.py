"""Many readers beside a writer: every result is that of one version of the index.

Nothing is said of how many results there are: on a busy machine they are few.
"""

import threading
import time
from itertools import count as count_from

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from threadpoolctl import threadpool_info, threadpool_limits

from skmahal import (
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisRegressor,
)
from skmahal._core.threads import one_blas_thread

D, K_ROWS, N = 30, 20, 300
CERTIFIED = {
    "m": 6,
    "L": 3,
    "R": 1,
    "lead": 2,
    "delta": 1e-9,
    "random_state": 0,
    "n_candidates": "certified",
}
PARAMS = {"exact": {}, "certified": CERTIFIED}
SECONDS = 2.0
PATIENCE = 120

any_way = pytest.mark.parametrize("search", PARAMS)


def points(n, seed):
    rng = np.random.default_rng(seed)
    centres = 5 * np.random.default_rng(0).normal(size=(12, D))
    return centres[rng.integers(12, size=n)] + rng.normal(size=(n, D))


class Versions:
    """Metric and points by version; the last may not be in the index yet.

    A reader is assumed to have seen the earliest versions that explain its results,
    none before the one it had seen last.
    """

    def __init__(self, first, readers):
        self._held, self._last = {0: first}, 0
        self._seen = [0] * readers

    @property
    def now(self):
        """The last that is surely in the index."""
        return max(0, self._last - 1)

    def announce(self, next_one):
        self._held[self._last + 1] = next_one
        self._last += 1
        for old in [at for at in self._held if at < min(self._seen)]:
            del self._held[old]

    def explain(self, reader, first, right):
        """Whether a version since `first`, and not before the last seen, is right.

        `first` is at least what the reader had seen when it began.
        """
        for at in range(max(first, self._seen[reader]), self._last + 1):
            if right(*self._held[at]):
                self._seen[reader] = at
                return True
        return False


def writer_steps(U, X, rng):
    """An endless sequence of changes: method, arguments, and U and X afterwards."""
    for seed in count_from(100):
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


def share(index, first, queries, seconds, steps):
    """Readers that query and a writer, until time is up; wrong results and counts."""
    versions = Versions(first, len(queries))
    wrong, done, failures, stop = [], [0] * len(queries), [], threading.Event()

    def reader(me):
        rng = np.random.default_rng(me)
        try:
            while not stop.is_set():
                first = versions.now
                right = queries[me](index, rng)
                if not versions.explain(me, first, right):
                    wrong.append((me, first))
                done[me] += 1
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=reader, args=(me,)) for me in range(len(queries))
    ]
    for thread in threads:
        thread.start()
    changes, end = 0, time.monotonic() + seconds
    for method, arguments, after in steps:
        versions.announce(after)
        getattr(index, method)(**arguments)
        changes += 1
        if time.monotonic() > end or failures:
            break
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if failures:
        raise failures[0]
    return wrong, sum(done), changes


def query_neighbours(index, rng):
    Q = points(2, rng.integers(10**6))
    distances, indices = index.kneighbors(Q, 3)

    def right(U, X):
        if indices.max() >= len(X):
            return False
        exact = np.linalg.norm((X - Q[:, np.newaxis]) @ U.T, axis=2)
        expected = np.sort(exact, axis=1)[:, :3]
        found = np.take_along_axis(exact, indices, axis=1)
        return np.allclose(distances, expected) and np.allclose(found, expected)

    return right


def query_radius(index, rng):
    q = points(1, rng.integers(10**6))
    graph = index.radius_neighbors_graph(q, 8.0, mode="distance")

    def right(U, X):
        exact = np.linalg.norm((X - q) @ U.T, axis=1)
        within = np.flatnonzero(exact <= 8.0)
        same = graph.shape[1] == len(X) and np.array_equal(graph.indices, within)
        return same and np.allclose(graph.data, exact[within])

    return right


def query_sums(index, rng):
    q = points(1, rng.integers(10**6))
    total = index.sum_distances(q)[0]

    def right(U, X):
        return np.isclose(total, (((X - q) @ U.T) ** 2).sum(), rtol=1e-7)

    return right


def query_all(index, rng):
    q = points(1, rng.integers(10**6))
    distances = index.distances(q)[0]
    sketched = index.m_ * index.R_ < K_ROWS

    def right(U, X):
        exact = np.linalg.norm((X - q) @ U.T, axis=1)
        return len(exact) == len(distances) and (
            sketched or np.allclose(distances, exact)
        )

    return right


QUERIES = [query_neighbours, query_all, query_radius, query_sums] * 2


def assert_results_are_of_versions(search, seconds, count):
    U, X = np.random.default_rng(0).normal(size=(K_ROWS, D)), points(N, 0)
    index = SketchedMahalanobisNeighbors(metric_learner=U, **PARAMS[search]).fit(X)
    steps = writer_steps(U, X, np.random.default_rng(1))
    wrong, done, changes = share(index, (U, X), QUERIES, seconds, steps)
    assert not wrong
    index.check()
    count("queries checked", done)
    count("changes beside them", changes)


@pytest.mark.slow
@any_way
def test_every_result_is_that_of_some_version(search, count):
    assert_results_are_of_versions(search, SECONDS, count)


@pytest.mark.stress
@pytest.mark.parametrize(("search", "seconds"), [("exact", 30), ("certified", 60)])
def test_every_result_is_that_of_some_version_for_long(search, seconds, count):
    assert_results_are_of_versions(search, seconds, count)


# All points but one are at the query: a draw can only be the other.


def steps_around_one_other(rng, k):
    """Changes that leave one point apart from the others, and its position."""
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


def query_a_draw(index, rng):
    (drawn,) = index.sample(np.zeros((1, D)), 3, random_state=int(rng.integers(2**31)))

    def right(n, other):
        return (drawn == other).all()

    return right


@pytest.mark.parametrize(
    "seconds", [SECONDS / 2, pytest.param(30, marks=pytest.mark.stress)]
)
def test_every_draw_is_that_of_some_version(seconds, count):
    X = np.zeros((300, D))
    X[150] = 1
    index = SketchedMahalanobisNeighbors(metric_learner=np.eye(D)[:K_ROWS]).fit(X)
    steps = steps_around_one_other(np.random.default_rng(1), K_ROWS)
    wrong, done, _ = share(index, (300, 150), [query_a_draw] * 8, seconds, steps)
    assert not wrong
    count("draws checked", 3 * done)


# --- targets, graphs and new fits beside readers --------------------------------------


def beside(write, *reads, seconds=SECONDS):
    """Call `write` until time is up, with each of `reads` on a thread of its own."""
    stop, failures = threading.Event(), []

    def reader(read):
        try:
            while not stop.is_set():
                read()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=reader, args=(read,)) for read in reads]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end and not failures:
            write()
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


def test_labels_are_those_of_the_neighbours_that_were_found():
    """Labels are those of groups; labels of one version are wrong for another."""
    groups, rng = np.repeat(np.arange(10), 20), np.random.default_rng(0)
    X = 10 * np.eye(10)
    knn = SketchedMahalanobisClassifier(1).fit(X[groups], groups)
    held = [groups]

    def write():
        gone = np.sort(rng.permutation(200)[:100])
        kept = np.delete(held[0], gone)
        if len(np.unique(kept)) == 10:
            labels = held[0][gone]
            knn.remove_points(gone)
            knn.partial_fit(X[labels], labels)
            held[0] = np.concatenate([kept, labels])

    def read():
        assert_array_equal(knn.predict(X), np.arange(10))

    beside(write, read, read, read)


OF_ALL_POINTS = {
    "kneighbors": lambda index: index.kneighbors()[0],
    "graph": lambda index: index.kneighbors_graph(mode="distance").toarray(),
    "within": lambda index: index.radius_neighbors_graph(mode="distance").toarray(),
}


@pytest.mark.slow
@any_way
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_results_about_all_points_are_those_of_some_version(search, n_jobs):
    """One point is added and removed; a result that mixes both is like neither."""
    X = points(60, 0)
    params = {"radius": 8.0, "n_jobs": n_jobs, **PARAMS[search]}
    index = SketchedMahalanobisNeighbors(3, **params).fit(X)
    expected = {}
    for name, query in OF_ALL_POINTS.items():
        expected[name] = [query(index), query(index.remove_points(59))]
        index.partial_fit(X[59:])

    def write():
        index.remove_points(59)
        index.partial_fit(X[59:])

    def reader_of(name):
        def read():
            found = OF_ALL_POINTS[name](index)
            assert any(
                found.shape == one.shape and np.allclose(found, one)
                for one in expected[name]
            )

        return read

    beside(write, *map(reader_of, expected), seconds=SECONDS / 2)


def test_a_new_fit_beside_readers_is_seen_as_a_whole():
    """The two fits differ in points, classes, outputs, metric and features."""
    X, names = 10 * np.eye(10), np.array(list("abcdefghij"))
    knn = SketchedMahalanobisClassifier(1).fit(X, names)
    fits = [
        lambda: knn.fit(X[::-1], names[::-1]),
        lambda: knn.fit(X[:, :9], np.stack([names] * 2, axis=1)),
        lambda: knn.set_params(metric_learner=None).fit(X[3:], names[3:]),
        lambda: knn.fit(X, names),
    ]
    turns = count_from()

    def write():
        fits[next(turns) % 4]()

    def read():
        try:
            found = knn.predict(X)
        except ValueError as error:
            assert "features" in str(error)  # noqa: PT017
            return
        assert found.shape in ((10,), (10, 2))
        assert_array_equal(found.reshape(10, -1)[3:, 0], names[3:])

    def read_graph():
        # The points of this fit or of that, never the neighbours of another.
        try:
            graph = knn.kneighbors_graph(X, 1)
        except ValueError as error:
            assert "features" in str(error)  # noqa: PT017
            return
        assert graph.shape in ((10, 10), (10, 7))

    beside(write, read, read_graph, read)


def test_writers_on_several_threads_take_turns():
    index = SketchedMahalanobisNeighbors().fit(points(50, 0))
    start = index.n_samples_fit_
    done, lock = [0], threading.Lock()

    def add():
        index.partial_fit(points(1, 1))
        with lock:
            done[0] += 1

    def move():
        index.update_metric(low_rank=(np.full((D, 1), 1e-3), np.ones((D, 1))))

    def replace():
        index.update_points([0, 3], points(2, 2))

    beside(add, add, move, replace, seconds=SECONDS / 2)
    assert index.n_samples_fit_ == start + done[0]
    index.check()


def test_weights_that_change_the_index_are_refused():
    """A query may not change what it reads, which would never end."""
    X = points(40, 0)

    def weights(distances):
        knn.remove_points(0)
        return np.ones_like(distances)

    knn = SketchedMahalanobisRegressor(3, weights=weights).fit(X, X[:, 0])
    with pytest.raises(RuntimeError, match="cannot change the index"):
        knn.predict(X[:2])
    assert knn.set_params(weights="uniform").predict(X[:2]).shape == (2,)
    assert knn.n_samples_fit_ == 40


@any_way
@pytest.mark.parametrize("queries", [1, 4])
def test_points_that_are_removed_before_a_search_are_not_found(search, queries):
    """They are removed while the queries are converted."""
    index = SketchedMahalanobisNeighbors(20, **PARAMS[search]).fit(points(N, 0))

    class Queries:
        def __array__(self, dtype=None, copy=None):
            index.remove_points(np.arange(10, index.n_samples_fit_))
            return points(queries, 1)

    with pytest.raises(ValueError, match="from 1 to 10, the number of points, got 20"):
        index.kneighbors(Queries())


def blas_threads():
    return {
        one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"
    }


def test_the_threads_of_blas_are_given_back_by_the_last_reader():
    # Private: which of two queries ends first is otherwise left to chance.
    entered, end = threading.Event(), threading.Event()

    def read():
        with one_blas_thread():
            entered.set()
            end.wait()

    with threadpool_limits(2, user_api="blas"):
        before, other = blas_threads(), threading.Thread(target=read)
        with one_blas_thread():
            assert blas_threads() == {1}
            other.start()
            entered.wait()
        assert blas_threads() == {1}
        end.set()
        other.join()
        assert blas_threads() == before
