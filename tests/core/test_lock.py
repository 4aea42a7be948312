"""Many readers or one writer. Private: threads that share an index rest on it."""

import os
import pickle
import signal
import threading
import time

import pytest

from skmahal._core.lock import ReadWriteLock

WAIT = 30


def in_thread(call, *args):
    thread = threading.Thread(target=call, args=args, daemon=True)
    thread.start()
    return thread


def test_readers_share_and_writers_do_not():
    lock, inside, wrong = ReadWriteLock(), {"read": 0, "write": 0}, []
    mutex, together = threading.Lock(), threading.Barrier(4, timeout=WAIT)

    def visit(kind):
        with mutex:
            inside[kind] += 1
            if inside["write"] and sum(inside.values()) > 1:
                wrong.append(dict(inside))
        time.sleep(1e-5)
        with mutex:
            inside[kind] -= 1

    def read():
        with lock.reading():
            # Four readers can only pass when all of them are inside.
            together.wait()
        for _ in range(200):
            with lock.reading():
                visit("read")

    def write():
        for _ in range(200):
            lock.write(visit, "write")

    threads = [in_thread(read) for _ in range(4)] + [in_thread(write) for _ in range(2)]
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    assert not wrong


def test_a_waiting_writer_goes_before_new_readers():
    lock, order = ReadWriteLock(), []

    def read():
        with lock.reading():
            order.append("reader")

    with lock.reading():
        writer = in_thread(lock.write, order.append, "writer")
        while not lock._queue._is_owned() and lock._queue.acquire(blocking=False):
            lock._queue.release()
            time.sleep(1e-3)
        reader = in_thread(read)
        reader.join(0.1)
        assert not order
    writer.join(WAIT)
    reader.join(WAIT)
    assert order == ["writer", "reader"]


def test_a_thread_may_read_again_and_a_writer_may_write_again():
    lock = ReadWriteLock()
    with lock.reading(), lock.reading():
        pass
    assert lock.write(lock.write, max, 1, 2) == 2


def test_a_reader_that_would_wait_for_itself_is_refused():
    lock = ReadWriteLock()
    with lock.reading(), pytest.raises(RuntimeError, match="cannot change the index"):
        lock.write(max, 1, 2)
    with pytest.raises(RuntimeError, match="while it changes"):
        lock.write(lock.reading)
    assert lock.write(max, 1, 2) == 2


def test_what_raises_inside_leaves_the_lock_free():
    lock = ReadWriteLock()
    with pytest.raises(ZeroDivisionError):
        lock.write(divmod, 1, 0)
    with pytest.raises(ZeroDivisionError), lock.reading():
        divmod(1, 0)
    thread = in_thread(lock.write, max, 1, 2)
    thread.join(WAIT)
    assert not thread.is_alive()


class Interrupted(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_signals_that_raise_never_leave_the_lock_taken():
    lock, stop = ReadWriteLock(), time.monotonic() + 1.0

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    interruptions = 0
    try:
        signal.setitimer(signal.ITIMER_REAL, 2e-4, 2e-4)
        while time.monotonic() < stop:
            try:
                while time.monotonic() < stop:
                    with lock.reading():
                        sum(range(20))
                    lock.write(sum, range(20))
            except Interrupted:
                interruptions += 1
    except Interrupted:
        interruptions += 1
    finally:
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
                break
            except Interrupted:
                continue
    assert interruptions > 0
    thread = in_thread(lock.write, max, 1, 2)
    thread.join(WAIT)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_the_lock_free():
    lock, inside, leave = ReadWriteLock(), threading.Event(), threading.Event()

    def hold():
        inside.set()
        leave.wait(WAIT)

    writer = in_thread(lock.write, hold)
    assert inside.wait(WAIT)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(0 if lock.write(max, 1, 2) == 2 else 1)
    leave.set()
    assert os.waitpid(child, 0)[1] == 0
    writer.join(WAIT)


def test_a_copy_is_free():
    lock = ReadWriteLock()
    with lock.reading():
        copy = pickle.loads(pickle.dumps(lock))
    assert copy.write(max, 1, 2) == 2
