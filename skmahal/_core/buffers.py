"""Arrays by rows that grow, shrink, and may be mapped from a file."""

import numpy as np


def owned(array):
    """`array`, or a copy of it where it is read-only, as when mapped from a file."""
    return array if array.flags.writeable else array.copy(order="K")


def sifted(buffer, mask):
    """A copy of the rows where `mask` is True, and of the room behind the others.

    Who drops as many rows as come has room for those. There is none where half of the
    buffer would be idle. The room is zero.

    Examples
    --------
    >>> sifted(np.arange(4.0), np.array([True, False, True]))
    array([0., 2., 0., 0.])
    >>> sifted(np.arange(4.0), np.array([False, False, True]))
    array([2.])
    """
    count = np.count_nonzero(mask)
    room = len(buffer) if 2 * count >= len(buffer) else count
    shape = room, *buffer.shape[1:]
    kept = np.zeros(shape, dtype=buffer.dtype, order=_order(buffer))
    np.compress(mask, buffer[: len(mask)], axis=0, out=kept[:count])
    return kept


def grown(buffer, used, needed):
    """`buffer`, or a copy of its `used` rows with room for at least `needed`.

    The memory order is kept and the room is zero.

    Examples
    --------
    >>> grown(np.ones((2, 1)), 2, 3).ravel()
    array([1., 1., 0., 0.])
    """
    if needed <= len(buffer):
        return owned(buffer)
    shape = (max(needed, 2 * len(buffer)), *buffer.shape[1:])
    larger = np.zeros(shape, dtype=buffer.dtype, order=_order(buffer))
    larger[:used] = buffer[:used]
    return larger


def _order(array):
    """The memory order of an array, by rows where it has both."""
    return "C" if array.flags.c_contiguous or not array.flags.f_contiguous else "F"
