"""What processes tell each other beside JAX: here they are threads of one."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from jaxtrpo.parallel import group as module
from jaxtrpo.parallel.connections import free_port
from jaxtrpo.parallel.group import Group, Place


def free_address() -> str:
    return f"127.0.0.1:{free_port('127.0.0.1')}"


def keep(group: Group) -> Group:
    made.append(group)
    return group


made: list[Group] = []
# A reader that finds its socket closed has nobody left to tell.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture(autouse=True)
def closed():
    yield
    for group in made:
        for line in group._lines.values():
            line.close()
    made.clear()


def meet(count: int) -> list[Group]:
    address = free_address()
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda index: keep(Group(Place(address, count, index), 10.0)), range(count)))


@pytest.fixture
def ended(monkeypatch):
    """What a process would have said at its end; threads go on, but say nothing more."""
    said: list[str] = []

    def end(self, why):
        said.append(why + self._what_then)
        self._what_then = None

    monkeypatch.setattr(Group, "_end", end)
    return said


def wait_for(condition, seconds: float = 5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_everyone_hears_what_everyone_says_in_the_order_of_their_numbers():
    groups = meet(3)
    with ThreadPoolExecutor(3) as pool:
        for turn in range(20):
            heard = list(pool.map(lambda one, turn=turn: one.exchange([one.place.index, turn], 10.0), groups))
            assert heard == [[[0, turn], [1, turn], [2, turn]]] * 3


def test_a_coordinator_that_is_not_there_is_named_with_the_time_that_was_waited():
    address = free_address()
    with pytest.raises(ConnectionError, match=rf"coordinator {address} could not be reached within 1 s: .*refused"):
        Group(Place(address, 2, 1), 1.0)


def test_processes_that_do_not_come_are_named():
    address = free_address()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(Group, Place(address, 4, 0), 1.0)
        second = pool.submit(Group, Place(address, 4, 2), 1.2)
        with pytest.raises(
            ConnectionError, match=f"coordinator {address}: of 4 processes, 1, 3 did not come within 1 s"
        ):
            first.result()
        with pytest.raises(
            ConnectionError, match="could not be reached within 1 s: (the connection was closed|.*refused)"
        ):
            second.result()


def test_one_of_another_training_is_turned_away():
    address = free_address()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(Group, Place(address, 2, 0), 10.0)
        with pytest.raises(ConnectionError, match="this process is number 1 of 3, and process 0 waits for 2"):
            Group(Place(address, 3, 1), 10.0)
        right = pool.submit(Group, Place(address, 2, 1), 10.0)
        assert keep(first.result()).place.index == 0 and keep(right.result()).place.index == 1


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"coordinator {address}: process 0 cannot listen there"):
            Group(Place(address, 2, 0), 1.0)


def test_who_is_gone_ends_the_others_while_they_are_together_and_only_then(ended):
    groups = meet(3)
    groups[2]._lines[0]._connection.shutdown(socket.SHUT_RDWR)  # as the kernel does for a process that is killed
    time.sleep(0.2)
    assert not ended
    with pytest.raises(ConnectionError, match="process 2 of 3 is gone"):
        groups[1].exchange("anything", 10.0)

    groups = meet(3)
    inside = threading.Event()

    def work(group):
        with group.together("; and so on"):
            inside.wait()

    threads = [threading.Thread(target=work, args=(one,), daemon=True) for one in groups[:2]]
    for thread in threads:
        thread.start()
    groups[2]._lines[0]._connection.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: len(ended) == 2)
    assert ended == ["process 2 of 3 is gone; and so on"] * 2
    inside.set()


def test_who_gives_no_sign_of_life_is_gone(ended, monkeypatch):
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(Group, "_beat", lambda self: None)  # connections stay, as those of a machine that stopped
    groups = meet(2)
    with pytest.raises(ConnectionError, match="process [01] of 2 has given no sign of life for"):
        groups[1].exchange("anything", 10.0)


def test_only_who_falls_silent_is_gone(ended, monkeypatch):
    """Fails if signs of life do not count, or if nobody looks for them."""
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.5)
    groups = meet(3)
    time.sleep(1.5)
    assert [group._lost for group in groups] == [None] * 3
    groups[2]._beat = lambda: None
    groups[0]._what_then = groups[1]._what_then = "."
    wait_for(lambda: len(ended) == 2)
    assert ended == ["process 2 of 3 has given no sign of life for 0 s."] * 2


def test_nobody_is_gone_after_all_were_stopped(ended, monkeypatch):
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.5)
    groups, running = meet(2), [threading.Event(), threading.Event()]
    for group, event in zip(groups, running, strict=True):
        group._beat = lambda beat=group._beat, event=event: (event.wait(), beat())
    time.sleep(1.0)
    running[0].set()
    time.sleep(0.3)  # the first goes on, and has to wait as long as ever for the second
    running[1].set()
    time.sleep(0.3)
    assert [group._lost for group in groups] == [None] * 2


def test_who_has_ended_well_ends_nobody(ended):
    first, second = meet(2)
    first._what_then = "."
    second.close()
    with pytest.raises(ConnectionError, match="process 1 of 2 has ended"):
        first.exchange("anything", 10.0)
    assert not ended


def test_who_does_not_come_to_where_the_others_wait_is_gone_unless_it_said_that_it_is_busy(ended, monkeypatch):
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(module, "LATE_SECONDS", 0.4)
    first, second = meet(2)
    first._what_then = second._what_then = "."
    for _ in range(20):  # in step
        first.turn(), second.turn()
        time.sleep(0.02)
    assert not ended
    with first.busy():
        second.turn()
        time.sleep(0.8)
    assert not ended
    first.turn()
    time.sleep(0.1)
    first.turn()  # and now the second does not come
    wait_for(lambda: ended)
    assert "process 1 of 2 has not come to where the others wait for it for 0 s" in ended[0]


def test_an_error_of_one_is_told_to_the_others(ended):
    first, second = meet(2)
    second._what_then = "."
    with pytest.raises(OSError, match="full"), first.together("."):
        raise OSError("the disk is full")
    wait_for(lambda: ended)
    assert ended == ["process 0 of 2 ended by OSError: the disk is full."]


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError("FAILED_PRECONDITION: Buffer Definition Event: Gloo all-reduce failed"),
        ValueError("UNKNOWN: Gloo AllGather failed: Read error [127.0.0.1]:22433: Connection reset by peer"),
    ],
)
def test_an_error_of_a_meeting_may_come_before_it_is_known_that_another_is_gone(ended, monkeypatch, error):
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.5)
    first, second = meet(2)

    def work():
        with contextlib.suppress(type(error)), first.together("."):
            raise error

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    second._lines[0]._connection.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert ended == ["process 1 of 2 is gone."]


def test_all_wait_for_each_other_at_the_end(ended):
    groups = meet(2)
    over = []

    def work(group, seconds):
        with group.together("."):
            time.sleep(seconds)
        over.append(time.monotonic())
        group.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, groups, (0.0, 0.5)))
    assert abs(over[0] - over[1]) < 0.3 and not ended
