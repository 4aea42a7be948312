"""``python -m benchmarks [name ...]``: measure, print tables, write JSON and plots.

``python -m benchmarks --against CHECKOUT [name ...]`` compares with another checkout,
and ``python -m benchmarks.publish`` makes the tables and plots of the documentation.
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

NAMES = {
    "neighbors": "exact neighbours, in batches and one query a call",
    "sparse": "neighbours among sparse points, beside scikit-learn",
    "distances": "distances to all points; seeds of clusters",
    "recall": "approximate neighbours, beside faiss IVF-Flat and hnswlib",
    "online": "rank-one updates of the metric, rebuilds, updates with queries",
    "step_and_query": "an update and a query, as the number of points grows",
    "sampling": "samples in proportion to distance, as the number of points grows",
    "paper": "the experiments of Qin, Reddy and Song (2023)",
    "memory": "memory of an index, beside that of the arrays it needs",
    "scaling": "fit, updates and queries at 100,000 and 1,000,000 points",
    "online_learning": "online learners beside ITML fitted anew, and river",
    "learner_steps": "a step of each online learner with 2,000 features",
    "dask": "the index on a Dask cluster, beside a model of bytes and seconds",
}
SETTINGS = ["quick", "n_jobs", "exact_only"]
RESULTS = Path(__file__).resolve().parent / "results"


def main(arguments=None):
    """Run the named benchmarks, or all of them and a summary."""
    options = parsed(arguments)
    if options.against is not None:
        against.compare(options.against, options.names or list(NAMES), options.quick)
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
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measure skmahal beside faiss, hnswlib, scikit-learn and others.\n"
        "Without a name, all benchmarks run, for half an hour or more.",
        epilog="benchmarks:\n"
        + "\n".join(f"  {name:<16} {text}" for name, text in NAMES.items()),
    )
    parser.add_argument(
        "names", nargs="*", metavar="name", help="a benchmark, see below (default: all)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes, a minute or two; shows that all of it runs, not how fast",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=RESULTS,
        help="folder for tables, plots and JSON (default: benchmarks/results)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder of data sets; absent ones are fetched from OpenML into it "
        "(default: the environment variable SKMAHAL_DATA, or skmahal in scikit-learn's "
        "data home)",
    )
    parser.add_argument(
        "--n-jobs",
        type=lambda text: None if text == "None" else int(text),
        default=-1,
        help="n_jobs of skmahal's own queries, or None (default: -1, all cores)",
    )
    parser.add_argument(
        "--exact-only",
        action="store_true",
        help="leave out hnswlib, which is slow to build",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="compare with the skmahal of another checkout instead of other libraries",
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    if options.data is not None:
        # Some benchmarks run in processes of their own.
        os.environ["SKMAHAL_DATA"] = str(options.data)
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
