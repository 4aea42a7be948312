"""The compiled loops of :mod:`._numba`, loaded when they are first needed.

numba compiles a loop when it is first called with numbers of a type, and keeps it on
disk. That takes seconds, once for an installation. It is done on a thread of its own:
a signal that interrupts a waiting thread does not interrupt the compiler.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec

import numpy as np
from numpy.typing import DTypeLike

# Seconds after which a message says what is waited for.
_PATIENCE = 1.0
_LOOPS = "skmahal._core._numba"

_ready = {}
_said = threading.Event()


@lru_cache(maxsize=1)
def available():
    """Whether numba is installed."""
    return find_spec("numba") is not None


def kernels(dtype=None, way=None):
    """The module of loops, compiled for rows of a type and a way of :mod:`.search`."""
    module = _ready.get((dtype, way))
    return _wait_for(dtype, way) if module is None else module


def warm_up(dtypes: Sequence[DTypeLike] = (np.float32, np.float64)) -> None:
    """Compile the loops of the search now, rather than with the first query.

    numba keeps what it compiles on disk, so that only the first call after an
    installation takes seconds, and later ones a fraction of one. Without numba nothing
    is done. O(1).

    Parameters
    ----------
    dtypes : tuple of numpy dtypes, default=(numpy.float32, numpy.float64)
        Types of the points that are to be searched.

    Examples
    --------
    >>> import skmahal
    >>> skmahal.warm_up()
    """
    known = {"float32", "float64", np.float32, np.float64}
    known |= {np.dtype(np.float32), np.dtype(np.float64)}
    if not isinstance(dtypes, tuple | list) or not known.issuperset(dtypes):
        raise ValueError(f"dtypes must be of float32 and float64, got {dtypes!r}.")
    kernels(np.dtype(np.float64), "walk")
    for dtype in map(np.dtype, dtypes):
        for way in ("scan", "rows", "lead", "codes", "cells", "some", "all", "dots"):
            kernels(dtype, way)


def _wait_for(dtype, way):
    """Load the module, and compile what a way needs of it, on another thread.

    A lock tells that it is done: a signal whose handler raises may interrupt a waiting
    lock, but it breaks the conditions that a `threading.Thread` starts and ends by.
    """
    result, working = {}, _thread.allocate_lock()
    working.acquire()

    def load():
        try:
            module = import_module(_LOOPS)
            if dtype is not None and available():
                _compile(module, dtype, way)
            result["module"] = module
        except BaseException as error:
            result["error"] = error
        finally:
            working.release()

    _thread.start_new_thread(load, ())
    while not working.acquire(timeout=_PATIENCE):
        if not _said.is_set() and _is_compiling():
            _said.set()
            message = "skmahal: compiling this kind of search, once per installation"
            print(f"{message}; skmahal.warm_up() compiles all kinds", file=sys.stderr)
    if "error" in result:
        raise result["error"]
    _ready[dtype, way] = result["module"]
    return result["module"]


def _is_compiling():
    """Whether a loop is being compiled, and not loaded from disk, which is slow too."""
    module = sys.modules.get(_LOOPS)
    # A copy, because the other thread may still be importing the module.
    loops = [] if module is None else list(vars(module).copy().values())
    return any(loop.stats.cache_misses for loop in loops if hasattr(loop, "stats"))


def _compile(module, dtype, way):
    """Make a small search in one way, with arrays of the types that loops get."""
    from . import enclosures
    from .cells import gathered
    from .codes import encode
    from .points import read_only
    from .search import DenseSearch, Space

    rows, origin = np.arange(600, dtype=dtype).reshape(300, 2) % 7, np.zeros(2)
    if way == "dots":
        module.dots(read_only(rows), origin, np.zeros((2, 2)), np.zeros((300, 2)))
        W, V = np.zeros((2, 1)), np.zeros((1, 2))
        module.add_product(read_only(np.eye(2)), W, V, np.eye(2), np.zeros((1, 2)))
        return
    if way == "walk":
        g, *nodes = (read_only(np.zeros(shape)) for shape in (2, (2, 2), 2, 2))
        rest = np.zeros((1, 1)), np.zeros(1, np.intp), np.zeros(1)
        module.walk(g, np.float64(0), 1, *nodes, *rest)
        return
    norms = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    coded = encode(rows, origin, 16.0, np.eye(2)).with_lead(1, 1, rows, origin)
    for U in (np.zeros((0, 2)), np.eye(2)):
        space = Space(rows, origin, norms, norms, U)
        search = DenseSearch(space, coded, module=module)
        if way == "cells":
            search.cells = gathered(np.arange(300) % 3, space, coded)
        one, many = search.queries(rows[:1]), search.queries(rows[:4])
        if way == "some":
            search.squares_to(one, 0, np.arange(2))
        elif way == "cells":
            search.in_cells(one, 2, 1)
        elif way == "all":
            for queries, every in (one, "codes"), (many, "codes"), (many, "lead"):
                search.plan = search.plan._replace(all_many=every)
                out = np.empty((len(queries.squares), 300), dtype)
                enclosures.distances(search, queries, 0.2, out)
        else:
            for queries in (one, many) if way in ("lead", "codes") else (one,):
                search.kneighbors(queries, 2, way=way)
