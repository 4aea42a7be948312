"""What runs on the workers: chunks, their local indexes, and merging of answers.

A state of a shard is named by two stamps, one of its points and one of the metric. A
task has the logs of changes that lead to the state it is for. A chunk whose index has
an earlier state follows them. If that is not possible, the index is made from the
chunk, or the task returns :class:`Behind` and is sent again with all that this needs.
"""

from threading import RLock
from typing import NamedTuple

import numpy as np
from distributed import get_worker
from sklearn.base import clone

from skmahal._core.checks import surely_finite
from skmahal._core.points import row_squares
from skmahal._core.search import without_own
from skmahal._core.threads import slices

# Distances this close may be out of order by rounding: histories of shards differ.
_CLOSE = 1e-6

# Neighbours beyond four times as many that are compared, if they are all as far.
_MORE = 64

# Rows of a product of matrices. There are always as many, so that the distance of a
# pair does not depend on what other pairs there are.
_BLOCK = 64


class Behind:
    """The answer, this class itself, of a worker that cannot follow to the state."""


class Log(NamedTuple):
    """Changes in order; `stamps` name the states before, between and after them."""

    stamps: tuple
    changes: tuple = ()

    @property
    def stamp(self):
        """The state after all changes."""
        return self.stamps[-1]

    def added(self, stamp, change):
        """A log with one more change."""
        return Log((*self.stamps, stamp), (*self.changes, change))

    def last(self, number):
        """A log of the last changes alone; None is all of them."""
        start = 0 if number is None else max(0, len(self.changes) - number)
        return Log(self.stamps[start:], self.changes[start:])

    def since(self, stamp):
        """Changes after a state, each with the stamp behind it; None if it is unknown.

        >>> log = Log((1,)).added(2, "first").added(3, "second")
        >>> log.since(2), log.last(1).since(1)
        ([(3, 'second')], None)
        """
        if stamp not in self.stamps:
            return None
        at = self.stamps.index(stamp)
        return list(zip(self.stamps[at + 1 :], self.changes[at:], strict=True))


class Edit(NamedTuple):
    """A change of points of a shard; `kind` is "append", "replace" or "remove"."""

    kind: str
    at: np.ndarray | None = None
    X: np.ndarray | None = None
    y: np.ndarray | None = None

    @property
    def size(self):
        """Number of rows that change."""
        return len(self.at if self.X is None else self.X)


class Wanted(NamedTuple):
    """The state of a shard that a task is for: logs of edits and of metric steps."""

    edits: Log
    steps: Log


class Source(NamedTuple):
    """What a local index is made of beside the chunk: U or None, and an estimator."""

    U: np.ndarray | None
    local: object


class Look(NamedTuple):
    """What is wrong with a chunk or None, its rows, outputs, and labels of each."""

    problem: str | None
    shape: tuple
    dtype: np.dtype
    outputs: tuple | None
    labels: list


class Chunk:
    """Rows and targets of a shard, and the local index that is derived from them.

    Only rows and targets are written to disk or sent to another worker. `edits` and
    `steps` are the stamps of the index. `problem` says what is wrong with the rows.
    """

    def __init__(self, X, y, dtype, has_labels=False):
        self.problem, self.y = None, None if y is None else np.asarray(y)
        self.labels = []
        self.X = self._checked(np.asarray(X), dtype)
        if self.y is not None and self.problem is None:
            self._check_targets(has_labels)
        self.lock = RLock()
        self._drop_index()

    def _drop_index(self):
        self.index = self.targets = self.edits = self.steps = None

    def __getstate__(self):
        names = ("X", "y", "problem", "labels")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state):
        vars(self).update(state, lock=RLock())
        self._drop_index()

    def __sizeof__(self):
        return self.X.nbytes + (0 if self.y is None else self.y.nbytes)

    def _checked(self, X, dtype):
        """Rows in C order, float32 or float64; says in `problem` what they are not."""
        if dtype is not None and X.dtype != dtype:
            self.problem = f"has dtype {X.dtype}, expected {np.dtype(dtype)} as X has"
            return X
        kept = X.dtype if X.dtype == np.float32 else np.dtype(np.float64)
        try:
            with np.errstate(over="ignore"):
                X = np.ascontiguousarray(X, dtype=kept)
        except (TypeError, ValueError):
            self.problem = f"has dtype {X.dtype}, expected numbers"
            return X
        if X.ndim != 2:
            self.problem = f"has shape {X.shape}, expected two dimensions"
        elif not surely_finite(X) and not np.isfinite(X).all():
            self.problem = f"contains NaN or infinity, or a value too large for {kept}"
        elif self.y is not None and len(self.y) != len(X):
            self.problem = f"has {len(X)} rows, expected {len(self.y)} as y has"
        return X

    def _check_targets(self, has_labels):
        """Targets as numbers, or their labels; says in `problem` what is wrong."""
        try:
            if has_labels:
                self.labels = labels_of(self.y)
            else:
                self.y = self.y.astype(np.float64)
                if not np.isfinite(self.y).all():
                    self.problem = "has targets that are NaN or infinite"
        except (TypeError, ValueError) as error:
            self.problem = f"has targets that cannot be used: {error}"

    def look(self):
        """What the client has to know of the chunk."""
        outputs = None if self.y is None else self.y.shape[1:]
        return Look(self.problem, self.X.shape, self.X.dtype, outputs, self.labels)

    def edited(self, edits):
        """A chunk with changes made part of it, which takes over the index. O(nd)."""
        new = Chunk.__new__(Chunk)
        with self.lock:
            taken = self.index is not None and self.edits == edits.stamp
            X, y = (self._shared(), self.targets) if taken else self._after(edits)
            new.__setstate__({"X": X, "y": y, "problem": None, "labels": []})
            if taken:
                new.index, new.targets = self.index, self.targets
                new.edits, new.steps = self.edits, self.steps
                self._drop_index()
        return new

    def _after(self, edits):
        """Rows and targets after all edits."""
        changes = edits.changes
        return after(changes, self.X, "X"), after(changes, self.y, "y")

    def _shared(self):
        """The rows of the index, which copies them before it changes any."""
        points = self.index._maintenance.index.state.points
        points.buffer.flags.writeable = False
        return points.array

    def follow(self, wanted, source):
        """Bring the index to a state; returns whether that was possible."""
        edits, steps = wanted
        changes = None if self.index is None else edits.since(self.edits)
        moves = steps.since(self.steps)
        if source is None and (changes is None or moves is None):
            return False
        if changes is None or (moves is None and source.U is None):
            self._build(edits, source)
            self.steps = steps.stamp
            return True
        for stamp, edit in changes:
            self._edit(edit)
            self.edits = stamp
        for stamp, step in moves or ():
            self.index.update_metric(low_rank=step)
            self.steps = stamp
        if moves is None:
            self.index.update_metric({"U": source.U})
            self.steps = steps.stamp
        return True

    def _build(self, edits, source):
        """Make the index of the rows after all edits. O(nkd)."""
        X, y = self._after(edits)
        index = clone(source.local)
        index.metric_learner = None if source.U is None else {"U": source.U}
        self.index, self.targets = index.fit(X), y
        self.edits = edits.stamp
        if not edits.changes:
            # The index has its own copy, and one is enough.
            self.X = self._shared()

    def _edit(self, edit):
        targets = after([edit], self.targets, "y")
        if edit.kind == "append":
            self.index.partial_fit(edit.X)
        elif edit.kind == "remove":
            self.index.remove_points(edit.at)
        else:
            self.index.update_points(edit.at, edit.X)
        self.targets = targets

    # What tasks need beside the methods of the index, after `follow`.

    def rows(self, at=None):
        """Rows at positions, or all of them."""
        X = self.index._fit_X
        return np.array(X if at is None else X[at])

    def all_points(self):
        """All rows, and their targets or None."""
        return self.rows(), self.targets

    def nearest(self, Q, K, with_targets=False, U=None, exact=False):
        """Distances and positions of K neighbours, and their targets or None.

        There are fewer if there are fewer points, and more for queries whose K-th is
        about as far as others: equal points, whose distances were rounded differently,
        may be in any order. Where other queries have none, the distance is infinite and
        the position -1. If `exact`, distances are in float64, from differences of
        coordinates and U.
        """
        Q, most = np.ascontiguousarray(Q), min(len(self.index), 4 * K + _MORE)
        if not isinstance(self.index.n_candidates, str):
            most = min(most, K)
        width = min(K + 1, most)
        D, at = self.index.kneighbors(Q, width)
        tied = np.arange(len(Q))
        while width < most:
            tied = tied[D[tied, width - 1] <= (1 + _CLOSE) * D[tied, K - 1]]
            if not tied.size:
                break
            width = min(2 * width, most)
            # Other queries get infinite distances there, which sort last.
            missing = (0, 0), (0, width - D.shape[1])
            D = np.pad(D, missing, constant_values=np.inf)
            at = np.pad(at, missing, constant_values=-1)
            D[tied], at[tied] = self.index.kneighbors(Q[tied], width)
        if exact:
            queries, places = np.nonzero(at >= 0)
            D = D.astype(np.float64)
            for here in slices(len(queries), 1 << 12):
                some, which = queries[here], places[here]
                rows = self.index._fit_X[at[some, which]]
                D[some, which] = pair_distances(Q[some], rows, U)
        return D, at, self.targets[at] if with_targets else None

    def attempts(self, Q, size, seed):
        """Positions with probability ``d / sqrt(n Σ d²)`` each, or -1."""
        rng, index = np.random.default_rng(seed), self.index._maintenance.index
        return index.sample(Q, size, 1, rng, restart=False)


def after(changes, held, name):
    """Rows or targets after edits, of which `name` has the new ones; one copy.

    >>> changes = [Edit("append", X=np.array([7, 8])), Edit("remove", at=np.array([1]))]
    >>> after(changes, np.array([1, 2, 3]), "X")
    array([1, 3, 7, 8])
    """
    if held is None or not changes:
        return held
    # For every position the row that comes to it: one of those held, or a new one.
    source, new, seen = np.arange(len(held)), [held[:0]], len(held)
    for edit in changes:
        if edit.kind == "remove":
            source = np.delete(source, edit.at)
            continue
        numbers = np.arange(seen, seen + edit.size)
        seen += edit.size
        new.append(getattr(edit, name))
        if edit.kind == "append":
            source = np.concatenate([source, numbers])
        else:
            source[edit.at] = numbers
    new, late = np.concatenate(new), np.flatnonzero(source >= len(held))
    rows = held.take(source, axis=0, mode="clip").astype(new.dtype, copy=False)
    rows[late] = new[source[late] - len(held)]
    return rows


def labels_of(y):
    """Distinct labels of every output, sorted.

    >>> labels_of(np.array(["b", "a", "b"]))
    [array(['a', 'b'], dtype='<U1')]
    """
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError("y has labels that are NaN or infinite.")
    if y.dtype == object and any(one is None or one != one for one in y.ravel()):
        raise ValueError("y has labels that are missing.")
    return [np.unique(column) for column in y.reshape(len(y), -1).T]


def same(value):
    """A task: the value that it carries."""
    return value


def answer(chunk, wanted, U, local, method, *args):
    """A task: the address of the worker, and what :func:`answer_later` returns.

    That is :class:`Behind` if the chunk cannot follow. Errors that are due to arguments
    are returned, so that they are not tried again.
    """
    try:
        found = answer_later(chunk, wanted, U, local, method, *args)
    except (ValueError, TypeError, IndexError) as error:
        found = error
    return get_worker().address, found


def answer_later(chunk, wanted, U, local, method, *args):
    """A task: what a method of the chunk, or of its index in the wanted state, returns.

    U and `local` make the index if it is not there; both are None to do without. None
    as a method brings the index to the state, and nothing else.
    """
    with chunk.lock:
        if not chunk.follow(wanted, None if local is None else Source(U, local)):
            return Behind
        if method is not None:
            holder = chunk if hasattr(Chunk, method) else chunk.index
            return getattr(holder, method)(*args)


def pair_distances(Q, X, U):
    """``‖U (q - x)‖`` of rows of Q and X, in float64; the same for equal pairs.

    >>> pair_distances(np.ones((2, 2)), np.array([[1.0, 1.0], [1.0, 3.0]]), None)
    array([0., 2.])
    """
    gaps = Q.astype(np.float64) - X
    if U is None:
        return np.sqrt(row_squares(gaps))
    squares, block = np.empty(len(gaps)), np.zeros((_BLOCK, gaps.shape[1]))
    for here in slices(len(gaps), _BLOCK):
        block[: here.stop - here.start] = gaps[here]
        squares[here] = row_squares(block @ U.T)[: here.stop - here.start]
    return np.sqrt(squares)


def joined(parts, starts):
    """Distances, positions in the index, and targets or None of all candidates."""
    D = np.concatenate([part[0] for part in parts], axis=1)
    places = zip(parts, starts, strict=True)
    at = np.concatenate([part[1] + start for part, start in places], axis=1)
    if parts[0][2] is None:
        return D, at, None
    return D, at, np.concatenate([part[2] for part in parts], axis=1)


def in_order(D, at, K, *others):
    """The K first candidates of each query by distance and position.

    >>> in_order(np.array([[2.0, 1.0, 1.0]]), np.array([[0, 7, 5]]), 2)
    [array([[1., 1.]]), array([[5, 7]])]
    """
    order = np.lexsort((at, D))[:, :K]
    # Targets may have more dimensions.
    rows = np.arange(len(order))[:, np.newaxis]
    arrays = D, at, *others
    return [None if values is None else values[rows, order] for values in arrays]


def doubtful(D, K):
    """Candidates, in order, in runs of close distances that begin among the K first.

    >>> doubtful(np.array([[1.0, 2.0, 2.0, 3.0, 4.0, 4.0]]), 4).astype(int)
    array([[0, 1, 1, 0, 0, 0]])
    """
    near = np.zeros(D.shape, dtype=bool)
    near[:, 1:] = D[:, 1:] <= (1 + _CLOSE) * D[:, :-1]
    firsts = np.maximum.accumulate(np.where(near, 0, np.arange(D.shape[1])), axis=1)
    runs = near.copy()
    runs[:, :-1] |= near[:, 1:]
    return runs & (firsts < K)


def merged(parts, starts, K, dtype, own=None):
    """A task of a lazy array: distances, positions and targets of the K nearest.

    `own` is the position of the first query, if queries are points of the index.
    """
    D, at, targets = joined(parts, starts)
    D, at, targets = in_order(D, at, K + (own is not None), targets)
    if own is not None:
        D, at = without_own(own + np.arange(len(D)), D, at)
    return D.astype(dtype), at, targets
