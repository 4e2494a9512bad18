"""Which arrays are images, and where their channels are."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from jaxtrpo.envs.gymnasium.observations import observations_of
from jaxtrpo.envs.observation_space import (
    Leaf,
    ObservationSpace,
    as_observed,
    channels_last,
    flat_size,
    flat_space,
    image_axes,
    image_shape,
)


@pytest.mark.parametrize(
    ("shape", "axes", "seen"),
    [
        ((84, 84, 4), (0, 1, 2), (84, 84, 4)),
        ((4, 84, 84), (1, 2, 0), (84, 84, 4)),
        ((3, 210, 160), (1, 2, 0), (210, 160, 3)),
        ((7, 7, 3), (0, 1, 2), (7, 7, 3)),
        ((10, 10, 10), (0, 1, 2), (10, 10, 10)),
        ((10, 10, 7), (0, 1, 2), (10, 10, 7)),
        ((96, 64), (0, 1), (96, 64, 1)),
        ((4, 96, 90, 3), (1, 2, 0, 3), (96, 90, 12)),
        ((4, 3, 96, 90), (2, 3, 0, 1), (96, 90, 12)),
    ],
)
def test_axes_of_images(shape, axes, seen):
    assert image_axes(shape) == axes and image_shape(shape, axes) == seen
    image = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)
    moved = channels_last(image, axes)
    assert moved.shape == (2, *seen)
    # Frames come before channels, as in Gymnasium's stacks.
    wanted = {3: lambda: np.moveaxis(image, 1 + axes[-1], -1), 2: lambda: image[..., None]}
    if len(shape) in wanted:
        np.testing.assert_array_equal(moved, wanted[len(shape)]())
    else:
        frames = [channels_last(image[:, i], image_axes(shape[1:])) for i in range(4)]
        np.testing.assert_array_equal(moved, np.concatenate(frames, axis=-1))


@pytest.mark.parametrize("shape", [(), (128,), (4, 84), (4, 7, 3), (120, 3), (2, 3, 4, 5, 6), (84, 3, 84)])
def test_other_arrays_are_flattened(shape):
    assert image_axes(shape) == ()


@pytest.mark.parametrize(
    ("box", "is_image"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), True),
        (spaces.Box(0, 1, (8, 8, 3), np.bool_), True),
        (spaces.Box(0, 1, (8, 8, 3), np.float32), False),
        (spaces.Box(0, 200, (8, 8, 3), np.uint8), False),
        (spaces.Box(1, 255, (8, 8, 3), np.uint8), False),
        (spaces.Box(-128, 127, (8, 8, 3), np.int8), False),
        (spaces.MultiBinary((8, 8, 3)), False),
    ],
)
def test_images_are_bytes_or_truth_values(box, is_image):
    space = observations_of(box).space
    assert space.is_flat != is_image and space.size == 192
    assert space.nbytes == (192 if is_image else 4 * 192)


def test_names_of_images_are_those_of_their_entries():
    image = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    space = spaces.Dict({"a": image, "b": spaces.Tuple([image, spaces.Discrete(3)]), "vector": image})
    assert [leaf.name for leaf in observations_of(space).space.leaves] == ["a", "b.0", "vector", "vector.image"]
    assert [leaf.name for leaf in observations_of(image).space.leaves] == ["image"]


def test_space_of_flat_observations_is_their_size():
    assert as_observed(flat_space(7)) == 7 and flat_size(flat_space(7)._replace(frames=3), "policy=mlp") == 21
    with_image = ObservationSpace((Leaf("image", (8, 9, 3), "uint8"), Leaf("vector", (2,))), 2)
    assert as_observed(with_image) is with_image and with_image.vector_size == 2
    assert [leaf.shape for leaf in with_image.stacked.leaves] == [(8, 9, 6), (4,)] and with_image.stacked.frames == 1
    with pytest.raises(ValueError) as error:
        flat_size(with_image, "policy=mlp")
    assert str(error.value).startswith(
        "policy=mlp takes no images, but observations have image [8, 9, 3]; use policy=cnn"
    )
    assert len(str(error.value)) < 200
