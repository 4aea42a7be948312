"""Drawings of "How it works", each in colours for a light and for a dark page.

The build calls :func:`draw_all`. Bounds, cells and probabilities in the drawings are
computed by the formulas of the page on theory.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy.stats import chi2
from sklearn.cluster import KMeans

INK = {"light": "#22272e", "dark": "#ced6dd"}
FAINT = {"light": "#b4bcc6", "dark": "#57606a"}
BLUE = {"light": "#1f6feb", "dark": "#6cb6ff"}
ORANGE = {"light": "#c2540a", "dark": "#f69d50"}

BEFORE = np.array([[1.0, 0.0], [0.0, 1.0]])
AFTER = np.array([[1.5, 0.8], [0.3, 0.6]])
QUERY = np.array([0.15, -0.1])


class Drawing:
    """A figure of some panels in a row, and the colours of a theme."""

    def __init__(self, theme, n_panels, height):
        self.ink, self.faint = INK[theme], FAINT[theme]
        self.blue, self.orange = BLUE[theme], ORANGE[theme]
        self.figure = Figure(figsize=(6.4, height), layout="constrained")
        self.panels = np.atleast_1d(self.figure.subplots(1, n_panels))
        for panel in self.panels:
            panel.set_axis_off()

    def ellipse(self, panel, U, radius):
        """Draw the points at a distance from the query under U."""
        angles = np.linspace(0, 2 * np.pi, 200)
        circle = radius * np.array([np.cos(angles), np.sin(angles)])
        x, y = QUERY[:, None] + np.linalg.solve(U, circle)
        panel.plot(x, y, color=self.orange, lw=1.2)

    def circle(self, panel, centre, radius, color, **options):
        """Draw a circle."""
        panel.add_patch(
            mpl.patches.Circle(centre, radius, fill=False, ec=color, **options)
        )

    def query(self, panel):
        """Mark the query."""
        panel.plot(*QUERY, marker="*", ms=11, color=self.orange, mec="none")

    def title(self, panel, text):
        """Write above a panel."""
        panel.set_title(text, color=self.ink, fontsize=11)


def nth_distance(U, X, n):
    """The n-th smallest distance of the query from the points under U."""
    return np.sort(np.linalg.norm((X - QUERY) @ U.T, axis=1))[n - 1]


def draw_codes(theme):
    """Points, their codes, and which points the codes exclude under two metrics."""
    drawing = Drawing(theme, 2, 3.3)
    X = np.random.default_rng(3).uniform(-1, 1, size=(70, 2))
    step = 0.25
    codes = step * np.round(X / step)
    errors = np.linalg.norm(X - codes, axis=1)
    lines = np.arange(-1, 1 + step, step)
    for panel, U, title in zip(
        drawing.panels, (BEFORE, AFTER), ("before an update", "after it"), strict=True
    ):
        g = U.T @ U @ QUERY
        norms = np.sum((X @ U.T) ** 2, axis=1)
        least = np.sum((U @ QUERY) ** 2) + norms
        least -= 2 * (codes @ g + np.linalg.norm(g) * errors)
        limit = nth_distance(U, X, 5)
        kept = least <= limit**2
        panel.hlines(lines, -1.06, 1.06, color=drawing.faint, lw=0.4)
        panel.vlines(lines, -1.06, 1.06, color=drawing.faint, lw=0.4)
        ends = np.stack([X, codes])
        panel.plot(ends[..., 0], ends[..., 1], color=drawing.faint, lw=0.8)
        panel.plot(*X[~kept].T, "o", ms=4, mfc="none", mec=drawing.ink, mew=0.8)
        panel.plot(*X[kept].T, "o", ms=5, color=drawing.blue)
        drawing.ellipse(panel, U, limit)
        drawing.query(panel)
        drawing.title(panel, title)
        panel.set(aspect="equal", xlim=(-1.08, 1.08), ylim=(-1.08, 1.08))
    return drawing.figure


def draw_cells(theme):
    """Cells of points, and which cells the bounds exclude under two metrics."""
    drawing = Drawing(theme, 2, 3.3)
    rng = np.random.default_rng(5)
    centres = rng.uniform(-1, 1, size=(14, 2))
    X = centres[rng.integers(14, size=220)] + 0.07 * rng.normal(size=(220, 2))
    cells = KMeans(14, n_init=5, random_state=0).fit(X)
    for panel, U, title in zip(
        drawing.panels, (BEFORE, AFTER), ("before an update", "after it"), strict=True
    ):
        g, limit = U.T @ U @ QUERY, nth_distance(U, X, 5)
        for cell, centre in enumerate(cells.cluster_centers_):
            inside = X[cells.labels_ == cell]
            radius = np.linalg.norm(inside - centre, axis=1).max()
            least = np.sum((U @ QUERY) ** 2) - 2 * g @ centre
            least += np.min(np.sum((inside @ U.T) ** 2, axis=1))
            least -= 2 * np.linalg.norm(g) * radius
            color = drawing.blue if least <= limit**2 else drawing.faint
            panel.plot(*inside.T, ".", ms=4, color=color)
            drawing.circle(panel, centre, radius, color, lw=1)
        drawing.ellipse(panel, U, limit)
        drawing.query(panel)
        drawing.title(panel, title)
        panel.set(aspect="equal", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3))
    return drawing.figure


def draw_tree(theme):
    """A walk down the tree, with the probability of each step."""
    drawing = Drawing(theme, 1, 3.4)
    (panel,) = drawing.panels
    distances = np.array([1.2, 3.1, 0.6, 2.4, 4.0, 1.0, 2.2, 1.6])
    walk = [(0, 0), (1, 1), (2, 2), (3, 4)]  # the level and the place in it
    bounds = [np.sqrt(2 * np.sum(distances.reshape(-1, 2) ** 2, axis=1))]
    bounds.insert(0, np.sqrt(4 * np.sum(distances.reshape(-1, 4) ** 2, axis=1)))
    bounds.insert(0, np.sqrt(8 * np.sum(distances.reshape(-1, 8) ** 2, axis=1)))
    bounds.append(distances)
    place = [(np.arange(2**level) + 0.5) * 8 / 2**level for level in range(4)]
    for level in range(1, 4):
        for node in range(2**level):
            taken = (level, node) in walk
            color = drawing.blue if taken else drawing.faint
            x = [place[level - 1][node // 2], place[level][node]]
            panel.plot(x, [4 - level, 3 - level], color=color, lw=2 if taken else 1)
            if taken:
                share = bounds[level][node] / bounds[level - 1][node // 2]
                side = "left" if x[1] > x[0] else "right"
                text = f"  {share:.2f}  "
                panel.text(np.mean(x), 3.5 - level, text, ha=side, color=drawing.blue)
    for level in range(4):
        for node, x in enumerate(place[level]):
            taken = (level, node) in walk
            color = drawing.blue if taken else drawing.ink
            panel.text(
                x,
                3 - level,
                f"{bounds[level][node]:.1f}",
                ha="center",
                va="center",
                color=color,
                fontsize=10,
                bbox={
                    "boxstyle": "round,pad=0.3",
                    "fc": "#0d1117" if theme == "dark" else "white",
                    "ec": color,
                },
            )
    panel.bar(place[3], -distances / 5, width=0.5, bottom=-0.3, color=drawing.orange)
    panel.set(xlim=(-0.1, 8.1), ylim=(-1.2, 3.3))
    return drawing.figure


def draw_sketches(theme):
    """Sketches of one vector, the sampled ones, and the distribution of an estimate."""
    drawing = Drawing(theme, 2, 2.9)
    left, right = drawing.panels
    rng = np.random.default_rng(1)
    vector, m, sampled = rng.normal(size=256), 16, [1, 2, 5, 6, 9]
    vector /= np.linalg.norm(vector)
    estimates = np.array(
        [np.linalg.norm(rng.normal(size=(m, 256)) @ vector) / 4 for _ in range(10)]
    )
    median = np.median(estimates[sampled])
    for j, estimate in enumerate(estimates):
        color = drawing.blue if j in sampled else drawing.faint
        left.plot([1, estimate], [j, j], color=color, lw=1)
        left.plot(estimate, j, "o", color=color, ms=6)
    left.axvline(1, color=drawing.ink, lw=1)
    left.axvline(median, color=drawing.orange, lw=1.5)
    side, other = ("right", "left") if median < 1 else ("left", "right")
    left.text(1, 10.1, " exact ", color=drawing.ink, ha=other)
    left.text(median, 10.1, " median ", color=drawing.orange, ha=side)
    left.set(ylim=(-0.7, 11))
    drawing.title(left, "ten sketches, five sampled")
    ratio = np.linspace(0.4, 1.6, 400)
    for size, alpha in ((16, 0.35), (64, 0.65), (256, 1.0)):
        density = 2 * size * ratio * chi2.pdf(size * ratio**2, size)
        right.plot(ratio, density, color=drawing.blue, alpha=alpha, lw=1.5)
        top = density.max()
        right.text(1.03, 0.97 * top, f"m={size}", color=drawing.ink)
    right.set_axis_on()
    right.spines[["left", "right", "top"]].set_visible(False)
    right.spines["bottom"].set_color(drawing.ink)
    right.tick_params(colors=drawing.ink)
    right.set(yticks=[], xticks=[0.5, 1, 1.5], facecolor="none")
    drawing.title(right, "estimate / exact distance")
    return drawing.figure


def draw_all(folder):
    """Write every drawing as SVG, for both themes, with names such as codes_dark."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    drawings = {
        "codes": draw_codes,
        "cells": draw_cells,
        "tree": draw_tree,
        "sketches": draw_sketches,
    }
    # Fixed ids and no date: the same drawing is the same file.
    with mpl.rc_context({"svg.hashsalt": "skmahal"}):
        for name, draw in drawings.items():
            for theme in ("light", "dark"):
                draw(theme).savefig(
                    folder / f"{name}_{theme}.svg",
                    transparent=True,
                    metadata={"Date": None},
                )
