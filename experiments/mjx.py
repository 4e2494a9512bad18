"""Is MJX the C engine, step by step, and what does it cost on a CPU?

    pip install '.[experiments]' playground
    python experiments/mjx.py [--quick]

64 environments act at random on the C engine. From each state on their way, rounded to float32, MJX takes the same
step. An error is |difference| / (1 + |what the C engine has|), the largest of an observation. Steps a second are those
of 64 environments alone, in a compiled loop on one device. CheetahRun of MuJoCo Playground is stepped by Playground,
and its model by ours. Written to experiments/results/mjx/.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from common.comparison import extent_of, options
from common.loops import Loop, loop
from common.machine import machine, versions
from common.tables import write_csv
from jaxtrpo import MjxEnvironment, MujocoEnvironment, Task
from jaxtrpo.envs.base import EnvState
from jaxtrpo.envs.mujoco.mjx import Simulation
from jaxtrpo.envs.mujoco.mjx_engine import CARRIED
from jaxtrpo.envs.mujoco.tasks import TASKS
from jaxtrpo.envs.registry import make_env
from jaxtrpo.parallel.devices import choose_actors

ENVS, STEPS, LOOP, ROUNDS = 64, 50, 20, 5
QUICK = ("InvertedPendulum-v5", "HalfCheetah-v5")
LONG = ("Pusher-v5", "Humanoid-v4", "Humanoid-v5", "HumanoidStandup-v5")  # compile for minutes
COLUMNS = (
    "env", "median_error", "error_99", "largest_error", "reward_error_99", "same_terminations", "compile_seconds",
    "steps_per_second_c", "steps_per_second_mjx",
)  # fmt: skip


class Errors(NamedTuple):
    """Of every environment at every step."""

    obs: np.ndarray
    reward: np.ndarray
    same_end: np.ndarray


def error(found: Any, expected: Any) -> np.ndarray:
    return np.abs(np.asarray(found) - np.asarray(expected)) / (1 + np.abs(np.asarray(expected)))


def in_mjx(env: MjxEnvironment, state: EnvState) -> EnvState:
    """A state of the C engine as one of MJX."""
    numbers = np.asarray(state.physics).view(np.float64).astype(np.float32)

    def take(name: str, shape: tuple[int, ...]) -> np.ndarray:
        nonlocal numbers
        size = int(np.prod(shape))
        taken, numbers = numbers[:, :size], numbers[:, size:]
        return taken.reshape(len(taken), *shape)

    model = env.model
    sizes = {"time": (), "qpos": (model.nq,), "qvel": (model.nv,), "act": (model.na,), "qacc_warmstart": (model.nv,)}
    carried = {name: take(name, sizes[name]) for name in CARRIED if name != "act" or model.na}
    before = {name: take(name, env.layout.shapes[name]) for name in env.task.changes}
    return state._replace(physics=Simulation(carried, before))


def compare(theirs: MujocoEnvironment, ours: MjxEnvironment) -> Errors:
    """Steps of both from the same states."""
    their_step, our_step, rng, found = jax.jit(theirs.step), jax.jit(ours.step), np.random.default_rng(0), []
    state = jax.jit(theirs.reset, static_argnums=1)(jax.random.PRNGKey(0), ENVS)
    for _ in range(STEPS):
        action = rng.uniform(theirs.action_low, theirs.action_high, (ENVS, theirs.action_size)).astype(np.float32)
        mine, state = our_step(in_mjx(ours, state), action), their_step(state, action)
        obs = error(mine.final_obs, state.final_obs).max(axis=1)
        found.append((obs, error(mine.reward, state.reward), np.asarray(mine.terminated == state.terminated)))
    return Errors(*map(np.array, zip(*found, strict=True)))


def in_turns(*loops: Loop) -> list[float]:
    """Median steps a second of each."""
    found = np.array([[one.steps_per_second() for one in loops] for _ in range(ROUNDS)])
    return np.median(found, axis=0).tolist()


def of_tasks(names: Iterator[str]) -> Iterator[tuple[Any, ...]]:
    """A row of numbers for each task."""
    for name in names:
        theirs, ours = MujocoEnvironment(TASKS[name]()), MjxEnvironment(TASKS[name]())
        errors, slow = compare(theirs, ours), loop(ours, ENVS, LOOP)
        speeds = in_turns(loop(theirs, ENVS, LOOP), slow)
        quantiles = np.median(errors.obs), np.quantile(errors.obs, 0.99), errors.obs.max()
        reward = np.quantile(errors.reward, 0.99)
        yield (name, *quantiles, reward, errors.same_end.mean(), slow.compile_seconds, *speeds)


def beside_playground() -> str:
    """Playground's own stepping, and ours of the same model."""
    if importlib.util.find_spec("mujoco_playground") is None:
        return "MuJoCo Playground is not installed."
    theirs = make_env("playground:CheetahRun")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cheetah.xml"
        mujoco.mj_saveLastXML(str(path), theirs.env.mj_model)
        task = Task(
            name="CheetahRun",
            xml=str(path),
            frame_skip=theirs.env.n_substeps,
            episode_length=1_000,
            initial_state=lambda key, model: (jnp.asarray(model.qpos0, jnp.float32), jnp.zeros(model.nv)),
            observation=lambda model, data: jnp.concatenate([data.qpos[1:], data.qvel]),
            reward=lambda model, data, action: data.qvel[0],
        )
        ours, playground = in_turns(*(loop(env, ENVS, LOOP) for env in (MjxEnvironment(task), theirs)))
    return (
        f"CheetahRun, the same model: {ours:,.0f} steps/s by `mjx:`, {playground:,.0f} by `playground:` "
        f"({versions(('playground',))}), {ours / playground:.2f} times as many."
    )


def main() -> None:
    arguments = options(__doc__).parse_args()
    folder = extent_of("mjx", (), quick=arguments.quick).folder
    choose_actors(1, program=True)
    lines = [
        "# Is MJX the C engine, and what does it cost on a CPU?",
        "",
        f"`python experiments/mjx.py` on {machine()}, {versions(('mujoco-mjx',))}. {ENVS} environments, {STEPS} steps, "
        "each from the same state on both; errors of observations and rewards relative to 1 + |value|.",
        "",
        "| task | median error | 99 % | largest | reward, 99 % | same ends | C steps/s | MJX steps/s (compiling) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = []
    for row in of_tasks(iter(QUICK if arguments.quick else [name for name in TASKS if name not in LONG])):
        name, *errors, same, compiling, fast, slow = row
        cells = " | ".join(f"{number:.0e}" for number in errors)
        lines.append(f"| {name} | {cells} | {same:.2%} | {fast:,.0f} | {slow:,.0f} ({compiling:.0f} s) |")
        rows.append([name, *(f"{number:.4g}" for number in row[1:])])
        print(lines[-1], flush=True)
    lines += ["", f"Not compared, since they compile for minutes: {', '.join(LONG)}.", "", beside_playground()]
    write_csv(folder / "steps.csv", COLUMNS, rows)
    (folder / "README.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
