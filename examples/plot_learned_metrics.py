"""
Learned metrics, and how large sketches have to be
==================================================

NCA and LMNN learn a metric from labelled images, and a classifier uses it for many more
images. Its neighbours are exact by default, and `m` and `L` have no effect.

They matter if the work of a query is limited. With ``n_candidates=30``, distances to
all points are estimated from L sketches of m rows, and exact distances are computed
only for the 30 points of smallest estimate. Two heat maps show which sketches are large
enough.

LMNN is from metric-learn. Without that library the example uses NCA alone.
"""

from itertools import product

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NeighborhoodComponentsAnalysis

from skmahal import SketchedMahalanobisClassifier, enable_metric_learn

# %%
# Images
# ------
#
# Digits of 16 by 16 pixels, each in its place and shifted by a pixel up, down, left and
# right, under a light that comes from any side.

rng = np.random.default_rng(0)
images, y = load_digits(return_X_y=True)
images = np.kron(images.reshape(-1, 8, 8) / 16, np.ones((2, 2)))
train, test, y_train, y_test = train_test_split(
    images, y, test_size=300, random_state=0
)
shifts = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
train = np.concatenate([np.roll(train, shift, axis=(1, 2)) for shift in shifts])
y_train = np.tile(y_train, len(shifts))

slope = np.linspace(-1, 1, 16)
sides = np.array([np.tile(slope, 16), np.repeat(slope, 16)])
X_train, X_test = (
    (part.reshape(-1, 256) + 0.3 * rng.normal(size=(len(part), 2)) @ sides).astype("f4")
    for part in (train, test)
)
print(f"{X_train.shape[0]} images of {X_train.shape[1]} pixels")

# %%
# Metrics
# -------
#
# Any learner with ``components_`` can be used. `enable_metric_learn` lets metric-learn
# 0.7 run on scikit-learn 1.8 and later. A thousand images are enough to learn from.
# ``update_metric`` changes the metric of a classifier that is already fitted.

learners = {"NCA": NeighborhoodComponentsAnalysis(max_iter=20, random_state=0)}
try:
    enable_metric_learn()
    from metric_learn import LMNN

    learners["LMNN"] = LMNN(n_neighbors=3, learn_rate=1e-4, max_iter=20)
except ImportError as error:
    print(f"no LMNN: {error}")

some = rng.choice(len(X_train), 1000, replace=False)
for learner in learners.values():
    learner.fit(X_train[some], y_train[some])

knn = SketchedMahalanobisClassifier().fit(X_train, y_train)
print(f"Euclidean  accuracy {knn.score(X_test, y_test):.3f}")
for name, learner in learners.items():
    knn.update_metric(learner)
    print(f"{name:10s} accuracy {knn.score(X_test, y_test):.3f}")

# %%
# Heat maps
# ---------
#
# The number in a field is the accuracy with L sketches of m rows, all of which serve
# each query (R = L). What matters is the product of m and L, the numbers that are read
# for a point in place of 256: one larger sketch is as good as several smaller ones, or
# better. Several sketches are for queries that depend on earlier results.
#
# A `FrozenEstimator` is used as it is. Any other learner would be fitted again by
# ``fit``.

sizes, counts = [2, 4, 8, 16], [1, 3, 7]
figure, axes = plt.subplots(
    1, len(learners), figsize=(8, 3.8), sharey=True, squeeze=False, layout="constrained"
)
for ax, (name, learner) in zip(axes.flat, learners.items(), strict=True):
    knn = SketchedMahalanobisClassifier(
        metric_learner=FrozenEstimator(learner), n_candidates=30, lead=0, random_state=0
    )
    accuracy = np.empty((len(sizes), len(counts)))
    for (row, m), (column, L) in product(enumerate(sizes), enumerate(counts)):
        knn.set_params(m=m, L=L, R=L).fit(X_train, y_train)
        accuracy[row, column] = knn.score(X_test, y_test)
        ax.text(
            column,
            row,
            f"{accuracy[row, column]:.2f}",
            ha="center",
            va="center",
            color="white" if accuracy[row, column] < 0.8 else "black",
        )
    image = ax.imshow(accuracy, vmin=0.6, vmax=1, cmap="cividis", aspect="auto")
    ax.set(title=f"{name}, 30 candidates", xlabel="sketches L")
    ax.set_xticks(range(len(counts)), counts)
    ax.set_yticks(range(len(sizes)), sizes)
axes[0, 0].set(ylabel="rows m of a sketch")
figure.colorbar(image, ax=axes, label="accuracy")
plt.show()
