"""Times of calls that alternate, so that all contenders see the same machine."""

import time
from contextlib import nullcontext
from functools import lru_cache

import numpy as np
from threadpoolctl import ThreadpoolController

_FLUSH_BYTES = 1 << 29
# Threads of another library's pool spin for a while after its last call: those of
# OpenBLAS for 2^26 cycles.
_REST = 0.1
# After it, caches are cold and cores asleep: on a virtual machine the second one began
# 3 ms late, and both were slower by half for 10 ms more. Of calls so short that this
# would show, the first is not timed.
_SHORT = 0.25


def timed(call, *args, **kwargs):
    """Seconds that a call takes, and its result."""
    start = time.perf_counter()
    result = call(*args, **kwargs)
    return time.perf_counter() - start, result


def alternate(calls, *, rounds=7, budget=30.0, rivals=(), far=2.5):
    """Seconds of each call, by name, taken in turn, round after round.

    Every turn begins with a rest, and short calls are made once untimed after it.
    Rounds end when `budget` seconds are spent, but not before three. Of the `rivals`,
    those more than `far` times slower than the fastest of them are timed in the first
    round only.
    """
    times, spent = {name: [] for name in calls}, 0.0
    for call in calls.values():
        spent += timed(call)[0]
    for done in range(rounds):
        if done >= 3 and spent * (done + 2) / (done + 1) > budget:
            break
        for name, call in calls.items():
            if done and _is_far(name, times, rivals, far):
                continue
            time.sleep(_REST)
            seconds, _ = timed(call)
            spent += seconds
            if seconds < _SHORT:
                seconds, _ = timed(call)
                spent += seconds
            times[name].append(seconds)
    return times


def median(times):
    """Median of a list of seconds as a plain float."""
    return float(np.median(times))


def summary(times, per=1):
    """Median, mean and least of the times, each divided by `per`, and all of them."""
    times = [seconds / per for seconds in times]
    return {
        "median": median(times),
        "mean": float(np.mean(times)),
        "min": min(times),
        "times": times,
    }


def threads(limit):
    """Context in which BLAS and OpenMP use `limit` threads; None leaves them alone."""
    return nullcontext() if limit is None else _controller().limit(limits=limit)


def pinned(call, limit):
    """`call` with as many threads as `limit` says."""

    def with_limit():
        with threads(limit):
            return call()

    return with_limit


class CacheFlush:
    """Push everything out of the processor's caches by writing a large buffer."""

    def __init__(self, size=_FLUSH_BYTES):
        self._buffer = np.zeros(size // 8)

    def __call__(self):
        self._buffer += 1


@lru_cache(maxsize=1)
def _controller():
    """Made once, after all contenders were imported: making it takes milliseconds."""
    return ThreadpoolController()


def _is_far(name, times, rivals, far):
    """Whether a rival is out of the race after the first round."""
    if name not in rivals:
        return False
    return times[name][0] > far * min(times[rival][0] for rival in rivals)
