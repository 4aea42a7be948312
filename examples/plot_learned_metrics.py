"""
Learned metrics, from training to grid search
=============================================

Learn a metric on digits with LMNN and with NCA, classify by the nearest neighbours
under it, and compare accuracy and time with scikit-learn's exact neighbours in the same
run. A grid search then chooses the size and the number of the sketches.

LMNN is metric-learn's; without that library the example goes on with NCA alone.
"""

from time import perf_counter

import numpy as np
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler

from skmahal import SketchedMahalanobisClassifier, enable_metric_learn

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=600, stratify=y, random_state=0
)

# %%
# Train the learners
# ------------------
#
# Any learner with ``components_`` will do. `enable_metric_learn` lets metric-learn 0.7
# run on scikit-learn 1.8 and later, and changes nothing elsewhere.

learners = {"NCA": NeighborhoodComponentsAnalysis(max_iter=30, random_state=0)}
try:
    enable_metric_learn()
    from metric_learn import LMNN

    learners["LMNN"] = LMNN(n_neighbors=3, learn_rate=1e-4, max_iter=20)
except ImportError as error:
    print(f"no LMNN: {error}")


def timed(function, *args):
    """Seconds that a call takes, and its result."""
    start = perf_counter()
    result = function(*args)
    return perf_counter() - start, result


scaler = MinMaxScaler().fit(X_train)
scaled = scaler.transform(X_train)
metrics = {"Euclidean": None}
for name, learner in learners.items():
    seconds, metrics[name] = timed(learner.fit, scaled, y_train)
    print(f"{name} learned in {seconds:.1f} s")

# %%
# Classify under the learned metric
# ---------------------------------
#
# A `FrozenEstimator` says that the metric is learned already; without it the learner
# would be fitted again on the points. scikit-learn's classifier gets the points under
# the same metric, ``X @ U.T``.


def sketched(metric):
    """A pipeline of scaler and classifier under a learned metric."""
    learner = None if metric is None else FrozenEstimator(metric)
    knn = SketchedMahalanobisClassifier(metric_learner=learner, random_state=0)
    return Pipeline([("scale", MinMaxScaler()), ("knn", knn)])


def exact_score(metric, X, y):
    """Accuracy of scikit-learn's exact neighbours."""
    U = np.eye(X.shape[1]) if metric is None else metric.components_
    knn = KNeighborsClassifier(algorithm="brute").fit(scaled @ U.T, y_train)
    return knn.score(scaler.transform(X) @ U.T, y)


def sketched_score(metric, X, y):
    return sketched(metric).fit(X_train, y_train).score(X, y)


sketched_score(None, X_test[:5], y_test[:5])  # the first call pays for imports
exact_score(None, X_test[:5], y_test[:5])

results = {}
print(f"\n{'metric':<12}{'skmahal':>10}{'ms':>8}{'exact':>10}{'ms':>8}")
for name, metric in metrics.items():
    ours = timed(sketched_score, metric, X_test, y_test)
    theirs = timed(exact_score, metric, X_test, y_test)
    results[name] = ours[1], theirs[1]
    print(
        f"{name:<12}{ours[1]:>10.4f}{1e3 * ours[0]:>8.0f}"
        f"{theirs[1]:>10.4f}{1e3 * theirs[0]:>8.0f}"
    )

# %%
# The accuracy is the same, since neighbours are the exact ones but for a chance of
# `delta`. Time is not what one comes for on data this small: a thousand points of 64
# features leave the sketches nothing to save, and scikit-learn's tile is faster.
#
# Search for the size of the sketches
# -----------------------------------
#
# Parameters of the index, and those of a learner that is not frozen, are searched as
# any others: ``knn__m``, ``knn__L``, ``knn__metric_learner__n_components``. Certified
# neighbours are exact whatever the sketches are, so that only time would differ. With
# a budget of candidates, as here, accuracy depends on them too.

pipeline = sketched(metrics["NCA"]).set_params(knn__n_candidates=20)
grid = {"knn__m": [2, 8, 32], "knn__L": [1, 10]}
seconds, search = timed(GridSearchCV(pipeline, grid, cv=3).fit, X_train, y_train)
table = search.cv_results_
print(f"grid search in {seconds:.1f} s, {len(table['params'])} candidates of 3 folds\n")
print(f"{'m':>4}{'L':>4}{'accuracy':>10}{'query ms':>10}")
for params, score, asked in zip(
    table["params"], table["mean_test_score"], table["mean_score_time"], strict=True
):
    print(
        f"{params['knn__m']:>4}{params['knn__L']:>4}{score:>10.4f}{1e3 * asked:>10.0f}"
    )
print(f"best: {search.best_params_}, on test {search.score(X_test, y_test):.4f}")

# %%
# Accuracy side by side
# ---------------------

try:
    import matplotlib.pyplot as plt
except ImportError:
    print("no plot: pip install 'skmahal[plot]'")
else:
    places = np.arange(len(results))
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    ours, theirs = np.transpose(list(results.values()))
    axes.bar(places - 0.2, ours, 0.38, label="skmahal")
    axes.bar(places + 0.2, theirs, 0.38, label="exact kNN")
    axes.set(xticks=places, ylabel="accuracy", ylim=(0.95, 1.0))
    axes.set_xticklabels(results)
    axes.legend(loc="lower right")
    plt.show()
