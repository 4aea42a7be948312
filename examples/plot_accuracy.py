"""
Accuracy of estimated distances
===============================

With a number for `m`, distances are estimated from random sketches, as in the paper of
Qin, Reddy and Song (2023): each is the median of R sketches of m rows. For a Gaussian
sketch the error has a known distribution, :math:`\\chi^2` with m degrees of freedom. So
the probability of every error is known exactly, and m and R follow from the accuracy
that is needed. Here the formulas are compared with what is measured.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import beta, chi2

from skmahal import SketchedMahalanobisNeighbors
from skmahal._core.bounds import failure, sketch_size
from skmahal.inspection import SketchQualityDisplay

plt.style.use("tableau-colorblind10")
sizes, votes, eps = 2 ** np.arange(2, 9), (1, 5), 0.2

# %%
# Ratios of estimated and exact distances
# ---------------------------------------
#
# Points and metric do not matter for the error of a sketch; these are random. A new
# query is served by another choice among L = 50 sketches.

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 1400)).astype(np.float32)
Q = rng.normal(size=(100, 1400)).astype(np.float32)
exact = SketchedMahalanobisNeighbors(adaptive=True, eps=1e-6).fit(X).distances(Q)

ratios = {}
for R in votes:
    for m in sizes:
        index = SketchedMahalanobisNeighbors(
            m=int(m), L=50, R=R, lead=0, random_state=0
        )
        ratios[R, m] = (index.fit(X).distances(Q) / exact).ravel()

# %%
# The band of 99 % of all errors
# ------------------------------
#
# The squared ratio of one sketch, times m, is :math:`\chi^2_m`. The median of R of them
# is an order statistic, whose place in that distribution has a beta distribution. This
# gives the bands. The bars contain 99 % of the measured ratios, and dots are the
# medians.

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
fine, inside = np.geomspace(sizes[0], sizes[-1], 50), np.array([0.005, 0.5, 0.995])
for R, colour, shift in zip(votes, ("C1", "C0"), (0.96, 1.04), strict=True):
    places = beta((R + 1) / 2, (R + 1) / 2).ppf(inside)
    low, _, high = np.sqrt(chi2.ppf(places[:, np.newaxis], fine) / fine)
    axes.fill_between(fine, low, high, color=colour, alpha=0.25, lw=0)
    axes.plot(fine, low, color=colour, lw=1)
    axes.plot(fine, high, color=colour, lw=1, label=f"R = {R}: exact band of 99 %")
    found = np.array([np.quantile(ratios[R, m], inside) for m in sizes])
    lengths = abs(found[:, [0, 2]] - found[:, [1]]).T
    style = {"fmt": "o", "ms": 4, "lw": 1.5, "color": colour, "capsize": 3}
    axes.errorbar(sizes * shift, found[:, 1], lengths, label="measured", **style)
axes.axhline(1, color="0.4", lw=0.8)
axes.set(xscale="log", xlabel="rows m of a sketch", ylabel="estimate / exact distance")
axes.set_xticks(sizes, sizes)
axes.minorticks_off()
axes.legend(ncols=2)
plt.show()

# %%
# How often an estimate is off by a fifth
# ---------------------------------------
#
# :func:`~skmahal._core.bounds.failure` is the probability that the median of R sketches
# is off by more than `eps`. It falls exponentially with m. There is no constant to
# choose.

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for R, colour in zip(votes, ("C1", "C0"), strict=True):
    expected = [failure(eps, int(m), R) for m in sizes]
    measured = [np.mean(abs(ratios[R, m] - 1) > eps) for m in sizes]
    seen = np.array(measured) > 0
    axes.plot(sizes, expected, color=colour, label=f"R = {R}: exact")
    axes.plot(
        sizes[seen], np.array(measured)[seen], "o", color=colour, label="measured"
    )
axes.set(xscale="log", yscale="log", ylim=(1e-5, 1.5), xlabel="rows m of a sketch")
axes.set(ylabel=f"share off by more than {eps}")
axes.set_xticks(sizes, sizes)
axes.tick_params(axis="x", which="minor", length=0)
axes.legend()
plt.show()

# %%
# :func:`~skmahal._core.bounds.sketch_size` solves for m. One sketch needs more rows
# than each of R sketches, but fewer than they have together. The median does not save
# work: it is for queries that depend on earlier results.

for R in votes:
    m = sketch_size(eps, 0.01, R)
    print(
        f"R = {R}: m = {m:3d}, {m * R} rows for an error of {eps} in 99 % of the cases"
    )

# %%
# The index that you have
# -----------------------
#
# ``audit`` compares estimates of an index with exact distances, for random pairs of
# points and for recent queries, and :class:`~skmahal.inspection.SketchQualityDisplay`
# plots the result. It passes unless more pairs are outside 1 ± `eps` than was promised.

index = SketchedMahalanobisNeighbors(m=64, R=5, eps=eps, lead=0, random_state=0).fit(X)
index.distances(Q)
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
SketchQualityDisplay.from_estimator(index, random_state=0, ax=axes)
plt.show()
