"""A step on U is the step of the paper on A."""

from fractions import Fraction

import numpy as np
import pytest

from skmahal._core.metric import LowRank
from skmahal.online._steps import (
    added_row,
    itml_change,
    lego_change,
    lego_length,
    subtracted,
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def square(U, change=None):
    U = U if change is None else U + change.W @ change.V.T
    return U.T @ U


def projected(B):
    values, vectors = np.linalg.eigh(B)
    return (vectors * np.maximum(values, 0)) @ vectors.T, values[0]


SHAPES = [(7, 7), (3, 7), (9, 7), (1, 4), (4, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("eta", [1e-8, 1.0, 1e8])
def test_lego_minimises_divergence_and_loss(shape, target, eta):
    U, z = normal(*shape), normal(shape[1], seed=1)
    w = U @ z
    moved = square(U, lego_change(U, w, target, eta))
    reached = z @ moved @ z
    # Where the gradient is zero: 1 / ȳ = 1 / ŷ + η (ȳ - y).
    gradient = 1 / reached - 1 / (w @ w) - eta * (reached - target)
    size = 1 / reached + 1 / (w @ w) + eta * (reached + target)
    assert abs(gradient) < 1e-10 * size


@pytest.mark.parametrize("eta", [1e-300, 1e-12, 1e12])
@pytest.mark.parametrize("y", [1e-9, 1e9])
def test_the_length_after_a_lego_step_loses_no_digits(eta, y):
    reached = Fraction(float(lego_length(y, 1.0, eta)))
    y, eta = Fraction(y), Fraction(eta)
    # Either side of the root, by 1e-12, the quadratic has another sign.
    below, above = (
        eta * y * r**2 + (1 - eta * y) * r - y
        for r in (
            reached * (1 - Fraction(1, 10**12)),
            reached * (1 + Fraction(1, 10**12)),
        )
    )
    assert below < 0 < above


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", [1e-3, 1.0, 1e4])
def test_itml_moves_the_inverse_by_its_share(shape, target):
    U, z = normal(*shape), normal(shape[1], seed=1)
    w = U @ z
    moved = square(U, itml_change(U, w, target, gamma=3.0))
    expected = 0.25 / (w @ w) + 0.75 / target
    assert 1 / (z @ moved @ z) == pytest.approx(expected, rel=1e-10)


def test_itml_without_slack_projects_onto_the_target():
    U, z = normal(5, 5), normal(5, seed=1)
    moved = square(U, itml_change(U, U @ z, 2.0, gamma=np.inf))
    assert z @ moved @ z == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize("change", [lego_change, itml_change])
def test_what_the_metric_does_not_see_changes_nothing(change):
    U, z = np.diag([1.0, 0.0]), np.array([0.0, 1.0])
    assert change(U, U @ z, 1.0, 1.0) is None


def test_a_zero_row_takes_what_is_added():
    U, v = np.vstack([normal(3, 4), np.zeros((2, 4))]), normal(4, seed=1)
    change = added_row(5, 3, v, 0.7)
    np.testing.assert_allclose(square(U, change), square(U) + 0.7 * np.outer(v, v))


@pytest.mark.parametrize("shape", [*SHAPES, (40, 40)])
@pytest.mark.parametrize("alpha", [1e-6, 0.01, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(3))
def test_subtracting_gives_the_nearest_semidefinite_matrix(shape, alpha, seed):
    U, v = normal(*shape, seed=seed), normal(shape[1], seed=seed + 10)
    exact, smallest = projected(square(U) - alpha * np.outer(v, v))
    change, clipped = subtracted(U, v, alpha, tol=1e-12)
    assert clipped == (smallest < -1e-14)
    assert change.W.shape == (shape[0], 1)
    error = np.linalg.norm(square(U, change) - exact)
    assert error < 1e-11 * np.linalg.norm(square(U))


@pytest.mark.parametrize("shift", [-1e-3, -1e-9, 0.0, 1e-9, 1e-3])
def test_subtracting_is_continuous_where_an_eigenvalue_reaches_zero(shift):
    U, v = normal(6, 6), normal(6, seed=1)
    p = np.linalg.solve(U.T, v)
    alpha = (1 + shift) / (p @ p)
    exact, _ = projected(square(U) - alpha * np.outer(v, v))
    change, _ = subtracted(U, v, alpha, tol=1e-12)
    error = np.linalg.norm(square(U, change) - exact)
    assert error < 1e-10 * np.linalg.norm(square(U))


def test_spectra_that_span_many_orders_are_projected_exactly():
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.normal(size=(30, 30)))
    U = np.logspace(0, -7, 30)[:, np.newaxis] * basis
    v = rng.normal(size=30)
    for alpha in (1e-12, 1e-6, 1.0):
        exact, _ = projected(square(U) - alpha * np.outer(v, v))
        change, _ = subtracted(U, v, alpha, tol=1e-12)
        error = np.linalg.norm(square(U, change) - exact)
        assert error < 1e-10 * np.linalg.norm(square(U))


def test_all_of_a_direction_that_is_not_measured_is_projected_away():
    U = np.diag([1.0, 2.0, 0.0])
    assert subtracted(U, np.array([0.0, 0.0, 3.0]), 1.0, 1e-12) == (None, True)


@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-8])
def test_the_error_of_a_projection_is_within_its_tolerance(tol):
    U, v = normal(60, 60) * np.linspace(0.01, 1, 60), normal(60, seed=1)
    exact, _ = projected(square(U) - 0.1 * np.outer(v, v))
    change, clipped = subtracted(U, v, 0.1, tol)
    assert clipped
    assert np.linalg.norm(square(U, change) - exact, 2) < 2 * tol * np.linalg.norm(
        square(U), 2
    )


def test_changes_have_the_type_of_the_metric():
    U, z = normal(4, 4).astype(np.float32), normal(4, seed=1).astype(np.float32)
    changes = [
        lego_change(U, U @ z, 1.0, 1.0),
        itml_change(U, U @ z, 1.0, 1.0),
        added_row(4, 0, z, 0.5),
        subtracted(U, z, 0.01, 1e-6)[0],
        subtracted(U, z, 10.0, 1e-6)[0],
    ]
    for change in changes:
        assert isinstance(change, LowRank)
        assert change.W.dtype == change.V.dtype == np.float32
