"""
A labelled stream with a window, late labels, a new class and alarms
====================================================================

Measurements come one by one. Each gets an id, and its label some time later. Halfway a
third class appears, and the features that tell classes apart change slowly. One index
holds the latest points: it predicts each of them when it comes, takes the label when
that is known, and changes its metric with the labels. A detector beside it raises an
alarm for points that are far from all others. Nothing is ever built again.
"""

import matplotlib.pyplot as plt
import numpy as np

from skmahal import MahalanobisOutlierDetector, SketchedMahalanobisClassifier
from skmahal.inspection import StreamAccuracyDisplay
from skmahal.online import LEGO

plt.style.use("tableau-colorblind10")
N_POINTS, N_FEATURES, WINDOW, DELAY = 1500, 20, 400, 50
rng = np.random.default_rng(0)
names = np.array(["calm", "busy", "storm"])

y = names[rng.integers(2, size=N_POINTS)]
late = np.arange(N_POINTS) >= N_POINTS // 2
y[late & (rng.random(N_POINTS) < 0.3)] = "storm"
X = rng.normal(size=(N_POINTS, N_FEATURES))
turn = np.linspace(0, np.pi / 2, N_POINTS)  # the direction of the signal turns
signal = 3.0 * np.array([np.flatnonzero(names == label)[0] - 0.5 for label in y])
X[:, 0] += signal * np.cos(turn)
X[:, 1] += signal * np.sin(turn)
faults = rng.choice(np.arange(300, N_POINTS), 12, replace=False)
X[faults] += 4 * rng.normal(size=(12, N_FEATURES))

# %%
# The classifier begins with a few labelled points, and the detector with the same.

first = slice(0, 100)
knn = SketchedMahalanobisClassifier(
    9, metric_learner=LEGO(random_state=0), max_points=WINDOW
).fit(X[first], y[first], ids=np.arange(100))
detector = MahalanobisOutlierDetector(novelty=True, max_points=WINDOW).fit(X[first])

predicted, scores = [], []
for i in range(100, N_POINTS):
    x = X[i : i + 1]
    predicted.append(knn.predict(x)[0])
    scores.append(detector.score_samples(x)[0])
    knn.partial_fit(x, [None], ids=[i])
    detector.partial_fit(x)
    if (known := i - DELAY) >= 100:
        knn.update_labels(ids=[known], y=[y[known]])

print("classes:", knn.classes_, "points:", len(knn))

# %%
# The share of right predictions falls when the new class appears, and recovers once its
# first labels are known. The faults have the lowest scores.

figure, (above, below) = plt.subplots(
    2, 1, sharex=True, figsize=(7, 5.5), layout="constrained"
)
StreamAccuracyDisplay.from_predictions(
    y[100:], predicted, first=100, window=75, name="9 neighbours", ax=above
)
above.legend(loc="lower left")
above.axvline(N_POINTS // 2, color="0.6", ls="--", lw=1)
above.annotate(" a new class", (N_POINTS // 2, 0.95), color="0.4")
above.set(xlabel=None, ylabel="accuracy of the last 75")
below.plot(np.arange(100, N_POINTS), scores, ".", markersize=3, color="0.6")
below.plot(faults, np.array(scores)[faults - 100], "o", color="C5", label="faults")
below.axhline(detector.offset_, color="C0", lw=1, label="alarm below")
below.set(ylabel="score of the detector", xlabel="point of the stream")
below.legend(loc="lower left")
plt.show()
