"""Online metric learning: accuracy on a stream before it is learned from, and time."""

import warnings
from importlib.util import find_spec
from time import perf_counter

import numpy as np
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier

from skmahal import SketchedMahalanobisClassifier, enable_metric_learn
from skmahal.online import LEGO, OnlineITML

from . import _data, _plots, _report

NEIGHBOURS = 5
GOAL_POINTS = 0.01
GOAL_TIME = 20

_BATCH = 100
_WINDOW = 1000
# Points between two fits from scratch; MNIST has ten classes, and a fit takes seconds.
_CHECKPOINTS = {"drifting": 100, "mnist": 500}
_RIVER_POINTS = 1000


def drifting(n, seed=0, d=200, classes=5):
    """Six features tell the classes apart; half way, six others do."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    X = rng.standard_normal((n, d))
    centres = 1.5 * rng.standard_normal((classes, 6))
    for rows, first in ((slice(0, n // 2), 0), (slice(n // 2, n), d // 2)):
        near = centres[y[rows]] + 0.6 * rng.standard_normal((len(y[rows]), 6))
        X[rows, first : first + 6] = near
    return X, y


def digits(n):
    """MNIST on the principal components of its first thousand."""
    data = _data.load(_data.MNIST)
    X, y = data["X"][:n] / 255.0, data["y"][:n].astype(int)
    pca = PCA(100, random_state=0).fit(X[:1000])
    return pca.transform(X), y


class Following:
    """Our classifier: points, metric and index in one call."""

    def __init__(self, learner, classes):
        self.classes = classes
        self.knn = SketchedMahalanobisClassifier(
            NEIGHBOURS, metric_learner=learner, random_state=0
        )

    def learn(self, X, y):
        self.knn.partial_fit(X, y, classes=self.classes)
        surplus = self.knn.n_samples_fit_ - _WINDOW
        if surplus > 0:
            self.knn.remove_points(np.arange(surplus))

    def predict(self, X):
        return self.knn.predict(X)


class Refitting:
    """metric-learn's ITML from scratch at checkpoints, and a new exact index."""

    def __init__(self, checkpoint):
        self.points, self.labels, self.seen = [], [], 0
        self.checkpoint = checkpoint

    def learn(self, X, y):
        keep = _WINDOW // _BATCH
        self.points = [*self.points, X][-keep:]
        self.labels = [*self.labels, y][-keep:]
        X, y = np.concatenate(self.points), np.concatenate(self.labels)
        if self.seen % self.checkpoint == 0:
            self.fit(X, y)
        self.seen += _BATCH
        self.knn = KNeighborsClassifier(NEIGHBOURS, algorithm="brute")
        self.knn.fit(self.learner.transform(X), y)

    def fit(self, X, y):
        from metric_learn import ITML_Supervised

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.learner = ITML_Supervised(max_iter=100, random_state=0).fit(X, y)

    def predict(self, X):
        return self.knn.predict(self.learner.transform(X))


class River:
    """river's KNNClassifier, one point a call, Euclidean."""

    def __init__(self):
        from river.neighbors import KNNClassifier, LazySearch

        search = LazySearch(window_size=_WINDOW)
        self.knn = KNNClassifier(n_neighbors=NEIGHBOURS, engine=search)

    def learn(self, X, y):
        for row, label in zip(X, y, strict=True):
            self.knn.learn_one(_as_dict(row), int(label))

    def predict(self, X):
        return np.array([self.knn.predict_one(_as_dict(row)) for row in X])


def _as_dict(row):
    return dict(enumerate(row.tolist()))


def run(options, progress):
    """Serve every stream in every way."""
    n = 600 if options.quick else 4000
    streams = {"drifting": lambda: drifting(n), "mnist": lambda: digits(n)}
    rows, notes = [], []
    progress.begin("online_learning", len(streams))
    for name, make in streams.items():
        progress.step(name)
        try:
            X, y = make()
        except _data.AbsentError as error:
            notes.append(f"{name} is left out: {error}.")
            continue
        classes = np.unique(y)
        # Imports and compilation are paid for before anything is timed.
        serve(name, X[: 2 * _BATCH], y[: 2 * _BATCH], ways(name, classes, []))
        rows.append(serve(name, X, y, ways(name, classes, notes)))
    return _report.Result("online_learning", rows, judge(rows), notes)


def ways(name, classes, notes):
    """The ways to serve a stream that can be had here."""
    found = {
        "Euclidean": Following(None, classes),
        "LEGO": Following(LEGO(random_state=0), classes),
        "OnlineITML": Following(OnlineITML(random_state=0), classes),
    }
    if find_spec("metric_learn") is not None:
        enable_metric_learn()
        found["ITML refitted"] = Refitting(_CHECKPOINTS[name])
    if find_spec("river") is not None:
        found["river"] = River()
    for peer in sorted({"ITML refitted", "river"} - set(found)):
        notes.append(f"{peer} is left out of {name}: it is not installed.")
    return found


def serve(name, X, y, contenders):
    """Accuracy on every batch before it is learned from; seconds to learn, to ask."""
    row = {"stream": name, "n": len(X), "d": X.shape[1], "ways": {}}
    for way, contender in contenders.items():
        n = min(len(X), _RIVER_POINTS) if way == "river" else len(X)
        accuracy, learning, asking = [], 0.0, 0.0
        for start in range(0, n, _BATCH):
            batch = slice(start, start + _BATCH)
            if start:
                begun = perf_counter()
                found = contender.predict(X[batch])
                asking += perf_counter() - begun
                accuracy.append(float(np.mean(found == y[batch])))
            begun = perf_counter()
            contender.learn(X[batch], y[batch])
            learning += perf_counter() - begun
        row["ways"][way] = {
            "points": n,
            "accuracy": accuracy,
            "mean": float(np.mean(accuracy)),
            "learning": learning / n,
            "asking": asking / n,
        }
    return row


def judge(rows):
    """Better than Euclidean, near ITML from scratch, and much faster than that."""
    goals = []
    for row in rows:
        found = row["ways"]
        ours = max(("LEGO", "OnlineITML"), key=lambda way: found[way]["mean"])
        gain = found[ours]["mean"] - found["Euclidean"]["mean"]
        goals.append(_points(f"{row['stream']}: {ours} over Euclidean", gain, 0))
        if "ITML refitted" not in found:
            continue
        behind = found[ours]["mean"] - found["ITML refitted"]["mean"]
        what = f"{row['stream']}: {ours} against ITML refitted, accuracy"
        goals.append(_points(what, behind, -GOAL_POINTS))
        ratio = found["ITML refitted"]["learning"] / found[ours]["learning"]
        what = f"{row['stream']}: {ours} against ITML refitted, time to learn"
        goals.append(_report.at_least(what, ratio, GOAL_TIME))
    return goals


def _points(what, gain, least):
    measured = f"{100 * gain:+.2f} points"
    return _report.Goal(what, f"> {100 * least:+.0f} points", measured, gain > least)


def show(result):
    """Print accuracy and time of every way."""
    columns = ["stream", "way", "accuracy", "learn a point", "ask for one", "points"]
    lines = [
        [
            row["stream"],
            way,
            f"{found['mean']:.4f}",
            _report.seconds_text(found["learning"]),
            _report.seconds_text(found["asking"]),
            f"{found['points']:,}",
        ]
        for row in result.rows
        for way, found in row["ways"].items()
    ]
    _report.print_table(columns, lines)


def plot(result, path):
    """Accuracy over the stream."""
    fig, axes = _plots.figure(1, max(1, len(result.rows)), (10, 3.8))
    for ax, row in zip(axes, result.rows, strict=False):
        for way, found in row["ways"].items():
            smooth = np.convolve(found["accuracy"], np.ones(3) / 3, mode="valid")
            ax.plot(_BATCH * (2 + np.arange(len(smooth))), smooth, label=way)
        ax.set_xlabel("points")
        ax.set_ylabel("accuracy, mean of 3 batches")
        ax.set_title(f"{row['stream']}, d={row['d']}", fontsize=10)
        ax.legend(fontsize=8, loc="lower right")
    _plots.save(fig, path)
