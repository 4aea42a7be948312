"""
A stream whose relevant features change
=======================================

Labelled points come in batches. At first a few features separate the classes. Half way
they become noise, and other features separate them. Each batch is predicted by the
nearest neighbours in a window of the latest points before its labels are learned.

Three metrics are compared: the Euclidean one, one that is learned on the first batches
and then kept, and one that LEGO changes by a small step for every pair of points. The
last is served in two ways: by an index that is built again for every batch, and by one
that follows the steps. Both find the same neighbours, since both are exact.
"""

from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np

from skmahal import SketchedMahalanobisClassifier, warm_up
from skmahal.online import LEGO

N_FEATURES, N_CLASSES, BATCH, WINDOW = 200, 4, 4, 1000
N_BATCHES, WARM_UP = 600, 10


def stream(seed=0):
    """Batches of points and labels; the relevant features change half way."""
    rng = np.random.default_rng(seed)
    centres = 1.5 * rng.normal(size=(N_CLASSES, 6))
    for batch in range(N_BATCHES):
        y = rng.integers(N_CLASSES, size=BATCH)
        X = rng.normal(size=(BATCH, N_FEATURES))
        first = 0 if batch < N_BATCHES // 2 else 100
        X[:, first : first + 6] = centres[y] + 0.6 * rng.normal(size=(BATCH, 6))
        yield X.astype(np.float32), y


# %%
# Four ways to serve the stream
# -----------------------------
#
# Each way has the same two steps: predict a batch, then learn from it. The index holds
# a window: new points take the place of the oldest ones.


class Follow:
    """One index; `partial_fit` adds points, learns from them and updates the metric."""

    def __init__(self, learner):
        self.knn = SketchedMahalanobisClassifier(
            metric_learner=learner, max_points=WINDOW
        )

    def learn(self, X, y):
        self.knn.partial_fit(X, y, classes=range(N_CLASSES))

    def predict(self, X):
        return self.knn.predict(X)


class Rebuild:
    """A learner, and a new index for every batch."""

    def __init__(self, learner):
        self.learner = learner
        self.points, self.labels = [], []

    def learn(self, X, y):
        self.learner.partial_fit(X, y)
        self.points = [*self.points, X][-WINDOW // BATCH :]
        self.labels = [*self.labels, y][-WINDOW // BATCH :]
        metric = {"U": self.learner.components_}
        self.knn = SketchedMahalanobisClassifier(metric_learner=metric)
        self.knn.fit(np.concatenate(self.points), np.concatenate(self.labels))

    def predict(self, X):
        return self.knn.predict(X)


class LearnOnce(Follow):
    """A metric from the first batches, which is then kept."""

    def __init__(self, learner, batches=150):
        super().__init__(None)
        self.learner, self.left = learner, batches

    def learn(self, X, y):
        super().learn(X, y)
        if self.left:
            self.left -= 1
            self.knn.update_metric(self.learner.partial_fit(X, y))


def lego():
    """Two pairs for every point of the stream."""
    return LEGO(n_pairs=2, random_state=0)


ways = {
    "Euclidean": Follow(None),
    "learned once": LearnOnce(lego()),
    "LEGO, index rebuilt": Rebuild(lego()),
    "LEGO, index follows": Follow(lego()),
}


# %%
# Run
# ---


def run(way):
    """Accuracy on every batch before it is learned from, and the seconds it took."""
    accuracy, start = [], perf_counter()
    for batch, (X, y) in enumerate(stream()):
        if batch >= WARM_UP:
            accuracy.append(np.mean(way.predict(X) == y))
        way.learn(X, y)
    return np.array(accuracy), perf_counter() - start


warm_up((np.float32,))  # compile loops before anything is timed
results = {name: run(way) for name, way in ways.items()}

print(f"{'':20s}  before  after  seconds")
half = N_BATCHES // 2
for name, (accuracy, seconds) in results.items():
    before, after = accuracy[half // 2 : half].mean(), accuracy[-half // 2 :].mean()
    print(f"{name:20s}   {before:.3f}  {after:.3f}  {seconds:7.2f}")

# %%
# Accuracy over time, and the time spent
# --------------------------------------
#
# Learned metrics are more accurate than the Euclidean one. The metric that is kept
# loses this advantage when the features change, since it weights what has become noise.
# The two that follow the learner predict alike and differ in the time they take.

figure, (over_time, spent) = plt.subplots(
    1, 2, figsize=(10, 3.8), width_ratios=[2, 1], layout="constrained"
)
span = 40
kernel = np.ones(span) / span
styles = {"LEGO, index rebuilt": {"ls": "--", "color": "black", "zorder": 3}}
for name, (accuracy, seconds) in results.items():
    smooth = np.convolve(accuracy, kernel, mode="valid")
    batches = span + np.arange(len(smooth))
    [line] = over_time.plot(batches, smooth, label=name, **styles.get(name, {}))
    spent.barh(name, seconds, color=line.get_color())
    spent.annotate(
        f" {seconds:.1f} s", (seconds, name), va="center", annotation_clip=False
    )
over_time.axvline(half, color="0.6", lw=1, ls=":")
over_time.annotate(
    "features change", (half, 0.25), rotation=90, ha="right", color="0.4"
)
over_time.set(
    xlabel="batch", ylabel=f"accuracy, mean of {span} batches", ylim=(0.2, 1.02)
)
over_time.legend(loc="lower left", fontsize="small")
spent.set(xlabel="seconds for the whole stream")
spent.margins(x=0.3)
spent.invert_yaxis()
plt.show()
