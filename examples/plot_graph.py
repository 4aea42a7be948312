"""
A graph of neighbours for t-SNE and DBSCAN
==========================================

Many estimators accept a precomputed graph of neighbours in place of points. So they can
be used under a metric that they do not know. Here the metric is learned from half of
the digits, and t-SNE and DBSCAN see the other half through graphs, without labels.

UMAP takes such graphs as well: see :doc:`/other_libraries`.
"""

# sphinx_gallery_thumbnail_number = 2

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import DBSCAN
from sklearn.datasets import load_digits
from sklearn.manifold import TSNE
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NeighborhoodComponentsAnalysis

from skmahal import (
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRadiusTransformer,
)

X, y = load_digits(return_X_y=True)
X, X_train, y, y_train = train_test_split(X / 16, y, test_size=0.5, random_state=0)
learner = NeighborhoodComponentsAnalysis(16, max_iter=30, random_state=0)
learner.fit(X_train, y_train)
metrics = {"Euclidean metric": None, "learned metric": {"U": learner.components_}}

# %%
# Graphs
# ------
#
# t-SNE needs 3 × 30 + 1 neighbours per point for its perplexity of 30. DBSCAN needs all
# points within its radius. It is chosen so that two thirds of the points have five
# others within it. The graphs are sparse matrices of distances.
#
# In the plots, positions are those of t-SNE and colours are the clusters of DBSCAN.
# Grey points are in no cluster.

for name, metric in metrics.items():
    graphs = SketchedMahalanobisNeighborsTransformer(
        n_neighbors=91, metric_learner=metric
    )
    graph = graphs.fit_transform(X)
    fifth = graphs.kneighbors(n_neighbors=5)[0][:, -1]
    radius = np.quantile(fifth, 2 / 3)
    balls = SketchedMahalanobisRadiusTransformer(radius=radius, metric_learner=metric)

    tsne = TSNE(metric="precomputed", init="random", random_state=0)
    dbscan = DBSCAN(radius, min_samples=6, metric="precomputed")
    places = tsne.fit_transform(graph)
    clusters = dbscan.fit_predict(balls.fit_transform(X))
    score = adjusted_rand_score(y, clusters)
    print(f"{name}: {clusters.max() + 1} clusters, adjusted Rand index {score:.2f}")

    figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
    palette = [*plt.get_cmap("tab20").colors, (0.6, 0.6, 0.6)]
    for digit, cluster in np.unique(np.stack([y, clusters], axis=1), axis=0):
        shown = (y == digit) & (clusters == cluster)
        colour = palette[cluster % 20 if cluster >= 0 else -1]
        axes.scatter(*places[shown].T, s=28, lw=0, color=colour, marker=f"${digit}$")
    axes.set(title=f"{name}, Rand index {score:.2f}", xticks=[], yticks=[])
    plt.show()
