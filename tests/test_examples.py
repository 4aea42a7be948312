"""Examples of the gallery, without running them: ``make docs`` runs them all."""

import ast
import importlib
from pathlib import Path

import pytest

import skmahal

FOLDER = Path(skmahal.__file__).parents[1] / "examples"
every_example = pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("plot_*.py")), ids=lambda path: path.stem
)


def imports(tree):
    """`(module, name)` of what a script imports; name None for a whole module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)


@every_example
def test_what_an_example_imports_of_the_package_is_there(path):
    for module, name in imports(ast.parse(path.read_text())):
        if module == "skmahal.dask":
            pytest.importorskip("dask")
        if module.partition(".")[0] == "skmahal":
            assert hasattr(importlib.import_module(module), name or "__name__")


@every_example
def test_an_example_is_a_page_that_needs_no_download(path):
    tree = ast.parse(path.read_text())
    title, underline, *_ = ast.get_docstring(tree).splitlines()
    assert underline == "=" * len(title)
    assert "plt.show()" in path.read_text()
    names = [name for module, name in imports(tree) if "sklearn.datasets" in module]
    assert not [name for name in names if name.startswith("fetch_")]


def test_there_are_examples():
    assert len(list(FOLDER.glob("plot_*.py"))) >= 12
