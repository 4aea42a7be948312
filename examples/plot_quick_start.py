"""
Quick start
===========

An index of images finds the neighbours of a query. Then a metric is learned from the
labels of the images, the index changes to it in place, and finds better neighbours.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NeighborhoodComponentsAnalysis

from skmahal import SketchedMahalanobisNeighbors
from skmahal.inspection import NeighborsDisplay

X, y = load_digits(return_X_y=True)
X, queries, y, answers = train_test_split(X / 16, y, test_size=300, random_state=1)

# %%
# Neighbours
# ----------
#
# Without a `metric_learner`, the metric is the Euclidean one. Neighbours are exact.

index = SketchedMahalanobisNeighbors(n_neighbors=8).fit(X)
distances, neighbours = index.kneighbors(queries)
right = y[neighbours] == answers[:, np.newaxis]
print(f"{right.mean():.1%} of the neighbours show the digit of the query")

# %%
# These are the five queries with the worst neighbours. The digit of each neighbour is
# above it, and its distance below.

worst = np.argsort(right.sum(axis=1), kind="stable")[:5]
print("The queries show the digits", answers[worst])
figure, axes = plt.subplots(figsize=(7, 5.6), layout="constrained")
NeighborsDisplay.from_estimator(
    index,
    queries[worst],
    image_shape=(8, 8),
    labels=y,
    name="Euclidean metric",
    ax=axes,
)
plt.show()

# %%
# A learned metric
# ----------------
#
# Any learner of scikit-learn or metric-learn that has ``components_`` can be used. The
# index changes to its metric without being fitted again.

learner = NeighborhoodComponentsAnalysis(max_iter=30, random_state=0).fit(X, y)
index.update_metric(learner)

right = y[index.kneighbors(queries, return_distance=False)] == answers[:, np.newaxis]
print(f"{right.mean():.1%} of the neighbours show the digit of the query")

figure, axes = plt.subplots(figsize=(7, 5.6), layout="constrained")
NeighborsDisplay.from_estimator(
    index, queries[worst], image_shape=(8, 8), labels=y, name="learned metric", ax=axes
)
plt.show()

# %%
# Small changes
# -------------
#
# A change of the metric of low rank, ``U += W Vᵀ``, takes one pass over the points.
# Here the mean brightness of an image gets twice its weight. Points can be added and
# removed at any time.

v = np.full((64, 1), 1 / 8)
index.update_metric(low_rank=(index.components_ @ v, v))
index.partial_fit(queries[:10]).remove_points([0, 1])
distances, neighbours = index.kneighbors(queries[:1])
print(f"{len(index)} points; the nearest one to the first query is itself:")
print(f"point {neighbours[0, 0]} at distance {distances[0, 0]:.1f}")

# %%
# ``guarantee`` says what holds for the results.

print(index.guarantee())
