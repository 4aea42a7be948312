"""What a measurement was made on and with."""

import os
import platform
from importlib import metadata
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

import skmahal

_PACKAGES = {
    "numpy": "numpy",
    "scipy": "scipy",
    "scikit-learn": "scikit-learn",
    "faiss": "faiss-cpu",
    "hnswlib": "hnswlib",
    "pynndescent": "pynndescent",
    "numba": "numba",
}


def describe():
    """Processor, cores, memory, versions and BLAS libraries as a dict."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory(),
        "load": _load(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
        "blas": _blas(),
    }


def versions():
    """Versions of Python, of skmahal and of its peers; None where not installed."""
    found = {"python": platform.python_version(), "skmahal": skmahal.__version__}
    for name, distribution in _PACKAGES.items():
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def in_words(machine):
    """One line for people."""
    installed = machine["versions"].items()
    named = ", ".join(f"{name} {version}" for name, version in installed if version)
    blas = ", ".join(sorted({library["name"] for library in machine["blas"]}))
    return f"{machine['cpu']}, {machine['cores']} cores; {named}; BLAS: {blas}"


def _cpu():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory():
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _load():
    """Processes that wanted to run, on average over the last minutes."""
    try:
        return os.getloadavg()
    except (AttributeError, OSError):
        return None


def _blas():
    """Name, version and threads of each BLAS that is loaded."""
    np.ones((2, 2)) @ np.ones((2, 2))
    return [
        {
            "name": f"{info['internal_api']} {info.get('version')}",
            "architecture": info.get("architecture"),
            "threads": info["num_threads"],
        }
        for info in threadpool_info()
        if info["user_api"] == "blas"
    ]
