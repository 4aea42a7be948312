"""
Classes that come one after another
===================================

Images of digits come in the order of their classes: first all zeros, then all ones, and
so on. A nearest-class-mean classifier learns each batch once and keeps no image. After
every batch it is tested on held-out images of the classes seen so far.

Two metrics are compared: the Euclidean one, and the inverse of the covariance within
classes, which follows the stream. The second is linear discriminant analysis. Fitted
from scratch with all images so far, scikit-learn's estimator makes the same
predictions.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from skmahal import MahalanobisCentroidClassifier

plt.style.use("tableau-colorblind10")
BATCH, SHRINKAGE = 25, 0.1

X, y = load_digits(return_X_y=True)
held = np.arange(len(X)) % 4 == 0
order = np.flatnonzero(~held)[np.argsort(y[~held], kind="stable")]

# %%
# The stream
# ----------
#
# New classes need not be announced.

covariance = MahalanobisCentroidClassifier(shrinkage=SHRINKAGE, priors="empirical")
ways = {"Euclidean": MahalanobisCentroidClassifier(None), "covariance": covariance}
accuracy, seen = {name: [] for name in ways}, []
for start in range(0, len(order), BATCH):
    batch = order[start : start + BATCH]
    test = held & np.isin(y, y[order[: start + BATCH]])
    seen.append(start + len(batch))
    for name, way in ways.items():
        way.partial_fit(X[batch], y[batch])
        accuracy[name].append(way.score(X[test], y[test]))

lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=SHRINKAGE)
lda.fit(X[order], y[order])
same = np.mean(lda.predict(X[held]) == covariance.predict(X[held]))
print(f"{same:.1%} of the predictions are those of LinearDiscriminantAnalysis.")

# %%
# Accuracy as classes are added
# -----------------------------
#
# Lines mark the first image of each digit. A mean of few images is not yet that of the
# class: accuracy falls where a batch ends with the first images of a class, and rises
# again with the next batch.

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for name, values in accuracy.items():
    axes.plot(seen, values, label=name)
axes.plot(seen[-1], lda.score(X[held], y[held]), "k*", label="LDA of all images")
for digit, first in enumerate(np.searchsorted(y[order], range(10))):
    axes.axvline(first, color="0.85", lw=1, zorder=0)
    axes.annotate(f" {digit}", (first, 1.015), color="0.4")
axes.set(ylim=(0.68, 1.045))
axes.set(xlabel="images seen", ylabel="accuracy on the classes seen")
axes.legend(loc="lower right")
plt.show()
