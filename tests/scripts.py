"""Code that runs in a process of its own, which cannot hang and may die."""

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADER = """
import faulthandler, sys, warnings
faulthandler.dump_traceback_later({patience}, exit=True)
{first}
import numpy as np
from scipy import sparse
import skmahal
from skmahal import *
from tests.oracle import Oracle
"""
PATIENCE = 240

# OpenBLAS with several threads cannot be at work while a process forks.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def run_script(source, *, numba=True, cache=None, warnings=True, cpu_seconds=None):
    """Run code with the package imported; it must end without an error.

    Without `numba` it cannot be imported. `cache` is the folder where numba keeps what
    it compiles. Warnings are errors, unless `warnings` is False. The process is ended
    after so many seconds of its own time, if given, and after minutes in any case.
    """
    first = [] if numba else ["sys.modules['numba'] = None"]
    if warnings:
        first.append("warnings.simplefilter('error')")
    header = HEADER.format(patience=PATIENCE, first="\n".join(first))
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": path}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)

    def limit():
        if cpu_seconds is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))

    done = subprocess.run(
        [sys.executable, "-c", header + textwrap.dedent(source)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=PATIENCE + 60,
        preexec_fn=limit,
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stderr[-4000:]}"
    return done
