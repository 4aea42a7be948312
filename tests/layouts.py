"""The same numbers in every form that users bring them in."""

import warnings
from tempfile import TemporaryFile

import numpy as np
import pandas as pd
from scipy import sparse

FORMATS = ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"]


def read_only(X):
    X = np.array(X)
    X.setflags(write=False)
    return X


def strided(X):
    """Every second row and every third column of a larger array."""
    larger = np.full((2 * X.shape[0], 3 * X.shape[1]), X.ravel()[0], dtype=X.dtype)
    larger[::2, 1::3] = X
    return larger[::2, 1::3]


def backwards(X):
    """Negative strides in both directions."""
    return X[::-1, ::-1].copy()[::-1, ::-1]


def mapped(X):
    """A file that is mapped for reading."""
    with TemporaryFile() as file:
        X = np.ascontiguousarray(X)
        file.write(X.tobytes())
        file.flush()
        return np.memmap(file, dtype=X.dtype, mode="r", shape=X.shape)


def unaligned(X):
    """Numbers that begin at an odd byte."""
    room = np.zeros(X.nbytes + 1, dtype=np.uint8)
    out = room[1:].view(X.dtype).reshape(X.shape)
    out[...] = X
    return out


def interleaved(X):
    """Rows and columns with other numbers between any two of them."""
    room = np.zeros((*X.shape, 2), dtype=X.dtype)
    room[..., 0] = X
    return room[..., 0]


DENSE = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "strided": strided,
    "backwards": backwards,
    "read-only": read_only,
    "mapped": mapped,
    "unaligned": unaligned,
    "interleaved": interleaved,
    "frame": pd.DataFrame,
}

# Those that forget the type of the numbers, which are float64 then.
UNTYPED = {
    "lists": lambda X: X.tolist(),
    "tuples": lambda X: tuple(map(tuple, X.tolist())),
    "objects": lambda X: X.astype(object),
    "rows": lambda X: list(X.astype(np.float64)),
}


def shuffled(X):
    """CSR with the entries of every row in some other order."""
    X = sparse.csr_matrix(X, copy=True)
    for start, stop in zip(X.indptr[:-1], X.indptr[1:], strict=True):
        for part in (X.indices, X.data):
            part[start:stop] = part[start:stop][::-1].copy()
    X.has_sorted_indices = False
    return X


def halved(X):
    """COO that has every entry twice, as halves of it where these are exact."""
    X = sparse.coo_matrix(X)
    floating = X.dtype.kind == "f"
    parts = [X.data / 2, X.data / 2] if floating else [X.data, np.zeros_like(X.data)]
    places = np.tile(X.row, 2), np.tile(X.col, 2)
    data = np.concatenate(parts).astype(X.dtype)
    return sparse.coo_matrix((data, places), shape=X.shape)


def repeated(X):
    """CSR with duplicates that nobody has summed."""
    X = halved(X)
    order = np.argsort(X.row, kind="stable")
    ends = np.searchsorted(X.row[order], np.arange(X.shape[0] + 1))
    return sparse.csr_matrix((X.data[order], X.col[order], ends), shape=X.shape)


def long_indices(X):
    X = sparse.csr_matrix(X)
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


def with_zeros(X):
    """CSR that stores every entry, also those that are zero."""
    rows, columns = np.indices(X.shape).reshape(2, -1)
    return sparse.csr_matrix((X[rows, columns], (rows, columns)), shape=X.shape)


def frozen(X):
    """CSR over memory that cannot be written to."""
    X = sparse.csr_matrix(X)
    for part in (X.data, X.indices, X.indptr):
        part.setflags(write=False)
    return X


def as_format(name):
    """In a format of SciPy's, also where it warns that another would be better."""

    def convert(X):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sparse.SparseEfficiencyWarning)
            return getattr(sparse, name)(X)

    return convert


SPARSE = {
    **{f"{kind} matrix": as_format(f"{kind}_matrix") for kind in FORMATS},
    **{f"{kind} array": as_format(f"{kind}_array") for kind in FORMATS},
    "shuffled": shuffled,
    "halved": halved,
    "repeated": repeated,
    "long indices": long_indices,
    "with zeros": with_zeros,
    "frozen": frozen,
}
LAYOUTS = {**DENSE, **UNTYPED, **SPARSE}


def contents(value):
    """The bytes behind an input, to see whether somebody has written to it."""
    if sparse.issparse(value):
        if value.format == "dok":
            return dict(value.items())
        held = {name: part for name, part in vars(value).items() if is_array(part)}
        return {name: part.tolist() for name, part in held.items()}
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.strides, np.asarray(value).tolist()
    if isinstance(value, pd.DataFrame):
        return list(value.columns), value.to_numpy().tolist()
    return repr(value)


def is_array(part):
    return isinstance(part, np.ndarray)
