"""A policy for those who have neither jaxtrpo nor JAX, and what a person should know of it."""

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
    """Writes the deterministic policy, with the normalisation of its observations and the bounds of its actions.

    Both files take float32 observations [batch, observation], as `TrainedPolicy.flatten` gives them, and give actions
    as the simulator takes them (float32 in place of float64), for batches of any size: policy.onnx (input
    "observation", output "action"), and policy.stablehlo, for `jax.export.deserialize`.

    Args:
      policy: to be exported.
      directory: is made if it is not there.

    Returns:
      The files.

    Raises:
      OutputError: they cannot be written.
    """
    made = {ONNX_FILE: as_onnx(policy), STABLEHLO_FILE: as_stablehlo(policy)}
    directory = Path(directory).expanduser()
    with writing(directory, what_then=""):
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in made.items():
            write_whole(directory / name, data)
    return [directory / name for name in made]


def as_onnx(policy: TrainedPolicy) -> bytes:
    """The policy as an ONNX model."""
    import onnx
    from jax2onnx import to_onnx

    obs = _observations(policy)
    # Traced here: the converter replaces functions of JAX and Flax while it traces, and networks may look at shapes.
    # Without functions within functions, of which it does not know those of the newest JAX.
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
    """The policy as `jax.export` serialises it."""
    act = jax.jit(policy.deterministic())
    return bytes(jax.export.export(act, platforms=PLATFORMS)(_observations(policy)).serialize())


def _observations(policy: TrainedPolicy) -> jax.ShapeDtypeStruct:
    """Of a batch of any size."""
    (batch,) = jax.export.symbolic_shape("batch")
    return jax.ShapeDtypeStruct((batch, policy.observation_size), jnp.float32)
