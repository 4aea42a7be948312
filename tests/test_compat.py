"""Optional libraries: nothing is touched until it is asked for, and then no more."""

import subprocess
import sys
from functools import wraps
from inspect import signature
from pathlib import Path
from types import ModuleType

import pytest
from sklearn.utils import check_array

import skmahal
from skmahal import _compat

ROOT = Path(skmahal.__file__).parents[1]
NEEDED = "force_all_finite" not in signature(check_array).parameters

# What metric-learn holds of scikit-learn's, by module, and what is not its own.
HELD = """
import sys
import metric_learn._util, metric_learn.itml, metric_learn.scml
import sklearn.utils, sklearn.utils.validation

def held():
    places = [
        (module, name)
        for module in sorted(sys.modules)
        if module.split(".")[0] in ("metric_learn", "sklearn")
        for name in ("check_array", "check_X_y", "validate_data")
        if hasattr(sys.modules[module], name)
    ]
    return {place: getattr(sys.modules[place[0]], place[1]) for place in places}

def changed(before):
    now = held()
    return sorted(place for place in before if now[place] is not before[place])

before = held()
"""


def run(script):
    """What a fresh process prints."""
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_patches_nothing():
    script = "import skmahal, skmahal.neighbors, skmahal.sketch; print(changed(before))"
    assert run(HELD + script) == "[]"


def test_metric_learn_is_changed_once_where_it_must_be():
    script = """
import skmahal
print(skmahal.enable_metric_learn(), skmahal.enable_metric_learn())
print(changed(before))
"""
    calls, changed = run(HELD + script).splitlines()
    assert calls == f"{NEEDED} False"
    places = [
        ("metric_learn._util", "check_X_y"),
        ("metric_learn._util", "check_array"),
        ("metric_learn.itml", "check_array"),
        ("metric_learn.scml", "check_array"),
    ]
    assert changed == str(places if NEEDED else [])


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_learner_works_once_enabled(order):
    """Also one that was imported, and even made, before."""
    enable = "import skmahal; skmahal.enable_metric_learn()\n"
    make = "from metric_learn import LMNN; learner = LMNN(max_iter=2)\n"
    script = """
import warnings
# scikit-learn 1.6 and 1.7 know the keyword, and say that it will go.
warnings.filterwarnings("ignore", "'force_all_finite' was renamed", FutureWarning)
X, y = [[0.0, 1.0], [1.0, 0.0], [3.0, 3.0], [4.0, 3.5]] * 3, [0, 0, 1, 1] * 3
print(learner.set_params(n_neighbors=2).fit(X, y).components_.shape)
"""
    parts = [enable, make] if order == "before" else [make, enable]
    assert run("".join(parts) + script) == "(2, 2)"


def test_without_metric_learn_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "metric_learn", None)
    expected = r"needs metric_learn: pip install 'skmahal\[metric-learn\]'"
    with pytest.raises(ImportError, match=expected):
        skmahal.enable_metric_learn()


def test_a_library_that_is_there_and_broken_shows_its_own_error(monkeypatch, tmp_path):
    (tmp_path / "breaks_on_import.py").write_text("import what_it_needs_and_has_not")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="'what_it_needs_and_has_not'"):
        _compat.import_optional("breaks_on_import", "some", "this")


def fake_metric_learn(monkeypatch, **modules):
    """A metric-learn of the given modules, each with the given names, and no others."""
    for name in ("metric_learn", *_compat._VALIDATION):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "metric_learn", ModuleType("metric_learn"))
    for name, contents in modules.items():
        module = ModuleType(f"metric_learn.{name}")
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def of_today(X, *, ensure_all_finite=True):
    """Validation that knows one spelling alone."""
    return X, ensure_all_finite


@pytest.fixture
def scikit_learn_of_today(monkeypatch):
    monkeypatch.setattr(_compat, "check_array", of_today)


@pytest.mark.usefixtures("scikit_learn_of_today")
def test_a_metric_learn_that_needs_nothing_is_left_alone(monkeypatch):
    fake_metric_learn(monkeypatch)
    assert skmahal.enable_metric_learn() is False
    fake_metric_learn(monkeypatch, _util={}, itml={"other": of_today}, scml={})
    assert skmahal.enable_metric_learn() is False
    assert sys.modules["metric_learn.itml"].other is of_today
    assert not hasattr(sys.modules["metric_learn._util"], "check_array")


@pytest.mark.usefixtures("scikit_learn_of_today")
def test_what_is_there_is_translated(monkeypatch):
    fake_metric_learn(monkeypatch, _util={"check_array": of_today}, scml={})
    assert skmahal.enable_metric_learn() is True
    assert skmahal.enable_metric_learn() is False
    translated = sys.modules["metric_learn._util"].check_array
    assert translated(1) == (1, True)
    assert translated(1, force_all_finite=False) == (1, False)
    assert translated(1, ensure_all_finite="allow-nan") == (1, "allow-nan")
    with pytest.raises(TypeError, match="unknown"):
        translated(1, unknown=True)


@pytest.mark.usefixtures("scikit_learn_of_today")
def test_functions_that_others_have_wrapped_are_translated_too(monkeypatch):
    @wraps(of_today)
    def wrapped(*args, **kwargs):
        return of_today(*args, **kwargs)

    fake_metric_learn(monkeypatch, itml={"check_array": wrapped})
    assert skmahal.enable_metric_learn() is True
    translated = sys.modules["metric_learn.itml"].check_array
    assert translated(1, force_all_finite=False) == (1, False)


def test_nothing_is_replaced_where_scikit_learn_knows_the_keyword(monkeypatch):
    def of_old(X, *, force_all_finite=True):
        return X

    monkeypatch.setattr(_compat, "check_array", of_old)
    fake_metric_learn(monkeypatch, _util={"check_array": of_old})
    assert skmahal.enable_metric_learn() is False
    assert sys.modules["metric_learn._util"].check_array is of_old
