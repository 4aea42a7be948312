"""Versions of the package and of what it runs on."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from threadpoolctl import threadpool_info

from ._core.kernels import available
from ._core.threads import thread_count

_REQUIRED = ("numpy", "scipy", "scikit-learn", "joblib", "threadpoolctl")
_OPTIONAL = ("numba", "metric-learn", "dask", "matplotlib", "pandas")


def show_versions() -> None:
    """Print what a report of a problem needs: versions, threads and BLAS.

    Libraries are not imported for it, so that BLAS is shown for those that are. O(1).

    Examples
    --------
    >>> import skmahal
    >>> skmahal.show_versions()
    skmahal: ...
    <BLANKLINE>
    System:
           python: ...
         platform: ...
    <BLANKLINE>
    Libraries:
            numpy: ...
    """
    print(f"skmahal: {sys.modules[__package__].__version__}")
    python = f"{platform.python_implementation()} {platform.python_version()}"
    _show("System", {"python": python, "platform": platform.platform()})
    _show("Libraries", {name: _version(name) for name in _REQUIRED + _OPTIONAL})
    loops = "compiled by numba" if available() else "matrix products, without numba"
    _show("Search", {"loops": loops, "threads": thread_count(None)})
    for pool in threadpool_info():
        shown = {name: pool[name] for name in ("version", "num_threads", "filepath")}
        _show(f"{pool['user_api']}: {pool['internal_api']}", shown)


def _version(name):
    """The version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _show(title, lines):
    """Print lines of names and values under a title."""
    print(f"\n{title}:")
    for name, value in lines.items():
        print(f"{name:>13}: {value}")
