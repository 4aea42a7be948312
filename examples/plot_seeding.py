"""
Seeds for clustering, drawn by distance
=======================================

k-means is only as good as the points it begins with. k-means++ draws them one by one,
each with probability proportional to its squared distance from the nearest one so far.
:func:`~skmahal.sample_seeds` draws from the same law, under the metric that an index
has at present, and does not need a pass over the points for every seed.

The clusters below have very different sizes and are long in one direction. Under the
covariance within clusters they are round.
"""

from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import kmeans_plusplus

from skmahal import SketchedMahalanobisNeighbors, sample_seeds

plt.style.use("tableau-colorblind10")
N_CLUSTERS, N_DRAWS = 12, 200

rng = np.random.default_rng(0)
sizes = (2000 * 0.7 ** np.arange(N_CLUSTERS)).astype(int)
y = np.repeat(np.arange(N_CLUSTERS), sizes)
rows, columns = np.divmod(np.arange(N_CLUSTERS), 3)
centres, spread = np.stack([20.0 * columns, 1.2 * rows], axis=1), [1.5, 0.08]
X = centres[y] + rng.normal(size=(len(y), 2)) * spread

covariance = {"V": np.diag(np.square(spread))}
index = SketchedMahalanobisNeighbors(metric_learner=covariance).fit(X)

# %%
# Three ways to draw seeds
# ------------------------
#
# Most seeds that are drawn uniformly fall into the largest clusters. k-means++ under
# the Euclidean metric sees the three columns, and hardly the rows, which are much
# closer together. Under the metric of the index most clusters have a seed. The plots
# are scaled so that clusters are round, as they are under that metric.


def uniform(seed):
    return np.random.default_rng(seed).choice(len(X), N_CLUSTERS, replace=False)


def euclidean(seed):
    return kmeans_plusplus(X, N_CLUSTERS, random_state=seed, n_local_trials=1)[1]


def metric(seed):
    return sample_seeds(index, N_CLUSTERS, random_state=seed)


ways = {"uniform": uniform, "k-means++": euclidean, "sample_seeds": metric}
figure, axes = plt.subplots(1, 3, figsize=(8, 3), sharey=True, layout="constrained")
for ax, (name, draw) in zip(axes, ways.items(), strict=True):
    ax.scatter(*X.T, s=1, c="0.75")
    ax.scatter(*X[draw(0)].T, s=70, marker="*", c="C5")
    ax.set(title=name, xticks=[], yticks=[])
plt.show()

# %%
# Many draws
# ----------
#
# One draw says little, since all three are random.

hit = {
    name: [len(np.unique(y[draw(seed)])) for seed in range(N_DRAWS)]
    for name, draw in ways.items()
}
figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
counts = np.arange(1, N_CLUSTERS + 1)
for (name, found), style in zip(hit.items(), ("s:", "D--", "o-"), strict=True):
    share = np.bincount(found, minlength=N_CLUSTERS + 1)[1:] / N_DRAWS
    axes.plot(counts, share, style, label=f"{name}: mean {np.mean(found):.1f}")
axes.set(
    xlabel="clusters with a seed", ylabel=f"share of {N_DRAWS} draws", xticks=counts
)
axes.legend(loc="upper left")
plt.show()

# %%
# Samples in proportion to distance
# ---------------------------------
#
# ``sample`` draws points with probability proportional to their distance from a query.
# The dots are clusters, and the line is what is expected.

query = X[:1]
drawn = index.sample(query, n_samples=100_000, random_state=0)[0]
share = np.bincount(drawn, minlength=len(X)) / len(drawn)
distances = np.linalg.norm((X - query) / spread, axis=1)

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
for cluster in range(N_CLUSTERS):
    mean = share[y == cluster].mean()
    axes.plot(distances[y == cluster].mean(), mean, "o", color="C0")
ends = np.array([0, distances.max()])
axes.plot(ends, ends / index.sum_distances(query, power=1), color="C1", zorder=0)
axes.set(xlabel="mean distance of a cluster from the query")
axes.set(ylabel="mean share of draws of a point")
plt.show()

# %%
# Time
# ----
#
# scikit-learn's k-means++ can be used under a metric as well: on transformed points. It
# makes a pass over them for every seed. ``sample_seeds`` makes far fewer.

X = rng.normal(size=(20_000, 32)).astype(np.float32)
index, n_seeds = SketchedMahalanobisNeighbors().fit(X), 400
sample_seeds(index, 2)
begin = perf_counter()
sample_seeds(index, n_seeds, random_state=0)
ours = perf_counter() - begin
begin = perf_counter()
kmeans_plusplus(X, n_seeds, random_state=0, n_local_trials=1)
theirs = perf_counter() - begin
print(f"{n_seeds} seeds among {len(X)} points")
print(f"sample_seeds    {ours:.2f} s")
print(f"kmeans_plusplus {theirs:.2f} s, {theirs / ours:.1f} times as long")
