import gc
import os
import tempfile
from pathlib import Path

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 2)

# The tests compile for minutes and compute for seconds: without optimising, XLA takes a quarter of the time. With the
# variable set, if only to nothing, they run what users run.
if "XLA_FLAGS" not in os.environ:
    flags = ["--xla_backend_optimization_level=0"]
    if jax.__version_info__ < (0, 11):  # later ones do not know it, and end the process
        flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join(flags)

# Many tests start the same training: it is compiled once; and once for all, where JAX_COMPILATION_CACHE_DIR says where.
compiled = tempfile.TemporaryDirectory(prefix="jaxtrpo-tests-")
jax.config.update("jax_compilation_cache_dir", jax.config.jax_compilation_cache_dir or compiled.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

# Linux lets a process map 65,530 pieces of memory, XLA takes dozens a program, and ends a process that gets no more.
MAPS = Path("/proc/self/maps")
MANY_MAPS = 30_000


def pytest_unconfigure():
    compiled.cleanup()


@pytest.fixture(autouse=True)
def few_programs():
    """Drops what has been compiled where there is much of it."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY_MAPS:
        jax.clear_caches()
        gc.collect()
