"""Tasks on threads, and BLAS at one thread meanwhile."""

import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from numbers import Integral

import threadpoolctl
from joblib import cpu_count, effective_n_jobs

_cores = lru_cache(maxsize=1)(cpu_count)

# Newer versions of threadpoolctl ignore all threads but the first that limits OpenBLAS,
# until this is called. For older ones, `dict` does nothing.
_openblas = getattr(threadpoolctl, "OpenBLASController", None)
_let_any_thread_limit = getattr(_openblas, "clear_controlling_thread", dict)


def slices(count, step):
    """Slices of at most `step` that cover ``range(count)``."""
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def run(task, items, jobs):
    """``[task(item) for item in items]``, on this thread and up to `jobs` - 1 others.

    Threads gain only where `task` spends its time outside the interpreter.
    """
    if jobs == 1 or len(items) < 2:
        return [task(item) for item in items]
    results, waiting = [None] * len(items), enumerate(items)

    def work():
        try:
            for place, item in waiting:
                results[place] = task(item)
        except BaseException:
            # No thread starts on another item.
            deque(waiting, maxlen=0)
            raise

    others = []
    try:
        for _ in range(min(jobs, len(items)) - 1):
            others.append(_pool().submit(work))
        work()
    finally:
        deque(waiting, maxlen=0)
        # One that has not begun has nothing left to do, and need not be waited for.
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        other.result()
    return results


@lru_cache(maxsize=1)
def _pool():
    """Threads that are kept: to start one takes as long as a query."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="skmahal")


@lru_cache(maxsize=1)
def _blas():
    """The BLAS libraries of this process; finding them takes milliseconds."""
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def thread_count(n_jobs):
    """Threads for `n_jobs`; None takes as many as BLAS may use.

    That is one a core, or fewer where the user, or joblib in its workers, has limited
    the threads of BLAS.
    """
    if n_jobs is not None:
        if not isinstance(n_jobs, Integral) or n_jobs == 0:
            raise ValueError(
                f"n_jobs must be None or an integer other than 0, got {n_jobs!r}."
            )
        if n_jobs < 0:
            n_jobs = max(1, _cores() + 1 + n_jobs)
        return effective_n_jobs(n_jobs)
    allowed = [library.num_threads for library in _blas().lib_controllers]
    return max(effective_n_jobs(None), *allowed, 1)


class _Pin:
    """The threads that want BLAS at one thread, and the limit that was there before."""

    lock = threading.RLock()
    inside = set()
    limit = None


@contextmanager
def one_blas_thread():
    """Limit BLAS to one thread while any thread of this process is inside."""
    me = threading.get_ident()
    if me in _Pin.inside:
        yield
        return
    try:
        with _Pin.lock:
            _Pin.inside.add(me)
            if _Pin.limit is None:
                _let_any_thread_limit(force=True)
                _Pin.limit = _blas().limit(limits=1)
        yield
    finally:
        with _Pin.lock:
            _Pin.inside.discard(me)
            if not _Pin.inside and _Pin.limit is not None:
                _let_any_thread_limit(force=True)
                _Pin.limit.restore_original_limits()
                _let_any_thread_limit(force=True)
                _Pin.limit = None


def _after_fork():
    # A process that is forked has none of the threads of its parent.
    _pool.cache_clear()
    _Pin.lock, _Pin.inside = threading.RLock(), set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
