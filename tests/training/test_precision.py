"""JAX in double precision: what works there, and that the rest says so before it begins. And numbers beyond 32 bits."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from support import counted_compilations
from test_train import PENDULUM, TINY

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.policies.distributions import log_prob

SETTINGS = {**TINY, "steps_per_update": 32, "total_steps": 32}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    return jaxtrpo.train(PENDULUM, out=out, progress=False, **SETTINGS), out


def test_training_and_evaluation_refuse_double_precision_by_name(run, capsys):
    policy = run[0].policy
    with jax.enable_x64(True), counted_compilations() as compiled:
        for start in (
            lambda: jaxtrpo.train(PENDULUM, **SETTINGS),
            lambda: jaxtrpo.train_many(PENDULUM, **SETTINGS),
            lambda: jaxtrpo.evaluate(policy, episodes=2),
        ):
            with pytest.raises(ValueError, match=r"jax_enable_x64 is on.*JAX_ENABLE_X64.*jax\.config\.update"):
                start()
        assert not compiled
        for words in (["train", PENDULUM], ["train", PENDULUM, "--seeds", "2"], ["evaluate", str(run[1])]):
            assert cli.main(words) == cli.INPUT_ERROR
            assert "jax_enable_x64" in capsys.readouterr().err


def test_a_policy_acts_the_same_in_double_precision(run):
    obs = np.linspace(-1, 1, 12).reshape(3, 4)
    wanted = run[0].policy(obs)
    with jax.enable_x64(True):
        for policy in (run[0].policy, jaxtrpo.load_policy(run[1])):
            found = policy(obs)
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
            assert found.dtype == wanted.dtype
            np.testing.assert_allclose(jax.jit(policy.deterministic())(jax.numpy.asarray(obs)), wanted, rtol=1e-6)


def test_precision_of_a_context_is_that_of_learning():
    """Which is compiled in another thread."""
    seen = []

    def surrogate(new, samples):
        seen.append(jax.config.jax_default_matmul_precision)
        return log_prob(new, samples.action) * samples.advantage

    settings = {"total_steps": 64, "steps_per_update": 32, "num_envs": 4, "actors": 1, "progress": False}
    with jax.default_matmul_precision("highest"):
        jaxtrpo.train("InvertedPendulum-v5", surrogate=surrogate, policy="mlp(hidden=(4,))", **settings)
    assert seen and set(seen) == {"highest"}


@pytest.mark.parametrize(
    "algorithm",
    [
        "ppo(minibatch_size=16, max_gradient_norm=10000000000, kl_stop=10000000000)",
        "a2c(max_gradient_norm=10000000000)",
    ],
)
def test_numbers_may_be_larger_than_32_bits(algorithm):
    """And are as if they were written 1e10."""
    settings = {**SETTINGS, "total_steps": 64, "progress": False}
    words = algorithm, algorithm.replace("10000000000", "1e10")
    one, other = (jaxtrpo.train(PENDULUM, algorithm=each, **settings).policy(np.ones((3, 4))) for each in words)
    np.testing.assert_array_equal(one, other)
