"""Ids, order of arrival, targets and weights of points, one record per point.

They are fields of the records of an index: "id", "arrival", "target" and "weight". The
index changes records together with its points. Look-up tables are derived from them,
and made again for other points.
"""

from contextlib import contextmanager
from weakref import ref

import numpy as np

from skmahal._core.checks import as_array, check_finite


def as_ids(ids, count):
    """`ids` as an array of `count` distinct integers or strings.

    >>> as_ids(["b", "a"], 2)
    array(['b', 'a'], dtype='<U1')
    """
    expected = f"{count} different integers or strings, one for each row of X"
    array = np.asarray(ids) if hasattr(ids, "dtype") else as_objects(ids)
    if array.dtype == object and array.ndim == 1:
        array = _of_one_type(array)
    if array.shape != (count,) or array.dtype.kind not in "iuU":
        found = f"an array of type {array.dtype} and shape {array.shape}"
        raise ValueError(f"ids must be {expected}, got {found}.")
    if array.dtype.kind != "U":
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise ValueError(f"ids must fit 64 bits, got {array.max()}.")
        array = array.astype(np.int64)
    values, counts = np.unique(array, return_counts=True)
    if len(values) < count:
        repeated = values[counts > 1][0].item()
        raise ValueError(f"ids must be different, got {repeated!r} more than once.")
    return array


def as_objects(values):
    """A list as an array of objects, of one dimension if it has no regular shape."""
    try:
        return np.asarray(values, dtype=object)
    except ValueError:
        return np.array([None, *values], dtype=object)[1:]


def _of_one_type(array):
    """An array of objects as one of integers, or of strings, if all of them are."""
    values = array.tolist()
    for kinds in ((int, np.integer), (str,)):
        right = [isinstance(one, kinds) and not isinstance(one, bool) for one in values]
        if values and all(right):
            return np.array(values)
    return array


def as_weights(weights, count):
    """`weights` as `count` finite numbers of at least 0; None stands for ones."""
    if weights is None:
        return np.ones(count)
    array = as_array("sample_weight", weights, np.float64)
    if array.shape != (count,):
        expected = f"one number for each of the {count} rows of X"
        raise ValueError(
            f"sample_weight must be {expected}, got an array of shape {array.shape}."
        )
    check_finite("sample_weight", array)
    if (array < 0).any():
        raise ValueError(
            f"sample_weight must not be negative, got {array[array < 0][0]:g}."
        )
    return array


def has_field(index, name):
    """Whether the records of an index have a field of this name."""
    return index.records is not None and name in (index.records.dtype.names or ())


class Positions:
    """Positions of the points with some ids; without ids, positions are the ids."""

    def __init__(self):
        # What :func:`weakref.ref` returns: a function that gives the points, or None.
        self._made_for, self._places = (lambda: None), {}

    def of(self, ids, index):
        """Positions of the points with the ids, or a ValueError that names one."""
        try:
            given = np.asarray(ids)
        except ValueError as error:
            raise ValueError(f"ids must be integers or strings: {error}") from error
        if given.ndim > 1:
            raise ValueError(f"ids must be a vector, got shape {given.shape}.")
        places, found = self._current(index), []
        for one in np.atleast_1d(given).tolist():
            found.append(_place(one, places))
            if found[-1] < 0:
                raise ValueError(f"ids: no point of the index has the id {one!r}.")
        return np.array(found, dtype=np.intp)

    def has(self, one, index):
        """Whether a point has the id."""
        return _place(one, self._current(index)) >= 0

    def follow(self, points, index, old=(), ids=(), positions=()):
        """Take over new `ids`, and drop `old` ones, after a change of `points`.

        If positions were not those of these points, they are made again when needed.
        """
        if self._made_for() is points:
            for one in old:
                self._places.pop(one, None)
            self._places.update(zip(ids, positions, strict=True))
            self._made_for = ref(index.points)

    def _current(self, index):
        """Positions by id; a range if they are the ids."""
        if not has_field(index, "id"):
            return range(index.n)
        if self._made_for() is not index.points:
            ids = index.records["id"].tolist()
            self._places = dict(zip(ids, range(len(ids)), strict=True))
            self._made_for = ref(index.points)
        return self._places


def _place(one, places):
    """The position of the point with an id; -1 if there is none."""
    if not isinstance(one, int | np.integer | str) or isinstance(one, bool):
        return -1
    if isinstance(places, range):
        return int(one) if one in places else -1
    return places.get(one, -1)


class Arrivals:
    """Numbers of points in order of arrival, and which came first. O(log n) each.

    The numbers are sorted once for as many points as there are.
    """

    def __init__(self):
        self.reset()

    def reset(self):
        """Forget what was sorted, as when points move to other positions."""
        self._queue, self._next = np.empty((0, 2), dtype=np.int64), None

    @contextmanager
    def reset_on_error(self):
        """A context that resets if it raises: points that were to leave may stay."""
        try:
            yield
        except BaseException:
            self.reset()
            raise

    def column(self, count, index):
        """The field "arrival" of new points, if the index has it: the next numbers."""
        if not has_field(index, "arrival"):
            return {}
        if self._next is None:
            self._next = int(index.records["arrival"].max()) + 1
        first, self._next = self._next, self._next + count
        return {"arrival": np.arange(first, self._next)}

    def oldest(self, count, arrivals):
        """Positions of the `count` points that came first."""
        found = self._taken(count, arrivals)
        if len(found) < count:
            order = np.argsort(arrivals, kind="stable")
            self._queue = np.column_stack([order, arrivals[order]])
            found = self._taken(count, arrivals)
        return found

    def _taken(self, count, arrivals):
        found = np.empty(0, dtype=np.intp)
        while len(found) < count and len(self._queue):
            left = count - len(found)
            first, self._queue = self._queue[:left], self._queue[left:]
            # Points that were replaced meanwhile have a later number.
            same = arrivals[first[:, 0]] == first[:, 1]
            found = np.concatenate([found, first[same, 0]])
        return found
