"""
An attacker who learns from the estimates
=========================================

A sketch estimates distances well for queries that do not depend on it. Someone who sees
estimates and chooses queries by them learns the sketch, and after some thousands of
estimates knows unit vectors whose length is reported as a quarter, or as more than
three. This needs no malice: an optimiser that follows the estimates does the same.

The index keeps L sketches, and a secret key decides which R of them serve a query. This
example attacks a single sketch and indexes with more and more sketches, with and
without leading directions, and with sketches that are drawn again from time to time.

The attack is on `distances`. Neighbours are exact by default and use no sketch, so the
last part of the example finds them unharmed.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from skmahal import MahalanobisSketch, SketchedMahalanobisNeighbors

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


def index(L, lead):
    """An index with L sketches, of which R serve a query."""
    return SketchedMahalanobisNeighbors(m=M, L=L, R=R, lead=lead, random_state=0)


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


def attack(target, refresh=False):
    """Reported lengths of the shortest and longest unit vector found so far.

    With `refresh` new sketches are drawn every STEP queries, and the attacker, who
    knows this, starts again.
    """
    rng, moments, found = np.random.default_rng(1), np.zeros((K, K)), []
    for count in range(STEP, CHECKPOINTS[-1] + 1, STEP):
        V = rng.normal(size=(STEP, K))
        V /= np.linalg.norm(V, axis=1, keepdims=True)
        if refresh:
            target.refresh_sketches()
            moments[:] = 0
        moments += V.T @ (V * (target.distances(V)[:, :1] ** 2 - 1))
        if count in CHECKPOINTS:
            extremes = np.linalg.eigh(moments)[1][:, [0, -1]].T
            found.append([reported(target, v) for v in extremes])
    return np.array(found)


one = attack(OneSketch().fit(X))
runs = {
    (L, lead, refresh): attack(index(L, lead).fit(X), refresh)
    for L, refresh in [(5, False), (20, False), (100, False), (5, True)]
    for lead in (0, "auto")
}

print(f"after {CHECKPOINTS[-1]} queries           shortest  longest")
print(f"{'one sketch':28s}  {one[-1][0]:8.2f} {one[-1][1]:8.2f}")
for (L, lead, refresh), found in runs.items():
    name = f"L={L}, lead={lead}" + (", refreshed" if refresh else "")
    print(f"{name:28s}  {found[-1][0]:8.2f} {found[-1][1]:8.2f}")

# %%
# Distortion against queries
# --------------------------
#
# On the left, the single sketch is broken within a few hundred queries. Five sketches
# take longer, and twenty move much less in the same number of queries. With a hundred
# the reports stay within a fifth of the exact length. Leading directions, dashed, make
# little difference: distances along them are exact, and the attack finds the others.
#
# On the right, five sketches are replaced every 250 queries. However long the attack
# continues, it gets no further than 250 queries allow.
#
# One attack that fails says nothing about the next one.
# :func:`~skmahal._core.bounds.representative_sketches` gives the number of sketches of
# which at most a tenth are wrong about any vector at all, so that the majority of R is
# rarely wrong, however the query was found. For these k and m and an error of one half
# it is about four thousand, and it grows with k; :doc:`/theory` has the argument.

figure, (by_number, by_refresh) = plt.subplots(
    1, 2, figsize=(10, 4.6), sharex=True, sharey=True, layout="constrained"
)
colours = {1: "tab:red", 5: "tab:orange", 20: "tab:green", 100: "tab:blue"}
fresh = "tab:purple"


def draw(axes, found, colour, lead=0):
    """Both sides of an attack; default leading directions are dashed."""
    style = "-" if lead == 0 else "--"
    axes.plot(CHECKPOINTS, found, ls=style, marker=".", color=colour)


for axes in (by_number, by_refresh):
    draw(axes, one, colours[1])
for (L, lead, refresh), found in runs.items():
    if not refresh:
        draw(by_number, found, colours[L], lead)
    if L == 5:
        draw(by_refresh, found, fresh if refresh else colours[L], lead)
ticks = [0.25, 0.5, 1, 2, 4]
for axes in (by_number, by_refresh):
    axes.axhline(1, color="0.6", lw=1, ls=":")
    axes.set(xscale="log", yscale="log", xlabel="queries")
    axes.set_xticks(CHECKPOINTS[::2], CHECKPOINTS[::2])
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
by_number.set(title="more sketches", ylabel="reported length of a unit vector")
by_refresh.set(title=f"L = 5, new sketches every {STEP} queries")


def key(colour, label, style="-"):
    return Line2D([], [], color=colour, ls=style, label=label)


figure.legend(
    handles=[
        key(colours[1], "one sketch"),
        *(key(colours[L], f"index, L = {L}") for L in (5, 20, 100)),
        key(fresh, "index, L = 5, refreshed"),
        key("0.3", "lead = 0"),
        key("0.3", "default lead", "--"),
    ],
    loc="outside lower center",
    ncols=4,
)
plt.show()

# %%
# Exact neighbours
# ----------------
#
# The attacker's best vectors against five sketches are now queries for neighbours. The
# distances are those of brute force. A result that depends on points, metric and query
# alone reveals nothing, and ``guarantee()`` says so.

target = index(5, 0).fit(X)
V = rng.normal(size=(8000, K))
V /= np.linalg.norm(V, axis=1, keepdims=True)
moments = V.T @ (V * (target.distances(V)[:, :1] ** 2 - 1))
found = np.linalg.eigh(moments)[1][:, [0, -1]].T
nearest, _ = target.kneighbors(found)
exact = np.sort(np.linalg.norm(found[:, None] - X, axis=2), axis=1)[:, :5]
lengths = [reported(target, v) for v in found]
print(f"reported lengths  {lengths[0]:.2f} {lengths[1]:.2f}")
print(f"neighbours exact  {np.allclose(nearest, exact)}")
print(target.guarantee())
