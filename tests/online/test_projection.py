"""Projected steps of POLA give the nearest semi-definite matrix.

Single steps are tested on the private function, because the learner itself chooses how
much is subtracted from its matrix.
"""

from copy import copy

import numpy as np
import pytest

from skmahal.online import POLA
from skmahal.online._factor import MovingFactor, ShiftedInverse, least_shift
from skmahal.online._pola import subtraction

from .streams import DensePOLA, pair_stream, projected, relative_error, unscaled_stream


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def error_of_step(U, v, alpha, tol, noise=0.0):
    """Relative error of A after a step, and whether an eigenvalue was removed.

    The matrix that serves as an inverse has relative errors of size `noise`.
    """
    factor = MovingFactor(U, 16)
    inverse = ShiftedInverse.of(factor)
    M = inverse.stored
    errors = noise * np.abs(M).max() * normal(*M.shape, seed=5) / len(M)
    inverse.stored = M + errors + errors.T
    w, q, found = subtraction(factor, v, alpha, tol, inverse)
    moved, A = U + np.outer(w, q), U.T @ U
    exact = projected(A - alpha * np.outer(v, v))
    off = np.linalg.norm(moved.T @ moved - exact, 2)
    return off / np.linalg.norm(A, 2), found.clipped


@pytest.mark.parametrize("noise", [0, 1e-6])
@pytest.mark.parametrize("shape", [(7, 7), (3, 7), (9, 7), (1, 4), (4, 1), (40, 40)])
@pytest.mark.parametrize("alpha", [1e-6, 0.01, 0.1, 1.0, 100.0])
def test_subtracting_gives_the_nearest_semidefinite_matrix(shape, alpha, noise):
    for seed in range(3):
        U, v = normal(*shape, seed=seed), normal(shape[1], seed=seed + 10)
        error, clipped = error_of_step(U, v, alpha, 1e-12, noise)
        smallest = np.linalg.eigvalsh(U.T @ U - alpha * np.outer(v, v))[0]
        assert error < 1e-11
        assert clipped == (smallest < -1e-14)


@pytest.mark.parametrize("shift", [-1e-3, -1e-9, 0.0, 1e-9, 1e-3])
def test_steps_are_continuous_where_an_eigenvalue_reaches_zero(shift):
    U, v = normal(6, 6), normal(6, seed=1)
    p = np.linalg.solve(U.T, v)
    assert error_of_step(U, v, (1 + shift) / (p @ p), 1e-12)[0] < 1e-12


D = 150
BASIS = np.linalg.qr(normal(D, D))[0]
SPECTRA = {
    "two values": np.repeat([1.0, 0.3], [5, D - 5]),
    "decaying": np.linspace(0.02, 1, D) ** 2,
    "singular": np.maximum(np.linspace(-0.5, 1, D), 0),
    "nearly singular": np.logspace(-12, 0, D),
}


@pytest.mark.parametrize("kind", SPECTRA)
@pytest.mark.parametrize("alpha", [1e-3, 0.3, 30.0])
@pytest.mark.parametrize("inside", [True, False])
def test_any_spectrum_is_projected_to_the_tolerance(kind, alpha, inside):
    U = np.sqrt(SPECTRA[kind])[:, np.newaxis] * BASIS
    v = BASIS[-1] + BASIS[-2] if inside else normal(D, seed=1) / 10
    assert error_of_step(U, v, alpha, 1e-10)[0] < 1e-10


@pytest.mark.parametrize("smallest", [1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("beyond", [-1e-2, -1e-6, 1e-6, 1e-2, 1.0])
def test_signs_of_eigenvalues_near_zero_are_right(smallest, beyond):
    values, v = np.repeat([smallest, 1.0], [20, D - 20]), normal(D, seed=1)
    alpha = (1 + beyond) / np.sum((BASIS @ v) ** 2 / values)
    U = np.sqrt(values)[:, np.newaxis] * BASIS
    error, clipped = error_of_step(U, v, alpha, 1e-10)
    assert error < 1e-12
    assert clipped == (beyond > 0)


@pytest.mark.parametrize("scale", [1e-60, 1e20, 1e100])
def test_the_scale_of_the_metric_does_not_matter(scale):
    U = np.sqrt(scale * SPECTRA["decaying"])[:, np.newaxis] * BASIS
    assert error_of_step(U, normal(D, seed=1) / 10, 0.3 * scale, 1e-10)[0] < 1e-10


@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-8])
def test_the_error_of_a_step_is_within_its_tolerance(tol):
    U, v = normal(60, 60) * np.linspace(0.01, 1, 60), normal(60, seed=1)
    error, clipped = error_of_step(U, v, 0.1, tol)
    assert clipped
    assert 0 < error < tol


@pytest.mark.parametrize("alpha", [1e-9, 0.5, 3.0, 1e9])
def test_the_least_shift_solves_its_equation(alpha):
    values, parts = np.linspace(1, 0, 9) ** 4, normal(9)
    shift = least_shift(values, parts, alpha)
    assert shift > 0
    assert alpha * np.sum(parts**2 / (values + shift)) == pytest.approx(1, rel=1e-12)
    floor = 2 * shift
    assert least_shift(values, parts, alpha, floor) == floor


def test_a_direction_that_is_not_measured_is_left_alone():
    learner = POLA(init=np.diag([1.0, 2.0, 0.0])).fit([[[0, 0, 0], [0, 0, 3.0]]], [1])
    assert (learner.n_clipped_, learner.version_) == (0, 0)  # No loss: d is zero.
    pairs, y = [[[0, 0, 0], [0, 0, 3.0]], [[0, 0, 0], [2.0, 0, 3.0]]], [1, 1]
    learner = POLA(init=np.diag([1.0, 2.0, 0.0])).fit(pairs, y)
    assert learner.n_clipped_ == 1
    A = learner.get_mahalanobis_matrix()
    np.testing.assert_allclose(A[1], [0, 4, 0], atol=1e-12)
    assert np.linalg.eigvalsh(A)[0] > -1e-12


def test_the_inverse_follows_the_metric_for_as_long_as_the_stream_goes_on():
    pairs, y = unscaled_stream(600, 24, np.float64)
    learner = POLA().fit(pairs, y)
    inverse, A = learner._inverse, learner.get_mahalanobis_matrix()
    M = np.linalg.inv(A + inverse.shift * np.eye(24))
    assert inverse.age > 100
    found = np.stack([inverse @ row for row in np.eye(24)])
    np.testing.assert_allclose(found, M, rtol=0, atol=1e-9 * np.abs(M).max())


def test_an_inverse_that_is_wrong_is_computed_again():
    pairs, y = unscaled_stream(300, 24, np.float64)
    learner, oracle = POLA().fit(pairs[:200], y[:200]), DensePOLA(np.eye(24))
    inverse = learner._inverse = copy(learner._inverse)
    inverse.stored = 2 * inverse.stored
    learner.partial_fit(pairs[200:], y[200:])
    for z, sign in zip(pairs[:, 0] - pairs[:, 1], y, strict=True):
        oracle.step(z, sign)
    assert learner._inverse.age < inverse.age
    assert relative_error(learner, oracle) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [(np.float64, 1e-9), (np.float32, 1e-6)])
def test_ten_thousand_steps_on_long_differences_are_those_of_the_dense_formulas(
    dtype, limit
):
    pairs, y = unscaled_stream(10_000, 60, dtype)
    learner, oracle = POLA(), DensePOLA(np.eye(60))
    for batch in np.split(np.arange(10_000), 10):
        learner.partial_fit(pairs[batch], y[batch])
        for z, sign in zip(pairs[batch, 0] - pairs[batch, 1], y[batch], strict=True):
            oracle.step(z.astype(np.float64), sign)
        assert relative_error(learner, oracle) < limit
        U = learner.components_.astype(np.float64)
        assert np.linalg.norm(U.T @ U - oracle.A) < limit * np.linalg.norm(oracle.A)
    assert learner.n_clipped_ > 1_000
    assert learner.b_ == pytest.approx(oracle.b, rel=limit)


@pytest.mark.parametrize(("dtype", "limit"), [(np.float64, 1e-9), (np.float32, 1e-6)])
def test_steps_of_many_features_are_those_of_the_dense_formulas(dtype, limit):
    pairs, y = pair_stream(60, 259, dtype=dtype)
    pairs *= 3
    learner, oracle = POLA().fit(pairs, y), DensePOLA(np.eye(259))
    for z, sign in zip(pairs[:, 0] - pairs[:, 1], y, strict=True):
        oracle.step(z.astype(np.float64), sign)
    assert learner.n_clipped_ > 10
    assert relative_error(learner, oracle) < limit
