"""``python -m benchmarks [name ...]``: measure, print tables, write JSON and plots.

``python -m benchmarks --against CHECKOUT [name ...]`` compares with another checkout.
"""

import argparse
import os
import sys
import time
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from . import _peers, _report, against

NAMES = [
    "neighbors",
    "sparse",
    "distances",
    "recall",
    "online",
    "sampling",
    "paper",
    "memory",
    "scaling",
    "online_learning",
    "learner_steps",
    "dask",
]
SETTINGS = ["quick", "n_jobs", "exact_only"]
RESULTS = Path(__file__).resolve().parent / "results"


def main(arguments=None):
    """Run the named benchmarks, or all of them and a summary."""
    options = parsed(arguments)
    if options.against is not None:
        against.compare(options.against, options.names or NAMES, options.quick)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(options, name) for name in SETTINGS}
    notes = warnings_for(options)
    print(_report.in_words(_report.machine()))
    print(*notes, sep="\n")
    progress, goals = _report.Progress(), []
    for name in options.names or NAMES:
        result = run_one(name, options, progress, settings)
        goals += result.goals
        notes += result.notes
    if not options.names:
        heading("summary")
        _report.print_goals(goals)
        _report.write_summary(goals, notes, options.out, settings)
    print(f"\nwritten to {os.path.relpath(options.out)}")


def parsed(arguments):
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure skmahal beside its peers, in one process.",
    )
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    parser.add_argument(
        "--n-jobs",
        type=lambda text: None if text == "None" else int(text),
        default=-1,
        help="n_jobs of skmahal's own queries, or None (default: -1)",
    )
    parser.add_argument(
        "--exact-only",
        action="store_true",
        help="leave out hnswlib and pynndescent, which are slow to build or compile",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="compare skmahal with that of another checkout instead of peers",
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return options


def run_one(name, options, progress, settings):
    """Measure one benchmark, print its table, write its files."""
    module = import_module(f"benchmarks.{name}")
    start = time.perf_counter()
    result = module.run(options, progress)
    if options.quick:
        result.goals = [replace(goal, met=None) for goal in result.goals]
    progress.clear()
    heading(f"{name} ({time.perf_counter() - start:.0f} s)")
    module.show(result)
    print()
    _report.print_goals(result.goals)
    print(*result.notes, sep="\n")
    _report.write_result(result, options.out, settings)
    if find_spec("matplotlib") is not None:
        module.plot(result, options.out / f"{name}.png")
    return result


def warnings_for(options):
    """What a reader of the figures should know about this run."""
    notes = []
    if options.quick:
        notes.append("Quick run at small sizes: no goal is judged.")
    if missing := _peers.missing():
        notes.append(f"Not installed, and so not measured: {', '.join(missing)}.")
    if find_spec("numba") is None:
        notes.append("numba is not installed: skmahal runs its NumPy path.")
    if find_spec("matplotlib") is None:
        notes.append("matplotlib is not installed: no plots.")
    return notes


def heading(text):
    """Print a heading."""
    print(f"\n{text}\n{'=' * len(text)}")


if __name__ == "__main__":
    sys.exit(main())
