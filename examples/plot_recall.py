"""
Recall against time, beside HNSW
================================

Approximate neighbours are found in less time than exact ones. Two ways to do so are
compared: an index with a `recall`, which searches the cells of points that are nearest
to the query, and HNSW, a graph of neighbours, as it is in faiss.

HNSW takes less time for a query. But it is built for one metric. When the metric
changes, the points have to be transformed and the graph has to be built again, while
the index is updated in one pass over the points. Which of them takes less time depends
on how many queries there are between two changes.

HNSW needs faiss, ``pip install faiss-cpu``. Without it the example runs with the index
alone.
"""

from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np

from skmahal import SketchedMahalanobisNeighbors, warm_up
from skmahal.inspection import RecallDisplay

try:
    import faiss
except ImportError:
    print("no HNSW: pip install faiss-cpu")
    faiss = None

plt.style.use("tableau-colorblind10")
N, D, K = 50_000, 64, 10

rng = np.random.default_rng(0)
scale = 0.92 ** np.arange(D)
X = (rng.normal(size=(N, D)) * scale).astype(np.float32)
Q = (rng.normal(size=(200, D)) * scale).astype(np.float32)
U = (np.eye(D) + 0.1 * rng.normal(size=(D, D))).astype(np.float32)


def seconds(search):
    """Mean time of a query, one at a time; of each, the best of three rounds."""
    taken = np.empty((3, len(Q)))
    for turn, at in np.ndindex(taken.shape):
        begin = perf_counter()
        search(Q[at : at + 1])
        taken[turn, at] = perf_counter() - begin
    return taken.min(axis=0).mean()


# %%
# Build
# -----

warm_up((np.float32,))  # compile loops before anything is timed
faiss and faiss.omp_set_num_threads(1)

begin = perf_counter()
index = SketchedMahalanobisNeighbors(K, metric_learner={"U": U}, recall=0.9, n_jobs=1)
index.fit(X)
print(f"index: {perf_counter() - begin:.1f} s")

if faiss:
    begin = perf_counter()
    graph = faiss.IndexHNSWFlat(D, 16)
    graph.add(X @ U.T)
    build = perf_counter() - begin
    print(f"HNSW: {build:.1f} s")

# %%
# Recall and time
# ---------------
#
# :class:`~skmahal.inspection.RecallDisplay` measures the index for other numbers of
# cells than the one it has chosen for the requested recall. HNSW has a parameter with
# the same effect, the number of candidates that a search keeps. It has to be chosen by
# the user. All searches use one thread and get one query at a time.

figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
display = RecallDisplay.from_estimator(index, Q, ax=axes, name="recall against time")
if faiss:
    exact = SketchedMahalanobisNeighbors(K, metric_learner={"U": U}).fit(X)
    neighbours = exact.kneighbors(Q, return_distance=False)
    recalls, times = [], []
    for candidates in (10, 16, 32, 64, 128):
        graph.hnsw.efSearch = candidates
        found = graph.search(Q @ U.T, K)[1]
        pairs = zip(found, neighbours, strict=True)
        recalls.append(np.mean([np.isin(*pair).mean() for pair in pairs]))
        times.append(1e6 * seconds(lambda q: graph.search(q @ U.T, K)))
    axes.plot(times, recalls, "D--", color="C3", label="HNSW")
    axes.legend(loc="lower right")
axes.set(ylim=(0.7, 1.01))
plt.show()

# %%
# A new metric
# ------------
#
# The index takes over a step of the metric and can be queried at once. After a large
# step it is exact at first, and searches cells when it has measured its recall again.

v = rng.normal(size=(D, 1)) / np.sqrt(D)
begin = perf_counter()
index.update_metric(low_rank=(0.2 * U @ v, v))
update = perf_counter() - begin
query = seconds(index.kneighbors)
print(f"index: {1e3 * update:.1f} ms for the step and {1e3 * query:.2f} ms for a query")

figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
queries = np.geomspace(1, 1e6, 50)
axes.plot(queries, update + queries * query, label="index: update and queries")
if faiss:
    # The fewest candidates with the recall of the index.
    fast = times[np.argmax(np.array(recalls) >= 0.9)] / 1e6
    axes.plot(queries, build + queries * fast, "C3--", label="HNSW: build and queries")
    even = (build - update) / (query - fast)
    print(f"HNSW: {build:.1f} s for the step and {1e3 * fast:.2f} ms for a query")
    print(f"HNSW takes less time from {even:.2g} queries for one metric.")
    axes.axvline(even, color="0.7", lw=1, zorder=0)
axes.set(xscale="log", yscale="log", xlabel="queries until the metric changes again")
axes.set(ylabel="seconds")
axes.legend(loc="upper left")
plt.show()
