"""`train_many`: each of many trainings is what it would be alone."""

from __future__ import annotations

import itertools
import json
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting_env import Copied
from probe import DELAYED, ProbeEnvironment
from support import counted_compilations, shared_programs
from test_algorithms import VARYING as VARYING_STEPS
from test_train import PARTS, PENDULUM, TINY, without_seconds

import jaxtrpo
from jaxtrpo.algorithms.ppo import ppo
from jaxtrpo.algorithms.surrogates import importance_weighted_advantage
from jaxtrpo.algorithms.trpo import trpo
from jaxtrpo.cli import main as cli
from jaxtrpo.config.specs import with_argument
from jaxtrpo.envs.abilities import JaxProgram, Masking, has
from jaxtrpo.envs.traced_once import TracedOnce
from jaxtrpo.rollout.replay import without_replay
from jaxtrpo.runs.checkpoint import load_checkpoint
from jaxtrpo.runs.directory import CONFIG_FILE, METRICS_FILE, OutputError
from jaxtrpo.runs.symptoms import NeverLogged
from jaxtrpo.training import batched
from jaxtrpo.training.cases import cases_of
from jaxtrpo.training.prepare import prepare
from jaxtrpo.training.record import Record
from jaxtrpo.training.train_many import _of_one_program

SMALL = {**TINY, "steps_per_update": 32, "total_steps": 192}
# Of what is quickest to compile, for tests of anything but learning.
QUICK = {**SMALL, "algorithm": "pg", "critic": "none"}
QUICK_PARTS = {**PARTS, "algorithm": "pg", "critic": "none", "adapt": VARYING_STEPS}


class Program(ProbeEnvironment):
    """As Brax's are."""

    is_program = True


class Delayed(Program):
    """With two steps to an episode, of which the first decides the reward of the second."""

    def reset(self, key, num_envs):
        state = super().reset(key, num_envs)
        return state._replace(physics=state.physics._replace(kind=jnp.full(num_envs, DELAYED, jnp.int32)))


def assert_alike(one: jaxtrpo.Result, alone: jaxtrpo.Result, rtol: float = 2e-3) -> None:
    """To rounding."""
    assert list(one.metrics) == list(alone.metrics) and one.config == alone.config
    for name in one.metrics:
        if not name.endswith("seconds"):
            np.testing.assert_allclose(one.metrics[name], alone.metrics[name], rtol=rtol, atol=rtol / 10, err_msg=name)
    state, wanted = jax.device_get((one.state, alone.state))
    if hasattr(wanted.learner, "replay"):
        wanted = wanted._replace(learner=without_replay(wanted.learner))
    assert jax.tree.structure(state) == jax.tree.structure(wanted)
    jax.tree.map(assert_nearly_all_close, state.learner, wanted.learner)
    assert state.segments == wanted.segments
    obs = np.ones((3, one.policy.observation_size))
    np.testing.assert_allclose(one.policy(obs), alone.policy(obs), rtol=rtol / 2, atol=rtol / 20)


def assert_nearly_all_close(one: np.ndarray, wanted: np.ndarray) -> None:
    """Adam makes steps of one size of gradients that are next to nothing, and so of what is rounding alone."""
    assert np.mean(~np.isclose(one, wanted, rtol=2e-3, atol=1e-3)) < 5e-3


@pytest.mark.parametrize(
    ("algorithm", "steps", "rtol"),
    [
        ("trpo", 192, 2e-3),
        ("a2c", 192, 2e-3),  # for ppo, see `test_settings_that_are_compiled_in_differ_between_trainings`
        # Its critic magnifies rounding: so much lies between the same training with and without XLA's optimisations.
        ("trpo_replay(replay=512, hidden=(8,), value_hidden=(8,))", 96, 1e-2),
    ],
)
def test_each_training_of_one_program_is_what_it_is_alone(algorithm, steps, rtol):
    some = {"total_steps": steps, "eval_every": 64, "eval_episodes": 2, "actors": 2}
    settings = {**SMALL, "algorithm": algorithm, **some}
    found = jaxtrpo.train_many(Program(), seeds=(3, 4, 9), progress=False, **settings)
    assert len(found) == 3
    with shared_programs():
        for seed, one in zip((3, 4, 9), found, strict=True):
            alone = jaxtrpo.train(Program(), progress=False, **{**settings, "seed": seed, "actors": 1})
            assert_alike(one, alone, rtol)


def test_batches_may_differ_and_end_at_different_times():
    settings = {**QUICK_PARTS, "eval_every": 0, "total_steps": 320, "max_steps_per_update": 64}
    del settings["steps_per_update"]
    with shared_programs():
        alone = [
            jaxtrpo.train(Program(), seed=seed, steps_per_update=steps, actors=1, progress=False, **settings)
            for steps in (32, 64)
            for seed in range(2)
        ]
    assert len({len(each.metrics["update"]) for each in alone}) > 1  # otherwise this tests nothing
    found = jaxtrpo.train_many(Program(), seeds=range(2), steps_per_update=[32, 64], progress=False, **settings)
    for one, wanted in zip(found, alone, strict=True):
        assert_alike(one, wanted)


def test_settings_that_are_data_differ_between_trainings_of_one_program(tmp_path):
    found = jaxtrpo.train_many(
        Program(), seeds=(1, 2), max_kl=[0.001, 0.1], cg_damping=(0.1,), out=tmp_path, progress=False, **SMALL
    )
    programs: dict = {}
    names = [f"max_kl={kl}/cg_damping=0.1/seed-{seed}" for kl in (0.001, 0.1) for seed in (1, 2)]
    assert sorted(str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob(METRICS_FILE)) == sorted(names)
    for name, one in zip(names, found, strict=True):
        config = json.loads((tmp_path / name / CONFIG_FILE).read_text())
        assert str(one.config.max_kl) in name and "cg_damping=0.1" in config["algorithm"] == one.config.algorithm
        settings = jaxtrpo.load_config(tmp_path / name)
        with shared_programs(programs):
            again = jaxtrpo.train(progress=False, **{**settings, "env": Program(), "actors": 1})
        assert_alike(one, again)
        assert jaxtrpo.load_policy(tmp_path / name)(np.ones(2)).shape == (1,)


def without_losses(new, samples):
    """A surrogate of a person's own."""
    return jnp.maximum(importance_weighted_advantage(new, samples), -0.2)


@pytest.mark.parametrize(
    ("settings", "name", "values"),
    [
        ({"surrogate": without_losses, "algorithm": "trpo"}, "cg_damping", [0.001, 10.0]),
        ({"algorithm": "pg(learning_rate=0.1)"}, "discount", [0.5, 0.99]),
        ({"algorithm": "pg(learning_rate=0.1)"}, "num_envs", [4, 8]),
        ({"algorithm": "ppo(epochs=2, minibatch_size=16)", "critic": None}, "learning_rate", [1e-4, 1e-2]),
    ],
)
def test_settings_that_are_compiled_in_differ_between_trainings(settings, name, values):
    settings = {**QUICK, "total_steps": 128, **settings}
    found = jaxtrpo.train_many(Delayed(), seeds=(3,), progress=False, **{**settings, name: values})
    # The first is not that of the second, so one of them is enough.
    one, other = (each.policy(np.ones((1, 2))) for each in found)
    assert not np.allclose(one, other, 1e-2)
    alone = with_setting(settings, name, values[1])
    assert_alike(found[1], jaxtrpo.train(Delayed(), seed=3, actors=1, progress=False, **alone))


def with_setting(settings, name, value):
    if name in ("discount", "num_envs"):
        return {**settings, name: value}
    return {**settings, "algorithm": with_argument(settings["algorithm"], name, value)}


def groups_of(**arguments) -> list[list[int]]:
    cases = cases_of(arguments.pop("seeds", (0,)), {**QUICK, **arguments})
    cases = [case._replace(arguments={**case.arguments, "actors": 1}) for case in cases]
    groups = _of_one_program(Program(), cases, jax.devices("cpu")[:1])
    assert groups is not None
    return groups


@pytest.mark.parametrize(
    ("arguments", "groups"),
    [
        ({"seeds": (3, 5)}, [[0, 1]]),
        ({"seeds": (3, 5), "learning_rate": [0.1, 0.2], "gae_lambda": [0.1, 0.2]}, [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ({"steps_per_update": [32, 64], "max_steps_per_update": 64}, [[0, 1]]),
        ({"steps_per_update": [32, 64], "adapt": "fixed"}, [[0], [1]]),
        ({"algorithm": trpo(), "max_kl": [0.1, 0.2]}, [[0, 1]]),
        ({"algorithm": "ppo(epochs=1, minibatch_size=16)", "clip": [0.1, 0.2]}, [[0, 1]]),
        ({"algorithm": "naf(hidden=(8,))", "replay": [512, 1024]}, [[0], [1]]),
        ({"entropy_bonus": [0.0, 3.0]}, [[0], [1]]),
        ({"algorithm": "ppo(minibatch_size=16)", "epochs": [1, 4]}, [[0], [1]]),
    ],
)
def test_trainings_that_differ_in_data_alone_are_one_program(arguments, groups):
    assert groups_of(**arguments) == groups


def test_a_program_is_told_apart_by_what_it_closes_over():
    def program(number: float, size: int = 5000) -> str:
        table = np.arange(size, dtype=np.float32)
        table[-1] = number

        def surrogate(new, samples):
            return importance_weighted_advantage(new, samples) * jnp.max(table)

        return prepare(Program(), surrogate=surrogate, actors=1, **{**SMALL, "critic": "none"}).update.program()

    assert program(1e6) == program(1e6)
    assert program(1e6) != program(2e6)


def test_one_program_is_compiled_once_for_all_seeds_and_values():
    def compilations(seeds: int, values: list[float]) -> int:
        with counted_compilations() as compiled:
            jaxtrpo.train_many(Program(), seeds=range(seeds), learning_rate=values, progress=False, **QUICK)
        return len(compiled)

    compilations(2, [0.1])
    assert compilations(6, [0.1]) == compilations(1, [0.1, 0.2, 0.3, 0.4])


@pytest.mark.shared_programs
@pytest.mark.parametrize("env", [PENDULUM, Delayed()])
def test_trainings_go_on_where_they_were(env, tmp_path):
    settings = {"seeds": (0, 1), "progress": False, **QUICK_PARTS}
    whole = jaxtrpo.train_many(env, out=tmp_path / "whole", **settings, total_steps=640)
    part = {"out": tmp_path / "part", **settings}
    jaxtrpo.train_many(env, **part, total_steps=192)
    if env == PENDULUM:  # one program of another number of trainings rounds otherwise
        jaxtrpo.train_many(env, **{**part, "seeds": (0,)}, total_steps=320, resume=True)
    on = jaxtrpo.train_many(env, **part, total_steps=640, resume=True)
    for seed, (one, wanted) in enumerate(zip(on, whole, strict=True)):
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(one.state), jax.device_get(wanted.state))
        assert without_seconds(tmp_path / f"part/seed-{seed}") == without_seconds(tmp_path / f"whole/seed-{seed}")
        assert (np.diff(one.metrics["wall_seconds"]) > 0).all()


@pytest.mark.shared_programs
def test_trainings_of_several_programs_go_on_where_they_were(tmp_path):
    settings = {**QUICK, "adapt": "fixed", "progress": False, "learning_rate": [0.01, 0.1], "gae_lambda": [0.5, 0.9]}
    whole = jaxtrpo.train_many(Delayed(), out=tmp_path / "whole", **{**settings, "total_steps": 256})
    jaxtrpo.train_many(Delayed(), out=tmp_path / "part", **{**settings, "total_steps": 128})
    on = jaxtrpo.train_many(Delayed(), out=tmp_path / "part", resume=True, **{**settings, "total_steps": 256})
    order = list(itertools.product((0.01, 0.1), (0.5, 0.9)))  # trainings of one program are not neighbours
    for (rate, gae_lambda), one, wanted in zip(order, on, whole, strict=True):
        assert one.config.algorithm == f"pg(learning_rate={rate}, gae_lambda={gae_lambda})"
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(one.state), jax.device_get(wanted.state))
        place = f"learning_rate={rate}/gae_lambda={gae_lambda}/seed-0"
        assert without_seconds(tmp_path / "part" / place) == without_seconds(tmp_path / "whole" / place)


@pytest.mark.shared_programs
@pytest.mark.parametrize(("interrupted", "left"), [(1, 2), (2, 4)])
def test_an_interrupt_ends_all_programs(interrupted, left, tmp_path):
    seen = []

    def interrupt(row, state):
        seen.append(row["update"])
        if row["update"] == 3 and seen.count(1) == 2 * interrupted:
            raise KeyboardInterrupt

    settings = {"seeds": (0, 1), "gae_lambda": [0.5, 0.9], "out": tmp_path, **QUICK}
    with pytest.raises(KeyboardInterrupt) as error:
        jaxtrpo.train_many(Program(), on_update=interrupt, progress=False, **settings)
    found = error.value.result
    assert len(found) == left
    assert [each.config.algorithm for each in found] == [f"pg(gae_lambda={each})" for each in (0.5, 0.9)
                                                         for _ in range(2)][:left]  # fmt: skip
    assert len(found[-2].metrics["update"]) == 3 and len(found[0].metrics["update"]) == (3 if interrupted == 1 else 7)
    assert len(list(tmp_path.rglob(METRICS_FILE))) == left


def test_trainings_of_later_programs_count_their_own_seconds():
    found = jaxtrpo.train_many(Program(), gae_lambda=[0.5, 0.9], progress=False, **QUICK)
    first, second = (each.metrics["wall_seconds"] for each in found)
    assert second[0] < first[0] + first[-1]


@pytest.mark.shared_programs
@pytest.mark.parametrize("env", [PENDULUM, "CartPole-v1"])
def test_trainings_side_by_side_are_to_the_bit_what_each_is_alone(env):
    settings = {**QUICK, "eval_every": 64, "eval_episodes": 2}
    found = jaxtrpo.train_many(env, seeds=(5, 6, 7), progress=False, **settings)
    for seed, one in zip((5, 6, 7), found, strict=True):
        alone = jaxtrpo.train(env, seed=seed, actors=1, progress=False, **settings)
        jax.tree.map(
            np.testing.assert_array_equal, jax.device_get(one.state.learner), jax.device_get(alone.state.learner)
        )
        np.testing.assert_array_equal(one.metrics["eval_return"], alone.metrics["eval_return"])


@pytest.mark.shared_programs
def test_a_run_with_other_settings_is_no_run_to_go_on_with(tmp_path):
    jaxtrpo.train_many(PENDULUM, seeds=(0, 1), out=tmp_path, progress=False, **QUICK)
    with pytest.raises(ValueError, match=r"resume=True \(--resume\): the run has discount=0.99, not discount=0.9"):
        jaxtrpo.train_many(PENDULUM, seeds=(0, 1), out=tmp_path, progress=False, resume=True, discount=0.9, **QUICK)


@pytest.mark.shared_programs
@pytest.mark.parametrize("env", [PENDULUM, Program()])
def test_an_interrupt_ends_all_with_what_they_have(env, tmp_path):
    def interrupt(row, state):
        if row["update"] == 3:
            raise KeyboardInterrupt

    settings = {**QUICK, "total_steps": 64_000, "out": tmp_path, "on_update": interrupt}
    with pytest.raises(KeyboardInterrupt) as error:
        jaxtrpo.train_many(env, seeds=(0, 1), progress=False, **settings)
    found = error.value.result
    assert len(found) == 2
    for seed, one in enumerate(found):
        assert 0 < len(one.metrics["update"]) < 2_000
        rows = (tmp_path / f"seed-{seed}" / METRICS_FILE).read_text().count("\n") - 1
        assert rows == len(one.metrics["update"])


@pytest.mark.shared_programs
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["interrupt", "termination"])
def test_a_signal_while_one_training_is_saved_lets_all_be_saved(number, tmp_path, monkeypatch):
    save = Record.save

    def interrupted(record):
        signal.raise_signal(number)
        save(record)

    monkeypatch.setattr(Record, "save", interrupted)
    wanted = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(wanted) as error:
        jaxtrpo.train_many(Program(), seeds=(0, 1, 2), out=tmp_path, progress=False, **QUICK)
    if number == signal.SIGINT:
        assert len(error.value.result) == 3
    else:
        assert error.value.code == 143
    for seed in range(3):
        assert load_checkpoint(tmp_path / f"seed-{seed}").metrics["env_steps"][-1] >= QUICK["total_steps"]


def test_termination_before_the_first_update_is_no_interrupt(tmp_path, monkeypatch):
    monkeypatch.setattr(batched, "_first_state", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as error:
        jaxtrpo.train_many(Program(), seeds=(0, 1), out=tmp_path, progress=False, **QUICK)
    assert error.value.code == 143


@pytest.mark.shared_programs
def test_warning_of_trainings_side_by_side_is_shown_once(capsys):
    settings = {**QUICK, "total_steps": 2_048, "log_info": "succes"}
    jaxtrpo.train_many("CartPole-v1", seeds=(0, 1), **settings)
    warnings = [line for line in capsys.readouterr().err.splitlines() if "succes" in line]
    assert len(warnings) == 1 and warnings[0].startswith("seed-") and "log_info" in warnings[0]


def test_entry_that_one_of_the_trainings_has_is_noticed():
    """In turns, so that the mean over the trainings never has it."""
    mean, blank = {"success": np.nan, "episodes": 50}, None

    def noticed(*values):
        parts = [SimpleNamespace(record=SimpleNamespace(last={"success": value})) for value in values]
        return batched._noticed(parts, mean, ("success",))

    watch = NeverLogged("success")
    assert noticed(blank, 1.0)["success"] == noticed(1.0, np.nan)["success"] == 1.0
    assert watch.note([noticed(blank, 1.0)]) is watch.note([noticed(blank, np.nan)]) is None
    assert NeverLogged("success").note([noticed(blank, np.nan)]) is not None


@pytest.mark.shared_programs
@pytest.mark.parametrize("fails", [False, True])
def test_a_training_that_cannot_be_saved_does_not_keep_the_others(fails, tmp_path, monkeypatch):
    save = Record.save

    def full(record):
        if record._plan.config.seed == 0:
            raise OutputError("the disk is full")
        save(record)

    def fail(row, state):
        if fails and row["update"] == 3:
            raise RuntimeError("mine")

    monkeypatch.setattr(Record, "save", full)
    with pytest.raises(RuntimeError if fails else OutputError, match="mine" if fails else "full"):
        jaxtrpo.train_many(Program(), seeds=(0, 1, 2), out=tmp_path, progress=False, on_update=fail, **QUICK)
    for seed in (1, 2):
        assert len(load_checkpoint(tmp_path / f"seed-{seed}").metrics["update"]) >= 2


@pytest.mark.shared_programs
def test_an_error_ends_all_and_keeps_its_traceback(tmp_path):
    def fail(row, state):
        if row["update"] == 3:
            raise RuntimeError("mine")

    for env in (PENDULUM, Program()):
        with pytest.raises(RuntimeError, match="mine"):
            jaxtrpo.train_many(env, seeds=(0, 1), progress=False, on_update=fail, **{**QUICK, "total_steps": 64_000})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"eval_every": [4, 8]}, r"eval_every=\[4, 8\] must be a single value; only seeds, max_kl, "),
        ({"policy": ["mlp", "mlp"]}, "policy=.* must be a single value"),
        ({"seed": 3}, r"seed=3: train_many takes seeds, such as seeds=\[3\]"),
        ({"seeds": ()}, "seeds: give at least one"),
        ({"max_kl": []}, r"max_kl=\[\]"),
        ({"max_kl": [0.1, -1.0]}, "max_kl=-1.0"),
        ({"gae_lambda": [0.5, 2.0]}, "gae_lambda=2.0"),
        ({"clip": [0.1, 0.2]}, "clip"),
        ({"steps_per_update": [32, 4096], "num_envs": 64}, "steps_per_update=32 is below one segment"),
        ({"algorithm": trpo(), "gae_lambda": [0.5]}, "gae_lambda=0.5: for an algorithm given as a value"),
        ({"algorithm": "trpo(gae_lambda=0.9)", "gae_lambda": [0.9, 0.5]}, "gae_lambda=0.9.*gae_lambda=0.5 contradict"),
        ({"seeds": (1, -1)}, "seed=-1"),
        ({"algorithm": ppo(), "max_kl": [0.1]}, "max_kl"),
        ({"actors": 1000}, "actors=1000"),
        ({"max_kl": ["wide"]}, "max_kl='wide' must be a number"),
        ({"max_kl": [0.1, 0.1]}, "seeds, max_kl: max_kl=0.1/seed-0 occurs twice"),
        ({"seeds": (3, 3)}, "seeds, settings: seed-3 occurs twice"),
        ({"seeds": ("a",)}, "seed='a'"),
        ({"seeds": 3}, r"seeds=3 must be a sequence of seeds, such as range\(3\)"),
        ({"seeds": None}, "seeds=None must be a sequence of seeds"),
        ({"actors": [1, 2]}, r"actors=\[1, 2\] must be a whole number"),
        ({"on_update": 5}, "on_update=5 must be a function"),
        ({"processes": 2}, r"processes=2: train_many \(--seeds\) supports only a single process"),
    ],
)
def test_invalid_lists_are_refused_before_training(arguments, told, tmp_path):
    with pytest.raises((ValueError, TypeError), match=told):
        jaxtrpo.train_many(Program(), out=tmp_path / "new", **{"total_steps": 64, "progress": False, **arguments})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("out", "told"), [("", "out='' must name"), (5, "out=5 must be the path of a directory")])
def test_directory_that_is_none_is_refused(out, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=told):
        jaxtrpo.train_many(Program(), seeds=(0,), out=out, **QUICK)
    assert not list(tmp_path.iterdir())


def test_names_tell_close_values_apart():
    found = cases_of(np.arange(1), {"max_kl": [0.1, 0.1000000001], "steps_per_update": [1048576, 1048577]})
    assert len({case.name for case in found}) == 4
    assert found[0].name == "max_kl=0.1/steps_per_update=1048576/seed-0"
    assert cases_of((0,), {"discount": np.array(0.9)})[0].arguments == {"discount": 0.9, "seed": 0}


def test_arrays_are_lists():
    for values in (np.array([0.25, 0.5]), jnp.array([0.25, 0.5])):
        assert [case.chosen for case in cases_of((0,), {"max_kl": values})] == [{"max_kl": 0.25}, {"max_kl": 0.5}]
    (case,) = cases_of((0,), {"max_kl": jnp.float32(0.25)})
    assert case.chosen == {} and case.arguments["max_kl"] == 0.25


def test_runs_with_batches_of_different_sizes_are_not_resumed_together(tmp_path):
    for seed, num_envs in ((0, 4), (1, 8)):
        jaxtrpo.train_many(Program(), seeds=[seed], out=tmp_path, **{**SMALL, "num_envs": num_envs})
    without = {name: value for name, value in SMALL.items() if name != "num_envs"}
    with pytest.raises(ValueError, match="batches of different sizes .*; resume those of equal sizes together"):
        jaxtrpo.train_many(Program(), seeds=[0, 1], out=tmp_path, resume=True, **without)
    jaxtrpo.train_many(Program(), seeds=[1], out=tmp_path, resume=True, **without)


def test_settings_of_a_part_are_written_into_its_spec_string():
    found = cases_of((0,), {"algorithm": "ppo(epochs=2)", "clip": [0.1]})
    assert found[0].name == "clip=0.1/seed-0"
    assert found[0].arguments["algorithm"] == "ppo(epochs=2, clip=0.1)"


def test_many_seeds_from_the_shell(tmp_path, capsys):
    words = ["--total-steps", "64", "--steps-per-update", "32", "--num-envs", "4", "--policy", "mlp(hidden=(8,))"]
    words += ["--algorithm", "pg", "--critic", "none"]
    out = tmp_path / "runs"
    assert cli.main(["train", PENDULUM, "--seeds", "3", "--seed", "4", "--out", str(out), "--quiet", *words]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["seed-4", "seed-5", "seed-6"]
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "3 seeds" in said and "interquartile mean" in said and str(out) in said
    assert cli.main(["train", PENDULUM, "--seeds", "0", *words]) == cli.INPUT_ERROR
    assert "seeds=0" in capsys.readouterr().err


@pytest.mark.shared_programs
@pytest.mark.parametrize("env", [Program(), PENDULUM])
def test_results_hold_no_replay_buffers(env):
    """Of trainings in one program, and side by side."""
    words = {"algorithm": "naf(replay=64, minibatch_size=8, hidden=(8,))", "critic": "none", "adapt": "fixed"}
    for one in jaxtrpo.train_many(env, seeds=(1, 2), progress=False, **{**SMALL, **words}):
        assert one.state.learner.replay is None and np.isfinite(one.policy(np.zeros(one.policy.observation_size))).all()


def test_environment_that_is_traced_once_has_the_abilities_of_the_other():
    assert has(TracedOnce(Program()), JaxProgram) and not has(TracedOnce(Program()), Masking)


def test_class_with_a_method_copy_is_a_function_that_makes_simulators():
    settings = {"policy": "mlp(hidden=())", "critic": "none", "num_envs": 2, "steps_per_update": 16, "total_steps": 32}
    options = {"processes": 0}
    found = jaxtrpo.train_many(Copied, seeds=(0, 1), actors=2, env_options=options, progress=False, **settings)
    assert [len(result.metrics["update"]) > 1 for result in found] == [True, True]
