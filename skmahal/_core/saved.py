"""What is saved of an index, and what is asked of it when it comes back.

A saved state is made of dictionaries, lists, numbers, strings, bytes and arrays, which
pickle, joblib and skops all store as they are. So a file names no class of this package
but the one that was saved, and says by which release and in which layout that was done.
"""

import sys
from contextlib import contextmanager
from numbers import Integral

import numpy as np

from .checks import check_finite

# To be raised with every change of what is saved. Those in `_LAYOUTS` can be read.
LAYOUT = 1
_LAYOUTS = (1,)
_KEYS = "_layout", "_release"

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def stamped(state):
    """A state with the layout and the release that it is saved in."""
    return {**state, **dict(zip(_KEYS, (LAYOUT, _installed()), strict=True))}


def opened(kind, state):
    """A stamped state without its stamp, where this release can read it.

    Examples
    --------
    >>> opened("index", stamped({"n": 3}))
    {'n': 3}
    >>> opened("index", {"n": 3, "_layout": 99, "_release": "9.0"})
    Traceback (most recent call last):
    ...
    ValueError: This index was saved by skmahal 9.0, in a layout (99) that skmahal ...
    cannot read: load it with skmahal 9.0.
    """
    layout, release = (state.get(key) for key in _KEYS)
    if layout not in _LAYOUTS:
        who = "the release that wrote it" if release is None else f"skmahal {release}"
        by = "an unknown release" if release is None else who
        raise ValueError(
            f"This {kind} was saved by {by}, in a layout ({layout}) that skmahal "
            f"{_installed()} cannot read: load it with {who}."
        )
    return {key: value for key, value in state.items() if key not in _KEYS}


def _installed():
    # Not imported: the core knows nothing of what stands on it.
    return sys.modules["skmahal"].__version__


@contextmanager
def expecting(kind):
    """Whatever goes wrong inside is said of the saved state of a `kind`."""
    try:
        yield
    except (MemoryError, ImportError):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"This saved {kind} is damaged or was changed ({what})."
        ) from error


def require(holds, what):
    """Refuse a saved state of which `what` must hold."""
    if not holds:
        raise ValueError(what)


def array_from(state, name, dtypes, shape):
    """An array of a saved state, of one of some types, and of a shape.

    None stands for any length. Numbers must be finite. Those of an array that is mapped
    from a file are not looked at, which would read all of it: only a pickle of joblib's
    is mapped, and who writes a pickle could do worse.

    Examples
    --------
    >>> array_from({"x": np.ones((2, 3))}, "x", FLOATS, (None, 3)).shape
    (2, 3)
    """
    array = state[name]
    require(isinstance(array, np.ndarray), f"{name} is no array")
    # A plain array also where it is mapped: subclasses are slow to handle.
    array = np.asarray(array)
    lengths = zip(array.shape, shape, strict=False)
    fits = len(shape) == array.ndim and all(b in (None, a) for a, b in lengths)
    require(fits, f"{name} has shape {array.shape}, expected {shape}")
    require(array.dtype in dtypes, f"{name} has numbers of type {array.dtype}")
    if array.dtype.kind == "f" and not is_mapped(array):
        check_finite(name, array)
    return array


def is_mapped(array):
    """Whether an array, or what it is a view of, is mapped from a file.

    Examples
    --------
    >>> is_mapped(np.zeros(3))
    False
    """
    while array is not None:
        if isinstance(array, np.memmap):
            return True
        array = getattr(array, "base", None)
    return False


def integer_from(state, name, least=0, most=None):
    """An integer of a saved state, within bounds."""
    value = state[name]
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    fits = whole and value >= least and (most is None or value <= most)
    require(fits, f"{name} is {value!r}")
    return int(value)


def saved_csr(matrix):
    """A CSR matrix or array as plain values."""
    names = "data", "indices", "indptr"
    return {**{name: getattr(matrix, name) for name in names}, "shape": matrix.shape}


def csr_from(state, kind):
    """What :func:`saved_csr` has saved, as a matrix or array of class `kind`.

    Positions outside of the matrix would be read and written to without a further look.

    Examples
    --------
    >>> from scipy import sparse
    >>> csr_from(saved_csr(sparse.csr_matrix(np.eye(2))), sparse.csr_matrix).toarray()
    array([[1., 0.],
           [0., 1.]])
    """
    rows, columns = (int(length) for length in state["shape"])
    positions = (np.dtype(np.int32), np.dtype(np.int64))
    data = array_from(state, "data", FLOATS, (None,))
    indices = array_from(state, "indices", positions, data.shape)
    indptr = array_from(state, "indptr", positions, (rows + 1,))
    matrix = kind((data, indices, indptr), shape=(rows, columns), copy=False)
    matrix.check_format(full_check=not is_mapped(data))
    return matrix


def generator_from(state):
    """The random generator of which `state` is the state of the bit generator."""
    bits = np.random.PCG64(0)
    bits.state = state
    return np.random.Generator(bits)
