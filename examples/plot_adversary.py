"""
An attacker who learns from the estimates
=========================================

A sketch estimates distances well for queries that do not depend on it. Someone who sees
estimates and bases queries on them learns the sketch, and after some thousands of
estimates knows unit vectors whose length is reported as a quarter, or as more than
three. This needs no malice: an optimiser that follows the estimates does the same.

One sketch has no answer to this. With L sketches, and a secret key that decides which R
of them serve a query, the attack takes longer, and from some thousands of sketches on
it is proven to fail. With ``adaptive=True`` nothing is random: every distance lies
between two bounds that are certain, and there is nothing to learn.
"""

import matplotlib.pyplot as plt
import numpy as np

from skmahal import MahalanobisSketch, SketchedMahalanobisNeighbors

plt.style.use("tableau-colorblind10")
K, M, R = 128, 16, 5
STEP, CHECKPOINTS = 250, 250 * 2 ** np.arange(8)

# %%
# Points and what is attacked
# ---------------------------
#
# The points have leading directions, as real data do. The first point is the origin:
# its distance from a query is the length of the query. The metric is the Euclidean one;
# with another metric, an attacker who knows U would choose ``U q`` in the same way.

rng = np.random.default_rng(0)
X = rng.normal(size=(500, K)) / (1 + np.arange(K))
X[0] = 0


class OneSketch:
    """A single sketch that reports distances to the first point, and no vectors."""

    def fit(self, X):
        self.sketch = MahalanobisSketch(M, random_state=0).fit(X)
        self.points = self.sketch.transform(X)
        return self

    def distances(self, Q):
        gaps = self.sketch.transform(Q)[:, None] - self.points[:1]
        return np.linalg.norm(gaps, axis=2)


def index(L):
    """An index with L sketches, of which R serve a query."""
    return SketchedMahalanobisNeighbors(m=M, L=L, R=R, lead=0, random_state=0)


# %%
# The attack
# ----------
#
# The squared estimate by one sketch is a quadratic form :math:`v^\top G v`, and by a
# median of several it is near one. For random unit vectors the expectation of
# :math:`(\hat d^2 - 1)\, v v^\top` has the eigenvectors of G. So the attacker sums
# these matrices and queries the two extreme eigenvectors. Each is queried at 25
# lengths, which are served by different choices of sketches, and the median is
# reported, so that luck with one choice does not count.


def reported(target, v):
    """The length of a unit vector according to the target."""
    lengths = np.linspace(0.5, 2, 25)[:, None]
    return np.median(target.distances(lengths * v)[:, :1] / lengths)


def attack(target):
    """Reported lengths of the shortest and longest unit vector found so far."""
    rng, moments, found = np.random.default_rng(1), np.zeros((K, K)), []
    for count in range(STEP, CHECKPOINTS[-1] + 1, STEP):
        V = rng.normal(size=(STEP, K))
        V /= np.linalg.norm(V, axis=1, keepdims=True)
        moments += V.T @ (V * (target.distances(V)[:, :1] ** 2 - 1))
        if count in CHECKPOINTS:
            extremes = np.linalg.eigh(moments)[1][:, [0, -1]].T
            found.append([reported(target, v) for v in extremes])
    return np.array(found)


safe = SketchedMahalanobisNeighbors(adaptive=True).fit(X)
runs = {"one sketch": attack(OneSketch().fit(X))}
runs |= {f"L = {L} sketches": attack(index(L).fit(X)) for L in (5, 20, 100)}
runs["adaptive=True"] = attack(safe)

print(f"after {CHECKPOINTS[-1]} queries   shortest  longest")
for name, found in runs.items():
    print(f"{name:20s}  {found[-1][0]:8.2f} {found[-1][1]:8.2f}")

# %%
# Distortion against queries
# --------------------------
#
# The single sketch is broken within a few hundred queries. Five sketches take longer,
# and twenty move much less in the same number of queries. With a hundred the reports
# stay within a fifth of the exact length, but one attack that fails says nothing about
# the next one. :func:`~skmahal._core.bounds.representative_sketches` gives a number of
# sketches that is proven to suffice: for these k and m and an error of one half it is
# about four thousand, and it grows with k. :doc:`/theory` has the argument.
#
# The adaptive index does not move at all. Its distances are not exact, but their
# errors are the same for everybody, and within the grey band for every query.

figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
colours = ["C5", "C1", "C8", "C0", "black"]
axes.axhspan(1 - safe.eps, 1 + safe.eps, color="0.92", label="1 ± eps")
for (name, found), colour in zip(runs.items(), colours, strict=True):
    axes.plot(CHECKPOINTS, found[:, 0], marker=".", color=colour, label=name)
    axes.plot(CHECKPOINTS, found[:, 1], marker=".", color=colour)
ticks = [0.25, 0.5, 1, 2, 4]
axes.set(xscale="log", yscale="log", xlabel="queries")
axes.set(ylabel="reported length of a unit vector")
axes.set_xticks(CHECKPOINTS[::2], CHECKPOINTS[::2])
axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
axes.minorticks_off()
figure.legend(loc="outside lower center", ncols=3)
plt.show()

# %%
# What is promised
# ----------------
#
# ``guarantee()`` says which results hold for queries that depend on earlier ones.
# Neighbours are exact in any case; no sketch takes part in them.

print(index(5).fit(X).guarantee())
print()
print(safe.guarantee())
