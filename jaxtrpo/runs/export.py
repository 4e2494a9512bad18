"""Export of policies as ONNX and StableHLO, for use without jaxtrpo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.runs.directory import write_whole, writing

ONNX_FILE, STABLEHLO_FILE = "policy.onnx", "policy.stablehlo"
OBSERVATION, ACTION = "observation", "action"
PLATFORMS = ("cpu", "cuda", "tpu")


def export_policy(policy: TrainedPolicy, directory: str | Path) -> list[Path]:
    """Exports the deterministic policy, including observation normalisation and action bounds.

    Both files map float32 observations [batch, observation], as `TrainedPolicy.flatten` returns them, to actions in the
    simulator's format (float32 instead of float64), for any batch size: policy.onnx has the input "observation" and
    the output "action"; policy.stablehlo is read by `jax.export.deserialize`.

    Args:
      policy: policy to export.
      directory: output directory, created if necessary.

    Returns:
      The paths of the files.

    Raises:
      OutputError: the files cannot be written.
    """
    made = {ONNX_FILE: as_onnx(policy), STABLEHLO_FILE: as_stablehlo(policy)}
    directory = Path(directory).expanduser()
    with writing(directory, advice=""):
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in made.items():
            write_whole(directory / name, data)
    return [directory / name for name in made]


def as_onnx(policy: TrainedPolicy) -> bytes:
    """Returns the policy as a serialised ONNX model."""
    import onnx
    from jax2onnx import to_onnx

    obs = _observations(policy)
    # Traced here because the converter patches JAX and Flax while it traces, which can break networks that use shapes.
    # Traced without jit because the converter does not know the nested functions of the newest JAX.
    with jax.disable_jit():
        traced = jax.make_jaxpr(policy.deterministic())(obs)
    made: Any = to_onnx(
        lambda obs: jaxpr_as_fun(traced)(obs)[0],
        inputs=[obs],
        model_name="policy",
        input_names=[OBSERVATION],
        output_names=[ACTION],
    )
    made.doc_string = f"A policy for {policy.env_name}, trained with jaxtrpo."
    onnx.checker.check_model(made)
    return made.SerializeToString()


def as_stablehlo(policy: TrainedPolicy) -> bytes:
    """Returns the policy as StableHLO, serialised by `jax.export`."""
    act = jax.jit(policy.deterministic())
    return bytes(jax.export.export(act, platforms=PLATFORMS)(_observations(policy)).serialize())


def _observations(policy: TrainedPolicy) -> jax.ShapeDtypeStruct:
    """Shape of a batch of observations of symbolic size."""
    (batch,) = jax.export.symbolic_shape("batch")
    return jax.ShapeDtypeStruct((batch, policy.observation_size), jnp.float32)
