"""What all tests share: fixed examples, and counts for the last line of stress runs."""

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
    """``count("queries", 3)`` adds to what the last line of a stress run reports."""
    counts = request.config.stash[COUNTS]

    def add(what, number=1):
        counts[what] += int(number)

    return add


def pytest_sessionfinish(session):
    """Send the counts of an xdist worker to the process that started it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["counts"] = dict(session.config.stash[COUNTS])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    counts = getattr(node, "workeroutput", {}).get("counts", {})
    node.config.stash[COUNTS].update(counts)


def pytest_terminal_summary(terminalreporter, config):
    passed = terminalreporter.stats.get("passed", [])
    stressed = sum("stress" in report.keywords for report in passed)
    if stressed:
        done = [f"{number:,} {what}" for what, number in config.stash[COUNTS].items()]
        terminalreporter.write_line(
            f"stress: {stressed:,} tests passed; {', '.join(done)}"
        )
