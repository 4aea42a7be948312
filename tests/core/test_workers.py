"""Tasks on threads that are kept: each once, in order, and errors to the caller."""

import multiprocessing
import threading
import time

import pytest

from skmahal._core import workers
from skmahal._core.workers import run


@pytest.mark.parametrize("jobs", [1, 2, 3, 50])
@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_results_come_in_the_order_of_the_items(jobs, count):
    items = list(range(count))
    assert run(lambda item: item**2, items, jobs) == [item**2 for item in items]


def test_the_thread_that_asks_works_too_and_is_helped():
    names, both = set(), threading.Barrier(2, timeout=30)

    def task(_):
        names.add(threading.current_thread().name)
        both.wait()

    run(task, range(2), jobs=2)
    assert threading.current_thread().name in names
    assert len(names) == 2


@pytest.mark.parametrize("bad", [0, 5, 19])
def test_an_error_reaches_the_caller_and_ends_the_work(bad):
    done = []

    def task(item):
        if item == bad:
            raise KeyError(item)
        time.sleep(1e-3)
        done.append(item)

    with pytest.raises(KeyError):
        run(task, range(20), jobs=2)
    count = len(done)
    assert count < 20
    time.sleep(0.02)
    assert len(done) == count, "a task was at work after the call had ended"
    assert run(abs, [-1, -2], jobs=2) == [1, 2]


def test_work_is_over_when_no_helper_could_be_had(monkeypatch):
    """The first helper has begun, and the second cannot be started."""
    done, pool = [], workers._pool()

    class Full:
        def __init__(self):
            self.submitted = 0

        def submit(self, work):
            self.submitted += 1
            if self.submitted > 1:
                raise RuntimeError("can't start new thread")
            return pool.submit(work)

    full = Full()
    monkeypatch.setattr(workers, "_pool", lambda: full)

    def task(item):
        time.sleep(1e-3)
        done.append(item)

    with pytest.raises(RuntimeError, match="new thread"):
        run(task, range(50), jobs=3)
    count = len(done)
    time.sleep(0.02)
    assert len(done) == count < 50


def test_tasks_may_have_tasks_of_their_own():
    inner = run(lambda i: run(lambda j: 10 * i + j, range(8), jobs=4), range(8), 4)
    assert inner == [[10 * i + j for j in range(8)] for i in range(8)]


def test_a_forked_process_has_threads_of_its_own():
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system does not fork")
    run(abs, [-1, -2], jobs=2)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_answer, args=(answers,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert answers.get() == [1, 2]


def _answer(answers):
    answers.put(run(abs, [-1, -2], jobs=2))
