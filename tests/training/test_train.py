"""Training as a user starts it: `jaxtrpo.train` on real environments."""

from __future__ import annotations

import csv
import dataclasses
import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization
from support import counted_compilations, with_method

import jaxtrpo
from jaxtrpo.adapt import Rule, improvement
from jaxtrpo.algorithms.surrogates import importance_weighted_advantage
from jaxtrpo.config import Config
from jaxtrpo.policies.distributions import entropy
from jaxtrpo.runs.checkpoint import load_checkpoint, require_same_run, restore, save_checkpoint
from jaxtrpo.runs.directory import CHECKPOINT_FILE, METRICS_FILE
from jaxtrpo.runs.msgpack_file import content_of
from jaxtrpo.runs.termination import Interrupted
from jaxtrpo.training.run import Run
from jaxtrpo.training.train import prepare
from jaxtrpo.training.update import gather

TINY = {
    "segment_length": 4, "num_envs": 4, "policy": "mlp(hidden=(8,))", "critic": "mlp(hidden=(8,), epochs=1)",
}  # fmt: skip
PENDULUM = "InvertedPendulum-v5"
pytestmark = pytest.mark.shared_programs


def tiny(env=PENDULUM, **settings) -> dict:
    """A few updates; the columns of their metrics."""
    return jaxtrpo.train(env, progress=False, **{**TINY, "steps_per_update": 32, "total_steps": 96, **settings}).metrics


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    result = jaxtrpo.train(PENDULUM, total_steps=60_000, eval_every=10_000, out=out, progress=False)
    return result, out


def test_learns_to_balance_the_pole(trained):
    result, _ = trained
    assert np.nanmax(result.metrics["eval_return"]) >= 950
    evaluation = jaxtrpo.evaluate(result.policy, episodes=10, seed=1)
    assert evaluation.returns.shape == (10,) and evaluation.mean >= 950


def test_metrics_hold_what_happened(trained):
    result, out = trained
    metrics = result.metrics
    # The first batch is a segment of 16 steps in 16 environments.
    np.testing.assert_array_equal(metrics["env_steps"], 256 + 1024 * np.arange(len(metrics["update"])))
    assert np.all(metrics["kl"] <= metrics["max_kl"]) and np.all(metrics["steps_per_update"][1:] == 1024)
    assert np.all(metrics["collect_seconds"] + metrics["learn_seconds"] <= np.diff(metrics["wall_seconds"], prepend=0))
    assert (out / "metrics.csv").read_text().count("\n") == 1 + len(metrics["update"])


def test_policy_from_disk_acts_alike_on_numpy_and_jax(trained):
    result, out = trained
    loaded = jaxtrpo.load_policy(out)
    obs = np.random.default_rng(0).normal(size=(5, 4))
    np.testing.assert_array_equal(loaded(obs), result.policy(obs))
    np.testing.assert_allclose(loaded(jnp.asarray(obs)), loaded(obs), rtol=1e-6)
    assert isinstance(loaded(obs[0]), np.ndarray) and loaded(obs[0]).shape == (1,)
    drawn = loaded(obs, key=jax.random.PRNGKey(0))
    assert np.all(np.abs(drawn) <= 3) and not np.allclose(drawn, loaded(obs))
    with pytest.raises(ValueError, match="last axis must have size 4"):
        loaded(obs[:, :3])


def test_text_of_a_result_is_short(begun):
    result, _ = begun
    last, steps = result.metrics["return_100"][-1], result.metrics["env_steps"][-1]
    assert repr(result) == f"Result({PENDULUM}, trpo, {steps:,} steps, return_100 {last:.1f})"


def test_same_seed_same_run_and_another_seed_another():
    one, again, other = (tiny(seed=seed)["improvement"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.any(one[1:] == other[1:])  # the first batch only shows how large observations are


@pytest.mark.shared_programs(False)
def test_settings_that_change_while_training_compile_nothing():
    """Batches from one segment to the largest, and the trust region with them."""
    sizes = jnp.array([16, 64, 32, 48, 16])

    def update(state, hyperparameters, metrics):
        changed = {"max_kl": hyperparameters["max_kl"] * 1.1, "steps_per_update": sizes[state % 5]}
        return state + 1, changed

    rule = Rule(init=lambda hyperparameters: jnp.int32(0), update=update)
    run = prepare(PENDULUM, adapt=rule, **TINY, steps_per_update=32, max_steps_per_update=64, total_steps=200)
    updates = run._updates()
    rows = next(updates)[1]
    with counted_compilations() as compiled:
        rows += [row for _, of_update in updates for row in of_update]
    assert not compiled
    assert [row["steps_per_update"] for row in rows] == [16, 16, 64, 32, 48, 16, 16]
    np.testing.assert_allclose([row["max_kl"] for row in rows], 0.01 * 1.1 ** np.arange(7), rtol=1e-5)


def test_a_rule_is_told_how_far_the_run_is():
    def update(state, hyperparameters, metrics):
        return state, {**hyperparameters, "max_kl": metrics["steps_left"] + metrics["progress"]}

    metrics = tiny(adapt=Rule(init=lambda hyperparameters: (), update=update), steps_per_update=32, total_steps=128)
    np.testing.assert_array_equal(metrics["max_kl"][1:], [112.125, 80.375, 48.625, 16.875])


def test_rule_gets_the_largest_batch_it_may_ask_for():
    # So much is required that nothing counts as an improvement: batches grow as far as they may, and max KL falls.
    words = (
        "improvement(window=1, required=1000000, steps_delta=16, steps_bounds=(16, 64), kl_delta=0.001, "
        "kl_bounds=(0.000001, 0.004))"
    )
    rule = improvement(
        window=1, required=1e6, steps_delta=16, steps_bounds=(16, 64), kl_delta=0.001, kl_bounds=(1e-6, 0.004)
    )
    metrics = tiny(adapt=rule, total_steps=600, max_kl=0.004)
    assert metrics["steps_per_update"].max() == 64
    assert metrics["max_kl"].min() < 0.003
    by_name = tiny(adapt=words, total_steps=600, max_kl=0.004)
    assert by_name["steps_per_update"].tolist() == metrics["steps_per_update"].tolist()
    limited = tiny(adapt=rule, total_steps=600, max_kl=0.004, max_steps_per_update=48)
    assert limited["steps_per_update"].max() == 48


@pytest.mark.parametrize(
    "settings",
    [
        {"critic": "linear", "algorithm": "trpo(gae_lambda=1.0)"},
        {"normalize_observations": False, "critic": "mlp(hidden=(8,), epochs=1, normalize_returns=False)"},
        {"surrogate": lambda new, samples: importance_weighted_advantage(new, samples) + 0.1 * entropy(new)},
    ],
    ids=["as in 2016", "no normalisation", "own surrogate"],
)
def test_variants_take_steps_within_the_trust_region(settings):
    metrics = tiny(**settings)
    assert len(metrics["update"]) >= 3 and metrics["accepted"][1:].all()
    assert np.all((metrics["kl"][1:] > 0) & (metrics["kl"] <= 0.01)[1:])


def test_simulations_that_break_are_counted_and_not_learned_from():
    task = jaxtrpo.make_env(PENDULUM).task
    breaks = task._replace(reward=lambda model, data, action: jnp.where(data.qpos[0] < -0.01, jnp.nan, 1.0))
    metrics = tiny(jaxtrpo.MujocoEnvironment(breaks), total_steps=320)
    assert metrics["invalid_steps"].sum() > 0
    assert np.isfinite(metrics["kl"]).all() and metrics["accepted"].any()


def test_a_run_says_once_that_its_simulation_breaks(capsys):
    task = jaxtrpo.make_env(PENDULUM).task
    breaks = task._replace(reward=lambda model, data, action: jnp.where(data.qpos[0] < -0.01, jnp.nan, 1.0))
    sizes = {**TINY, "algorithm": "pg", "critic": "none", "steps_per_update": 256, "total_steps": 1536}
    metrics = jaxtrpo.train(jaxtrpo.MujocoEnvironment(breaks), **sizes).metrics
    enough = np.searchsorted(metrics["env_steps"], 1000) + 1
    share = metrics["invalid_steps"][:enough].sum() / metrics["env_steps"][enough - 1]
    assert share > 0.01 and capsys.readouterr().err.count(f"{share:.0%} of the steps so far are invalid") == 1
    # Steps of vector environments that only reset are `invalid` as well.
    assert jaxtrpo.train("CartPole-v1", **sizes).metrics["invalid_steps"].sum() > 15
    assert "steps so far are invalid" not in capsys.readouterr().err


def test_first_observation_that_is_not_finite_is_refused():
    task = jaxtrpo.make_env(PENDULUM).task
    broken = task._replace(observation=lambda model, data: jnp.append(data.qpos, jnp.nan))
    with pytest.raises(ValueError, match=r"first observation is not finite \(entries \[2\]\)"):
        tiny(jaxtrpo.MujocoEnvironment(broken))


def test_devices_that_jax_started_without_are_pointed_out():
    code = """if True:
        import jax
        jax.devices()
        from jaxtrpo.parallel import devices
        devices.available_cores = lambda: 64
        import warnings
        assert devices.choose_actors().count == 1
        warnings.filterwarnings("ignore", message="another")  # forgets what was shown
        assert devices.choose_actors().count == 1
        devices.choose_actors(3)
    """
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stderr
    assert (
        said.count("JAX was already started with 1 CPU devices on 64 cores") == 1 and "JAX_NUM_CPU_DEVICES=64" in said
    )
    assert said.endswith("before Python starts\n") and "ValueError: actors=3, but there are 1 CPU devices" in said


def stop_in_the_third_update(run: Run, error: BaseException) -> Run:
    """The same run, but that."""

    def lower(state):
        lowered, calls = run.update.lower(state), []

        def compile_collect():
            collect = lowered.compile_collect()

            def raise_in_the_third(state):
                calls.append(state)
                if len(calls) == 3:
                    raise error
                return collect(state)

            return raise_in_the_third

        return lowered._replace(compile_collect=compile_collect)

    return dataclasses.replace(run, update=with_method(run.update, lower=lower))


def test_interrupted_training_keeps_what_it_learned(tmp_path):
    run = prepare(PENDULUM, out=tmp_path / "run", **{**TINY, "total_steps": 1000, "steps_per_update": 32})
    with pytest.raises(KeyboardInterrupt, match="`result`") as interrupt:
        stop_in_the_third_update(run, KeyboardInterrupt()).run(progress=False)
    result = interrupt.value.result
    assert list(result.metrics["update"]) == [1, 2]
    np.testing.assert_array_equal(jaxtrpo.load_policy(tmp_path / "run")(np.ones(4)), result.policy(np.ones(4)))


def test_metrics_of_no_update_have_the_common_columns(begun, tmp_path):
    run = prepare(PENDULUM, out=tmp_path / "run", **{**TINY, "steps_per_update": 32, "total_steps": 64})

    def interrupted(state):
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as interrupt:
        dataclasses.replace(run, update=with_method(run.update, lower=interrupted)).run(progress=False)
    metrics = interrupt.value.result.metrics
    assert list(metrics) == [*COLUMNS[: COLUMNS.index("invalid_steps") + 1], "eval_return"]
    for name, column in metrics.items():
        assert column.shape == (0,) and column.dtype == begun[0].metrics[name].dtype, name


# ---- resuming

# Of metrics.csv; those that every algorithm has first, in this order, and `eval_return` at the end.
COLUMNS = (
    "update", "env_steps", "wall_seconds", "collect_seconds", "learn_seconds", "steps_per_update", "max_kl",
    "episodes", "mean_return", "return_100", "mean_length", "invalid_steps",
    "kl", "improvement", "line_search_steps", "accepted", "cg_iterations", "cg_residual", "gradient_norm",
    "predicted_gain", "gain_ratio", "entropy", "policy_std", "explained_variance", "advantage_std", "eval_return",
)  # fmt: skip
VARYING = "improvement(window=1, steps_delta=16, steps_bounds=(16, 64))"  # its batches differ, and it remembers
PARTS = {**TINY, "steps_per_update": 32, "adapt": VARYING, "eval_every": 64, "eval_episodes": 2}


def train_part(out=None, env=PENDULUM, **settings) -> jaxtrpo.Result:
    return prepare(env, out=out, **{**PARTS, **settings}).run(progress=False)


def without_seconds(out) -> list[dict[str, str]]:
    """The rows of metrics.csv, but for what no two runs have in common."""
    with open(out / METRICS_FILE, newline="") as file:
        return [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in csv.DictReader(file)]


def contents(out) -> dict:
    return {path: path.read_bytes() for path in out.iterdir()}


def assert_ends_alike(resumed, out, whole, whole_out):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed.state), jax.device_get(whole.state))
    assert without_seconds(out) == without_seconds(whole_out)
    assert list(resumed.metrics) == list(whole.metrics)
    assert set(whole.metrics) == set(COLUMNS) and list(whole.metrics)[:11] == list(COLUMNS[:11])
    for name in COLUMNS:
        assert resumed.metrics[name].dtype == whole.metrics[name].dtype
        if not name.endswith("seconds"):
            np.testing.assert_array_equal(resumed.metrics[name], whole.metrics[name])
    assert np.all(np.diff(resumed.metrics["wall_seconds"]) > 0)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    out = tmp_path_factory.mktemp("begun")
    return train_part(out, total_steps=100), out


@pytest.fixture
def parts(begun, tmp_path):
    """A copy of what a run of 100 steps has left."""
    return shutil.copytree(begun[1], tmp_path / "parts")


@pytest.mark.shared_programs(False)  # like a new process
def test_resumed_run_ends_as_if_it_had_never_stopped(parts, tmp_path):
    whole = train_part(tmp_path / "whole", total_steps=300)
    early = (parts / CHECKPOINT_FILE).read_bytes()
    train_part(parts, total_steps=200, resume=True)
    (parts / CHECKPOINT_FILE).write_bytes(early)  # as if it had been killed before it saved again
    resumed = train_part(parts, total_steps=300, resume=True)
    assert_ends_alike(resumed, parts, whole, tmp_path / "whole")


@pytest.mark.parametrize("env", ["Humanoid-v5", "brax:fast"])
def test_state_of_every_kind_of_environment_is_saved_to_the_bit(env, tmp_path):
    run = prepare(env, **PARTS)
    state = gather(run.state)
    save_checkpoint(tmp_path, env, run.config, {}, state)
    saved = load_checkpoint(tmp_path)
    require_same_run(saved, env, run.config)
    restored = restore(saved.state, run.update.shapes())
    jax.tree.map(np.testing.assert_array_equal, restored, state)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(run.update.place(restored)), jax.device_get(run.state))


def test_state_may_hold_typed_keys_and_anything_that_is_a_tree(tmp_path):
    state = {"keys": jax.random.split(jax.random.key(1), 3), "more": (np.float64(0.1), None, [np.zeros((0, 2))])}
    save_checkpoint(tmp_path, "X", Config(), {}, state)
    like = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, state))
    like["more"] = state["more"]
    restored = restore(load_checkpoint(tmp_path).state, like)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert jnp.array_equal(restored["keys"], state["keys"]) and restored["more"][0] == np.float64(0.1)
    with pytest.raises(ValueError, match=r"\['keys'\] is uint32\[3, 2\], not uint32\[3\]"):
        restore(load_checkpoint(tmp_path).state, {**like, "keys": np.zeros(3, np.uint32)})


@pytest.mark.parametrize(("seconds", "kept"), [(0.0, 2), (1e6, 2)])
def test_run_that_fails_can_go_on_from_its_last_checkpoint(seconds, kept, tmp_path):
    run = prepare(PENDULUM, out=tmp_path, total_steps=128, checkpoint_seconds=seconds, **PARTS)
    with pytest.raises(RuntimeError, match="out of luck"):
        stop_in_the_third_update(run, RuntimeError("out of luck")).run(progress=False)
    again = prepare(PENDULUM, out=tmp_path, total_steps=128, resume=True, **PARTS)
    assert len(again.metrics.get("update", ())) == kept


def test_resuming_nothing_starts(tmp_path):
    assert not prepare(PENDULUM, out=tmp_path / "new", resume=True, **PARTS).metrics
    assert not (tmp_path / "new").exists()


def test_resuming_what_is_finished_trains_nothing(begun, parts):
    before = contents(parts)
    run = prepare(PENDULUM, out=parts, resume=True, total_steps=100, **PARTS)
    with counted_compilations() as compiled:
        again = run.run(progress=False)
    assert not compiled
    assert_ends_alike(again, parts, *begun)
    assert contents(parts) == before


def test_run_goes_on_with_another_number_of_actors(begun, parts, tmp_path):
    assert jax.tree.leaves(begun[0].state)[0].shape[0] == 2
    shutil.copytree(parts, tmp_path / "copy")
    by_two = train_part(parts, actors=2, total_steps=200, resume=True)
    by_one = train_part(tmp_path / "copy", actors=1, total_steps=200, resume=True)
    assert jax.tree.leaves(by_one.state)[0].shape[0] == 1
    np.testing.assert_allclose(by_one.metrics["improvement"], by_two.metrics["improvement"], rtol=1e-3)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            {"max_kl": 0.02},
            "has max_kl=0.01, not max_kl=0.02; only total_steps, actors, processes, device, "
            "select, stop_at_return, stop_after_evaluations and stop_after_seconds may change",
        ),
        ({"policy": "mlp(hidden=(8, 8))"}, r"has policy=mlp, not policy=mlp\(hidden=\(8, 8\)\)"),
        ({"adapt": "fixed"}, "adapt=trust, .*not .*adapt=fixed"),
        ({"overwrite": True}, "contradict each other"),
        ({"out": None}, "needs out"),
        ({"env": "Hopper-v5"}, "was trained in InvertedPendulum-v5, not Hopper-v5"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_only_the_same_run_is_resumed(trained, other, told):
    _, out = trained
    before = contents(out)
    with pytest.raises(ValueError, match=told):
        prepare(**{"env": PENDULUM, "eval_every": 10_000, "out": out, "resume": True, **other})
    assert contents(out) == before


def changed(part):
    """What changes a part of a checkpoint."""

    def damage(data):
        content = serialization.msgpack_restore(content_of(data))
        part(content)
        return serialization.msgpack_serialize(content)

    return damage


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: data[:-100], "is damaged or is not a file of jaxtrpo$"),
        (lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:], "is damaged or is not a file of jaxtrpo$"),
        (lambda data: b"", "is damaged or is not a file of jaxtrpo$"),
        (changed(lambda content: content.pop("state")), "is damaged or is not a file of jaxtrpo$"),
        (changed(lambda content: content.update(format=99)), "has format 99;"),
        (changed(lambda content: content["metrics"].pop("kl")), "is damaged or is not a file of jaxtrpo$"),
        (changed(lambda content: content["config"].update(new_setting=1)), "by another version of jaxtrpo$"),
        (changed(lambda content: content["state"].pop(".key")), r"does not match: \.key is missing, not uint32\[2\]$"),
    ],
)
def test_damaged_checkpoints_are_refused_and_left_alone(parts, damage, told):
    path = parts / CHECKPOINT_FILE
    path.write_bytes(damage(path.read_bytes()))
    before = contents(parts)
    with pytest.raises(ValueError, match=told):
        prepare(PENDULUM, out=parts, resume=True, **PARTS)
    assert contents(parts) == before


def test_checkpoint_suffices(begun, parts):
    """Whatever has become of the files that people read."""
    for path in parts.iterdir():
        if path.name != CHECKPOINT_FILE:
            path.write_text("damaged")
    assert_ends_alike(train_part(parts, total_steps=100, resume=True), parts, *begun)


def test_number_of_environments_stays_when_that_of_actors_changes(tmp_path):
    settings = {**PARTS, "num_envs": None, "segment_length": 1}
    run = prepare(PENDULUM, actors=1, **{**settings, "num_envs": 15})  # the default of five actors
    save_checkpoint(tmp_path, PENDULUM, run.config, {}, gather(run.state))
    assert prepare(PENDULUM, out=tmp_path, resume=True, actors=1, **settings).config.num_envs == 15
    with pytest.raises(ValueError, match="num_envs=15 must be a multiple of the 2 actors"):
        prepare(PENDULUM, out=tmp_path, resume=True, actors=2, **settings)
    # There are two devices, of which one is used.
    assert prepare(PENDULUM, out=tmp_path, resume=True, **settings).actors.count == 1
