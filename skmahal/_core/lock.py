"""Many readers or one writer, for threads that share an index."""

import os
import threading
import weakref
from itertools import count

_SLOTS = 8
_thread = threading.local()
_numbers = count()
_locks = weakref.WeakSet()


class ReadWriteLock:
    """Many readers, or one writer that has waited for them to finish.

    A reader holds one of eight re-entrant locks, that of its thread, so that at most
    eight threads read at a time; a writer holds all of them. They are locks of the
    interpreter, which `with` releases whatever interrupts the thread. New readers first
    pass through a queue that a waiting writer holds, so that readers cannot keep a
    writer out for ever. A thread may read again while it reads, but it may not write
    then. If a change is interrupted while it writes, `unfinished` is a function that
    finishes it, which the next reader or writer calls first. `deriving` is for readers
    that compute something for all of them.
    """

    def __init__(self):
        self.unfinished = None
        self.reset()
        _locks.add(self)

    def reset(self):
        """Make all locks anew, as for a process that was forked."""
        self._changing, self.deriving = threading.RLock(), threading.RLock()
        self._queue = threading.RLock()
        self._slots = [threading.RLock() for _ in range(_SLOTS)]

    def __reduce__(self):
        return ReadWriteLock, ()

    def reading(self):
        """A context manager inside which nothing changes."""
        slot = self._slots[_number()]
        if not slot._is_owned():
            if self.unfinished is not None:
                self.write(bool)
            with self._queue:
                pass
        elif self._queue._is_owned():
            raise RuntimeError("The index cannot be queried while it changes.")
        return slot

    def changing(self):
        """A context manager inside which no other thread prepares a change."""
        if self._slots[_number()]._is_owned() and not self._queue._is_owned():
            raise RuntimeError("A query cannot change the index that it reads.")
        return self._changing

    def write(self, change, *args, **kwargs):
        """``change(*args, **kwargs)`` while no other thread reads or writes."""
        self.changing()
        a, b, c, d, e, f, g, h = self._slots
        with self._queue, a, b, c, d, e, f, g, h:
            if self.unfinished is not None:
                self.unfinished()
            return change(*args, **kwargs)


def _number():
    """Which of the locks this thread reads with."""
    number = getattr(_thread, "number", None)
    if number is None:
        number = _thread.number = next(_numbers) % _SLOTS
    return number


def _reset_all():
    # Threads of the parent that held a lock are not in the child.
    for lock in list(_locks):
        lock.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
