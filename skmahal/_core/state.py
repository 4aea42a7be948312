"""Truth, a log, and derived arrays that catch up.

The truth is the points and the metric. Everything else is derived: images (the points
under one linear map: transformed rows, leading coordinates, sketches), squared norms,
the distance tree. A metric update ``U += W Vᵀ`` writes W and ``T = X V`` to a short log
and advances the clock; a derived array adds the part of the log that it has not seen
when it is next touched.

A derived array whose tick is None reflects no known version and is rebuilt from the
truth. That is also the whole of exception safety: while the truth moves, every tick is
None, so an interruption costs time and never an answer.
"""

import threading
from contextlib import contextmanager
from copy import copy

import numpy as np

from .buffers import grown, owned
from .gate import Gate
from .images import Columns, Rows
from .kernels import HeldCandidates, TakenCandidates
from .metric import Metric
from .points import block_rows, make_points, points_from
from .saved import array_from, integer_from, require
from .tiles import add_product, row_squares
from .tree import DistanceTree
from .workers import run, slices

_LOG_SHARE = 32
_LEAST_LOG, _MOST_LOG = 16, 128

# How far, relative to its size, a point's rows may drift from the truth through
# rounding in updates. Where more than a share of the points may have, all is rebuilt.
DRIFT = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-13}
_DRIFTED_SHARE = 0.01

# Points whose derived rows are compared with the truth when a state is restored.
_LOOKED_AT = 16


class Norms:
    """``‖y_i‖²`` of every point, and how far images of it may have drifted, in float64.

    Never behind: updated with the metric. Each update leaves an error of about eps
    times the size of a row before and of what was added to it, in an arbitrary
    direction, so that squared errors add up.
    """

    def __init__(self):
        self.tick = None
        self._buffer = None
        self._drift = None

    def view(self, n):
        return self._buffer[:n]

    def load(self, values):
        self._buffer, self._drift = values, np.zeros_like(values)

    def move(self, values, errors):
        """Follow a metric update that left squared errors in the images."""
        self._buffer, self._drift = values, self._drift[: len(errors)] + errors

    def drifted(self, tolerance):
        """Share of the points that are off by more than `tolerance` of their size."""
        n = len(self._drift)
        return np.mean(self._drift > tolerance**2 * self._buffer[:n])

    def append(self, n, rows):
        squares = row_squares(rows)
        self._buffer = grown(self._buffer, n, n + len(rows))
        self._buffer[n : n + len(rows)] = squares
        self._drift = grown(self._drift, n, n + len(rows))
        self._drift[n : n + len(rows)] = 0

    def assign(self, indices, rows):
        self._buffer, self._drift = owned(self._buffer), owned(self._drift)
        self._buffer[indices] = row_squares(rows)
        self._drift[indices] = 0

    def keep(self, mask):
        self._buffer = self._buffer[: len(mask)][mask]
        self._drift = self._drift[: len(mask)][mask]

    def saved(self, n):
        """The norms as plain values."""
        if self.tick is None:
            return {"tick": None}
        return {"tick": self.tick, "squares": self.view(n), "drift": self._drift[:n]}

    @classmethod
    def restored(cls, saved, n, now):
        """The norms of which these are the values, of n points."""
        norms, floats = cls(), (np.dtype(np.float64),)
        if saved["tick"] is not None:
            norms.tick = integer_from(saved, "tick", most=now)
            norms._buffer = array_from(saved, "squares", floats, (n,))
            norms._drift = array_from(saved, "drift", floats, (n,))
            least = min(norms._buffer.min(), norms._drift.min())
            require(least >= 0, "a square is negative")
        return norms

    def check_some(self, indices, squares, slack):
        """Refuse norms that are not the roots of `squares` at these positions."""
        roots, held = np.sqrt(squares), np.sqrt(self._buffer[indices])
        fits = np.abs(held - roots) <= 1e-2 * roots.max() + slack
        require(fits.all(), "squared norms do not belong to the points")

    def drift_of(self, indices):
        """How far images of some points may be off, as distances."""
        return np.sqrt(self._drift[indices])


class Log:
    """Low-rank updates that some image may not have seen, as columns of W and T.

    Time is the number of columns ever published. Room for columns is made as they come,
    by doubling, and given back when the log is cleared.
    """

    def __init__(self, k, n, dtype, start=0):
        self.start = start
        self.used = 0
        self._W = np.empty((k, 0), dtype=dtype, order="F")
        self._T = np.zeros((n, 0), dtype=dtype, order="F")

    @property
    def now(self):
        return self.start + self.used

    def write(self, W, T):
        """Put columns behind the last; they count once :meth:`publish` is called."""
        end = self.used + W.shape[1]
        self._W = grown(self._W.T, self.used, end).T
        self._T = grown(self._T.T, self.used, end).T
        self._W[:, self.used : end] = W
        self._T[: len(T), self.used : end] = T

    def publish(self, rank):
        self.used += rank

    def since(self, tick, n):
        """W (k × p) and T (n × p) of what was published after `tick`."""
        columns = slice(tick - self.start, self.used)
        return self._W[:, columns], self._T[:n, columns]

    def append(self, n, count):
        """Rows for new points, which are born at the present time."""
        self._T = grown(self._T, n, n + count)
        self._T[n : n + count] = 0

    def assign(self, indices):
        """The same for points that were replaced."""
        self._T = owned(self._T)
        self._T[indices] = 0

    def kept(self, mask):
        """A log of the points where `mask` is True alone."""
        log = copy(self)
        log._T = np.asfortranarray(self._T[: len(mask)][mask])
        return log

    def saved(self, n):
        """The log as plain values."""
        W, T = self.since(self.start, n)
        # By columns also in a file, as loops are compiled for that.
        return {"start": self.start, "W": W, "T": np.asfortranarray(T)}

    @classmethod
    def restored(cls, saved, k, n, dtype):
        """The log of which these are the values."""
        log = cls(k, n, dtype, start=integer_from(saved, "start"))
        log._W = np.asfortranarray(array_from(saved, "W", (dtype,), (k, None)))
        log.used = log._W.shape[1]
        log._T = np.asfortranarray(array_from(saved, "T", (dtype,), (n, log.used)))
        return log


class State:
    """Points and metric, the log, and what is derived from them.

    Threads share it by its gate: inside :meth:`~.gate.Gate.reading` nothing changes but
    that images catch up, each once and under a lock; whoever changes points or metric
    does it inside :meth:`~.gate.Gate.writing`.
    """

    def __init__(self, U, X):
        points = make_points(X)
        self._begin(points, Metric(U, points.d, points.dtype))

    def _begin(self, points, metric):
        self.points, self.metric = points, metric
        self.targets = None
        self.log = Log(self.k, self.n, self.dtype)
        self.rows = Rows()
        self.norms = Norms()
        self.tree = DistanceTree()
        self.images = [self.rows]
        self.version = 0
        self.gate = Gate()
        self._lock = threading.RLock()

    def __getstate__(self):
        return {name: v for name, v in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def saved(self, images):
        """All of it as plain values, with these images of an engine.

        Nobody else may change it meanwhile. Arrays are not copied, those excepted that
        a query would write to. Where anything is in use, norms are.
        """
        with self._lock:
            n, now = self.n, self.log.now
            if any(derived.tick is not None for derived in [*images, self.tree]):
                self.current_norms()
            return {
                "points": self.points.saved(),
                "targets": self.current_targets(),
                "metric": self.metric.saved(),
                "log": self.log.saved(n),
                "images": [image.saved(n, now) for image in images],
                "norms": self.norms.saved(n),
                "tree": self.tree.saved(now),
                "version": self.version,
            }

    @classmethod
    def restored(cls, saved):
        """The state of which these are the values, or an error.

        Shapes and types are looked at, that numbers are finite, and whether what is
        derived is that of the points. O(nk(d + columns of images)); of an index that is
        mapped from a file a few points are looked at, which is O(kd).
        """
        state, points = cls.__new__(cls), points_from(saved["points"])
        shape = n, _, dtype = points.n, points.d, points.dtype
        state._begin(points, Metric.restored(saved["metric"], *shape[1:]))
        k, state.version = state.k, integer_from(saved, "version")
        state.targets = _targets_from(saved, n)
        state.log = log = Log.restored(saved["log"], k, n, dtype)
        kinds = [Rows] + [Columns] * (len(saved["images"]) - 1)
        images = zip(kinds, saved["images"], strict=True)
        known = n, k, dtype, log
        state.images = [kind.restored(image, *known) for kind, image in images]
        state.rows = state.images[0]
        state.norms = Norms.restored(saved["norms"], n, log.now)
        state.tree = DistanceTree.restored(saved["tree"], n, k, log)
        state._check_some()
        return state

    def _check_some(self):
        """Refuse derived arrays that are not of these points under this metric."""
        if not self.in_use:
            used = any(image.tick is not None for image in [*self.images, self.tree])
            require(not used, "there are no norms")
            return
        room = block_rows(self.d, self.dtype.itemsize)
        if self.points.is_mapped:
            count = min(self.n, _LOOKED_AT, room)
            self._check_points(np.unique(np.linspace(0, self.n - 1, count, dtype=int)))
        else:
            for here in slices(self.n, room):
                self._check_points(np.arange(here.start, here.stop))
        if self.tree.tick is not None:
            behind = self.log.since(self.tree.tick, self.n)
            drift = self.norms.drift_of(slice(None)) ** 2
            self.tree.check_some(self._rows_of_truth, drift, *behind, room)

    def _check_points(self, some):
        rows = self.metric.transform(self.points.take(some))
        squares = row_squares(rows)
        # Many times what rounding may have left.
        slack = 100 * self.tolerance * np.sqrt(squares.max())
        slack = slack + 10 * self.norms.drift_of(some)
        self.norms.check_some(some, squares, slack)
        for image in self.images:
            if image.tick is not None:
                behind = self.log.since(image.tick, self.n)
                image.check_some(some, rows, *behind, slack)

    def _rows_of_truth(self, start, stop):
        return self.metric.transform(self.points.take(slice(start, stop)))

    @property
    def n(self):
        return self.points.n

    @property
    def d(self):
        return self.points.d

    @property
    def k(self):
        return self.metric.k

    @property
    def dtype(self):
        return self.points.dtype

    @property
    def tolerance(self):
        """Relative drift at which derived arrays are rebuilt."""
        return DRIFT[self.dtype]

    @property
    def stores_rows(self):
        """Whether transformed rows are held, rather than made from X when needed.

        Under the Euclidean metric they would repeat X, and for sparse points they may
        be far larger than X.
        """
        return not self.metric.is_identity and self.k <= self.points.widest_rows

    def transform(self, X):
        """``U (x - origin)`` of dense rows given by a user; O(kd) a row."""
        return self.metric.transform(self.points.centre(X))

    def transform_queries(self, Q):
        """The same for queries, whose squared distances must not overflow."""
        most = self._largest_square
        with np.errstate(over="ignore", invalid="ignore"):
            u = self.transform(Q)
            # All queries together are soon told to be small, and nearly always are.
            fits = np.vdot(u, u) < most or np.einsum("ij,ij->i", u, u).max() < most
        if not fits:
            raise ValueError(
                f"X has queries that are too large for distances in {self.dtype}."
            )
        return u

    @property
    def _largest_square(self):
        """Of the length of a row, so that squared distances do not overflow."""
        return np.finfo(self.dtype).max / 16

    def take(self, indices):
        """Transformed rows of some points as of now, with no catching up."""
        if not self.stores_rows:
            return self.metric.transform(self.points.take(indices))
        while True:
            tick = self.rows.tick
            if tick is None:
                self.current(self.rows)
                continue
            taken = self.rows.moved_rows(indices, *self.log.since(tick, self.n))
            # Another reader may have brought the rows up to date in the meantime.
            if self.rows.tick == tick:
                return taken

    def searched(self, Q, u, search):
        """``search(candidates)`` for queries Q, transformed to u, with no catching up.

        It is repeated where another reader has brought the rows up to date meanwhile.
        """
        if self.metric.is_identity and self.points.widest_rows == np.inf:
            none = np.empty((0, self.n), dtype=self.dtype)
            rows, weights = self.points.array, np.empty((0, self.k), dtype=self.dtype)
            return search(HeldCandidates(Q, rows, weights, none))
        if not self.stores_rows:
            return search(TakenCandidates(u, self.take))
        while True:
            tick = self.rows.tick
            if tick is None:
                self.current(self.rows)
                continue
            W, T = self.log.since(tick, self.n)
            found = search(HeldCandidates(u, self.rows.view(self.n), W.T, T.T))
            if self.rows.tick == tick:
                return found

    @property
    def holds_rows(self):
        """Whether transformed rows are in memory, be it as the points themselves."""
        dense = self.points.widest_rows == np.inf
        plain = self.metric.is_identity and self.points.origin is None
        return self.stores_rows or (dense and plain)

    def held_rows(self):
        """Transformed rows of all points as of now, or None where none are held."""
        if self.stores_rows:
            return self.current(self.rows).view(self.n)
        return self.points.array if self.holds_rows else None

    def row_blocks(self, multiple=1):
        """Yield `(slice, transformed rows)` over all points, as of now.

        Blocks hold a whole number of `multiple` rows, the last one excepted.
        """
        step = block_rows(self.k, self.dtype.itemsize)
        step = max(multiple, step - step % multiple)
        held = self.held_rows()
        for start in range(0, self.n, step):
            here = slice(start, min(start + step, self.n))
            yield here, self.take(here) if held is None else held[here]

    def current(self, image):
        """`image` as of now: O(1), a catch-up, or a rebuild."""
        with self._lock:
            if image.tick is None:
                image.load(self._images_of_all(image))
            elif image.tick < self.log.now:
                pending = self.log.since(image.tick, self.n)
                image.tick = None
                image.move(*pending)
            image.tick = self.log.now
            return image

    def current_norms(self):
        """``‖y_i‖²`` of every point as of now."""
        with self._lock:
            if self.norms.tick is None:
                self.norms.load(self._norms_of_all())
                self.norms.tick = self.log.now
            return self.norms.view(self.n)

    def current_tree(self):
        """The tree as of now: O(1), a catch-up in O(nk / bucket), or a build."""
        with self._lock:
            tree, now = self.tree, self.log.now
            norms = self.current_norms()
            if tree.tick is None:
                tree.build(self.row_blocks(tree.bucket), norms, self.k)
            elif tree.tick < now:
                pending = self.log.since(tree.tick, self.n)
                tree.tick = None
                tree.move(*pending, norms)
            tree.tick = now
            return tree

    def add_low_rank(self, change, result=None, rounding=1, jobs=1):
        """``U += W Vᵀ``: one pass over X; derived arrays follow when touched.

        `result` is U after it, for who knows it better than by this sum, and `rounding`
        what the change itself is uncertain by, in units of eps. Where nothing is
        derived yet there is nothing to follow, and X is not read.
        """
        W, V = change
        self._check_entries(change)
        if self.norms.tick is None:
            self.forget()
            _add_to(self.metric.writable(), change, result)
            self.version += 1
            return
        both = self.points.dot(np.hstack([V, self.metric.pull_back(W)]), jobs)
        T, along = both[:, : change.rank], both[:, change.rank :]
        norms, errors = self._norms_after(T, along, W)
        if self.metric.is_identity and self.k <= self.points.widest_rows:
            self._hold_identity_rows()
        self._make_room(change.rank)
        self.log.write(W, T)
        U, tree_tick = self.metric.writable(), self.tree.tick
        with self._moving():
            _add_to(U, change, result)
            self.log.publish(change.rank)
            self.norms.move(norms, rounding**2 * errors)
        self.tree.tick = tree_tick
        if self.norms.drifted(self.tolerance) > _DRIFTED_SHARE:
            self.forget()

    @property
    def in_use(self):
        """Whether anything has been derived."""
        return self.norms.tick is not None

    def under(self, metric):
        """The same points under another metric, with nothing derived yet.

        Points, targets and gate are shared; this state must not be changed after.
        """
        state = copy(self)
        state.metric, state.log = metric, Log(metric.k, self.n, self.dtype)
        state.rows, state.norms, state.tree = Rows(), Norms(), DistanceTree()
        state.images = [state.rows]
        state.version = self.version + 1
        return state

    def current_targets(self):
        """What travels with the points, row by row, or None."""
        return None if self.targets is None else self.targets[: self.n]

    def append(self, X, targets=None):
        """Add points. O(rows (kd + columns of all images)), amortised."""
        rows = self._new_rows(X)
        tree = self._live_tree()
        with self._moving() as live:
            for derived in live:
                derived.append(self.n, rows)
            self.log.append(self.n, len(rows))
            if targets is not None:
                self.targets = grown(self.targets, self.n, self.n + len(rows))
                self.targets[self.n : self.n + len(rows)] = targets
            # Last: rows beyond the number of points are not seen.
            self.points.append(X)
        if tree is not None:
            tree.append(rows)
            tree.tick = self.log.now
        self.points.recentre(self.forget)

    def cut(self, n):
        """Keep the first n points; what is derived of the others is not seen."""
        if n < self.n:
            self.tree.tick = None
            self.points.cut(n)
            self.version += 1

    def assign(self, indices, X, targets=None):
        """Replace points. O(rows (kd + columns of all images + k log n))."""
        rows = self._new_rows(X)
        tree = self._live_tree()
        with self._moving() as live:
            for derived in live:
                derived.assign(indices, rows)
            self.log.assign(indices)
            self._assign_truth(indices, X, targets)
        if tree is not None:
            tree.assign(indices, self._rows_between)
            tree.tick = self.log.now

    def remove(self, indices):
        """Remove points; later ones move up, as in `numpy.delete`. O(n) a column."""
        mask = np.ones(self.n, dtype=bool)
        mask[indices] = False
        tree = self._live_tree()
        with self._moving() as live:
            for derived in live:
                derived.keep(mask)
            targets = self.current_targets()
            targets = None if targets is None else targets[mask]
            points, log = self.points.kept(mask), self.log.kept(mask)
            # Nothing that can fail comes between these.
            self.points, self.log, self.targets = points, log, targets
        if tree is not None:
            tree.remove(np.flatnonzero(~mask), self._rows_between)
            tree.tick = self.log.now

    def forget(self):
        """Let every derived array be rebuilt from the truth when next touched."""
        for derived in [*self.images, self.norms, self.tree]:
            derived.tick = None

    def prepare(self, images, jobs=1):
        """Build the given images, and norms; the tree waits for who samples or sums."""
        if self.rows in images and self.stores_rows and self.rows.tick is None:
            self._hold(self.rows, self._rows_of_all(jobs))
        missing = [image for image in images if image.map is not None]
        missing = [image for image in missing if image.tick is None]

        def build(image):
            self._hold(image, image.arranged(self._images_of_all(image)))

        run(build, missing, jobs)
        self.current_norms()

    def _hold(self, image, buffer):
        """Give an image what was built for it, where no other reader was first."""
        with self._lock:
            if image.tick is None:
                image.hold(buffer)
                image.tick = self.log.now

    def settle(self):
        """Bring every array that is in use up to now, and start an empty log."""
        with self._lock:
            for image in self.images:
                if image.tick is not None:
                    self.current(image)
            self._live_tree()
            self.log = Log(self.k, self.n, self.dtype, start=self.log.now)

    def _assign_truth(self, indices, X, targets):
        """Points and their targets, both or neither."""
        if targets is None:
            self.points.assign(indices, X)
            return
        self.targets = owned(self.targets)
        before = self.targets[indices]
        try:
            self.targets[indices] = targets
            self.points.assign(indices, X)
        except BaseException:
            if not self.points.holds(indices, X):
                self.targets[indices] = before
            raise

    @contextmanager
    def _moving(self):
        """Nothing derived has a tick inside; images and norms get theirs back after.

        They do not where the block raises. The tree's is for the caller to give. What
        the block gets are the images and norms in use, which have rows to be changed.
        """
        arrays = [*self.images, self.norms]
        ticks = [(derived, derived.tick) for derived in arrays]
        for derived in [*arrays, self.tree]:
            derived.tick = None
        yield [derived for derived, tick in ticks if tick is not None]
        for derived, tick in ticks:
            derived.tick = tick
        self.version += 1

    def _check_entries(self, change):
        """Refuse an update whose entries, or those of the new U, would overflow."""
        W, V = (np.abs(factor).max(initial=0).astype(float) for factor in change)
        with np.errstate(over="ignore"):
            size = W * V * change.rank
        if not size < np.sqrt(float(np.finfo(self.dtype).max)):
            raise ValueError(f"The change makes U too large for {self.dtype}.")

    def _norms_after(self, T, along, W):
        """``‖y_i‖²`` after ``y_i += W T_i``, and the squared errors this leaves."""
        T = T.astype(np.float64)
        before, gram = self.current_norms(), W.astype(np.float64).T @ W
        norms = before + np.einsum("ij,ij->i", T, 2 * along + T @ gram)
        if not norms.max() < self._largest_square:
            raise ValueError(f"The change makes distances overflow {self.dtype}.")
        added = T.shape[1] * (T**2 @ np.diag(gram))
        errors = np.finfo(self.dtype).eps ** 2 * (before + added)
        return np.maximum(norms, 0), errors

    def _new_rows(self, X):
        """Transformed rows of points to come, which must not overflow."""
        with np.errstate(over="ignore", invalid="ignore"):
            rows = self.transform(X)
            fits = row_squares(rows).max() < self._largest_square
        if not fits:
            raise ValueError(f"X is too large under the metric for {self.dtype}.")
        return rows

    def _rows_between(self, start, stop):
        return self.take(slice(start, stop))

    def _live_tree(self):
        """The tree as of now where it is in use, else None."""
        return None if self.tree.tick is None else self.current_tree()

    def _images_of_all(self, image):
        """The rows of `image`, from the truth or from transformed rows as of now."""
        if image.map is None:
            return self._rows_of_all()
        if self.stores_rows:
            return self.current(self.rows).view(self.n) @ image.map.T
        return self.points.dot(self.metric.pull(image.map).T)

    def _rows_of_all(self, jobs=1):
        rows = np.empty((self.n, self.k), dtype=self.dtype)

        def fill(here):
            rows[here] = self.metric.transform(self.points.take(here))

        step = min(block_rows(self.d, self.dtype.itemsize), -(-self.n // jobs))
        run(fill, slices(self.n, step), jobs)
        return rows

    def _hold_identity_rows(self):
        """Before the Euclidean metric first changes: its rows are a copy of X."""
        self.rows.load(self._rows_of_all())
        self.rows.tick = self.log.now

    def _norms_of_all(self):
        norms = np.empty(self.n)
        for here, block in self.row_blocks():
            norms[here] = row_squares(block)
        if not norms.max() < self._largest_square:
            raise ValueError(f"X is too large under the metric for {self.dtype}.")
        return norms

    def _make_room(self, rank):
        capacity = max(_LEAST_LOG, min(self.d // _LOG_SHARE, _MOST_LOG))
        if self.log.used + rank > capacity:
            self.settle()


def _targets_from(saved, n):
    """What travels with n points, by rows of numbers, or None."""
    if saved["targets"] is None:
        return None
    kinds = (np.dtype(np.float64), np.dtype(np.intp))
    shape = (n, *saved["targets"].shape[1:])
    return array_from(saved, "targets", kinds, shape)


def _add_to(U, change, result):
    """``U += W Vᵀ`` by one call, whose `result` may be known."""
    if result is None:
        add_product(U, *change)
    else:
        np.copyto(U, result)
