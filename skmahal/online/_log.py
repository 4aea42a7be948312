"""U as it moves: a stored matrix, and the latest rank-one steps beside it."""

import secrets

import numpy as np

from skmahal._core import compiled
from skmahal._core.metric import LowRank
from skmahal._core.saved import FLOATS, array_from, integer_from, require


class MovingFactor:
    """The matrix U after so many steps, as a value that never changes.

    ``U = stored + W Vᵀ``, where W and V hold the columns of steps that are not in the
    stored matrix yet. The same columns are the log: they stay for a while after they
    were added in, so that whoever knows an earlier version can be brought up to date.
    When the room is full, all columns are added into a new stored matrix and the older
    half is forgotten.

    A step gives a new value that shares the arrays of the old one, O(k + d); once in
    ``room / 2`` steps it is O(kd) more for each column. The value before stays as it
    was, which makes undoing free.

    Parameters
    ----------
    U : ndarray of shape (k, d)
        The matrix to start from. It is kept, not copied.
    room : int
        Columns that the log may hold, at least 2.
    version : int
        Steps made before.
    stream : str
        Name of the sequence of versions; a new one where it is not given.

    Examples
    --------
    >>> from skmahal._core.metric import LowRank
    >>> start = MovingFactor(np.eye(2), room=4)
    >>> now = start.moved(LowRank(np.array([[1.0], [0.0]]), np.array([[0.0], [3.0]])))
    >>> now.components()
    array([[1., 3.],
           [0., 1.]])
    >>> W, V = now.since(start.token)
    >>> W @ V.T
    array([[0., 3.],
           [0., 0.]])
    """

    # NumPy arrays leave ``w @ factor`` to this class.
    __array_ufunc__ = None

    def __init__(self, U, room, version=0, stream=None):
        self._stored = U
        self._steps = StepLog(room, *U.shape, U.dtype)
        self._count = self._added = 0
        self.version = version
        self.stream = secrets.token_hex(16) if stream is None else stream

    @property
    def shape(self):
        return self._stored.shape

    @property
    def dtype(self):
        return self._stored.dtype

    @property
    def token(self):
        """What :meth:`since` takes: the stream and the version."""
        return self.stream, self.version

    def __matmul__(self, z):
        """``U @ z``; O(kd)."""
        W, V = self._pending
        return self._stored @ z + (V @ z) @ W

    def __rmatmul__(self, w):
        """``w @ U``; O(kd) for each row of w."""
        W, V = self._pending
        return w @ self._stored + (w @ W.T) @ V

    def transform(self, X):
        """``X @ U.T``; O(kd) a row."""
        W, V = self._pending
        return X @ self._stored.T + (X @ V.T) @ W

    def components(self):
        """U as a new array; O(kd) for each step that is not added in yet."""
        W, V = self._pending
        if not len(W):
            return self._stored.copy()
        total = W.T @ V
        total += self._stored
        return total

    def moved(self, change):
        """The factor after ``U += W Vᵀ``, W and V of one column."""
        now = self._with_room()
        now._steps = now._steps.followed(now._count, change.W[:, 0], change.V[:, 0])
        now._count += 1
        now.version += 1
        return now

    def extended(self, steps):
        """The factor after ``steps(stored, W, V, added, count)``, and what it did.

        It gets the stored matrix, the log by rows, how many steps of it are added in
        and how many there are, writes more behind those, and returns how much it did
        and how many steps there are then.
        """
        now = self._with_room()
        now._steps = now._steps.writable(now._count)
        W, V = now._steps.between(0, now._steps.room)
        stored = compiled.read_only(now._stored)
        done, count = steps(stored, W, V, now._added, now._count)
        now.version += count - now._count
        now._count = now._steps.used = count
        return now, done

    def replaced(self, U):
        """The factor after a step to any U; the log starts anew."""
        room = self._steps.room
        return MovingFactor(U, room, self.version + 1, self.stream)

    def since(self, token):
        """The sum of all steps since `token`, or None where they are not known."""
        stream, version = token
        first = self._count - (self.version - version)
        if stream != self.stream or not 0 <= first <= self._count:
            return None
        W, V = self._steps.between(first, self._count)
        return LowRank(W.T.copy(), V.T.copy())

    def restarted(self):
        """The same matrix as a stream of its own."""
        now = self._copied()
        now.stream = secrets.token_hex(16)
        return now

    @property
    def _pending(self):
        return self._steps.between(self._added, self._count)

    def _with_room(self):
        now = self._copied()
        if self._count == self._steps.room:
            now._stored = self.components()
            now._count = now._added = self._count // 2
            now._steps = self._steps.latest(now._count, self._count)
        return now

    def _copied(self):
        now = object.__new__(MovingFactor)
        now.__dict__.update(self.__dict__)
        return now

    def __getstate__(self):
        W, V = self._steps.between(0, self._count)
        return {
            "U": self._stored,
            "W": W,
            "V": V,
            "room": self._steps.room,
            "added": self._added,
            "version": self.version,
            "stream": self.stream,
        }

    def __setstate__(self, state):
        U = array_from(state, "U", FLOATS, (None, None))
        (k, d), kind = U.shape, (U.dtype,)
        W = array_from(state, "W", kind, (None, k))
        V = array_from(state, "V", kind, (len(W), d))
        room = integer_from(state, "room", least=max(2, len(W)))
        version = integer_from(state, "version")
        require(isinstance(state["stream"], str), "the stream has no name")
        self.__init__(U, room, version, state["stream"])
        self._steps.begin(W, V)
        self._count = len(W)
        self._added = integer_from(state, "added", most=self._count)


class StepLog:
    """Columns of W and V, kept as rows. Rows in use are never written to again."""

    def __init__(self, room, k, d, dtype):
        self.room, self.used = room, 0
        self._W, self._V = np.empty((room, k), dtype), np.empty((room, d), dtype)

    def between(self, first, last):
        return self._W[first:last], self._V[first:last]

    def followed(self, count, w, v):
        """The first `count` steps and one more, in place where nobody has others."""
        steps = self.writable(count)
        steps._W[count], steps._V[count] = w, v
        steps.used = count + 1
        return steps

    def writable(self, count):
        """The first `count` steps with room behind them that nobody else uses."""
        return self if self.used == count else self.latest(count, count)

    def latest(self, count, of):
        """A copy of the last `count` of the first `of` steps."""
        k, d = self._W.shape[1], self._V.shape[1]
        steps = StepLog(self.room, k, d, self._W.dtype)
        steps._W[:count], steps._V[:count] = self.between(of - count, of)
        steps.used = count
        return steps

    def begin(self, W, V):
        """Take the rows of W and V as the first steps."""
        self._W[: len(W)], self._V[: len(V)] = W, V
        self.used = len(W)


def log_room(d):
    """Columns worth keeping for d features.

    Following p columns costs an index p passes over points of d features, and taking
    a new U costs a matrix product that runs many times faster a number: beyond d / 4
    columns, and 64 of them unless d is large, a whole new U is as cheap.

    Examples
    --------
    >>> log_room(10), log_room(200), log_room(4_000)
    (16, 50, 125)
    """
    return max(16, min(d // 4, 64), d // 32)
