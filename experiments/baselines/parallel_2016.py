"""BASELINE, not part of jaxtrpo: the design of 2016, written down plainly with NumPy, PyTorch and Gymnasium.

One Python process an actor steps one environment at a time and asks a NumPy copy of the policy for each action; whole
episodes travel back through queues. The learner is one process: returns by plain loops, gradients and Hessian-vector
products by PyTorch, conjugate gradient in NumPy. It is here so that parallel actors are compared like for like.

    python experiments/baselines/parallel_2016.py HalfCheetah-v5 --total-steps 1000000 --seed 0 --actors 2 \
        --steps-per-update 1024
"""

from __future__ import annotations

import collections
import multiprocessing

import gymnasium
import numpy as np
import torch
from report import Report, options
from torch import nn

DISCOUNT, GAE_LAMBDA, MAX_KL, DAMPING, CG_ITERATIONS = 0.99, 0.95, 0.01, 0.1, 15
HIDDEN = 64


class RunningMoments:
    """Mean and standard deviation of all observations so far."""

    def __init__(self, size: int) -> None:
        self.count, self.mean, self.variance = 1e-4, np.zeros(size), np.ones(size)

    def update(self, values: np.ndarray) -> None:
        count, delta = self.count + len(values), values.mean(0) - self.mean
        share = len(values) / count
        self.variance = (1 - share) * self.variance + share * values.var(0) + share * (1 - share) * delta**2
        self.mean, self.count = self.mean + share * delta, count

    def normalize(self, values: np.ndarray) -> np.ndarray:
        return np.clip((values - self.mean) / np.sqrt(self.variance + 1e-8), -10, 10)


def actor(name: str, seed: int, orders: multiprocessing.Queue, results: multiprocessing.Queue) -> None:
    """Plays episodes until it has the steps that were ordered."""
    env = gymnasium.make(name)
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    low, high = env.action_space.low, env.action_space.high
    while (order := orders.get()) is not None:
        layers, log_std, moments, steps = order
        episodes, done = [], 0
        while done < steps:
            path: dict[str, list] = collections.defaultdict(list)
            obs, ended, truncated = env.reset()[0], False, False
            while not (ended or truncated):
                x = normal = moments.normalize(obs).astype(np.float32)  # as the weights are
                for weight, bias in layers[:-1]:
                    x = np.tanh(weight @ x + bias)
                action = layers[-1][0] @ x + layers[-1][1] + np.exp(log_std) * rng.standard_normal(len(log_std))
                path["raw"].append(obs)
                path["obs"].append(normal)
                path["action"].append(action)
                squashed = low + (np.clip(action, -1, 1) + 1) / 2 * (high - low)
                obs, reward, ended, truncated, _ = env.step(squashed.astype(np.float32))
                path["reward"].append(reward)
            arrays = {key: np.array(value, np.float32) for key, value in path.items()}
            episodes.append({**arrays, "last": moments.normalize(obs).astype(np.float32), "ended": ended})
            done += len(path["reward"])
        results.put(episodes)


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs)
    )


class Learner:
    """TRPO as in the paper (Schulman et al. 2015, appendix C)."""

    def __init__(self, obs_size: int, action_size: int) -> None:
        self.mean, self.critic = network(obs_size, action_size), network(obs_size, 1)
        with torch.no_grad():
            self.mean[-1].weight *= 0.01
        self.log_std = nn.Parameter(torch.full((action_size,), -0.5))
        self.params = [*self.mean.parameters(), self.log_std]
        self.optimizer = torch.optim.Adam(self.critic.parameters(), 1e-3)
        self.scale = 1.0  # of the returns

    def log_prob(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Normal(self.mean(obs), self.log_std.exp()).log_prob(action).sum(-1)

    def flat(self) -> np.ndarray:
        return nn.utils.parameters_to_vector(self.params).detach().numpy().astype(np.float64)

    def load(self, vector: np.ndarray) -> None:
        nn.utils.vector_to_parameters(torch.tensor(vector, dtype=torch.float32), self.params)

    def advantages(self, episode: dict) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            value = self.scale * self.critic(torch.tensor(episode["obs"]))[:, 0].numpy()
            after = 0.0 if episode["ended"] else self.scale * float(self.critic(torch.tensor(episode["last"])))
        advantage, found = 0.0, np.zeros(len(value), np.float32)
        for t in reversed(range(len(value))):
            advantage = episode["reward"][t] + DISCOUNT * after - value[t] + DISCOUNT * GAE_LAMBDA * advantage
            found[t], after = advantage, value[t]
        return found, found + value

    def update(self, episodes: list[dict]) -> None:
        found = [self.advantages(episode) for episode in episodes]
        obs = torch.tensor(np.concatenate([episode["obs"] for episode in episodes]))
        action = torch.tensor(np.concatenate([episode["action"] for episode in episodes]))
        advantage = torch.tensor(np.concatenate([each for each, _ in found]))
        target = np.concatenate([each for _, each in found])
        self.policy_step(obs, action, (advantage - advantage.mean()) / (advantage.std() + 1e-8))
        self.scale = 0.9 * self.scale + 0.1 * float(target.std() + 1e-8)
        self.fit(obs, torch.tensor(target / self.scale))

    def policy_step(self, obs: torch.Tensor, action: torch.Tensor, advantage: torch.Tensor) -> None:
        with torch.no_grad():
            old_mean, old_log_std, old_log_prob = self.mean(obs), self.log_std.clone(), self.log_prob(obs, action)

        def surrogate() -> torch.Tensor:
            return ((self.log_prob(obs, action) - old_log_prob).exp() * advantage).mean()

        def kl() -> torch.Tensor:
            old = torch.distributions.Normal(old_mean, old_log_std.exp())
            new = torch.distributions.Normal(self.mean(obs), self.log_std.exp())
            return torch.distributions.kl_divergence(old, new).sum(-1).mean()

        slope = torch.autograd.grad(kl(), self.params, create_graph=True)
        slope = torch.cat([each.reshape(-1) for each in slope])

        def fisher(vector: np.ndarray) -> np.ndarray:
            along = slope @ torch.tensor(vector, dtype=torch.float32)
            product = torch.autograd.grad(along, self.params, retain_graph=True)
            return torch.cat([each.reshape(-1) for each in product]).numpy().astype(np.float64) + DAMPING * vector

        start = surrogate()
        gradient = torch.cat([each.reshape(-1) for each in torch.autograd.grad(start, self.params)]).numpy()
        direction = conjugate_gradient(fisher, gradient.astype(np.float64))
        step = direction * np.sqrt(2 * MAX_KL / (direction @ fisher(direction) + 1e-12))
        old = self.flat()
        for shrink in 0.8 ** np.arange(10):
            self.load(old + shrink * step)
            with torch.no_grad():
                if surrogate() > start and kl() <= MAX_KL:
                    return
        self.load(old)

    def fit(self, obs: torch.Tensor, target: torch.Tensor) -> None:
        for _ in range(10):
            for rows in torch.randperm(len(obs)).split(128):
                self.optimizer.zero_grad()
                ((self.critic(obs[rows])[:, 0] - target[rows]) ** 2).mean().backward()
                self.optimizer.step()


def conjugate_gradient(product, b: np.ndarray) -> np.ndarray:
    x, residual, direction = np.zeros_like(b), b.copy(), b.copy()
    square = residual @ residual
    for _ in range(CG_ITERATIONS):
        along = product(direction)
        alpha = square / (direction @ along)
        x, residual = x + alpha * direction, residual - alpha * along
        before, square = square, residual @ residual
        if square < 1e-10:
            break
        direction = residual + square / before * direction
    return x


def main() -> None:
    arguments = options("actors", "steps-per-update").parse_args()
    torch.manual_seed(arguments.seed)
    env = gymnasium.make(arguments.env)
    learner = Learner(env.observation_space.shape[0], env.action_space.shape[0])
    moments = RunningMoments(env.observation_space.shape[0])
    orders, results = multiprocessing.Queue(), multiprocessing.Queue()
    seeds = range(1_000 * arguments.seed, 1_000 * arguments.seed + arguments.actors)
    processes = [
        multiprocessing.Process(target=actor, args=(arguments.env, seed, orders, results), daemon=True)
        for seed in seeds
    ]
    for process in processes:
        process.start()
    report, done = Report(), 0
    while done < arguments.total_steps:
        layers = [(each.weight.detach().numpy(), each.bias.detach().numpy()) for each in learner.mean[::2]]
        share = -(-arguments.steps_per_update // arguments.actors)
        for _ in processes:
            orders.put((layers, learner.log_std.detach().numpy(), moments, share))
        episodes = [episode for _ in processes for episode in results.get()]
        learner.update(episodes)
        moments.update(np.concatenate([episode["raw"] for episode in episodes]))
        done += sum(len(episode["reward"]) for episode in episodes)
        report(done, (float(episode["reward"].sum()) for episode in episodes))
    for _ in processes:
        orders.put(None)


if __name__ == "__main__":
    main()
