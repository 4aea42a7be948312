"""
Image search that learns from clicks
====================================

People search a collection of images by an example. Of the ten images that are shown,
they click those that are what they look for. Two things can be learned from the clicks:

- *For this search*, Rocchio's rule moves the query towards the images that were clicked
  and away from the others.
- *For all later searches*, an online learner moves the metric, so that clicked images
  are nearer to their queries and the others farther away. The index follows each step.

The images are digits under a light that comes from any side. People look for the same
digit. The light dominates Euclidean distances, and the metric has to learn that it does
not matter.
"""

# sphinx_gallery_thumbnail_number = 2

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score

from skmahal import SketchedMahalanobisNeighbors
from skmahal.inspection import NeighborsDisplay
from skmahal.online import OnlineITML

plt.style.use("tableau-colorblind10")
N_SEARCHES, SHOWN = 200, 10

rng = np.random.default_rng(0)
X, y = load_digits(return_X_y=True)
slope = np.linspace(-1, 1, 8)
sides = np.array([np.tile(slope, 8), np.repeat(slope, 8)])
X = X / 16 + 0.5 * rng.normal(size=(len(X), 2)) @ sides
# Queries to measure with, which nobody searches for.
Q, digits, X, y = X[:100], y[:100], X[100:], y[100:]

index = SketchedMahalanobisNeighbors(SHOWN).fit(X)

# %%
# Before any click, the neighbours of a query are images under the same light:

examples = [12, 3, 18]
figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
NeighborsDisplay.from_estimator(
    index, Q[examples], image_shape=(8, 8), labels=y, ax=axes, name="before any click"
)
plt.show()

# %%
# How results are judged
# ----------------------
#
# The average precision of a query is 1 if all images of its digit come before all other
# images. Its mean over queries is the mAP.


def mean_average_precision(index, Q):
    U = index.components_
    points, found = X @ U.T, []
    for q, digit in zip(Q @ U.T, digits, strict=True):
        distances = np.linalg.norm(points - q, axis=1)
        found.append(average_precision_score(y == digit, -distances))
    return np.mean(found)


def rocchio(index, Q):
    """Queries after the first ten results were clicked or not."""
    moved = []
    for q, digit, shown in zip(Q, digits, index.kneighbors(Q)[1], strict=True):
        clicked, other = X[shown[y[shown] == digit]], X[shown[y[shown] != digit]]
        if len(clicked):
            q = q + 0.75 * (clicked.mean(axis=0) - q)
        if len(other):
            q = q - 0.15 * (other.mean(axis=0) - q)
        moved.append(q)
    return np.array(moved)


def judge(index):
    moved = rocchio(index, Q)
    return mean_average_precision(index, Q), mean_average_precision(index, moved)


# %%
# Searches and clicks
# -------------------
#
# Each search shows ten images. Each of them makes a pair with the query, which is
# similar if the image was clicked. Similar pairs should be within distance 1, and
# others at least 2 apart. The index takes over the steps of the learner, which are of
# low rank.

learner = OnlineITML(similar_target=1.0, dissimilar_target=2.0)
total, clicks, judged = 0, [0], [judge(index)]
for search in range(1, N_SEARCHES + 1):
    query = rng.integers(len(X))
    shown = index.kneighbors(X[[query]], SHOWN + 1, return_distance=False)[0]
    shown = shown[shown != query][:SHOWN]
    clicked = y[shown] == y[query]

    pairs = np.stack([np.repeat(X[[query]], len(shown), axis=0), X[shown]], axis=1)
    learner.partial_fit(pairs, np.where(clicked, 1, -1))
    index.update_metric(learner)

    total += clicked.sum()
    if search % 10 == 0:
        clicks.append(total)
        judged.append(judge(index))

plain, moved = np.transpose(judged)
print(f"mAP              Euclidean  after {total} clicks")
print(f"query as it is   {plain[0]:9.3f}  {plain[-1]:17.3f}")
print(f"Rocchio          {moved[0]:9.3f}  {moved[-1]:17.3f}")

# %%
# The mAP after each click
# ------------------------
#
# Under a metric that stays as it is, every search begins anew, and Rocchio's rule has
# little to begin with. Under the learned metric each search profits from the clicks of
# all earlier ones, and Rocchio's rule adds to that.

figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
axes.plot(clicks, moved, color="C0", label="learned metric and Rocchio")
axes.plot(clicks, plain, color="C1", label="learned metric")
axes.axhline(moved[0], color="C0", ls="--", label="Euclidean metric and Rocchio")
axes.axhline(plain[0], color="C1", ls="--", label="Euclidean metric")
axes.set(xlabel="clicks so far", ylabel="mAP of 100 other queries", ylim=(0, 0.8))
axes.legend(loc="center right")
plt.show()

# %%
# The same queries after all clicks:

figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
NeighborsDisplay.from_estimator(
    index, Q[examples], image_shape=(8, 8), labels=y, ax=axes, name="after the clicks"
)
plt.show()
