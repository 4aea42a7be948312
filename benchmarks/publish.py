"""Make the tables and plots of the documentation from results.

``python -m benchmarks.publish`` reads the JSON files of ``benchmarks/results``, those
that are there, and writes what the documentation shows of them to CSV files in
``benchmarks/published``. Then it draws the plots in ``docs/_static`` from those files.
Figures can also be written into the CSV files by hand.
"""

import argparse
import csv
import json
from pathlib import Path

from . import _plots, _report, recall, step_and_query

HERE = Path(__file__).resolve().parent
PUBLISHED = HERE / "published"
PLOTS = HERE.parent / "docs" / "_static"

# Marks ratios below one, in which skmahal is the slower.
LOSS = " ↓"
QUERIES = {
    "500 queries": ("from the data", 500),
    "one a call": ("from the data", 1),
    "500 from outside": ("outside", 500),
    "one from outside": ("outside", 1),
}
MARKERS = {
    "500 queries": {"marker": "o", "fillstyle": "full"},
    "one a call": {"marker": "o", "fillstyle": "none"},
    "500 from outside": {"marker": "s", "fillstyle": "full"},
    "one from outside": {"marker": "s", "fillstyle": "none"},
}


def main(arguments=None):
    """Write the tables of all results that there are, and draw the plots."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.publish",
        description="Make the tables and plots of the documentation from results.",
    )
    for name, folder, what in [
        ("--results", HERE / "results", "JSON files of `python -m benchmarks`"),
        ("--tables", PUBLISHED, "CSV files, which are written if there are results"),
        ("--plots", PLOTS, "plots, which are drawn from the CSV files"),
    ]:
        default = folder.relative_to(HERE.parent)
        text = f"folder of {what} (default: {default})"
        parser.add_argument(name, type=Path, default=folder, help=text)
    options = parser.parse_args(arguments)
    for folder in (options.tables, options.plots):
        folder.mkdir(parents=True, exist_ok=True)
    for name, (source, table) in TABLES.items():
        path = options.results / f"{source}.json"
        if path.exists():
            result = json.loads(path.read_text(encoding="utf-8"))
            if result["settings"]["quick"]:
                parser.error(f"{path} is from a quick run, whose sizes are too small")
            write_table(options.tables / f"{name}.csv", table(result["rows"]))
    for name, draw in DRAWINGS.items():
        table = read_table(options.tables / f"{name}.csv")
        for ending, page in (("", _plots.light()), ("_dark", _plots.dark())):
            with page:
                draw(table, options.plots / f"{name}{ending}.png")


def write_table(path, lines):
    """Write lines of text, the first with the names of the columns."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def read_table(path):
    """Lines of a table as dicts."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def ratio_text(ratio):
    """How many times as fast as a peer, with a mark where that is less than one.

    >>> ratio_text(1406.4), ratio_text(11.72), ratio_text(1.06), ratio_text(0.519)
    ('1,406', '11.7', '1.06', '0.52 ↓')
    """
    if ratio is None:
        return ""
    digits = 2 if ratio < 2 else 1 if ratio < 100 else 0
    text = f"{ratio:,.{digits}f}"
    return text + (LOSS if _number(text) < 1 else "")


def ratio_of(text):
    """The number that :func:`ratio_text` wrote; None for an empty cell."""
    return _number(text.removesuffix(LOSS)) if text else None


def _number(text):
    return float(text.replace(",", ""))


# --- tables ---------------------------------------------------------------------------


def neighbors_table(rows):
    """Ratios to the best exact peer, a line for each case."""
    found = {}
    for row in rows:
        found.setdefault(row["case"], {})[row["queries"], row["batch"]] = row["ratio"]
    yield ["points and metric", *QUERIES]
    for case, ratios in found.items():
        yield [case, *(ratio_text(ratios.get(kind)) for kind in QUERIES.values())]


def distances_table(rows):
    """Ratios to the best exact peer of batches and single queries.

    A second line where adaptive queries are answered in another way.
    """
    yield ["points", "64 queries", "one a call"]
    for case in dict.fromkeys(row["case"] for row in rows):
        both = [row for row in rows if row["case"] == case]
        yield [case, *(ratio_text(row["ratio"]) for row in both)]
        if any(len(set(row["ways"])) > 1 for row in both):
            cells = (ratio_text(row["adaptive_ratio"]) for row in both)
            yield [f"{case}, adaptive=True", *cells]


def recall_table(rows):
    """Microseconds of a query at a recall, with the recall that was measured."""
    peers = (recall.OURS, recall.IVF, recall.HNSW)
    yield ["points", "recall", *peers, "skmahal, exact"]
    for row in rows:
        if row["kind"] != "curves":
            continue
        entries = {(entry["name"], entry["asked"]): entry for entry in row["found"]}
        for asked in recall.ASKED:
            cells = [_query_text(entries.get((name, asked))) for name in peers]
            cells.append(_query_text(entries.get((recall.EXACT, None))))
            yield [f"{row['case']} {row['n']:,} × {row['d']}", asked, *cells]


def moves_table(rows):
    """The least recall on fresh queries while the metric moves."""
    yield ["metric", *(f"recall={asked}" for asked in recall.ASKED)]
    for row in rows:
        if row["kind"] == "moves":
            least = (f"{min(recalls):.4f}" for _, recalls in row["recalls"])
            yield [f"{row['case']}, {row['steps']}", *least]


def online_table(rows):
    """Times of updates, with and without queries, beside those of peers."""
    yield ["what", "skmahal", "beside", "its time", "ratio"]
    update, step, *pairs = rows
    ours = update["update"]["median"]
    for name, entry in update["rebuilds"].items():
        yield _versus("update_metric", ours, f"transform + {name}", entry["median"])
    times = {name: entry["median"] for name, entry in step["contenders"].items()}
    mine = times.pop("skmahal")
    for name, seconds in times.items():
        yield _versus("update and ten queries", mine, f"NumPy {name}", seconds)
    for row in pairs:
        times = {name: entry["median"] for name, entry in row["contenders"].items()}
        mine = times.pop("skmahal")
        for name, seconds in times.items():
            what = f"update and one query, {row['data']}"
            yield _versus(what, mine, f"transform + {name}", seconds)


def step_table(rows):
    """Milliseconds of a step and a query, a line for each number of points."""
    found = step_and_query.series(rows)
    yield ["points", *found]
    for at, row in enumerate(rows):
        times = (1e3 * points[at][1] for points in found.values())
        cells = (f"{t:.3g}" if t < 1000 else f"{t:,.0f}" for t in times)
        yield [f"{row['n']:,}", *cells]


# Tables by name, the results that they are made of, and what makes them.
TABLES = {
    "step_and_query": ("step_and_query", step_table),
    "neighbors": ("neighbors", neighbors_table),
    "online": ("online", online_table),
    "recall": ("recall", recall_table),
    "moves": ("recall", moves_table),
    "distances": ("distances", distances_table),
}


def _query_text(entry):
    """Microseconds and recall of a contender; empty where it was not reached."""
    if entry is None:
        return ""
    return f"{1e6 * entry['seconds']:,.0f} ({entry['recall']:.3f})"


def _versus(what, ours, peer, seconds):
    text = _report.seconds_text
    return [what, text(ours), peer, text(seconds), ratio_text(seconds / ours)]


# --- plots ----------------------------------------------------------------------------


def draw_steps(table, path):
    """The picture of the README."""
    names = [name for name in table[0] if name != "points"]
    series = {
        name: [(_number(row["points"]), _number(row[name]) / 1e3) for row in table]
        for name in names
    }
    step_and_query.draw(series, path)


def draw_neighbors(table, path):
    """A line of marks for each case, on a logarithmic axis of ratios."""
    fig, (ax,) = _plots.figure(1, 1, (6, 1.6 + 0.36 * len(table)))
    heights = range(len(table))[::-1]
    for name, style in MARKERS.items():
        cells = [ratio_of(row[name]) for row in table]
        for won in (True, False):
            marks = [
                (ratio, height)
                for ratio, height in zip(cells, heights, strict=True)
                if ratio is not None and (ratio >= 1) == won
            ]
            colour = _plots.OURS if won else _plots.PEER
            if marks:
                ax.plot(*zip(*marks, strict=True), ls="", ms=8, color=colour, **style)
        ax.plot([], [], ls="", ms=7, color=_plots.OTHER, label=name, **style)
    ax.axvline(1, color=ax.spines["left"].get_edgecolor(), lw=1)
    ax.set_xscale("log")
    ax.set_xticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    ax.minorticks_off()
    ax.set_yticks(heights, [row["points and metric"] for row in table])
    ax.grid(alpha=0.25)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("times as fast as the best exact peer; below 1, slower")
    ax.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.4, 1), frameon=False)
    _plots.save(fig, path)


DRAWINGS = {"step_and_query": draw_steps, "neighbors": draw_neighbors}


if __name__ == "__main__":
    main()
