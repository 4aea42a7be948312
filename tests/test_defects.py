"""Defects that were found by trying, each with data that showed it.

Those of metric learners in a search by two processes are in `test_metric_learner.py`,
and those of POLA in `online`.
"""

import os
import pickle
import tracemalloc
import warnings
from importlib.util import find_spec

import numpy as np
import pytest
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from skmahal import (
    MetricMaintenance,
    SketchedMahalanobisNeighbors,
    components_from,
)

from .oracle import Oracle
from .scripts import run_script

TYPES = {np.float32: 1e-4, np.float64: 1e-9}
each_type = pytest.mark.parametrize("dtype", TYPES)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def assert_right(index, X, Q, K=5):
    """Neighbours, distances and sums are those of brute force, and so after loading."""
    rtol, oracle = TYPES[X.dtype.type], Oracle(index.components_, X)
    truth = oracle.query_all(Q)
    best = np.sort(truth, axis=1)[:, :K]
    index.check()
    for one in (index, pickle.loads(pickle.dumps(index))):
        distances, indices = one.kneighbors(Q, K)
        named = np.take_along_axis(truth, indices, axis=1)
        np.testing.assert_allclose(named, best, rtol=1e-12, atol=0)
        np.testing.assert_allclose(distances, best, rtol=rtol, atol=0)
        np.testing.assert_allclose(one.distances(Q), truth, rtol=rtol, atol=0)
        sums = oracle.sub_sum(Q, 0, len(X))
        np.testing.assert_allclose(one.sum_distances(Q), sums, rtol=1e-9)


# --- numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["rows", "low_rank"])
@pytest.mark.parametrize(
    ("dtype", "n", "few", "factor"),
    [
        (np.float32, 2000, 15, 1e6),
        (np.float64, 2000, 15, 1e12),
        (np.float32, 1000, 9, 1e4),
        (np.float64, 1000, 9, 1e10),
    ],
)
def test_a_column_of_few_points_is_scaled_up_and_back(dtype, n, few, factor, change):
    """Up to 1 % of the points drifted without bound."""
    X, I = normal(n, 20).astype(dtype), np.eye(20)
    X[:, 0], X[:few, 0] = 0, 10 * normal(few, seed=1)
    index = SketchedMahalanobisNeighbors(metric_learner=I, random_state=0).fit(X)
    index.kneighbors(X[:3])
    index.sample(X[:2])
    for scale in (factor, 1.0):
        if change == "rows":
            index.update_metric(scale * I[:1], rows=[0])
        else:
            step = (scale - index.components_[0, 0]) * I[:, :1]
            index.update_metric(low_rank=(step, I[:, :1]))
        index.kneighbors(X[:1])
    assert_right(index, X, X[: 2 * few])


@pytest.mark.parametrize(
    ("dtype", "offset"), [(np.float32, 1e6), (np.float64, 1e9), (np.float64, 1e12)]
)
def test_a_window_of_points_wanders_far_away(dtype, offset):
    """The origin of sums was not moved."""
    X, new = normal(600, 8).astype(dtype), (offset + 3 * normal(600, 8)).astype(dtype)
    index = SketchedMahalanobisNeighbors(random_state=0).fit(X)
    for start in range(0, 600, 50):
        index.update_points(np.arange(start, start + 50), new[start : start + 50])
        index.sum_distances(X[:2])
    assert_right(index, new, (offset + 3 * normal(40, 8, seed=2)).astype(dtype))


@each_type
@pytest.mark.parametrize("metric", ["diagonal", "dense", "of few rows"])
def test_a_constant_feature_of_large_weight(metric, dtype):
    """Sums of squares lost what is not constant."""
    X = normal(500, 12).astype(dtype)
    X[:, 2] = 1.1
    U = {"diagonal": np.eye(12), "dense": normal(12, 12), "of few rows": normal(3, 12)}
    U = U[metric]
    U[:, 2] *= 1e8
    Q = X[:5].copy()
    Q[:, :2] += dtype(0.1)
    assert_right(SketchedMahalanobisNeighbors(metric_learner=U).fit(X), X, Q)


@each_type
def test_points_that_come_far_away_and_stay(dtype):
    X = (normal(400, 6) + 1e6).astype(dtype)
    index = SketchedMahalanobisNeighbors().fit(normal(100, 6).astype(dtype))
    index.sample(X[:1])
    index.partial_fit(X).remove_points(np.arange(100))
    assert_right(index, X, X[:5] + dtype(0.25))


@each_type
@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize(("d", "seed"), [(1, 34), (1, 36), (2, 3), (2, 31)])
def test_long_histories_of_few_features(d, seed, storage, dtype):
    """Norms were off after some histories of points and scalings."""
    rng, I = np.random.default_rng(seed), np.eye(d)
    X = rng.normal(size=(20, d)).astype(dtype)
    index = SketchedMahalanobisNeighbors(2, metric_learner=I).fit(storage(X))

    def new(count):
        rows = rng.normal(size=(count, d)) * 10.0 ** rng.integers(-3, 4)
        return rows.astype(dtype)

    for _ in range(60):
        kind = rng.integers(5)
        if kind == 0:
            X = np.vstack([X, new(3)])
            index.partial_fit(storage(X[-3:]))
        elif kind == 1 and len(X) > 8:
            gone = rng.permutation(len(X))[:3]
            X = np.delete(X, gone, axis=0)
            index.remove_points(gone)
        elif kind == 2:
            factor = 10.0 ** rng.integers(-4, 5)
            column = index.components_[:, :1]
            index.update_metric(low_rank=((factor - 1) * column, I[:, :1]))
            if abs(np.log10(abs(index.components_[0, 0]))) > 6:
                index.update_metric(I[:1], rows=[0])
        elif kind == 3:
            place = rng.integers(len(X))
            X[place] = new(1)
            index.update_points([place], storage(X[place : place + 1]))
        else:
            index.kneighbors(X[:2])
            index.sum_distances(X[:1])
    index.check()
    truth = Oracle(index.components_, X).query_all(X[:6])
    atol = TYPES[dtype] / 100 * truth.max()
    np.testing.assert_allclose(index.distances(X[:6]), truth, TYPES[dtype], atol)
    sums = (truth**2).sum(axis=1)
    np.testing.assert_allclose(index.sum_distances(X[:6]), sums, rtol=TYPES[dtype])


# --- metrics that are mistaken for others ---------------------------------------------


def test_a_symmetric_matrix_is_used_as_U_with_a_warning():
    X = normal(60, 4)
    V = np.cov(X.T)
    index = SketchedMahalanobisNeighbors(metric_learner=V)
    with pytest.warns(UserWarning, match=r"components_from\(A=.*VI=.*V=") as caught:
        index.fit(X)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="symmetric"):
        index.update_metric(V)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = SketchedMahalanobisNeighbors(metric_learner={"U": V}).fit(X)
        index.update_metric({"U": V})
        whitened = SketchedMahalanobisNeighbors(metric_learner={"V": V}).fit(X)
    np.testing.assert_array_equal(same.components_, V)
    expected = Oracle(components_from(V=V), X).query_all(X[:3])
    np.testing.assert_allclose(whitened.distances(X[:3]), expected, atol=1e-9)


def test_a_whitening_pca_whitens():
    X = normal(80, 6) * [9, 5, 3, 2, 1, 1]
    learner = PCA(3, whiten=True)
    index = SketchedMahalanobisNeighbors(metric_learner=learner).fit(X)
    Z = PCA(3, whiten=True).fit(X).transform(X)
    np.testing.assert_allclose(
        index.distances(X[:5]), Oracle(None, Z).query_all(Z[:5]), atol=1e-9
    )


# --- sizes ----------------------------------------------------------------------------


@pytest.mark.slow
def test_as_many_neighbours_as_points():
    """The time was quadratic: minutes for as many points as here."""
    run_script(
        """
        X = np.random.default_rng(0).normal(size=(300_000, 2)).astype(np.float32)
        for storage in (np.asarray, sparse.csr_matrix):
            index = SketchedMahalanobisNeighbors().fit(storage(X))
            distances, indices = index.kneighbors(X[:1], n_neighbors=len(X))
            assert (np.diff(distances[0]) >= 0).all()
            assert (np.sort(indices[0]) == np.arange(len(X))).all()
            truth = np.linalg.norm(X[indices[0]] - X[0], axis=1)
            np.testing.assert_allclose(distances[0], truth, rtol=1e-5, atol=1e-5)
        """,
        cpu_seconds=30,
        # Without numba, so many points are worth a warning.
        warnings=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 3])
def test_very_sparse_points_are_never_made_dense(rank):
    rng = np.random.default_rng(0)
    columns = rng.integers(100_000, size=(4000, 30))
    parts = rng.normal(size=columns.size), columns.ravel(), np.arange(0, 120_001, 30)
    X = sparse.csr_matrix(parts, shape=(4000, 100_000))
    X.sum_duplicates()
    U = rng.normal(size=(rank, 100_000)) if rank else None
    index = SketchedMahalanobisNeighbors(metric_learner=U)
    used, (distances, indices) = peak(lambda: index.fit(X).kneighbors(X[:20], 3))
    assert used < 100e6
    if U is None:
        truth = NearestNeighbors(n_neighbors=3, algorithm="brute").fit(X)
        expected = truth.kneighbors(X[:20])[0]
    else:
        Z = X @ U.T
        expected = np.sort(Oracle(None, Z).query_all(Z[:20]), axis=1)[:, :3]
    np.testing.assert_allclose(distances, expected, atol=1e-6)
    np.testing.assert_array_equal(indices[:, 0], np.arange(20))


def peak(function):
    """Bytes that a call holds at most, and what it returns."""
    tracemalloc.start()
    try:
        returned = function()
        return tracemalloc.get_traced_memory()[1], returned
    finally:
        tracemalloc.stop()


def test_more_sketches_than_memory_are_refused():
    X = normal(2000, 300)
    with pytest.raises(MemoryError, match=r"L=100000000 sketches .* GB"):
        SketchedMahalanobisNeighbors(m=20, L=10**8).fit(X)
    with pytest.raises(MemoryError, match=r"L=100000000 sketches .* GB"):
        MetricMaintenance(None, X, m=20, L=10**8)


@pytest.mark.slow
def test_no_query_warns_without_compiled_loops():
    """Infinities met in a product of the bounds."""
    run_script(
        """
        rng = np.random.default_rng(0)
        for dtype, sizes in ((np.float32, (-30, 30)), (np.float64, (-140, 140))):
            refused = 0
            for _ in range(150):
                scales = 10.0 ** rng.integers(*sizes, size=3)
                n, d = rng.integers(2, 60), rng.integers(1, 9)
                with np.errstate(over="ignore", under="ignore"):
                    X = (scales[0] * rng.normal(size=(n, d))).astype(dtype)
                    Q = (scales[1] * rng.normal(size=(3, d))).astype(dtype)
                U = scales[2] * rng.normal(size=(3, d))
                params = {"m": 1, "L": 3, "R": 1, "lead": 0}
                for search in ("exact", "certified"):
                    index = SketchedMahalanobisNeighbors(
                        2, metric_learner=U, n_candidates=search, **params
                    )
                    try:
                        index.fit(X)
                        distances, _ = index.kneighbors(Q)
                        index.update_metric(low_rank=(U[:, :1], U[0, :, None]))
                        index.distances(Q)
                        index.radius_neighbors(Q, float(distances[0, -1]))
                    except ValueError as error:
                        refused += 1
                        assert "too large" in str(error) or "overflow" in str(error)
            assert 0 < refused < 200, refused
        """,
        numba=False,
    )


# --- compilation ----------------------------------------------------------------------


@pytest.mark.skipif(find_spec("numba") is None, reason="nothing to compile")
class TestCompilation:
    """In a process whose cache of compiled loops is empty."""

    @pytest.mark.slow
    def test_a_signal_handler_queries_while_the_first_query_compiles(self, tmp_path):
        """And the query after an interruption: the compiler was not interrupted."""
        done = run_script(
            """
            import signal

            X = np.random.default_rng(0).normal(size=(200, 5))
            index = SketchedMahalanobisNeighbors(3).fit(X)
            seen = []

            def query(*_):
                seen.append(index.kneighbors(X[:4], return_distance=False))
                raise KeyboardInterrupt

            signal.signal(signal.SIGALRM, query)
            signal.setitimer(signal.ITIMER_REAL, 1.5)
            try:
                index.kneighbors(X[:4])
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("nothing was compiled")
            after = index.kneighbors(X[:4], return_distance=False)
            assert len(seen) == 1
            assert (seen[0] == after).all()
            assert (after[:, 0] == np.arange(4)).all()
            """,
            cache=tmp_path,
        )
        lines = done.stderr.splitlines()
        assert [line for line in lines if "compil" in line] == lines
        assert len(lines) == 1

    @pytest.mark.stress
    @pytest.mark.parametrize("after", [0.2, 1.0, 2.0, 4.0])
    def test_an_interruption_of_the_compiler_ends_nothing(self, after, tmp_path):
        run_script(
            f"""
            import signal

            X = np.random.default_rng(0).normal(size=(200, 5))
            index = SketchedMahalanobisNeighbors(3).fit(X)
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, {after})
            try:
                index.kneighbors(X[:4])
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                print("interrupted")
            if {after} != 4:
                found = index.kneighbors(X[:4], return_distance=False)
                assert (found[:, 0] == np.arange(4)).all()
            """,
            cache=tmp_path,
        )

    @pytest.mark.stress
    def test_warming_up_leaves_nothing_to_compile(self, tmp_path):
        script = """
            skmahal.warm_up()
            from skmahal._core import _numba

            loops = [f for f in vars(_numba).values() if hasattr(f, "signatures")]
            before = [len(loop.signatures) for loop in loops]
            for dtype in (np.float32, np.float64):
                X = np.random.default_rng(0).normal(size=(9000, 40)).astype(dtype)
                for U in (None, np.eye(40), np.eye(40)[:7]):
                    index = SketchedMahalanobisNeighbors(3, metric_learner=U).fit(X)
                    for Q in (X[:1], X[:100]):
                        index.kneighbors(Q), index.radius_neighbors(Q, 1.0)
                        index.kneighbors(Q, 5000)
            print([len(loop.signatures) for loop in loops] == before)
        """
        for _ in range(2):
            done = run_script(script, cache=tmp_path)
            assert done.stdout.split() == ["True"]


# --- threads, processes and signals ---------------------------------------------------


@pytest.mark.slow
def test_threads_read_while_an_estimator_is_fitted_and_copied():
    """Every result is that of one of the fits."""
    run_script(
        """
        import copy, threading

        rng = np.random.default_rng(0)
        fits = [rng.normal(size=(n, d)) for n, d in ((300, 4), (200, 4))]
        labels = [np.resize(["a", "b"], 300), np.resize(["x", "y", "z"], 200)]
        Q = rng.normal(size=(4, 4))
        knn = SketchedMahalanobisClassifier(3)
        expected = []
        for X, y in zip(fits, labels):
            fresh = SketchedMahalanobisClassifier(3).fit(X, y)
            found = fresh.kneighbors(Q)[1].tolist()
            expected.append((fresh.predict(Q).tolist(), found))
        knn.fit(fits[0], labels[0])
        stop, failures, counts = threading.Event(), [], [0] * 3

        def read(me):
            try:
                while not stop.is_set():
                    one = [knn, copy.copy(knn), copy.deepcopy(knn)][me]
                    predicted = one.predict(Q).tolist()
                    assert predicted in [e[0] for e in expected], predicted
                    found = one.kneighbors(Q)[1].tolist()
                    assert found in [e[1] for e in expected], found
                    counts[me] += 1
            except BaseException as error:
                failures.append(error)
                raise

        readers = [threading.Thread(target=read, args=(me,)) for me in range(3)]
        for reader in readers:
            reader.start()
        at = 0
        while min(counts) < 20 and not failures or at < 30:
            at += 1
            knn.fit(fits[at % 2], labels[at % 2])
        stop.set()
        for reader in readers:
            reader.join()
        assert not failures
        """
    )


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_is_forked_while_threads_are_at_work():
    """None of their locks is held in the child, and no change is made by half."""
    run_script(
        """
        import os, signal, threading, time, traceback

        rng = np.random.default_rng(0)
        X, Q = rng.normal(size=(400, 30)), rng.normal(size=(3, 30))
        params = {"m": 2, "L": 3, "R": 1, "lead": 2, "random_state": 0}
        index = SketchedMahalanobisNeighbors(2, n_jobs=2, **params).fit(X)
        # numba has a lock of its own while it compiles.
        skmahal.warm_up()
        index.kneighbors(Q), index.distances(Q), index.sample(Q), index.check()

        done = threading.Event()

        def query():
            while not done.is_set():
                index.kneighbors(Q), index.distances(Q), index.sample(Q)

        def change():
            # Points move together: a version of which only some have moved is wrong.
            rng = np.random.default_rng(1)
            while not done.is_set():
                index.update_points(np.arange(400), X + rng.integers(9))
                index.update_metric(low_rank=(np.eye(30, 1), np.zeros((30, 1))))
                index.refresh_sketches()

        threads = [threading.Thread(target=work) for work in (query, query, change)]
        for thread in threads:
            thread.start()
        statuses = []
        for _ in range(12):
            time.sleep(0.02)
            child = os.fork()
            if not child:
                signal.alarm(60)
                status = 1
                try:
                    index.check()
                    shift = index._maintenance.X - X
                    assert np.ptp(shift) < 1e-9, shift
                    index.update_points([0], Q[:1]).partial_fit(Q)
                    index.update_metric(2 * np.eye(30)[:1], rows=[0])
                    distances, found = index.kneighbors(Q[:1])
                    assert found.tolist() == [[0, 400]] and not distances.any()
                    index.distances(Q), index.sample(Q)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            statuses.append(os.waitpid(child, 0)[1])
        # Python ends the process if a thread comes back from C++ while it shuts down.
        done.set()
        for thread in threads:
            thread.join()
        assert not any(statuses), statuses
        """,
        warnings=False,
    )


@pytest.mark.slow
def test_thousands_of_signals_during_updates_and_queries(count):
    """Handlers query the index, or raise; changes are made as a whole or not at all."""
    hit = signals(1500)
    count("signals", hit)


@pytest.mark.stress
def test_many_more_signals(count):
    count("signals", signals(60_000))


def signals(number):
    done = run_script(
        f"""
        import signal

        rng = np.random.default_rng(0)
        X, Q = rng.normal(size=(60, 8)), rng.normal(size=(3, 8))
        params = {{"m": 1, "L": 3, "R": 3, "lead": 1, "random_state": 0, "n_jobs": 1}}
        index = SketchedMahalanobisNeighbors(2, metric_learner=np.eye(8), **params)
        index.fit(X)

        class Interrupted(BaseException):
            pass

        count, inside, armed = 0, False, False

        def handler(*_):
            global count, inside, armed
            count += 1
            if inside or not armed:
                return
            if count % 2:
                inside = True
                try:
                    index.kneighbors(Q)
                except RuntimeError as error:
                    assert "while it changes" in str(error), error
                finally:
                    inside = False
            if count % 3 == 0:
                armed = False
                raise Interrupted

        def attempt(call, *args, **kwargs):
            global armed
            armed = True
            try:
                call(*args, **kwargs)
                armed = False
            except Interrupted:
                pass

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 4e-4, 4e-4)
        U, interrupted = np.eye(8), 0
        while count < {number}:
            W, V = 0.01 * rng.normal(size=(8, 1)), rng.normal(size=(8, 1))
            places, new = rng.permutation(len(X))[:5], rng.normal(size=(5, 8))
            moved, kept = X.copy(), np.delete(X, places, axis=0)
            moved[places] = new
            changes = [
                (index.update_points, (places, new), {{}}, (U, moved)),
                (index.update_metric, (), {{"low_rank": (W, V)}}, (U + W @ V.T, X)),
                (index.partial_fit, (new,), {{}}, (U, np.vstack([X, new]))),
                (index.remove_points, (places,), {{}}, (U, kept)),
                (index.refresh_sketches, (), {{}}, (U, X)),
                (index.distances, (Q,), {{}}, (U, X)),
                (index.sample, (Q,), {{}}, (U, X)),
            ]
            size = len(X)
            skip = [3] if size < 40 else [2] if size > 80 else []
            at = rng.choice([at for at in range(len(changes)) if at not in skip])
            call, args, kwargs, after = changes[at]
            attempt(call, *args, **kwargs)
            distances = index.kneighbors(Q, 3)[0]
            now = index.components_, np.array(index._maintenance.X)
            for state in ((U, X), after):
                if all(a.shape == b.shape and np.allclose(a, b, rtol=1e-9, atol=1e-12)
                       for a, b in zip(now, state)):
                    break
            else:
                raise AssertionError(f"half a change: {{call.__name__}}")
            interrupted += state is not after
            U, X = now
            truth = np.sort(Oracle(U, X).query_all(Q), axis=1)[:, :3]
            np.testing.assert_allclose(distances, truth, rtol=1e-9)
        signal.setitimer(signal.ITIMER_REAL, 0)
        index.check()
        assert interrupted > 0
        print(count)
        """
    )
    return int(done.stdout)
