import gc
import os
import time
from collections import Counter
from pathlib import Path

import chex
import jax
import pytest
from platformdirs import user_cache_path

from jaxtrpo.runs.compilation_cache import processor

jax.config.update("jax_num_cpu_devices", 2)

# The tests compile for minutes and compute for seconds: without optimising, XLA takes a quarter of the time. With the
# variable set, if only to nothing, they run what users run.
if "XLA_FLAGS" not in os.environ:
    flags = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
    if jax.__version_info__ < (0, 11):  # later ones do not know it, and end the process
        flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join(flags)

# Tracing makes many objects and little garbage, so looking for garbage often costs a tenth of the time.
gc.set_threshold(50_000, 20, 20)

# What is compiled is kept from run to run, for all workers and the processes that tests start, and dropped when nobody
# has asked for it in two weeks.
KEPT_SECONDS = 14 * 24 * 3600
compiled = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(user_cache_path("jaxtrpo") / "tests" / processor()))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
jax.config.update("jax_compilation_cache_dir", compiled)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

# Linux lets a process map 65,530 pieces of memory, XLA takes dozens a program, and ends a process that gets no more.
MAPS = Path("/proc/self/maps")
MANY_MAPS = 30_000
SOME_PROGRAMS = 50  # after which the pieces are counted again, which takes as long as a quick test
COMPILATION = "/jax/core/compile/backend_compile_duration"
EVENTS = Counter[str]()  # of JAX, since the pieces were counted
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: EVENTS.update([event]))


# Seconds of tests that take 0.4 s and longer in a run of all of them, all cases together.
SLOW = dict(reversed(line.split()) for line in Path(__file__).with_name("slow.txt").read_text().splitlines())
SLOW_FIXTURES = {"program", "trained", "whole"}  # of a module, whose seconds count for the test that comes first
OF_FILES = Counter[str]()
for test, taken in SLOW.items():
    OF_FILES[test.partition("::")[0]] += int(taken)


def pytest_collection_modifyitems(items):
    """Marks tests that are known to be slow, and runs the files that take longest first."""
    for item in items:
        if item.nodeid.partition("[")[0] in SLOW or SLOW_FIXTURES & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: -OF_FILES[item.nodeid.partition("::")[0]])


def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):  # pytest-xdist: a worker
        return
    now = time.time()
    for path in Path(compiled).glob("*"):
        if now - max(path.stat().st_atime, path.stat().st_mtime) > KEPT_SECONDS:
            path.unlink(missing_ok=True)


@pytest.fixture(autouse=True, scope="session")
def few_processes():
    """Steps simulators in the process of the test, unless it asks for others, however slow the machine makes them.

    Starting and ending processes takes longer than most tests. Yields what a process costs otherwise, in seconds.
    """
    from jaxtrpo.envs.gymnasium import stepping_plan

    usual = stepping_plan.SECONDS_PER_PROCESS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stepping_plan, "SECONDS_PER_PROCESS", 1.0)
        yield usual


PROGRAMS = {}  # of tests that share them


@pytest.fixture(autouse=True)
def programs(request):
    """Compiles equal runs of tests with the mark `shared_programs` only once (see `support.shared_programs`).

    Other tests may replace what is compiled, so the next one does not get their programs.
    """
    # Here, because jaxtyping must come before what it checks.
    from jaxtrpo.training.programs import forget_programs

    mark = request.node.get_closest_marker("shared_programs")
    if mark is not None and mark.args != (False,):
        from support import shared_programs

        with shared_programs(PROGRAMS):
            yield
    else:
        yield
    forget_programs()


@pytest.fixture(autouse=True)
def few_programs():
    """Drops what has been compiled where there is much of it."""
    yield
    if EVENTS[COMPILATION] < SOME_PROGRAMS:
        return
    EVENTS.clear()
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY_MAPS:
        PROGRAMS.clear()
        jax.clear_caches()
        chex.clear_trace_counter()  # a function that a file has compiled for its tests is traced once more
        gc.collect()
