"""The shape of costs, by counting operations: what a regression would change first."""

import numpy as np
import pytest

from skmahal import MetricMaintenance
from skmahal._core import compiled, images, kernels, points, state, tiles
from skmahal._core.exact import ExactMaintenance
from tests.core.data import clusters

K = 10


class Counter:
    """Multiply-adds of matrix products, and rows that were evaluated."""

    def __init__(self, monkeypatch):
        self.products = self.evaluated = 0
        self._add_product, self._multiply = state.add_product, tiles.multiply
        self._add_to_columns = images.add_to_columns
        monkeypatch.setattr(state, "add_product", self.add_product)
        monkeypatch.setattr(images, "add_product", self.add_product)
        monkeypatch.setattr(images, "add_to_columns", self.add_to_columns)
        monkeypatch.setattr(tiles, "multiply", self.multiply)
        self._squares = kernels.HeldCandidates.squares
        counter = self

        def squares(candidates, q, indices):
            counter.evaluated += len(indices)
            return counter._squares(candidates, q, indices)

        monkeypatch.setattr(kernels.HeldCandidates, "squares", squares)
        # The compiled loops do the same, and do not count.
        monkeypatch.setattr(compiled, "fast", lambda: None)

    def add_product(self, C, A, B):
        self.products += C.size * A.shape[1]
        self._add_product(C, A, B)

    def add_to_columns(self, chunks, weights, steps):
        self.products += len(weights) * steps.size
        self._add_to_columns(chunks, weights, steps)

    def multiply(self, part, out):
        self.products += out.size * part.queries.shape[1]
        self._multiply(part, out)

    def of(self, call):
        self.products = self.evaluated = 0
        call()
        return self.products, self.evaluated


@pytest.fixture
def counter(monkeypatch):
    return Counter(monkeypatch)


@pytest.mark.parametrize("n", [1000, 4000])
@pytest.mark.parametrize("queries", [1, 30])
def test_a_search_multiplies_few_columns_and_reads_few_rows(counter, n, queries):
    """Not k columns of every point; and the rows of one cluster, not of all."""
    X = clusters(n + queries, 400, 20, 0.2)
    index = MetricMaintenance(None, X[:n], m=64, lead=0, seed=0)
    index.prepare()
    columns = index.head * index.bank
    assert columns < 400 / 4
    products, evaluated = counter.of(lambda: index.kneighbors(X[n:], K))
    assert products == queries * n * columns
    assert queries * K <= evaluated <= queries * 2 * n / 20


def test_brute_force_multiplies_every_column_once(counter):
    X = np.random.default_rng(0).normal(size=(520, 50))
    index = ExactMaintenance(None, X[:500])
    index.prepare()
    products, evaluated = counter.of(lambda: index.kneighbors(X[500:], K))
    assert products == 20 * 500 * 50
    assert evaluated <= 20 * 3 * K


def test_a_query_without_contrast_costs_little_more_than_brute_force(counter):
    X = np.random.default_rng(0).normal(size=(1020, 300))
    index = MetricMaintenance(None, X[:1000], m=16, lead=0, seed=0)
    index.prepare()
    products, evaluated = counter.of(lambda: index.kneighbors(X[1000:], K))
    columns = index.head * index.bank
    assert products <= 20 * 1000 * (300 + columns)
    assert evaluated <= 20 * 5 * K


class Reads:
    """Bytes of the points that products of few columns read."""

    def __init__(self, monkeypatch):
        self.bytes = 0
        take = points.DensePoints.take

        def counted(stored, indices):
            rows = take(stored, indices)
            self.bytes += rows.nbytes
            return rows

        monkeypatch.setattr(points.DensePoints, "take", counted)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("n", [500, 2000])
def test_a_low_rank_update_reads_the_points_once(monkeypatch, counter, n, rank):
    """And multiplies nothing but U, whatever has been derived from the points."""
    rng = np.random.default_rng(0)
    U, X = rng.normal(size=(40, 60)), rng.normal(size=(n, 60))
    index = MetricMaintenance(U, X, m=8, L=4, lead=4, seed=0)
    index.kneighbors(X[:30], 3)
    index.sub_sum(X[:2], 0, n)
    reads = Reads(monkeypatch)
    W, V = rng.normal(size=(40, rank)), rng.normal(size=(60, rank))
    products, _ = counter.of(lambda: index.update_low_rank(W, V))
    assert reads.bytes == X.nbytes
    assert products == U.size * rank


def test_many_pending_updates_are_one_product(counter):
    rng = np.random.default_rng(0)
    X = clusters(1000, 60, 50, 0.2)
    index = MetricMaintenance(np.eye(60), X, m=16, L=1, lead=0, seed=0)
    index.prepare()
    for _ in range(5):
        index.update_low_rank(0.01 * rng.normal(size=60), rng.normal(size=60))
    head = index.head
    catching_up = 1000 * head * 5
    searching = 1000 * head
    products, _ = counter.of(lambda: index.kneighbors(X[:1], 3))
    assert products == catching_up + searching
    products, _ = counter.of(lambda: index.kneighbors(X[:1], 3))
    assert products == searching
