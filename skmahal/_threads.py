"""How many threads a call takes, and one BLAS thread for each of them."""

from functools import lru_cache
from numbers import Integral
from threading import Lock

from joblib import cpu_count, effective_n_jobs
from threadpoolctl import ThreadpoolController

from skmahal._core.gate import Visit


@lru_cache(maxsize=1)
def _blas():
    """The BLAS libraries of this process; finding them takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")


@lru_cache(maxsize=1)
def _cores():
    """Cores for this process; joblib reads files of the system to tell."""
    return cpu_count()


def thread_count(n_jobs):
    """Threads for `n_jobs`; None takes as many as BLAS may use.

    That is one a core, or fewer where the user, or joblib in its workers, has limited
    the threads of BLAS.

    Examples
    --------
    >>> thread_count(2)
    2
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
    """BLAS at one thread while anybody is inside."""

    def __init__(self):
        self._lock = Lock()
        self._inside = set()
        self._limit = None

    def __call__(self):
        return _Pinned(self)

    def add(self, visit):
        with self._lock:
            if self._limit is None:
                self._limit = _blas().limit(limits=1)
            self._inside.add(visit)

    def discard(self, visit):
        with self._lock:
            self._inside.discard(visit)
            # Who was interrupted on the way out is gone all the same.
            self._inside -= {visit for visit in self._inside if not visit.lasts()}
            if not self._inside and self._limit is not None:
                self._limit.restore_original_limits()
                self._limit = None


class _Pinned(Visit):
    def __init__(self, pin):
        self._pin = pin

    def come(self):
        self._pin.add(self)

    def leave(self):
        self._pin.discard(self)


one_blas_thread = _Pin()
