"""Environments in modules and files that the user names, in packages that register them, and with options."""

import dataclasses
import importlib
import itertools
import json
import os
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from counting_env import CountingEnv
from test_evaluation import BOX, policy_for

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.cli.export import Export
from jaxtrpo.config import Config, make_config
from jaxtrpo.envs import modules
from jaxtrpo.envs.modules import PROGRAMS, module_of, split
from jaxtrpo.envs.registry import KINDS, environment_for, is_program, make_env
from jaxtrpo.rollout.evaluation import where_to_act
from jaxtrpo.runs.config_file import load_config, save_config
from jaxtrpo.runs.policy_file import load_policy, save_policy
from jaxtrpo.training.prepare import prepare

SOURCE = """
import gymnasium
import jaxtrpo
from counting_env import CountingEnv
from probe import ProbeEnvironment

class Pendulum(CountingEnv):
    pass

def make(steps=7, render_mode=None):
    return gymnasium.wrappers.TimeLimit(CountingEnv(lasts=True), steps)

def own():
    return ProbeEnvironment()

probe = ProbeEnvironment()
stepped = jaxtrpo.make_env(make, processes=0)
number = 3
gymnasium.register("{name}-v0", entry_point="{name}:make")
"""
_numbers = itertools.count()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Returns the name of a module in the current directory, which Python does not search, as from a console script."""
    name = f"module_of_mine_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(SOURCE.format(name=name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    yield name
    sys.modules.pop(name, None)
    gymnasium.registry.pop(f"{name}-v0", None)


@pytest.fixture
def found(module, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return module


@pytest.mark.parametrize(
    ("form", "steps"),
    [("{0}:{0}-v0", 7), ("{0}:make", 7), ("gymnasium:{0}:make", 7), ("{0}:Pendulum", 2**31 - 1), ("{0}.py:make", 7),
     ("{0}.py:{0}-v0", 7)],
)  # fmt: skip
def test_name_in_a_module_or_file_makes_the_environment(found, form, steps):
    name = form.format(found)
    env = make_env(name, processes=0)
    assert (env.name, env.episode_length, env.observation_size) == (name, steps, 3)
    assert not is_program(name)


def test_file_is_found_from_anywhere_and_by_worker_processes(module, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    env = make_env(f"{tmp_path}/{module}.py:make", processes=1)
    state = env.reset(np.zeros(2, np.uint32), 2)
    assert env.failure is None and state.obs.shape == (2, 3)
    env.close()


def test_module_may_hold_an_environment_of_ours(found):
    probe = sys.modules.get(found) or importlib.import_module(found)
    assert make_env(f"{found}:probe", groups=2) is probe.probe
    assert make_env(f"{found}:own", groups=2).name == "probe"
    assert environment_for(f"{found}:probe", 2)[0] is probe.probe
    for _ in range(2):  # a run closes its simulators for good, but not those of the module
        made, close = environment_for(f"{found}:stepped", 1)
        assert made.reset(np.zeros(2, np.uint32), 1).obs.shape == (1, 3) and made.failure is None  # pyright: ignore
        close()
    with pytest.raises(ValueError, match=f"{found}:probe is an environment object, so steps must be set where it"):
        make_env(f"{found}:probe", steps=3)


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("mak", "has no mak; did you mean make?"),
        ("number", "must be a name, a function that returns a gymnasium.Env"),
        ("No-v0", "unknown environment 'gymnasium:No-v0'"),
    ],
)
def test_wrong_name_in_a_module_is_refused(found, inner, message):
    with pytest.raises(ValueError) as error:
        make_env(f"{found}:{inner}")
    assert message in str(error.value)


def test_wrong_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be imported: no such file: .*nowhere.py"):
        make_env("nowhere.py:make")
    (tmp_path / "json.py").write_text("")
    with pytest.raises(ValueError, match="another module is named json; rename the file"):
        make_env(f"{tmp_path}/json.py:make")


def test_shell_finds_modules_in_the_current_directory(module, tmp_path):
    name = f"{module}:make"
    with pytest.raises(ValueError, match="cannot be imported"):
        make_env(name)
    run = [str(tmp_path / "run"), "--env", name]
    (tmp_path / "run").mkdir()
    actions = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    save_policy(tmp_path / "run", dataclasses.replace(policy_for(actions, 3), env_name="gymnasium:make"))
    for command in (["train", name], ["evaluate", *run], ["export", "--card", *run], ["video", *run]):
        sys.path[:] = [each for each in sys.path if each != str(tmp_path)]
        try:
            cli.parse(command).prepare()
        except ValueError as error:
            assert command[0] == "video" and "cannot be rendered; create it with render_mode" in str(error)  # noqa: PT017
        assert str(tmp_path) in sys.path


def test_shell_does_not_search_the_current_directory_for_other_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    cli.parse(["train", "Hopper-v5"]).prepare()
    assert os.getcwd() not in sys.path


def test_names_of_programs_say_no_module():
    assert (*KINDS,) == PROGRAMS
    for prefix in PROGRAMS:
        assert split(f"{prefix}Some-v1") is None and module_of(f"{prefix}some/spring") is None
    assert split("gymnasium:mine:Some-v1") == split("mine:Some-v1") == ("mine", "Some-v1")


@pytest.mark.parametrize("name", ["brax:ant/spring", "gymnax:CartPole-v1", "mjx:Hopper-v5", "playground:CheetahRun"])
def test_run_in_a_program_is_repeated_and_evaluated_where_it_was(name, tmp_path):
    save_config(tmp_path, name, Config(total_steps=7))
    assert cli.parse(["train", "--config", str(tmp_path)]).env == name
    policy = SimpleNamespace(env_name=name, env_options=None, max_episode_steps=9)
    assert where_to_act(policy, None, None) == (name, 9, {})


@pytest.mark.parametrize("name", ["gymnasium:make", "make.<locals>.<lambda>", "Unknown"])
@pytest.mark.parametrize("command", ["evaluate", "video", "export"])
def test_policy_of_a_function_asks_for_its_module(tmp_path, capsys, name, command):
    save_policy(tmp_path, dataclasses.replace(policy_for(BOX), env_name=name))
    if command == "export":
        policy = load_policy(tmp_path)
        assert Export(tmp_path, card=True)._write_card(policy, tmp_path) == cli.FAILED
    else:
        assert cli.main([command, str(tmp_path)]) == cli.INPUT_ERROR
    told = capsys.readouterr().err
    assert "--env module:function or --env file.py:function" in told and "available" not in told


@pytest.mark.parametrize("name", ["os:getcwd", "gymnasium:os:getcwd", "evil:CartPole-v1", "evil.py:CartPole-v1"])
def test_policy_file_neither_calls_a_function_nor_imports_for_a_registered_id(name):
    with pytest.raises(ValueError, match="imports the module"):
        where_to_act(dataclasses.replace(policy_for(BOX), env_name=name), None, None)


@pytest.mark.parametrize("options", ["groups=3", "g=open('x')", "**{}"])
def test_options_of_a_policy_file_are_checked(options):
    policy = dataclasses.replace(policy_for(BOX), env_name="Pendulum-v1", env_options=options)
    with pytest.raises(ValueError, match="^env_options="):
        where_to_act(policy, None, None)


def test_policy_file_may_name_what_was_named_in_this_process(found):
    policy = dataclasses.replace(policy_for(BOX), env_name=f"{found}:make")
    with pytest.raises(ValueError, match="imports the module"):
        where_to_act(policy, None, None)
    make_env(policy.env_name, processes=0)
    assert where_to_act(policy, None, None) == (policy.env_name, None, {})


def test_config_file_does_not_choose_a_module_to_import(found, tmp_path, capsys):
    name = f"{found}:make"
    save_config(tmp_path, name, Config(seed=5))
    assert cli.main(["train", "--config", str(tmp_path)]) == cli.INPUT_ERROR
    assert "needs the module" in capsys.readouterr().err and found not in sys.modules
    assert cli.parse(["train", name, "--config", str(tmp_path)]).config.seed == 5  # pyright: ignore


def test_module_in_place_of_its_function_is_refused(found):
    module = importlib.import_module(found)
    with pytest.raises(ValueError, match=f"not the module itself: {found}.Pendulum or {found}.make"):
        prepare(module)  # pyright: ignore


def test_made_environment_in_place_of_a_function_is_refused():
    message = "must be a function that creates it, since every actor needs several: lambda: gymnasium.make"
    for env in (gymnasium.make("Pendulum-v1"), gymnasium.make_vec("Pendulum-v1", 2)):
        with pytest.raises(ValueError, match=message):
            prepare(env)  # pyright: ignore


class Picture(CountingEnv):
    def __init__(self, *shape: int, dtype: type = np.float32):
        super().__init__(lasts=True)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, dtype)

    def _observe(self):
        return np.zeros(self.observation_space.shape, self.observation_space.dtype)


@pytest.mark.parametrize(
    ("shape", "dtype", "told"),
    [
        ((12, 10, 3), np.float32, "images of shape (12, 10, 3) are flattened, so networks have 360 inputs"),
        ((12, 10, 3), np.uint8, "images with channels last: image uint8[12, 10, 3]"),
        ((3, 12, 10), np.uint8, "image uint8[12, 10, 3]; channels are axis 0 of Box(0, 255, (3, 12, 10), uint8)"),
        ((120, 3), np.uint8, None),
    ],
)
def test_images_are_noted(shape, dtype, told):
    run = prepare(lambda: Picture(*shape, dtype=dtype), actors=1, max_episode_steps=5)
    run.close()
    assert [note.endswith(told) for note in run.notes if "image" in note] == [True] * (told is not None)


class Cells(Picture):
    """An image whose first pixels are at most so large."""

    def __init__(self, largest: int):
        super().__init__(8, 8, 3, dtype=np.uint8)
        self.largest = largest

    def _observe(self):
        image = super()._observe()
        image[3, 4, 1] = self.largest
        return image


@pytest.mark.parametrize(
    ("largest", "policy", "told"),
    [
        (15, None, "is 15, but networks see pixels divided by 255"),
        (16, None, None),
        (0, None, None),
        (10, "gru", "pixel_scale=10"),
        (10, "cnn(pixel_scale=10)", None),
        (10, "gru(pixel_scale=200)", "divided by 200"),
    ],
)
def test_small_pixels_are_noted(largest, policy, told):
    run = prepare(lambda: Cells(largest), actors=1, max_episode_steps=5, policy=policy)
    run.close()
    noted = [note for note in run.notes if "largest pixel" in note]
    assert [told in note for note in noted] == [True] * (told is not None)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Returns an id that a package registers once it is imported."""
    (tmp_path / "some_package.py").write_text(SOURCE.format(name="some_package"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(modules, "PACKAGES", {"some_package": ("some_",)})
    yield "some_package-v0"
    sys.modules.pop("some_package", None)
    gymnasium.registry.pop("some_package-v0", None)


@pytest.mark.parametrize("prefix", ["", "gymnasium:"])
def test_package_that_registers_an_environment_is_imported(package, prefix):
    env = make_env(f"{prefix}{package}", processes=0)
    assert (env.name, env.episode_length) == (f"{prefix}{package}", 7)
    assert env.plan.source.module == "some_package"  # for workers
    policy = dataclasses.replace(policy_for(BOX), env_name=f"{prefix}{package}")
    assert where_to_act(policy, None, None)[0] == policy.env_name


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("ALE/Pong-v5", "ale-py"),
        ("MiniGrid-Empty-5x5-v0", "minigrid"),
        ("FetchReach-v4", "gymnasium-robotics"),
        ("AdroitHandDoor-v1", "gymnasium-robotics"),
        ("PandaReach-v3", "panda-gym"),
        ("merge-v0", "highway-env"),
        ("gymnasium:mo-hopper-v5", "mo-gymnasium"),
    ],
)
def test_missing_package_is_named(monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)  # as if it were not installed
    monkeypatch.delitem(gymnasium.registry, name.removeprefix("gymnasium:"), raising=False)
    with pytest.raises(ValueError, match=f"needs the package {package}: pip install {package}$"):
        make_env(name)


def test_unknown_id_of_a_package_is_refused(package):
    with pytest.raises(ValueError, match="unknown environment 'gymnasium:some_other-v0'; did you mean"):
        make_env("some_other-v0")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("obs_type=ram, frameskip=4", "frameskip=4, obs_type='ram'"),
        ("frameskip = 4,obs_type='ram'", "frameskip=4, obs_type='ram'"),
        ({"obs_type": "ram", "frameskip": 4}, "frameskip=4, obs_type='ram'"),
        ("a=(1, -2.5), b=None, c=True, d={'x': [1]}", "a=(1, -2.5), b=None, c=True, d={'x': [1]}"),
        ({}, None),
        ("a='true'", "a='true'"),
        ({"a": "false"}, "a='false'"),
    ],
)
def test_env_options_have_one_form(given, text):
    config = make_config({"env_options": given})
    assert config.env_options == text and make_config({"env_options": text}) == config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("frameskip", "must be literals by name, each once"),
        ("a=1, a=2", "must be literals by name, each once"),
        ("a=f(1)", "must be literals by name, each once"),
        ("**{'a': 1}", "must be literals by name, each once"),
        ("a=1)(b=2", "must be literals by name, each once"),
        ("a=./x.xml", "put other text in quotes"),
        ("b=1, continuous=false", "write continuous=False, or put false in quotes"),
        ("continuous = true", "write continuous=True, or put true in quotes"),
        ("max_episode_steps=3", "max_episode_steps is set by max_episode_steps"),
        ("groups=3", "groups is set by actors"),
        ({"a": object()}, "must be a Python literal; for other values pass a function"),
        ({"a": float("nan")}, "a=nan must be a Python literal"),
        ({"a b": 1}, "'a b' is not the name of an option"),
        (3, "env_options=3 must be a mapping or text"),
    ],
)
def test_wrong_env_options_are_refused_in_one_sentence(given, message):
    with pytest.raises(ValueError) as error:
        make_config({"env_options": given})
    assert message in str(error.value) and "env_options" in str(error.value) and len(str(error.value)) < 200


def test_env_options_reach_constructor_config_and_policy(found, tmp_path):
    name, options = f"{found}:make", {"steps": 5}
    run = prepare(name, env_options=options, out=tmp_path / "run", actors=1)
    assert (run.env.episode_length, run.config.env_options) == (5, "steps=5")
    policy = run.policy_of(run.state)
    assert policy.env_options == "steps=5"
    run.close()
    save_policy(tmp_path, policy)
    assert load_policy(tmp_path).env_options == "steps=5"
    where = where_to_act(load_policy(tmp_path), None, None)
    assert where == (name, None, {"steps": 5})
    assert environment_for(name, 1, None, where[2])[0].episode_length == 5
    assert where_to_act(policy, None, None, "steps=6")[2] == {"steps": 6}
    # In a process that has not imported it, the function must be given again, and its options need not.
    assert where_to_act(policy, name, None)[2] == {"steps": 5}
    assert where_to_act(policy, name, None, "")[2] == where_to_act(policy, "Hopper-v5", None)[2] == {}
    save_config(tmp_path, name, run.config)
    assert load_config(tmp_path)["env_options"] == "steps=5"
    assert json.loads((tmp_path / "config.json").read_text())["env_options"] == "steps=5"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Hopper-v5", "Hopper-v5 has no option steps; it has max_episode_steps; gymnasium:Hopper-v5 takes the"),
        ("brax:ant", "brax:ant has no option steps; it has backend"),
        ("mjx:Hopper-v5", "mjx:Hopper-v5 has no option steps; it has impl"),
        ("Pendulum-v1", "cannot be created: TypeError"),
    ],
)
def test_env_options_that_an_environment_lacks_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        prepare(name, env_options="steps=3")


def test_env_options_of_an_environment_that_is_made_already_are_refused():
    env = make_env("Hopper-v5")
    with pytest.raises(ValueError, match="env_options: steps must be set where Hopper-v5 is created"):
        prepare(env, env_options="steps=3")
    with pytest.raises(ValueError, match="env_options: steps must be set where Hopper-v5 is created"):
        jaxtrpo.train_many(env, env_options="steps=3")


def test_backend_and_env_options_are_refused_together(capsys):
    assert cli.main(["train", "brax:ant", "--backend", "mjx", "--env-options", "backend=spring"]) == cli.INPUT_ERROR
    assert "add backend to env_options=" in capsys.readouterr().err


class Preprocessed(gymnasium.vector.SyncVectorEnv):
    def __init__(self, num_envs):
        wrapped = gymnasium.wrappers.TimeAwareObservation
        super().__init__([lambda: wrapped(gymnasium.make("Pendulum-v1"))] * num_envs)


@pytest.mark.parametrize("options", [{}, {"g": 3.0}])
def test_vector_environment_that_observes_something_else_is_not_used(options):
    entry_point = gymnasium.spec("Pendulum-v1").entry_point
    gymnasium.register("Like-v0", entry_point, vector_entry_point=Preprocessed)
    try:
        env = make_env("Like-v0", processes=0, **options)
        assert (env.observation_size, env.plan.vector) == (3, False)
    finally:
        gymnasium.registry.pop("Like-v0")


def of_minigrid(space: gymnasium.Space) -> gymnasium.Space:
    """Returns a space whose class is in a module of the package minigrid, which need not be installed."""
    space.__class__ = type("MissionSpace", (type(space),), {"__module__": "minigrid.core.mission"})
    return space


class Odd(CountingEnv):
    """Observes as in MiniGrid, or has rewards as in MO-Gymnasium."""

    def __init__(self, mission: gymnasium.Space | None = None):
        super().__init__()
        if mission is not None:
            image = gymnasium.spaces.Box(0, 1, (2,))
            self.observation_space = gymnasium.spaces.Dict({"image": image, "mission": mission})

    def step(self, action):
        obs, _, *others = super().step(action)
        return obs, np.array([1.0, 2.0]), *others


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Odd(of_minigrid(gymnasium.spaces.Text(3))),
            "not supported; pass a function that wraps the environment with minigrid.wrappers.ImgObsWrapper or Flat",
        ),
        (
            lambda: Odd(gymnasium.spaces.Text(3)),
            "not supported; pass a function that leaves 'mission' out with gymnasium.wrappers.FilterObservation",
        ),
        (Odd, "the reward must be a number, but is .*; weight several rewards with mo_gymnasium.wrappers.LinearReward"),
    ],
)
def test_message_names_the_wrapper_that_helps(make, message):
    with pytest.raises(ValueError, match=message):
        make_env(make)
