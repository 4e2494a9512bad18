"""Speed: collecting against the raw limit of the physics, two actors against one, and the time to the first update.

    python experiments/benchmark.py [--quick]

Each figure is a ratio of things timed alternately in one process; the medians of several rounds are written to
experiments/results/benchmark/README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jaxtrpo.actors import Actors, choose_actors

ACTORS = choose_actors()  # before anything starts JAX

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import mujoco.batch  # noqa: E402
import numpy as np  # noqa: E402

from common.machine import machine  # noqa: E402
from jaxtrpo.collect import make_collect, start_actors  # noqa: E402
from jaxtrpo.envs.registry import make_env  # noqa: E402
from jaxtrpo.ops.moments import no_moments  # noqa: E402
from jaxtrpo.policies.distributions import stretch  # noqa: E402
from jaxtrpo.policies.networks import gaussian_policy  # noqa: E402
from jaxtrpo.types import LearnerState  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "benchmark"
SEGMENT_LENGTH = 16


class Collecting:
    """A policy that collects on some actors, with what it takes to repeat its physics outside of JAX."""

    def __init__(self, name: str, actors: Actors, envs_per_actor: int, segments: int):
        self.env, self.actors, self.segments = make_env(name), actors, segments
        self.num_envs = envs_per_actor * actors.count
        self.steps = segments * SEGMENT_LENGTH * self.num_envs
        policy = gaussian_policy(self.env.observation_size, self.env.action_size)
        key = jax.random.PRNGKey(0)
        learner = LearnerState(policy.init(key), (), no_moments((self.env.observation_size,)), ())
        self.learner = actors.replicate(learner)
        self.num_segments = actors.replicate(jnp.int32(segments))
        collect = make_collect(self.env, policy, segment_length=SEGMENT_LENGTH, max_segments=segments)
        self.collect = actors.map(collect)
        self.state = actors.split_envs(jax.jit(start_actors, static_argnums=(0, 2))(self.env, key, self.num_envs))
        self.run()  # compiles

    def run(self) -> float:
        """Collects once; seconds."""
        self.before = self.state
        start = time.perf_counter()
        self.state, self.batch = jax.block_until_ready(self.collect(self.state, self.learner, self.num_segments))
        return time.perf_counter() - start

    def raw(self, simulations: mujoco.batch.Batch) -> float:
        """The same number of simulations through the actions just taken, from the same states; seconds."""
        env, layout = self.env, self.env.physics.layout

        def by_time(
            leaf: jax.Array,
        ) -> np.ndarray:  # [actor, segment, time, env, ...] -> [step, env of all actors, ...]
            leaf = np.moveaxis(np.asarray(leaf), 0, 2)
            return leaf.reshape(self.segments * SEGMENT_LENGTH, self.num_envs, *leaf.shape[4:])

        steps = self.batch.steps
        controls = np.asarray(stretch(by_time(steps.action), env.action_low, env.action_high), np.float64)
        done = by_time(steps.terminated | steps.truncated)
        rows = np.asarray(self.before.env.physics).reshape(self.num_envs, -1).view(np.float64)
        start = 0
        for part in layout.carried:
            simulations.state[:, part] = rows[:, start : start + part.stop - part.start]
            start += part.stop - part.start
        first = simulations.state.copy()
        begin = time.perf_counter()
        for control, over in zip(controls, done, strict=True):
            simulations.state[:, layout.control] = control
            simulations.step(nstep=env.task.frame_skip)
            if over.any():  # where our episode ended, this one starts again as well
                simulations.state[over] = first[over]
        return time.perf_counter() - begin


def collecting_ratio(name: str, envs_per_actor: int, *, seconds: float, rounds: int) -> dict:
    """Steps/s of all actors over those of the raw limit."""
    collecting = Collecting(name, ACTORS, envs_per_actor, 2)
    target = max(2, round(2 * seconds / collecting.run()))
    collecting = Collecting(name, ACTORS, envs_per_actor, min(target, 200))
    simulations = mujoco.batch.Batch(collecting.env.model, collecting.num_envs, ACTORS.count)
    ours, limit = [], []
    for _ in range(rounds):
        ours.append(collecting.run())
        limit.append(collecting.raw(simulations))
    ratio = statistics.median(raw / mine for raw, mine in zip(limit, ours, strict=True))
    return {
        "what": f"collecting {name}, {envs_per_actor} environments an actor",
        "ratio": ratio,
        "detail": f"{collecting.steps / statistics.median(ours):,.0f} of "
        f"{collecting.steps / statistics.median(limit):,.0f} steps/s",
    }


def actor_ratio(name: str, envs_per_actor: int, *, rounds: int) -> dict:
    """Steps/s of two actors over those of one."""
    one = Collecting(name, Actors(ACTORS.devices[:1]), envs_per_actor, 20)
    two = Collecting(name, Actors(ACTORS.devices[:2]), envs_per_actor, 20)
    times = [(one.run(), two.run()) for _ in range(rounds)]
    ratio = statistics.median(2 * a / b for a, b in times)
    return {"what": f"two actors over one, {name}, {envs_per_actor} environments each", "ratio": ratio, "detail": ""}


def startup_seconds(*, rounds: int) -> list[dict]:
    """From typing the command to the first finished update, with an empty and with a filled compilation cache."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}

        def first_update(out: str) -> float:
            command = [sys.executable, "-m", "jaxtrpo", "train", "HalfCheetah-v5", "--out", out, "--quiet"]
            begin = time.perf_counter()
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
            metrics = Path(out) / "metrics.csv"
            while not (metrics.exists() and metrics.read_text().count("\n") > 1):
                if process.poll() is not None:
                    raise RuntimeError("the training command ended before its first update")
                time.sleep(0.01)
            elapsed = time.perf_counter() - begin
            process.kill()
            process.wait()
            return elapsed

        found.append({"what": "first update, cold", "seconds": first_update(f"{folder}/cold")})
        warm = [first_update(f"{folder}/warm{i}") for i in range(rounds)]
        found.append({"what": "first update, warm compilation cache", "seconds": statistics.median(warm)})
    return found


def report(rows: list[dict]) -> str:
    """The table, and the machine it was made on."""
    lines = [
        "# Speed",
        "",
        f"`python experiments/benchmark.py` on {machine()}. Medians of alternating rounds.",
        "",
        "| figure | measured | |",
        "| --- | --- | --- |",
    ]
    for row in rows:
        value = f"{row['ratio']:.2f}" if "ratio" in row else f"{row['seconds']:.1f} s"
        lines.append(f"| {row['what']} | {value} | {row.get('detail', '')} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short rounds, nothing is written")
    quick = parser.parse_args().quick
    rounds, seconds = (2, 0.3) if quick else (9, 1.5)
    rows = [
        collecting_ratio(name, envs, seconds=seconds, rounds=rounds)
        for name, envs in [
            ("HalfCheetah-v5", 64),
            ("HalfCheetah-v5", 16),
            ("Humanoid-v5", 64),
            ("Reacher-v5", 64),
        ]
    ]
    if ACTORS.count > 1:
        rows.append(actor_ratio("HalfCheetah-v5", 64, rounds=rounds))
    rows += startup_seconds(rounds=1 if quick else 5)
    text = report(rows)
    print(text)
    if not quick:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "README.md").write_text(text)


if __name__ == "__main__":
    main()
