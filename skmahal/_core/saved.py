"""Saved states: plain values with a layout, a release and one digest.

A state consists of dictionaries, lists, tuples, numbers, strings, bytes, None and
arrays, which pickle, joblib and skops all store as they are. The digest shows damage.
It is not a signature, so code that restores an object also checks shapes and ranges.
"""

import sys
from contextlib import contextmanager
from hashlib import blake2b
from numbers import Integral

import numpy as np

# To be increased with every change of what is saved; other layouts are refused.
LAYOUT = 6
_STAMP = ("_layout", "_release", "_digest")

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_POSITIONS = (np.dtype(np.int32), np.dtype(np.int64))
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def stamped(kind, state):
    """A state with the layout, release and digest it is saved with. O(its bytes)."""
    # Not imported: the core does not depend on the package that contains it.
    stamp = (LAYOUT, sys.modules["skmahal"].__version__, _digest(kind, state))
    return {**state, **dict(zip(_STAMP, stamp, strict=True))}


def opened(kind, state):
    """The state that :func:`stamped` was given, or an error if it is not the same.

    O(its bytes). If an array is mapped from a file, which would have to be read whole,
    the digest is not compared.

    >>> opened("index", {**stamped("index", {"n": 3}), "n": 4})
    Traceback (most recent call last):
    ...
    ValueError: This saved index is damaged or was changed (ValueError: the digest ...
    """
    layout, release, digest = (state.get(key) for key in _STAMP)
    if layout != LAYOUT:
        writer = "an unknown release" if release is None else f"skmahal {release}"
        reader = "the release that wrote it" if release is None else writer
        raise ValueError(
            f"This {kind} was saved by {writer}, in a layout ({layout}) that skmahal "
            f"{sys.modules['skmahal'].__version__} cannot read: load it with {reader}."
        )
    state = {key: value for key, value in state.items() if key not in _STAMP}
    with expecting(kind):
        mapped = any(isinstance(part, np.memmap) for part in _walk(state))
        require(mapped or _digest(kind, state) == digest, "the digest differs")
    return state


@contextmanager
def expecting(kind):
    """Report any error inside as damage of the saved state of a `kind`."""
    try:
        yield
    except (MemoryError, ImportError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        message = f"This saved {kind} is damaged or was changed ({reason})."
        raise ValueError(message) from error


def require(holds, message):
    """Raise a ValueError with `message` unless the condition `holds`."""
    if not holds:
        raise ValueError(message)


def array_from(state, name, dtypes, shape):
    """An array of a saved state; None in its `shape` stands for any length. O(1)."""
    require(isinstance(state[name], np.ndarray), f"{name} is not an array")
    # A mapped array becomes a plain one too: operations on subclasses are slow.
    array = np.asarray(state[name])
    lengths = zip(array.shape, shape, strict=False)
    fits = len(shape) == array.ndim and all(b in (None, a) for a, b in lengths)
    require(fits, f"{name} has shape {array.shape}, expected {shape}")
    expected = " or ".join(map(str, dtypes))
    require(array.dtype in dtypes, f"{name} is {array.dtype}, expected {expected}")
    return array


def integer_from(state, name, least=0, most=None):
    """An integer of a saved state, within bounds."""
    value = state[name]
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    fits = whole and value >= least and (most is None or value <= most)
    span = f"at least {least}" if most is None else f"from {least} to {most}"
    require(fits, f"{name} is {value!r}, expected an integer {span}")
    return int(value)


def is_mapped(array):
    """Whether an array, or the array it is a view of, is mapped from a file.

    A copy of a mapped array in memory is of the same class, but has no map.
    """
    while array is not None and getattr(array, "_mmap", None) is None:
        array = getattr(array, "base", None)
    return array is not None


def saved_csr(matrix):
    """A CSR matrix or array as plain values, which share its memory."""
    parts = {name: getattr(matrix, name) for name in ("data", "indices", "indptr")}
    return {**parts, "shape": tuple(map(int, matrix.shape))}


def csr_from(state, kind):
    """The CSR matrix or array that :func:`saved_csr` saved, of class `kind`.

    Column numbers are checked, because with a wrong one SciPy would read and write
    outside of its memory. Those of a mapped matrix are not, as they stay on disk.
    """
    rows, columns = (int(length) for length in state["shape"])
    data = array_from(state, "data", FLOATS, (None,))
    indices = array_from(state, "indices", _POSITIONS, data.shape)
    indptr = array_from(state, "indptr", _POSITIONS, (rows + 1,))
    matrix = kind((data, indices, indptr), shape=(rows, columns), copy=False)
    matrix.check_format(full_check=not is_mapped(data))
    return matrix


def _digest(kind, state):
    """A digest of types, keys, values and arrays; needs O(1) memory beside them."""
    digest = blake2b(repr(kind).encode(), digest_size=32)
    for part in _walk(state):
        if isinstance(part, bytes):
            digest.update(part)
            continue
        array = np.asarray(part)
        if array.flags.c_contiguous:
            blocks = [array.reshape(-1)]
        else:
            flags, access = ["external_loop", "buffered"], [["readonly", "contig"]]
            blocks = np.nditer(array, flags, access, order="C")
        for block in blocks:
            digest.update(block.view(np.uint8))
    return digest.hexdigest()


def _walk(value):
    """Bytes and arrays that together describe a value, always in the same order.

    Only the class counts of an object that is not a plain value: an estimator of this
    package has a digest of its own, and other objects have no canonical form.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        yield f"dict {len(value)};".encode()
        for key in sorted(value, key=str):
            yield from _walk(key)
            yield from _walk(value[key])
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__} {len(value)};".encode()
        for item in value:
            yield from _walk(item)
    elif isinstance(value, np.ndarray):
        yield f"array {value.dtype.str} {value.shape};".encode()
        if value.dtype.hasobject:
            yield from _walk(value.tolist())
        elif value.nbytes:
            yield value
    elif isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r};".encode()
    else:
        yield f"object {type(value).__name__};".encode()
