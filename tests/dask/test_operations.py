"""Every operation equals that of a local index, while metric and points change."""

import gc
import warnings
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.neighbors import NeighborhoodComponentsAnalysis

import skmahal
from skmahal.dask import (
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisRegressor,
)
from skmahal.dask._shards import Chunk, Edit, Log, Source, Wanted
from skmahal.online import LEGO

from .oracle import Beside


def problem(rng, n=400, d=6, dtype=np.float64):
    """Points of which many are equal, in different chunks, and a metric."""
    X = rng.normal(size=(n, d)).astype(dtype)
    X[3 * n // 4 :] = X[: n - 3 * n // 4]
    return X, rng.normal(size=(d, d))


def chunked(X, rows=150):
    return da.from_array(X, chunks=(rows, -1))


def queries(rng, X, number=12):
    return np.vstack([rng.normal(size=(number, X.shape[1])), X[:3]]).astype(X.dtype)


def random_change(rng, beside, step):
    """One of the changes of metric or points."""
    n, (k, d) = len(beside.X), beside.U.shape
    kind = step % 7
    if kind in (0, 1):
        p = int(rng.integers(1, 3))
        beside.low_rank(0.3 * rng.normal(size=(k, p)), rng.normal(size=(d, p)))
    elif kind == 2:
        beside.append(rng.normal(size=(int(rng.integers(1, 60)), d)))
    elif kind == 3:
        at = rng.permutation(n)[: int(rng.integers(1, 30))]
        beside.replace(at, beside.X[rng.permutation(n)[: len(at)]])
    elif kind == 4:
        beside.remove(rng.permutation(n)[: int(rng.integers(1, 40))])
    elif kind == 5:
        rows = rng.permutation(k)[:2]
        values = rng.normal(size=(2, d))
        beside.set_rows(rows, values, additive=bool(rng.integers(2)))
    else:
        beside.set_metric(rng.normal(size=(int(rng.integers(2, d + 2)), d)))


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_changes(client, seed):
    rng = np.random.default_rng(seed)
    X, U = problem(rng)
    index = SketchedMahalanobisNeighbors(metric_learner=U, client=client)
    beside = Beside(index.fit(chunked(X)), X, U)
    beside.check(queries(rng, X))
    for step in rng.permutation(7):
        random_change(rng, beside, int(step))
        beside.check(queries(rng, X))


def test_ties_of_whole_numbers_are_those_of_a_local_index(client, rng):
    X = rng.integers(3, size=(300, 3)).astype(float)
    index = SketchedMahalanobisNeighbors(client=client).fit(chunked(X, 70))
    local = skmahal.SketchedMahalanobisNeighbors().fit(X)
    for _ in range(2):
        for K in (1, 7, 80):
            ours, theirs = index.kneighbors(X[:40], K), local.kneighbors(X[:40], K)
            np.testing.assert_array_equal(ours[0], theirs[0])
            np.testing.assert_array_equal(ours[1], theirs[1])
        for one in (index, local):
            one.update_metric(low_rank=([1.0, 0.0, 2.0], [0.0, 1.0, 1.0]))


def test_only_queries_with_ties_are_searched_again(rng, monkeypatch):
    """One of many queries has a tie by chance, and the others need not wait for it."""
    X = rng.normal(size=(500, 3))
    X[100:120] = X[0]
    chunk = Chunk(X, None, X.dtype)
    source = Source(None, skmahal.SketchedMahalanobisNeighbors(n_jobs=1))
    chunk.follow(Wanted(Log((0,)), Log((0,))), source)
    numbers, search = [], chunk.index.kneighbors
    counted = lambda Q, K: numbers.append((len(Q), K)) or search(Q, K)  # noqa: E731
    monkeypatch.setattr(chunk.index, "kneighbors", counted)
    for exact in (False, True):
        D, at, _ = chunk.nearest(X[:6], 5, exact=exact)
        np.testing.assert_array_equal(at[0, :21], [0, *range(100, 120)])
        np.testing.assert_array_equal(at[1:, 0], np.arange(1, 6))
        assert (at[1:, 6:] == -1).all()
        np.testing.assert_array_equal(np.isinf(D), at == -1)
    assert numbers == 2 * [(6, 6), (1, 12), (1, 24)]


def test_float32_points_stay_float32(client, rng):
    X, U = problem(rng, dtype=np.float32)
    index = SketchedMahalanobisNeighbors(metric_learner=U, client=client)
    beside = Beside(index.fit(chunked(X)), X, U)
    beside.low_rank(rng.normal(size=6), rng.normal(size=6))
    assert index.kneighbors(X[:3])[0].dtype == np.float32
    beside.check(queries(rng, X), rtol=1e-6)


def test_many_changes_are_made_part_of_the_chunks(client, rng):
    """Edits do not pile up at the client, and steps of the metric do not either."""
    X, U = problem(rng)
    index = SketchedMahalanobisNeighbors(metric_learner=U, client=client)
    beside = Beside(index.fit(chunked(X)), X, U)
    for _ in range(4):
        beside.replace(np.arange(0, 400, 2), rng.normal(size=(200, 6)))
        beside.append(rng.normal(size=(100, 6)))
    for _ in range(20):
        beside.low_rank(0.1 * rng.normal(size=6), rng.normal(size=6))
    beside.check(queries(rng, X))
    state = index._state
    assert len(state.steps.changes) <= 16
    for shard in state.shards:
        assert sum(edit.size for edit in shard.edits.changes) <= 256


def test_rows_of_a_chunk_stay_while_its_index_is_edited(rng):
    """A chunk is sent without its lock, and so nothing writes to its rows."""
    X, y = rng.normal(size=(50, 3)), np.arange(50.0)
    chunk, steps, edits = Chunk(X, y, X.dtype), Log((0,)), Log((0,))
    source = Source(None, skmahal.SketchedMahalanobisNeighbors(n_jobs=1))
    chunk.follow(Wanted(edits, steps), source)
    want = X.copy()
    for stamp in range(1, 5):
        edits = edits.added(stamp, Edit("replace", np.array([stamp]), X[:1], y[:1]))
        edits = edits.added(-stamp, Edit("append", None, X[-2:], y[-2:]))
        edits = edits.added(stamp + 0.5, Edit("remove", np.array([0, 9])))
        want[stamp] = X[0]
        want = np.delete(np.vstack([want, X[-2:]]), [0, 9], axis=0)
        rebuilt, lock, held = chunk.edited(edits), chunk.lock, chunk.X.copy()
        chunk.follow(Wanted(edits, steps), source)
        np.testing.assert_array_equal(chunk.X, held)
        taken = chunk.edited(edits)
        assert chunk.lock is lock
        assert chunk.index is None
        np.testing.assert_array_equal(taken.X, want)
        np.testing.assert_array_equal(rebuilt.X, want)
        np.testing.assert_array_equal(rebuilt.y, taken.y)
        chunk, edits = taken, edits.last(0)


def test_queries_in_a_dask_array_are_answered_by_one(client, rng):
    X, U = problem(rng)
    index = SketchedMahalanobisNeighbors(metric_learner=U, client=client)
    beside = Beside(index.fit(chunked(X)), X, U)
    Q = queries(rng, X)
    D, at = index.kneighbors(chunked(Q, 6), 4)
    estimates = index.distances(chunked(Q, 6))
    exact, K = beside.distances(Q), 4
    # Lazy arrays are those of the index as it was when they were asked for.
    beside.low_rank(rng.normal(size=6), rng.normal(size=6))
    beside.remove([0, 399])
    assert at.chunks == ((6, 6, 3), (4,))
    order = np.argsort(exact, axis=1, kind="stable")[:, :K]
    np.testing.assert_array_equal(client.compute(at).result(), order)
    found = client.compute(D).result()
    np.testing.assert_allclose(found, np.take_along_axis(exact, order, 1), rtol=1e-9)
    np.testing.assert_allclose(client.compute(estimates).result(), exact, rtol=0.2)
    beside.check(Q)


def test_neighbours_of_all_points(client, rng):
    X, U = problem(rng, 200)
    index = SketchedMahalanobisNeighbors(3, metric_learner=U, client=client)
    beside = Beside(index.fit(chunked(X, 80)), X, U)
    D = beside.distances(X)
    np.fill_diagonal(D, np.inf)
    order = np.argsort(D, axis=1, kind="stable")[:, :3]
    at = index.kneighbors(return_distance=False)
    np.testing.assert_array_equal(client.compute(at).result(), order)


def test_an_online_learner_is_followed(client, rng):
    X, _ = problem(rng)
    y = (X[:, 0] > 0).astype(int)
    learner = LEGO(random_state=0).fit(X[:50], y[:50])
    index = SketchedMahalanobisNeighbors(
        metric_learner=FrozenEstimator(learner), client=client
    )
    index.fit(chunked(X))
    index.update_metric(learner)
    for start in range(50, 250, 50):
        learner.partial_fit(X[start : start + 50], y[start : start + 50])
        index.update_metric(learner)
        np.testing.assert_allclose(index.components_, learner.components_, atol=1e-10)
    local = skmahal.SketchedMahalanobisNeighbors(
        metric_learner=learner.components_
    ).fit(X)
    ours, theirs = index.kneighbors(X[:20] + 0.1), local.kneighbors(X[:20] + 0.1)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-7)


@pytest.mark.slow
def test_samples_are_proportional_to_the_distance(client, rng):
    """χ² over all points, which are in shards of very different distances."""
    X = rng.normal(size=(60, 3))
    X[:20] *= 8
    X[40:] *= 0.05
    index = SketchedMahalanobisNeighbors(client=client).fit(chunked(X, 20))
    q = X[50:51]
    D = np.linalg.norm(X - q, axis=1)
    for power in (1, 2):
        draws = index.sample(q, 40_000, power, random_state=power)[0]
        counts = np.bincount(draws, minlength=60)
        expected = 40_000 * D**power / (D**power).sum()
        far = expected > 5
        chi2 = ((counts - expected)[far] ** 2 / expected[far]).sum()
        dof = far.sum() - 1
        assert chi2 < dof + 5 * np.sqrt(2 * dof)
        assert counts[50] == 0


def test_samples_where_bounds_say_little(client):
    """One far point: nearly every walk is rejected, and the sums of distances serve."""
    X = np.zeros((3000, 2))
    X[-1] = 1.0
    index = SketchedMahalanobisNeighbors(client=client).fit(chunked(X, 1000))
    assert (index.sample(X[:2], 50, random_state=0) == 2999).all()
    draws = index.sample(np.zeros((1, 2)), 5, 2, random_state=0)
    assert (draws == 2999).all()
    index.update_points([2999], np.zeros((1, 2)))
    draws = index.sample(X[:1], 3000, random_state=0)
    assert len(np.unique(draws // 1000)) == 3


def test_classifier(client, rng):
    X, U = problem(rng)
    y = np.array(["no", "yes", "maybe"])[rng.integers(3, size=len(X))]
    ours = SketchedMahalanobisClassifier(
        7, weights="distance", metric_learner=U, client=client
    ).fit(chunked(X), da.from_array(y, chunks=130))
    theirs = skmahal.SketchedMahalanobisClassifier(
        7, weights="distance", metric_learner=U
    ).fit(X, y)
    Q = rng.normal(size=(30, 6))

    def check():
        np.testing.assert_array_equal(ours.predict(Q), theirs.predict(Q))
        shares = ours.predict_proba(Q), theirs.predict_proba(Q)
        np.testing.assert_allclose(*shares, atol=1e-9)
        lazy = client.compute([ours.predict(chunked(Q, 20))])[0].result()
        np.testing.assert_array_equal(lazy, theirs.predict(Q))
        np.testing.assert_array_equal(ours.classes_, theirs.classes_)

    check()
    new = rng.normal(size=(20, 6))
    for one in (ours, theirs):
        one.partial_fit(new, ["another one"] * 20)
        one.update_points([3, 200], new[:2] + 1, ["yes", "a longer name"])
        one.remove_points([0, 399, 401])
        one.update_metric(low_rank=(np.ones(6), np.ones(6)))
    check()
    local = ours.to_local()
    np.testing.assert_array_equal(local.predict(Q), theirs.predict(Q))
    assert ours.score(Q, theirs.predict(Q)) == 1


@pytest.mark.parametrize("outputs", [(), (2,)])
def test_regressor(client, rng, outputs):
    X, U = problem(rng)
    y = rng.normal(size=(len(X), *outputs))
    ours = SketchedMahalanobisRegressor(4, metric_learner=U, client=client)
    ours.fit(chunked(X), y)
    theirs = skmahal.SketchedMahalanobisRegressor(4, metric_learner=U).fit(X, y)
    Q = rng.normal(size=(30, 6))
    for one in (ours, theirs):
        one.partial_fit(Q[:3], np.ones((3, *outputs)))
        one.update_points([5], Q[4:5], np.zeros((1, *outputs)))
    np.testing.assert_allclose(ours.predict(Q), theirs.predict(Q), rtol=1e-9)
    lazy = client.compute(ours.predict(chunked(Q, 20))).result()
    np.testing.assert_allclose(lazy, theirs.predict(Q), rtol=1e-9)


def test_numpy_points_are_split(client, rng):
    X = rng.normal(size=(6000, 4))
    index = SketchedMahalanobisNeighbors(client=client).fit(X)
    # One shard for every thread, of 1,000 points or more.
    most = max(1000, -(-6000 // sum(client.ncores().values())))
    sizes = [len(X[start : start + most]) for start in range(0, 6000, most)]
    assert list(index.shard_sizes_) == sizes
    index.partial_fit(X[:100])
    assert len(index.shard_sizes_) == len(sizes) + 1
    index.partial_fit(X[100:150])
    assert index.shard_sizes_[-1] == 150
    Beside(index, np.vstack([X, X[:150]])).check(X[:5] + 0.1)


def test_data_frames(client, rng):
    dataframe, pandas = map(pytest.importorskip, ("dask.dataframe", "pandas"))
    X = rng.normal(size=(300, 3))
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    index = SketchedMahalanobisNeighbors(client=client)
    index.fit(dataframe.from_pandas(frame, npartitions=3))
    assert index.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(
        index.kneighbors(frame[:5], 1, return_distance=False)[:, 0], np.arange(5)
    )


def test_audit_and_guarantee(client, rng):
    X = rng.normal(size=(600, 400))
    index = SketchedMahalanobisNeighbors(m=32, R=3, random_state=0, client=client)
    index.fit(chunked(X, 200))
    local = skmahal.SketchedMahalanobisNeighbors(m=32, R=3, random_state=0).fit(X)
    audit, promise = index.audit(random_state=0), index.guarantee()
    assert audit.random.n_pairs == 1000 or audit.random.n_pairs > 950
    assert audit.passed == local.audit(random_state=0).passed
    assert (promise.n, promise.k, promise.m) == (600, 400, 32)
    assert promise.fixed.kneighbors == promise.adaptive.kneighbors == 0
    assert promise.fixed.distances >= 0.9 * local.guarantee().fixed.distances
    certain = SketchedMahalanobisNeighbors(adaptive=True, client=client)
    assert certain.fit(chunked(X, 200)).guarantee().adaptive.distances == 0


def test_estimates_promise_the_same_for_all_shards_together(client, rng):
    X = rng.normal(size=(300, 600))
    index = SketchedMahalanobisNeighbors(random_state=0, client=client)
    index.fit(chunked(X, 100))
    assert index.guarantee().fixed.distances <= index.delta
    assert index.guarantee().delta == index.delta


def test_threads_leave_the_filters_of_warnings(client, rng):
    X = rng.normal(size=(60, 3))
    index = SketchedMahalanobisNeighbors(client=client).fit(chunked(X, 20))
    before, want = list(warnings.filters), np.linalg.norm(X[0] - X[59])
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(index.pair_distances, [0] * 150, [59] * 150))
    np.testing.assert_allclose(found, want)
    assert warnings.filters == before


def test_a_clone_has_the_same_client(client):
    index = SketchedMahalanobisNeighbors(3, client=client)
    assert clone(index).client is client
    learner = FrozenEstimator(NeighborhoodComponentsAnalysis())
    assert clone(index.set_params(metric_learner=learner)).client is client


def test_without_a_client_a_cluster_is_started_and_closed(rng):
    X = rng.normal(size=(50, 3))
    index, other = (SketchedMahalanobisNeighbors(2).fit(X) for _ in range(2))
    used = index.client_
    index.fit(X).kneighbors(X)
    assert index.client_ is other.client_ is used
    np.testing.assert_allclose(index.distances(X[:2]).compute()[0, 0], 0)
    index.close()
    other.kneighbors(X)
    del other
    gc.collect()
    assert used.status == "closed"
    with pytest.raises(NotFittedError):
        index.kneighbors(X)
