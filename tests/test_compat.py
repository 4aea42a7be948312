"""Optional libraries: metric-learn is changed by enable_metric_learn alone."""

import copy
import pickle
import subprocess
import sys
from functools import wraps
from inspect import signature
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_array

import skmahal
from skmahal import _compat

ROOT = Path(skmahal.__file__).parents[1]
NEEDED = "force_all_finite" not in signature(check_array).parameters

# The functions of scikit-learn that metric-learn and scikit-learn hold, by module.
HELD = """
import sys
import metric_learn._util, metric_learn.itml, metric_learn.scml
import sklearn.utils, sklearn.utils.validation
from sklearn.base import BaseEstimator
from metric_learn.base_metric import BaseMetricLearner

def held():
    places = [
        (module, name)
        for module in sorted(sys.modules)
        if module.split(".")[0] in ("metric_learn", "sklearn")
        for name in ("check_array", "check_X_y", "validate_data")
        if hasattr(sys.modules[module], name)
    ]
    functions = {place: getattr(sys.modules[place[0]], place[1]) for place in places}
    for kind in (BaseEstimator, BaseMetricLearner):
        for name in ("__reduce_ex__", "__setstate__", "__sklearn_clone__"):
            functions[kind.__name__, name] = getattr(kind, name)
    return functions

def changed(before):
    now = held()
    return sorted(place for place in before if now[place] is not before[place])

before = held()
"""


def run(script):
    """The output of a new process."""
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_importing_the_package_changes_nothing():
    script = "import skmahal, skmahal.neighbors, skmahal.sketch; print(changed(before))"
    assert run(HELD + script) == "[]"


@pytest.mark.slow
def test_metric_learn_is_changed_once_and_only_where_needed():
    script = """
import skmahal
print(skmahal.enable_metric_learn(), skmahal.enable_metric_learn())
print(changed(before))
"""
    calls, changed = run(HELD + script).splitlines()
    assert calls == "True False"
    pickling = [
        ("BaseMetricLearner", "__reduce_ex__"),
        ("BaseMetricLearner", "__setstate__"),
    ]
    validation = [
        ("metric_learn._util", "check_X_y"),
        ("metric_learn._util", "check_array"),
        ("metric_learn.itml", "check_array"),
        ("metric_learn.scml", "check_array"),
    ]
    assert changed == str(pickling + validation * NEEDED)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["before", "after"])
def test_a_learner_works_once_enabled(order):
    """Also one that was imported and created before."""
    enable = "import skmahal; skmahal.enable_metric_learn()\n"
    make = "from metric_learn import LMNN; learner = LMNN(max_iter=2)\n"
    script = """
import warnings
# scikit-learn 1.6 and 1.7 accept the keyword and warn that it is deprecated.
warnings.filterwarnings("ignore", "'force_all_finite' was renamed", FutureWarning)
X, y = [[0.0, 1.0], [1.0, 0.0], [3.0, 3.0], [4.0, 3.5]] * 3, [0, 0, 1, 1] * 3
print(learner.set_params(n_neighbors=2).fit(X, y).components_.shape)
"""
    parts = [enable, make] if order == "before" else [make, enable]
    assert run("".join(parts) + script) == "(2, 2)"


# --- pickled learners -----------------------------------------------------------------

metric_learn = pytest.importorskip("metric_learn")
LEARNERS = [
    metric_learn.ITML_Supervised(prior="covariance"),
    metric_learn.LMNN(max_iter=3),
    metric_learn.RCA_Supervised(n_chunks=10),
    metric_learn.Covariance(),
]


@pytest.mark.parametrize(
    "learner", LEARNERS, ids=lambda learner: type(learner).__name__
)
def test_learners_can_be_cloned_after_pickling(learner):
    skmahal.enable_metric_learn()
    learner = copy.copy(learner)
    learner.fitted_ = {"U": np.eye(2)}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(learner, protocol))
        assert clone(again).get_params() == learner.get_params()
        np.testing.assert_array_equal(again.fitted_["U"], np.eye(2))
    assert clone(copy.deepcopy(learner)).get_params() == learner.get_params()


@pytest.mark.slow
def test_a_pickled_learner_enables_metric_learn_where_it_is_loaded(tmp_path):
    skmahal.enable_metric_learn()
    file = tmp_path / "learner"
    file.write_bytes(pickle.dumps(metric_learn.LMNN(n_neighbors=2, max_iter=2)))
    script = f"""
import pickle, warnings
from sklearn.base import clone
warnings.filterwarnings("ignore", "'force_all_finite' was renamed", FutureWarning)
with open({str(file)!r}, "rb") as file:
    learner = clone(pickle.load(file))
X, y = [[0.0, 1.0], [1.0, 0.0], [3.0, 3.0], [4.0, 3.5]] * 3, [0, 0, 1, 1] * 3
print(learner.fit(X, y).components_.shape)
"""
    assert run(script) == "(2, 2)"


# --- other versions of the libraries --------------------------------------------------


def test_without_metric_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "metric_learn", None)
    expected = r"needs metric_learn: pip install 'skmahal\[metric-learn\]'"
    with pytest.raises(ImportError, match=expected):
        skmahal.enable_metric_learn()


def test_an_installed_library_that_is_broken_shows_its_own_error(monkeypatch, tmp_path):
    (tmp_path / "breaks_on_import.py").write_text("import a_missing_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="'a_missing_dependency'"):
        _compat.import_optional("breaks_on_import", "some", "this")


def fake_metric_learn(monkeypatch, **modules):
    """A metric-learn with the given modules, each with the given names."""
    for name in ("metric_learn.base_metric", *_compat._VALIDATION):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "metric_learn", ModuleType("metric_learn"))
    for name, contents in modules.items():
        module = ModuleType(f"metric_learn.{name}")
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def of_today(X, *, ensure_all_finite=True):
    """Validation with the new keyword."""
    return X, ensure_all_finite


@wraps(of_today)
def wrapped(*args, **kwargs):
    return of_today(*args, **kwargs)


def of_old(X, *, force_all_finite=True):
    """Validation with the old keyword."""
    return X


def test_a_metric_learn_that_needs_no_change_is_not_changed(monkeypatch):
    monkeypatch.setattr(_compat, "check_array", of_today)
    fake_metric_learn(monkeypatch)
    assert skmahal.enable_metric_learn() is False
    fake_metric_learn(monkeypatch, _util={}, itml={"other": of_today}, base_metric={})
    assert skmahal.enable_metric_learn() is False
    assert sys.modules["metric_learn.itml"].other is of_today
    assert not hasattr(sys.modules["metric_learn._util"], "check_array")


@pytest.mark.parametrize("validate", [of_today, wrapped])
def test_the_keyword_is_translated(monkeypatch, validate):
    monkeypatch.setattr(_compat, "check_array", of_today)
    fake_metric_learn(monkeypatch, _util={"check_array": validate}, scml={})
    assert skmahal.enable_metric_learn() is True
    assert skmahal.enable_metric_learn() is False
    translated = sys.modules["metric_learn._util"].check_array
    assert translated(1) == (1, True)
    assert translated(1, force_all_finite=False) == (1, False)
    assert translated(1, ensure_all_finite="allow-nan") == (1, "allow-nan")
    with pytest.raises(TypeError, match="unknown"):
        translated(1, unknown=True)


def test_validation_is_not_replaced_if_scikit_learn_accepts_the_keyword(monkeypatch):
    class Learner(BaseEstimator):
        pass

    monkeypatch.setattr(_compat, "check_array", of_old)
    parts = {"check_array": of_old}, {"BaseMetricLearner": Learner}
    fake_metric_learn(monkeypatch, _util=parts[0], base_metric=parts[1])
    assert [skmahal.enable_metric_learn() for _ in range(2)] == [True, False]
    assert sys.modules["metric_learn._util"].check_array is of_old
    assert Learner.__setstate__ is not BaseEstimator.__setstate__
