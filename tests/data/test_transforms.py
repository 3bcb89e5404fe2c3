import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from maxmatch.data.augment import RandomCrop, RandomMirror, crop_box
from maxmatch.model.images import ImageTransform, load_image

PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def generator(seed=0):
    return np.random.default_rng(seed)


def noise(width, height, seed=0):
    return generator(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def boxes(width, height, count, scale=SCALE, ratio=RATIO):
    random = generator()
    return np.array([crop_box(width, height, scale, ratio, random) for _ in range(count)]).T


def is_uniform(values, low, high):
    """Kolmogorov and Smirnov, at one in a thousand."""
    ranks = (np.sort(values) - low) / (high - low)
    steps = np.arange(len(values) + 1) / len(values)
    distance = max((steps[1:] - ranks).max(), (ranks - steps[:-1]).max())
    return distance < 1.95 / math.sqrt(len(values))


@given(st.integers(1, 5_000), st.integers(1, 5_000), st.integers(0, 99))
def test_every_part_lies_in_the_picture_and_has_pixels(width, height, seed):
    left, top, right, bottom = crop_box(width, height, SCALE, RATIO, generator(seed))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_area_is_uniform_and_so_is_the_logarithm_of_the_shape():
    """Up to half of a square every part fits, so that none is drawn again."""
    left, top, right, bottom = boxes(4_000, 4_000, 3_000, scale=(0.08, 0.5))
    width, height = right - left, bottom - top
    assert is_uniform(width * height / 4_000**2, 0.08, 0.5)
    assert is_uniform(np.log(width / height), math.log(3 / 4), math.log(4 / 3))


def test_the_place_is_uniform():
    left, top, right, bottom = boxes(4_000, 3_000, 3_000)
    room = (right - left < 4_000) & (bottom - top < 3_000)
    assert is_uniform((left / (4_001 - (right - left)))[room], 0, 1)
    assert is_uniform((top / (3_001 - (bottom - top)))[room], 0, 1)


def test_area_and_shape_keep_to_their_bounds():
    left, top, right, bottom = boxes(640, 427, 2_000)
    width, height = right - left, bottom - top
    assert (width * height / (640 * 427) > 0.07).all()
    assert (width / height > 0.74).all()
    assert (width / height < 1.35).all()


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((5_000, 1), (2_499, 0, 2_500, 1)),
        ((1, 5_000), (0, 2_499, 1, 2_500)),
        ((5_000, 100), (2_433, 0, 2_566, 100)),
        ((100, 5_000), (0, 2_433, 100, 2_566)),
    ],
)
def test_of_a_panorama_the_middle_is_taken(size, box):
    assert crop_box(*size, (0.9, 1.0), RATIO, generator()) == box


@pytest.mark.parametrize("size", [(5_000, 1), (1, 5_000), (1, 1), (2, 3), (40, 30)])
def test_any_picture_becomes_a_square(size):
    pixels = RandomCrop(32, *PLAIN)(noise(*size), generator())
    assert pixels.shape == (3, 32, 32)
    assert torch.isfinite(pixels).all()


def test_the_whole_picture_is_the_whole_picture():
    square = noise(50, 50)
    whole = RandomCrop(32, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)
    expected = ImageTransform(32, "squash", (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))(square)
    torch.testing.assert_close(whole(square, generator()), expected)


def test_a_part_is_that_part_of_the_picture():
    picture = noise(60, 40)
    left, top, right, bottom = crop_box(60, 40, SCALE, RATIO, generator(3))
    part = Image.fromarray(picture[top:bottom, left:right]).resize((16, 16), Image.Resampling.BILINEAR)
    got = RandomCrop(16, *PLAIN, flip=0.0)(picture, generator(3))
    assert np.array_equal((got * 255).round().movedim(0, 2).numpy(), np.asarray(part))


def test_half_of_the_parts_are_mirrored():
    picture = noise(60, 40)
    plain, mirrored = RandomCrop(16, *PLAIN, flip=0.0), RandomCrop(16, *PLAIN, flip=1.0)
    count = 0
    for seed in range(400):
        got = RandomCrop(16, *PLAIN)(picture, generator(seed))
        straight = plain(picture, generator(seed))
        if not torch.equal(got, straight):
            count += 1
            assert torch.equal(got, straight.flip(2))
            assert torch.equal(got, mirrored(picture, generator(seed)))
    assert abs(count - 200) < 4 * math.sqrt(100)


def test_without_a_crop_half_of_the_pictures_are_mirrored_and_nothing_else_is_done():
    whole, picture = ImageTransform(16, "squash", *PLAIN), noise(60, 40)
    seen = [RandomMirror(whole)(picture, generator(seed)) for seed in range(400)]
    count = sum(torch.equal(pixels, whole(picture).flip(2)) for pixels in seen)
    assert count + sum(torch.equal(pixels, whole(picture)) for pixels in seen) == 400
    assert abs(count - 200) < 4 * math.sqrt(100)


def test_the_part_depends_on_the_generator_alone():
    crop, picture = RandomCrop(16, *PLAIN), noise(60, 40)
    assert torch.equal(crop(picture, generator(1)), crop(picture, generator(1)))
    assert not torch.equal(crop(picture, generator(1)), crop(picture, generator(2)))


@pytest.mark.parametrize(("size", "scale"), [(64, (0.08, 1.0)), (128, (0.36, 1.0))])
def test_a_jpeg_is_decoded_small_but_never_so_small_that_a_part_is_blown_up(size, scale):
    crop = RandomCrop(size, *PLAIN, scale=scale)
    file = io.BytesIO()
    Image.fromarray(np.zeros((1_500, 2_000, 3), np.uint8)).save(file, "JPEG")
    decoded = load_image(file.getvalue(), at_least=crop._at_least())
    smallest = min(decoded.size) * math.sqrt(scale[0] * 3 / 4)
    assert smallest >= size
    assert decoded.width < 2_000


@pytest.mark.parametrize(("options", "message"), [({"scale": (0.5, 1.2)}, "scale:"), ({"ratio": (0.0, 1.0)}, "ratio:")])
def test_impossible_bounds_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RandomCrop(32, *PLAIN, **options)
