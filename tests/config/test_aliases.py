"""Names of other libraries, each with one hint at what to write here."""

from __future__ import annotations

import ast
import dataclasses
import inspect

import pytest

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.config import Config, make_config
from jaxtrpo.config.aliases import ALIASES, PARTS, SENTENCES, advice, known_elsewhere, swept_name
from jaxtrpo.config.specs import KINDS, factory, parse, settings_in
from jaxtrpo.training.options import Options

RUN = [field.name for field in dataclasses.fields(Config)]
TYPED = [
    # setting, value, algorithm, in Python, in the shell
    ("gamma", 0.9, "trpo", "discount=0.9", "--discount 0.9"),
    ("total_timesteps", 10, "ppo", "total_steps=10", "--total-steps 10"),
    ("n_envs", 4, "trpo", "num_envs=4", "--num-envs 4"),
    ("batch_size", 64, "ppo(clip=0.1)", 'algorithm="ppo(clip=0.1, minibatch_size=64)"', None),
    ("batch_size", 64, "trpo", "steps_per_update=64", "--steps-per-update 64"),
    ("target_kl", 0.02, "trpo", "max_kl=0.02", "--max-kl 0.02"),
    ("target_kl", 0.02, "ppo", 'algorithm="ppo(kl_stop=0.02)"', '--algorithm "ppo(kl_stop=0.02)"'),
    ("lr", 0.001, "a2c", 'algorithm="a2c(learning_rate=0.001)"', '--algorithm "a2c(learning_rate=0.001)"'),
    ("learning_rate", 0.1, "ppo(learning_rate=0.2)", 'algorithm="ppo(learning_rate=0.1)"', None),
    (
        "learning_rate", 0.1, "trpo",
        'algorithm="ppo(learning_rate=0.1)" or critic="mlp(learning_rate=0.1)" (trpo has no learning_rate)',
        '--algorithm "ppo(learning_rate=0.1)" or --critic "mlp(learning_rate=0.1)" (trpo has no learning_rate)',
    ),
    ("gae_lambda", 0.9, "trpo", 'algorithm="trpo(gae_lambda=0.9)"', '--algorithm "trpo(gae_lambda=0.9)"'),
    ("ent_coef", 0.1, "trpo", 'algorithm="ppo(entropy_bonus=0.1)" (trpo has no entropy_bonus)', None),
    ("clip_range", 0.3, "ppo", 'algorithm="ppo(clip=0.3)"', '--algorithm "ppo(clip=0.3)"'),
    ("clip_range", lambda progress: progress, "ppo", 'algorithm="ppo(clip=...)"', None),
    ("hidden_sizes", (8, 8), "trpo", 'policy="mlp(hidden=(8, 8))"', '--policy "mlp(hidden=(8, 8))"'),
    ("critic_learning_rate", 0.1, "ppo", 'critic="mlp(learning_rate=0.1)"', '--critic "mlp(learning_rate=0.1)"'),
    ("algorithm_clip", 0.1, "ppo", 'algorithm="ppo(clip=0.1)"', '--algorithm "ppo(clip=0.1)"'),
    ("ridge", 0.1, "trpo", 'critic="linear(ridge=0.1)"', '--critic "linear(ridge=0.1)"'),
    ("norm_obs", False, "trpo", "normalize_observations=False", "--no-normalize-observations"),
    ("verbose", 1, "trpo", "progress=False to hide the progress", "--quiet to hide the progress"),
    ("n_steps", 8, "trpo", "steps_per_update=2048, the steps of all environments together", None),
    ("nonsense", 1, "trpo", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "algorithm", "python", "shell"), TYPED)
def test_advice_is_what_to_type(name, value, algorithm, python, shell):
    assert advice(name, value, algorithm=algorithm) == python
    if shell is not None:
        assert advice(name, value, algorithm=algorithm, shell=True) == shell


@pytest.mark.parametrize("algorithm", ["trpo", "ppo", "naf", "custom"])
@pytest.mark.parametrize("name", ALIASES)
def test_every_alias_leads_to_a_setting_that_exists(name, algorithm):
    assert name not in RUN and name not in Options._fields
    first = advice(name, 1, algorithm=algorithm).partition('" or ')[0].partition(" (")[0]
    closed = first + '"' * (first.count('"') % 2)
    call = ast.parse(f"train({closed})", mode="eval").body
    ((setting, value),) = [(each.arg, ast.literal_eval(each.value)) for each in call.keywords]
    assert setting in RUN and (setting not in KINDS or settings_in(setting, value))


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences_name_flags_and_arguments_that_exist(name):
    python, shell = SENTENCES[name]
    assert name not in RUN and name not in Options._fields
    arguments = {*RUN, *Options._fields, *inspect.signature(jaxtrpo.train).parameters}
    assert python.partition("=")[0] in arguments or python.startswith(("train(", "train_many("))
    if shell.startswith("--"):
        flag = shell.split()[0].removeprefix("--").replace("-", "_")
        assert flag in {*RUN, *(field.name for field in dataclasses.fields(cli.Train))}


@pytest.mark.parametrize(("name", "value", "algorithm", "python", "shell"), TYPED[:-1])
def test_settings_of_a_script_get_the_advice(name, value, algorithm, python, shell):
    with pytest.raises(TypeError) as error:
        make_config({name: value}, algorithm=algorithm)
    assert str(error.value) == f"unknown setting {name!r}; write {python}"


def test_training_passes_its_algorithm_on():
    for algorithm in ("ppo(clip=0.1)", jaxtrpo.ppo(clip=0.1)):
        with pytest.raises(TypeError, match=r'write algorithm="ppo\(clip=0.1, learning_rate=0.5\)"$'):
            jaxtrpo.train("Hopper-v5", algorithm=algorithm, lr=0.5)


@pytest.mark.parametrize("command", ["train", "sweep"])
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--gamma 0.9", "unknown flag --gamma; write --discount 0.9"),
        ("--gamma=0.9", "unknown flag --gamma; write --discount 0.9"),
        ("--lr 0.01 --algorithm ppo", 'unknown flag --lr; write --algorithm "ppo(learning_rate=0.01)"'),
        ("--clip-range 0.3 --algorithm=ppo", 'unknown flag --clip-range; write --algorithm "ppo(clip=0.3)"'),
        ("--clip_range 0.3 --algorithm=ppo", 'unknown flag --clip_range; write --algorithm "ppo(clip=0.3)"'),
        ("--verbose", "unknown flag --verbose; write --quiet to hide the progress"),
        ("--normalize-obs", "unknown flag --normalize-obs; write --normalize-observations"),
    ],
)
def test_flags_of_the_shell_get_the_advice(command, flags, told, capsys):
    assert cli.main([command, "Hopper-v5", *flags.split()]) == cli.INPUT_ERROR
    assert capsys.readouterr().err == f"jaxtrpo: error: {told}\n"


@pytest.mark.parametrize(
    ("name", "algorithm", "right"),
    [
        ("gamma", "trpo", "discount"),
        ("batch_size", "ppo", "algorithm_minibatch_size"),
        ("batch_size", "trpo", "steps_per_update"),
        ("lr", "ppo(clip=0.1)", "algorithm_learning_rate"),
        ("learning_rate", "trpo", "critic_learning_rate"),
        ("hidden_sizes", "trpo", "policy_hidden"),
        ("nonsense", "trpo", None),
    ],
)
def test_sweeps_get_the_name_that_they_use(name, algorithm, right, capsys):
    assert swept_name(name, algorithm) == right
    command = ["sweep", "Hopper-v5", "--grid", f"{name}=0.5", "--algorithm", algorithm]
    assert cli.main(command) == cli.INPUT_ERROR
    hint = f"did you mean {right}?" if right else "settings of a spec string look like critic_learning_rate"
    assert capsys.readouterr().err == f"jaxtrpo: error: unknown setting {name!r}; {hint}\n"


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("algorithm", "PPO", "use ppo"),
        ("algorithm", "TRPO", "use trpo"),
        ("algorithm", "SAC", "use sac"),
        ("algorithm", "TD3", "use sac or trpo_replay, which also learn from a replay buffer"),
        (
            "algorithm",
            "rainbow",
            "use dqn, which has double Q-learning and n-step returns",
        ),
        ("algorithm", "REINFORCE", "use pg"),
        ("policy", "MlpPolicy", "use mlp"),
        ("policy", "CnnPolicy", "use cnn, the default for observations with images"),
        ("critic", "MLP", "use mlp"),
    ],
)
def test_parts_of_other_libraries_get_one_hint(kind, name, told):
    with pytest.raises(ValueError) as error:
        parse(kind, name)
    assert str(error.value) == f"{kind}={name!r}: unknown {kind} {name!r}; {told}"


def test_every_hint_names_parts_that_exist():
    for kind, names in PARTS.items():
        for name in names:
            words = known_elsewhere(kind, name.upper()).replace(",", "").split()
            assert words[0] == "use" and callable(factory(kind, words[1])) and name not in KINDS[kind]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in PARTS for name in PARTS[kind] if "lstm" in name])
def test_advice_for_networks_with_memory_names_one(kind, name):
    assert "lstm" in known_elsewhere(kind, name).replace(",", "").split()


def test_advice_for_memory_is_found_by_the_name_that_others_use():
    assert "lstm" in known_elsewhere("algorithm", "RecurrentPPO").split()
