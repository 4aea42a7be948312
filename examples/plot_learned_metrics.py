"""
Learned metrics, from training to grid search
=============================================

Learn a metric on digits with LMNN and with NCA, classify by the nearest neighbours
under it, and compare accuracy and time with scikit-learn's exact neighbours in the same
run. A grid search then chooses the learner's parameters together with those of the
classifier.

LMNN is from metric-learn. Without that library the example uses NCA alone.
"""

from time import perf_counter

import numpy as np
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler

from skmahal import SketchedMahalanobisClassifier, enable_metric_learn, warm_up

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=600, stratify=y, random_state=0
)

# %%
# Train the learners
# ------------------
#
# Any learner with ``components_`` can be used. `enable_metric_learn` lets metric-learn
# 0.7 run on scikit-learn 1.8 and later.

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
# A `FrozenEstimator` is not fitted again; any other learner would be fitted on the
# points. scikit-learn's classifier gets the points under the metric, ``X @ U.T``.


def pipeline_under(metric):
    """Pipeline of a scaler and a classifier under a learned metric."""
    learner = None if metric is None else FrozenEstimator(metric)
    knn = SketchedMahalanobisClassifier(metric_learner=learner)
    return Pipeline([("scale", MinMaxScaler()), ("knn", knn)])


def sklearn_score(metric, X, y):
    """Accuracy of scikit-learn's classifier."""
    U = np.eye(X.shape[1]) if metric is None else metric.components_
    knn = KNeighborsClassifier(algorithm="brute").fit(scaled @ U.T, y_train)
    return knn.score(scaler.transform(X) @ U.T, y)


def skmahal_score(metric, X, y):
    return pipeline_under(metric).fit(X_train, y_train).score(X, y)


warm_up()  # compile loops before anything is timed
skmahal_score(None, X_test[:5], y_test[:5])
sklearn_score(None, X_test[:5], y_test[:5])

results = {}
print(f"\n{'metric':<12}{'skmahal':>10}{'ms':>8}{'sklearn':>10}{'ms':>8}")
for name, metric in metrics.items():
    ours = timed(skmahal_score, metric, X_test, y_test)
    theirs = timed(sklearn_score, metric, X_test, y_test)
    results[name] = ours[1], theirs[1]
    print(
        f"{name:<12}{ours[1]:>10.4f}{1e3 * ours[0]:>8.0f}"
        f"{theirs[1]:>10.4f}{1e3 * theirs[0]:>8.0f}"
    )

# %%
# The accuracy is the same, because neighbours are exact in both. On data this small the
# times say little: a thousand points of 64 features are searched by brute force. The
# index pays off when there are more points, or when the metric changes.
#
# Search for parameters
# ---------------------
#
# Parameters of the classifier, and those of a learner that is not frozen, are searched
# by their nested names.

nca = NeighborhoodComponentsAnalysis(max_iter=10, random_state=0)
pipeline = pipeline_under(None).set_params(knn__metric_learner=nca)
grid = {"knn__metric_learner__n_components": [4, 16], "knn__n_neighbors": [1, 5]}
seconds, search = timed(GridSearchCV(pipeline, grid, cv=3).fit, X_train, y_train)
table = search.cv_results_
print(f"grid search in {seconds:.1f} s, {len(table['params'])} candidates of 3 folds\n")
print(f"{'components':>10}{'neighbours':>12}{'accuracy':>10}")
for params, score in zip(table["params"], table["mean_test_score"], strict=True):
    components, neighbours = (params[name] for name in grid)
    print(f"{components:>10}{neighbours:>12}{score:>10.4f}")
print(f"accuracy of the best on test data: {search.score(X_test, y_test):.4f}")

# %%
# The metric can be replaced in a fitted classifier, without a new fit of the index.

knn = SketchedMahalanobisClassifier().fit(scaled, y_train)
before = knn.score(scaler.transform(X_test), y_test)
after = knn.update_metric(metrics["NCA"]).score(scaler.transform(X_test), y_test)
print(f"Euclidean {before:.4f}, after update_metric {after:.4f}")

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
    axes.bar(places + 0.2, theirs, 0.38, label="scikit-learn")
    axes.set(xticks=places, ylabel="accuracy", ylim=(0.95, 1.0))
    axes.set_xticklabels(results)
    axes.legend(loc="lower right")
    plt.show()
