"""Processes that do one thing together: what they tell each other beside JAX, and how they notice that one is gone.

JAX ends a process whose coordinator is gone, or that cannot reach it, from inside of its runtime, with a stack trace;
and a process that waits for another in a compiled function waits for ever. So the processes know each other before JAX
does: each holds a connection to the first one, over which messages go as lines of JSON, and a thread watches it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from jaxtrpo.parallel.connections import Line

# What `jaxtrpo launch` says to the processes that it starts, and whoever starts them by hand.
ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
FAILED = 1  # exit code
WELL = "has ended"
BEAT_SECONDS = 1.0  # between signs of life
SILENT_SECONDS = 20.0  # without one: the process or its machine is gone, or has stopped
END_SECONDS = 10.0  # from the first to the last one's end
# The others wait for it in a compiled function, and it does not come. What is compiled before they first meet may take
# longer in one than in another.
LATE_SECONDS, FIRST_LATE_SECONDS = 45.0, 600.0


class Place(NamedTuple):
    """Where a process stands among those that a launcher started."""

    address: str  # HOST:PORT of the first one, which listens there
    count: int  # of processes
    index: int  # of this one


class Group:
    """The processes, seen by one of them."""

    def __init__(self, place: Place, timeout: float):
        """Waits until all are connected.

        Raises:
          ConnectionError: the first cannot be reached, or others do not come in time; one sentence.
        """
        self.place = place
        self._host, port = place.address.rsplit(":", 1)
        self._lines: dict[int, Line] = {}
        self._answers: queue.Queue[Any] = queue.Queue()
        self._lock = threading.Lock()
        self._said: dict[int, dict[int, Any]] = {}  # by exchange and process, where this one is the first
        self._exchanges = 0
        self._turn, self._busy, self._what_then = 0, False, None  # what follows if another is lost; None: nothing now
        self._lost: str | None = None
        self._left = False  # whether this process has ended what all did together
        self._closed, self._cut = threading.Event(), threading.Event()  # this process ends; a connection has ended
        connect = self._wait_for_others if place.index == 0 else self._go_to_first
        connect(int(port), timeout)
        for number, line in self._lines.items():
            threading.Thread(target=self._read, args=(number, line), daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def exchange(self, thing: Any, timeout: float | None) -> list[Any]:
        """What every process says, in order; each says something, which JSON must be able to hold.

        Raises:
          ConnectionError: one says nothing for `timeout` seconds, or is gone.
        """
        self._exchanges += 1
        self._tell(self.place.index, {"say": self._exchanges, "thing": thing})
        try:
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise ConnectionError(f"not all {self.place.count} processes said something in {timeout:.0f} s") from None
        if isinstance(answer, str):
            raise ConnectionError(answer)
        return answer

    @contextlib.contextmanager
    def together(self, what_then: str) -> Iterator[None]:
        """While it lasts, this process ends with a sentence if another is gone; `what_then` ends the sentence.

        Raises:
          Exception: what is raised inside, if no other process is the cause; the others are told.
        """
        self._what_then = what_then
        if self._lost is not None:
            self._end(self._lost)
        try:
            yield
            self._wait_for_all()
        except SystemExit:  # which all have agreed on
            self._wait_for_all()
            raise
        except (Exception, KeyboardInterrupt) as error:
            # That another is gone may show first as an error of a meeting; `_watch` then ends this process.
            if _is_of_a_meeting(error):
                time.sleep(SILENT_SECONDS + 5 * BEAT_SECONDS)
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self._left, self._what_then = True, None  # first: the others will tell this one, too, that it is gone
            self._tell_all({"gone": self.place.index, "why": f"ended by {why}"})
            raise
        finally:
            self._what_then = None

    def _wait_for_all(self) -> None:
        self.exchange("done", timeout=None)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """While it lasts, the others have to wait for this process as long as it takes."""
        self._busy = True
        self._beat()
        try:
            yield
        finally:
            self._busy = False
            self._beat()

    def turn(self) -> None:
        """This process goes to where all meet, the first, second, ... time."""
        self._turn += 1

    def close(self) -> None:
        """Tells the others that this process has ended; ends it at once if it has left them while they go on."""
        if self._left:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(FAILED)
        self._tell_all({"gone": self.place.index, "why": WELL})
        self._closed.set()

    def end_without_others(self) -> None:
        """Ends a process that was closed and for which others did not wait; JAX would wait for them.

        Runs in a thread of its own, from the beginning: a process that ends can start none. What all did together is
        done and saved by then.
        """
        self._closed.wait()
        self._cut.wait()
        time.sleep(END_SECONDS)
        print("jaxtrpo: other processes did not wait for the end of this one", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(0)

    # Connecting.

    def _wait_for_others(self, port: int, timeout: float) -> None:
        what = f"coordinator {self.place.address}"
        try:
            server = socket.create_server(("", port))
        except OSError as error:
            raise ConnectionError(f"{what}: process 0 cannot listen there: {error.strerror or error}") from error
        end = time.monotonic() + timeout
        with server:
            while len(self._lines) < self.place.count - 1:
                server.settimeout(max(end - time.monotonic(), 0.001))
                try:
                    line = Line(server.accept()[0])
                    index, count = line.hello()
                except TimeoutError:
                    for line in self._lines.values():
                        line.close()
                    missing = sorted(set(range(1, self.place.count)) - self._lines.keys())
                    raise ConnectionError(
                        f"{what}: of {self.place.count} processes, {', '.join(map(str, missing))} did not come within "
                        f"{timeout:.0f} s"
                    ) from None
                except (OSError, ValueError, TypeError):
                    continue  # nobody of ours
                if count != self.place.count or index in self._lines or not 0 < index < count:
                    line.send({"no": f"is number {index} of {count}, and process 0 waits for {self.place.count}"})
                    line.close()
                    continue
                self._lines[index] = line
        self._tell_all({"yes": True})

    def _go_to_first(self, port: int, timeout: float) -> None:
        what = f"coordinator {self.place.address}"
        end, why = time.monotonic() + timeout, ""
        while time.monotonic() < end:
            line = None
            try:
                line = Line(socket.create_connection((self._host, port), max(end - time.monotonic(), 0.001)))
                line.send({"index": self.place.index, "count": self.place.count})
                answer = line.receive(max(end - time.monotonic(), 0.001))
            except (OSError, ValueError) as error:
                why = f": {getattr(error, 'strerror', None) or error}"
                if line is not None:
                    line.close()
                time.sleep(0.1)  # it may not listen yet
                continue
            if "no" in answer:
                line.close()
                raise ConnectionError(f"{what}: this process {answer['no']}")
            self._lines[0] = line
            return
        raise ConnectionError(f"{what} could not be reached within {timeout:.0f} s{why}")

    # Talking.

    def _tell(self, index: int, message: dict[str, Any]) -> None:
        """To the first process, as this one."""
        if self.place.index == 0:
            self._take(index, message)
        else:
            self._lines[0].send(message)

    def _tell_all(self, message: dict[str, Any]) -> None:
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.send(message)

    def _read(self, index: int, line: Line) -> None:
        """A thread for every connection."""
        try:
            while True:
                self._take(index, line.receive(None))
        except (OSError, ValueError):
            self._cut.set()
            self._is_gone(index, "is gone")

    def _take(self, index: int, message: dict[str, Any]) -> None:
        if "say" in message:
            with self._lock:
                said = self._said.setdefault(message["say"], {})
                said[index] = message["thing"]
                whole = len(said) == self.place.count
            if whole:
                everyone = [said[number] for number in sorted(self._said.pop(message["say"]))]
                self._answers.put(everyone)
                self._tell_all({"everyone": everyone})
        elif "everyone" in message:
            self._answers.put(message["everyone"])
        elif "gone" in message:
            self._is_gone(message["gone"], message["why"])
        elif index in self._lines:
            self._lines[index].heard(message["turn"], message["busy"])

    # Watching.

    def _beat(self) -> None:
        self._tell_all({"turn": self._turn, "busy": self._busy})

    def _watch(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(BEAT_SECONDS)
            now = time.monotonic()
            if now - last > 5 * BEAT_SECONDS:  # this process was stopped, and maybe all were
                for line in self._lines.values():
                    line.last_heard = now
            last = now
            self._beat()
            for index, line in self._lines.items():
                if now - line.last_heard > SILENT_SECONDS:
                    self._is_gone(index, f"has given no sign of life for {SILENT_SECONDS:.0f} s")
            self._look_for_late(now)

    def _look_for_late(self, now: float) -> None:
        """Those that others wait for; the first process sees all."""
        most = max(self._turn, *(line.turn for line in self._lines.values()))
        for index, line in self._lines.items():
            if line.turn >= most or line.busy or self._what_then is None:
                line.behind_since = now
            limit = LATE_SECONDS if line.turn else FIRST_LATE_SECONDS
            if now - line.behind_since > limit:
                self._is_gone(index, f"has not come to where the others wait for it for {limit:.0f} s")

    def _is_gone(self, index: int, why: str) -> None:
        with self._lock:
            if self._lost is not None:
                return
            self._lost = f"process {index} of {self.place.count} {why}"
        if self.place.index == 0:  # the others know only this process
            self._tell_all({"gone": index, "why": why})
        self._answers.put(self._lost)
        if self._what_then is not None and why != WELL:  # all have come to the end, and one was faster
            self._end(self._lost)

    def _end(self, why: str) -> NoReturn:
        # The main thread may wait for ever in a compiled function, where no exception reaches it.
        print(f"jaxtrpo: error: {why}{self._what_then}", file=sys.stderr, flush=True)
        os._exit(FAILED)


def _is_of_a_meeting(error: BaseException) -> bool:
    """Whether JAX may have raised this because another process is gone: where it calls what is compiled, or compiles.

    What its runtime raises becomes a `ValueError` where `jax.jit` takes its fast path.
    """
    return type(error).__name__ == "JaxRuntimeError" or (isinstance(error, ValueError) and "Gloo" in str(error))
