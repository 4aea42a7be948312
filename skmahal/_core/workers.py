"""Tasks on threads. What they call must let go of the interpreter to gain by it."""

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache


def slices(count, step):
    """Slices of at most `step` that cover ``range(count)``.

    Examples
    --------
    >>> list(slices(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def even_slices(count, step, jobs):
    """The same of even lengths, as many as give each of `jobs` threads its share.

    Examples
    --------
    >>> [part.stop - part.start for part in even_slices(10, 4, jobs=2)]
    [3, 3, 3, 1]
    """
    rounds = -(-count // (step * jobs))
    return slices(count, max(1, -(-count // max(1, rounds * jobs))))


def run(task, items, jobs):
    """``[task(item) for item in items]``, on this thread and up to `jobs` - 1 others.

    Examples
    --------
    >>> run(abs, [-1, -2], jobs=2)
    [1, 2]
    """
    if jobs == 1 or len(items) < 2:
        return [task(item) for item in items]
    results, waiting = [None] * len(items), enumerate(items)

    def work():
        try:
            for place, item in waiting:
                results[place] = task(item)
        except BaseException:
            # Nobody starts on another item.
            deque(waiting, maxlen=0)
            raise

    helpers = []
    try:
        for _ in range(min(jobs, len(items)) - 1):
            helpers.append(_pool().submit(work))
        work()
    finally:
        deque(waiting, maxlen=0)
        # One that has not begun has nothing left to do, and need not be waited for.
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return results


@lru_cache(maxsize=1)
def _pool():
    """Threads that are kept: to start one takes as long as a query."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="skmahal")


# A process that is forked has none of the threads of its parent.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
