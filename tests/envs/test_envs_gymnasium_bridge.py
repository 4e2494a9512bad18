"""Gymnasium environments behind the environment protocol match Gymnasium stepped by plain Python loops."""

import contextlib
import functools
import gc
import importlib
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback
import warnings
import zlib
from types import ModuleType

import counting_env
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from support import actors

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.envs import base
from jaxtrpo.envs.abilities import masks_actions, require_working
from jaxtrpo.envs.gymnasium.environment import GymnasiumEnvironment
from jaxtrpo.envs.gymnasium.errors import SimulatorError
from jaxtrpo.envs.gymnasium.make import make_gymnasium_env
from jaxtrpo.envs.gymnasium.spec import calls_jax, uses_jax
from jaxtrpo.envs.registry import environment_for, make_env
from jaxtrpo.parallel.machine import available_cores
from jaxtrpo.training.train import prepare

# Box2D's SWIG bindings crash if this warning is an error.
pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute:DeprecationWarning")
KEY = jax.random.PRNGKey(3)
UNLIMITED = 2**31 - 1


@pytest.fixture
def make():
    """Creates environments that are closed after the test."""
    with contextlib.ExitStack() as stack:

        def made(source, **options) -> GymnasiumEnvironment:
            env = make_env(source, **options)
            stack.callback(env.close)
            return env

        yield made


@pytest.fixture(autouse=True)
def no_process_remains():
    before = children()
    yield
    if children() != before:  # otherwise nothing is collected, which takes half a second
        gc.collect()
    assert children() == before


def children() -> set[int]:
    """Returns the ids of child processes, including zombies."""
    found = pathlib.Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(number) for path in found for number in path.read_text().split()}


def start(env, num_envs: int) -> base.EnvState:
    return jax.jit(lambda key: env.reset(key, num_envs))(KEY)


def play(env, actions: np.ndarray, *, count: int = 1, hint=None) -> base.EnvState:
    """Returns the states `[time, env, ...]` after each of `actions` [time, env, action], taken by `count` actors."""
    many = actors(count)
    hints = np.full(actions.shape[:2], -1, np.int32) if hint is None else hint
    state, *rest = many.split_envs((start(env, actions.shape[1]), actions.swapaxes(0, 1), hints.swapaxes(0, 1)))

    def run(state, actions, hints):
        def one(state, now):
            action, hint = now
            after = env.step(state._replace(elapsed=jnp.where(hint >= 0, hint, state.elapsed)), action)
            return after, after

        return jax.lax.scan(one, state, (actions.swapaxes(0, 1), hints.swapaxes(0, 1)))[1]

    states = jax.device_get(many.map(run)(state, *rest))  # [actor, time, env, ...]
    return jax.tree.map(lambda leaf: np.concatenate(leaf, axis=1), states)


def random_actions(env, steps: int, num_envs: int) -> np.ndarray:
    rng, shape = np.random.default_rng(0), (steps, num_envs, env.action_size)
    if env.action_counts:
        return rng.integers(0, env.action_counts, shape).astype(np.int32)
    return rng.uniform(env.action_low, env.action_high, shape).astype(np.float32)


def seeds(num_envs: int) -> list[int]:
    return [int(key[1]) & 0x7FFFFFFF for key in np.asarray(base.env_keys(KEY, num_envs))]


def expected(make_one, seeds, actions, limit=UNLIMITED, *, next_step=False, end=None) -> dict[str, np.ndarray]:
    """Returns the transitions of a plain loop; with `next_step` a reset takes a step of its own."""
    names = ("obs", "final_obs", "reward", "terminated", "truncated", "invalid", "elapsed")
    steps = {name: [[None] * len(seeds) for _ in actions] for name in names}
    for i, seed in enumerate(seeds):
        env = make_one()
        obs, elapsed, over = np.array(env.reset(seed=seed)[0]), 0, False
        for t in range(len(actions)):
            if over:
                before, obs = obs, np.array(env.reset()[0])
                row, over = (obs, before, 0.0, False, True, True, 0), False
            else:
                final, reward, terminated, truncated, _ = env.step(actions[t, i])
                final, elapsed = np.array(final), elapsed + 1
                truncated = truncated or elapsed >= limit or (end is not None and end[t, i])
                over = terminated or truncated
                elapsed = 0 if over else elapsed
                obs = np.array(env.reset()[0]) if over and not next_step else final
                over = over and next_step
                row = (obs, final, reward, terminated, truncated and not terminated, False, elapsed)
            for name, value in zip(names, row, strict=True):
                steps[name][t][i] = value
        env.close()
    return {name: np.array(values) for name, values in steps.items()}


def assert_equal_steps(states: base.EnvState, wanted: dict[str, np.ndarray]) -> None:
    for name, values in wanted.items():
        np.testing.assert_allclose(getattr(states, name), values, rtol=1e-6, err_msg=name)


# ---- every transition ----


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("processes", [0, 1, 3])
def test_single_simulators_match_plain_loop(make, processes, count):
    env = make(counting_env.CountingEnv, processes=processes, groups=count)
    actions = random_actions(env, 25, 4)
    states = play(env, actions, count=count)
    assert_equal_steps(states, expected(counting_env.CountingEnv, seeds(4), actions))
    assert states.terminated.any() and states.truncated.any()


@pytest.mark.parametrize(
    ("name", "processes"),
    [
        ("CountingNextStep-v0", 0),
        ("EarningNextStep-v0", 0),
        ("CountingSameStep-v0", 0),
        ("CountingDisabled-v0", 0),
        ("CountingNextStep-v0", 1),
        ("CountingDisabled-v0", 2),
    ],
)
def test_vector_environments_match_plain_loop(make, name, processes):
    """A step that only resets has reward 0 and does not terminate, even if the environment says otherwise."""
    env = make(name, groups=2, processes=processes)
    actions = random_actions(env, 25, 4)
    first = seeds(4)
    wanted = expected(
        counting_env.CountingEnv,
        [first[0], first[0] + 1, first[2], first[2] + 1],  # a vector environment has one seed
        actions,
        next_step="NextStep" in name,
    )
    assert_equal_steps(play(env, actions, count=2), wanted)
    assert_equal_steps(play(env, actions, count=1), wanted)
    assert_equal_steps(play(make(name, groups=1, processes=processes), actions), wanted)  # one actor collects the same
    assert wanted["invalid"].any() == ("NextStep" in name)


@pytest.mark.parametrize("processes", [0, 2])
def test_registered_time_limit_truncates(make, processes):
    env = make("Lasting-v0", processes=processes)
    assert env.episode_length == 4
    actions = random_actions(env, 10, 2)
    states = play(env, actions)
    assert_equal_steps(states, expected(lambda: counting_env.CountingEnv(lasts=True), seeds(2), actions, limit=4))
    np.testing.assert_array_equal(np.flatnonzero(states.truncated[:, 0]), [3, 7])


def test_time_limit_of_wrapper_is_detected(make):
    env = make(lambda: gymnasium.wrappers.TimeLimit(counting_env.CountingEnv(lasts=True), 3), processes=0)
    assert env.episode_length == 3
    assert make(counting_env.CountingEnv, processes=0).episode_length == UNLIMITED


@pytest.mark.parametrize("name", ["Lasting-v0", "CountingDisabled-v0"])
def test_elapsed_truncates_episode_early(make, name):
    env = make(name, processes=0)
    actions = random_actions(env, 12, 2)
    end = np.random.default_rng(1).random((12, 2)) < 0.3
    states = play(env, actions, hint=np.where(end, env.episode_length - 1, -1).astype(np.int32))
    make_one = functools.partial(counting_env.CountingEnv, lasts=name == "Lasting-v0")
    # Two vector environments of one environment each are seeded like two single ones.
    assert_equal_steps(states, expected(make_one, seeds(2), actions, limit=env.episode_length, end=end))


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "LunarLander-v3", "FrozenLake-v1"])
def test_environments_match_gymnasium(make, name):
    env = make(name, processes=0)
    steps = 210
    actions = random_actions(env, steps, 2)
    states = play(env, actions)
    if name == "CartPole-v1":
        halves = [expected_of_vector(name, seeds(2)[half], actions[:, half : half + 1]) for half in (0, 1)]
        return assert_equal_steps(states, jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *halves))
    native_actions = actions[..., 0] if env.action_counts else actions
    wanted = expected(lambda: Flat(gymnasium.make(name), env), seeds(2), native_actions)
    return assert_equal_steps(states, wanted)


class Flat(gymnasium.Wrapper):
    """Flattens observations, and takes actions as plain arrays."""

    def __init__(self, env, ours):
        super().__init__(env)
        self.ours = ours

    def reset(self, **arguments):
        obs, info = self.env.reset(**arguments)
        return self.ours.flatten(obs), info

    def step(self, action):
        obs, *rest = self.env.step(np.int64(action) if self.ours.action_counts else action)
        return self.ours.flatten(obs), *rest


def expected_of_vector(name, seed, actions) -> dict[str, np.ndarray]:
    env = gymnasium.make_vec(name, actions.shape[1], vectorization_mode="vector_entry_point")
    before = env.reset(seed=seed)[0]
    over = np.zeros(actions.shape[1], bool)
    found = {name: [] for name in ("obs", "final_obs", "reward", "terminated", "truncated", "invalid")}
    for action in actions[..., 0]:
        obs, reward, terminated, truncated, _ = env.step(action)
        row = (obs, np.where(over[:, None], before, obs), reward, terminated, over | truncated & ~terminated, over)
        for values, value in zip(found.values(), row, strict=True):
            values.append(np.array(value))
        before, over = np.array(obs), terminated | truncated
    return {name: np.array(values) for name, values in found.items()}


def test_gymnasium_prefix_selects_gymnasium_environment(make):
    env = make("gymnasium:InvertedPendulum-v5", processes=0)
    assert env.name == "gymnasium:InvertedPendulum-v5"
    actions = random_actions(env, 30, 2)
    assert_equal_steps(play(env, actions), expected(lambda: gymnasium.make("InvertedPendulum-v5"), seeds(2), actions))


def test_environment_that_calls_jax_runs_in_worker_processes(make):
    env = make("phys2d/Pendulum-v0")
    assert env.plan.num_processes(2) >= 1
    states = play(env, random_actions(env, 3, 1))
    assert np.isfinite(states.obs).all()
    with pytest.raises(ValueError, match="calls JAX"):
        make("phys2d/Pendulum-v0", processes=0)


@pytest.mark.filterwarnings("ignore:.*missing AutoresetMode")
@pytest.mark.parametrize("name", ["WithoutLimit-v0", "OfOld-v0", "CountingNextStep-v0"])
def test_single_environments_are_stepped_where_the_vector_environment_cannot_be(name, make):
    env = make(name, processes=0)
    assert (env.plan.vector, env.observation_size) == (name.startswith("Counting"), 3)
    assert np.all(env.step(env.reset(KEY, 2), np.zeros((2, 2), np.float32)).elapsed == 1)


def test_single_environments_are_stepped_where_they_mask_actions(make):
    env = make("MaskedVector-v0", processes=0)
    assert masks_actions(env) and env.reset(KEY, 2).mask.shape == (2, 5)


@pytest.mark.parametrize(
    "line",
    ["import jax", "from jax import jit", "from jax import Array", "from jax.lax import scan", "import jax.numpy"],
)
def test_whatever_a_module_imports_of_jax_is_seen(line, tmp_path, monkeypatch):
    text = f"{line}\nimport gymnasium\nclass Mine(gymnasium.Env):\n    pass\n"
    name = f"of_jax_{zlib.crc32(line.encode())}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert uses_jax(importlib.import_module(name).Mine) and not uses_jax(counting_env.CountingEnv)


def test_jax_of_a_base_class_or_within_a_vector_environment_is_seen(monkeypatch):
    base, plain = ModuleType("of_jax_base"), ModuleType("of_plain_sub")
    base.jax = jax
    base.Base = type("Base", (counting_env.CountingEnv,), {"__module__": "of_jax_base"})
    plain.Sub = type("Sub", (base.Base,), {"__module__": "of_plain_sub"})
    monkeypatch.setitem(sys.modules, "of_jax_base", base)
    monkeypatch.setitem(sys.modules, "of_plain_sub", plain)
    assert uses_jax(plain.Sub)
    vectors = [SyncVectorEnv([made] * 2) for made in (plain.Sub, counting_env.CountingEnv)]
    assert [calls_jax(each) for each in vectors] == [True, False]


def test_what_jax_has_compiled_is_seen():
    module = ModuleType("of_jitted")
    module.move = jax.jit(lambda x: x)
    module.Mine = type("Mine", (gymnasium.Env,), {"__module__": "of_jitted"})
    sys.modules["of_jitted"] = module
    try:
        assert uses_jax(module.Mine)
    finally:
        del sys.modules["of_jitted"]


@pytest.mark.parametrize(("low", "high"), [(8.8e7, 1.08e8), (-np.inf, -5e6), (-2e6, 3e6), (2e7, np.inf), (-1, 1)])
def test_actions_that_are_tried_are_within_bounds_of_any_size(low, high, make):
    assert make(functools.partial(counting_env.Tuned, low, high), processes=0).action_size == 2


# ---- spaces ----

NESTED = spaces.Dict(
    {
        "b": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.Box(0, 255, (2, 2), np.uint8)]),
        "a": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, 5]]),
        "c": spaces.MultiBinary(4),
    }
)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2, 3), np.float32),
        spaces.Box(-1, 1, (), np.float64),
        spaces.Discrete(5, start=2),
        spaces.MultiDiscrete([3, 2]),
        spaces.MultiBinary((2, 2)),
        NESTED,
    ],
    ids=repr,
)
def test_flattening_matches_gymnasium(make, space):
    env = make(functools.partial(counting_env.Spaces, space), processes=0)
    space.seed(0)
    samples = [space.sample() for _ in range(5)]
    wanted = [np.asarray(spaces.flatten(space, sample), np.float32).ravel() for sample in samples]
    for sample, flat in zip(samples, wanted, strict=True):
        np.testing.assert_array_equal(env.flatten(sample), flat)
    batch = gymnasium.vector.utils.concatenate(
        space, samples, gymnasium.vector.utils.create_empty_array(space, len(samples))
    )
    np.testing.assert_array_equal(env.flatten(batch), wanted)
    rows = np.empty((5, env.observation_size), np.float32)
    env.plan.observations.write(rows, np.empty((5, 0), np.uint8), samples)
    np.testing.assert_array_equal(rows, wanted)
    assert env.flatten(batch).dtype == np.float32


@pytest.mark.parametrize(
    ("space", "counts", "low", "high", "shape"),
    [
        (spaces.Discrete(3, start=-1), (3,), [-1], [1], ()),
        (spaces.MultiDiscrete([[2, 3]], start=[[0, 4]]), (2, 3), [0, 4], [1, 6], (1, 2)),
        (spaces.MultiBinary(2), (2, 2), [0, 0], [1, 1], (2,)),
        (spaces.Box(-2, np.inf, (2, 1), np.float64), (), [-2, -2], [np.inf, np.inf], (2, 1)),
        (spaces.Box(-1, 1, (), np.float32), (), [-1], [1], ()),
    ],
    ids=repr,
)
def test_simulator_receives_actions_of_its_space(make, space, counts, low, high, shape):
    made = []

    def maker():
        made.append(counting_env.Spaces(spaces.Box(0, 1, (1,)), space))
        return made[-1]

    env = make(maker, processes=0)
    assert (env.action_counts, env.action_shape) == (counts, shape)
    np.testing.assert_array_equal(env.action_low, low)
    np.testing.assert_array_equal(env.action_high, high)
    assert base.action_space(env).size == env.action_size == max(1, int(np.prod(shape)))
    state = start(env, 1)
    flat = np.array([[(1 if not counts else count - 1) for count in counts or [1] * env.action_size]])
    env.step(state, flat).reward.block_until_ready()
    wanted = np.reshape(env.action_high if counts else flat, shape)
    np.testing.assert_array_equal(made[-1].taken[-1], wanted)


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (spaces.Text(4), spaces.Discrete(2), r"observation space Text\(.*is not supported; supported: Box"),
        (spaces.Dict(a=spaces.Sequence(spaces.Discrete(2))), spaces.Discrete(2), "Sequence"),
        (spaces.Graph(spaces.Discrete(2), None), spaces.Discrete(2), "Graph"),
        (spaces.Dict(), spaces.Discrete(2), "must hold at least one number"),
        (spaces.Discrete(2), spaces.Box(0, 3, (1,), np.int32), r"action space Box\(0, 3.*Box of floats"),
        (spaces.Discrete(2), spaces.Dict(a=spaces.Discrete(2)), "action space Dict"),
        (spaces.Discrete(2), spaces.Tuple([spaces.Discrete(2)]), "action space Tuple"),
    ],
)
def test_unsupported_spaces_are_rejected(make, observation, action, message):
    with pytest.raises(ValueError, match=message) as error:
        make(functools.partial(counting_env.Spaces, observation, action))
    assert "\n" not in str(error.value)


# ---- errors ----

BREAKS = {
    "four values": "four values, as in the old gym API",
    "nan observation": "observation contains nan, but must be finite",
    "nan reward": "reward contains nan, but must be finite",
    "wrong shape": r"observation has shape \(2, 3\), but its space Box.* has \(3,\)",
    "complex": "dtype complex128",
    "object": "dtype object",
    "reward is not a number": "reward must be a number, but is 'much'",
    "flag is not a bool": "must return a bool for terminated, not None",
    "raises": "KeyError: 'no such thing'",
    "leaves": r"step\(\) raised SystemExit: window closed",
    "huge reward": "reward contains inf, but must be finite",
}


@pytest.mark.parametrize("what", [*BREAKS, "reset returns no info"])
def test_violations_of_gymnasium_interface_are_detected_before_compilation(make, what):
    with pytest.raises(ValueError, match=BREAKS.get(what, r"reset\(\) must .* returned array")) as error:
        make(functools.partial(counting_env.Misbehaving, what))
    assert what in ("raises", "leaves") or "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("what", "processes"), [*((what, 0) for what in BREAKS), ("raises", 2), ("nan reward", 1), ("leaves", 1)]
)
def test_later_failure_is_stored_with_its_traceback(make, what, processes):
    env = make(functools.partial(counting_env.Misbehaving, what, at=70), processes=processes)
    actions = random_actions(env, 80, 2)
    last = play(env, actions)
    assert isinstance(env.failure, SimulatorError)
    with pytest.raises(SimulatorError, match=BREAKS[what]):
        require_working(env)
    # Compiled code terminates, with invalid steps that end every episode.
    assert np.all(last.invalid[-1]) and np.all(last.truncated[-1]) and not np.any(last.terminated[-1])
    if what == "raises":
        assert 'raise KeyError("no such thing")' in str(env.failure)
    failure, begin = env.failure, time.monotonic()
    assert not np.any(start(env, 2).obs)
    assert env.failure is failure and time.monotonic() - begin < 1
    assert env.copy().failure is None


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("dies", r"worker process \d of 2 was ended by signal 9 \(SIGKILL\)"),
        ("exits", r"worker process \d of 2 ended with exit status 7"),
        (
            "hangs",
            r"worker process \d of 2 took longer than 0.5 seconds for a step; increase .*make_env\(..., timeout=1\)",
        ),
    ],
)
def test_unresponsive_worker_fails_and_no_process_remains(make, what, message):
    before = children()
    env = make(functools.partial(counting_env.Misbehaving, what, at=70), processes=2, groups=2, timeout=0.5)
    play(env, random_actions(env, 80, 2), count=2)
    assert children() == before
    with pytest.raises(SimulatorError, match=message):
        require_working(env)


def test_timeout_error_of_slow_reset_names_setting(make):
    parent = os.getpid()

    class Slow(counting_env.CountingEnv):
        def reset(self, **arguments):
            time.sleep(0.0 if os.getpid() == parent else 2.0)
            return super().reset(**arguments)

    start(env := make(Slow, processes=1, timeout=0.3), 2).obs.block_until_ready()
    with pytest.raises(SimulatorError, match=r"took longer than 0.3 seconds for a reset; increase .*timeout=0.6\)"):
        require_working(env)


def test_worker_killed_between_steps_is_reported(make):
    env = make(counting_env.CountingEnv, processes=2)
    before = children()
    state = start(env, 2)
    state.obs.block_until_ready()
    os.kill(max(children() - before), signal.SIGKILL)
    time.sleep(0.05)
    env.step(state, np.zeros((2, 2), np.float32)).obs.block_until_ready()
    with pytest.raises(SimulatorError, match="was ended by signal 9"):
        require_working(env)
    assert children() == before


def test_failure_only_in_worker_process_is_reported(make):
    parent = os.getpid()

    def maker():
        if os.getpid() != parent:
            raise OSError("no display")
        return counting_env.CountingEnv()

    env = make(maker, processes=1)
    state = start(env, 2)
    assert not np.any(state.obs)
    with pytest.raises(SimulatorError, match="creating the environment raised OSError: no display"):
        require_working(env)
    assert np.all(env.step(state, np.zeros((2, 2), np.float32)).invalid)


def test_workers_end_with_their_parent(tmp_path):
    script = """
import os, sys, jax
import gymnasium
from jaxtrpo import make_env
env = make_env(lambda: gymnasium.make("CartPole-v1"), processes=2)
env.reset(jax.random.PRNGKey(0), 2).obs.block_until_ready()
print(*[open(f"/proc/{os.getpid()}/task/{t}/children").read() for t in os.listdir("/proc/self/task")], flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""
    (tmp_path / "script.py").write_text(script)
    for how, status in (("killed", -signal.SIGKILL), ("ends", 0)):
        ended = subprocess.run(
            [sys.executable, tmp_path / "script.py", how],
            stdout=subprocess.PIPE,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        assert ended.returncode == status
        workers = [int(number) for number in ended.stdout.split()]
        assert len(workers) == 2
        deadline = time.monotonic() + 5
        while any(is_alive(worker) for worker in workers):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_workers_of_killed_parent_end_without_output(tmp_path):
    # One worker is in the middle of a step, and the replies of the others have not been read.
    script = """
import os, sys, threading, time
import gymnasium, jax, numpy as np
from jaxtrpo import make_env

parent, marker = os.getpid(), sys.argv[1]

class Slow(gymnasium.Wrapper):
    def step(self, action):
        if os.getpid() != parent:
            try:
                os.mkdir(marker)
            except FileExistsError:
                pass
            else:
                time.sleep(0.7)
        return self.env.step(action)

env = make_env(lambda: Slow(gymnasium.make("Pendulum-v1")), processes=3)
state = env.reset(jax.random.PRNGKey(0), 3)
state.obs.block_until_ready()
threading.Timer(0.4, lambda: os.kill(parent, 9)).start()
env.step(state, np.zeros((3, 1), np.float32)).obs.block_until_ready()
"""
    (tmp_path / "script.py").write_text(script)
    process = subprocess.run(  # returns when all processes have closed the pipe
        [sys.executable, tmp_path / "script.py", tmp_path / "marker"],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        timeout=60,
    )
    assert (process.returncode, process.stderr) == (-signal.SIGKILL, "") and (tmp_path / "marker").exists()


def is_alive(process: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---- handles ----


def test_stale_state_is_rejected(make):
    env = make(counting_env.CountingEnv, processes=0)
    action = np.zeros((2, 2), np.float32)
    first = start(env, 2)
    second = env.step(first, action)
    with pytest.raises(jax.errors.JaxRuntimeError, match="this state is stale: .* use copy"):
        env.step(first, action).obs.block_until_ready()
    env.step(second, action).obs.block_until_ready()  # the rejected step has no effect
    third = start(env, 2)
    with pytest.raises(jax.errors.JaxRuntimeError, match="this state is stale"):
        env.step(second, action).obs.block_until_ready()
    other = env.copy()
    start(other, 2).obs.block_until_ready()
    env.step(third, action).obs.block_until_ready()
    env.close()
    with pytest.raises(jax.errors.JaxRuntimeError, match="this state is stale"):
        env.step(third, action).obs.block_until_ready()
    other.close()


def test_tracing_and_compiling_start_no_simulators(make):
    made = []

    def maker():
        made.append(counting_env.CountingEnv())
        return made[-1]

    env = make(maker, processes=0)
    made.clear()
    shapes = jax.eval_shape(lambda key: env.step(env.reset(key, 3), jnp.zeros((3, 2))), KEY)
    assert shapes.obs.shape == (3, 3)
    jax.jit(lambda key: env.reset(key, 3)).lower(KEY).compile()
    assert not made
    start(env, 3).obs.block_until_ready()
    assert len(made) == 3


def test_garbage_collected_environment_ends_its_processes():
    with warnings.catch_warnings():  # processes that tests of other files have left to the garbage collector
        warnings.simplefilter("ignore")
        gc.collect()
    before = children()
    env = make_env(counting_env.CountingEnv, processes=2)
    env.reset(KEY, 2).obs.block_until_ready()
    assert len(children() - before) == 2
    del env
    gc.collect()
    assert children() == before


def test_actions_of_wrong_shape_are_rejected(make):
    env = make(counting_env.CountingEnv, processes=0)
    with pytest.raises(ValueError, match=r"actions have shape \(4, 1\), expected \(4, 2\)"):
        env.step(start(env, 4), np.zeros((4, 1), np.float32))


def test_part_of_a_vector_environment_cannot_be_stepped(make):
    env = make("CountingSameStep-v0", processes=0)
    state = jax.tree.map(lambda leaf: leaf[1:3], start(env, 4))
    env.step(state, np.zeros((2, 2), np.float32)).obs.block_until_ready()
    with pytest.raises(SimulatorError, match="not whole vector environments"):
        require_working(env)


# ---- names and options ----


def test_actors_do_not_share_a_vector_environment(make):
    env = make("CountingDisabled-v0")
    assert env.for_groups(1) is env and env.for_groups(2) is env
    three = env.for_groups(3)
    assert three is not env and three.for_groups(3) is three
    made, close = environment_for(env, 3)
    actions = np.zeros((6, 2), np.float32)
    state = start(made, 6)
    # Each of three actors steps its own environments.
    for mine in (slice(0, 2), slice(2, 4), slice(4, 6)):
        part = jax.tree.map(lambda leaf, mine=mine: leaf[mine], state)
        made.step(part, actions[mine]).obs.block_until_ready()
    close()
    assert "was closed" in str(made.failure) and env.failure is None


def test_steps_of_abandoned_environment_are_invalid(make):
    env = make("CountingDisabled-v0")
    state = start(env, 2)
    state.obs.block_until_ready()
    env.abandon()
    after = env.step(state, np.zeros((2, 2), np.float32))
    assert np.all(after.invalid) and np.all(after.truncated) and not np.any(after.obs)


class Limited(gymnasium.wrappers.TimeLimit):
    def __init__(self):
        super().__init__(counting_env.CountingEnv(), 9)


def test_evaluate_accepts_the_same_environments_as_train():
    for env in (lambda: gymnasium.wrappers.TimeLimit(counting_env.CountingEnv(lasts=True), 4), Limited):
        result = jaxtrpo.train(env, total_steps=1, steps_per_update=16, num_envs=4, policy="mlp(hidden=(4,))",
                               critic="none", algorithm="pg", progress=False)  # fmt: skip
        returns = jaxtrpo.evaluate(result.policy, env, episodes=2).returns
        assert returns.shape == (2,) and np.all(returns > 0)


SHORT = {
    "total_steps": 32, "steps_per_update": 16, "num_envs": 4, "policy": "mlp(hidden=(4,))", "critic": "none",
    "algorithm": "pg", "actors": 1,
}  # fmt: skip


def test_evaluation_stops_endless_episodes_with_a_warning(monkeypatch):
    for name in ("evaluation", "episodes"):
        monkeypatch.setattr(sys.modules[f"jaxtrpo.rollout.{name}"], "MOST_STEPS_WITHOUT_LIMIT", 50)
    result = jaxtrpo.train(lambda: counting_env.Counts(None), **SHORT, progress=False)
    env = make_env(lambda: counting_env.Counts(3, None, 20), processes=0)
    counting_env.Counts.number = 0
    with pytest.warns(UserWarning, match="2 of 6 episodes were stopped after 50 steps.*--max-episode-steps"):
        found = jaxtrpo.evaluate(result.policy, env, episodes=6)
    np.testing.assert_array_equal(found.returns, [3, 50, 20, 3, 50, 20])
    assert found.stopped == 2
    counting_env.Counts.number = 0
    limited = make_env(lambda: counting_env.Counts(3, None, 20), processes=0, max_episode_steps=70)
    counting_env.Counts.number = 0
    np.testing.assert_array_equal(jaxtrpo.evaluate(result.policy, limited, episodes=3).returns, [3, 70, 20])
    env.close()
    limited.close()


def test_training_without_time_limit_announces_length_of_evaluations(monkeypatch, capsys):
    for name in ("evaluation", "episodes"):
        monkeypatch.setattr(sys.modules[f"jaxtrpo.rollout.{name}"], "MOST_STEPS_WITHOUT_LIMIT", 50)
    result = jaxtrpo.train(lambda: counting_env.Counts(None), **SHORT, eval_every=16)
    np.testing.assert_array_equal(result.metrics["eval_return"], [50, 50])
    assert "has no time limit: evaluations stop an episode after 10,000 steps" in capsys.readouterr().err


def test_evaluations_use_time_limit_of_training(tmp_path, capsys):
    # The return of T steps is 100 T + T (T + 1) / 2 plus a sum of T actions between -1 and 1.
    def steps(mean: float) -> int:
        return next(t for t in range(1, 20) if abs(mean - 100 * t - t * (t + 1) / 2) <= t)

    result = jaxtrpo.train("counting_env:Lasting-v0", **SHORT, max_episode_steps=7, eval_every=32, out=tmp_path,
                           progress=False)  # fmt: skip
    assert steps(result.metrics["eval_return"][-1]) == 7
    loaded = jaxtrpo.load_policy(tmp_path)
    assert [steps(jaxtrpo.evaluate(policy, episodes=1).mean) for policy in (result.policy, loaded)] == [7, 7]
    assert steps(jaxtrpo.evaluate(loaded, "counting_env:Lasting-v0", episodes=1).mean) == 4  # its own limit
    assert steps(jaxtrpo.evaluate(loaded, episodes=1, max_episode_steps=2).mean) == 2
    for words, length in (([], 7), (["--max-episode-steps", "3"], 3), (["--env", "counting_env:Lasting-v0"], 4)):
        assert cli.main(["evaluate", str(tmp_path), "--episodes", "1", *words]) == 0
        assert steps(float(capsys.readouterr().out.split()[-1])) == length
    assert jaxtrpo.load_config(tmp_path)["max_episode_steps"] == 7
    with pytest.raises(ValueError, match="has max_episode_steps=7, not max_episode_steps=8"):
        jaxtrpo.train("counting_env:Lasting-v0", **SHORT, max_episode_steps=8, eval_every=32, out=tmp_path, resume=True)


plain = functools.partial(gymnasium.make, disable_env_checker=True)


@pytest.mark.parametrize("name", ["Pendulum-v1", "Lasting-v0", "Aware-v0", "Blackjack-v1"])
@pytest.mark.parametrize("limit", [3, 7])
def test_max_episode_steps_matches_gymnasium_make(make, name, limit):
    env = make(name, max_episode_steps=limit, processes=0)
    assert env.episode_length == limit
    actions = random_actions(env, 20, 2)
    native_actions = actions[..., 0] if env.action_counts else actions
    wanted = expected(lambda: Flat(plain(name, max_episode_steps=limit), env), seeds(2), native_actions)
    assert_equal_steps(play(env, actions), wanted)
    assert name == "Blackjack-v1" or wanted["truncated"][limit - 1].all()


def test_max_episode_steps_is_passed_to_vector_environments(make):
    env = make("CartPole-v1", max_episode_steps=5, processes=0)
    assert env.plan.vector and env.episode_length == 5
    states = play(env, random_actions(env, 12, 2))
    np.testing.assert_array_equal(np.flatnonzero(states.truncated[:, 0] & ~states.invalid[:, 0]), [4, 10])
    assert make("CartPole-v1", max_episode_steps=-1).episode_length == UNLIMITED
    # A vector environment without that argument is not used.
    assert not make("CountingNextStep-v0", max_episode_steps=5).plan.vector


def test_function_that_takes_a_time_limit_and_applies_it_itself(make):
    class Counted(counting_env.CountingEnv):
        def __init__(self, max_episode_steps):
            super().__init__(lasts=True)
            self.limit = max_episode_steps

        def step(self, action):
            *others, info = super().step(action)
            return (*others[:3], self.obs[0] >= self.limit, info)

    env = make(Counted, max_episode_steps=5)
    assert env.episode_length == 5
    states = play(env, random_actions(env, 12, 2))
    np.testing.assert_array_equal(np.flatnonzero(states.truncated[:, 0]), [4, 9])


def test_ids_registered_here_are_known_to_functions_in_workers(make):
    class Unseen(counting_env.CountingEnv):
        pass

    gymnasium.register("Unseen-v0", Unseen)
    try:
        made = functools.partial(gymnasium.make, "Unseen-v0", disable_env_checker=True)
        env = make(lambda: gymnasium.wrappers.ClipReward(made(), 0, 1), processes=1)
        assert np.all(play(env, random_actions(env, 3, 2)).reward == 1)
        require_working(env)
    finally:
        gymnasium.registry.pop("Unseen-v0")


def test_max_episode_steps_is_passed_to_function_or_applied_here(make):
    lasting = functools.partial(counting_env.CountingEnv, lasts=True)
    takes = functools.partial(plain, "Lasting-v0")
    for maker in (lasting, takes):
        env = make(maker, max_episode_steps=6, processes=0)
        assert env.episode_length == 6
        actions = random_actions(env, 15, 2)
        assert_equal_steps(play(env, actions), expected(lasting, seeds(2), actions, limit=6))
    assert make(takes).episode_length == 4


def test_keywords_are_passed_to_gymnasium_make(make):
    for name in ("Pendulum-v1", "CartPole-v1"):
        env = make(name, disable_env_checker=False)
        assert np.isfinite(play(env, random_actions(env, 3, 1)).obs).all()


def unlimited():
    return counting_env.Counts(None)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: make_env("Pendulum-v1", max_episode_steps=0), "max_episode_steps=0 must be a whole number"),
        (lambda: make_env("CartPole-v1", max_episode_steps=1.5), "max_episode_steps=1.5 must be a whole number"),
        (
            lambda: make_env(counting_env.CountingEnv, max_episode_steps=-1),
            "only gymnasium.make can remove a time limit",
        ),
        (
            lambda: prepare(Limited, max_episode_steps=10),
            "=10: .*Limited itself ends its episodes after 9 steps; a longer limit must be set there",
        ),
        (
            lambda: prepare(make_env(Limited), max_episode_steps=5),
            "was created with a time limit of 9 steps; set the limit there",
        ),
        (
            lambda: prepare(make_env(unlimited), max_episode_steps=5),
            "was created with no time limit; set the limit there",
        ),
        (lambda: prepare(unlimited, algorithm="gps"), "has no time limit.*--max-episode-steps"),
    ],
)
def test_unsupported_time_limit_is_rejected(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": "two"}, "^processes='two' must be a whole number of at least 0$"),
        ({"processes": 1.5}, "^processes=1.5 must be a whole number of at least 0$"),
        ({"processes": -1}, "^processes=-1 must be a whole number of at least 0$"),
        ({"groups": "x"}, "^groups='x' must be a whole number of at least 1$"),
        ({"timeout": "long"}, "^timeout='long' must be a positive number of seconds$"),
        ({"timeout": 0}, "^timeout=0 must be a positive number of seconds$"),
        ({"source": 3}, "unexpected keyword argument 'source'"),
    ],
)
def test_invalid_option_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_env(counting_env.CountingEnv if "source" not in options else "Pendulum-v1", **options)


def test_failure_to_start_simulators_is_raised_by_prepare():
    parent = os.getpid()

    def maker():
        if os.getpid() != parent:
            raise OSError("no display")
        return counting_env.CountingEnv()

    env = jaxtrpo.make_env(maker, processes=1)
    with pytest.raises(SimulatorError, match="creating the environment raised OSError"):
        prepare(env)


@pytest.mark.parametrize(("low", "high"), [(2, np.inf), (-np.inf, -5), (-np.inf, np.inf), (3, 4)])
def test_action_bounds_are_arbitrary(make, low, high):
    class Bounded(counting_env.CountingEnv):
        def __init__(self):
            super().__init__()
            self.action_space = gymnasium.spaces.Box(low, high, (2,), np.float32)

        def step(self, action):
            assert np.all(action >= low) and np.all(action <= high)
            return super().step(action)

    assert make(Bounded).action_size == 2


def test_environment_names(make):
    for name in ("Pendulum-v1", "gymnasium:Pendulum-v1", "counting_env:Lasting-v0"):
        assert make(name).name == name
    assert make(counting_env.CountingEnv).name == "gymnasium:CountingEnv"
    assert make_gymnasium_env("Pendulum-v1").name == "gymnasium:Pendulum-v1"
    assert isinstance(make("Pendulum-v1"), base.Environment)


def test_unknown_name_error_suggests_similar_names():
    with pytest.raises(ValueError, match="unknown environment 'CartPol-v1'; did you mean CartPole-v1"):
        make_env("CartPol-v1")
    with pytest.raises(ValueError, match="'gymnasium:Pendulm-v1'; did you mean gymnasium:Pendulum-v1"):
        make_env("gymnasium:Pendulm-v1")
    with pytest.raises(ValueError, match="no_such_module cannot be imported"):
        make_env("no_such_module:Name-v0")


def test_mujoco_environments_ignore_groups():
    assert make_env("Hopper-v5", groups=2).name == "Hopper-v5"
    with pytest.raises(ValueError, match="has no option backend"):
        make_env("Hopper-v5", groups=2, backend="mjx")


def test_options_are_passed_to_environment(make):
    assert make("LunarLander-v3", continuous=True).action_counts == ()
    with pytest.raises(ValueError, match="Pendulum-v1 cannot be created: TypeError.*mass"):
        make("Pendulum-v1", mass=3)
    for option, value in (("processes", -1), ("groups", 0), ("timeout", 0)):
        with pytest.raises(ValueError, match=f"{option}={value} must be"):
            make("Pendulum-v1", **{option: value})


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (dict, "returned an object of type dict, not a gymnasium.Env"),
        (lambda: 1 / 0, "cannot be created: ZeroDivisionError"),
    ],
)
def test_function_that_does_not_return_an_env_is_rejected(make, maker, message):
    with pytest.raises(ValueError, match=message):
        make(maker)


@pytest.mark.parametrize(("where", "action"), [("__init__", "cannot be created:"), ("reset", r"reset\(\) raised")])
def test_error_in_user_code_names_its_line_and_keeps_its_traceback(make, where, action):
    file = pathlib.Path(counting_env.__file__)
    line = 1 + file.read_text().split("\n").index("        assert self.where != here")
    with pytest.raises(ValueError, match=action) as error:
        make(functools.partial(counting_env.Careless, where))
    ending = f"AssertionError: assert self.where != here ({file}:{line}, in _check)"
    assert str(error.value).endswith(ending) and "\n" not in str(error.value)
    assert isinstance(error.value.__cause__, AssertionError)
    frames = traceback.extract_tb(error.value.__cause__.__traceback__)
    assert (frames[-1].name, frames[-1].lineno) == ("_check", line)


def test_error_in_library_names_line_of_user_code(make):
    def maker():
        return spaces.Box(0, [1, 2], (3,))  # fails in Gymnasium

    with pytest.raises(ValueError, match=rf"cannot be created: .* \({__file__}:\d+, in maker\)$"):
        make(maker)
    with pytest.raises(ValueError, match=r"mass.* \(.*gymnasium.*:\d+, in make\)$"):  # no user code is involved
        make("Pendulum-v1", mass=3)


def test_error_of_broken_module_names_its_line(make, tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("x = 1\nassert x == 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"broken_module cannot be imported: AssertionError: assert x == 2 \(.*py:2, "):
        make("broken_module:Name-v0")


class Blind(gymnasium.Env):
    """Has the spaces that it is given, which may be missing or of a wrong type."""

    def __init__(self, **spaces):
        for name, space in spaces.items():
            setattr(self, name, space)


def of_module(name: str, module: str, *bases: type):
    return type(name, bases, {"__module__": module})()


ONE = spaces.Box(-1, 1, (1,))


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (lambda: Blind(), "has no observation_space; its class or __init__ must set it"),
        (lambda: Blind(observation_space=ONE), "has no action_space; its class or __init__ must set it"),
        (lambda: gymnasium.Wrapper(Blind()), "has no observation_space"),
        (
            lambda: Blind(observation_space=of_module("Box", "gym.spaces.box"), action_space=ONE),
            "observation_space must be a gymnasium.Space, not <gym.spaces.box.Box.*> of type gym.spaces.box.Box",
        ),
        (
            lambda: Blind(observation_space=ONE, action_space=3),
            "action_space must be a gymnasium.Space, not 3 of type int",
        ),
        (
            lambda: of_module("Mine", "mine", type("Env", (), {"__module__": "gym.core"})),
            "returned an object of type mine.Mine, an environment of the old gym; wrap it with shimmy.GymV26Compat",
        ),
        (lambda: of_module("Env", "elsewhere"), "returned an object of type elsewhere.Env, not a gymnasium.Env"),
    ],
)
def test_object_that_resembles_an_environment_is_rejected(make, maker, message):
    with pytest.raises(ValueError, match=message) as error:
        make(maker)
    assert "\n" not in str(error.value)


class Endless:
    """Resembles an environment of another package and has a very long repr."""

    def reset(self, key):
        pass

    def __repr__(self):
        return "Endless(" + "0.0,\n" * 100_000 + ")"


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: prepare(Endless()),
        lambda: make_env(Endless()),
        lambda: prepare(Endless(), device="gpu"),
        lambda: jaxtrpo.evaluate(Endless()),
        lambda: jaxtrpo.train("CartPole-v1", seed=Endless()),
        lambda: jaxtrpo.train("CartPole-v1", algorithm=Endless()),
        lambda: jaxtrpo.train("CartPole-v1", policy=Endless()),
        lambda: jaxtrpo.train("CartPole-v1", adapt=Endless()),
        lambda: jaxtrpo.train("CartPole-v1", wandb=Endless()),
        lambda: jaxtrpo.train("CartPole-v1", discount=Endless()),
        lambda: jaxtrpo.train("CartPole-v1", keep_best=Endless()),
    ],
)
def test_error_messages_are_short_for_arguments_with_long_repr(attempt):
    with pytest.raises((ValueError, TypeError)) as error:
        attempt()
    assert len(str(error.value)) < 400 and "\n" not in str(error.value)


def test_environment_instance_is_rejected_in_favour_of_function():
    with pytest.raises(ValueError, match="must be a function that creates it"):
        prepare(gymnasium.make("Pendulum-v1"))


def test_processes_are_used_only_for_slow_steps(make, monkeypatch, few_processes):
    monkeypatch.setattr("jaxtrpo.envs.gymnasium.stepping_plan.SECONDS_PER_PROCESS", few_processes)
    monkeypatch.setattr("jaxtrpo.envs.gymnasium.stepping_plan.available_cores", lambda: 4)
    quick = make(counting_env.CountingEnv)
    assert quick.plan.num_processes(2) == 0

    def slow():
        env = counting_env.CountingEnv()
        step = env.step
        env.step = lambda action: (time.sleep(1e-3), step(action))[1]
        return env

    env = make(slow)
    assert [env.plan.num_processes(num) for num in (1, 2, 6, 16)] == [0, 2, 3, 4]
    monkeypatch.setattr("jaxtrpo.envs.gymnasium.stepping_plan.available_cores", lambda: 1)
    assert env.plan.num_processes(16) == 0


def test_worker_does_not_import_jax():
    code = "import sys, jaxtrpo.envs.gymnasium.worker; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert available_cores() >= 1
