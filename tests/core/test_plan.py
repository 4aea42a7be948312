import numpy as np
import pytest

from skmahal._core import bounds, plan
from skmahal._core.engines import make_engine
from skmahal._core.exact import ExactMaintenance
from skmahal._core.maintenance import MetricMaintenance


@pytest.mark.parametrize("n", [10, 10_000])
@pytest.mark.parametrize("L", [1, 4, 10])
def test_auto_rows_and_votes_keep_the_promise_for_n_distances(n, L):
    eps, delta = 0.2, 0.01
    m = plan.sketch_rows(n, L, eps, delta, "gaussian")
    R = plan.votes_for_all(n, 784, m, L, eps, delta, "gaussian")
    assert R <= L
    assert n * bounds.failure(eps, m, R) <= delta


def test_votes_grow_with_the_points():
    few, many = (
        plan.votes_for_all(n, 784, 80, 15, 0.2, 0.01, "gaussian") for n in (9, 10**6)
    )
    assert few < many


def test_a_certificate_bounds_the_chance_of_any_miss():
    R, eps = plan.certificate(7, 100, 32, 10, None, 0.2, 0.05, "gaussian")
    assert R == 1
    assert 7 * bounds.median_tails(eps, 32, R)[1] <= 0.05 * (1 + 1e-9)


def test_enough_sketches_make_neighbours_safe_against_adaptive_queries():
    k, m, eps, delta = 4, 200, 0.3, 0.1
    L = int(bounds.representative_sketches(k, m, eps, delta / 2))
    R, used = plan.certificate(5, k, m, L, None, eps, delta, "gaussian")
    assert used == eps
    assert R > 1
    assert bounds.adaptive_votes(L, plan.BETA, delta / 10) == R
    assert plan.certificate(5, k, m, L - 1, None, eps, delta, "gaussian")[0] == 1


@pytest.mark.parametrize(
    ("m", "R", "lead", "engine"),
    [
        (10, 2, 4, MetricMaintenance),
        (10, 2, 5, ExactMaintenance),
        (5, 5, 0, ExactMaintenance),
        (10, "auto", "auto", MetricMaintenance),
        (25, "auto", "auto", ExactMaintenance),
    ],
)
def test_the_exact_engine_serves_where_sketches_do_not_pay(m, R, lead, engine):
    X = np.random.default_rng(0).normal(size=(30, 25))
    promise = {"eps": 0.2, "delta": 0.01, "L": 10, "sketch": "gaussian", "seed": 0}
    promise["n_neighbors"] = 5
    made = make_engine(None, X, m=m, R=R, lead=lead, **promise)
    assert type(made) is engine
