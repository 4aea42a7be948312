"""The few kinds of plot that the benchmarks share."""

from contextlib import contextmanager

import numpy as np

OURS = "#2a8ab0"
PEER = "#c98a3a"
OTHER = "#8a8a8a"
GOAL = "#b3261e"


def figure(rows, columns, size):
    """A figure that needs no display, and its axes as a flat list."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(fig)
    return fig, list(np.ravel(fig.subplots(rows, columns, squeeze=False)))


def save(fig, path):
    """Write the figure as a PNG."""
    # bbox_inches: text beside the axes belongs to the figure.
    fig.savefig(path, dpi=130, bbox_inches="tight")


@contextmanager
def light():
    """Figures of the documentation, with text that can be read on a telephone."""
    from matplotlib import rc_context

    with rc_context({"font.size": 12}):
        yield


@contextmanager
def dark():
    """The same with light lines on a dark page."""
    from matplotlib import rc_context

    light, page = "#ced6dd", "#14181e"
    names = ("text.color", "axes.labelcolor", "axes.edgecolor")
    names += ("axes.titlecolor", "xtick.color", "ytick.color")
    settings = dict.fromkeys(names, light) | {"grid.color": light}
    faces = dict.fromkeys(("figure.facecolor", "axes.facecolor"), page)
    with rc_context(settings | faces | {"savefig.facecolor": page, "font.size": 12}):
        yield


def apart(heights, factor):
    """Heights on a logarithmic axis, moved up until each is `factor` from the next.

    >>> apart([4.0, 1.0, 1.1], factor=2)
    [4.0, 1.0, 2.0]
    """
    moved, least = list(heights), 0.0
    for at in np.argsort(heights):
        moved[at] = max(moved[at], least)
        least = factor * moved[at]
    return moved


def plain_ticks(axis):
    """Label a logarithmic axis with plain numbers; more of them where it is short."""
    low, high = sorted(axis.get_view_interval())
    digits = "25" if high < 30 * low else ""
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(
        lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in digits else ""
    )


def mark_sizes(ax, sizes):
    """Ticks of a logarithmic axis at the sizes that were measured, and no others."""
    from matplotlib.ticker import NullLocator

    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])


def text_at_edge(ax, height, text):
    """Write to the right of the axes, where no bar can be."""
    at = ax.get_yaxis_transform()
    ax.text(1.01, height, text, transform=at, va="center", fontsize=8)


def ratio_bars(ax, labels, ratios, goals, title):
    """Horizontal bars from 1 on a logarithmic axis, with a mark where the goal is."""
    at = np.arange(len(labels))[::-1]
    colours = [OURS if ratio >= 1 else PEER for ratio in ratios]
    ax.barh(at, np.subtract(ratios, 1), left=1, height=0.62, color=colours)
    for height, ratio, goal in zip(at, ratios, goals, strict=True):
        if goal is not None:
            ax.plot([goal, goal], [height - 0.4, height + 0.4], color=GOAL, lw=2)
        text_at_edge(ax, height, f"{ratio:.3g}×")
    ax.axvline(1, color=ax.spines["left"].get_edgecolor(), lw=0.8)
    ax.set_xscale("log")
    shown = [*ratios, *(goal for goal in goals if goal is not None), 1]
    ax.set_xlim(min(shown) / 1.3, max(shown) * 1.3)
    plain_ticks(ax.xaxis)
    ax.set_yticks(at, labels, fontsize=8)
    ax.set_ylim(-0.6, len(labels) - 0.4)
    ax.set_title(title, fontsize=10)
    ax.spines[["top", "right"]].set_visible(False)
