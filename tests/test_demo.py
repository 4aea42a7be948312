"""The demonstration runs, and what it says is so."""

import importlib.util
import re
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "examples" / "demo.py"


@pytest.fixture
def demo():
    spec = importlib.util.spec_from_file_location("demo", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_demo(demo, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    demo.main(["--images", "2000", "--rounds", "20"])
    text = capsys.readouterr().out
    lines = re.findall(r"^ *(\d+) +([\d.]+)% +([\d.]+)%$", text, re.M)
    clicks, shares, exact = zip(*(map(float, line) for line in lines), strict=True)
    assert clicks[0] == 0
    assert clicks[-1] > 20
    assert shares[-1] > shares[0] + 10
    assert min(exact) > 99.9
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    assert "Picture: demo.png" in text


def test_demo_without_what_it_can_do_without(demo, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    demo.main(["--images", "1000", "--rounds", "3"])
    text = capsys.readouterr().out
    assert "pip install matplotlib" in text
    assert "pip install faiss-cpu" in text
    assert not list(tmp_path.iterdir())


def test_the_bar_is_for_terminals(demo, monkeypatch, capsys):
    demo.Bar(4).show(1, "text")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    bar = demo.Bar(4, width=8)
    bar.show(1, "text")
    assert "[##......] text" in capsys.readouterr().err
