"""Asynchronous actor-critic (Mnih et al. 2016): actors that do not wait for each other."""

from __future__ import annotations

from jaxtrpo.algorithms.a2c import CRITIC, NUM_ENVS, STEPS_OF_EACH, learner_of
from jaxtrpo.algorithms.algorithm import Algorithm
from jaxtrpo.algorithms.policy_gradient import ADAPT
from jaxtrpo.config.specs import call_in_words


def a3c(
    *,
    learning_rate: float = 3e-3,
    gae_lambda: float = 0.95,
    entropy_bonus: float = 0.01,
    max_gradient_norm: float = 0.5,
) -> Algorithm:
    """Asynchronous actor-critic: each actor takes a copy of the parameters, collects with it and adds its gradient.

    The gradient is applied whole, with optimisers that all share, to parameters that others have changed meanwhile: the
    metric `staleness` counts how often. Which actor comes first depends on the machine, so that no two runs are alike
    to the bit, and a run that is resumed is not the one that was not stopped. One row of metrics is one gradient.

    Args:
      learning_rate: of RMSprop at first; it falls to 0 over the run, unless another rule is chosen, and the critic's
        falls with it.
      gae_lambda: bias (0) against variance (1) of the advantages; 1 gives n-step returns.
      entropy_bonus: weight of the policy's entropy beside the advantages, which have standard deviation 1.
      max_gradient_norm: gradients of the policy are cut to this norm.

    Raises:
      ValueError: a setting is out of bounds; one sentence that names it.
    """
    words = call_in_words(a3c, locals())
    make = learner_of("a3c", learning_rate, gae_lambda, entropy_bonus, max_gradient_norm)
    starts = {"learning_rate": learning_rate, "steps_per_update": STEPS_OF_EACH * NUM_ENVS}
    return Algorithm(words, starts, make, ADAPT, CRITIC, NUM_ENVS, STEPS_OF_EACH)
