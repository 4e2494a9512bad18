"""Entries of a simulator's `info` at the end of episodes become columns of the metrics, next to returns and lengths."""

import functools
import math

import gymnasium
import jax
import numpy as np
import pytest
from counting_env import CountingEnv, Telling
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from probe import ProbeEnvironment

import jaxtrpo
from jaxtrpo.envs.registry import environment_for, make_env
from jaxtrpo.runs.config_file import load_config
from jaxtrpo.training.prepare import prepare

PARTS = {"policy": "mlp(hidden=())", "critic": "none", "adapt": "fixed", "algorithm": "pg"}
SETTINGS = {**PARTS, "total_steps": 300, "steps_per_update": 96, "num_envs": 4, "segment_length": 8, "progress": False}


def vectors(mode):
    return lambda num_envs, **_: SyncVectorEnv([Telling] * num_envs, autoreset_mode=mode)


for mode in AutoresetMode:
    gymnasium.register(f"Telling{mode.value}-v0", Telling, vector_entry_point=vectors(mode))
ENVS = {
    "single": Telling,
    "workers": functools.partial(make_env, Telling, processes=2),
    **{mode.value: f"Telling{mode.value}-v0" for mode in AutoresetMode},
}


@pytest.mark.parametrize("env", ENVS)
def test_columns_hold_means_over_episodes_that_ended(env):
    where = ENVS[env]() if env == "workers" else ENVS[env]
    found = {}
    for actors in (1, 2):
        result = jaxtrpo.train(where, log_info=("total", "steps", "odd", "text", "third"), actors=actors, **SETTINGS)
        found[actors] = metrics = result.metrics
        np.testing.assert_allclose(metrics["total"], metrics["mean_return"], rtol=1e-5)
        np.testing.assert_allclose(metrics["steps"], metrics["mean_length"], rtol=1e-6)
        assert np.all((metrics["mean_length"] > 2) & (metrics["mean_length"] < 4))
        np.testing.assert_allclose(metrics["success_rate"], metrics["third"], rtol=1e-6)
        assert np.all((metrics["success_rate"][1:] > 0) & (metrics["success_rate"][1:] < 0.8))
        assert np.isnan(metrics["text"]).all()
        assert np.all((metrics["odd"][1:] > 0) & (metrics["odd"][1:] < 2)) and metrics["episodes"][1:].min() > 10
    if env not in {mode.value for mode in AutoresetMode}:  # seeded as a whole
        for name in ("success_rate", "odd", "steps"):
            np.testing.assert_allclose(found[1][name][:2], found[2][name][:2], rtol=1e-5)
    if env == "workers":
        where.close()


def test_value_that_is_no_number_is_blank_and_one_of_all_environments_counts_for_each():
    class Ragged(Telling):
        def step(self, action):
            *others, info = super().step(action)
            return (*others, {**info, "odd": [[1, 2], [3]]})

    class Shared(SyncVectorEnv):
        def step(self, actions):
            *others, infos = super().step(actions)
            return (*others, {**infos, "level": 3.0, "path": [[1], [1, 2], [], [3]]})

    ragged = jaxtrpo.train(Ragged, log_info=("odd", "steps"), actors=1, **SETTINGS).metrics
    assert np.isnan(ragged["odd"]).all() and ragged["steps"].min() > 2
    shared = jaxtrpo.train(lambda: Shared([Telling] * 4), log_info="level, path", actors=1, **SETTINGS).metrics
    assert np.all(shared["level"] == 3) and np.all((shared["path"] >= 1) & (shared["path"] <= 3))


def test_misspelt_entry_is_told(capfd):
    arguments = {**SETTINGS, "actors": 1, "total_steps": 2_000}
    jaxtrpo.train(Telling, log_info="stesp, steps", **{**arguments, "progress": True})
    said = capfd.readouterr().err
    assert "episodes ended with a number named stesp in its info" in said and "named steps" not in said


def test_update_without_a_finished_episode_is_blank(tmp_path):
    settings = {**SETTINGS, "steps_per_update": 32, "total_steps": 64}
    jaxtrpo.train(lambda: CountingEnv(lasts=True), out=tmp_path, log_info="x", actors=1, **settings)
    header, *rows = [line.split(",") for line in (tmp_path / "metrics.csv").read_text().splitlines()]
    for row in rows:
        assert [row[header.index(name)] for name in ("x", "mean_length", "episodes")] == ["", "", "0"]
    assert load_config(tmp_path)["log_info"] == "x"


@pytest.mark.parametrize(("always", "columns"), [(True, ("success_rate",)), (False, ())])
def test_success_is_found_at_the_first_step(always, columns):
    run = prepare(lambda: Telling(always), actors=1, **PARTS)
    run.close()
    assert run.env.info_columns == columns
    assert environment_for(lambda: Telling(always), 1)[0].info_columns == ()  # not to evaluate
    wanted = prepare(lambda: Telling(always), actors=1, log_info="is_success, steps", **PARTS)
    wanted.close()
    assert wanted.env.info_columns == (*columns, "is_success", "steps")


def test_older_run_is_resumed_without_the_new_columns(tmp_path, monkeypatch):
    """Of a run from before these columns existed."""
    from jaxtrpo.training import metrics

    with monkeypatch.context() as older:
        older.setattr("jaxtrpo.envs.registry.with_info", lambda env, names, *, success: env)
        original = metrics.rows_of

        def without(*arguments):
            return [{k: v for k, v in row.items() if k != "mean_length"} for row in original(*arguments)]

        older.setattr("jaxtrpo.training.run.rows_of", without)
        jaxtrpo.train(Telling, out=tmp_path, actors=1, **SETTINGS)
    result = jaxtrpo.train(Telling, out=tmp_path, resume=True, actors=1, **{**SETTINGS, "total_steps": 600})
    assert result.metrics["env_steps"][-1] >= 600
    assert not {"mean_length", "success_rate"} & set(result.metrics)
    with pytest.raises(ValueError, match="the run has log_info=None, not log_info=odd"):
        again = {name: value for name, value in SETTINGS.items() if name != "progress"}
        prepare(Telling, out=tmp_path, resume=True, actors=1, log_info="odd", **again)


@pytest.mark.parametrize("name", ["return_100", "update", "wall_seconds", "eval_return", "steps_per_update"])
def test_name_of_another_column_is_refused(name):
    with pytest.raises(ValueError, match=f"log_info: {name} is a column of metrics.csv already"):
        prepare(Telling, log_info=name, actors=1, **PARTS)


@pytest.mark.parametrize(
    ("given", "message"),
    [("a,,b", "must be names"), ("a, a", "has a name twice"), (("a", 3), "must be names"), (3, "must be names")],
)
def test_wrong_names_are_refused(given, message):
    with pytest.raises(ValueError, match=message) as error:
        prepare(Telling, log_info=given)
    assert str(error.value).startswith("log_info=") and len(str(error.value)) < 200


def test_environments_without_info_are_refused():
    for env in ("Hopper-v5", ProbeEnvironment()):
        with pytest.raises(ValueError, match="log_info='success': .* has no info; only environments that Gymnasium"):
            prepare(env, log_info="success")


def test_many_trainings_log_info():
    results = jaxtrpo.train_many(Telling, seeds=[0, 1], log_info=["steps"], **{**SETTINGS, "total_steps": 96})
    for result in results:
        assert math.isclose(result.metrics["steps"][-1], result.metrics["mean_length"][-1], rel_tol=1e-6)


def test_failed_simulator_with_info_ends_episodes():
    env, _ = environment_for(Telling, 1, info=("steps",))
    state = env.reset(jax.random.PRNGKey(0), 2)
    env._host.failure = RuntimeError("broken")
    after = env.step(state, np.zeros((2, 2), np.float32))
    assert after.invalid.all() and after.truncated.all()
    np.testing.assert_array_equal(env.info(after)["steps"], [0, 0])
