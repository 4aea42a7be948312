"""Data of the benchmarks, and the tables and plots that are made of results."""

import json
import shutil
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest

from benchmarks import _data, _plots, online, publish, step_and_query
from benchmarks.__main__ import NAMES, parsed


@pytest.fixture
def empty(monkeypatch, tmp_path):
    monkeypatch.setenv("SKMAHAL_DATA", str(tmp_path / "new"))
    _data.mnist.cache_clear()
    yield tmp_path / "new"
    _data.mnist.cache_clear()


def fake_openml(calls):
    """`fetch_openml` without a network, with as many digits as OpenML has."""

    def fetch(name, *, version, as_frame, parser):
        calls.append((name, version, as_frame))
        X = np.zeros((70_000, 4), dtype=np.int64)
        X[:, 0] = np.arange(70_000) % 256
        return SimpleNamespace(data=X, target=np.array(["3"] * 70_000, dtype=object))

    return fetch


def test_real_data_are_fetched_once(empty, monkeypatch):
    calls = []
    monkeypatch.setattr(_data, "fetch_openml", fake_openml(calls))
    X, Q = _data.mnist()
    assert (X.shape, Q.shape) == ((10_000, 4), (2000, 4))
    assert X.dtype == np.float32
    assert X[255, 0] == 1
    assert Q[0, 0] == np.float32(68_000 % 256 / 255)
    _data.mnist.cache_clear()
    np.testing.assert_array_equal(_data.mnist()[0], X)
    assert calls == [("mnist_784", 1, False)]
    assert [path.name for path in empty.iterdir()] == [_data.MNIST]
    assert set(_data.load(_data.MNIST)["y"]) == {3}


def test_without_a_network_the_message_says_what_to_do(empty, monkeypatch):
    def fetch(*args, **kwargs):
        raise URLError("no route to host")

    monkeypatch.setattr(_data, "fetch_openml", fetch)
    with pytest.raises(_data.AbsentError, match=r"mnist_784.*no route.*SKMAHAL_DATA"):
        _data.mnist()
    with pytest.raises(_data.AbsentError, match=r"glove_100k.npz.*README"):
        _data.glove()
    assert not empty.exists()


def test_the_folder_of_data_can_be_given(empty, monkeypatch, tmp_path):
    options = parsed(["--data", str(tmp_path / "other"), "online"])
    assert options.names == ["online"]
    assert _data.folder() == tmp_path / "other"
    monkeypatch.delenv("SKMAHAL_DATA")
    assert _data.folder().name == "skmahal"


def test_help_names_all_benchmarks(capsys):
    with pytest.raises(SystemExit):
        parsed(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in NAMES)


def test_the_rival_by_hand_is_exact():
    X, Q = _data.clustered(300, 16, 5)
    U = _data.dense_metric(16)
    steps, hand = online.Steps(X, U), online.ByHand(X, U)
    for _ in range(5):
        hand.update(*steps.next())
    exact = _data.ExactNeighbors(_data.Problem(X, steps.U, Q), online.K)
    assert exact.recall(np.array([hand.neighbours(q) for q in Q])) == 1


# --- the tables and plots of the documentation ----------------------------------------


@pytest.mark.parametrize("path", sorted(publish.PUBLISHED.glob("*.csv")), ids=str)
def test_published_tables_mark_what_is_slower(path):
    table = publish.read_table(path)
    assert table
    for row in table:
        assert None not in row
        assert None not in row.values()
        for name, text in row.items():
            if name == "ratio" or path.stem in ("neighbors", "distances"):
                if name in ("points", "points and metric") or not text:
                    continue
                assert text.endswith(publish.LOSS) == (publish.ratio_of(text) < 1), row


def results(quick):
    rows = [
        {
            "n": n,
            "contenders": {
                step_and_query.OURS: {"min": 1e-6 * n},
                "transform + hnswlib": {"min": 1e-3 * n},
            },
        }
        for n in (1000, 4000)
    ]
    return json.dumps({"settings": {"quick": quick}, "rows": rows})


def test_results_become_tables_and_plots(tmp_path):
    pytest.importorskip("matplotlib")
    tables, plots = tmp_path / "tables", tmp_path / "plots"
    shutil.copytree(publish.PUBLISHED, tables)
    (tmp_path / "step_and_query.json").write_text(results(quick=False))
    folders = ["--results", tmp_path, "--tables", tables, "--plots", plots]
    publish.main(list(map(str, folders)))
    assert publish.read_table(tables / "step_and_query.csv") == [
        {"points": "1,000", "skmahal": "1", "transform + hnswlib": "1,000"},
        {"points": "4,000", "skmahal": "4", "transform + hnswlib": "4,000"},
    ]
    for name in publish.DRAWINGS:
        for ending in ("", "_dark"):
            assert (plots / f"{name}{ending}.png").stat().st_size > 5000
    (tmp_path / "step_and_query.json").write_text(results(quick=True))
    with pytest.raises(SystemExit):
        publish.main(list(map(str, folders)))


def test_labels_are_apart():
    assert _plots.apart([4.0, 1.0, 1.1], factor=2) == [4.0, 1.0, 2.0]
