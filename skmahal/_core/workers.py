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
