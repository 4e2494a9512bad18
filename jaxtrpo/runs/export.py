"""Export of policies as ONNX and StableHLO, for use without jaxtrpo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array

from jaxtrpo.config.checks import expanded
from jaxtrpo.config.messages import short
from jaxtrpo.envs.observation_space import as_space
from jaxtrpo.envs.observations import MASK
from jaxtrpo.policies.recurrence import initial_carry
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.runs.directory import write_whole, writing

ONNX_FILE, STABLEHLO_FILE = "policy.onnx", "policy.stablehlo"
OBSERVATION, ACTION = "observation", "action"
STATE, NEXT_STATE = "state_{}", "next_state_{}"  # numbered parts of what a policy with memory carries
FIRST = "first"  # where an episode begins; only for stacked frames
PLATFORMS = ("cpu", "cuda", "tpu")


def export_policy(policy: TrainedPolicy, directory: str | Path) -> list[Path]:
    """Exports the deterministic policy, including observation normalisation and action bounds.

    Both files map float32 observations [batch, observation], as `TrainedPolicy.flatten` returns them, to actions in the
    simulator's format (float32 instead of float64), for any batch size: policy.onnx has the input "observation" and
    the output "action"; policy.stablehlo is read by `jax.export.deserialize`.

    Observations with images are several inputs, which have the names of the arrays that `flatten` returns: images
    [batch, height, width, channels] in their own dtype, and "vector", float32 [batch, size].

    A policy with memory has further inputs, "state_0" and so on, float32 [batch, size], and outputs "next_state_0" and
    so on, to be passed to the next call; at the beginning of an episode, they are zeros. A policy that was trained with
    masks has the input "action_mask", bool [batch, choices], after the observations.

    A policy with stacked frames has the observations before the newest as its state, [batch, frame, ...], normalised,
    and before it the input "first", bool [batch]: where an episode begins, its first observation is repeated.

    Args:
      policy: policy to export.
      directory: output directory, created if necessary.

    Returns:
      The paths of the files.

    Raises:
      OutputError: the files cannot be written.
    """
    made = {ONNX_FILE: as_onnx(policy), STABLEHLO_FILE: as_stablehlo(policy)}
    directory = expanded(directory)
    with writing(directory, advice=""):
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in made.items():
            write_whole(directory / name, data)
    return [directory / name for name in made]


def as_onnx(policy: TrainedPolicy) -> bytes:
    """Returns the policy as a serialised ONNX model.

    Raises:
      ValueError: ONNX has no operators for what the network computes.
    """
    import onnx
    from jax2onnx import to_onnx

    act, inputs, parts = _function(policy), _inputs(policy), range(len(state_parts(policy)))
    # Traced here because the converter patches JAX and Flax while it traces, which can break networks that use shapes.
    # Traced without jit because the converter does not know the nested functions of the newest JAX.
    with jax.disable_jit():
        traced = jax.make_jaxpr(act)(*inputs.values())
    made: Any = to_onnx(
        lambda *inputs: tuple(jaxpr_as_fun(traced)(*inputs)) if parts else jaxpr_as_fun(traced)(*inputs)[0],
        inputs=[*inputs.values()],
        model_name="policy",
        input_names=[*inputs],
        output_names=[ACTION, *(NEXT_STATE.format(part) for part in parts)],
    )
    made.doc_string = f"A policy for {policy.env_name}, trained with jaxtrpo."
    try:
        onnx.checker.check_model(made, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = short(str(error).partition("\n")[0], 100)
        raise ValueError(f"policy={policy.maker.spec_string} cannot be a model of ONNX: {reason}") from error
    return made.SerializeToString()


def as_stablehlo(policy: TrainedPolicy) -> bytes:
    """Returns the policy as StableHLO, serialised by `jax.export`."""
    exported = jax.export.export(jax.jit(_function(policy)), platforms=PLATFORMS)
    return bytes(exported(*_inputs(policy).values()).serialize())


def state_parts(policy: TrainedPolicy) -> list[jax.ShapeDtypeStruct]:
    """Returns the parts of the state that a policy with memory carries, for one environment; [] without memory."""
    return jax.tree.leaves(jax.eval_shape(lambda: initial_carry(policy.network.recurrence, 1)))


def stacks_frames(policy: TrainedPolicy) -> bool:
    """Returns whether the state of a policy consists of earlier observations."""
    return as_space(policy.observed).frames > 1


def observation_names(policy: TrainedPolicy) -> list[str]:
    """Returns the names of the inputs that are observations."""
    space = as_space(policy.observed)
    return [leaf.name for leaf in space.leaves] if space.images else [OBSERVATION]


def _function(policy: TrainedPolicy) -> Callable[..., Any]:
    """Returns (*observations, mask, first, *state) -> actions or, with memory, (actions, *state).

    There are masks only if the policy takes them, and `first` only if it stacks frames.
    """
    space = as_space(policy.observed)
    if not (policy.masked or policy.network.recurrence or space.images):
        return policy.deterministic()
    step, structure = policy.deterministic_step(), jax.tree.structure(initial_carry(policy.network.recurrence, 1))

    def act(*inputs: Array) -> Any:
        seen, others = inputs[: len(space.leaves)], inputs[len(space.leaves) :]
        obs = space.joined({leaf.name: array for leaf, array in zip(space.leaves, seen, strict=True)})
        mask, others = (others[0], others[1:]) if policy.masked else ((), others)
        no_first = jnp.zeros(space.lead_of(obs), bool)
        first, state = (others[0], others[1:]) if stacks_frames(policy) else (no_first, others)
        action, after = step(structure.unflatten(state), obs, first, mask)
        return (action, *jax.tree.leaves(after)) if state else action

    return act


def _inputs(policy: TrainedPolicy) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the inputs by name: a batch of observations of symbolic size, masks, and the parts of the state."""
    (batch,) = jax.export.symbolic_shape("batch")
    leaves = zip(observation_names(policy), as_space(policy.observed).leaves, strict=True)
    inputs = {name: jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype) for name, leaf in leaves}
    if policy.masked:
        inputs[MASK] = jax.ShapeDtypeStruct((batch, sum(policy.actions.counts)), jnp.bool_)
    if stacks_frames(policy):
        inputs[FIRST] = jax.ShapeDtypeStruct((batch,), jnp.bool_)
    for number, part in enumerate(state_parts(policy)):
        inputs[STATE.format(number)] = jax.ShapeDtypeStruct((batch, *part.shape[1:]), part.dtype)
    return inputs
