"""Convolutional networks."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.flatten_util import ravel_pytree

from jaxtrpo.config.specs import parse
from jaxtrpo.critics.cnn import cnn as cnn_critic
from jaxtrpo.critics.recurrent import gru as gru_critic
from jaxtrpo.envs.base import ActionSpace
from jaxtrpo.envs.observation_space import Leaf, ObservationSpace
from jaxtrpo.ops import in_parts
from jaxtrpo.ops.fisher import fisher_vector_product
from jaxtrpo.policies import cnn as module
from jaxtrpo.policies import custom
from jaxtrpo.policies.cnn import cnn
from jaxtrpo.policies.custom import module_policy
from jaxtrpo.policies.distributions import Categorical, Gaussian, fisher_metric, kl_divergence
from jaxtrpo.policies.making import policy_for
from jaxtrpo.policies.recurrent import gru

KEY = jnp.array([0, 1], jnp.uint32)
CHOICES = ActionSpace(np.array([0]), np.array([2]), (3,))
NUMBERS = ActionSpace(np.array([-1.0, -1.0]), np.array([1.0, 1.0]))


def space_of(*shape: int, vector: int = 0, dtype: str = "uint8") -> ObservationSpace:
    leaves = (Leaf("image", shape, dtype),)
    return ObservationSpace((*leaves, Leaf("vector", (vector,))) if vector else leaves)


def observations(space: ObservationSpace, *lead: int, seed: int = 0):
    rng = np.random.default_rng(seed)

    def draw(leaf: Leaf):
        shape = (*lead, *leaf.shape)
        numbers = rng.normal(size=shape) if not leaf.is_image else rng.integers(0, int(leaf.bounds[1]) + 1, shape)
        return jnp.asarray(numbers.astype(leaf.dtype))

    return space.map(draw)


def shapes(params) -> dict[str, tuple[int, ...]]:
    return {"/".join(p.key for p in path[1:]): leaf.shape for path, leaf in jax.tree.leaves_with_path(params)}


@pytest.mark.parametrize(
    ("size", "flat", "sections"),
    [
        ((84, 84, 4), 11 * 11 * 32, 3),
        ((10, 10, 4), 5 * 5 * 16, 1),
        ((7, 7, 3), 7 * 7 * 16, 1),
        ((16, 16, 1), 4 * 4 * 32, 2),
    ],  # fmt: skip
)
def test_impala_halves_images_as_often_as_they_can_be(size, flat, sections):
    policy = cnn().make(space_of(*size), CHOICES)
    found = shapes(jax.eval_shape(policy.init, KEY))
    assert found["Encoder_0/joined/kernel"] == (flat, 256)
    assert found["Encoder_0/image_0/kernel"] == (3, 3, size[-1], 16)
    assert sum("_1_1/kernel" in name for name in found) == sections
    assert found["last/kernel"] == (256, 3)


@pytest.mark.parametrize(
    ("make", "scale"), [(cnn, 255.0), (lambda: cnn(pixel_scale=10), 10.0), (lambda: gru(pixel_scale=10), 10.0)]
)
def test_network_sees_pixels_divided_by_their_scale(make, scale):
    integers, floats = space_of(8, 8, 3), space_of(8, 8, 3, dtype="float32")
    policy, same = make().make(integers, CHOICES), make().make(floats, CHOICES)
    params, obs = policy.init(KEY), observations(integers, 4)
    divided = {"image": obs["image"].astype(jnp.float32) / scale}

    def logits(which, seen):
        if which.recurrence is None:
            return which.apply(params, seen).logits[0]
        return which.recurrence.step(params, which.recurrence.start(4), seen, jnp.ones(4, bool))[0].logits[0]

    np.testing.assert_allclose(logits(policy, obs), logits(same, divided), rtol=1e-5, atol=1e-7)
    assert np.ptp(logits(policy, obs)) > 0


def predicted(critic, state, obs):
    if critic.recurrence is None:
        return critic.value(state, obs, jnp.zeros(4, jnp.int32))
    return critic.recurrence.step(state, critic.recurrence.start(4), obs, jnp.ones(4, bool))[0]


def as_floats(obs):
    return {"image": obs["image"].astype(jnp.float32) / 10}  # floats are not divided


@pytest.mark.parametrize(("kind", "critic"), [(cnn, cnn_critic), (gru, gru_critic)])
def test_critic_divides_pixels_by_the_scale_of_the_policy(kind, critic):
    spec = kind(pixel_scale=10).critic
    assert spec.endswith("(pixel_scale=10.0)")
    space = space_of(8, 8, 3)
    ten, usual = parse("critic", spec).make(space), critic().make(space)
    obs, state = observations(space, 4), ten.init(KEY)
    state = jax.tree.map(lambda leaf: leaf + 0.01, state)  # at first, every value is 0
    divided = {"image": (obs["image"] // 26).astype(jnp.uint8)}
    np.testing.assert_allclose(predicted(ten, state, divided), predicted(usual, state, as_floats(divided)), rtol=1e-4)
    assert not np.allclose(predicted(ten, state, divided), predicted(usual, state, divided), rtol=1e-3)


def test_pixel_scale_is_positive():
    for make in (cnn, gru, cnn_critic, gru_critic):
        with pytest.raises(ValueError, match="pixel_scale=0"):
            make(pixel_scale=0)


def test_nature_has_the_shapes_of_its_paper():
    found = shapes(jax.eval_shape(cnn(kind="nature").make(space_of(84, 84, 4), CHOICES).init, KEY))
    kernels = [found[f"Encoder_0/image_{layer}/kernel"] for layer in range(3)]
    assert kernels == [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64)]
    assert found["Encoder_0/joined/kernel"] == (7 * 7 * 64, 512)


def test_halving_is_max_pooling():
    x = np.random.default_rng(0).normal(size=(2, 9, 12, 3)).astype(np.float32)
    np.testing.assert_array_equal(module._halved(jnp.asarray(x)), nn.max_pool(x, (3, 3), (2, 2), "SAME"))


def test_kernels_are_orthogonal_and_the_last_layer_is_small():
    params = cnn(channels=(8, 4), hidden=16).make(space_of(16, 16, 2, vector=3), NUMBERS).init(KEY)
    for path, leaf in jax.tree.leaves_with_path(params):
        if leaf.ndim < 2:
            continue
        matrix = np.asarray(leaf, np.float64).reshape(-1, leaf.shape[-1])
        scale = 0.01 if path[1].key == "last" else 2**0.5
        np.testing.assert_allclose(np.linalg.svd(matrix, compute_uv=False), scale, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float32"])
def test_pixels_are_from_0_to_1(dtype):
    """The same picture gives the same distribution, in whichever dtype it is."""
    space, policy = space_of(8, 8, 1, dtype=dtype), cnn(channels=(4,), hidden=8)
    made = policy.make(space, CHOICES)
    params = made.init(KEY)
    lit = np.random.default_rng(0).integers(0, 2, (5, 8, 8, 1))
    image = (lit * (255 if dtype == "uint8" else 1)).astype(dtype)
    of_float = policy.make(space_of(8, 8, 1, dtype="float32"), CHOICES)
    wanted = of_float.apply(params, {"image": jnp.asarray(lit, jnp.float32)})
    found = made.apply(params, {"image": jnp.asarray(image)})
    np.testing.assert_allclose(found.logits[0], wanted.logits[0], rtol=1e-5, atol=1e-7)


def test_image_and_vector_both_matter():
    space = space_of(8, 8, 1, vector=2)
    policy = cnn(channels=(4,), hidden=8).make(space, NUMBERS)
    params = jax.tree.map(lambda leaf: leaf + 0.1, policy.init(KEY))
    obs, other = observations(space, 3), observations(space, 3, seed=1)
    base = policy.apply(params, obs)
    assert isinstance(base, Gaussian) and base.mean.shape == (3, 2)
    for name in ("image", "vector"):
        assert np.abs(policy.apply(params, {**obs, name: other[name]}).mean - base.mean).min() > 0


@pytest.mark.parametrize("actions", [CHOICES, NUMBERS], ids=["choices", "numbers"])
def test_fisher_products_are_those_of_the_dense_matrix(actions):
    """The dense matrix is the Hessian of the KL divergence at the old parameters."""
    space = space_of(8, 8, 1, vector=2)
    policy = cnn(channels=(2,), hidden=3).make(space, actions)
    params, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf + 0.05, policy.init(KEY)))
    obs = observations(space, 6)
    old = policy.apply(unravel(params), obs)
    dense = jax.hessian(lambda p: jnp.sum(kl_divergence(old, policy.apply(unravel(p), obs))))(params)
    product = fisher_vector_product(lambda p: policy.apply(unravel(p), obs), params, fisher_metric)
    vector = np.random.default_rng(1).normal(size=params.shape).astype(np.float32)
    wanted = np.asarray(dense) @ vector
    np.testing.assert_allclose(product(vector), wanted, atol=2e-4 * np.abs(wanted).max())
    assert np.abs(wanted).max() > 1e-3


def test_multiply_adds_of_one_observation():
    """Three convolutions of 84 x 84 x 4 pixels and two layers, by their sizes."""
    space = space_of(84, 84, 4)
    policy = cnn(kind="nature").make(space, CHOICES)
    layers = 20**2 * 8**2 * 4 * 32 + 9**2 * 4**2 * 32 * 64 + 7**2 * 3**2 * 64 * 64 + 7**2 * 64 * 512 + 512 * 3
    assert policy.multiply_adds(policy.init(KEY)) == layers
    assert policy_for(cnn(kind="nature"), space, CHOICES, masked=True).multiply_adds(policy.init(KEY)) == layers


@pytest.mark.parametrize("kind", ["impala", "nature"])
def test_many_observations_in_parts_are_as_at_once(monkeypatch, kind):
    space = space_of(36, 40, 1, vector=2)
    policy = cnn(kind=kind, channels=(2, 3, 2), hidden=8).make(space, CHOICES)
    params, obs = policy.init(KEY), observations(space, 2, 7)

    def loops():
        return str(jax.make_jaxpr(lambda *each: policy.apply(*each))(params, obs)).count("length=")  # traced anew

    monkeypatch.setattr(in_parts, "FEWEST_ROWS", 14)
    assert not loops()
    wanted = policy.apply(params, obs)
    monkeypatch.setattr(in_parts, "PART_BYTES", 1)
    monkeypatch.setattr(in_parts, "FEWEST_ROWS", 3)
    assert loops() == 1
    found = policy.apply(params, obs)
    assert isinstance(found, Categorical) and found.logits[0].shape == (2, 7, 3)
    np.testing.assert_allclose(found.logits[0], wanted.logits[0], atol=1e-6)


@pytest.mark.parametrize(
    ("make", "space", "said"),
    [
        (
            cnn(),
            7,
            "policy=cnn needs observations with images, arrays of uint8 or bool, but these are 7 numbers; use mlp",
        ),
        (
            cnn(kind="nature"),
            space_of(10, 12, 4),
            "policy=cnn(kind='nature'): the kernels need images of at least 36 x 36 pixels, but image has 10 x 12; use "
            "policy=cnn",
        ),
        (cnn(), space_of(2, 5, 1), "policy=cnn: the kernels need images of at least 3 x 3 pixels, but image has 2 x 5"),
    ],
)
def test_observations_that_do_not_fit_are_refused(make, space, said):
    with pytest.raises(ValueError) as error:
        make.make(space, CHOICES)
    assert str(error.value) == said and len(said) < 200


def test_critic_refuses_numbers():
    with pytest.raises(
        ValueError,
        match="critic=cnn needs observations with images, arrays of uint8 or bool, but these are 4 numbers; use mlp",
    ):
        cnn_critic().make(4)


class OwnNetwork(nn.Module):
    @nn.compact
    def __call__(self, obs):
        x = nn.relu(nn.Conv(2, (3, 3))(obs["image"] / 255.0))
        x = jnp.concatenate([x.reshape(len(x), -1), obs["vector"]], axis=-1)
        return Categorical((nn.Dense(3)(x),))


def test_network_of_the_user_gets_the_arrays_by_name(monkeypatch):
    space = space_of(6, 7, 2, vector=2)
    policy = module_policy(OwnNetwork()).make(space, CHOICES)
    params, obs = policy.init(KEY), observations(space, 2, 4)
    assert policy.apply(params, obs).logits[0].shape == (2, 4, 3)
    for apply in (policy.apply, policy.apply_for_products):  # its convolutions get derivatives that are fast in loops
        gradient = jax.jit(jax.grad(lambda params, apply=apply: jnp.sum(apply(params, obs).logits[0])))
        orders = re.findall(r"stablehlo.convolution.*dim_numbers = (\S+ .*?\])->", gradient.lower(params).as_text())
        assert orders == ["[b, 0, 1, f]x[0, 1, i, o]"] * 2
    monkeypatch.setattr(custom, "MOST_BYTES", 3 * 6 * 7 * custom.CHANNELS * 4)  # three observations at once
    program = str(jax.make_jaxpr(lambda params: policy.apply(params, obs))(params))
    assert "length=4" in program and "[2,6,7,2]" in program
    monkeypatch.setattr(in_parts, "on_cpu", lambda: False)
    assert "length=" not in str(jax.make_jaxpr(lambda params: policy.apply(params, obs))(params))
    with pytest.raises(ValueError, match=r"OwnNetwork fails for observations of shape \(3, 5\)"):
        module_policy(OwnNetwork()).make(5, CHOICES)
