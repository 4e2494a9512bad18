"""How long does each stage of guided policy search take, on one actor and on two?

    python experiments/guided_policy_search_stages.py

Reacher with the default settings, 2,000 steps an update. The two take turns; medians. Written to
experiments/results/guided_policy_search_stages/.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from common.comparison import extent_of, options
from common.machine import machine
from common.words import defaults_of
from jaxtrpo.algorithms.gps.gps import controllers_of, examples_of, gps
from jaxtrpo.algorithms.gps.imitation import imitate
from jaxtrpo.algorithms.gps.local_models import local_models, samples_of, shared_model
from jaxtrpo.algorithms.gps.quadratic_regression import no_sums
from jaxtrpo.envs.base import action_space
from jaxtrpo.ops.moments import weighted_moments
from jaxtrpo.parallel.collectives import gather_envs, sum_over_actors
from jaxtrpo.training.train import prepare

TASK, ROUNDS, CALLS = "Reacher-v5", 3, 20
STAGES = ("collecting", "models", "LQR", "imitation", "all of learning")
ACTORS = "--actors"  # what this script tells itself


def milliseconds(actors: int) -> dict[str, float]:
    """Medians of each stage, compiled by itself, on the first batch of a run, and of learning as a whole."""
    run = prepare(TASK, algorithm="gps", actors=actors, seed=100, total_steps=100_000)
    lowered, settings = run.update.lower(run.state), defaults_of(gps)
    collect, learn = lowered.compile_collect(), lowered.compile_learn()
    state, batch = collect(run.state)
    policy, space, optimizer = run.update.policy, action_space(run.env), optax.scale_by_adam()
    size = run.env.observation_size + space.size

    def fitted(batch, learner):
        frame = weighted_moments(batch.steps.obs, jnp.ones_like(batch.steps.reward), sum_over_actors)
        found = samples_of(batch, frame, settings["samples"], space)
        _, shared = shared_model(found, no_sums(size, run.env.observation_size + 1))
        models = local_models(
            found,
            shared.quadratic,
            policy,
            learner.policy,
            learner.obs_moments,
            frame,
            space,
            strength=settings["prior_samples"],
            window=settings["window"],
        )
        return models, found

    def controlled(models, found):
        return controllers_of(models, found, jnp.float32(settings["max_kl"]))[0]

    def imitated(controllers, models, found, learner, key):
        examples = gather_envs(examples_of(controllers, models, found, learner.obs_moments, space), axis=1)
        return imitate(
            policy,
            learner.policy,
            learner.optimizer,
            examples,
            key,
            optimizer,
            jnp.float32(settings["learning_rate"]),
            steps=settings["imitation_steps"],
            minibatch_size=settings["minibatch_size"],
        )

    fit, control, imitation = map(run.actors.map, (fitted, controlled, imitated))
    models, found = fit(batch, state.learner)
    controllers = control(models, found)
    key = run.actors.replicate(jax.random.PRNGKey(0))
    calls = (
        lambda: collect(state),
        lambda: fit(batch, state.learner),
        lambda: control(models, found),
        lambda: imitation(controllers, models, found, state.learner, key),
        lambda: learn(state, batch),
    )
    seconds = []
    for _ in range(CALLS + 1):  # the first compiles
        seconds.append([])
        for call in calls:
            begin = time.perf_counter()
            jax.block_until_ready(call())
            seconds[-1].append(time.perf_counter() - begin)
    return dict(zip(STAGES, (1e3 * np.median(seconds[1:], axis=0)).tolist(), strict=True))


def in_a_process(actors: int) -> dict[str, float]:
    """Which has as many devices."""
    command = [sys.executable, __file__, ACTORS, str(actors)]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(actors)}
    return json.loads(subprocess.check_output(command, env=environment, text=True).splitlines()[-1])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(ACTORS, type=int, help="time one process, and print it")
    arguments = parser.parse_args()
    if arguments.actors:
        print(json.dumps(milliseconds(arguments.actors)))
        return
    folder = extent_of("guided_policy_search_stages", (), quick=arguments.quick).folder
    found = [[in_a_process(actors) for actors in (1, 2)] for _ in range(1 if arguments.quick else ROUNDS)]
    lines = [
        "# How long does each stage of guided policy search take?",
        "",
        f"`python experiments/guided_policy_search_stages.py` on {machine()}. {TASK} with the default settings, 2,000 "
        f"steps an update; milliseconds, medians of {len(found)} rounds. Stages are compiled by themselves.",
        "",
        f"| actors | {' | '.join(STAGES)} |",
        f"| --- |{' --- |' * len(STAGES)}",
    ]
    for index, actors in enumerate((1, 2)):
        cells = (f"{np.median([each[index][stage] for each in found]):.1f}" for stage in STAGES)
        lines.append(f"| {actors} | {' | '.join(cells)} |")
    (folder / "README.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
