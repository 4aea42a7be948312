"""SketchQualityDisplay plots the results of an audit."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import NotFittedError

import skmahal
from skmahal import SketchedMahalanobisNeighbors
from skmahal.inspection import SketchQualityDisplay

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
