"""Displays plot what the estimators return, on the axes they are given."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import SGDClassifier

import skmahal
from skmahal import (
    MahalanobisCentroidClassifier,
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
)
from skmahal.inspection import (
    NeighborsDisplay,
    SketchQualityDisplay,
    StreamAccuracyDisplay,
)
from skmahal.online import LEGO

pyplot = pytest.importorskip("matplotlib.pyplot")

X = np.random.default_rng(0).normal(size=(100, 400))
Q = X[:5] + 0.1


@pytest.fixture(autouse=True)
def _no_window_opens():
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")


@pytest.fixture
def index():
    """Estimated distances: 25 rows of each sketch and 5 sketches, for 400 features."""
    params = {"m": 25, "L": 5, "R": 5, "lead": 0, "eps": 0.5, "random_state": 0}
    index = SketchedMahalanobisNeighbors(**params).fit(X)
    assert index.engine_ == "sketched"
    return index


def test_curves_are_the_distributions_of_the_ratios(index):
    index.distances(Q)
    display = SketchQualityDisplay.from_estimator(index, n_pairs=200, random_state=0)
    audit = index.audit(200, random_state=0)
    assert display.audit == audit
    assert set(display.lines_) == {"random", "recent"}
    for pairs, line in display.lines_.items():
        ratios, shares = line.get_data()
        sample = getattr(audit, pairs).sample
        assert_allclose(ratios[1:], sample)
        assert (shares[0], shares[-1]) == (0, 1)
        below = [np.mean(sample <= ratio) for ratio in ratios[1:]]
        assert (shares[1:] <= np.array(below) + 1e-12).all()


def test_the_interval_is_1_plus_minus_eps(index):
    display = SketchQualityDisplay.from_estimator(index)
    left, right = display.band_.get_window_extent().intervalx
    to_data = display.ax_.transData.inverted().transform
    assert_allclose(to_data([(left, 0), (right, 0)])[:, 0], [0.5, 1.5])


def texts(display):
    legend = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    return " ".join([display.ax_.get_title(), *legend])


def test_only_pairs_that_were_audited_are_plotted(index):
    display = SketchQualityDisplay.from_estimator(index)
    assert set(display.lines_) == {"random"}
    assert "recent" not in texts(display)


def test_title_and_legend_say_whether_the_audit_passed(index):
    index.distances(Q)
    passed = SketchQualityDisplay.from_estimator(index, random_state=0)
    assert "SketchedMahalanobisNeighbors: passed" in texts(passed)
    audit = passed.audit
    worse = replace(audit.recent, outside=0.25, passed=False)
    failed = texts(SketchQualityDisplay(replace(audit, recent=worse)).plot())
    assert "audit failed" in failed
    assert "recent pairs: 25 % outside, failed" in failed
    assert f"random pairs: {100 * audit.outside:.3g} % outside, passed" in failed


def test_axes_names_and_styles_may_be_given(index):
    _, axes = pyplot.subplots(1, 2)
    display = SketchQualityDisplay.from_estimator(index, ax=axes[1], color="red")
    assert display.ax_ is axes[1]
    assert display.figure_ is axes[1].figure
    assert display.lines_["random"].get_color() == "red"
    again = SketchQualityDisplay(display.audit).plot(name="mine")
    assert again.ax_ is not axes[1]
    assert again.ax_.get_title() == "mine: passed"


def test_exact_distances_are_plotted_too():
    index = SketchedMahalanobisNeighbors().fit(np.zeros((5, 2)))
    display = SketchQualityDisplay.from_estimator(index, n_pairs=10)
    assert_allclose(display.lines_["random"].get_xdata(), 1)


def test_an_index_that_is_not_fitted_is_refused():
    with pytest.raises(NotFittedError):
        SketchQualityDisplay.from_estimator(SketchedMahalanobisNeighbors())


def test_a_saved_plot_is_not_empty(index, tmp_path):
    index.distances(Q)
    display = SketchQualityDisplay.from_estimator(index)
    display.figure_.savefig(tmp_path / "audit.png")
    pixels = pyplot.imread(tmp_path / "audit.png")[..., :3].reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) > 10


@pytest.mark.slow
def test_without_matplotlib_the_error_names_the_extra():
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from skmahal import SketchedMahalanobisNeighbors\n"
        "from skmahal.inspection import SketchQualityDisplay\n"
        "index = SketchedMahalanobisNeighbors().fit([[0.0], [1.0]])\n"
        "SketchQualityDisplay.from_estimator(index)\n"
    )
    command, root = [sys.executable, "-c", script], Path(skmahal.__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    error = "ImportError: SketchQualityDisplay needs matplotlib"
    assert error in done.stderr
    assert "pip install 'skmahal[plot]'" in done.stderr


def test_no_module_of_the_package_imports_the_plots():
    root = Path(skmahal.__file__).parent
    others = [path for path in root.rglob("*.py") if path.name != "inspection.py"]
    for path in others:
        assert "inspection import" not in path.read_text(), path


# --- neighbours -----------------------------------------------------------------------


def scattered(artist):
    return np.asarray(artist.get_offsets())


def test_images_are_queries_and_their_neighbours():
    index = SketchedMahalanobisNeighbors(4).fit(X)
    names = np.array([f"point {i}" for i in range(len(X))])
    display = NeighborsDisplay.from_estimator(
        index, Q, n_neighbors=3, image_shape=(20, 20), labels=names, cmap="viridis"
    )
    distances, indices = index.kneighbors(Q, 3)
    images = np.array([image.get_array() for image in display.images_])
    shown = np.concatenate([Q[:, None], X[indices]], axis=1)
    assert_allclose(images, shown.reshape(-1, 20, 20))
    assert {image.get_cmap().name for image in display.images_} == {"viridis"}
    written = [text.get_text() for text in display.ax_.texts]
    assert written.count("query") == len(Q)
    assert {f"{one:.3g}" for one in distances.flat} <= set(written)
    assert [one for one in written if "point" in one] == list(names[indices].flat)


def test_images_do_not_overlap_and_are_inside_the_axes():
    index = SketchedMahalanobisNeighbors(4).fit(X)
    display = NeighborsDisplay.from_estimator(index, Q, image_shape=(10, 40))
    (left, right), (low, high) = display.ax_.get_xlim(), display.ax_.get_ylim()
    taken = np.zeros((2000, 2000), dtype=int)
    for image in display.images_:
        x0, x1, y1, y0 = image.get_extent()
        assert left <= x0 < x1 <= right
        assert high <= y0 < y1 <= low
        assert_allclose((y1 - y0) / (x1 - x0), 10 / 40)
        x0, x1, y0, y1 = (round(100 * edge) for edge in (x0, x1, y0, y1))
        taken[y0:y1, x0:x1] += 1
    assert taken.max() == 1


def test_images_may_have_colours():
    coloured = np.random.default_rng(1).random((30, 4 * 5 * 3))
    index = SketchedMahalanobisNeighbors(2).fit(coloured)
    display = NeighborsDisplay.from_estimator(
        index, coloured[:1], image_shape=(4, 5, 3)
    )
    assert_allclose(display.images_[0].get_array(), coloured[0].reshape(4, 5, 3))


@pytest.mark.parametrize("features", [(0, 1), (1, 0), (7, 3)])
def test_points_are_plotted_in_the_plane_of_two_features(features):
    index = SketchedMahalanobisNeighbors(4).fit(X)
    display = NeighborsDisplay.from_estimator(index, Q, features=features, s=3)
    plane = list(features)
    indices = index.kneighbors(Q, return_distance=False)
    assert_allclose(scattered(display.points_), X[:, plane])
    assert_allclose(scattered(display.queries_), Q[:, plane])
    assert_allclose(scattered(display.neighbors_), X[indices.ravel()][:, plane])
    segments = np.array(display.lines_.get_segments())
    assert_allclose(segments[:, 0], np.repeat(Q, 4, axis=0)[:, plane])
    assert_allclose(segments[:, 1], X[indices.ravel()][:, plane])
    assert_array_equal(display.points_.get_sizes(), 3)
    assert display.ellipses_ == []


@pytest.mark.parametrize("features", [(0, 1), (1, 0)])
def test_ellipses_are_as_far_from_a_query_as_its_last_neighbour(features):
    U = np.array([[1.0, 2.0], [0.0, 3.0], [1.0, 1.0]])
    index = SketchedMahalanobisNeighbors(4, metric_learner=U).fit(X[:, :2])
    display = NeighborsDisplay.from_estimator(index, Q[:, :2], features=features)
    last = index.kneighbors(Q[:, :2])[0][:, -1]
    assert len(display.ellipses_) == len(Q)
    for q, radius, ellipse in zip(Q[:, :2], last, display.ellipses_, strict=True):
        curve = ellipse.get_xydata()[:, list(features)]
        assert_allclose(np.linalg.norm((curve - q) @ U.T, axis=1), radius)


def test_there_is_no_ellipse_where_a_direction_does_not_count():
    index = SketchedMahalanobisNeighbors(4, metric_learner=[[1.0, 2.0]])
    display = NeighborsDisplay.from_estimator(index.fit(X[:, :2]), Q[:, :2])
    assert all(len(ellipse.get_xdata()) == 0 for ellipse in display.ellipses_)


def test_neighbours_among_sparse_points_are_plotted():
    rows = sparse.csr_array(X)
    index = SketchedMahalanobisNeighbors(4).fit(rows)
    display = NeighborsDisplay.from_estimator(index, rows[:2])
    assert_allclose(scattered(display.points_), X[:, :2])


def test_a_plot_of_neighbours_stays_when_the_index_changes():
    index = SketchedMahalanobisNeighbors(4).fit(X)
    display = NeighborsDisplay.from_estimator(index, Q)
    index.update_points(np.arange(len(X)), X + 9)
    again = display.plot(name="mine")
    assert_allclose(scattered(again.points_), X[:, :2])
    assert again.ax_.get_title() == "mine"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"image_shape": (20, 21)},
            r"product of 400, the number of features, got \(20",
        ),
        ({"image_shape": (400,)}, r"image_shape must be \(height, width\)"),
        ({"features": (0, 400)}, "features must be an integer from 0 to 399, got 400"),
        ({"features": (0,)}, r"features must be two positions, got \(0,\)"),
        ({"labels": [1, 2]}, r"each of 100 points, got an array of shape \(2,\)"),
        ({"n_neighbors": 0}, "n_neighbors"),
    ],
)
def test_arguments_of_a_plot_of_neighbours_are_checked(given, message):
    index = SketchedMahalanobisNeighbors(4).fit(X)
    with pytest.raises(ValueError, match=message):
        NeighborsDisplay.from_estimator(index, Q, **given)


def test_neighbours_need_a_fitted_index():
    with pytest.raises(NotFittedError):
        NeighborsDisplay.from_estimator(SketchedMahalanobisNeighbors(), Q)


# --- streams --------------------------------------------------------------------------

y = (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize(
    "classifier",
    [
        SketchedMahalanobisClassifier(3, metric_learner=LEGO(random_state=0)),
        MahalanobisCentroidClassifier(None),
        SGDClassifier(random_state=0),
    ],
)
def test_accuracy_is_that_of_predictions_before_labels_are_learned(classifier):
    display = StreamAccuracyDisplay.from_estimator(
        classifier, X, y, batch_size=8, window=20, classes=[0, 1]
    )
    # The same stream by hand; the first batch is not predicted.
    stream = type(classifier)(**classifier.get_params(deep=False))
    correct = []
    for start in range(0, len(X), 8):
        batch = slice(start, start + 8)
        if start:
            correct.extend(stream.predict(X[batch]) == y[batch])
        stream.partial_fit(X[batch], y[batch], classes=[0, 1])
    assert_array_equal(display.correct, correct)
    at, shares = display.line_.get_data()
    assert_allclose(at, np.arange(28, 101))
    means = [np.mean(correct[end - 20 : end]) for end in range(20, len(correct) + 1)]
    assert_allclose(shares, means)
    (label,) = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert label == f"{type(classifier).__name__}: mean {np.mean(correct):.3f}"


def test_the_estimator_of_a_stream_is_not_changed():
    knn = SketchedMahalanobisClassifier(3).fit(X[:10], y[:10])
    StreamAccuracyDisplay.from_estimator(knn, X, y, batch_size=10, window=20)
    assert len(knn) == 10


def test_a_stream_may_have_named_or_sparse_columns():
    pandas = pytest.importorskip("pandas")
    knn = SketchedMahalanobisClassifier(3)
    given = {"batch_size": 25, "window": 30}
    plain = StreamAccuracyDisplay.from_estimator(knn, X, y, **given)
    table = pandas.DataFrame(X).add_prefix("x"), pandas.Series(y, index=y + 0.5)
    for rows, labels in [table, (sparse.csr_array(X), y)]:
        display = StreamAccuracyDisplay.from_estimator(knn, rows, labels, **given)
        assert_array_equal(display.correct, plain.correct)


def test_predictions_may_be_made_elsewhere():
    _, axes = pyplot.subplots()
    display = StreamAccuracyDisplay.from_predictions(
        ["a", "b", "b", "a"],
        ["a", "b", "a", "a"],
        window=2,
        first=7,
        name="mine",
        ax=axes,
        ls="--",
    )
    assert display.ax_ is axes
    assert display.figure_ is axes.figure
    assert_allclose(display.line_.get_xydata(), [[9, 1], [10, 0.5], [11, 0.5]])
    assert display.line_.get_linestyle() == "--"
    assert display.line_.get_label() == "mine: mean 0.750"


def test_arguments_of_a_stream_are_checked():
    knn = SketchedMahalanobisClassifier(3)
    with pytest.raises(ValueError, match="window must be an integer from 1 to 90"):
        StreamAccuracyDisplay.from_estimator(knn, X, y, batch_size=10, window=91)
    with pytest.raises(ValueError, match="batch_size must be an integer from 1 to 99"):
        StreamAccuracyDisplay.from_estimator(knn, X, y, batch_size=100)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        StreamAccuracyDisplay.from_estimator(knn, X, y[:-1])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        StreamAccuracyDisplay.from_predictions([0, 1], [0])
    with pytest.raises(ValueError, match="window must be an integer from 1 to 2"):
        StreamAccuracyDisplay.from_predictions([0, 1], [0, 1])
