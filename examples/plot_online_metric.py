"""
A stream whose relevant features change
=======================================

Labelled points come in batches. At first six features separate the classes, and the
others are noise. Halfway those six become noise, and six others separate the classes.
Each batch is predicted by the nearest neighbours in a window of the latest points
before its labels are learned.

Three metrics are compared: the Euclidean one, one that was learned in advance, and one
that LEGO changes by small steps with every batch.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.frozen import FrozenEstimator

from skmahal import SketchedMahalanobisClassifier
from skmahal.inspection import StreamAccuracyDisplay
from skmahal.online import LEGO

plt.style.use("tableau-colorblind10")
N_POINTS, N_FEATURES, BATCH, WINDOW = 4000, 60, 10, 500

rng = np.random.default_rng(0)
centres = 0.9 * rng.normal(size=(4, 6))


def points(n, first):
    """Points of four classes, which differ in six features."""
    y = rng.integers(4, size=n)
    X = rng.normal(size=(n, N_FEATURES))
    X[:, first : first + 6] = centres[y] + 0.5 * rng.normal(size=(n, 6))
    return X, y


X_before, y_before = points(1000, 2)
half = N_POINTS // 2
parts = points(half, 2), points(half, 10)
X, y = (np.concatenate(both) for both in zip(*parts, strict=True))

# %%
# A classifier that learns
# ------------------------
#
# ``partial_fit`` adds a batch to the window, passes it to the learner, and changes the
# metric by the steps that the learner makes. The weight of a feature is its distance
# from 0 to 1 under the metric; it is recorded for the plot below.

knn = SketchedMahalanobisClassifier(
    9, metric_learner=LEGO(random_state=0), max_points=WINDOW
)
knn.fit(X[:BATCH], y[:BATCH])
predicted, weights = [], []
for start in range(BATCH, N_POINTS, BATCH):
    batch = slice(start, start + BATCH)
    predicted.extend(knn.predict(X[batch]))
    knn.partial_fit(X[batch], y[batch])
    weights.append(np.linalg.norm(knn.components_, axis=0))

# %%
# Accuracy over time
# ------------------
#
# The learned metrics are more accurate than the Euclidean one. When the features
# change, the metric that is kept gives weight to what has become noise, while LEGO
# learns the new features. All three fall at first, because the window is still full of
# old points.

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
learned = LEGO(random_state=0).fit(X_before, y_before)
for name, learner in {
    "Euclidean": None,
    "learned in advance": FrozenEstimator(learned),
}.items():
    other = SketchedMahalanobisClassifier(9, metric_learner=learner, max_points=WINDOW)
    StreamAccuracyDisplay.from_estimator(
        other, X, y, batch_size=BATCH, window=250, ax=axes, name=name, ls="--"
    )
display = StreamAccuracyDisplay.from_predictions(
    y[BATCH:], predicted, first=BATCH, window=250, ax=axes, name="LEGO", color="C5"
)
axes.axvline(half, color="0.6", lw=1, ls=":")
axes.annotate(" features change", (half, 0.98), color="0.4")
axes.set(ylim=(0.2, 1.03))
axes.legend(loc="lower left")
plt.show()

# %%
# The metric over time
# --------------------
#
# These are the weights of the first twenty features. The classes differ in the features
# 2 to 7 in the first half, and 10 to 15 in the second. LEGO gives weight to some of
# them, and takes it away again.

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
image = axes.imshow(
    np.transpose(weights)[:20],
    aspect="auto",
    cmap="cividis",
    extent=(0, N_POINTS, 20, 0),
)
axes.axvline(half, color="white", lw=1, ls=":")
axes.set(xlabel="points of the stream", ylabel="feature")
axes.set_yticks(np.arange(0.5, 20, 2), np.arange(0, 20, 2))
figure.colorbar(image, label="weight")
plt.show()
