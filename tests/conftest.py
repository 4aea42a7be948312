"""What all tests share: fixed examples, and counts for the closing line of stress."""

from collections import Counter

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

COUNTS = pytest.StashKey[Counter]()


def pytest_configure(config):
    config.stash[COUNTS] = Counter()


@pytest.fixture
def count(request):
    """``count("queries", 3)``: what a stress test has done, for the closing line."""
    counts = request.config.stash[COUNTS]

    def add(what, number=1):
        counts[what] += int(number)

    return add


def pytest_sessionfinish(session):
    """A worker of xdist hands its counts to who started it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["counts"] = dict(session.config.stash[COUNTS])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    counts = getattr(node, "workeroutput", {}).get("counts", {})
    node.config.stash[COUNTS].update(counts)


def pytest_terminal_summary(terminalreporter, config):
    passed = terminalreporter.stats.get("passed", [])
    held = sum("stress" in report.keywords for report in passed)
    if held:
        done = [f"{number:,} {what}" for what, number in config.stash[COUNTS].items()]
        terminalreporter.write_line(
            f"stress: {held:,} promises held; {', '.join(done)}"
        )
