"""Who may look at an index, and who may change it, when threads share it."""

import sys
import threading
from collections import deque
from functools import wraps

# Seconds after which who waits looks whether those it waits for are still there.
_PATIENCE = 0.05


class Gate:
    """Many readers, or one writer that has waited for them to leave.

    A change is prepared beside the readers, inside :meth:`changing`, which keeps other
    changes out, and then made inside :meth:`writing`, which keeps everybody out. A
    writer that waits goes before readers that come after it. A thread that is inside
    may come in again, but a reader may not become a writer.

    An interruption may come at any moment, also to who is about to leave. So a visit
    knows the frame whose `with` it is for, and is over when that no longer runs.

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
        self._lock = threading.Lock()
        self._asleep = deque()
        self._readers, self._writers = set(), set()
        self._waiting, self._changers = set(), set()

    def __reduce__(self):
        return Gate, ()

    def reading(self):
        """Context in which nothing changes."""
        return _Reading(self)

    def lent(self):
        """Context of a thread that works for one inside :meth:`reading`, which waits.

        It comes in also where a writer waits, who waits for that one.
        """
        return _Lent(self)

    def changing(self):
        """One thread at a time; readers come and go meanwhile."""
        return _Changing(self)

    def writing(self):
        """Nobody else is inside. Comes within :meth:`changing`, or alone."""
        return _Writing(self)

    @property
    def is_reading(self):
        """Whether this thread is inside :meth:`reading`."""
        return _is_among(self._readers)

    def forget_the_gone(self):
        """End the visits of who was interrupted on the way out."""
        with self._lock:
            for visits in self._all:
                visits -= {visit for visit in visits if not visit.lasts()}

    @property
    def is_empty(self):
        return not any(self._all)

    @property
    def _all(self):
        return self._readers, self._writers, self._waiting, self._changers

    def _admit(self, visit, visits, free):
        """Put a visit among others once ``free()`` says so."""
        while True:
            with self._lock:
                if free():
                    visits.add(visit)
                    return
                bell = threading.Lock()
                bell.acquire()
                self._asleep.append(bell)
            if not bell.acquire(timeout=_PATIENCE):
                self.forget_the_gone()

    def _leave(self, visit):
        with self._lock:
            for visits in self._all:
                visits.discard(visit)
            while self._asleep:
                self._asleep.popleft().release()


class Visit:
    """A context that lasts for as long as the frame runs that has it in a `with`."""

    def __enter__(self):
        self.begin(sys._getframe(1))

    def begin(self, frame):
        self.thread, self.frame = threading.get_ident(), frame
        self.come()

    def __exit__(self, *_):
        self.leave()

    def lasts(self):
        """Whether the frame still runs."""
        try:
            # Python refuses to clear a frame that does, and another is of no use.
            self.frame.clear()
        except RuntimeError:
            return True
        return False


class _AtGate(Visit):
    def __init__(self, gate):
        self._gate = gate

    def leave(self):
        self._gate._leave(self)


class _Reading(_AtGate):
    def come(self):
        self._gate._admit(self, self._gate._readers, self._free)

    def _free(self):
        gate = self._gate
        if not gate._writers and not gate._waiting:
            return True
        return _is_among(gate._readers) or _is_among(gate._writers)


class _Lent(_AtGate):
    def come(self):
        self._gate._admit(self, self._gate._readers, lambda: True)


class _Changing(_AtGate):
    def come(self):
        gate = self._gate
        if _is_among(gate._readers) and not _is_among(gate._writers):
            raise RuntimeError("A query cannot change the index that it reads.")
        gate._admit(self, gate._changers, self._free)

    def _free(self):
        return all(visit.thread == self.thread for visit in self._gate._changers)


class _Writing(_AtGate):
    def come(self):
        gate = self._gate
        self._change = None
        if _is_among(gate._writers):
            gate._admit(self, gate._writers, lambda: True)
            return
        self._change = _Changing(gate)
        self._change.begin(self.frame)
        try:
            gate._admit(self, gate._waiting, lambda: True)
            gate._admit(self, gate._writers, self._free)
        except BaseException:
            self.leave()
            raise
        gate._waiting.discard(self)

    def _free(self):
        return not self._gate._readers and not self._gate._writers

    def leave(self):
        self._gate._leave(self)
        if self._change is not None:
            self._change.leave()


def _is_among(visits):
    """Whether this thread is on one of some visits."""
    me = threading.get_ident()
    return any(visit.thread == me and visit.lasts() for visit in tuple(visits))


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
