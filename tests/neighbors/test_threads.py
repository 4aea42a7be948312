"""Many readers beside one writer: each answer is right for one version of the index."""

import threading
import time
from itertools import count

import numpy as np
import pytest

from skmahal import SketchedMahalanobisClassifier, SketchedMahalanobisNeighbors

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
    """What was true, one entry a version; the last may not be true yet."""

    def __init__(self, U, X):
        self.all = [(U, X)]

    def announce(self, U, X):
        self.all.append((U, X))

    def holds(self, first, last, right):
        """Whether some version between the two has the right answer."""
        return any(right(*self.all[at]) for at in range(first, last + 1))


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


def share(index, versions, ask, readers, seconds):
    """Readers that ask, and a writer, until time is up; wrong answers and counts."""
    wrong, asked, stop = [], [0], threading.Event()
    failures = []

    def reader(seed):
        rng = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                first = len(versions.all) - 2
                right = ask(index, rng)
                last = len(versions.all) - 1
                if not versions.holds(max(first, 0), last, right):
                    wrong.append((first, last))
                asked[0] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=reader, args=(s,)) for s in range(readers)]
    for thread in threads:
        thread.start()
    done, end = 0, time.monotonic() + seconds
    steps = writer_steps(*versions.all[0], np.random.default_rng(1))
    for method, arguments, truth in steps:
        versions.announce(*truth)
        getattr(index, method)(**arguments)
        done += 1
        if time.monotonic() > end:
            break
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]
    return wrong, asked[0], done


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


def ask_exact_distances(index, rng):
    q = points(1, rng.integers(10**6))
    distances = index._engine.exact_all(q)[0]

    def right(U, X):
        truth = np.linalg.norm((X - q) @ U.T, axis=1)
        return len(truth) == len(distances) and np.allclose(distances, truth)

    return right


ASK = {
    "kneighbors": ask_neighbours,
    "sums": ask_sums,
    "distances": ask_exact_distances,
}


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("engine", PARAMS)
def test_every_answer_is_that_of_some_version(engine, ask):
    U, X = np.random.default_rng(0).normal(size=(K_ROWS, D)), points(N, 0)
    index = SketchedMahalanobisNeighbors(metric_learner=U, **PARAMS[engine]).fit(X)
    wrong, asked, done = share(index, Versions(U, X), ASK[ask], 3, SECONDS)
    assert not wrong
    assert min(asked, done) > 10
    index._engine.check()


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
