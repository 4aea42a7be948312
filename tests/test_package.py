"""The whole package: metadata, imports, words and documentation."""

import ast
import configparser
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.base import BaseEstimator

import skmahal
from skmahal import inspection, online

ROOT = Path(skmahal.__file__).parent
PROJECT = ROOT.parent
MODULES = sorted(ROOT.rglob("*.py"))
OPTIONAL = {"numba", "matplotlib", "metric_learn", "pandas", "dask"}

# Packages that do not import each other; both import `_core`.
APART = ("neighbors", "online")

# What files of `_core` import beside NumPy, SciPy and the standard library.
ALSO_IN_CORE = {
    "_multiply": {"llvmlite", "numba"},
    "_numba": {"numba"},
    "threads": {"joblib", "threadpoolctl"},
}


def dotted(path):
    """The name of the module in a file of the package."""
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path, source=None):
    """`(module, name)` of everything that a file imports; name None for a module."""
    package = dotted(path).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    for node in ast.walk(ast.parse(source or path.read_text(encoding="utf-8"))):
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


def foreign_to_core(path, source=None):
    """Packages that a file of `_core` imports and that not all of them may import."""
    allowed = {"numpy", "scipy", *sys.stdlib_module_names}
    return {
        imported[0].split(".")[0]
        for imported in imports(path, source)
        if imported[0].split(".")[0] not in allowed
        and not reaches(imported, "skmahal._core")
    }


def private_of_others(path, source=None):
    """Imports of names that other packages mark as private."""
    return [
        (module, name)
        for module, name in imports(path, source)
        if not in_package(module, "skmahal")
        and module != "__future__"
        and any(re.match(r"_(?!_)", word) for word in f"{module}.{name}".split("."))
    ]


def test_every_form_of_import_is_recognized():
    core = ROOT / "_core" / "index.py"
    assert list(imports(core, "from . import tree")) == [("skmahal._core", "tree")]
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
        assert foreign_to_core(core, line), line
    for line in ["from .tree import _a", "import numpy.linalg", "from .. import _core"]:
        assert not foreign_to_core(core, line), line
    for line in ["from sklearn.base import _a", "import sklearn.utils._b", "import _c"]:
        assert private_of_others(core, line), line
    assert not private_of_others(core, "from skmahal._core import tree")


def test_the_core_imports_numpy_and_scipy_only():
    for path in (ROOT / "_core").rglob("*.py"):
        assert foreign_to_core(path) == ALSO_IN_CORE.get(path.stem, set()), path


def test_imports_point_inward():
    for path in MODULES:
        for package in ("tests", "benchmarks", "examples"):
            assert not [one for one in imports(path) if reaches(one, package)], path
    for here, there in (APART, APART[::-1]):
        for path in (ROOT / here).rglob("*.py"):
            found = [one for one in imports(path) if reaches(one, f"skmahal.{there}")]
            assert not found, path


def test_private_names_of_others_are_imported_in_one_place():
    for path in MODULES:
        # Of the standard library, and documented in spite of its name.
        found = [each for each in private_of_others(path) if each[0] != "_thread"]
        assert bool(found) == (path.name == "_compat.py"), (path, found)


def test_optional_libraries_are_not_imported_with_the_package():
    # scikit-learn itself looks for pandas.
    script = (
        "import sys, sklearn.base; before = set(sys.modules); import skmahal; "
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split())
    assert "skmahal" in found
    assert not found & OPTIONAL


def test_version_and_requirements_are_those_of_setup_cfg():
    settings = configparser.ConfigParser()
    settings.read(PROJECT / "setup.cfg", encoding="utf-8")
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", skmahal.__version__)
    assert importlib.metadata.version("skmahal") == skmahal.__version__
    required = [
        one for one in importlib.metadata.requires("skmahal") if "extra" not in one
    ]
    assert required == settings["options"]["install_requires"].split()
    extras = importlib.metadata.metadata("skmahal").get_all("Provides-Extra")
    assert set(extras) == set(settings["options.extras_require"])


def test_the_project_has_its_files():
    community = ["CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md"]
    settings = ["MANIFEST.in", "pyproject.toml", "setup.cfg", ".pre-commit-config.yaml"]
    for name in ["LICENSE", "README.md", *community, *settings]:
        assert (PROJECT / name).is_file(), name
    manifest = (PROJECT / "MANIFEST.in").read_text(encoding="utf-8").split()
    assert {*community, "CHANGELOG.md", "CITATION.cff", "tests", "docs"} <= {*manifest}
    targets = re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.M)
    for name in ["demo", "test", "stress", "test-oldest", "test-clients", "bench"]:
        assert name in targets
    assert {"docs", "lint", "dist"} <= set(targets)


def test_the_version_is_the_same_everywhere():
    """A release has a date; a version under development is not cited."""
    version = skmahal.__version__
    changes = (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")
    latest, when = re.search(r"^(\S+) \((.+)\)\n-+$", changes, re.M).groups()
    assert latest == version.split(".dev")[0]
    released = re.fullmatch(r"\d{4}-\d\d-\d\d", when)
    assert bool(released) != (when == "unreleased")
    assert bool(released) == ("dev" not in version)
    if released:
        citation = (PROJECT / "CITATION.cff").read_text(encoding="utf-8")
        assert f"\nversion: {version}\n" in citation


def test_the_python_versions_are_the_same_everywhere():
    settings = configparser.ConfigParser()
    settings.read(PROJECT / "setup.cfg", encoding="utf-8")
    classifiers = settings["metadata"]["classifiers"]
    versions = re.findall(r":: Python :: (3\.\d+)$", classifiers, re.M)
    assert settings["options"]["python_requires"] == f">={versions[0]}"
    tools = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'target-version = "py{versions[0].replace(".", "")}"' in tools
    workflow = PROJECT / ".github" / "workflows" / "test.yml"
    tested = re.search(r"python: \[(.*)\]", workflow.read_text(encoding="utf-8"))[1]
    assert re.findall(r'"(.*?)"', tested) == versions


# Words that say nothing to a reader who has not written the code.
AVOIDED = re.compile(
    r"\b(truth|gates?|twins?|asked|rooms?|fronts?|heads?|banks?|pieces?|"
    r"taken[ _]out|travels? with)\b",
    re.IGNORECASE,
)


def test_words_are_those_of_a_user_guide():
    paths = [*MODULES, *(PROJECT / "docs").glob("*.rst"), *PROJECT.glob("*.md")]
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
        if AVOIDED.search(line)
    ]
    assert not found, "\n".join(found)


def test_public_names():
    assert skmahal.__all__ == [
        "MahalanobisCentroidClassifier",
        "MahalanobisOutlierDetector",
        "MahalanobisSketch",
        "MetricMaintenance",
        "SketchedMahalanobisClassifier",
        "SketchedMahalanobisNeighbors",
        "SketchedMahalanobisNeighborsTransformer",
        "SketchedMahalanobisRadiusTransformer",
        "SketchedMahalanobisRegressor",
        "SketchesOnly",
        "components_from",
        "enable_metric_learn",
        "sample_seeds",
        "show_versions",
        "warm_up",
    ]
    assert set(skmahal.__all__) == {
        name
        for name, value in vars(skmahal).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert set(online.__all__) >= {"LEGO", "POLA", "OnlineITML"}


def test_public_modules_are_documented_and_export_what_exists():
    for name in map(dotted, MODULES):
        if not re.search(r"\._", name):
            module = importlib.import_module(name)
            assert module.__doc__, name
            for exported in getattr(module, "__all__", []):
                assert hasattr(module, exported), (name, exported)


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
PUBLIC |= {name: getattr(online, name) for name in online.__all__}
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


@pytest.mark.parametrize("name", CLASSES)
def test_public_classes_are_documented_with_an_example(name):
    text = inspect.getdoc(CLASSES[name])
    for section in ("Parameters", "Attributes", "Examples"):
        assert f"\n{section}\n-" in text
    assert ">>>" in text
    for parameter in inspect.signature(CLASSES[name]).parameters:
        assert re.search(rf"^(\w+, )*{parameter}(, \w+)* : ", text, re.M), parameter


def test_public_names_are_documented():
    for name, value in {**PUBLIC, **MEMBERS}.items():
        text = inspect.getdoc(value)
        assert text, name
        assert text.splitlines()[0].endswith((".", ":")), name


def states_cost(name):
    """A cost in the docstring, in the notes of the class, or where it points to."""
    text, cls = inspect.getdoc(CALLABLE[name]), name.split(".")[0]
    notes = inspect.getdoc(PUBLIC[cls])
    if "O(" in text or f"`{name.split('.')[-1]}` costs O(" in notes:
        return True
    pointer = re.search(r"(?:cost as in|[Oo]therwise as) :meth:`(\w+)`", text)
    return bool(pointer) and states_cost(f"{cls}.{pointer[1]}")


def signatures():
    """Public functions and methods, constructors among them, by name."""
    found = {**CALLABLE, **{name: cls.__init__ for name, cls in CLASSES.items()}}
    for name in inspection.__all__:
        cls = getattr(inspection, name)
        found |= {f"{name}.{member}": value for member, value in public_members(cls)}
    properties = {
        name: member.fget
        for name, member in MEMBERS.items()
        if isinstance(member, property) and inspect.isfunction(member.fget)
    }
    for name, member in {**found, **properties}.items():
        # A method that is available under a condition is inside a descriptor.
        function = getattr(member, "fn", getattr(member, "__func__", member))
        function = inspect.unwrap(getattr(function, "fget", function) or function)
        if inspect.isfunction(function):
            yield name, inspect.signature(function)


def untyped(signature):
    """Parameters without an annotation, and "return" if the result has none."""
    parameters = signature.parameters.values()
    empty = inspect.Parameter.empty
    names = [one.name for one in parameters if one.annotation is empty]
    names += ["return"] * (signature.return_annotation is inspect.Signature.empty)
    return [name for name in names if name not in ("self", "cls")]


def test_untyped_signatures_are_seen():
    def function(self, a, b: int, *args, **kwargs: int):
        pass

    assert untyped(inspect.signature(function)) == ["a", "args", "return"]
    names = dict(signatures())
    assert len(names) > 200
    assert {
        "warm_up",
        "LEGO",
        "LEGO.predict",
        "POLA.threshold_",
        "MetricMaintenance.restored",
        "RecallDisplay.from_estimator",
        "SketchedMahalanobisClassifier.classes_",
    } <= names.keys()


def test_public_signatures_are_readable():
    # `help` and notebooks show them: names of types, not what NumPy makes of them.
    for name, signature in signatures():
        assert "_typing" not in str(signature), name


def test_public_signatures_are_typed():
    """mypy, in ``make lint``, says whether the types are right."""
    found = {name: untyped(signature) for name, signature in signatures()}
    assert not {name: missing for name, missing in found.items() if missing}
    assert (ROOT / "py.typed").is_file()


def test_versions_are_shown(capsys):
    skmahal.show_versions()
    text = capsys.readouterr().out
    assert text.startswith(f"skmahal: {skmahal.__version__}\n")
    for name in ("numpy", "scipy", "scikit-learn"):
        assert f"{name}: {importlib.metadata.version(name)}\n" in text
    assert ("compiled by numba" in text) == bool(importlib.util.find_spec("numba"))
    assert re.search(r"^ +threads: [1-9]\d*$", text, re.M)
    assert re.search(r"^blas: \w+:$", text, re.M)


def test_public_functions_state_their_cost():
    assert not [name for name in CALLABLE if not states_cost(name)]
