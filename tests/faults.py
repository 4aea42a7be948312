"""Faults at every step of a call: before every line, before and after every C call.

Every allocation and every call of BLAS that the package makes is on one of its lines,
and most are calls of functions in C, so that these steps include all of them. Left out
are the lines of `with` and of `try`, where no signal is handled: Python comes to the
former again when it leaves the block, which an exception would keep it from doing, and
the latter stand outside of any block. Left out too are the modules of locks and
threads, which allocate nothing that grows with the data. Calls of Python's own
functions (`len`, `isinstance`) are not steps apart from their lines.
"""

import ast
import sys
from functools import cache
from pathlib import Path

import skmahal

_PACKAGE = str(Path(skmahal.__file__).parent)
_BOOKKEEPING = {"lock.py", "threads.py"}


class Steps:
    """The steps of the package in this thread; raises at number `at`, if given.

    `count` is how many there were, `where` the one at which it raised.
    """

    def __init__(self, at=None, error=MemoryError):
        self._at, self._error = at, error
        self.count, self.where = 0, None

    def __enter__(self):
        sys.setprofile(self._on_call)
        sys.settrace(self._on_line)
        return self

    def __exit__(self, *_):
        sys.settrace(None)
        sys.setprofile(None)

    def _on_line(self, frame, event, _):
        file = frame.f_code.co_filename
        if not _is_watched(file):
            return None
        if event == "line" and frame.f_lineno not in _block_lines(file):
            self._step(frame, "line")
        return self._on_line

    def _on_call(self, frame, event, function):
        if not event.startswith("c_") or not _is_watched(frame.f_code.co_filename):
            return
        name = getattr(function, "__name__", type(function).__name__)
        small = getattr(function, "__module__", None) == "builtins"
        if not small and name not in ("__enter__", "__exit__"):
            self._step(frame, f"{event} {name}")

    def _step(self, frame, what):
        at, self.count = self.count, self.count + 1
        if at == self._at:
            self.__exit__()
            file = Path(frame.f_code.co_filename).name
            self.where = f"{file}:{frame.f_lineno} ({what})"
            raise self._error("injected")


@cache
def _is_watched(filename):
    return filename.startswith(_PACKAGE) and Path(filename).name not in _BOOKKEEPING


@cache
def _block_lines(filename):
    """Lines of `with` and of `try`."""
    lines = set()
    for node in ast.walk(ast.parse(Path(filename).read_text())):
        if isinstance(node, ast.With):
            end = node.items[-1].context_expr.end_lineno
            lines.update(range(node.lineno, end + 1))
        elif isinstance(node, ast.Try):
            lines.add(node.lineno)
    return lines
