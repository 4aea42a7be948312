"""
What a metric does to neighbours
================================

Three metrics for the same wines, by two of their features. An ellipse contains the
twelve nearest wines to a star: all points on it are equally far from the star.

- Under the Euclidean metric the units of features decide what counts. The numbers for
  proline spread hundreds of times as far as those for alcohol, so alcohol has no
  effect.
- Under the inverse of the covariance, each feature counts relative to its spread.
- Under a metric that is learned from the three kinds of wine, the direction that
  separates them counts most. More of the neighbours are of the same kind as the
  query.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from skmahal import SketchedMahalanobisNeighbors
from skmahal.inspection import NeighborsDisplay

plt.style.use("tableau-colorblind10")

X, y = load_wine(return_X_y=True)
X = X[:, [0, 12]]
lda = LinearDiscriminantAnalysis().fit(X, y)

# %%
# A dictionary says which matrix the metric is given by: ``{"V": V}`` is a covariance,
# ``{"VI": VI}`` its inverse, ``{"A": A}`` a Mahalanobis matrix, and ``{"U": U}`` the
# matrix that points are multiplied by.

metrics = {
    "Euclidean": None,
    "inverse covariance": {"V": np.cov(X.T)},
    "learned by LDA": lda,
}
queries = X[[45, 100, 164]]

figure, axes = plt.subplots(1, 3, figsize=(10, 4), sharey=True, layout="constrained")
for ax, (name, metric) in zip(axes, metrics.items(), strict=True):
    index = SketchedMahalanobisNeighbors(12, metric_learner=metric).fit(X, y)
    NeighborsDisplay.from_estimator(
        index, queries, ax=ax, name=name, c=y, cmap="cividis"
    )
    ax.set(xlabel="alcohol", ylabel=None, xlim=(10.8, 15), ylim=(150, 1750))
    ax.get_legend().remove()

    neighbours = index.kneighbors(n_neighbors=12, return_distance=False)
    print(f"{name:20s}{np.mean(y[neighbours] == y[:, None]):.1%} of the same kind")
axes[0].set(ylabel="proline")
plt.show()
