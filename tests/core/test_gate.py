import pickle
import threading
import time

import pytest

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
        assert gate._writer is not None
    assert gate._writer is None
    assert gate._readers == 0


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
