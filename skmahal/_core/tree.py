"""The Cauchy-Schwarz tree: sums of squared distances, and samples ∝ distance.

A node holds its count c, the sum of its rows y and the sum of ‖y‖². For a query u these
give ``Σ d² = c‖u‖² - 2 u·Σy + Σ‖y‖²`` exactly, and ``B = sqrt(c Σ d²)`` bounds ``Σ d``.
By Cauchy-Schwarz the bounds of two children add up to at most their parent's, so a walk
that goes left with probability ``B_left / B``, right with ``B_right / B`` and starts
over otherwise reaches a point of bound d_i with probability exactly ``d_i / B_root``.

The leaves are buckets of consecutive points. Their sizes vary once points are removed.
"""

import numpy as np

from . import compiled
from .buffers import owned
from .kernels import HeldCandidates
from .saved import array_from, integer_from, is_mapped, require
from .tiles import row_squares

_ROUNDS = 64


class DistanceTree:
    """Sums over buckets of points, in the nodes 1, 2, … of a binary heap.

    Leaf `b` is node ``capacity + b``; the children of node v are 2v and 2v + 1. `tick`
    is kept by the owner: None means that the tree has to be built.
    """

    def __init__(self, bucket=128):
        self.bucket = bucket
        self.tick = None

    @property
    def capacity(self):
        """Leaves that there is room for."""
        return len(self._sums) // 2

    @property
    def counts(self):
        """Points in every bucket; none is empty."""
        return self._counts[self._leaves]

    @property
    def starts(self):
        """First point of every bucket, and the number of points at the end."""
        if self._starts is None:
            self._starts = np.concatenate([[0], np.cumsum(self.counts)])
        return self._starts

    def build(self, row_blocks, norms, k):
        """From blocks of whole buckets; O(nk)."""
        counts = _bucket_counts(len(norms), self.bucket)
        sums = np.empty((len(counts), k))
        for here, rows in row_blocks:
            first = here.start // self.bucket
            part = _sums_from(rows, np.arange(0, len(rows), self.bucket))
            sums[first : first + len(part)] = part
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._plant(counts, sums, _sums_from(norms, starts))

    def move(self, W, T, norms):
        """Follow ``y_i += W T_i``; O(np + nkp / bucket)."""
        self._own()
        starts = self.starts[:-1]
        self._sums[self._leaves] += _sums_from(T, starts) @ W.T
        self._squares[self._leaves] = _sums_from(norms, starts)
        self._add_up()

    def assign(self, indices, rows_between):
        """Follow points that were replaced; O(k (bucket + log n)) each.

        `rows_between(start, stop)` gives rows as they are now. The sums of a bucket are
        taken anew: adding what changed would keep the rounding of a large point that
        has gone.
        """
        self._own()
        leaves = self.capacity + np.unique(self._buckets_of(indices))
        starts = self.starts
        for leaf in leaves:
            start, stop = starts[leaf - self.capacity :][:2]
            self._sums[leaf], self._squares[leaf] = _sums_of(rows_between(start, stop))
        self._add_up_from(leaves)

    def append(self, rows):
        """Add points at the end; O(k log n) each, amortised."""
        self._own()
        room = max(0, self.bucket - int(self.counts[-1]))
        starts = np.unique(np.r_[0, np.arange(room, len(rows), self.bucket)])
        first = self._n_buckets - (room > 0)
        self._reserve(first + len(starts))
        leaves = self.capacity + first + np.arange(len(starts))
        self._sums[leaves] += _sums_from(rows, starts)
        self._squares[leaves] += _sums_from(row_squares(rows), starts)
        self._counts[leaves] += np.diff(starts, append=len(rows))
        self._n_buckets, self._starts = first + len(starts), None
        self._add_up_from(leaves)

    def remove(self, indices, rows_between):
        """Follow points that were removed; O(k bucket) each, and O(nk / bucket) above.

        `indices` are positions before, `rows_between` gives rows as they are after.
        """
        buckets = self._buckets_of(indices)
        counts = self.counts - np.bincount(buckets, minlength=self._n_buckets)
        sums, squares = (
            self._sums[self._leaves].copy(),
            self._squares[self._leaves].copy(),
        )
        starts = np.concatenate([[0], np.cumsum(counts)])
        for bucket in np.unique(buckets):
            rows = rows_between(*starts[bucket : bucket + 2])
            sums[bucket], squares[bucket] = _sums_of(rows)
        leaves = tuple(values[counts > 0] for values in (counts, sums, squares))
        while len(leaves[0]) > 1 and leaves[0].mean() < self.bucket / 4:
            leaves = tuple(_paired(values) for values in leaves)
        self._plant(*leaves)

    def squared_sums(self, queries, start, stop, squares_between):
        """``Σ d²`` over the points start … stop - 1 for every query; O(k log n) each.

        `squares_between(start, stop)` gives exact squared distances, (queries, points),
        for the part buckets at the ends.
        """
        starts = self.starts
        first = np.searchsorted(starts, start)
        last = np.searchsorted(starts, stop, side="right") - 1
        if first >= last:
            return squares_between(start, stop).sum(axis=1)
        total = self._squared_sums(queries, self._covering(first, last))
        if start < starts[first]:
            total += squares_between(start, starts[first]).sum(axis=1)
        if starts[last] < stop:
            total += squares_between(starts[last], stop).sum(axis=1)
        return total

    def sample(self, queries, size, power, rng, points):
        """Indices with probability ∝ ``d ** power``, (queries, size), power 1 or 2.

        `points` are candidates of :mod:`.kernels` for the same queries. Expected
        O(k log n) a draw, and O(k bucket) for every leaf that draws of a query reach;
        walks that are still starting over after many rounds are drawn from all
        distances, which changes the cost and not the distribution. Uniform where all
        distances are zero.
        """
        queries = queries.astype(np.float64)
        draws = np.empty(len(queries) * size, dtype=np.intp)
        owner = np.arange(len(draws)) // size
        waiting = slice(None)
        for _ in range(_ROUNDS):
            draws[waiting] = self._landed(queries, owner[waiting], power, rng, points)
            waiting = np.flatnonzero(draws < 0)
            if not waiting.size:
                return draws.reshape(len(queries), size)
        for query, mine in _groups(owner[waiting]):
            squares = points.squares(query, np.arange(self._counts[1]))
            draws[waiting[mine]] = _draw(squares ** (power / 2), mine.size, rng)
        return draws.reshape(len(queries), size)

    def _landed(self, queries, owner, power, rng, points):
        """Where a walk ends for every entry of `owner`, -1 where it starts over.

        A level of all walks takes one row of random numbers, so that compiled walks and
        those of :class:`_Walk` take the same turns.
        """
        depth = self.capacity.bit_length() - 1
        uniforms = rng.random((depth + 1, len(owner)))
        asked = queries, owner, power, uniforms
        if compiled.fast() is None or not isinstance(points, HeldCandidates):
            return _Walk(self, *asked).land(points)
        found = np.empty(len(owner), dtype=np.intp)
        compiled.fast().draw(asked, self.nodes, points.queries, points.held, found)
        return found

    @property
    def nodes(self):
        """What the loops take the tree as."""
        arrays = self._sums, self._squares, self._counts, self.starts
        return tuple(map(compiled.read_only, arrays))

    def node_squares(self, queries, norms, owner, nodes):
        """``Σ d²`` of query ``owner[i]`` below ``nodes[i]``, for many at once."""
        cross = np.einsum("ij,ij->i", self._sums[nodes], queries[owner])
        squares = self._counts[nodes] * norms[owner] - 2 * cross + self._squares[nodes]
        return np.maximum(squares, 0)

    def node_counts(self, nodes):
        return self._counts[nodes]

    def check(self, rows, norms, tolerance):
        """Assert that leaves hold the sums of `rows`, and nodes those of children."""
        assert self.counts.sum() == len(rows), "counts do not add up to n"
        assert (self.counts > 0).all(), "a bucket is empty"
        starts = self.starts[:-1]
        squares = _sums_from(norms, starts)
        size = np.sqrt(self.counts * squares).max()
        off = np.abs(self._sums[self._leaves] - _sums_from(rows, starts)).max()
        assert off <= tolerance * size, "bucket sums are not those of the rows"
        off = np.abs(self._squares[self._leaves] - squares).max()
        assert off <= tolerance * squares.max(), "sums of squares have drifted"
        parents = np.arange(1, self.capacity)
        for values in (self._sums, self._squares, self._counts):
            off = values[parents] - (values[2 * parents] + values[2 * parents + 1])
            limit = 1e-9 * np.abs(values).max()
            assert (np.abs(off) <= limit).all(), "a node is not its children's sum"

    def saved(self, now):
        """The tree as plain values; what is not in use is left out."""
        if self.tick is None:
            return {"tick": None}
        arrays = {"sums": self._sums, "squares": self._squares, "counts": self._counts}
        if self.tick < now:
            # A query of another thread may write to what is behind.
            arrays = {name: array.copy() for name, array in arrays.items()}
        sizes = {"bucket": self.bucket, "n_buckets": self._n_buckets}
        return {"tick": self.tick, **arrays, **sizes}

    @classmethod
    def restored(cls, saved, n, k, log):
        """The tree of which these are the values, over n points."""
        tree = cls()
        if saved["tick"] is None:
            return tree
        tree.tick = integer_from(saved, "tick", log.start, log.now)
        tree.bucket = integer_from(saved, "bucket", least=1)
        floats, nodes = (np.dtype(np.float64),), len(saved["squares"])
        tree._sums = array_from(saved, "sums", floats, (nodes, k))
        tree._squares = array_from(saved, "squares", floats, (nodes,))
        tree._counts = array_from(saved, "counts", (np.dtype(np.intp),), (nodes,))
        require(nodes > 1 and nodes & (nodes - 1) == 0, f"the tree has {nodes} nodes")
        tree._n_buckets = integer_from(saved, "n_buckets", 1, tree.capacity)
        tree._starts = None
        tree._check_nodes(n)
        return tree

    def check_some(self, rows_between, drift, W, T, most):
        """Refuse sums that are not those of the first and last bucket's rows.

        W and T are what the tree is behind by, `drift` the squares of what rows may be
        off by. Buckets of more than `most` points are not looked at.
        """
        for bucket in (0, self._n_buckets - 1):
            start, stop = self.starts[bucket : bucket + 2]
            if stop - start > most:
                continue
            sums, squares = _sums_of(rows_between(start, stop))
            held = self._sums[self.capacity + bucket] + W @ T[start:stop].sum(axis=0)
            slack = 1e-2 * np.sqrt(squares) + 10 * np.sqrt(drift[start:stop].sum())
            off = np.linalg.norm(held - sums)
            fits = off <= slack * np.sqrt(stop - start)
            if not W.shape[1]:
                root = np.sqrt(self._squares[self.capacity + bucket])
                fits &= abs(root - np.sqrt(squares)) <= slack
            require(fits, "sums over buckets do not belong to the points")

    def _check_nodes(self, n):
        """Refuse counts that do not cut n points into buckets, and sums of no tree."""
        counts, above = self._counts, np.arange(1, self.capacity)
        require((self.counts > 0).all(), "a bucket is empty")
        require(
            not counts[self._leaves.stop :].any(), "there are points beyond the last"
        )
        sums = counts[2 * above] + counts[2 * above + 1]
        require((counts[above] == sums).all(), "counts do not add up")
        require(counts[1] == n, f"the tree has {counts[1]} points, expected {n}")
        if not is_mapped(self._squares):
            squares = self._squares
            off = np.abs(squares[above] - squares[2 * above] - squares[2 * above + 1])
            fits = (squares >= 0).all() and (off <= 1e-6 * squares[above]).all()
            require(fits, "sums of squares do not add up")

    @property
    def _leaves(self):
        return slice(self.capacity, self.capacity + self._n_buckets)

    def _plant(self, counts, sums, squares, room=0):
        """Lay out leaves of given sums, with room for more, and add up."""
        capacity = 1 << (max(room, len(counts)) - 1).bit_length()
        self._sums = np.zeros((2 * capacity, sums.shape[1]))
        self._squares = np.zeros(2 * capacity)
        self._counts = np.zeros(2 * capacity, dtype=np.intp)
        self._n_buckets, self._starts = len(counts), None
        self._sums[self._leaves] = sums
        self._squares[self._leaves] = squares
        self._counts[self._leaves] = counts
        self._add_up()

    def _own(self):
        """Copies of what is read-only, before it is written to."""
        self._sums, self._squares = owned(self._sums), owned(self._squares)
        self._counts = owned(self._counts)

    def _reserve(self, buckets):
        if buckets > self.capacity:
            leaves = self._leaves
            held = self._counts[leaves], self._sums[leaves], self._squares[leaves]
            self._plant(*held, room=buckets)

    def _add_up(self):
        """Every inner node from its children, level by level."""
        level = self.capacity // 2
        while level:
            self._sum_children(np.arange(level, 2 * level))
            level //= 2

    def _add_up_from(self, nodes):
        """The ancestors of `nodes`, all of one level, from their children."""
        nodes = np.unique(nodes // 2)
        while nodes[0]:
            self._sum_children(nodes)
            nodes = np.unique(nodes // 2)

    def _sum_children(self, nodes):
        for values in (self._sums, self._squares, self._counts):
            values[nodes] = values[2 * nodes] + values[2 * nodes + 1]

    def _buckets_of(self, indices):
        return np.searchsorted(self.starts, indices, side="right") - 1

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

    def _squared_sums(self, queries, nodes):
        """``Σ d²`` of every query over all the points below `nodes`."""
        count, square = self._counts[nodes].sum(), self._squares[nodes].sum()
        cross = queries.astype(np.float64) @ self._sums[nodes].sum(axis=0)
        return np.maximum(count * row_squares(queries) - 2 * cross + square, 0)


class _Walk:
    """Many walks from the root at once, one for every entry of `owner`.

    After construction every walk has reached a leaf or is to start over.
    """

    def __init__(self, tree, queries, owner, power, uniforms):
        self.tree, self.queries, self.owner = tree, queries, owner
        self.power, self.last = power, uniforms[-1]
        self.norms = row_squares(queries)
        self.alive = np.arange(len(owner))
        self.nodes = np.ones(len(owner), dtype=np.intp)
        if compiled.fast() is not None:
            self._run_compiled((queries, owner, power, uniforms))
            return
        self.mass = self._mass(self.nodes)
        for level in uniforms[:-1]:
            self._step(level[self.alive])

    def _run_compiled(self, asked):
        self.mass = np.empty(len(self.owner))
        compiled.fast().leaves(asked, self.tree.nodes, self.nodes, self.mass)
        self.alive = np.flatnonzero(self.nodes)
        self.nodes, self.mass = self.nodes[self.alive], self.mass[self.alive]

    def land(self, points):
        """A point for every walk, -1 where it has to start over."""
        found = np.full(len(self.owner), -1, dtype=np.intp)
        starts = self.tree.starts
        for key, mine in _groups(self._keys(self.nodes)):
            query, node = divmod(key, 2 * self.tree.capacity)
            start, stop = starts[node - self.tree.capacity :][:2]
            squares = points.squares(query, np.arange(start, stop))
            edges = np.cumsum(squares ** (self.power / 2), dtype=np.float64)
            total = self.mass[mine[0]] if self.power == 1 else edges[-1]
            walks = self.alive[mine]
            at = np.searchsorted(edges, self.last[walks] * total, "right")
            found[walks] = np.where(at < len(edges), start + at, -1)
        return found

    def _step(self, uniforms):
        """One level down; walks that fall between the children stop."""
        left = 2 * self.nodes
        to_left, to_right = self._mass(left), self._mass(left + 1)
        whole = self.mass if self.power == 1 else to_left + to_right
        u = uniforms * whole
        goes_left = u < to_left
        goes_right = ~goes_left & (u >= whole - to_right) & (to_right > 0)
        on = goes_left | goes_right
        self.alive = self.alive[on]
        self.nodes = (left + goes_right)[on]
        self.mass = np.where(goes_left, to_left, to_right)[on]

    def _mass(self, nodes):
        """What a walk weighs a node by: ``Σ d²``, or ``B`` for power 1."""
        keys, inverse = np.unique(self._keys(nodes), return_inverse=True)
        owner, nodes = np.divmod(keys, 2 * self.tree.capacity)
        mass = self.tree.node_squares(self.queries, self.norms, owner, nodes)
        if self.power == 1:
            mass = np.sqrt(self.tree.node_counts(nodes)) * np.sqrt(mass)
        return mass[inverse]

    def _keys(self, nodes):
        """One number for a walk's query and node, so that equal ones are done once."""
        return self.owner[self.alive] * (2 * self.tree.capacity) + nodes


def _groups(keys):
    """Yield `(key, positions)` for every distinct key."""
    if len(keys) == 1:
        yield keys[0], np.zeros(1, dtype=np.intp)
        return
    order = np.argsort(keys, kind="stable")
    values, firsts = np.unique(keys[order], return_index=True)
    if values.size:
        yield from zip(values, np.split(order, firsts[1:]), strict=True)


def _bucket_counts(n, bucket):
    counts = np.full(-(-n // bucket), bucket, dtype=np.intp)
    counts[-1] -= counts.sum() - n
    return counts


def _sums_from(values, starts):
    """Sums, in float64, of the runs of `values` that begin at `starts`."""
    return np.add.reduceat(values, starts, axis=0, dtype=np.float64)


def _sums_of(rows):
    """The sum of rows and the sum of their squared lengths, in float64."""
    return rows.sum(axis=0, dtype=np.float64), row_squares(rows).sum()


def _paired(values):
    """Sums of neighbours; an odd last one stays alone."""
    return np.add.reduceat(values, np.arange(0, len(values), 2), axis=0)


def _draw(weights, size, rng):
    """`size` positions with probability ∝ weights; uniform where all are zero."""
    edges = np.cumsum(weights, dtype=np.float64)
    if not edges[-1] > 0:
        return rng.integers(len(weights), size=size)
    at = np.searchsorted(edges, rng.random(size) * edges[-1], side="right")
    return np.minimum(at, len(weights) - 1)
