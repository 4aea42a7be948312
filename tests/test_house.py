"""The size of the package, and the order of its parts.

``python -m pytest -s tests/test_house.py`` prints the counts.
"""

import ast
import tokenize
from pathlib import Path

import pytest

import skmahal

ROOT = Path(skmahal.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

MOST_FILES = 55
MOST_LINES = 18_000
MOST_BODY = 40
LEAST_MEAN = 8.0

# What each part of the package may import of the others, besides itself.
INWARD = {
    "_core": set(),
    "_compat": set(),
    "_estimator": {"_core"},
    "_show_versions": {"_core"},
    "_metric_learner": {"_core", "_estimator"},
    "inspection": {"_compat", "_core"},
    "sketch": {"_compat", "_core", "_estimator", "_metric_learner"},
    "seeding": {"_core", "_estimator"},
    "neighbors": {"_compat", "_core", "_estimator", "_metric_learner"},
    "online": {"_compat", "_core", "_estimator", "_metric_learner"},
    "dask": {"_compat", "_core", "_estimator", "_metric_learner", "neighbors"},
}


def code_lines(path):
    """Numbers of the lines that hold code: neither blank nor a comment."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING}
    skipped |= {tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    with tokenize.open(path) as file:
        tokens = list(tokenize.generate_tokens(file.readline))
    return {
        line
        for token in tokens
        if token.type not in skipped
        for line in range(token.start[0], token.end[0] + 1)
    }


def bodies(path):
    """Names of all functions of a file, and how many lines of code their bodies have.

    The lines of a function inside another one count for both. A signature alone, with
    an ellipsis for its body, is no function.
    """
    code = code_lines(path)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            statements = node.body[1:] if ast.get_docstring(node) else node.body
            if [ast.unparse(one) for one in statements] == ["..."]:
                continue
            lines = {
                line
                for statement in statements
                for line in range(_first_line(statement), statement.end_lineno + 1)
            }
            yield f"{path.name}:{node.name}", len(lines & code)


def _first_line(statement):
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(one.lineno for one in decorators)])


def test_the_package_is_small():
    lines = {path: len(path.read_text().splitlines()) for path in FILES}
    print(f"\n{len(FILES)} files, {sum(lines.values()):,} lines")
    assert len(FILES) <= MOST_FILES
    assert sum(lines.values()) <= MOST_LINES


def test_functions_are_short_but_not_fragments():
    counts = [body for path in FILES for body in bodies(path)]
    mean = sum(count for _, count in counts) / len(counts)
    longest, most = max(counts, key=lambda body: body[1])
    print(
        f"\n{len(counts)} functions; bodies of {mean:.2f} lines on average, "
        f"{most} at most ({longest})"
    )
    assert not [body for body in counts if body[1] > MOST_BODY]
    assert mean >= LEAST_MEAN


def test_the_counts_are_of_code_alone(tmp_path):
    source = '''
def outer(
    a,
    b=None,
):
    """A docstring
    of two lines."""
    # A comment.

    text = """two
    lines"""

    @decorated
    def inner():
        return a  # One line.
    return inner

def declared(): ...
'''
    path = tmp_path / "counted.py"
    path.write_text(source)
    assert dict(bodies(path)) == {"counted.py:outer": 6, "counted.py:inner": 1}


# --- imports --------------------------------------------------------------------------


def dotted(path):
    """The name of the module in a file of the package."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


every_file = pytest.mark.parametrize("path", FILES, ids=dotted)


def imports(path, source=None, top=False):
    """`(module, name)` of all that a file imports, in full; name None for a module.

    With `top`, only of what it imports when it is imported itself.
    """
    package = dotted(path).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    tree = ast.parse(source or path.read_text())
    for node in tree.body if top else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)


def imported_modules(path, **how):
    """Modules of the package that a file imports."""
    names = {dotted(file) for file in FILES}
    for module, name in imports(path, **how):
        full = f"{module}.{name}"
        if full in names:
            yield full
        elif module in names:
            yield module


def part_of(module):
    """Which part of the package a module belongs to: `_core`, `sketch`, …"""
    return module.split(".")[1] if "." in module else ""


def test_every_form_of_import_is_seen():
    core = ROOT / "_core" / "index.py"
    for line, module in [
        ("from . import search", "skmahal._core.search"),
        ("from .search import a, b", "skmahal._core.search"),
        ("from .. import sketch", "skmahal.sketch"),
        ("import skmahal.neighbors._base", "skmahal.neighbors._base"),
        ("def f():\n    from skmahal.online import LEGO", "skmahal.online"),
    ]:
        assert set(imported_modules(core, source=line)) == {module}
    assert not list(imported_modules(core, source=line, top=True))


@every_file
def test_imports_point_inward(path):
    here = part_of(dotted(path))
    allowed = {here, *INWARD[here]} if here else set(INWARD)
    assert {part_of(module) for module in imported_modules(path)} <= allowed


def test_no_modules_import_each_other():
    """When they are imported; a function may import what needs its module."""
    left = {dotted(path): set(imported_modules(path, top=True)) for path in FILES}
    left = {module: needed - {module} for module, needed in left.items()}
    while left:
        free = {module for module, needed in left.items() if not needed & left.keys()}
        assert free, f"in a circle: {sorted(left)}"
        left = {module: left[module] for module in left.keys() - free}
