"""Policies from spec strings and user-defined modules, and trained policies."""

from __future__ import annotations

import dataclasses
import inspect

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.flatten_util import ravel_pytree
from support import counted_compilations

import jaxtrpo
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.ops.fisher import fisher_vector_product
from jaxtrpo.ops.moments import Moments
from jaxtrpo.policies.action_units import stretch
from jaxtrpo.policies.custom import module_policy
from jaxtrpo.policies.distributions import Categorical, Gaussian, fisher_metric
from jaxtrpo.policies.masking import legal
from jaxtrpo.policies.networks import PolicyMaker, gaussian_policy, mlp
from jaxtrpo.policies.recurrent import gru
from jaxtrpo.policies.trained import TrainedPolicy

OBSERVATIONS = 4
REAL = ActionSpace(np.float32([-1, -2]), np.float32([1, 3]))
CHOICES = ActionSpace(np.float32([0, 5]), np.float32([2, 6]), (3, 2))


class GaussianNet(nn.Module):
    """Layers that `MLP` does not have, and a standard deviation shared by all states."""

    actions: int = 2

    @nn.compact
    def __call__(self, obs):
        x = nn.LayerNorm()(nn.swish(nn.Dense(5)(obs)))
        return Gaussian(nn.Dense(self.actions)(x), self.param("log_std", nn.initializers.zeros, (self.actions,)))


class CategoricalNet(nn.Module):
    counts: tuple[int, ...] = (3, 2)

    @nn.compact
    def __call__(self, obs):
        x = nn.LayerNorm()(nn.swish(nn.Dense(5)(obs)))
        return Categorical(tuple(nn.Dense(count)(x) for count in self.counts))


class NnxNet(nnx.Module):
    def __init__(self, seed=0):
        rngs = nnx.Rngs(seed)
        self.layers = nnx.List([nnx.Linear(OBSERVATIONS, 5, rngs=rngs), nnx.Linear(5, 4, rngs=rngs)])
        self.norm = nnx.LayerNorm(5, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))  # not a parameter

    def __call__(self, obs):
        mean, log_std = jnp.split(self.layers[1](self.norm(nnx.tanh(self.layers[0](obs)))), 2, axis=-1)
        return Gaussian(mean, log_std)


MAKERS = {
    "mlp": (mlp(hidden=(5,)), REAL),
    "state_dependent_std": (mlp(hidden=(5,), state_dependent_std=True), REAL),
    "choices": (mlp(hidden=(5,)), CHOICES),
    "linen": (module_policy(GaussianNet()), REAL),
    "linen choices": (module_policy(CategoricalNet()), CHOICES),
    "nnx": (module_policy(NnxNet()), REAL),
}


@pytest.fixture(params=MAKERS.values(), ids=MAKERS.keys())
def made(request):
    maker, space = request.param
    return maker.make(OBSERVATIONS, space), space


# ---- all policies


def plain_kl(old, new):
    """Computes the KL of each state by the textbook formula."""
    if isinstance(old, Gaussian):
        s, t = jnp.exp(2 * old.log_std), jnp.exp(2 * new.log_std)
        return jnp.sum(0.5 * (jnp.log(t / s) + (s + (old.mean - new.mean) ** 2) / t - 1), axis=-1)
    p, q = ([jax.nn.softmax(logits) for logits in each.logits] for each in (old, new))
    return sum(jnp.sum(a * jnp.log(a / b), axis=-1) for a, b in zip(p, q, strict=True))


def test_fisher_products_match_hessian_of_kl(made):
    policy, _ = made
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        start = policy.init(jax.random.PRNGKey(0))
        flat, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(0.5 * rng.normal(size=leaf.shape)), start))
        obs = jnp.asarray(rng.normal(size=(7, OBSERVATIONS)))
        share = jnp.asarray(rng.random((7, 1)))

        def metric(distribution, tangent):
            return jax.tree.map(lambda leaf: share * leaf, fisher_metric(distribution, tangent))

        def mean_kl(new):
            return jnp.sum(share[:, 0] * plain_kl(policy.apply(unravel(flat), obs), policy.apply(unravel(new), obs)))

        hessian = jax.jit(jax.hessian(mean_kl))(flat)
        for apply in filter(None, (policy.apply, policy.apply_for_products)):

            @jax.jit
            def rows(flat, apply=apply):
                product = fisher_vector_product(lambda p: apply(unravel(p), obs), flat, metric)
                return jax.lax.map(product, jnp.eye(flat.size))

            np.testing.assert_allclose(rows(flat), hessian, rtol=1e-8, atol=1e-10)


def test_noise_and_actions_have_consistent_shapes(made):
    policy, space = made
    params = jax.jit(policy.init)(jax.random.PRNGKey(1))
    obs = np.random.default_rng(1).normal(size=(2, 3, OBSERVATIONS)).astype(np.float32)
    distribution = jax.jit(policy.apply)(params, obs)
    assert policy.noise_size == distribution.noise_size
    noise = policy.draw_noise(jax.random.PRNGKey(2), (2, 3, policy.noise_size))
    action = distribution.sample(noise)
    assert action.shape == (2, 3, space.size)
    assert jnp.issubdtype(action.dtype, jnp.integer) == bool(space.counts)
    for measured in (distribution.log_prob(action), distribution.entropy()):
        assert measured.shape == (2, 3) and np.all(np.isfinite(measured))
    assert np.all(np.isfinite(list(distribution.summary().values())))


def test_distribution_of_a_state_does_not_depend_on_the_batch(made):
    policy, _ = made
    params = policy.init(jax.random.PRNGKey(1))
    obs = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, OBSERVATIONS)), jnp.float32)
    many, one = policy.apply(params, obs), policy.apply(params, obs[1, 2])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1, 2], b, rtol=1e-5, atol=1e-6), many, one)


# ---- mlp


@pytest.mark.parametrize(
    "settings, spec",
    [
        ({}, "mlp"),
        ({"hidden": [64, 64], "initial_log_std": None}, "mlp"),
        ({"initial_log_std": -0.5}, "mlp(initial_log_std=-0.5)"),
        ({"hidden": (128, 128)}, "mlp(hidden=(128, 128))"),
        ({"hidden": []}, "mlp(hidden=())"),
        ({"initial_log_std": -1, "state_dependent_std": True}, "mlp(initial_log_std=-1.0, state_dependent_std=True)"),
    ],
)
def test_spec_string_holds_settings_that_are_not_default_and_can_be_parsed(settings, spec):
    maker = mlp(**settings)
    assert maker.spec_string == spec
    assert eval(spec if "(" in spec else spec + "()", {"mlp": mlp}) is maker


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"hidden": 64}, r"hidden=64 must be a sequence of sizes"),
        ({"hidden": (64, 0)}, r"hidden=0 must be a whole number of at least 1"),
        ({"hidden": (True,)}, r"hidden=True must be a whole number"),
        ({"initial_log_std": 6}, r"initial_log_std=6 must be between -10 and 5"),
        ({"initial_log_std": float("nan")}, r"initial_log_std=nan must be between -10 and 5"),
        ({"initial_log_std": "0"}, r"initial_log_std='0' must be between -10 and 5"),
        ({"state_dependent_std": 1}, r"state_dependent_std=1 must be True or False"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(mlp)(**settings)  # bypasses the type checks of the tests


def test_state_dependent_std_is_rejected_for_discrete_actions():
    with pytest.raises(ValueError, match="state_dependent_std=True needs continuous actions"):
        mlp(state_dependent_std=True).make(OBSERVATIONS, CHOICES)


# ---- modules


class Returns(nn.Module):
    """Returns a function of the scaled observations."""

    function: object

    @nn.compact
    def __call__(self, obs):
        scale = self.param("scale", nn.initializers.ones, ())
        return self.function(scale * obs)


class Dropped(nn.Module):
    @nn.compact
    def __call__(self, obs):
        return Gaussian(nn.Dropout(0.5, deterministic=False)(nn.Dense(2)(obs)), jnp.zeros(2))


class BatchNormed(nn.Module):
    @nn.compact
    def __call__(self, obs):
        return Gaussian(nn.BatchNorm(use_running_average=True)(nn.Dense(2)(obs)), jnp.zeros(2))


class Bare(nn.Module):
    def __call__(self, obs):
        return Gaussian(obs[:, :2], jnp.zeros(2))


class Half(nn.Module):
    @nn.compact
    def __call__(self, obs):
        return Gaussian(nn.Dense(2, param_dtype=jnp.bfloat16)(obs).astype(jnp.float32), jnp.zeros(2))


class NotATree:
    pass


@pytest.mark.parametrize(
    "module, space, message",
    [
        (
            Returns(lambda x: x[:, :2]),
            REAL,
            r"must return a distribution, Gaussian or Categorical of jaxtrpo.policies.distributions, not \w+",
        ),
        (Returns(lambda x: (x[:, :2], x[:, 2:])), REAL, r"must return a distribution, .* not tuple"),
        (Returns(lambda x: NotATree()), REAL, r"must return a distribution, .* not NotATree"),
        (GaussianNet(3), REAL, r"a Gaussian of size 3, but the environment's actions are continuous of size 2"),
        (GaussianNet(), CHOICES, r"a Gaussian, but the environment's actions are discrete with \(3, 2\) choices"),
        (CategoricalNet(), REAL, r"a Categorical, but the environment's actions are continuous of size 2"),
        (
            CategoricalNet((2, 3)),
            CHOICES,
            r"a Categorical with \(2, 3\) choices, but .* are discrete with \(3, 2\) choices",
        ),
        (
            CategoricalNet((3,)),
            CHOICES,
            r"a Categorical with \(3,\) choices, but .* are discrete with \(3, 2\) choices",
        ),
        (Returns(lambda x: Categorical(x)), CHOICES, r"logits of a Categorical must be a tuple of arrays"),
        (Returns(lambda x: Gaussian(x[:, :2], x)), REAL, r"a Gaussian whose mean and log_std have different sizes"),
        (Returns(lambda x: Gaussian(x[0, :2], x[0, :2])), REAL, r"a Gaussian with float32\[2\] for 3 states"),
        (Returns(lambda x: Gaussian(x[:, :2], jnp.zeros((3, 2), int))), REAL, r"with int32\[3, 2\] for 3 states"),
        (Returns(lambda x: x @ jnp.zeros((7, 2))), REAL, r"fails for observations of shape \(3, 4\): "),
        (nn.Dense(3), REAL, r"custom:Dense must return a distribution"),
        (Dropped(), REAL, r"custom:Dropped fails for observations of shape \(3, 4\): .*dropout"),
        (BatchNormed(), REAL, r"custom:BatchNormed has batch_stats, but only parameters are learned"),
        (Bare(), REAL, r"custom:Bare has no parameters"),
        (Half(), REAL, r"custom:Half has parameters of type bfloat16, but must have float32 \(param_dtype\)"),
    ],
)
def test_module_that_does_not_fit_is_rejected_in_one_line(module, space, message):
    maker = module_policy(module)
    with pytest.raises(ValueError, match=message) as caught:
        maker.make(OBSERVATIONS, space)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(maker.spec_string)
    assert ("fails" in message) == (caught.value.__cause__ is not None)


@pytest.mark.parametrize("module", [GaussianNet, lambda obs: obs, "mlp", None])
def test_object_that_is_not_a_module_is_rejected(module):
    with pytest.raises(ValueError, match="instance of a flax module"):
        module_policy(module)


def test_shared_standard_deviation_is_broadcast_to_all_states():
    for shared in (lambda x: jnp.float32(-1), lambda x: jnp.full(2, -1.0), lambda x: jnp.full((len(x), 2), -1.0)):
        policy = module_policy(Returns(lambda x, shared=shared: Gaussian(x[:, :2], shared(x)))).make(OBSERVATIONS, REAL)
        params = policy.init(jax.random.PRNGKey(0))
        distribution = policy.apply(params, jnp.ones((5, 6, OBSERVATIONS)))
        np.testing.assert_array_equal(distribution.log_std, np.full((5, 6, 2), -1.0, np.float32))


class Sevens(Gaussian):
    """A distribution with another mode."""

    def mode(self):
        return 0 * self.mean + 7


@pytest.mark.parametrize("shared", [True, False])
def test_subclass_of_a_distribution_stays_one(shared):
    """Also where its standard deviation is broadcast, and in products with the Fisher matrix."""

    def distribution(x):
        return Sevens(x[:, :2], jnp.full(2, -1.0) if shared else jnp.full((len(x), 2), -1.0))

    policy = module_policy(Returns(distribution)).make(OBSERVATIONS, REAL)
    found = policy.apply(policy.init(jax.random.PRNGKey(0)), jnp.ones((5, OBSERVATIONS)))
    np.testing.assert_array_equal(found.mode(), np.full((5, 2), 7.0))
    assert type(found.fisher_metric(found)) is Sevens
    settings = {"total_steps": 256, "steps_per_update": 64, "num_envs": 4, "actors": 1, "progress": False}

    class Net(nn.Module):
        @nn.compact
        def __call__(self, obs):
            mean = nn.Dense(1)(obs)
            return Sevens(mean, self.param("log_std", nn.initializers.zeros, (1,)) if shared else 0 * mean)

    result = jaxtrpo.train("InvertedPendulum-v5", policy=Net(), **settings)
    assert np.nanmax(result.metrics["kl"]) > 0


class ByDeviation(Gaussian):
    """Its second parameter is the standard deviation itself, which must not be 0."""

    @property
    def inner(self):
        return Gaussian(self.mean, jnp.log(self.log_std))

    def sample(self, noise):
        return self.inner.sample(noise)

    def log_prob(self, action):
        return self.inner.log_prob(action)

    def entropy(self):
        return self.inner.entropy()

    def kl_divergence(self, new):
        return self.inner.kl_divergence(new.inner)


def test_ppo_needs_no_parameters_of_steps_that_are_not_there():
    """Batches are smaller than the buffer, and a minibatch is larger than the first of them."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, obs):
            return ByDeviation(nn.Dense(1)(obs), nn.softplus(nn.Dense(1)(obs)) + 0.1)

    words = "ppo(kl_stop=10.0, epochs=3, minibatch_size=48)"
    settings = {"total_steps": 512, "steps_per_update": 64, "num_envs": 4, "segment_length": 4, "actors": 1}
    metrics = jaxtrpo.train(
        "InvertedPendulum-v5", policy=Net(), algorithm=words, adapt="linear(steps_per_update=256)", progress=False,
        **settings,
    ).metrics  # fmt: skip
    assert set(metrics["epochs"]) == {3}
    assert np.all(metrics["accepted"] == (metrics["update"] > 1))  # nothing is learned from the first batch
    for name in ("kl", "entropy", "clip_fraction"):
        assert np.all(np.isfinite(metrics[name])), name


def test_standard_deviation_may_be_a_number():
    policy = module_policy(Returns(lambda x: Gaussian(x[:, :2], -0.5))).make(OBSERVATIONS, REAL)
    found = policy.apply(policy.init(jax.random.PRNGKey(0)), jnp.ones((5, OBSERVATIONS)))
    np.testing.assert_array_equal(found.log_std, np.full((5, 2), -0.5, np.float32))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_layers_of_few_digits_have_probabilities_of_many(dtype):
    class Half(nn.Module):
        @nn.compact
        def __call__(self, obs):
            return Categorical((nn.Dense(4, dtype=dtype)(obs),))

    policy = module_policy(Half()).make(OBSERVATIONS, ActionSpace(np.float32([0]), np.float32([3]), (4,)))
    found = policy.apply(policy.init(jax.random.PRNGKey(0)), jnp.ones((5, OBSERVATIONS)))
    assert found.logits[0].dtype == jnp.float32
    masked = legal(found, jnp.bool_([[True, False, True, True]] * 5))
    for value in (masked.entropy(), masked.kl_divergence(masked), masked.log_prob(jnp.int32([[0]] * 5))):
        assert value.dtype == jnp.float32 and np.all(np.isfinite(value))


def test_subclass_of_choices_stays_one():
    class Mine(Categorical):
        pass

    found = Mine((jnp.ones((2, 3)),))
    assert type(found.fisher_metric(found)) is Mine


def test_annotated_parameters_are_plain_arrays(tmp_path):
    """`nn.with_partitioning` puts arrays into boxes, which files do not hold."""

    class Annotated(nn.Module):
        @nn.compact
        def __call__(self, obs):
            init = nn.with_partitioning(nn.initializers.ones, ("in", "out"))
            return Gaussian(nn.Dense(2, kernel_init=init)(obs), jnp.zeros(2))

    policy = trained(module_policy(Annotated()), REAL)
    assert all(isinstance(leaf, jax.Array) for leaf in policy.params["params"]["Dense_0"].values())
    jaxtrpo.save_policy(tmp_path, policy)
    obs = np.ones(OBSERVATIONS, np.float32)
    np.testing.assert_array_equal(jaxtrpo.load_policy(tmp_path, policy=Annotated())(obs), policy(obs))


def test_nnx_parameters_keep_their_order():
    """Names of layers sort otherwise than numbers: layers.10 comes before layers.2."""

    class Deep(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            sizes = [OBSERVATIONS, *range(3, 14), 4]
            self.layers = nnx.List([nnx.Linear(*pair, rngs=rngs) for pair in zip(sizes, sizes[1:], strict=False)])

        def __call__(self, obs):
            for layer in self.layers:
                obs = layer(obs)
            return Gaussian(*jnp.split(obs, 2, axis=-1))

    module = Deep()
    policy = module_policy(module).make(OBSERVATIONS, REAL)
    obs = jnp.ones((2, OBSERVATIONS))
    found = policy.apply(jax.jit(policy.init)(jax.random.PRNGKey(0)), obs)
    jax.tree.map(np.testing.assert_array_equal, found, module(obs))


def test_nnx_module_provides_initial_parameters_and_is_not_modified():
    module = NnxNet(seed=3)
    expected = module(jnp.ones((2, OBSERVATIONS)))
    policy = module_policy(module).make(OBSERVATIONS, REAL)
    params = jax.jit(policy.init)(jax.random.PRNGKey(8))
    assert all(isinstance(name, str) for name in params["params"])  # required by policy files
    jax.tree.map(np.testing.assert_array_equal, policy.apply(params, jnp.ones((2, OBSERVATIONS))), expected)
    moved = policy.apply(jax.tree.map(lambda leaf: leaf + 1, params), jnp.ones((2, OBSERVATIONS)))
    assert not np.allclose(moved.mean, expected.mean)
    jax.tree.map(np.testing.assert_array_equal, module(jnp.ones((2, OBSERVATIONS))), expected)


# ---- trained policies


def trained(maker: PolicyMaker, space: ActionSpace, seed=0) -> TrainedPolicy:
    keys = jax.random.split(jax.random.PRNGKey(seed), 2)
    params = jax.tree.map(lambda leaf: 3 * leaf + 0.1, maker.make(OBSERVATIONS, space).init(keys[0]))
    mean, variance = jax.random.normal(keys[1], (2, OBSERVATIONS))
    return TrainedPolicy("Some-v1", OBSERVATIONS, space, maker, params, Moments(jnp.float32(1e6), mean, variance**2))


SPACES = [
    (gym.spaces.Discrete(3, start=5), ActionSpace(np.float32([5]), np.float32([7]), (3,), ())),
    (gym.spaces.MultiDiscrete([3, 2]), ActionSpace(np.float32([0, 0]), np.float32([2, 1]), (3, 2))),
    (
        gym.spaces.MultiDiscrete([[3, 2], [4, 5]], start=[[1, 2], [0, -1]]),
        ActionSpace(np.float32([1, 2, 0, -1]), np.float32([3, 3, 3, 3]), (3, 2, 4, 5), (2, 2)),
    ),
    (gym.spaces.Box(-1, 2, (3,)), ActionSpace(np.full(3, -1, np.float32), np.full(3, 2, np.float32))),
    (gym.spaces.Box(-1, 2, (2, 1)), ActionSpace(np.full(2, -1, np.float32), np.full(2, 2, np.float32), shape=(2, 1))),
    (gym.spaces.Box(-np.inf, 2, ()), ActionSpace(np.float32([-np.inf]), np.float32([2]), shape=())),
]


@pytest.mark.parametrize("theirs, ours", SPACES, ids=lambda space: str(space) if isinstance(space, gym.Space) else "")
def test_actions_of_trained_policy_are_in_gymnasium_space(theirs, ours):
    policy = trained(mlp(hidden=(5,)), ours)
    obs = np.random.default_rng(0).normal(size=(2, 200, OBSERVATIONS)).astype(np.float32)
    for key in (None, jax.random.PRNGKey(0)):
        assert theirs.contains(policy(obs[0, 0], key=key))
        actions = policy(obs, key=key)
        assert actions.shape == (2, 200, *theirs.shape) and isinstance(actions, np.ndarray)
        flat = actions.reshape(-1, *theirs.shape)
        assert all(theirs.contains(flat[i, ...]) for i in range(len(flat)))
        in_jax = policy(jnp.asarray(obs), key=key)
        assert isinstance(in_jax, jax.Array)
        np.testing.assert_array_equal(in_jax, actions)
    if ours.counts:  # every choice is sampled
        drawn = np.concatenate([policy(obs, key=jax.random.PRNGKey(seed)).reshape(400, -1) for seed in range(5)])
        for i, count in enumerate(ours.counts):
            np.testing.assert_array_equal(np.unique(drawn[:, i]), ours.low[i] + np.arange(count))


@pytest.mark.parametrize("batch", [(), (3,)])
def test_policy_can_be_compiled_and_used_in_compiled_functions(batch):
    space = ActionSpace(np.float32([-np.inf, -np.inf]), np.float32([np.inf, np.inf]))
    policy, obs = trained(mlp(), space), jnp.ones((*batch, OBSERVATIONS))
    key = jax.random.PRNGKey(1)
    np.testing.assert_allclose(jax.jit(policy)(obs), policy(obs), rtol=1e-6)
    drawn = jax.jit(lambda obs, key: policy(obs, key=key))(obs, key)
    np.testing.assert_allclose(drawn, policy(obs, key=key), rtol=1e-5)
    assert not np.allclose(drawn, policy(obs))


def test_text_of_a_policy_is_short():
    text = repr(trained(mlp(hidden=(8,)), ActionSpace(np.float32([5]), np.float32([7]), (3,), ())))
    assert text == f"TrainedPolicy(Some-v1, mlp(hidden=(8,)), {OBSERVATIONS} observations, 1 discrete actions)"


def test_deterministic_discrete_action_is_the_mode():
    policy = trained(mlp(hidden=(5,)), CHOICES)
    obs = np.random.default_rng(1).normal(size=(50, OBSERVATIONS)).astype(np.float32)
    normal = (obs - policy.moments.mean) / jnp.sqrt(policy.moments.variance)
    logits = policy.network.apply(policy.params, normal).logits
    expected = np.stack([np.argmax(each, axis=-1) for each in logits], axis=-1) + np.int64([0, 5])
    assert np.mean(policy(obs) == expected) > 0.98  # observations are clipped, and ties may differ


def test_continuous_actions_match_gaussian_policy():
    policy = trained(mlp(hidden=(5,), initial_log_std=0.5), REAL)
    again = dataclasses.replace(policy, maker=mlp(hidden=(5,)))
    obs = policy.moments.mean[None] + jnp.zeros((7, OBSERVATIONS))
    expected = gaussian_policy(OBSERVATIONS, 2, hidden=(5,)).apply(policy.params, jnp.zeros((7, OBSERVATIONS)))
    np.testing.assert_allclose(policy(obs), stretch(expected.mean, REAL.low, REAL.high), atol=1e-6)
    np.testing.assert_array_equal(policy(obs), again(obs))
    key = jax.random.PRNGKey(3)
    noise = jax.random.normal(key, (7, 2))
    action = expected.mean + jnp.exp(expected.log_std) * noise
    np.testing.assert_allclose(policy(obs, key=key), stretch(action, REAL.low, REAL.high), atol=1e-6)


def test_action_bounds_are_those_of_the_space():
    policy = trained(mlp(hidden=(5,)), REAL)
    assert policy.action_low is REAL.low and policy.action_high is REAL.high


def test_observation_of_wrong_size_is_rejected():
    with pytest.raises(ValueError, match=r"obs has shape \(2, 3\); its last axis must have size 4"):
        trained(mlp(hidden=(5,)), REAL)(np.zeros((2, 3), np.float32))


def test_policies_of_equal_specs_and_sizes_share_compiled_code():
    obs = np.zeros((9, OBSERVATIONS), np.float32)
    first, second = (
        trained(mlp(hidden=(6,)), REAL),
        trained(mlp(hidden=[6]), REAL._replace(low=REAL.low.copy()), seed=1),
    )
    expected = first(obs)
    with counted_compilations() as compiled:
        found = second(obs)
    assert not compiled and not np.array_equal(found, expected)


def test_copies_of_a_policy_with_memory_remember_for_themselves():
    policy = trained(gru(hidden=3), REAL)
    other = dataclasses.replace(policy, env_name="Other-v1")
    policy(np.ones(OBSERVATIONS))
    assert policy.state is not None and other.state is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"first": np.zeros(3, bool)}, r"first has shape \(3,\), but obs has the leading axes \(2,\)"),
        ({"first": np.zeros((1, 2), bool)}, r"first has shape \(1, 2\), but obs has the leading axes \(2,\)"),
    ],
)
def test_where_episodes_begin_has_the_axes_of_observations(arguments, told):
    with pytest.raises(ValueError, match=f"^{told}$"):
        trained(gru(hidden=3), REAL).step(None, np.ones((2, OBSERVATIONS)), **arguments)
