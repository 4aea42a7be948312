"""Who may look at an index, and who may change it, when threads share it."""

import threading
from contextlib import contextmanager
from functools import wraps


class Gate:
    """Many readers, or one writer that has waited for them to leave.

    A change is prepared beside the readers, inside :meth:`changing`, which keeps other
    changes out, and then made inside :meth:`writing`, which keeps everybody out. A
    writer that waits goes before readers that come after it. A thread that is inside
    may come in again, but a reader may not become a writer.

    Examples
    --------
    >>> gate = Gate()
    >>> with gate.changing():
    ...     with gate.reading():
    ...         pass
    ...     with gate.writing():
    ...         pass
    """

    def __init__(self):
        self._condition = threading.Condition()
        self._changes = threading.RLock()
        self._readers = 0
        self._writer = None
        self._waiting = 0
        self._inside = threading.local()

    def __reduce__(self):
        return Gate, ()

    def reading(self):
        """Context in which nothing changes."""
        return _Reading(self)

    @contextmanager
    def changing(self):
        """One thread at a time; readers come and go meanwhile."""
        if getattr(self._inside, "depth", 0):
            raise RuntimeError("A query cannot change the index that it reads.")
        with self._changes:
            yield

    @contextmanager
    def writing(self):
        """Nobody else is inside. Comes within :meth:`changing`, or alone."""
        me = threading.get_ident()
        if self._writer == me:
            yield
            return
        with self.changing():
            with self._condition:
                self._waiting += 1
                try:
                    while self._readers:
                        self._condition.wait()
                    self._writer = me
                finally:
                    self._waiting -= 1
                    self._condition.notify_all()
            try:
                yield
            finally:
                with self._condition:
                    self._writer = None
                    self._condition.notify_all()


class _Reading:
    """The context of readers; every query comes by, so that it is no generator."""

    def __init__(self, gate):
        self._gate = gate

    def __enter__(self):
        gate, inside = self._gate, self._gate._inside
        depth = getattr(inside, "depth", 0)
        if depth:
            inside.depth = depth + 1
        elif gate._writer != threading.get_ident():
            with gate._condition:
                while gate._writer is not None or gate._waiting:
                    gate._condition.wait()
                gate._readers += 1
                inside.depth = 1

    def __exit__(self, *_):
        gate, inside = self._gate, self._gate._inside
        depth = getattr(inside, "depth", 0)
        if depth > 1:
            inside.depth = depth - 1
        elif depth:
            with gate._condition:
                inside.depth = 0
                gate._readers -= 1
                if not gate._readers:
                    gate._condition.notify_all()


def reads(method):
    """A method of an engine that many threads may be in."""

    @wraps(method)
    def inside(self, *args, **kwargs):
        with self._state.gate.reading():
            return method(self, *args, **kwargs)

    return inside


def writes(method):
    """A method of an engine that one thread alone may be in."""

    @wraps(method)
    def inside(self, *args, **kwargs):
        with self._state.gate.writing():
            return method(self, *args, **kwargs)

    return inside


def changes(method):
    """A method of an engine that prepares a change beside the readers."""

    @wraps(method)
    def inside(self, *args, **kwargs):
        with self._state.gate.changing():
            return method(self, *args, **kwargs)

    return inside
