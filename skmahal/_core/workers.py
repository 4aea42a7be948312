"""Tasks on threads. What they call must let go of the interpreter to gain by it."""

from concurrent.futures import ThreadPoolExecutor


def slices(count, step):
    """Slices of at most `step` that cover ``range(count)``.

    Examples
    --------
    >>> list(slices(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def run(task, items, jobs):
    """``[task(item) for item in items]``, on up to `jobs` threads.

    Examples
    --------
    >>> run(abs, [-1, -2], jobs=2)
    [1, 2]
    """
    if jobs == 1 or len(items) < 2:
        return [task(item) for item in items]
    with ThreadPoolExecutor(min(jobs, len(items))) as threads:
        return list(threads.map(task, items))
