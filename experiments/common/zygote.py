"""Starts processes from one that has imported everything, as `python zygote.py`: each takes a fraction of a second.

Writes the processor seconds of these imports. Then reads lines of JSON, a list of words of the command or the text of a
program, and writes two lines for each: the id of the process; its exit code and processor seconds. Output of the
processes goes to the file that is the only argument.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings

import jaxtrpo.cli.main
import jaxtrpo.rollout.evaluation
import jaxtrpo.runs.policy_file
import jaxtrpo.training.train
import jaxtrpo.training.train_many  # noqa: F401

warnings.filterwarnings("ignore", "os.fork")  # JAX has no threads yet
work: list[str] | str = []
print(time.process_time(), flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        work = json.loads(line)
        break
    print(child, flush=True)
    _, status, used = os.wait4(child, 0)
    print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, flush=True)
else:
    os._exit(0)

output = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for stream in (0, 1, 2):
    os.dup2(os.open(os.devnull, os.O_RDONLY) if stream == 0 else output, stream)
signal.signal(signal.SIGINT, signal.default_int_handler)
if isinstance(work, str):
    exec(work, {"__name__": "__main__"})
else:
    sys.argv[1:] = work
    jaxtrpo.cli.main.command()
