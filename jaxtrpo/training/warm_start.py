"""Warm start: a new run begins with the networks and observation moments of another one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from jaxtrpo.config.checks import expanded
from jaxtrpo.config.messages import one_line, short
from jaxtrpo.envs.base import Environment
from jaxtrpo.parallel.actors import Actors
from jaxtrpo.policies.custom import CUSTOM, is_called
from jaxtrpo.policies.networks import PolicyMaker
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.policies.value_head import scaled_values
from jaxtrpo.rollout.evaluation import require_fitting
from jaxtrpo.rollout.types import TrainState
from jaxtrpo.runs.checkpoint import Checkpoint, kind_of, load_checkpoint
from jaxtrpo.runs.config_file import load_config
from jaxtrpo.runs.directory import has_checkpoint
from jaxtrpo.runs.policy_file import read_policy_file
from jaxtrpo.training.update import Update

POLICY, MOMENTS = ".learner.policy", ".learner.obs_moments"
TARGET, UNIT = ".learner.target", ".learner.unit"  # a slow copy of a network, and the unit in which both predict
# Value functions of the algorithms, and the moments of rewards, in whose units some of them predict.
VALUES = (".learner.critic", TARGET, ".learner.actions", ".learner.rewards")
OPTIMIZER = re.compile(r"\.optimizer\b")  # begins anew

Arrays = dict[str, np.ndarray]  # by their path in a `TrainState`


class WarmStart(NamedTuple):
    """What a run takes over from another one."""

    arrays: Arrays
    note: str | None  # for the user: what could not be taken over


def read_warm_start(place: str, env: Environment, maker: PolicyMaker, critic: str, update: Update) -> WarmStart:
    """Reads the policy, the critic and the observation moments of a run.

    Args:
      place: directory of a run or snapshot; without a checkpoint, only its policy and moments are read.
      env: environment of the new run.
      maker: policy of the new run.
      critic: spec string of the critic of the new run.
      update: functions of the new run.

    Raises:
      ValueError: the run is damaged, or its policy differs in size from that of the new run, does not fit `env`, or
        has values of actions where the new run needs probabilities; one sentence.
      OSError: there is no such run.
    """
    directory, shown = expanded(place), f"start_from={short(place, 60)}"
    try:
        network, content = read_policy_file(directory)
        saved = load_checkpoint(directory) if has_checkpoint(directory) else None
        policy = TrainedPolicy(maker=maker, **content)
        require_fitting(policy, env)
        if not policy.has_probabilities and update.algorithm.explore is None:
            raise ValueError(
                f"its policy predicts values of actions, which {update.algorithm.spec_string} would take for "
                "probabilities"
            )
    except (ValueError, OSError) as error:
        raise type(error)(f"{shown}: {error}") from error
    wanted, params = _by_path(update.shapes()), policy.params
    if saved is None and policy.network.value_head is not None:  # the moments of the returns are unknown
        params = jax.device_get(scaled_values(params, 0.0, 0.0))
    found = {**_by_path(params, POLICY), **_by_path(policy.moments, MOMENTS)}
    # The last policy, to which the critic belongs; that of the policy's file may be an earlier one.
    if saved is not None:
        found = {name: saved.state[name] for part in (POLICY, MOMENTS) for name in _below(saved.state, part)}
    _require_same_network(shown, found, wanted, network, maker.spec_string)
    values, note = _values(shown, saved, wanted, f"critic={critic} of {update.algorithm.spec_string}")
    copies = {TARGET + name.removeprefix(POLICY): leaf for name, leaf in found.items() if name.startswith(POLICY)}
    names = _below(wanted, TARGET)
    fits = names and all(kind_of(copies.get(name)) == kind_of(wanted[name]) for name in names)
    if fits and not _below(values, TARGET):
        # The policy of `dqn` is a network of values, which its target copies.
        values |= {name: copies[name] for name in names}
        note = f"{shown}: the target network is a copy of its policy, whose unit of reward is not known"
    if not is_called(maker, network):
        there, here = short(network, 60), short(maker.spec_string, 60)
        differs = f"{shown}: its policy is {there}, whose parameters also fit {here}"
        note = differs if note is None else f"{differs}; {note}"
    return WarmStart({**found, **values}, note)


def discount_of(place: str | None) -> float | None:
    """Returns the discount of a run; None if there is no such run, or its settings cannot be read."""
    if place is None:
        return None
    try:
        return load_config(place).get("discount")
    except (ValueError, OSError):  # whether that run can be started from is another question
        return None


def with_warm_start(start: WarmStart, state: TrainState, actors: Actors) -> TrainState:
    """Returns a placed first state with what is taken over from the other run."""
    placed = actors.replicate(start.arrays)
    return jax.tree_util.tree_map_with_path(lambda path, leaf: placed.get(jax.tree_util.keystr(path), leaf), state)


def _by_path(tree: PyTree, prefix: str = "") -> dict:
    return {f"{prefix}{jax.tree_util.keystr(path)}": leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def _below(arrays: Mapping[str, object], prefix: str) -> list[str]:
    """Returns the paths that begin with a field."""
    return [name for name in arrays if re.match(rf"{re.escape(prefix)}(?!\w)", name)]


def _require_same_network(shown: str, found: Arrays, wanted: Mapping[str, object], there: str, here: str) -> None:
    for name in sorted({*found, *_below(wanted, POLICY), *_below(wanted, MOMENTS)}):
        of_run, of_this = kind_of(found.get(name)), kind_of(wanted.get(name))
        if of_run != of_this and there != here:
            use = "" if there.startswith(CUSTOM) else f"; use policy={there!r} (--policy)"
            raise ValueError(f"{shown}: its policy is {there}, not {here}{use}")
        if of_run != of_this:
            raise ValueError(f"{shown}: {name.removeprefix('.learner.')} is {of_run}, not {of_this}")


def _values(
    shown: str, saved: Checkpoint | None, wanted: Mapping[str, object], critic: str
) -> tuple[Arrays, str | None]:
    """Returns the arrays of the value functions that both runs have, and a note if the critic is not among them.

    Args:
      shown: the setting, for the note.
      saved: checkpoint of the other run, if it has one.
      wanted: arrays of the new run.
      critic: critic of the new run, for the note.
    """
    state = {} if saved is None else saved.state
    found = {}
    for part in VALUES:
        names = [name for name in _below(wanted, part) if not OPTIMIZER.search(name)]
        if all(kind_of(state.get(name)) == kind_of(wanted[name]) for name in names):
            found.update({name: state[name] for name in names})
    if _below(found, TARGET) and UNIT in state:
        found[UNIT] = state[UNIT]
    if not _below(wanted, VALUES[0]) or _below(found, VALUES[0]):
        return found, None
    if saved is None:
        return found, f"{shown}: the critic starts untrained, because that run has no checkpoint"
    there = f"critic={saved.config['critic']} of {saved.config['algorithm']}"
    return found, one_line(f"{shown}: the critic starts untrained, because it was {there} and is {critic}")
