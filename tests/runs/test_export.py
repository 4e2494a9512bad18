"""Exported policies give the same actions with onnxruntime alone and with JAX alone."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from flax import linen as nn
from huggingface_hub import ModelCard

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import Leaf, ObservationSpace
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.cnn import cnn
from jaxtrpo.policies.custom import policy_maker
from jaxtrpo.policies.distributions import Gaussian
from jaxtrpo.policies.networks import mlp
from jaxtrpo.policies.recurrent import gru, lstm
from jaxtrpo.policies.squashed import squashed
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.runs.directory import METRICS_FILE
from jaxtrpo.runs.export import ONNX_FILE, STABLEHLO_FILE, as_onnx, as_stablehlo, export_policy

CHOICES = ActionSpace(np.float32([1, 0]), np.float32([3, 4]), counts=(3, 5))
NUMBERS = ActionSpace(np.float32([-1, -2]), np.float32([1, 0.5]))
EXACT = ActionSpace(np.float64([-np.pi, -0.2]), np.float64([np.pi, 0.7]))
HALVES = ActionSpace(np.float16([-0.1, -np.inf]), np.float16([0.1, 0.5]), shape=(2, 1))
ONE_CHOICE = ActionSpace(np.float32([0]), np.float32([1]), counts=(2,), shape=())
SQUASHED = squashed(hidden=(8,))
# Runs in another process, in which importing JAX, Flax or jaxtrpo fails.
ALONE = """
import sys
for name in ("jax", "jaxlib", "flax", "jaxtrpo"):
    sys.modules[name] = None
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
obs = np.load(sys.argv[2])
np.savez(sys.argv[3], *(session.run(["action"], {"observation": rows})[0] for rows in (obs, obs[:1])))
"""


class Own(nn.Module):
    """A user-defined network."""

    @nn.compact
    def __call__(self, obs):
        x = nn.LayerNorm()(nn.relu(nn.Dense(16)(obs)))
        return Gaussian(nn.Dense(2)(x), self.param("log_std", nn.initializers.zeros, (2,)))


def policy_of(maker, actions: ActionSpace) -> TrainedPolicy:
    rng = np.random.default_rng(0)
    params = jax.jit(maker.make(4, actions).init)(jax.random.PRNGKey(0))
    params = jax.tree.map(lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape).astype(np.float32), params)
    moments = Moments(np.float32(1e6), rng.normal(size=4).astype(np.float32), np.float32([0.1, 1, 4, 9]))
    return TrainedPolicy("Some-v1", 4, actions, maker, params, moments)


@pytest.mark.parametrize(
    ("maker", "actions"),
    [
        (mlp(), NUMBERS),
        (mlp(hidden=(8,), state_dependent_std=True), NUMBERS),
        (mlp(hidden=()), NUMBERS),
        (mlp(shared=True), NUMBERS),
        (SQUASHED, NUMBERS),
        (mlp(shared=True), CHOICES),
        (policy_maker(Own()), NUMBERS),
        (mlp(), EXACT),
        (mlp(), HALVES),
        (mlp(), CHOICES),
        (mlp(), ONE_CHOICE),
    ],
)
def test_exported_actions_are_the_same_without_jaxtrpo(maker, actions, tmp_path):
    policy = policy_of(maker, actions)
    files = export_policy(policy, tmp_path / "export")
    assert [file.name for file in files] == [ONNX_FILE, STABLEHLO_FILE]
    obs = np.random.default_rng(1).normal(scale=3, size=(50, 4)).astype(np.float32)
    np.save(tmp_path / "obs.npy", obs)
    words = [str(files[0]), str(tmp_path / "obs.npy"), str(tmp_path / "actions.npz")]
    subprocess.run([sys.executable, "-c", ALONE, *words], check=True, timeout=120)
    wanted = np.asarray(policy(obs))
    with np.load(tmp_path / "actions.npz") as found:
        many, one = found["arr_0"], found["arr_1"]
    again = np.asarray(jax.export.deserialize(files[1].read_bytes()).call(obs))
    assert many.shape == again.shape == wanted.shape and one.shape == wanted[:1].shape
    tolerance = 1e-3 if actions.dtype == np.float16 else 1e-5
    for actions_found in (many, again):
        np.testing.assert_allclose(actions_found, wanted, atol=tolerance)
    np.testing.assert_allclose(one, wanted[:1], atol=tolerance)
    if not actions.counts:
        assert many.dtype == (np.float16 if actions.dtype == np.float16 else np.float32)
        flat = many.reshape(len(many), -1)
        assert np.all(flat >= actions.low) and np.all(flat <= actions.high)
        assert maker is SQUASHED or np.any(np.isclose(flat, actions.high, rtol=1e-6, atol=0))


def test_policy_with_user_network_is_saved_and_loaded(tmp_path):
    policy = policy_of(policy_maker(Own()), NUMBERS)
    jaxtrpo.save_policy(tmp_path, policy)
    loaded = jaxtrpo.load_policy(tmp_path, policy=Own())
    obs = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(loaded(obs), policy(obs))


def test_policy_that_is_read_with_another_network_of_the_same_sizes_is_reported(tmp_path):
    class Other(Own):
        pass

    jaxtrpo.save_policy(tmp_path, policy_of(policy_maker(Own()), NUMBERS))
    with pytest.warns(UserWarning, match="is of policy=custom:Own, but is read with policy=custom:Other; unless"):
        jaxtrpo.load_policy(tmp_path, policy=Other())
    jaxtrpo.save_policy(tmp_path, policy_of(mlp()._replace(spec_string="mlp(shared=False)"), NUMBERS))
    jaxtrpo.load_policy(tmp_path)  # the same as mlp
    jaxtrpo.load_policy(tmp_path, policy="mlp")


def test_exported_platforms_and_description(tmp_path):
    policy = policy_of(policy_maker(Own()), NUMBERS)
    assert set(jax.export.deserialize(as_stablehlo(policy)).platforms) == {"cpu", "cuda", "tpu"}
    assert policy.env_name in onnx.load_from_string(as_onnx(policy)).doc_string


def test_model_that_onnx_cannot_run_is_not_written():
    """Its operators exist, but not for these types."""

    class Fourier(nn.Module):
        @nn.compact
        def __call__(self, obs):
            return Gaussian(nn.Dense(2)(jnp.abs(jnp.fft.rfft(obs))), jnp.zeros(2))

    with pytest.raises(ValueError, match="^policy=custom:Fourier cannot be a model of ONNX: "):
        as_onnx(policy_of(policy_maker(Fourier()), NUMBERS))


def test_model_card_is_readable_by_the_hub(tmp_path, capsys):
    run = tmp_path / "run"
    jaxtrpo.train("InvertedPendulum-v5", total_steps=2_048, out=run, progress=False)
    assert cli.main(["export", str(run), "--card", "--episodes", "3"]) == 0
    files = [str(run / "export" / name) for name in (ONNX_FILE, STABLEHLO_FILE, "README.md")]
    assert capsys.readouterr().out.split("\n") == [*files, ""]
    card = ModelCard.load(files[-1])
    (result,) = card.data.eval_results
    evaluation = jaxtrpo.evaluate(jaxtrpo.load_policy(run), episodes=3, seed=0)
    assert result.metric_value == f"{evaluation.mean:.2f} +/- {evaluation.std:.2f}"
    assert (result.metric_type, result.dataset_name) == ("mean_reward", "InvertedPendulum-v5")
    assert "| environment steps | 2,304 |" in card.content and "`max_kl`" in card.content
    code = card.content.split("```python\n")[1].split("```")[0].replace(ONNX_FILE, files[0])
    exec(code, {})
    # Another run below does not count, and a card names where the return was measured.
    shutil.copytree(run, run / "again", ignore=shutil.ignore_patterns("export"))
    (run / "again" / METRICS_FILE).write_text("update,env_steps,wall_seconds\n1,77,1\n")
    assert cli.main(["export", str(run), "--card", "--episodes", "2", "--max-episode-steps", "5"]) == 0
    card = ModelCard.load(files[-1])
    (result,) = card.data.eval_results
    assert result.metric_value == "5.00 +/- 0.00" and result.dataset_name == "InvertedPendulum-v5, at most 5 steps"
    assert (
        "over 2 episodes in InvertedPendulum-v5, at most 5 steps" in card.content
        and "| environment steps | 2,304 |" in card.content
    )
    (run / METRICS_FILE).write_text("broken\n1\n")
    assert cli.main(["export", str(run), "--card", "--episodes", "1"]) == cli.FAILED
    assert "the card was not written" in capsys.readouterr().err
    (tmp_path / "README.md").write_text("my own")
    assert cli.main(["export", str(run), "--card", "--out", str(tmp_path)]) == cli.INPUT_ERROR
    assert (tmp_path / "README.md").read_text() == "my own"


@pytest.mark.parametrize("settings", [{"frame_stack": 3}, {"policy": "gru(hidden=8)"}], ids=["frames", "gru"])
def test_code_of_a_model_card_runs_with_a_state(settings, tmp_path):
    run = tmp_path / "run"
    jaxtrpo.train("InvertedPendulum-v5", total_steps=256, segment_length=16, out=run, progress=False, **settings)
    assert cli.main(["export", str(run), "--card", "--episodes", "1"]) == 0
    code = ModelCard.load(run / "export" / "README.md").content.split("```python\n")[1].split("```")[0]
    found = {}
    exec(code.replace(ONNX_FILE, str(run / "export" / ONNX_FILE)), found)
    wanted = jaxtrpo.load_policy(run)(np.zeros((1, 4), np.float32))
    np.testing.assert_allclose(found["action"], wanted, rtol=1e-4, atol=1e-5)


def test_failed_model_card_leaves_the_exported_files(tmp_path, capsys):
    jaxtrpo.save_policy(tmp_path, policy_of(policy_maker("mlp"), NUMBERS))
    assert cli.main(["export", str(tmp_path), "--card"]) == cli.FAILED
    files = [str(tmp_path / "export" / name) for name in (ONNX_FILE, STABLEHLO_FILE)]
    output = capsys.readouterr()
    assert output.out.split("\n") == [*files, ""]
    assert "--card: env='Some-v1'" in output.err and output.err.count("\n") == 1
    assert all(Path(file).stat().st_size for file in files)


@pytest.mark.parametrize(
    "maker", [gru(hidden=8), lstm(hidden=8), gru(hidden=8, shared=True)], ids=["gru", "lstm", "shared"]
)
def test_exported_memory_is_an_input_and_an_output(maker, tmp_path):
    policy = policy_of(maker, NUMBERS)
    export_policy(policy, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / ONNX_FILE)
    compiled = jax.export.deserialize((tmp_path / STABLEHLO_FILE).read_bytes())
    parts = len(policy.network.recurrence.start(1))
    obs = np.random.default_rng(1).normal(size=(5, 3, 4)).astype(np.float32)
    of_onnx = of_jax = [np.zeros((3, 8), np.float32)] * parts
    for now in obs:
        wanted = policy(now)
        action, *of_onnx = session.run(
            ["action", *(f"next_state_{i}" for i in range(parts))],
            {"observation": now, **{f"state_{i}": part for i, part in enumerate(of_onnx)}},
        )
        np.testing.assert_allclose(action, wanted, rtol=1e-4, atol=1e-5)
        action, *of_jax = compiled.call(now, *of_jax)
        np.testing.assert_allclose(action, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("maker", [mlp(), gru(hidden=8)], ids=["mlp", "gru"])
def test_exported_mask_is_an_input(maker, tmp_path):
    policy = dataclasses.replace(policy_of(maker, CHOICES), masked=True)
    export_policy(policy, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / ONNX_FILE)
    compiled = jax.export.deserialize((tmp_path / STABLEHLO_FILE).read_bytes())
    rng = np.random.default_rng(1)
    obs, mask = rng.normal(size=(6, 4)).astype(np.float32), rng.random((6, 8)) < 0.4
    mask[:, [0, 3]] = True
    state = [np.zeros((6, 8), np.float32)] if policy.network.recurrence else []
    names = {"state_0": state[0]} if state else {}
    (action, *_) = session.run(["action"], {"observation": obs, "action_mask": mask, **names})
    np.testing.assert_array_equal(action, policy(obs, action_mask=mask))
    found = compiled.call(obs, mask, *state)
    np.testing.assert_array_equal(found[0] if state else found, action)
    assert all(mask[row, choice - 1] and mask[row, 3 + other] for row, (choice, other) in enumerate(action))


@pytest.mark.parametrize(
    ("maker", "side", "dtype"),
    [
        (cnn(channels=(4, 4, 4), hidden=8), 6, "bool"),
        (cnn(channels=(4, 4, 4), hidden=8), 17, "uint8"),
        (cnn(kind="nature", channels=(4, 4, 4), hidden=8), 37, "uint8"),
        (gru(channels=(4, 4, 4), encoder=(8,), hidden=6), 17, "uint8"),
    ],
    ids=["impala, bool", "impala", "nature", "gru"],
)
def test_arrays_of_observations_with_images_are_inputs(maker, side, dtype, tmp_path):
    space = ObservationSpace((Leaf("image", (side, side, 2), dtype), Leaf("vector", (2,))))
    rng = np.random.default_rng(0)
    params = jax.jit(maker.make(space, NUMBERS).init)(jax.random.PRNGKey(0))
    params = jax.tree.map(lambda leaf: leaf + 0.05 * rng.normal(size=leaf.shape).astype(np.float32), params)
    moments = Moments(np.float32(1e6), np.float32([1, 2]), np.float32([0.1, 4]))
    policy = TrainedPolicy("Some-v1", space.size, NUMBERS, maker, params, moments, observation_space=space)
    jaxtrpo.save_policy(tmp_path, policy)
    policy = jaxtrpo.load_policy(tmp_path)
    export_policy(policy, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / ONNX_FILE)
    image = rng.integers(0, 2 if dtype == "bool" else 256, (5, side, side, 2)).astype(dtype)
    obs = {"image": image, "vector": rng.normal(size=(5, 2)).astype(np.float32)}
    wanted = policy(obs)
    state = {"state_0": np.zeros((5, 6), np.float32)} if policy.network.recurrence else {}
    np.testing.assert_allclose(session.run(["action"], {**obs, **state})[0], wanted, atol=1e-5)
    compiled = jax.export.deserialize((tmp_path / STABLEHLO_FILE).read_bytes())
    found = compiled.call(obs["image"], obs["vector"], *state.values())
    np.testing.assert_allclose(found[0] if state else found, wanted, atol=1e-5)
    assert np.ptp(np.asarray(wanted), axis=0).min() > 1e-3


@pytest.mark.parametrize(
    ("maker", "leaves", "masked"),
    [
        (mlp(), (Leaf("vector", (4,)),), False),
        (mlp(), (Leaf("vector", (4,)),), True),
        (mlp(shared=True), (Leaf("vector", (4,)),), False),
        (cnn(channels=(4, 4, 4), hidden=8), (Leaf("image", (9, 9, 2), "uint8"), Leaf("vector", (4,))), False),
    ],
    ids=["mlp", "masked", "shared", "cnn"],
)
def test_exported_frames_are_inputs_and_outputs(maker, leaves, masked, tmp_path):
    space = ObservationSpace(leaves, frames=3)
    actions = CHOICES if masked else NUMBERS
    rng = np.random.default_rng(0)
    params = jax.jit(maker.make(space, actions).init)(jax.random.PRNGKey(0))
    params = jax.tree.map(lambda leaf: leaf + 0.05 * rng.normal(size=leaf.shape).astype(np.float32), params)
    moments = Moments(np.float32(1e6), np.float32([1, 2, 0, 1]), np.float32([0.1, 4, 1, 1]))
    size = space.size if space.images else 4
    policy = TrainedPolicy("Some-v1", size, actions, maker, params, moments, observation_space=space, masked=masked)
    export_policy(policy, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / ONNX_FILE)
    compiled = jax.export.deserialize((tmp_path / STABLEHLO_FILE).read_bytes())

    def drawn(leaf):
        if leaf.dtype == "uint8":
            return rng.integers(0, 256, (2, *leaf.shape)).astype(np.uint8)
        return rng.normal(size=(2, *leaf.shape)).astype(np.float32)

    seen = []
    of_onnx = of_jax = [np.zeros((2, 2, *leaf.shape), leaf.dtype) for leaf in leaves]
    mask = {"action_mask": np.ones((2, 8), bool)} if masked else {}
    for step in range(5):
        now = [drawn(leaf) for leaf in leaves]
        first = np.full(2, step == 0)
        wanted = policy(dict(zip(("image", "vector"), now, strict=False)) if space.images else now[0], **mask)
        names = ["image", "vector"] if space.images else ["observation"]
        given = {**dict(zip(names, now, strict=True)), **mask, "first": first}
        action, *of_onnx = session.run(
            ["action", *(f"next_state_{i}" for i in range(len(leaves)))],
            {**given, **{f"state_{i}": part for i, part in enumerate(of_onnx)}},
        )
        np.testing.assert_allclose(action, wanted, rtol=1e-4, atol=1e-5)
        action, *of_jax = compiled.call(*now, *mask.values(), first, *of_jax)
        np.testing.assert_allclose(action, wanted, rtol=1e-4, atol=1e-5)
        seen.append(wanted)
    assert np.ptp(np.asarray(seen, np.float64), axis=0).max() > 1e-3
