"""Numbers of any type, shape and layout give the same results, and the right ones."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator

from skmahal import (
    MahalanobisSketch,
    MetricMaintenance,
    SketchedMahalanobisNeighbors,
)
from skmahal._core import bounds
from skmahal.online import LEGO, POLA, OnlineITML

from .layouts import DENSE, LAYOUTS, SPARSE, UNTYPED, contents
from .neighbors.cases import ROUNDING, points_of
from .oracle import Oracle, assert_nearest

# A certified search is wrong once in 10^10 queries; long runs have less than 10^5.
DELTA = 1e-10
THOROUGH = 6  # times as many examples under stress
STRESSED = {}


def fuzzed(examples, **strategies):
    """A test of as many examples, and one of many more for `make stress`."""

    def decorate(check):
        many = settings(max_examples=THOROUGH * examples)
        STRESSED[check.__name__] = THOROUGH * examples, many(given(**strategies)(check))
        return settings(max_examples=examples)(given(**strategies)(check))

    return decorate


seeds = st.integers(0, 2**32 - 1)
DTYPES = ["f8", "f4", "f2", ">f8", ">f4", "g", "i1", ">i2", "i4", "i8", "u1", "u8", "?"]
SPARSE_DTYPES = ["f8", "f4", "i1", "i4", "i8", "?"]


class Problem(NamedTuple):
    """Points, queries and a metric, before they are put into any layout."""

    X: np.ndarray
    Q: np.ndarray
    U: np.ndarray | None
    rng: np.random.Generator

    @property
    def held(self):
        """The type in which an index holds the points."""
        return np.float32 if self.X.dtype == np.float32 else np.float64

    def oracle(self):
        """Brute force over the points in the type in which the index holds them."""
        return Oracle(self.U, self.X.astype(self.held))

    def distances(self):
        return self.oracle().query_all(self.Q.astype(self.held))

    def tolerance(self):
        oracle = self.oracle()
        rows = np.vstack([oracle.X, self.Q.astype(float)]) @ oracle.U.T
        return 8 * ROUNDING[self.held] * np.sqrt((rows**2).sum(axis=1).max())


def numbers(rng, kind, shape):
    """Normal, tied, mostly zero, or all the same."""
    if kind == "normal":
        return rng.normal(size=shape)
    if kind == "sparse":
        return rng.normal(size=shape) * (rng.random(shape) < 0.3)
    if kind == "tied":
        return rng.integers(-3, 4, size=shape).astype(float)
    if kind == "clustered":
        return clustered(rng, shape)
    return np.full(shape, 2.0)


def clustered(rng, shape):
    """Groups far apart, of which sketches exclude all but one."""
    centres = 30 * np.random.default_rng(0).normal(size=(16, shape[1]))
    return centres[rng.integers(16, size=shape[0])] + rng.normal(size=shape)


def typed(values, dtype):
    """In this type; what is not floating gets a few whole numbers."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return values.astype(dtype)
    return (np.rint(np.abs(values)) if dtype.kind == "u" else np.rint(values)).astype(
        dtype
    )


@st.composite
def problems(draw, dtypes=DTYPES, sizes=(1, 60)):
    rng = np.random.default_rng(draw(seeds))
    kind = draw(st.sampled_from(["clustered", "normal", "sparse", "tied", "same"]))
    n, d = draw(st.integers(*sizes)), draw(st.sampled_from([1, 2, 3, 7, 30]))
    k = draw(st.sampled_from([None, 1, 2, d, 2 * d + 3, 25]))
    if kind == "clustered":
        n, d, k = 4 * sizes[1], 30, draw(st.sampled_from([None, 25, 63]))
    count = draw(st.integers(1, 9))
    X = typed(numbers(rng, kind, (n, d)), draw(st.sampled_from(dtypes)))
    Q = typed(numbers(rng, kind, (count, d)), draw(st.sampled_from(dtypes)))
    Q[: count // 3] = typed(X[rng.integers(n, size=count // 3)].astype(float), Q.dtype)
    U = None if k is None else rng.normal(size=(k, d)).astype(np.float32)
    return Problem(X, Q, U if U is None else U.astype(np.float64), rng)


@st.composite
def settings_of_index(draw):
    L = draw(st.sampled_from([1, 3, 10]))
    return {
        "m": draw(st.sampled_from(["auto", 1, 2, 5])),
        "L": L,
        "R": draw(st.sampled_from(["auto", 1, L])),
        "eps": draw(st.sampled_from([0.05, 0.2, 0.9])),
        "lead": draw(st.sampled_from(["auto", 0, 1, 3])),
        "sketch": draw(
            st.sampled_from(["gaussian", "rademacher", "countsketch", "srht"])
        ),
        "n_candidates": draw(st.sampled_from(["exact", "certified"])),
        "n_jobs": draw(st.sampled_from([None, 1, 2, -1])),
        "delta": DELTA,
        "random_state": draw(st.integers(0, 9)),
    }


layouts = st.sampled_from(list(LAYOUTS))
dense_layouts = st.sampled_from([*DENSE, *UNTYPED])
problems_of_sparse = problems(SPARSE_DTYPES)


def fitted(problem, params, X=None):
    index = SketchedMahalanobisNeighbors(metric_learner=problem.U, **params)
    index.fit(problem.X if X is None else X)
    return index


def assert_untouched(*inputs):
    for value, before in inputs:
        assert contents(value) == before


@fuzzed(
    80,
    problem=problems_of_sparse,
    params=settings_of_index(),
    K=st.integers(1, 12),
    stored=layouts,
    queried=layouts,
)
def test_neighbours_are_those_of_the_oracle(problem, params, K, stored, queried):
    if stored in UNTYPED:
        problem = problem._replace(X=problem.X.astype(np.float64))
    X, Q = LAYOUTS[stored](problem.X), LAYOUTS[queried](problem.Q)
    before = contents(X), contents(Q)
    index = fitted(problem, params, X)
    K = min(K, len(problem.X))
    distances, indices = index.kneighbors(Q, K)
    assert distances.shape == indices.shape == (len(problem.Q), K)
    assert (distances.dtype, indices.dtype) == (problem.held, np.intp)
    assert (np.diff(distances, axis=1) >= 0).all()
    exact, atol = problem.distances(), problem.tolerance()
    assert_nearest(distances, indices, exact, rtol=0, atol=atol)
    assert_untouched((X, before[0]), (Q, before[1]))


@fuzzed(
    40,
    problem=problems_of_sparse,
    params=settings_of_index(),
    share=st.floats(0, 1),
    stored=layouts,
    queried=layouts,
)
def test_points_within_a_radius_are_those_of_the_oracle(
    problem, params, share, stored, queried
):
    if stored in UNTYPED:
        problem = problem._replace(X=problem.X.astype(np.float64))
    all_exact, atol = problem.distances(), problem.tolerance()
    radius = float(np.quantile(all_exact, share))
    index = fitted(problem, params, LAYOUTS[stored](problem.X))
    found = index.radius_neighbors(LAYOUTS[queried](problem.Q), radius)
    for distances, indices, exact in zip(*found, all_exact, strict=True):
        assert (distances.dtype, indices.dtype) == (problem.held, np.intp)
        inside = np.isin(np.arange(len(exact)), indices)
        assert inside[exact < radius - atol].all()
        assert not inside[exact > radius + atol].any()
        np.testing.assert_allclose(distances, exact[indices], rtol=0, atol=atol)
        assert (np.diff(indices) > 0).all()


@pytest.mark.slow
@fuzzed(5, problem=problems(sizes=(1, 20)), params=settings_of_index())
def test_a_layout_of_points_changes_no_bit_of_an_answer(problem, params):
    Q = np.ascontiguousarray(problem.Q)
    for layouts, plain in ((DENSE, problem.X), (UNTYPED, problem.X.astype(float))):
        index = fitted(problem, params, np.ascontiguousarray(plain))
        for layout in layouts.values():
            assert_same_results(index, Q, fitted(problem, params, layout(problem.X)), Q)


@pytest.mark.slow
@fuzzed(5, problem=problems(SPARSE_DTYPES, sizes=(1, 20)), params=settings_of_index())
def test_a_sparse_format_changes_no_bit_of_an_answer(problem, params):
    index = fitted(problem, params, sparse.csr_matrix(problem.X))
    Q = np.ascontiguousarray(problem.Q)
    for layout in SPARSE.values():
        assert_same_results(index, Q, fitted(problem, params, layout(problem.X)), Q)


@pytest.mark.slow
@fuzzed(5, problem=problems(SPARSE_DTYPES, sizes=(1, 20)), params=settings_of_index())
def test_a_layout_of_queries_changes_no_bit_of_an_answer(problem, params):
    """Nor does it matter whether they are sparse."""
    index, Q = fitted(problem, params), np.ascontiguousarray(problem.Q)
    for layout in LAYOUTS.values():
        given_queries = layout(problem.Q)
        before = contents(given_queries)
        assert_same_results(index, Q, index, given_queries)
        assert contents(given_queries) == before


@pytest.mark.slow
@fuzzed(5, problem=problems(sizes=(1, 20)), params=settings_of_index())
def test_a_layout_of_the_metric_changes_no_bit_of_an_answer(problem, params):
    if problem.U is None:
        problem = problem._replace(U=np.eye(problem.X.shape[1]))
    index = fitted(problem, params)
    for layout in {**DENSE, **UNTYPED}.values():
        U = layout(problem.U)
        other = fitted(problem._replace(U=U), params)
        assert_same_results(index, problem.Q, other, problem.Q)
        other.update_metric(2 * problem.U).update_metric(U)
        np.testing.assert_array_equal(other.components_, index.components_)


def assert_same_results(index, Q, other, queried):
    """Two indices over the same points give the same results for the same queries."""
    n = index.n_samples_fit_
    assert other.engine_ == index.engine_
    for result in (
        lambda index, Q: index.kneighbors(Q, min(3, n)),
        lambda index, Q: index.distances(Q),
        lambda index, Q: index.sum_distances(Q),
        lambda index, Q: index.sample(Q, 3, random_state=0),
        lambda index, Q: index.kneighbors_graph(Q, 1, mode="distance").toarray(),
        lambda index, Q: index.pair_distances(0, n // 2),
    ):
        found, expected = result(other, queried), result(index, Q)
        np.testing.assert_array_equal(found, expected, strict=True)


@fuzzed(30, problem=problems(), params=settings_of_index(), stored=dense_layouts)
def test_an_index_keeps_a_copy(problem, params, stored):
    X = LAYOUTS[stored](problem.X)
    index = fitted(problem, params, X)
    expected = index.distances(problem.Q)
    if isinstance(X, np.ndarray) and X.flags.writeable:
        X[...] = 0
        np.testing.assert_array_equal(index.distances(problem.Q), expected)
    found = index.components_
    found[...] = 9
    np.testing.assert_array_equal(index.distances(problem.Q), expected)


@fuzzed(
    30,
    problem=problems(),
    params=settings_of_index(),
    pairs=st.integers(1, 20),
    many_rows=st.booleans(),
)
def test_what_is_exact_is_exact_and_estimates_keep_their_promise(
    problem, params, pairs, many_rows
):
    """Estimates promise something if m and R are chosen for it."""
    params = {**params, "m": "auto", "R": "auto"}
    if many_rows:
        U = problem.rng.normal(size=(300, problem.X.shape[1]))
        problem = problem._replace(U=U)
        params |= {"eps": 0.9, "sketch": "gaussian", "lead": 0}
        rest = params["L"], params["eps"], params["delta"], params["sketch"]
        params["m"] = bounds.sketch_rows(len(problem.X), *rest)
    index = fitted(problem, params)
    assert index.engine_ == "sketched" or not many_rows
    exact, atol, n = problem.distances(), problem.tolerance(), len(problem.X)
    eps = 0 if index.engine_ == "exact" else params["eps"]
    found = index.distances(problem.Q)
    assert (found.shape, found.dtype) == (exact.shape, problem.held)
    assert (np.abs(found - exact) <= eps * exact + atol).all()
    i, j = problem.rng.integers(n, size=(2, pairs))
    between = problem.oracle().query_pair(i, j)
    assert (np.abs(index.pair_distances(i, j) - between) <= eps * between + atol).all()
    start, stop = np.sort(problem.rng.integers(n + 1, size=2))
    for power in (1, 2):
        sums = index.sum_distances(problem.Q, int(start), int(stop), power)
        expected = (exact[:, start:stop] ** power).sum(axis=1)
        slack = n * atol * max(1, exact.max()) ** (power - 1) * 2
        np.testing.assert_allclose(sums, expected, rtol=1e-6, atol=slack)
    draws = index.sample(problem.Q, 4, random_state=0)
    assert (draws.shape, draws.dtype.kind) == ((len(problem.Q), 4), "i")
    # A point at distance zero is drawn only if all points are there.
    apart = np.take_along_axis(exact, draws, axis=1) > 0
    assert (apart | (exact.max(axis=1, keepdims=True) <= atol)).all()


@fuzzed(
    40,
    problem=problems(["f8", "f4"], sizes=(2, 60)),
    params=settings_of_index(),
    stored=layouts,
    added=layouts,
)
def test_points_are_added_and_replaced_in_any_layout(problem, params, stored, added):
    problem = problem._replace(Q=problem.Q.astype(problem.X.dtype))
    index = fitted(problem, params, LAYOUTS[stored](problem.X))
    held = problem.X.dtype
    more, other = problem.X[:2] + 1, problem.X[:2] - 1
    more_of_them = LAYOUTS[added](more)
    before = contents(more_of_them)
    index.partial_fit(more_of_them)
    index.update_points([-3, 0], LAYOUTS[added](other))
    oracle = Oracle(index.components_, problem.X.astype(held))
    oracle.append(more.astype(held))
    oracle.update_x(other.astype(held), [-3, 0])
    exact = oracle.query_all(problem.Q.astype(held))
    atol = problem._replace(X=oracle.X.astype(held)).tolerance()
    assert_nearest(*index.kneighbors(problem.Q, 2), exact, rtol=0, atol=atol)
    np.testing.assert_array_equal(points_of(index), oracle.X)
    assert_untouched((more_of_them, before))


@fuzzed(40, problem=problems(["f8", "f4"]), params=settings_of_index())
def test_queries_are_answered_in_the_type_of_the_points(problem, params):
    index = fitted(problem, params)
    for dtype in (np.float64, np.float32):
        Q = problem.Q.astype(dtype)
        assert_same_results(index, Q.astype(problem.held), index, Q)


@fuzzed(
    40,
    problem=problems(["f8", "f4"]),
    params=settings_of_index(),
    budget=st.integers(1, 30),
)
def test_a_budget_gives_true_distances(problem, params, budget):
    K = min(len(problem.X), budget, 4)
    index = fitted(problem, {**params, "n_candidates": max(K, budget)})
    distances, indices = index.kneighbors(problem.Q, K)
    named = np.take_along_axis(problem.distances(), indices, axis=1)
    np.testing.assert_allclose(distances, named, rtol=0, atol=problem.tolerance())
    assert all(len(set(row)) == K for row in indices.tolist())


LEARNERS = {
    "PCA": lambda X: PCA(1),
    "frozen": lambda X: FrozenEstimator(PCA(1).fit(X)),
    "covariance": lambda X: EmpiricalCovariance(),
    "LEGO": lambda X: LEGO(random_state=0),
    "POLA": lambda X: POLA(random_state=0),
    "lists": lambda X: np.eye(X.shape[1]).tolist(),
    "whole numbers": lambda X: np.eye(X.shape[1], dtype=int),
}


@fuzzed(
    20,
    problem=problems(["f8", "f4"], sizes=(10, 60)),
    learner=st.sampled_from(list(LEARNERS)),
    stored=st.sampled_from(list(DENSE)),
)
def test_neighbours_under_any_learner_are_those_of_the_oracle(problem, learner, stored):
    assume(np.ptp(problem.X, axis=0).min() > 0)
    y = np.arange(len(problem.X)) % 3
    learner = LEARNERS[learner](problem.X)
    index = SketchedMahalanobisNeighbors(metric_learner=learner, random_state=0)
    index.fit(LAYOUTS[stored](problem.X), y)
    problem = problem._replace(U=index.components_)
    found = index.kneighbors(problem.Q, 3)
    assert_nearest(*found, problem.distances(), rtol=0, atol=problem.tolerance())


@pytest.mark.filterwarnings("ignore:m=7 is more than the")
@fuzzed(
    40,
    problem=problems_of_sparse,
    m=st.sampled_from(["auto", 1, 7]),
    kind=st.sampled_from(["gaussian", "rademacher", "countsketch", "srht"]),
    stored=layouts,
    queried=layouts,
)
def test_a_sketch_is_a_product_in_any_layout(problem, m, kind, stored, queried):
    U = problem.U
    if kind == "srht" and m != "auto":
        m = 1
    X, Q = LAYOUTS[stored](problem.X), LAYOUTS[queried](problem.Q)
    before = contents(X), contents(Q)
    sketch = MahalanobisSketch(m, metric_learner=U, sketch=kind, random_state=0)
    Z = sketch.fit(X).transform(Q)
    assert isinstance(Z, np.ndarray)
    assert Z.shape == (len(problem.Q), sketch.m_)
    product = problem.Q.astype(float) @ sketch.components_.T
    size = np.abs(problem.Q.astype(float)) @ np.abs(sketch.components_.T)
    assert (np.abs(Z - product) <= 1e-5 * size + 1e-30).all()
    assert_untouched((X, before[0]), (Q, before[1]))


@fuzzed(
    30,
    seed=seeds,
    d=st.integers(1, 8),
    dtype=st.sampled_from(["f8", "f4", "f2", "i4", ">f8", "?"]),
    kind=st.sampled_from([LEGO, OnlineITML, POLA]),
    layout=st.sampled_from([name for name in [*DENSE, *UNTYPED] if name != "frame"]),
)
def test_learners_learn_the_same_from_any_layout(seed, d, dtype, kind, layout):
    rng = np.random.default_rng(seed)
    flat = typed(2 * rng.normal(size=(30, 2 * d)), dtype)
    if layout in UNTYPED:
        flat = flat.astype(np.float64)
    y = np.resize([1, -1], 30)
    given = LAYOUTS[layout](flat)
    if isinstance(given, np.ndarray):
        given = given.reshape(30, 2, d)
    else:
        given = [[row[:d], row[d:]] for row in given]
    before = contents(given)
    one = kind(random_state=0).fit(np.ascontiguousarray(flat).reshape(30, 2, d), y)
    two = kind(random_state=0).fit(given, y)
    np.testing.assert_array_equal(one.components_, two.components_)
    np.testing.assert_array_equal(one.pair_distance(given), two.pair_distance(given))
    assert_untouched((given, before))


@fuzzed(
    40,
    problem=problems(),
    m=st.sampled_from(["auto", 2]),
    stored=dense_layouts,
    queried=dense_layouts,
)
def test_the_structure_takes_arrays_in_any_layout(problem, m, stored, queried):
    # A frame has columns of many types, and no type of its own.
    untyped = stored in UNTYPED or stored == "frame"
    plain = problem.X.astype(np.float64) if untyped else problem.X
    params = {"m": m, "L": 3, "delta": DELTA, "seed": 0}
    one = MetricMaintenance(problem.U, np.ascontiguousarray(plain), **params)
    other = MetricMaintenance(problem.U, LAYOUTS[stored](problem.X), **params)
    Q, given = np.ascontiguousarray(problem.Q), LAYOUTS[queried](problem.Q)
    np.testing.assert_array_equal(other.query_all(given), one.query_all(Q))
    np.testing.assert_array_equal(other.exact_all(given), one.exact_all(Q))
    other.check()


INTEGERS = ["i1", "u1", "i2", ">i4", "i8", "u8"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_positions_may_be_integers_of_any_type(dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    index = SketchedMahalanobisNeighbors(1).fit(X)
    low = 0 if np.dtype(dtype).kind == "u" else -100
    i = rng.permutation(np.arange(low, 100))[:5].astype(dtype)
    places = i.astype(int)
    np.testing.assert_array_equal(
        index.pair_distances(i, 0), index.pair_distances(places, 0)
    )
    index.remove_points(i)
    np.testing.assert_array_equal(points_of(index), np.delete(X, places, axis=0))


@pytest.mark.stress
@pytest.mark.parametrize("name", STRESSED)
def test_many_more_examples(name, count):
    examples, check = STRESSED[name]
    check()
    count("examples of inputs", examples)
