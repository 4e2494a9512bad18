"""Discount and correlation of noise of runs for which they are not chosen."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from light_env import LightEnvironment
from probe import ProbeEnvironment
from test_noise import WithUniformNoise

import jaxtrpo
from jaxtrpo.envs.abilities import may_terminate
from jaxtrpo.envs.base import NO_TIME_LIMIT
from jaxtrpo.envs.fixed_starts import Repeated
from jaxtrpo.envs.mujoco.tasks import TASKS
from jaxtrpo.runs.checkpoint import load_checkpoint
from jaxtrpo.training.prepare import prepare

FAR, USUAL = (0.999, 0.5), (0.99, 0.0)
TINY = {"total_steps": 128, "steps_per_update": 64, "num_envs": 8, "policy": "mlp(hidden=(4,))", "critic": "linear"}
QUIET = {"actors": 1, "progress": False}


class Own(ProbeEnvironment):
    """An environment object; not a JAX program, as far as anybody knows."""

    is_program = False

    def __init__(self, episode_length=1000, **said):
        super().__init__()
        self.episode_length, self.said = episode_length, said
        vars(self).update(said)

    def __repr__(self):  # in the names of tests, which must be the same in all processes
        return f"Own({self.episode_length}, {self.said})"


def chosen(env="Swimmer-v5", **settings):
    """Returns discount and noise_correlation of a run, of its parts and of its update."""
    run = prepare(env, actors=1, **settings)
    run.close()
    name = env if isinstance(env, str) else env.name
    told = f"episodes of {name} never end early, so by default discount=0.999"
    if "noise_correlation" not in settings:
        told += f" and noise_correlation={run.config.noise_correlation:g}"
    said = [f"{told}; --discount 0.99 for the usual ones"]
    far = run.config.discount == 0.999 and "discount" not in settings
    assert [note for note in run.notes if "never end early" in note] == said * far
    assert isinstance(run.state.actors.noise, tuple) != bool(run.config.noise_correlation)
    return run.config.discount, run.config.noise_correlation


def test_episodes_of_these_tasks_never_terminate():
    never = {"Reacher-v5", "Pusher-v5", "HalfCheetah-v5", "Swimmer-v5", "HumanoidStandup-v5"}
    assert {name for name in TASKS if not may_terminate(jaxtrpo.make_env(name))} == never


@pytest.mark.parametrize(
    ("terminated", "may"),
    [
        (lambda model, data: False, False),
        (lambda model, data: jnp.bool_(False), False),
        (lambda model, data: np.False_, False),
        (lambda model, data: True, True),
        (lambda model, data: data.qpos[0] > 1, True),
    ],
)
@pytest.mark.parametrize("environment", [jaxtrpo.MujocoEnvironment, jaxtrpo.MjxEnvironment])
def test_tasks_terminate_unless_their_function_is_constant(environment, terminated, may):
    assert may_terminate(environment(TASKS["Swimmer-v5"]()._replace(terminated=terminated))) == may


def test_environments_that_do_not_say_may_terminate():
    assert may_terminate(LightEnvironment())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, FAR),
        ({"env": "HalfCheetah-v5", "total_steps": 99_999}, FAR),
        ({"policy": "gru(hidden=4)"}, FAR),
        ({"frame_stack": 2}, FAR),
        ({"env": Own(may_terminate=False)}, FAR),
        ({"env": Own()}, USUAL),
        ({"env": Own(may_terminate=True)}, USUAL),
        ({"env": Own(may_terminate=None)}, USUAL),
        ({"env": Own(may_terminate=False, is_program=True)}, USUAL),
        ({"env": Own(may_terminate=False, episode_length=NO_TIME_LIMIT)}, USUAL),
        ({"max_episode_steps": 1500}, FAR),
        ({"discount": 0.99}, USUAL),
        ({"discount": 0.999}, (0.999, 0.0)),
        ({"noise_correlation": 0.0}, (0.999, 0.0)),
        ({"noise_correlation": 0.7}, (0.999, 0.7)),
        ({"discount": 0.9, "noise_correlation": 0.7}, (0.9, 0.7)),
        ({"max_episode_steps": 999}, USUAL),
        ({"env": "Hopper-v5"}, USUAL),
        ({"env": "Reacher-v5"}, USUAL),
        ({"env": "mjx:Swimmer-v5"}, USUAL),
        ({"env": "gymnasium:Swimmer-v5"}, USUAL),
        ({"env": "CartPole-v1"}, USUAL),
        ({"algorithm": "ppo"}, USUAL),
        ({"algorithm": "npg"}, USUAL),
        ({"algorithm": "a3c"}, USUAL),
        ({"algorithm": "sac"}, USUAL),
        ({"algorithm": "trpo_replay"}, USUAL),
    ],
    ids=str,
)
def test_horizon_is_as_long_as_episodes_that_never_end_early(settings, expected):
    assert chosen(**settings) == expected


def test_repeated_initial_states_change_nothing():
    assert chosen(Repeated(jaxtrpo.make_env("Swimmer-v5"), 2)) == FAR


def test_noise_that_is_not_normal_stays_independent():
    class Uniform(nn.Module):
        @nn.compact
        def __call__(self, obs):
            mean = nn.Dense(2)(obs)
            return WithUniformNoise(mean, 0 * mean)

    assert chosen(policy=Uniform()) == (0.999, 0.0)


def test_it_is_the_same_run_as_with_these_settings():
    runs = [
        jaxtrpo.train("Swimmer-v5", **TINY, **QUIET, **settings)
        for settings in ({}, {"discount": 0.999, "noise_correlation": 0.5}, {"discount": 0.99})
    ]
    assert runs[0].config == runs[1].config != runs[2].config
    assert runs[0].metrics["advantage_std"][-1] == runs[1].metrics["advantage_std"][-1]
    assert runs[0].metrics["advantage_std"][-1] != runs[2].metrics["advantage_std"][-1]


@pytest.mark.parametrize("before", [{}, {"discount": 0.99}, {"discount": 0.9, "noise_correlation": 0.7}], ids=str)
def test_resumed_run_keeps_them(tmp_path, before):
    first = jaxtrpo.train("Swimmer-v5", out=tmp_path, **TINY, **QUIET, **before)
    resumed = jaxtrpo.train("Swimmer-v5", out=tmp_path, resume=True, **{**TINY, "total_steps": 256}, **QUIET)
    assert resumed.config.discount == first.config.discount
    assert resumed.config.noise_correlation == first.config.noise_correlation
    again = prepare("Swimmer-v5", out=tmp_path, resume=True, actors=1, **TINY)
    assert not any("by default" in note for note in again.notes)
    with pytest.raises(ValueError, match="not discount=0.5"):
        prepare("Swimmer-v5", out=tmp_path, resume=True, actors=1, discount=0.5, **TINY)


def test_run_of_before_there_was_correlated_noise_is_resumed(tmp_path, monkeypatch):
    jaxtrpo.train("Swimmer-v5", out=tmp_path, discount=0.99, **TINY, **QUIET)

    def of_before(directory):
        saved = load_checkpoint(directory)
        return saved._replace(config={name: v for name, v in saved.config.items() if name != "noise_correlation"})

    monkeypatch.setattr("jaxtrpo.training.prepare.load_checkpoint", of_before)
    resumed = prepare("Swimmer-v5", out=tmp_path, resume=True, actors=1, **{**TINY, "total_steps": 256})
    assert (resumed.config.discount, resumed.config.noise_correlation) == USUAL


@pytest.mark.parametrize(("before", "expected"), [({}, FAR), ({"discount": 0.99}, USUAL), ({"discount": 0.9}, USUAL)])
def test_run_that_starts_from_another_looks_as_far_as_its_values(tmp_path, before, expected):
    jaxtrpo.train("Swimmer-v5", out=tmp_path, **TINY, **QUIET, **before)
    assert chosen(start_from=tmp_path, **TINY) == expected
    (tmp_path / "config.json").unlink()
    assert chosen(start_from=tmp_path, **TINY) == FAR


def test_they_are_written_down(tmp_path):
    jaxtrpo.train("Swimmer-v5", out=tmp_path, **TINY, **QUIET)
    written = json.loads((tmp_path / "config.json").read_text())
    found = written.get("settings", written)
    assert (found["discount"], found["noise_correlation"]) == FAR
