"""Sketches keep squared norms on average, and are what they say they are."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.linalg import hadamard
from scipy.stats import norm

from skmahal._core.projections import (
    SKETCHES,
    SubsampledHadamard,
    draw,
    toarray,
    walsh_hadamard,
)

any_sketch = pytest.mark.parametrize("sketch", SKETCHES)
any_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def squared_norms(sketch, m, v, n, seed=0):
    rng = np.random.default_rng(seed)
    sketches = (draw(sketch, m, len(v), rng) for _ in range(n))
    return np.array([np.sum((P @ v) ** 2) for P in sketches])


@any_sketch
@pytest.mark.parametrize("k", [1, 5, 8, 33])
def test_squared_norms_are_kept_on_average(sketch, k):
    n, m = 2000, min(k, 4)
    v = np.random.default_rng(k).normal(size=k)
    mean = squared_norms(sketch, m, v / np.linalg.norm(v), n).mean()
    assert abs(mean - 1) <= norm.isf(1e-6) * math.sqrt(2 / m / n) + 1e-12


@any_sketch
@pytest.mark.parametrize("v", [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
def test_squared_norms_vary_by_at_most_two_over_m(sketch, v):
    n, m = 4000, 3
    squares = squared_norms(sketch, m, np.array(v) / np.linalg.norm(v), n)
    spread = np.std((squares - 1) ** 2) / math.sqrt(n)
    assert np.mean((squares - 1) ** 2) <= 2 / m + norm.isf(1e-6) * spread


@any_sketch
@any_dtype
def test_shape_and_dtype_are_those_asked_for(sketch, dtype):
    P = draw(sketch, 3, 5, np.random.default_rng(0), dtype)
    assert P.shape == toarray(P).shape == (3, 5)
    assert P.dtype == toarray(P).dtype == dtype
    assert (P @ np.ones((5, 2), dtype)).dtype == dtype


@any_sketch
@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 4), (6, 0)])
def test_products_are_those_of_the_dense_matrix(sketch, shape):
    P = draw(sketch, 4, 6, np.random.default_rng(1))
    M = np.random.default_rng(2).normal(size=shape)
    product = P @ M
    assert isinstance(product, np.ndarray)
    assert_allclose(product, toarray(P) @ M, atol=1e-13)


@any_sketch
@any_dtype
def test_sketches_are_linear(sketch, dtype):
    rng = np.random.default_rng(3)
    P = draw(sketch, 8, 20, rng, dtype)
    x, z = rng.normal(size=(2, 20)).astype(dtype)
    tolerance = 100 * np.finfo(dtype).eps
    assert_allclose(P @ (2 * x - z), 2 * (P @ x) - P @ z, atol=tolerance)


@any_sketch
def test_the_same_generator_state_draws_the_same_sketch(sketch):
    first, second, other = (
        toarray(draw(sketch, 8, 40, np.random.default_rng(seed))) for seed in (5, 5, 6)
    )
    assert_array_equal(first, second)
    assert np.any(first != other)


@any_sketch
def test_both_precisions_draw_the_same_sketch(sketch):
    double, single = (
        toarray(draw(sketch, 8, 40, np.random.default_rng(5), dtype))
        for dtype in (np.float64, np.float32)
    )
    assert_allclose(single, double, rtol=1e-6)


def test_countsketch_is_sparse_with_one_sign_in_each_column():
    P = draw("countsketch", 7, 50, np.random.default_rng(0))
    assert sparse.issparse(P)
    assert P.format == "csr"
    assert_array_equal(np.sum(P.toarray() != 0, axis=0), 1)
    assert_array_equal(np.unique(P.data), [-1, 1])


def test_rademacher_has_nothing_but_signs():
    P = draw("rademacher", 16, 50, np.random.default_rng(0))
    assert_array_equal(np.unique(P), [-0.25, 0.25])


@pytest.mark.parametrize("k", [1, 2, 5, 8, 12, 100])
def test_srht_with_all_rows_is_an_isometry(k):
    order = 1 << (k - 1).bit_length()
    P = draw("srht", order, k, np.random.default_rng(0))
    assert_allclose(P.toarray().T @ P.toarray(), np.eye(k), atol=1e-12)
    v = np.random.default_rng(1).normal(size=k)
    assert_allclose(np.linalg.norm(P @ v), np.linalg.norm(v))


def test_srht_samples_rows_without_replacement():
    P = draw("srht", 100, 128, np.random.default_rng(0))
    assert len(np.unique(P.rows)) == 100
    assert P.rows.max() < 128


@pytest.mark.parametrize("order", [1, 2, 8, 64])
def test_walsh_hadamard_is_the_hadamard_matrix(order):
    x = np.eye(order)
    walsh_hadamard(x)
    assert_array_equal(x, hadamard(order))


def test_srht_leaves_its_argument_alone():
    P = draw("srht", 4, 4, np.random.default_rng(0))
    M = np.arange(8.0).reshape(4, 2)
    assert (P @ M).shape == (4, 2)
    assert_array_equal(M, np.arange(8.0).reshape(4, 2))


def test_srht_takes_whole_numbers_and_other_orders():
    P = draw("srht", 3, 6, np.random.default_rng(0))
    M = np.arange(12).reshape(6, 2, order="F")
    assert_allclose(P @ M, P.toarray() @ M)


@pytest.mark.parametrize("shape", [(), (4,), (4, 6), (6, 2, 2)])
def test_srht_refuses_shapes_that_do_not_fit(shape):
    P = SubsampledHadamard(np.ones(6), np.arange(3))
    with pytest.raises(ValueError, match="cannot multiply"):
        P @ np.ones(shape)


def test_srht_refuses_more_rows_than_there_are():
    rng = np.random.default_rng(0)
    assert draw("srht", 8, 5, rng).shape == (8, 5)
    with pytest.raises(ValueError, match=r"^m must be at most 8 .* got 9"):
        draw("srht", 9, 5, rng)


@pytest.mark.parametrize(
    ("sketch", "m", "k", "name"),
    [("fourier", 2, 3, "sketch"), ("gaussian", 0, 3, "m"), ("gaussian", 2, 0.5, "k")],
)
def test_bad_arguments_are_refused_by_name(sketch, m, k, name):
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        draw(sketch, m, k, np.random.default_rng(0))
