"""The Cauchy-Schwarz tree: sums of squared distances, and samples ∝ distance.

A node holds the number c of its points, the sum of their rows x and the sum of their
squared lengths ‖Ux‖². For a query these give ``Σ d² = c‖Uq‖² - 2 g·Σx + Σ‖Ux‖²``
exactly, with ``g = UᵀUq``, and ``B = sqrt(c Σ d²)`` bounds ``Σ d``. By Cauchy-Schwarz
the bounds of two children add up to at most their parent's. So a walk that goes left
with probability ``B_left / B``, right with ``B_right / B`` and starts over otherwise
reaches a point at distance d with probability exactly ``d / B_root``.

The leaves are buckets of consecutive points. Sums of rows do not depend on the metric.
"""

import numpy as np

from .kernels import kernels
from .points import block, read_only

BUCKET = 128
_ROUNDS = 64

# Sums below this share of what they are the difference of are taken point by point.
_CANCELLED = 1e-6


class DistanceTree:
    """Sums over buckets of dense rows, in the nodes 1, 2, … of a binary heap.

    Leaf b is node ``capacity + b``, and the children of node v are 2v and 2v + 1.
    `version` says which metric the sums of norms are of.
    """

    def __init__(self, rows, origin, norms, version):
        self.capacity = 1 << max(0, (-(-len(rows) // BUCKET) - 1).bit_length())
        self.n, self.origin = len(rows), origin
        self.sums = np.zeros((2 * self.capacity, rows.shape[1]))
        self.norms, self.counts = np.zeros((2, 2 * self.capacity))
        self.update(rows, norms, np.arange(-(-len(rows) // BUCKET)), version)

    def update(self, rows, norms, buckets, version):
        """Sum some buckets anew, and the nodes above them. O(d (BUCKET + log n)) each.

        Nothing is added to sums that were there: the rounding of a large point would
        stay when it has gone.
        """
        self.n = len(rows)
        for bucket in buckets:
            here = slice(bucket * BUCKET, (bucket + 1) * BUCKET)
            part, leaf = block(rows, here), self.capacity + bucket
            self.sums[leaf] = (part - self.origin).sum(axis=0)
            self.norms[leaf], self.counts[leaf] = norms[here].sum(), len(part)
        nodes = np.unique((self.capacity + np.asarray(buckets)) // 2)
        while nodes.size and nodes[-1] > 0:
            for values in (self.sums, self.norms, self.counts):
                values[nodes] = values[2 * nodes] + values[2 * nodes + 1]
            nodes = np.unique(nodes // 2)
        self.version = version

    def follow(self, norms, version):
        """Take squared lengths under another metric. O(n)."""
        leaves = slice(self.capacity, self.capacity + -(-self.n // BUCKET))
        self.norms[leaves] = np.add.reduceat(norms, np.arange(0, self.n, BUCKET))
        level = self.capacity // 2
        while level:
            nodes = np.arange(level, 2 * level)
            self.norms[nodes] = self.norms[2 * nodes] + self.norms[2 * nodes + 1]
            level //= 2
        self.version = version

    def squared_sums(self, queries, start, stop, search):
        """``Σ d²`` over the points start … stop - 1 for every query; O(d log n) each.

        Parts of buckets at the ends are summed point by point, and so is all of it
        where the sums have cancelled.
        """
        first, last = -(-start // BUCKET), stop // BUCKET
        if first >= last:
            return self._one_by_one(queries, start, stop, search)
        nodes = self._covering(first, last)
        count, norms = self.counts[nodes].sum(), self.norms[nodes].sum()
        cross = queries.gradients @ self.sums[nodes].sum(axis=0)
        total = count * queries.squares - 2 * cross + norms
        size = count * queries.squares + 2 * np.abs(cross) + norms
        for edge in ((start, first * BUCKET), (last * BUCKET, stop)):
            if edge[0] < edge[1]:
                total += self._one_by_one(queries, *edge, search)
        lost = np.flatnonzero(total <= _CANCELLED * size)
        some = queries.some(lost)
        total[lost] = self._one_by_one(some, start, stop, search)
        return total

    def _one_by_one(self, queries, start, stop, search):
        points, totals = np.arange(start, stop), np.zeros(len(queries.squares))
        for at in range(len(totals)):
            totals[at] = search.squares_to(queries, at, points).sum()
        return totals

    def _covering(self, first, last):
        """The O(log n) nodes whose leaves are the buckets first … last - 1."""
        nodes = []
        low, high = self.capacity + first, self.capacity + last
        while low < high:
            if low % 2:
                nodes.append(low)
                low += 1
            if high % 2:
                high -= 1
                nodes.append(high)
            low, high = low // 2, high // 2
        return np.array(nodes)

    def sample(self, queries, size, power, rng, search, restart=True):
        """Positions with probability ∝ ``d ** power``, (queries, size), power 1 or 2.

        Expected O(d log n) a draw, and O(d BUCKET) for every leaf that the draws of a
        query reach. Walks that are still starting over after many rounds are drawn from
        all distances, which changes the cost and not the distribution. Uniform where
        all distances are zero. Without `restart`, a walk of power 1 is made once: it
        reaches a point with probability ``d / B_root``, and is -1 otherwise.
        """
        count, rounds = len(queries.squares), _ROUNDS if restart else 1
        draws = np.full((count, size), -1, dtype=np.intp)
        nodes = tuple(map(read_only, (self.sums, self.norms, self.counts)))
        depth = self.capacity.bit_length() - 1
        loops = kernels(np.dtype(np.float64), "walk")
        for at in range(count):
            base, g = queries.squares[at], read_only(queries.gradients[at])
            root = self.n * base - 2 * (g @ self.sums[1]) + self.norms[1]
            lost = not root > _CANCELLED * (self.n * base + self.norms[1])
            for _ in range(0 if lost else rounds):
                waiting = np.flatnonzero(draws[at] < 0)
                if not waiting.size:
                    break
                uniforms = rng.random((waiting.size, depth + 1))
                leaves, mass = np.empty(waiting.size, np.intp), np.empty(waiting.size)
                loops.walk(g, base, power, *nodes, uniforms, leaves, mass)
                last = uniforms[:, -1]
                draws[at, waiting] = self._land(
                    queries, at, leaves, mass, last, power, search
                )
            waiting = np.flatnonzero(draws[at] < 0)
            if waiting.size and (lost or restart):
                squares = search.squares_to(queries, at, np.arange(self.n))
                bound = None if restart else np.sqrt(self.n * squares.sum())
                weights = squares ** (power / 2)
                draws[at, waiting] = draw(weights, waiting.size, rng, bound)
        return draws

    def _land(self, queries, at, leaves, mass, uniforms, power, search):
        """A point for every walk of a query, -1 where it starts over."""
        found = np.full(len(leaves), -1, dtype=np.intp)
        for leaf in np.unique(leaves[leaves > 0]):
            mine = np.flatnonzero(leaves == leaf)
            start = (leaf - self.capacity) * BUCKET
            points = np.arange(start, min(start + BUCKET, self.n))
            squares = search.squares_to(queries, at, points)
            edges = np.cumsum(np.maximum(squares, 0) ** (power / 2))
            total = mass[mine[0]] if power == 1 else edges[-1]
            place = np.searchsorted(edges, uniforms[mine] * total, side="right")
            found[mine] = np.where(place < len(edges), start + place, -1)
        return found

    def check(self, rows, norms):
        """Assert that leaves hold sums of `rows`, and nodes those of their children."""
        fresh = DistanceTree(rows, self.origin, norms, 0)
        parents = np.arange(1, self.capacity)
        leaves = -(-len(rows) // BUCKET)
        sizes = np.abs(rows - self.origin).sum(), norms.sum(), len(rows)
        for name, size in zip(("sums", "norms", "counts"), sizes, strict=True):
            values, expected = getattr(self, name), getattr(fresh, name)
            mine = values[self.capacity : self.capacity + leaves]
            off = mine - expected[fresh.capacity : fresh.capacity + leaves]
            limit = 1e-9 * size + 1e-300
            assert np.abs(off).max() <= limit, f"{name} of buckets"
            off = values[parents] - (values[2 * parents] + values[2 * parents + 1])
            assert np.abs(off).max(initial=0) <= limit, f"{name} of nodes"


def draw(weights, size, rng, total=None):
    """`size` positions with probability ∝ weights; uniform where all are zero.

    With a `total` of more than the sum of the weights, what is missing is drawn as -1.
    """
    edges = np.cumsum(weights, dtype=np.float64)
    if not edges[-1] > 0:
        return rng.integers(len(weights), size=size)
    total = edges[-1] if total is None else total
    at = np.searchsorted(edges, rng.random(size) * total, side="right")
    if total > edges[-1]:
        return np.where(at < len(weights), at, -1)
    return np.minimum(at, len(weights) - 1)
