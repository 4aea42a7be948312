import inspect
import pickle
import signal
import sys
import threading
import time

import pytest

from skmahal._core import gate as gates
from skmahal._core.gate import Gate


def in_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_readers_share_and_writers_do_not():
    gate, inside, most, wrong = Gate(), {"read": 0, "write": 0}, [0], []
    lock = threading.Lock()

    def visit(kind, way):
        for _ in range(200):
            with way():
                with lock:
                    inside[kind] += 1
                    most[0] = max(most[0], inside["read"])
                    if inside["write"] and sum(inside.values()) > 1:
                        wrong.append(dict(inside))
                time.sleep(1e-5)
                with lock:
                    inside[kind] -= 1

    threads = [in_thread(lambda: visit("read", gate.reading)) for _ in range(4)]
    threads += [in_thread(lambda: visit("write", gate.writing)) for _ in range(2)]
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert most[0] > 1


def test_a_change_is_prepared_beside_readers():
    gate, read = Gate(), threading.Event()

    def reader():
        with gate.reading():
            read.set()

    with gate.changing():
        in_thread(reader)
        assert read.wait(10)


def test_changes_are_prepared_one_at_a_time():
    gate, order = Gate(), []

    def other():
        with gate.changing():
            order.append("other")

    with gate.changing():
        thread = in_thread(other)
        time.sleep(0.05)
        order.append("first")
    thread.join(10)
    assert order == ["first", "other"]


def test_a_waiting_writer_goes_before_new_readers():
    gate, order = Gate(), []

    def writer():
        with gate.writing():
            order.append("writer")

    def reader():
        with gate.reading():
            order.append("reader")

    with gate.reading():
        threads = [in_thread(writer)]
        while not gate._waiting:
            time.sleep(1e-3)
        threads.append(in_thread(reader))
        time.sleep(0.05)
        assert not order
    for thread in threads:
        thread.join(10)
    assert order == ["writer", "reader"]


def test_a_thread_may_come_in_again():
    gate = Gate()
    with gate.reading(), gate.reading():
        pass
    with gate.writing(), gate.writing(), gate.reading():
        pass
    with gate.changing(), gate.changing(), gate.writing():
        pass
    with gate.writing():
        assert not gate.is_empty
    assert gate.is_empty


def test_a_reader_that_would_write_is_told_so():
    gate = Gate()
    with gate.reading(), pytest.raises(RuntimeError, match="cannot change"):
        gate.writing().__enter__()
    with gate.writing():
        pass


def test_whoever_raises_leaves():
    gate = Gate()
    for way in (gate.reading, gate.writing, gate.changing):
        with pytest.raises(KeyError), way():
            raise KeyError
    with gate.writing():
        pass


def test_a_copy_is_open():
    gate = Gate()
    with gate.writing():
        copied = pickle.loads(pickle.dumps(gate))
    with copied.writing():
        pass


def stop_at(line, call):
    """`call()`, interrupted before the given line of the gate that it comes to.

    Lines of `with` are left out; Python comes to them again when it leaves the block,
    and handles no signal there.
    """
    source, seen = inspect.getsourcelines(gates)[0], [0]

    def trace(frame, event, _):
        if frame.f_code.co_filename != gates.__file__:
            return trace if event == "call" else None
        text = source[frame.f_lineno - 1].strip()
        if event == "line" and not text.startswith("with "):
            seen[0] += 1
            if seen[0] == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def visit(way):
    with way():
        pass


@pytest.mark.parametrize("kind", ["reading", "lent", "changing", "writing"])
def test_an_interruption_anywhere_leaves_nobody_inside(kind):
    line = 1
    while True:
        gate, done = Gate(), []
        if not stop_at(line, lambda gate=gate: visit(getattr(gate, kind))):
            break

        def others(gate=gate, done=done):
            visit(gate.writing)
            visit(gate.reading)
            done.append(True)

        in_thread(others).join(10)
        assert done, f"line {line}"
        # And this thread is not taken for a reader, or for the writer.
        visit(gate.writing)
        assert gate.is_empty
        line += 1
    assert line > 5


def test_a_thread_that_waits_may_be_interrupted():
    gate, entered, stop = Gate(), threading.Event(), threading.Event()

    def reader():
        with gate.reading():
            entered.set()
            stop.wait(10)

    thread = in_thread(reader)
    assert entered.wait(10)
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        visit(gate.writing)
    stop.set()
    thread.join(10)
    visit(gate.writing)
    assert gate.is_empty


def test_a_thread_that_works_for_a_reader_passes_a_waiting_writer():
    gate, done = Gate(), []

    def work():
        with gate.lent(), gate.reading():
            done.append(gate.is_reading)

    with gate.reading():
        writer = in_thread(lambda: visit(gate.writing))
        while not gate._waiting:
            time.sleep(1e-3)
        in_thread(work).join(10)
        assert done == [True]
    writer.join(10)
    assert gate.is_empty
