"""Pairs from a stream of labelled points."""

from copy import copy, deepcopy

import numpy as np

from skmahal._core.saved import FLOATS, array_from, integer_from, require


class Reservoir:
    """Up to `size` labelled points of a stream; an object never changes.

    A new point is paired with `n_pairs` points of the reservoir, alternately of the
    same label and of another, and then stored in it, in place of a random one if it is
    full. So the pairs follow a stream that drifts. The state of `rng` does not change.

    >>> empty = Reservoir(size=10, n_pairs=2, rng=np.random.default_rng(0))
    >>> X, y = np.array([[0.0], [1.0], [5.0]]), np.array([7, 7, 8])
    >>> points, pairs, later = empty.pair_up(X, y)
    >>> pairs
    array([[ 1,  0,  1],
           [ 2,  1, -1]])
    """

    def __init__(self, size, n_pairs, rng):
        self._size, self._n_pairs, self._rng = size, n_pairs, rng
        self._points = self._labels = None

    def pair_up(self, X, y):
        """Pairs for new points, however a stream is cut into batches. O(size) each.

        Returns all points, those of the reservoir first; an array of shape (p, 3) with
        the positions of two points and +1 for the same label, -1 for another; and the
        reservoir with the new points.
        """
        later, rng = copy(self), deepcopy(self._rng)
        if self._points is None:
            held, points, labels = np.arange(0), X, y
        else:
            held = np.arange(len(self._points))
            points = np.concatenate([self._points, X])
            labels = np.concatenate([self._labels, y])
        shares, pairs = rng.random((len(X), self._n_pairs + 1)).tolist(), []
        for new, (*draws, place) in enumerate(shares, start=len(held)):
            alike = labels[held] == labels[new]
            partners = held[alike], held[~alike]
            for at, share in enumerate(draws):
                others = partners[at % 2]
                if others.size:
                    other = others.item(int(share * others.size))
                    pairs.append((new, other, -1 if at % 2 else 1))
            if len(held) < self._size:
                held = np.append(held, new)
            else:
                held[int(place * self._size)] = new
        later._rng, later._points, later._labels = rng, points[held], labels[held]
        return points, np.array(pairs, dtype=np.intp).reshape(-1, 3), later

    def saved(self):
        """The reservoir as plain values."""
        return {
            "size": self._size,
            "n_pairs": self._n_pairs,
            "points": self._points,
            "labels": self._labels,
            "rng": self._rng.bit_generator.state,
        }

    @classmethod
    def restored(cls, state):
        """The reservoir that was saved as `state`."""
        size = integer_from(state, "size", least=1)
        n_pairs = integer_from(state, "n_pairs", least=1)
        bits = np.random.PCG64(0)
        bits.state = state["rng"]
        reservoir = cls(size, n_pairs, np.random.Generator(bits))
        if state["points"] is not None:
            points = array_from(state, "points", FLOATS, (None, None))
            reservoir._points, reservoir._labels = points, state["labels"]
            fits = np.shape(state["labels"]) == (len(points),) and len(points) <= size
            require(fits, f"there are not labels or places for {len(points)} points")
        return reservoir
