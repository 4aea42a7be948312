"""
The figures of the paper
========================

Qin, Reddy and Song (2023) evaluate their data structure on uniform random points, with
L = 10 sketches of which R = 5 serve a query. Their figures show, for growing sketches,
the accuracy and the time of QueryAll (distances to all points), the time of QueryPair
(one distance), and the memory. These are the same figures for
:class:`~skmahal.MetricMaintenance`, with fewer points.

Accuracy is one minus the mean relative error. It depends on m and R, and not on the
number of points or features, so it can be compared with the paper. Times and memory
cannot. The accuracy is higher than what the paper reports: :doc:`/departures` lists the
formulas that differ.
"""

import tracemalloc
from functools import partial
from timeit import repeat

import matplotlib.pyplot as plt
import numpy as np

from skmahal import MetricMaintenance, warm_up

plt.style.use("tableau-colorblind10")
N, D, L, R = 2000, 1280, 10, 5
SIZES = 10 * 2 ** np.arange(7)

# What the paper reports for 10,000 uniform points of 2,560 features.
PAPER = {10: 0.804, 160: 0.90, 2560: 0.902}

rng = np.random.default_rng(0)
X = rng.random((N, D)).astype(np.float32)
Q = rng.random((20, D)).astype(np.float32)
U = np.float32(rng.normal(size=(D, D)) / np.sqrt(D))
exact = np.array([np.linalg.norm((X - q) @ U.T, axis=1) for q in Q])

# %%
# Measure
# -------
#
# Queries of ``query_all`` are timed one by one, and pairs in calls of a thousand. Each
# time is the best of five. Memory is what the structure allocates, with a copy of the
# points.

warm_up((np.float32,))  # compile loops before anything is timed
pairs = rng.integers(N, size=(10, 2, 1000))
accuracy, all_times, pair_times, memory = [], [], [], []
for m in SIZES:
    tracemalloc.start()
    maintenance = MetricMaintenance(U, X, m=int(m), L=L, R=R, seed=0)
    estimates = maintenance.query_all(Q)
    memory.append(tracemalloc.get_traced_memory()[0] / 1e6)
    tracemalloc.stop()
    accuracy.append(1 - abs(estimates / exact - 1).mean(axis=1))

    for times, query, arguments, unit in (
        (all_times, maintenance.query_all, [(q,) for q in Q], 1e3),
        (pair_times, maintenance.query_pair, pairs, 1e6 / pairs.shape[-1]),
    ):
        best = [min(repeat(partial(query, *one), number=1)) for one in arguments]
        times.append(unit * np.array(best))

print("   m  accuracy  QueryAll  QueryPair  memory")
for m, *row in zip(SIZES, accuracy, all_times, pair_times, memory, strict=True):
    right, every, pair, size = np.mean(row[0]), *map(np.median, row[1:])
    print(f"{m:4d}  {right:8.3f}  {every:5.2f} ms  {pair:6.2f} µs  {size:3.0f} MB")

# %%
# Plot
# ----
#
# Accuracy is the mean over queries, with its standard deviation. Times are medians, and
# bars contain half of them.


def plot_times(ax, times, title, unit):
    low, middle, high = np.quantile(times, [0.25, 0.5, 0.75], axis=1)
    ax.errorbar(SIZES, middle, [middle - low, high - middle], fmt="o-", capsize=3)
    ax.set(title=title, ylabel=unit, ylim=(0, 1.3 * high.max()))


figure, axes = plt.subplots(2, 2, figsize=(8, 6), layout="constrained")
(above, every), (pair, size) = axes
mean, deviation = np.mean(accuracy, axis=1), np.std(accuracy, axis=1)
above.errorbar(SIZES, mean, deviation, fmt="o-", capsize=3, label="measured")
above.plot(PAPER.keys(), PAPER.values(), "C1D--", label="reported in the paper")
above.set(title="accuracy of QueryAll", ylim=(0.75, 1.01))
above.legend(loc="lower right")
plot_times(every, all_times, "time of QueryAll", "milliseconds")
plot_times(pair, pair_times, "time of QueryPair", "microseconds")
size.plot(SIZES, memory, "o-")
size.set(title="memory", ylabel="MB", ylim=(0, None))
for ax in axes.flat:
    ax.set(xscale="log", xlabel="sketch size m")
    ax.set_xticks([10, 40, 160, 640], [10, 40, 160, 640])
    ax.minorticks_off()
plt.show()
