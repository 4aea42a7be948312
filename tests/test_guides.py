"""The code of the guides runs, and prints what the guides say.

A page has either doctests or blocks of Python. Both are run from top to bottom, in an
empty folder. A block that imports an optional library which is not installed is left
out; no later block of its page may depend on it.
"""

import doctest
import re
import textwrap
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator

import skmahal
from skmahal import online

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", re.MULTILINE)
IMPORT = re.compile(r"^ *(?:import|from) (\w+)", re.MULTILINE)
OPTIONAL = {
    *("dask", "distributed", "faiss", "hnswlib", "matplotlib", "metric_learn"),
    *("skops", "umap"),
}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS

pages = {
    path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.rst"))
}
doctested = [name for name, text in pages.items() if re.search("^>>> ", text, re.M)]
executed = [name for name, text in pages.items() if BLOCK.search(text)]


def is_missing(code):
    """Whether code imports an optional library that is not installed."""
    imported = OPTIONAL.intersection(IMPORT.findall(code))
    return any(find_spec(name) is None for name in imported)


def names_after(page):
    """Variables after the code blocks of a page, run from top to bottom."""
    names = {"__name__": page}
    for block in map(textwrap.dedent, BLOCK.findall(pages[page])):
        if not is_missing(block):
            exec(compile(block, page, "exec"), names)
    return names


def doctest_blocks(page):
    """The examples of a page, as lists of those with no text between them."""
    blocks = [[]]
    for part in doctest.DocTestParser().parse(pages[page], page):
        if isinstance(part, doctest.Example):
            blocks[-1].append(part)
        elif part.strip():
            blocks.append([])
    return [block for block in blocks if block]


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", doctested)
def test_examples_print_what_the_page_says(page):
    names, runner = {}, doctest.DocTestRunner(optionflags=FLAGS)
    for block in doctest_blocks(page):
        if is_missing("".join(example.source for example in block)):
            continue
        test = doctest.DocTest(block, {}, page, page, 0, "")
        test.globs = names
        runner.run(test, clear_globs=False)
    assert runner.summarize().failed == 0
    assert runner.tries > 0


def test_a_page_has_doctests_or_blocks():
    assert not set(doctested) & set(executed)


def test_all_python_on_the_pages_is_run():
    for page, text in pages.items():
        assert len(BLOCK.findall(text)) == text.count("code-block:: python"), page
        # These have commands and, for Dask, a cluster that no test can start.
        if page in {"benchmarks.rst", "changes.rst", "dask.rst"}:
            continue
        assert not re.search(r"^(?! *\.\.).*::$", text, re.M), (
            f"{page}: a block of no language"
        )
        languages = set(re.findall(r"code-block:: (\w+)", text))
        assert languages <= {"python", "sh", "text"}, page


with_checks = {"learned_metrics", "online", "persistence", "streams", "recall", "trust"}


@pytest.mark.filterwarnings("ignore:Tensorflow not installed:ImportWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:umap.umap_")
@pytest.mark.parametrize(
    "page", [page for page in executed if page.removesuffix(".rst") not in with_checks]
)
def test_blocks_run(page):
    names_after(page)


@pytest.mark.filterwarnings("ignore:'force_all_finite' was renamed:FutureWarning")
def test_learned_metrics():
    pytest.importorskip("metric_learn")
    names = names_after("learned_metrics.rst")
    knn, X = names["knn"], names["X"]
    assert knn.n_samples_fit_ == 899
    assert np.mean(knn.predict(X[900:]) == names["y"][900:]) > 0.8
    assert names["nearest"].score(X[1000:], names["y"][1000:]) > 0.9


def test_online_learning():
    names = names_after("online.rst")
    assert names["knn"].score(names["X"][500:], names["y"][500:]) > 0.9
    here, there, learner = names["here"], names["there"], names["learner"]
    np.testing.assert_allclose(here.components_, learner.components_, atol=1e-12)
    np.testing.assert_allclose(there.components_, learner.components_, atol=1e-12)
    probable = names["probabilities"] > 0.5
    assert np.mean(probable == (names["similar"] > 0)) > 0.8
    assert names["scores"].mean() > 0.7


def test_saving_and_loading():
    names = names_after("persistence.rst")
    X, saved = names["X"], names["index"]
    assert names["mapped"].n_samples_fit_ == saved.n_samples_fit_ + 1
    if not is_missing("import skops"):
        shared = names["shared"]
        np.testing.assert_array_equal(shared.kneighbors(X)[0], saved.kneighbors(X)[0])
        types = names["skops"].io.get_untrusted_types(file="index.skops")
        assert str(types) in pages["persistence.rst"]


def test_streams():
    names = names_after("streams.rst")
    assert len(names["window"]) == 500
    assert names["knn"].predict(names["X"][500:501]).shape == (1,)
    assert len(names["alarms"]) == 20


def test_more_than_one_machine():
    pytest.importorskip("distributed", reason="dask is not installed")
    names = names_after("dask.rst")
    assert names["indices"].shape == (2, 3)
    assert names["nearest"].shape == (500,)
    assert names["on_one_machine"].n_samples_fit_ == 4009
    assert names["grid"].best_params_["m"] == 8


def test_approximate_neighbours():
    pytest.importorskip("matplotlib").use("Agg")
    pytest.importorskip("numba")
    names = names_after("recall.rst")
    assert names["found"].version == 1
    assert names["found"].least >= 0.95
    assert names["audit"].recall.passed


def test_trust():
    names = names_after("trust.rst")
    guarantee = names["guarantee"]
    assert guarantee.fixed.kneighbors == 0
    assert guarantee.adaptive.kneighbors == 0
    assert guarantee.fixed.distances <= 0.01
    assert guarantee.adaptive.distances == 1
    assert names["audit"].passed
    assert names["audit"].recent.n_pairs == 2000


def test_representations_of_estimators_link_to_their_pages():
    public = {**vars(skmahal), **{f"online.{n}": v for n, v in vars(online).items()}}
    documented = re.findall(r"^   ([\w.]*\w)$", pages["api.rst"], re.MULTILINE)
    estimators = {
        name: public[name]
        for name in documented
        if isinstance(public.get(name), type)
        and issubclass(public[name], BaseEstimator)
    }
    assert len(estimators) > 10
    for name, estimator in estimators.items():
        page = f"/generated/skmahal.{name}.html"
        assert estimator()._get_doc_link().endswith(page)
        assert page in estimator()._repr_html_()


def test_every_test_that_the_page_names_exists():
    parts = re.split(r"``([a-z/_]+\.py)``:", pages["trust.rst"])[1:]
    promises = list(zip(parts[::2], parts[1::2], strict=True))
    assert len(promises) > 20
    for file, names in promises:
        tests = re.findall(r"``(test_\w+)``", names)
        code = (DOCS.parent / "tests" / file).read_text(encoding="utf-8")
        assert tests, file
        for test in tests:
            assert f"def {test}(" in code, (file, test)
