"""Pairs from labelled points, as they come in."""

from copy import deepcopy

import numpy as np

from skmahal._core.saved import (
    FLOATS,
    array_from,
    generator_from,
    integer_from,
    require,
)


class Reservoir:
    """Up to `size` labelled points of a stream, as a value that never changes.

    A new point is paired with points that are held, and then held itself, in place of
    one of them drawn at random when all places are taken. So a point is forgotten
    after `size` later ones on average, and the pairs follow a stream that drifts.

    Parameters
    ----------
    size : int
        Points that are held.
    n_pairs : int
        Pairs for every new point, in turn one with a point of the same label and one
        with a point of another label, where there is one.
    rng : numpy.random.Generator
        Draws partners and places. It is left as it is.

    Examples
    --------
    >>> empty = Reservoir(size=10, n_pairs=2, rng=np.random.default_rng(0))
    >>> X, y = np.array([[0.0], [1.0], [5.0]]), np.array([7, 7, 8])
    >>> pairs, later = empty.pair_up(X, y)
    >>> [(float(z[0]), sign) for z, sign in pairs]
    [(1.0, 1), (4.0, -1)]
    """

    def __init__(self, size, n_pairs, rng):
        self._size, self._n_pairs, self._rng = size, n_pairs, rng
        self._points, self._labels = [], None

    def pair_up(self, X, y):
        """Pairs for new points, and the reservoir after them. O(size) a point.

        The result does not depend on how a stream is cut into batches.

        Returns
        -------
        pairs : iterator of (ndarray of shape (d,), int)
            The difference of two points; +1 for the same label and -1 for another.
        later : Reservoir
            What holds the new points.
        """
        labels = y if self._labels is None else np.concatenate([self._labels, y])
        plan = _Plan(self._size, self._n_pairs, labels, len(self._points), self._rng)
        points = [*self._points, *X]
        pairs = ((points[i] - points[j], sign) for i, j, sign in plan.pairs)
        later = object.__new__(Reservoir)
        later.__dict__.update(self.__dict__, _rng=plan.rng)
        later._labels = labels[plan.held]
        # A row of X would keep all of X, and change when X does.
        later._points = [
            points[i] if i < len(self._points) else points[i].copy() for i in plan.held
        ]
        return pairs, later

    def __getstate__(self):
        points = np.array(self._points) if self._points else None
        return {
            "size": self._size,
            "n_pairs": self._n_pairs,
            "points": points,
            "labels": self._labels,
            "rng": self._rng.bit_generator.state,
        }

    def __setstate__(self, state):
        size = integer_from(state, "size", least=1)
        n_pairs = integer_from(state, "n_pairs", least=1)
        self.__init__(size, n_pairs, generator_from(state["rng"]))
        if state["points"] is not None:
            self._points = list(array_from(state, "points", FLOATS, (None, None)))
            self._labels = state["labels"]
            count = len(self._points)
            fits = np.shape(self._labels) == (count,) and count <= size
            require(fits, f"there are {count} points for other labels or places")


class _Plan:
    """Who is paired with whom, by position, and who is held in the end."""

    def __init__(self, size, n_pairs, labels, n_held, rng):
        self.rng = deepcopy(rng)
        self.labels, self.n_pairs = labels, n_pairs
        self.held = np.arange(n_held)
        self.pairs = []
        for new in range(n_held, len(labels)):
            self._pair(new)
            if len(self.held) < size:
                self.held = np.append(self.held, new)
            else:
                self.held[self.rng.integers(size)] = new

    def _pair(self, new):
        alike = self.labels[self.held] == self.labels[new]
        partners = {1: self.held[alike], -1: self.held[~alike]}
        signs = (1, -1) * (self.n_pairs // 2) + (1,) * (self.n_pairs % 2)
        for sign, share in zip(signs, self.rng.random(self.n_pairs), strict=True):
            if partners[sign].size:
                partner = partners[sign][int(share * partners[sign].size)]
                self.pairs.append((new, partner, sign))
