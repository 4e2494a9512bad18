"""How much of the true gradient do directions hold that could be followed?

    python experiments/critic_quality.py HalfCheetah-v5 [--steps 300000] [--seed 100] [--fresh 200000]

TRPO is trained for so many steps and stopped. New steps of its policy say how steep the objective really is along a
direction of length one in the Fisher norm: along the natural gradient of the last batch, and along that of critics of
actions fitted from nothing to the last 100,000 steps, or to as many of `--fresh` new steps, which are all the present
policy's. Other new steps, as many, judge. One actor; prints a table.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from common.words import defaults_of
from jaxtrpo.algorithms.advantages import estimate_advantages, standardize
from jaxtrpo.algorithms.algorithm import Spec
from jaxtrpo.algorithms.natural_gradient import evaluate_batch, solve
from jaxtrpo.algorithms.surrogates import importance_weighted_advantage
from jaxtrpo.algorithms.trpo import trpo
from jaxtrpo.algorithms.trpo_replay.labels import critic_surrogate, draw_labelled
from jaxtrpo.algorithms.trpo_replay.trpo_replay import trpo_replay
from jaxtrpo.config import USUAL_DISCOUNT
from jaxtrpo.config.specs import parse
from jaxtrpo.critics.action_values import action_critic
from jaxtrpo.critics.critic import Critic
from jaxtrpo.critics.reward_scale import value_unit
from jaxtrpo.envs.abilities import observation_space
from jaxtrpo.envs.base import action_space
from jaxtrpo.ops.moments import merge, no_moments, weighted_moments
from jaxtrpo.parallel.actors import first
from jaxtrpo.rollout.replay import make_replay
from jaxtrpo.rollout.types import Batch
from jaxtrpo.training.run import Run
from jaxtrpo.training.train import prepare

SETTINGS, OF_REPLAY = defaults_of(trpo), defaults_of(trpo_replay)
HELD, FIT_STEPS = 100_000, 50_000  # steps in the buffer; gradient steps of a critic of actions
LAMBDAS = (0.0, 0.5, 0.95)


def trained(name: str, steps: int, seed: int, fresh: int) -> tuple[Run, PyTree, list[Batch], list[Batch]]:
    """The run; its learner when it was stopped; the last batches before, and the new ones."""
    run = prepare(name, actors=1, seed=seed, total_steps=steps, max_steps_per_update=1024, discount=USUAL_DISCOUNT)
    state, lowered = run.state, run.update.lower(run.state)
    collect, learn = lowered.compile_collect(), lowered.compile_learn()
    size = run.update.sizes.segment_steps
    held: list[Batch] = []
    while True:
        acting = state
        state, batch = collect(acting)
        held = [*held, batch][-HELD // 1024 :]
        if int(first(state.segments)) * size >= steps:
            break
        state, _ = learn(state, batch)
    new = []
    while len(new) * 1024 < 2 * fresh:
        state, batch = collect(state)
        new.append(batch)
    return run, acting.learner, held, new


class Judging:
    """Gradients of one stopped learner."""

    def __init__(self, run: Run, learner: PyTree):
        """Compiles what every direction needs."""
        sizes, self.learner = run.update.sizes, learner
        critic: Critic = parse("critic", run.config.critic or "mlp").make(run.env.observation_size)
        self.spec = Spec(
            run.env.observation_size, run.update.policy, critic, run.config.discount, None, True, 1024,
            sizes.segment_steps, sizes.segment_length, action_space(run.env), observation_space(run.env),
        )  # fmt: skip
        self.map, self.key = run.actors.map, run.actors.replicate(jax.random.PRNGKey(0))
        self.replay = make_replay(
            HELD,
            segment_steps=sizes.segment_steps,
            segment_length=sizes.segment_length,
            observation_size=run.env.observation_size,
            action_size=run.env.action_size,
        )
        self.gradient = self.map(self._gradient)
        self.direction = self.map(self._direction)

    def _found(self, learner: PyTree, batch: Batch, value: PyTree):
        unscaled = estimate_advantages(
            self.spec.critic,
            value,
            learner.obs_moments,
            batch,
            discount=self.spec.discount,
            gae_lambda=SETTINGS["gae_lambda"],
        )
        return standardize(unscaled, learner.obs_moments)

    def _evaluate(self, learner: PyTree, batch: Batch, key: Array, surrogates: tuple):
        found = self._found(learner, batch, learner.critic)
        return evaluate_batch(
            self.spec.policy, learner.policy, batch.steps.action, found, key, surrogates=surrogates, fisher_samples=1024
        )

    def _gradient(self, learner: PyTree, batch: Batch, key: Array) -> Array:
        return self._evaluate(learner, batch, key, (importance_weighted_advantage,)).gradients[0]

    def _direction(self, learner: PyTree, batch: Batch, gradient: Array, key: Array) -> Array:
        fisher = self._evaluate(learner, batch, key, (importance_weighted_advantage,)).fisher
        found = solve(fisher, gradient, cg_iterations=SETTINGS["cg_iterations"], cg_damping=SETTINGS["cg_damping"])
        return found.direction / jnp.sqrt(found.curvature)

    def of_critic(self, held: Sequence[Batch], last: Batch, critic_lambda: float) -> Array:
        """The gradient, on the last batch, of a critic of actions fitted to these."""
        spec = self.spec
        names = ("hidden", "value_hidden", "learning_rate", "minibatch_size", "target_rate")
        actions = action_critic(spec.observation_size, spec.actions, **{name: OF_REPLAY[name] for name in names})
        moments = [weighted_moments(batch.steps.reward, 1.0 - batch.steps.invalid) for batch in held]
        unit = value_unit(functools.reduce(merge, moments, no_moments(())))

        def fit(learner: PyTree, ring: PyTree, batch: Batch, key: Array) -> Array:
            params = learner.policy
            draw = draw_labelled(self.replay, ring, actions, learner.obs_moments, params, critic_lambda, spec)
            state, _ = actions.fit(actions.init(key), unit, draw, jnp.int32(FIT_STEPS), key)
            return self._evaluate(learner, batch, key, (critic_surrogate(actions, state),)).gradients[0]

        insert, ring = self.map(self.replay.insert), jax.tree.map(lambda leaf: leaf[None], self.replay.empty())
        for batch in held:
            ring = insert(ring, batch)
        return self.map(fit)(self.learner, ring, last, self.key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--fresh", type=int, default=200_000)
    arguments = parser.parse_args()
    run, learner, held, new = trained(arguments.env, arguments.steps, arguments.seed, arguments.fresh)
    judging, half = Judging(run, learner), len(new) // 2
    gradients = [np.asarray(first(judging.gradient(learner, batch, judging.key))) for batch in new]
    judges = np.array(gradients[half:])

    def line(what: str, gradient: Array | np.ndarray) -> None:
        placed = run.actors.replicate(np.asarray(gradient))
        unit = np.asarray(first(judging.direction(learner, held[-1], placed, judging.key)))
        slopes = judges @ unit
        print(f"| {what} | {slopes.mean():.4f} | {slopes.std(ddof=1) / len(slopes) ** 0.5:.4f} |", flush=True)

    print(f"{arguments.env}, seed {arguments.seed}, {arguments.steps:,} steps\n")
    print("| direction | slope | standard error |\n| --- | --- | --- |")
    line("gradient of the first half of the new steps", np.mean(gradients[:half], axis=0))
    line("score of the last batch", first(judging.gradient(learner, held[-1], judging.key)))
    for batches, whose in ((held, "the last steps"), (new[:half][-len(held) :], "new steps")):
        for critic_lambda in LAMBDAS:
            line(f"critic, lambda {critic_lambda}, {whose}", first(judging.of_critic(batches, held[-1], critic_lambda)))


if __name__ == "__main__":
    main()
