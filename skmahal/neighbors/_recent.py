"""The last few queries of an index, for its audit."""

from collections import deque

_MOST_ROWS = 64
_MOST_BYTES = 1 << 20


class RecentQueries:
    """Copies of the last rows that were asked about: 64, or as many as fit 1 MiB.

    Threads may add at the same time.

    Parameters
    ----------
    row_bytes : int
        Size of a row.

    Examples
    --------
    >>> import numpy as np
    >>> recent = RecentQueries(row_bytes=16)
    >>> recent.add(np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> len(recent.rows())
    2
    """

    def __init__(self, row_bytes):
        self.most = max(1, min(_MOST_ROWS, _MOST_BYTES // row_bytes))
        self._rows = deque(maxlen=self.most)

    @classmethod
    def beside(cls, engine):
        """For queries about the points of an engine."""
        return cls(engine.d * engine.dtype.itemsize)

    def add(self, queries):
        """Copy the last of some dense rows. O(d) each."""
        for row in queries[-self.most :]:
            self._rows.append(row.copy())

    def rows(self):
        """The rows held, the oldest first."""
        # A copy is made at once, while other threads go on adding.
        return list(self._rows.copy())
