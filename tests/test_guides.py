"""The code of the guides runs."""

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", re.MULTILINE)


def names_after(guide):
    """Variables after the code blocks of a guide, run from top to bottom."""
    text = (DOCS / guide).read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("code-block:: python") > 1
    names = {}
    for block in blocks:
        exec(compile(textwrap.dedent(block), guide, "exec"), names)
    return names


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


def test_saving_and_loading(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = names_after("persistence.rst")
    X, saved, shared = names["X"], names["index"], names["shared"]
    np.testing.assert_array_equal(shared.kneighbors(X)[0], saved.kneighbors(X)[0])
    assert names["mapped"].n_samples_fit_ == saved.n_samples_fit_ + 1
    types = names["skops"].io.get_untrusted_types(file="index.skops")
    assert str(types) in (DOCS / "persistence.rst").read_text(encoding="utf-8")


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


def test_every_test_that_the_page_names_exists():
    text = (DOCS / "trust.rst").read_text(encoding="utf-8")
    parts = re.split(r"``([a-z/_]+\.py)``:", text)[1:]
    promises = list(zip(parts[::2], parts[1::2], strict=True))
    assert len(promises) > 20
    for file, names in promises:
        tests = re.findall(r"``(test_\w+)``", names)
        code = (DOCS.parent / "tests" / file).read_text(encoding="utf-8")
        assert tests, file
        for test in tests:
            assert f"def {test}(" in code, (file, test)
