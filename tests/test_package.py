"""The shape of the package: who imports whom, what is public, what is documented."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.base import BaseEstimator

import skmahal

ROOT = Path(skmahal.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
NOT_IMPORTED_BY_DEFAULT = ["numba", "matplotlib", "metric_learn", "pandas", "dask"]

# Packages of which one may not import the other; they meet in `_core`.
APART = ("neighbors", "online")


def dotted(path):
    """The name of the module in a file of the package."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path, source=None):
    """`(module, name)` of all that a file imports, in full; name None for a module."""
    package = dotted(path).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    for node in ast.walk(ast.parse(source or path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)


def in_package(name, package):
    return name == package or name.startswith(package + ".")


def reaches(imported, package):
    """Whether an import is of `package` or of something inside it."""
    module, name = imported
    return in_package(module, package) or in_package(f"{module}.{name}", package)


def is_private(imported):
    module, name = imported
    words = [*module.split("."), *([name] if name else [])]
    return any(word.startswith("_") and not word.startswith("__") for word in words)


def breaches_of_core(path, source=None):
    """Imports of a file of `_core` that are not NumPy, SciPy, stdlib or `_core`."""
    allowed = {"numpy", "scipy", *sys.stdlib_module_names}
    return [
        imported
        for imported in imports(path, source)
        if imported[0].split(".")[0] not in allowed
        and not reaches(imported, "skmahal._core")
    ]


def breaches_of_compat(path, source=None):
    """Imports of what other packages hold to be private."""
    return [
        imported
        for imported in imports(path, source)
        if not in_package(imported[0], "skmahal")
        and imported[0] != "__future__"
        and is_private(imported)
    ]


every_module = pytest.mark.parametrize("path", MODULES, ids=dotted)


def test_the_contract_sees_every_form_of_import():
    core = ROOT / "_core" / "exact.py"
    assert list(imports(core, "from . import plan")) == [("skmahal._core", "plan")]
    assert list(imports(core, "from ..sketch import a")) == [("skmahal.sketch", "a")]
    assert list(imports(ROOT / "__init__.py", "from .b import c")) == [
        ("skmahal.b", "c")
    ]
    for line in [
        "import sklearn",
        "from sklearn.base import clone",
        "from .. import sketch",
        "from ..neighbors._base import a",
        "def f():\n    import numba",
    ]:
        assert breaches_of_core(core, line), line
    for line in ["from .plan import _a", "import numpy.linalg", "from .. import _core"]:
        assert not breaches_of_core(core, line), line
    for line in ["from sklearn.base import _a", "import sklearn.utils._b", "import _c"]:
        assert breaches_of_compat(core, line), line
    assert not breaches_of_compat(core, "from skmahal._core import plan")


COMPILED = ROOT / "_core" / "_fast.py"


@pytest.mark.parametrize(
    "path", sorted({*(ROOT / "_core").rglob("*.py")} - {COMPILED}), ids=dotted
)
def test_the_core_needs_numpy_and_scipy_alone(path):
    assert not breaches_of_core(path)


def test_numba_is_imported_by_the_compiled_loops_alone_and_not_with_the_package():
    assert {name for name, _ in breaches_of_core(COMPILED)} == {"numba"}
    script = "import sys, skmahal; print('numba' in sys.modules)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT.parent)
    assert done.stdout.strip() == "False", done.stderr


@every_module
def test_the_package_imports_no_tests_or_benchmarks(path):
    for package in ("tests", "benchmarks", "examples", "conftest"):
        assert not [one for one in imports(path) if reaches(one, package)]


@pytest.mark.parametrize("here", APART)
def test_packages_that_stand_apart_do_not_import_each_other(here):
    for path in (ROOT / here).rglob("*.py"):
        for there in set(APART) - {here}:
            found = [one for one in imports(path) if reaches(one, f"skmahal.{there}")]
            assert not found, path


@every_module
def test_private_names_of_others_are_imported_in_one_place(path):
    breaches = breaches_of_compat(path)
    assert bool(breaches) == (path.name == "_compat.py"), breaches


def test_public_names_exist_and_are_sorted():
    assert skmahal.__all__ == sorted(skmahal.__all__)
    assert set(skmahal.__all__) == {
        name
        for name, value in vars(skmahal).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }


def public_modules():
    names = [dotted(path) for path in MODULES]
    return [name for name in names if not any(w[0] == "_" for w in name.split("."))]


@pytest.mark.parametrize("name", public_modules())
def test_public_modules_are_documented_and_export_what_exists(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for exported in getattr(module, "__all__", []):
        assert hasattr(module, exported)


@pytest.mark.parametrize("library", NOT_IMPORTED_BY_DEFAULT)
def test_optional_libraries_are_not_imported_with_the_package(library, imported):
    assert library not in imported


@pytest.fixture(scope="module")
def imported():
    """Packages that a fresh process loads for skmahal, beside those scikit-learn loads.

    scikit-learn itself looks for pandas.
    """
    script = (
        "import sys, sklearn.base; before = set(sys.modules); import skmahal; "
        "print(*{m.split('.')[0] for m in set(sys.modules) - before})"
    )
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr
    assert "skmahal" in done.stdout.split()
    return done.stdout.split()


def public_members(cls):
    """Public methods and properties that the package itself defines for a class."""
    for name in dir(cls):
        if name.startswith("_") or hasattr(BaseEstimator, name):
            continue
        member = inspect.getattr_static(cls, name)
        function = member.fget if isinstance(member, property) else member
        function = inspect.unwrap(getattr(function, "__func__", function))
        if getattr(function, "__module__", "").startswith("skmahal"):
            yield name, member


PUBLIC = {name: getattr(skmahal, name) for name in skmahal.__all__}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}
MEMBERS = {
    f"{cls}.{name}": member
    for cls, value in CLASSES.items()
    for name, member in public_members(value)
}
CALLABLE = {
    name: value
    for name, value in {**PUBLIC, **MEMBERS}.items()
    if not isinstance(value, property) and name not in CLASSES
}


def one_of(table):
    return pytest.mark.parametrize("name", table)


@one_of(CLASSES)
def test_public_classes_are_documented_with_an_example(name):
    text = inspect.getdoc(CLASSES[name])
    for section in ("Parameters", "Attributes", "Examples"):
        assert f"\n{section}\n-" in text
    assert ">>>" in text


@one_of(CLASSES)
def test_every_parameter_is_documented(name):
    text = inspect.getdoc(CLASSES[name])
    for parameter in inspect.signature(CLASSES[name]).parameters:
        assert re.search(rf"^(\w+, )*{parameter}(, \w+)* : ", text, re.M), parameter


@one_of({**PUBLIC, **MEMBERS})
def test_public_names_are_documented(name):
    text = inspect.getdoc({**PUBLIC, **MEMBERS}[name])
    assert text
    assert text.splitlines()[0].endswith((".", ":"))


def states_cost(name):
    """A cost in the docstring, in the notes of the class, or where it points to."""
    text, cls = inspect.getdoc(CALLABLE[name]), name.split(".")[0]
    notes = inspect.getdoc(PUBLIC[cls])
    if "O(" in text or f"`{name.split('.')[-1]}` costs O(" in notes:
        return True
    pointer = re.search(r"cost as in :meth:`(\w+)`", text)
    return bool(pointer) and states_cost(f"{cls}.{pointer[1]}")


@one_of(CALLABLE)
def test_public_methods_state_their_cost(name):
    assert states_cost(name), inspect.getdoc(CALLABLE[name])
