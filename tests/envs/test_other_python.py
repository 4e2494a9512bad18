"""Environments whose simulators another Python interpreter runs, which needs neither JAX nor jaxtrpo."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.envs.gymnasium.spec import find_source
from jaxtrpo.envs.registry import make_env

NEEDED = "cloudpickle", "farama_notifications", "gymnasium", "numpy", "numpy.libs", "typing_extensions.py"
SETTINGS = {"total_steps": 256, "num_envs": 4, "actors": 1, "progress": False, "policy": "mlp(hidden=(8,))"}
OWN = """
import gymnasium, sys
from gymnasium import spaces
import numpy as np

assert not {"jax", "jaxtrpo.envs.base"} & set(sys.modules)
print("simulators may print")

class Counter(gymnasium.Env):
    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(3)

    def __init__(self, start=0):
        self.start = start

    def reset(self, *, seed=None, options=None):
        self.count = self.start
        return np.float32([self.count]), {"action_mask": np.array([1, 0, 1])}

    def step(self, action):
        assert action != 1
        self.count += 1
        return np.float32([self.count]), 1.0, self.count == 5, False, {"action_mask": np.array([1, 0, 1])}

def broken():
    raise RuntimeError("out of order")

made = Counter()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter that finds Gymnasium, but neither JAX nor jaxtrpo."""
    folder = tmp_path_factory.mktemp("other")
    packages = folder / "packages"
    packages.mkdir()
    found = Path(importlib.util.find_spec("gymnasium").origin).parents[1]
    for name in NEEDED:
        if (found / name).exists():
            (packages / name).symlink_to(found / name)
    script = folder / "python"
    script.write_text(
        f'#!/bin/sh\nunset PYTHONHOME\nPYTHONPATH={shlex.quote(str(packages))} exec {sys.executable} -S "$@"\n'
    )
    script.chmod(0o755)
    for module in ("jax", "jaxtrpo"):
        assert subprocess.run([script, "-c", f"import {module}"], capture_output=True, cwd=folder).returncode
    return str(script)


def trajectory(env, steps: int) -> np.ndarray:
    state, step = jax.jit(env.reset, static_argnums=1)(jax.random.PRNGKey(3), 3), jax.jit(env.step)
    seen = [state.obs]
    for at in range(steps):
        action = np.full((3, env.action_size), np.sin(at), np.float32)
        state = step(state, action)
        seen += [state.final_obs, state.reward[:, None], state.obs]
    return np.concatenate(seen, axis=1)


def test_trajectories_are_those_of_this_interpreter(python):
    here = make_env("gymnasium:Pendulum-v1", g=4.0, max_episode_steps=7)
    elsewhere = make_env("gymnasium:Pendulum-v1", g=4.0, max_episode_steps=7, python=python)
    assert elsewhere.name == here.name == "gymnasium:Pendulum-v1" and elsewhere.episode_length == 7
    np.testing.assert_array_equal(trajectory(elsewhere, 10), trajectory(here, 10))


def test_function_with_masks_in_a_file_trains(python, tmp_path, monkeypatch):
    """And is evaluated, once the interpreter is named again, since it would be started."""
    monkeypatch.chdir(tmp_path)
    Path("counting.py").write_text(OWN)
    options = {"python": python, "start": 2}
    result = jaxtrpo.train("counting.py:Counter", env_options=options, out="run", **SETTINGS)
    assert "counting" not in sys.modules
    assert result.policy.masked and result.metrics["return_100"][-1] == 3
    policy = jaxtrpo.load_policy("run")
    with pytest.raises(ValueError, match="another Python interpreter"):
        jaxtrpo.evaluate(policy)
    with pytest.raises(ValueError, match=r"imports the module 'counting\.py': give env"):
        jaxtrpo.evaluate(policy, env_options={"python": python})
    assert jaxtrpo.evaluate(policy, "counting.py:Counter", env_options={"python": python}, episodes=2).mean == 5
    typed = ["train", "--config", "run/config.json", "counting.py:Counter", "--quiet"]
    assert cli.main([*typed, "--out", "other"]) == 2 and not Path("other").exists()


def test_registered_environment_of_a_policy_is_not_made_without_being_asked(python, tmp_path, capsys):
    result = jaxtrpo.train("CartPole-v1", env_options={"python": python}, out=tmp_path / "run", **SETTINGS)
    with pytest.raises(
        ValueError,
        match=r"^env_options: those of the policy start another Python interpreter",
    ):
        jaxtrpo.evaluate(result.policy)
    typed = ["train", "--config", str(tmp_path / "run" / "config.json"), "--quiet", "--out", str(tmp_path / "other")]
    assert cli.main(typed) == 2
    assert "start another Python interpreter; repeat them with --env-options" in capsys.readouterr().err
    assert cli.main([*typed, "--env-options", f"python={python!r}"]) == 0  # --env_options=... is the same


def test_it_cannot_be_rendered(python):
    env = make_env("gymnasium:Pendulum-v1", python=python)
    with pytest.raises(ValueError, match="runs in another interpreter, .*, and cannot be rendered"):
        env.watched(lambda obs: np.zeros((1, 1)), 0, 64, 64)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("CartPole-v1", {"python": "no/python"}, "python='no/python' must be the path of a Python interpreter"),
        ("CartPole-v1", {"python": "/tmp"}, "must be the path of a Python interpreter"),
        ("CartPole-v1", {"python": 3}, "python=3 must be the path"),
        ("CartPole-v1", {"python": "true"}, "CartPole-v1: true did not create it: it ended with exit status 0"),
        ("CartPole-v1", {"processes": 0}, "processes=0: another interpreter .* needs at least 1 process"),
        ("CartPole-v1", {"sutton_barto_rewards": True}, "CartPole-v1 cannot be created: .*unexpected keyword"),
        ("Nonsense-v1", {}, "unknown environment 'gymnasium:Nonsense-v1'"),
        ("no_such_module:Some-v0", {}, "the module no_such_module cannot be imported"),
        ("counting.py:made", {}, "made must be a function that returns a gymnasium.Env, not of type counting.Counter"),
        ("counting.py:broken", {}, "counting.py:broken cannot be created: RuntimeError: out of order"),
        (lambda: None, {}, "another interpreter makes environments by name"),
        ("HalfCheetah-v5", {}, "HalfCheetah-v5 has no option python; .*gymnasium:HalfCheetah-v5"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(name, options, sentence, python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("counting.py").write_text(OWN)
    with pytest.raises(ValueError, match=sentence) as found:
        make_env(name, **{"python": python, **options})
    assert "\n" not in str(found.value)


def test_no_negative_time_limit_is_passed_on(monkeypatch):
    """Before Gymnasium 1.0, every step would end an episode."""
    limits, whole = [], gymnasium.make

    def make(spec, **options):
        limits.append(options.get("max_episode_steps", spec.max_episode_steps))
        return whole(spec, **options)

    monkeypatch.setattr(gymnasium, "make", make)
    for options in ({}, {"max_episode_steps": 7}, {"max_episode_steps": -1}):
        env = find_source("Pendulum-v1", options).make_single()
        assert not isinstance(env, gymnasium.wrappers.TimeLimit)
    assert limits == [None] * 3


@pytest.mark.parametrize("missing", ["AutoresetMode", "VectorWrapper"])
def test_older_gymnasium_makes_single_environments(missing, monkeypatch):
    monkeypatch.delattr(gymnasium.vector, missing)
    env = make_env("CartPole-v1", processes=0)
    assert env.plan.vector == (missing != "AutoresetMode")
