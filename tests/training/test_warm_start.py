"""Runs that start with the networks and observation moments of another run."""

import json
import shutil

import jax
import numpy as np
import pytest
from test_train_many import SMALL, Delayed

import jaxtrpo
from jaxtrpo.runs.directory import CHECKPOINT_FILE
from jaxtrpo.training.train import prepare
from jaxtrpo.training.update import gather

pytestmark = pytest.mark.shared_programs
PENDULUM = "InvertedPendulum-v5"
NETWORKS = {"policy": "mlp(hidden=(8,))", "critic": "mlp(hidden=(8,), epochs=1)"}
TINY = {**NETWORKS, "segment_length": 4, "num_envs": 4, "steps_per_update": 32, "total_steps": 96}


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A run and its directory."""
    out = tmp_path_factory.mktemp("before")
    return jaxtrpo.train(PENDULUM, out=out, progress=False, **{**TINY, "total_steps": 320}), out


def same(one, other) -> list[bool]:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return [bool(np.array_equal(a, b, equal_nan=True)) for a, b in pairs]


@pytest.mark.parametrize("actors", [1, 2])
def test_networks_and_moments_are_taken_over_and_the_rest_is_new(before, actors):
    result, out = before
    run = prepare(PENDULUM, start_from=out, actors=actors, seed=7, **TINY)
    fresh = prepare(PENDULUM, actors=actors, seed=7, **TINY)
    state, new = gather(run.state), gather(fresh.state)
    there, here, at_first = gather(result.state).learner, state.learner, new.learner
    assert all(same(here.policy, there.policy)) and all(same(here.obs_moments, there.obs_moments))
    assert all(same(here.critic.params, there.critic.params)) and all(same(here.critic.returns, there.critic.returns))
    assert not any(same(there.obs_moments, at_first.obs_moments))
    assert all(same(here.critic.optimizer, at_first.critic.optimizer)) and all(same(here.memory, at_first.memory))
    assert all(same(state._replace(learner=None), new._replace(learner=None)))
    assert run.notes == () and run.config.start_from == str(out)


def test_resumed_run_equals_uninterrupted_run_and_needs_the_other_no_more(before, tmp_path):
    other = shutil.copytree(before[1], tmp_path / "other")
    settings = {**TINY, "start_from": str(other), "algorithm": "npg", "total_steps": 200}
    whole = jaxtrpo.train(PENDULUM, out=tmp_path / "whole", progress=False, **settings)
    jaxtrpo.train(PENDULUM, out=tmp_path / "parts", progress=False, **{**settings, "total_steps": 100})
    shutil.rmtree(other)
    resumed = jaxtrpo.train(PENDULUM, out=tmp_path / "parts", resume=True, progress=False, **settings)
    assert all(same(jax.device_get(resumed.state), jax.device_get(whole.state)))
    assert whole.metrics["steps_per_update"][0] == 32  # the scale of observations is known
    assert json.loads((tmp_path / "parts" / "config.json").read_text())["start_from"] == str(other)


@pytest.mark.parametrize("env", [PENDULUM, Delayed()], ids=["side by side", "one program"])
def test_all_of_many_runs_start_from_it(env, tmp_path):
    jaxtrpo.train(env, out=tmp_path / "first", progress=False, actors=1, **SMALL)
    settings = {**SMALL, "start_from": tmp_path / "first"}
    found = jaxtrpo.train_many(env, seeds=(3, 4), progress=False, **settings)
    for seed, one in zip((3, 4), found, strict=True):
        alone = jaxtrpo.train(env, seed=seed, actors=1, progress=False, **settings)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
            one.policy.params,
            alone.policy.params,
        )
        cold = jaxtrpo.train(env, seed=seed, actors=1, progress=False, **SMALL)
        assert not np.allclose(*[jax.tree.leaves(each.policy.params)[-1] for each in (one, cold)], atol=1e-2)


def test_policy_and_moments_suffice_and_the_run_says_so(before, tmp_path):
    result, out = before
    alone = shutil.copytree(out, tmp_path / "alone")
    for path in alone.glob("checkpoint*"):
        path.unlink()
    run = prepare(PENDULUM, start_from=alone, **TINY)
    learner, there = gather(run.state).learner, gather(result.state).learner
    assert all(same(learner.policy, there.policy)) and all(same(learner.obs_moments, there.obs_moments))
    assert not all(same(learner.critic.params, there.critic.params))
    assert "critic starts untrained, because that run has no checkpoint" in run.notes[0]


def test_value_head_is_taken_over_with_its_units_or_begins_anew(tmp_path):
    settings = {**TINY, "algorithm": "ppo(minibatch_size=16)", "policy": "mlp(hidden=(8,), shared=True)"}
    del settings["critic"]
    there = gather(jaxtrpo.train(PENDULUM, out=tmp_path / "run", progress=False, **settings).state).learner
    run = prepare(PENDULUM, start_from=tmp_path / "run", **settings)
    here = gather(run.state).learner
    assert all(same(here.policy, there.policy)) and all(same(here.critic, there.critic)) and run.notes == ()
    for path in (tmp_path / "run").glob("checkpoint*"):
        path.unlink()
    run = prepare(PENDULUM, start_from=tmp_path / "run", **settings)
    here = gather(run.state).learner
    last, kept = (state.policy["params"]["MLP_0"]["last"] for state in (here, there))
    assert not last["kernel"][:, -1].any() and not last["bias"][-1] and kept["kernel"][:, -1].all()
    np.testing.assert_array_equal(last["kernel"][:, :-1], kept["kernel"][:, :-1])
    assert here.critic.returns.count == 0 and "critic starts untrained" in run.notes[0]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"critic": "linear"}, "because it was critic=mlp(hidden=(8,), epochs=1) of trpo and is critic=linear of trpo"),
        ({"critic": "mlp"}, "and is critic=mlp of trpo"),
        ({"algorithm": "naf", "critic": "none"}, "and is critic=none of naf"),
    ],
)
def test_another_kind_of_critic_begins_anew_and_the_run_says_so(before, settings, told):
    result, out = before
    run = prepare(PENDULUM, start_from=out, **{**TINY, **settings})
    assert all(same(gather(run.state).learner.policy, gather(result.state).learner.policy))
    assert told in run.notes[-1] and len(run.notes[-1]) < 200


def test_another_policy_with_the_same_parameters_is_told(before):
    _, out = before
    policy = "mlp(hidden=(8,), initial_log_std=-1.0)"
    run = prepare(PENDULUM, start_from=out, **{**TINY, "policy": policy})
    assert "whose parameters also fit 'mlp(" in run.notes[-1] and run.notes[-1].endswith("initial_log_std=-1.0)'")
    both = prepare(PENDULUM, start_from=out, **{**TINY, "policy": policy, "critic": "linear"}).notes[-1]
    assert both.startswith(f"{run.notes[-1]}; start_from=") and "the critic starts untrained" in both
    spelt_out = prepare(PENDULUM, start_from=out, **{**TINY, "policy": "mlp(hidden=(8,), shared=False)"})
    assert spelt_out.notes == ()


def test_value_functions_of_naf_are_taken_over_with_their_units(tmp_path):
    settings = {"algorithm": "naf(replay=200, hidden=(8,))", **TINY, "critic": "none"}
    there = gather(jaxtrpo.train(PENDULUM, out=tmp_path, progress=False, **settings).state).learner
    run = prepare(PENDULUM, start_from=tmp_path, **settings)
    here = gather(run.state).learner
    for name in ("policy", "critic", "target", "rewards", "unit", "obs_moments"):
        assert all(same(getattr(here, name), getattr(there, name))), name
    assert not all(same(here.replay, there.replay)) and not all(same(here.optimizer, there.optimizer))
    assert there.unit > 0 and not any("anew" in note for note in run.notes)


def test_target_of_dqn_is_its_policy_where_there_is_no_checkpoint(tmp_path):
    settings = {**TINY, "algorithm": "dqn(replay=200, minibatch_size=8)", "critic": "none", "num_envs": 1}
    result = jaxtrpo.train("CartPole-v1", out=tmp_path, progress=False, **settings)
    for path in tmp_path.glob("checkpoint*"):
        path.unlink()
    run = prepare("CartPole-v1", start_from=tmp_path, **settings)
    here, there = gather(run.state).learner, gather(result.state).learner
    assert all(same(here.policy, there.policy)) and all(same(here.target, here.policy)) and here.unit == 0
    assert not all(same(there.target, there.policy)) and "whose unit of reward is not known" in run.notes[-1]
    with pytest.raises(ValueError, match="^start_from=.*values of actions, which trpo would take for probabilities"):
        prepare("CartPole-v1", start_from=tmp_path, **{**settings, "algorithm": "trpo", "num_envs": 4})


@pytest.mark.parametrize(
    ("env", "settings", "told"),
    [
        (
            PENDULUM,
            {"policy": "mlp"},
            r"its policy is mlp\(hidden=\(8,\)\), not mlp; use policy='mlp\(hidden=",
        ),
        ("Hopper-v5", {}, "observations of size 4 and actions of size 1, but those of Hopper-v5 have sizes 11 and 3"),
        ("CartPole-v1", {}, "the policy's actions are continuous of size 1, but those of CartPole-v1 are discrete"),
    ],
)
def test_networks_of_other_sizes_are_refused_in_one_sentence(before, env, settings, told):
    with pytest.raises(ValueError, match=f"^start_from=.*: .*{told}"):
        prepare(env, start_from=before[1], **{**TINY, **settings})


def test_missing_and_damaged_runs_are_refused_in_one_sentence(before, tmp_path):
    with pytest.raises(FileNotFoundError, match="start_from='.*no such directory"):
        prepare(PENDULUM, start_from=tmp_path / "nowhere", **TINY)
    damaged = shutil.copytree(before[1], tmp_path / "damaged")
    data = bytearray((damaged / CHECKPOINT_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (damaged / CHECKPOINT_FILE).write_bytes(data)
    with pytest.raises(ValueError, match="start_from='.*checkpoint.msgpack is damaged"):
        prepare(PENDULUM, start_from=damaged, **TINY)
