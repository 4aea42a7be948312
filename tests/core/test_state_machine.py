"""Every operation in any order, on both engines at once, compared with the oracle."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scipy import sparse

from skmahal import MetricMaintenance
from skmahal._core.exact import ExactMaintenance
from tests.oracle import Oracle, assert_nearest

RTOL = {np.float64: 1e-9, np.float32: 1e-3}
D = 6
seeds = st.integers(0, 2**32 - 1)


class Maintenance(RuleBasedStateMachine):
    @initialize(
        seed=seeds,
        dtype=st.sampled_from([np.float64, np.float32]),
        k=st.sampled_from([None, 1, 4, 12]),
        n=st.integers(1, 300),
        is_sparse=st.booleans(),
        lead=st.sampled_from([0, 2, "auto"]),
        sketch=st.sampled_from(["gaussian", "rademacher", "countsketch"]),
    )
    def build(self, seed, dtype, k, n, is_sparse, lead, sketch):
        self.dtype = dtype
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, D)).astype(dtype)
        U = None if k is None else rng.normal(size=(k, D)).astype(dtype)
        given = sparse.csr_matrix(X) if is_sparse else X
        options = {"m": 3, "L": 3, "lead": lead, "sketch": sketch}
        self.engines = [
            ExactMaintenance(U, given),
            MetricMaintenance(U, given, delta=1e-6, seed=seed, **options),
        ]
        self.oracle = Oracle(U, X)

    def apply(self, name, *arguments):
        for target in [*self.engines, self.oracle]:
            getattr(target, name)(*arguments)

    def normal(self, seed, *shape):
        return np.random.default_rng(seed).normal(size=shape).astype(self.dtype)

    def some(self, seed, n, most):
        rng = np.random.default_rng(seed)
        return rng.permutation(n)[: rng.integers(1, most + 1)]

    @property
    def k(self):
        return len(self.oracle.U)

    @property
    def n(self):
        return len(self.oracle.X)

    @rule(seed=seeds, rank=st.integers(1, 20))
    def low_rank(self, seed, rank):
        W, V = self.normal(seed, self.k, rank), self.normal(seed + 1, D, rank)
        self.apply("update_low_rank", 0.1 * W, V)

    @rule(seed=seeds, additive=st.booleans())
    def rows(self, seed, additive):
        a = self.some(seed, self.k, self.k)
        name = "update_u" if additive else "set_rows"
        self.apply(name, self.normal(seed, len(a), D), a)

    @rule(seed=seeds, k=st.sampled_from([None, 1, 5, 9]))
    def metric(self, seed, k):
        self.apply("set_metric", self.normal(seed, self.k if k is None else k, D))

    @rule(seed=seeds, rank=st.integers(0, 2))
    def metric_nearby(self, seed, rank):
        step = self.normal(seed, self.k, rank) @ self.normal(seed + 1, D, rank).T
        self.apply("set_metric", self.engines[0].U + step)

    @rule(seed=seeds)
    def replace_points(self, seed):
        i = self.some(seed, self.n, self.n)
        self.apply("update_x", self.normal(seed, len(i), D), i)

    @rule(seed=seeds, count=st.integers(1, 200))
    def add_points(self, seed, count):
        self.apply("append", self.normal(seed, count, D))

    @rule(seed=seeds)
    def remove_points(self, seed):
        if self.n > 1:
            self.apply("remove", self.some(seed, self.n, self.n - 1))

    @rule()
    def refresh(self):
        self.engines[1].refresh_sketches()

    @rule(seed=seeds)
    def ask(self, seed):
        """Queries catch up: what is asked between updates must not matter."""
        q = self.normal(seed, 2, D)
        for engine in self.engines:
            engine.query_all(q)
            engine.query_pair(0, self.n - 1)
            draws = engine.sample_exact(q, 3)
            assert draws.shape == (2, 3)
            assert draws.min() >= 0
            assert draws.max() < self.n

    @invariant()
    def engines_answer_as_the_oracle(self):
        if not hasattr(self, "oracle"):
            return
        Q = np.vstack([self.normal(0, 2, D), self.oracle.X[:1]]).astype(self.dtype)
        truth = self.oracle.query_all(Q)
        rtol = RTOL[self.dtype]
        size = np.abs(self.oracle.X @ self.oracle.U.T).max()
        atol = rtol * size
        K = min(3, self.n)
        start, stop = self.n // 3, self.n - self.n // 4
        sums = self.oracle.sub_sum(Q, start, stop)
        for engine in self.engines:
            assert (engine.n, engine.d, engine.k) == (self.n, D, self.k)
            np.testing.assert_allclose(engine.U, self.oracle.U, rtol, atol)
            np.testing.assert_allclose(engine.exact_all(Q), truth, rtol, atol)
            assert_nearest(*engine.kneighbors(Q, K), truth, rtol, atol)
            found = engine.sub_sum(Q, start, stop)
            # Squares are summed before they cancel: the error is relative to their sum.
            np.testing.assert_allclose(found, sums, rtol, self.n * rtol * size**2)
            assert engine.check() < 1e-4

    @invariant()
    def the_two_engines_draw_alike(self):
        if not hasattr(self, "oracle"):
            return
        q = self.normal(0, 1, D)
        draws = [engine.sample_exact(q, 5, 2, 0) for engine in self.engines]
        np.testing.assert_array_equal(*draws)


TestMaintenance = Maintenance.TestCase
TestMaintenance.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, derandomize=True
)
