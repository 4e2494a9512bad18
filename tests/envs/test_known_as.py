"""Names under which files know environments."""

from __future__ import annotations

import gymnasium
import pytest

import jaxtrpo
from jaxtrpo.envs.abilities import made_with
from jaxtrpo.envs.known_as import is_known, name_in_files

HERE = f"{__file__}:"
PENDULUM = {"g": 5.0, "processes": 0}


class FetchLike(gymnasium.Wrapper):
    """Named like the environments of a package that jaxtrpo knows."""

    def __init__(self, g: float = 10.0):
        super().__init__(gymnasium.make("Pendulum-v1", g=g))


def make_changed():
    hopper = jaxtrpo.make_env("Hopper-v5")
    return jaxtrpo.MujocoEnvironment(hopper.task._replace(frame_skip=2))


def make_usual():
    return jaxtrpo.make_env("Hopper-v5", max_episode_steps=9)


def make_pendulum():
    return jaxtrpo.make_env("Pendulum-v1", **PENDULUM)


changed = make_changed()
pendulum = make_pendulum()


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("Hopper-v5", "Hopper-v5"),
        ("gymnasium:Pendulum-v1", "gymnasium:Pendulum-v1"),
        (make_changed, "gymnasium:make_changed"),
        (make_usual, "gymnasium:make_usual"),
        (FetchLike, "gymnasium:FetchLike"),
        (HERE + "make_changed", HERE + "make_changed"),
        (HERE + "FetchLike", HERE + "FetchLike"),
        (HERE + "changed", HERE + "changed"),
        (HERE + "pendulum", HERE + "pendulum"),
    ],
)
def test_environment_is_known_by_what_was_given(env, name):
    made = jaxtrpo.make_env(env)
    assert name_in_files(env, made) == name


@pytest.mark.parametrize(
    ("made", "name", "settings"),
    [
        (jaxtrpo.make_env("Hopper-v5"), "Hopper-v5", (None, None)),
        (make_usual(), "Hopper-v5", (9, None)),
        (jaxtrpo.make_env(make_usual), "Hopper-v5", (9, None)),
        (changed, "Hopper-v5 (own)", None),
        (jaxtrpo.make_env(make_changed), "Hopper-v5 (own)", None),
        (jaxtrpo.make_env(HERE + "make_changed"), "Hopper-v5 (own)", None),
        (jaxtrpo.make_env(HERE + "changed"), "Hopper-v5 (own)", None),
        (jaxtrpo.make_env(HERE + "pendulum"), "Pendulum-v1", (None, "g=5.0, processes=0")),
        (jaxtrpo.make_env(FetchLike, g=3.0, processes=1), "gymnasium:FetchLike", (None, "g=3.0, processes=1")),
    ],
    ids=[
        "name",
        "limit",
        "function",
        "own",
        "own of a function",
        "own of a module",
        "own object of a module",
        "options",
        "class",
    ],
)
def test_object_is_known_by_how_it_was_made(made, name, settings):
    assert name_in_files(made, made) == name
    assert made_with(made) == settings


def test_name_that_a_policy_tells_is_known_if_it_says_how_to_make_the_environment():
    known = ("Hopper-v5", "brax:ant", "gymnasium:CartPole-v1", "CartPole-v1", "FetchReach-v4", "gymnasium:ALE/Pong-v5")
    unknown = ("Hopper-v5 (own)", "gymnasium:FetchLike", "gymnasium:make_usual", "never.py:chosen", "Hopper-v55")
    assert all(map(is_known, known))
    assert not any(map(is_known, unknown))
