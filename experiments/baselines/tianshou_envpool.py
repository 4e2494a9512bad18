"""BASELINE, not part of jaxtrpo: TRPO of Tianshou over EnvPool, the arrangement and settings of its MuJoCo benchmark,
but for the learning rate of the critic, which does not fall here.

    python experiments/baselines/tianshou_envpool.py HalfCheetah-v5 --total-steps 1000000 --seed 0 --num-envs 16 \
        --steps-per-update 1024
"""

from __future__ import annotations

import envpool
import numpy as np
import torch
from report import Report, options
from tianshou.algorithm import TRPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import VectorEnvNormObs
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode
from torch.distributions import Independent, Normal


def make_algorithm(env) -> TRPO:
    shape, hidden = env.observation_space.shape, (64, 64)
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=shape, hidden_sizes=hidden, activation=torch.nn.Tanh),
        action_shape=env.action_space.shape,
        unbounded=True,
    )
    critic = ContinuousCritic(preprocess_net=Net(state_shape=shape, hidden_sizes=hidden, activation=torch.nn.Tanh))
    torch.nn.init.constant_(actor.sigma_param, -0.5)
    for module in (*actor.modules(), *critic.modules()):
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.orthogonal_(module.weight, gain=2**0.5)
            torch.nn.init.zeros_(module.bias)
    with torch.no_grad():
        for module in actor.mu.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight *= 0.01
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda parameters: Independent(Normal(*parameters), 1),
        action_scaling=True,
        action_bound_method="clip",
        action_space=env.action_space,
    )
    return TRPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=1e-3),
        max_kl=0.01,
        optim_critic_iters=20,
        return_scaling=True,
    )


def main() -> None:
    arguments = options("num-envs", "steps-per-update").parse_args()
    np.random.seed(arguments.seed)
    torch.manual_seed(arguments.seed)
    pool = envpool.make_gymnasium(arguments.env, num_envs=arguments.num_envs, seed=arguments.seed)
    algorithm = make_algorithm(pool)
    buffer = VectorReplayBuffer(4 * arguments.steps_per_update, arguments.num_envs)
    collector = Collector(algorithm, VectorEnvNormObs(pool), buffer, exploration_noise=True)
    collector.reset()
    report, done = Report(), 0
    with policy_within_training_step(algorithm.policy):
        while done < arguments.total_steps:
            found = collector.collect(n_step=arguments.steps_per_update)
            with torch_train_mode(algorithm):
                algorithm.update(buffer, batch_size=None, repeat=1)
            collector.reset_buffer(keep_statistics=True)
            done += found.n_collected_steps
            report(done, found.returns)


if __name__ == "__main__":
    main()
