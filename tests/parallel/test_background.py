"""Threads of ours, and the end of the process."""

from __future__ import annotations

import subprocess
import sys
import threading

from jaxtrpo.parallel.background import IN_BACKGROUND, in_background, is_busy


def output_of(program: str) -> str:
    words = [sys.executable, "-c", f"import time\nfrom jaxtrpo.parallel import background\n{program}"]
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout


def test_the_end_of_a_process_waits_for_a_call_in_background():
    """JAX's compiler asks for the interpreter's lock every few seconds, and Python aborts who asks while it ends."""
    assert output_of("background.in_background(lambda: (time.sleep(1), print('done', flush=True)))") == "done\n"


def test_a_call_that_hangs_does_not_keep_the_process():
    hangs = "background.in_background(lambda: (time.sleep(20), print('done', flush=True)))"
    assert output_of(f"background.EXIT_SECONDS = 0.5\n{hangs}\nprint(background.is_busy())") == "True\n"


def test_result_and_error_of_a_call_are_those_of_the_function():
    assert in_background(divmod, 7, 2).result() == (3, 1)
    assert isinstance(in_background(divmod, 7, 0).exception(), ZeroDivisionError)
    for thread in threading.enumerate():
        if thread.name == IN_BACKGROUND:
            thread.join()
    assert not is_busy()
