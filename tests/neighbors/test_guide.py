"""The code of the guide to learned metrics runs."""

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "learned_metrics.rst"
BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", re.MULTILINE)


@pytest.mark.filterwarnings("ignore:'force_all_finite' was renamed:FutureWarning")
def test_the_guide_runs_from_top_to_bottom():
    pytest.importorskip("metric_learn")
    text = GUIDE.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("code-block:: python") > 5
    names = {}
    for block in blocks:
        exec(compile(textwrap.dedent(block), str(GUIDE), "exec"), names)
    knn, X = names["knn"], names["X"]
    assert knn.n_samples_fit_ == 899
    assert np.mean(knn.predict(X[900:]) == names["y"][900:]) > 0.8
