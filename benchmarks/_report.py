"""Tables, goals, result files and the machine that they were made on."""

import json
import math
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

import skmahal

_WIDTH = 28

_PACKAGES = {
    "numpy": "numpy",
    "scipy": "scipy",
    "scikit-learn": "scikit-learn",
    "faiss": "faiss-cpu",
    "usearch": "usearch",
    "hnswlib": "hnswlib",
    "numba": "numba",
}


@dataclass(frozen=True)
class Goal:
    """A goal, what was measured, and whether it was met; None is not judged."""

    what: str
    goal: str
    measured: str
    met: bool | None

    @property
    def verdict(self):
        return {True: "met", False: "NOT MET", None: "not judged"}[self.met]


@dataclass
class Result:
    """What one benchmark found: rows of plain values, goals, and notes for people."""

    name: str
    rows: list
    goals: list = field(default_factory=list)
    notes: list = field(default_factory=list)


def at_least(what, ratio, goal, *, holds=True, note=""):
    """A goal for a ratio that should be large; the figure is rounded down."""
    return _judged(what, "≥", goal, floor_text(ratio), ratio >= goal, holds, note)


def at_most(what, ratio, goal, *, holds=True, note=""):
    """A goal for a ratio that should be small; the figure is rounded up."""
    return _judged(what, "≤", goal, ceil_text(ratio), ratio <= goal, holds, note)


def unjudged(what, why):
    """A goal that this run says nothing about."""
    return Goal(what, "", why, None)


def floor_text(ratio):
    """A ratio with two decimals, never more than it is.

    >>> floor_text(2.999), floor_text(1234.5)
    ('2.99×', '1,234×')
    """
    return _ratio_text(ratio, math.floor)


def ceil_text(ratio):
    """A ratio with two decimals, never less than it is.

    >>> ceil_text(1.151)
    '1.16×'
    """
    return _ratio_text(ratio, math.ceil)


def seconds_text(seconds):
    """A time in a unit that suits it.

    >>> seconds_text(0.00123), seconds_text(12.5)
    ('1.23 ms', '12.5 s')
    """
    for unit, size in [("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)]:
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def bytes_text(size):
    """A size in MB or GB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def print_table(columns, rows, file=None):
    """Print rows of text under headings, each column as wide as it needs."""
    lines = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for number, line in enumerate(lines):
        cells = [line[0].ljust(widths[0])]
        cells += [c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip(), file=file)
        if number == 0:
            print("  ".join("-" * width for width in widths), file=file)


def print_goals(goals):
    """Print goal, measured, met or not met, one goal a line."""
    rows = [(g.what, g.goal or "-", g.verdict, g.measured) for g in goals]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    for *cells, measured in rows:
        line = "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True))
        print(f"{line}  {measured}")


def write_result(result, out, settings):
    """Write a benchmark's rows, goals and notes, with the machine, as JSON."""
    content = {
        "benchmark": result.name,
        "settings": settings,
        "machine": machine(),
        "rows": result.rows,
        "goals": [asdict(goal) for goal in result.goals],
        "notes": result.notes,
    }
    _write_json(out / f"{result.name}.json", content)


def write_summary(goals, notes, out, settings):
    """Write the goals of a complete run as JSON and as a reStructuredText table."""
    made_on = machine()
    content = {
        "settings": settings,
        "machine": made_on,
        "goals": [asdict(goal) for goal in goals],
        "notes": notes,
    }
    _write_json(out / "summary.json", content)
    text = _rst_table(goals) + _rst_notes([in_words(made_on) + ".", *notes])
    (out / "summary.rst").write_text(text, encoding="utf-8")


def machine():
    """Processor, cores, memory, versions and BLAS libraries as a dict."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory(),
        "load": _load(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": _versions(),
        "blas": _blas(),
    }


def in_words(machine):
    """One line for people."""
    installed = machine["versions"].items()
    named = ", ".join(f"{name} {version}" for name, version in installed if version)
    blas = ", ".join(sorted({library["name"] for library in machine["blas"]}))
    return f"{machine['cpu']}, {machine['cores']} cores; {named}; BLAS: {blas}"


class Progress:
    """A bar on stderr: how many steps are done, and what is being done."""

    def __init__(self, file=None):
        self._file = sys.stderr if file is None else file
        self._live = self._file.isatty()
        self._start = time.perf_counter()
        self._name, self._total, self._done = "", 1, 0

    def begin(self, name, total):
        """A benchmark of `total` steps begins."""
        self._name, self._total, self._done = name, max(1, total), 0

    def step(self, what):
        """The next step begins."""
        filled = _WIDTH * self._done // self._total
        bar = "#" * filled + "." * (_WIDTH - filled)
        elapsed = int(time.perf_counter() - self._start)
        clock = f"{elapsed // 60}:{elapsed % 60:02d}"
        count = f"{self._done + 1}/{self._total}"
        self._show(f"{clock} [{bar}] {self._name} {count}: {what}")
        self._done = min(self._done + 1, self._total - 1)

    def clear(self):
        """Leave the line free for what is printed next."""
        if self._live:
            print("\r\033[K", end="", file=self._file, flush=True)

    def _show(self, line):
        if self._live:
            print(f"\r\033[K{line[:110]}", end="", file=self._file, flush=True)
        else:
            print(line, file=self._file, flush=True)


def _judged(what, sign, goal, measured, met, holds, note):
    measured = f"{measured}, {note}" if note else measured
    return Goal(what, f"{sign} {goal:,g}×", measured, bool(met and holds))


def _ratio_text(ratio, towards):
    if not math.isfinite(ratio):
        return f"{ratio}×"
    if abs(ratio) >= 100:
        return f"{towards(ratio):,}×"
    return f"{towards(ratio * 100) / 100:.2f}×"


def _rst_table(goals):
    lines = [
        ".. list-table::",
        "   :header-rows: 1",
        "   :widths: 45 15 30 10",
        "",
        *_rst_row(["What", "Goal", "Measured", "Met"]),
    ]
    for goal in goals:
        lines += _rst_row([goal.what, goal.goal, goal.measured, goal.verdict])
    return "\n".join(lines) + "\n"


def _rst_row(cells):
    marks = ["   * -", *["     -"] * (len(cells) - 1)]
    return [f"{m} {_escaped(c)}".rstrip() for m, c in zip(marks, cells, strict=True)]


def _rst_notes(notes):
    return "".join(f"\n{_escaped(note)}\n" for note in notes)


def _escaped(text):
    """Text with the characters that mean something in reStructuredText escaped."""
    for mark in "\\*`_|":
        text = text.replace(mark, "\\" + mark)
    return text


def _write_json(path, content):
    text = json.dumps(content, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _versions():
    """Versions of Python, of skmahal and of its peers; None where not installed."""
    found = {"python": platform.python_version(), "skmahal": skmahal.__version__}
    for name, distribution in _PACKAGES.items():
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


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
