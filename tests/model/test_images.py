import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from maxmatch.model.images import ImageError, ImageTransform, load_image, shrunk
from maxmatch.model.picture_files import PILLOW_FORMATS

PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
_SIZES = [(300, 200), (200, 300), (224, 224), (257, 1000), (30, 40), (1, 7), (640, 427)]


def noise(width, height, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def photo(width, height):
    """Smooth enough that JPEG keeps it nearly as it is; every quarter looks different."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([255 * x / width, 255 * y / height, 255 * (1 - x / width)], -1).astype(np.uint8)


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_header(width, height):
    """A whole PNG that claims a size, with next to nothing in it."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", _SIZES)
def test_crop_is_a_resize_of_the_short_side_and_a_cut_from_the_middle(size):
    image = Image.fromarray(noise(*size))
    scale = 256 / min(size)
    whole = image.resize((max(int(size[0] * scale), 256), max(int(size[1] * scale), 256)), Image.Resampling.BILINEAR)
    left, top = round((whole.width - 224) / 2), round((whole.height - 224) / 2)
    expected = np.asarray(whole.crop((left, top, left + 224, top + 224)), dtype=np.int64)
    got = ImageTransform(224, "crop", *PLAIN)(image)
    assert got.shape == (3, 224, 224)
    assert int(np.abs((got * 255).round().long().movedim(0, 2).numpy() - expected).max()) <= 1


def test_squash_keeps_the_whole_picture():
    image = Image.fromarray(noise(300, 100))
    expected = np.asarray(image.resize((64, 64), Image.Resampling.BILINEAR), dtype=np.float32) / 255
    got = ImageTransform(64, "squash", *PLAIN)(image)
    torch.testing.assert_close(got, torch.from_numpy(expected).movedim(2, 0))


SHAPES = {"3:2": (360, 240), "portrait": (200, 300), "panorama": (480, 120), "tower": (120, 480), "square": (200, 200)}


def spotted(size, orientation, at=(0.55, 0.4)):
    """A PNG with a bright spot at this share of its upright width and height, turned as a camera would store it."""
    width, height = size
    pixels = np.zeros((height, width, 3), np.uint8)
    x, y = round(at[0] * width), round(at[1] * height)
    pixels[y - 6 : y + 6, x - 6 : x + 6] = 255
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # of Image.Transpose, by what makes it upright
    turned = Image.fromarray(pixels)
    turned = turned if orientation == 1 else turned.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(turned, "PNG", exif=exif), (x / width, y / height)


def brightest(image):
    """The centre of what is bright, as shares of width and height."""
    light = np.asarray(image.convert("L"), np.float64)
    rows, columns = np.indices(light.shape) + 0.5
    return (light * columns).sum() / light.sum() / image.width, (light * rows).sum() / light.sum() / image.height


@pytest.mark.parametrize("orientation", [1, 3, 5, 6, 7, 8])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("resize", ["crop", "squash"])
def test_a_place_in_what_is_seen_is_a_place_in_the_box_of_the_upright_picture(resize, shape, orientation):
    width, height = SHAPES[shape]
    data, at = spotted((width, height), orientation)
    transform = ImageTransform(56, resize, *PLAIN)
    left, top, right, bottom = transform.box(width, height)
    if resize == "squash":
        assert (left, top, right, bottom) == (0, 0, width, height)
    expected = ((at[0] * width - left) / (right - left), (at[1] * height - top) / (bottom - top))
    for seen in (transform.seen(data), transform.unsquashed(data)):
        assert brightest(seen) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_squashed_picture_is_shown_in_its_own_proportions(shape):
    picture = Image.fromarray(noise(*SHAPES[shape]))
    shown = ImageTransform(56, "squash", *PLAIN).unsquashed(picture)
    assert shown.width / shown.height == pytest.approx(picture.width / picture.height, rel=0.03)
    assert shown.width * shown.height == pytest.approx(56**2, rel=0.03)
    cropped = ImageTransform(56, "crop", *PLAIN)
    assert cropped.unsquashed(picture).tobytes() == cropped.seen(picture).tobytes()
    assert max(ImageTransform(56, "squash", *PLAIN).unsquashed(np.zeros((1, 5000, 3), np.uint8)).size) < 200


@pytest.mark.parametrize("resize", ["crop", "squash"])
def test_what_is_seen_is_normalised_by_channel(resize):
    picture = Image.fromarray(noise(80, 40))
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    transform = ImageTransform(24, resize, mean, std)
    seen = np.asarray(transform.seen(picture), np.float32) / 255
    torch.testing.assert_close(transform(picture), torch.from_numpy((seen - mean) / std).movedim(2, 0).float())


@pytest.mark.parametrize("shape", [(100, 70), (333, 101), (48, 300), (640, 640)])
def test_a_large_picture_is_shrunk_as_pillow_shrinks_it(shape):
    picture = Image.fromarray(noise(*shape))
    expected = np.asarray(picture.resize((24, 24), Image.Resampling.BILINEAR), np.int64)
    assert np.abs(shrunk(picture, 24) - expected).max() <= 1
    transform = ImageTransform(24, "squash", (0.1, 0.2, 0.3), (0.5, 1.0, 2.0))
    levels = 255 * np.abs(transform(picture).numpy() - transform.pixels(picture)) * np.reshape(transform.std, (3, 1, 1))
    assert levels.max() < 1.01


def test_a_long_strip_is_not_blown_up():
    """Its short side scaled to 256, this picture would have 6.6 billion pixels."""
    strip = np.zeros((1, 100_000, 3), dtype=np.uint8)
    assert ImageTransform(224, "crop", *PLAIN)(strip).shape == (3, 224, 224)


def test_path_bytes_image_and_array_give_the_same(tmp_path):
    pixels = noise(60, 50)
    image = Image.fromarray(pixels)
    (tmp_path / "a.png").write_bytes(encoded(image, "PNG"))
    sources = [tmp_path / "a.png", str(tmp_path / "a.png"), encoded(image, "PNG"), image, pixels]
    first, *others = [ImageTransform(32, "crop", *PLAIN)(source) for source in sources]
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("kind", sorted({*PILLOW_FORMATS} - {"GIF", "BMP"}))
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_upright_once(orientation, kind):
    image = Image.fromarray(photo(48, 32))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(image, kind, quality=95, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    upright = load_image(data)
    assert np.array_equal(np.asarray(upright), np.asarray(expected))
    assert upright.size == ((48, 32) if orientation < 5 else (32, 48))
    assert np.array_equal(np.asarray(load_image(upright)), np.asarray(upright)), "it is upright already"
    assert not upright.getexif()


def test_the_colour_profile_is_kept_and_no_note_of_place_or_camera():
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    data = encoded(Image.fromarray(photo(48, 32)), "JPEG", exif=exif, icc_profile=b"profile", comment=b"at home")
    assert load_image(data).info == {"icc_profile": b"profile"}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_does_not_matter():
    data = encoded(Image.fromarray(photo(48, 32)), "JPEG", exif=b"Exif\x00\x00MM\x00*\x00\x00\xff\xff")
    assert load_image(data).size == (48, 32)


@pytest.mark.parametrize(("resize", "decoded"), [("squash", (63, 47)), ("crop", (125, 94))])
def test_a_model_sees_a_large_jpeg_decoded_at_one_and_a_half_times_its_size_or_more(resize, decoded):
    transform = ImageTransform(28, resize, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    data = encoded(Image.fromarray(photo(500, 375)), "JPEG", quality=95)
    needed = 42 if resize == "squash" else 48  # 1.5 × 28, and × 32, of which the middle is kept
    small = load_image(data, at_least=needed)
    assert small.size == decoded
    assert np.array_equal(np.asarray(transform.seen(data)), np.asarray(transform.seen(small)))
    whole = np.asarray(transform.seen(load_image(data)))
    assert np.abs(np.asarray(transform.seen(data)).astype(int) - whole).mean() < 2


def test_a_large_jpeg_is_decoded_small_and_still_looks_the_same():
    large = Image.fromarray(photo(1600, 1200))
    data = encoded(large, "JPEG", quality=95)
    assert load_image(data, at_least=64).size == (200, 150)
    assert load_image(data).size == (1600, 1200)
    transform = ImageTransform(56, "crop", *PLAIN)
    assert float((transform(data) - transform(large)).abs().max()) < 0.02


def test_what_the_user_holds_is_left_alone(tmp_path):
    (tmp_path / "a.jpg").write_bytes(encoded(Image.fromarray(photo(800, 600)), "JPEG"))
    with Image.open(tmp_path / "a.jpg") as mine:
        load_image(mine, at_least=32)
        assert mine.size == (800, 600)
        assert mine.getpixel((0, 0)) is not None


def of_mode(mode):
    grey = Image.fromarray(np.full((4, 4), 128, dtype=np.uint8))
    if mode == "I;16":
        return Image.fromarray(np.full((4, 4), 128 * 257, dtype=np.uint16))
    if mode == "I":
        return Image.fromarray(np.full((4, 4), 128 * 257, dtype=np.int32))
    if mode == "F":
        return Image.fromarray(np.full((4, 4), 128 / 255, dtype=np.float32))
    between = {"La": "LA", "RGBa": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "HSV": "RGB", "RGBX": "RGB"}
    return grey.convert(between.get(mode, "L")).convert(mode)


MODES = ["L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "I;16", "I", "F"]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb_and_sixteen_bits_and_floats_are_scaled(mode):
    image = load_image(of_mode(mode))
    assert image.mode == "RGB"
    assert np.abs(np.asarray(image).astype(int) - 128).max() <= 2


def test_sixteen_bit_files_are_scaled():
    steps = np.linspace(0, 65535, 16).astype(np.uint16).reshape(4, 4)
    for kind in ("PNG", "TIFF"):
        got = np.asarray(load_image(encoded(Image.fromarray(steps), kind)))[..., 0]
        assert np.array_equal(got, steps // 257)


def test_one_bit_is_black_and_white():
    bits = Image.fromarray(np.array([[0, 255], [255, 0]], dtype=np.uint8)).convert("1")
    for image in (bits, encoded(bits, "PNG")):
        assert np.asarray(load_image(image))[..., 0].tolist() == [[0, 255], [255, 0]]


def test_what_is_transparent_is_white():
    clear = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    half = Image.new("LA", (4, 4), (0, 128))
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([10, 20, 30] * 256)
    see_through = [clear, encoded(clear, "PNG"), encoded(clear, "WEBP", lossless=True)]
    see_through += [encoded(palette, "GIF", transparency=0), encoded(palette, "PNG", transparency=b"\x00")]
    see_through += [encoded(Image.new("RGB", (4, 4), (9, 9, 9)), "PNG", transparency=(9, 9, 9))]
    for image in see_through:
        assert load_image(image).getpixel((0, 0)) == (255, 255, 255)
    assert load_image(half).getpixel((0, 0)) == (127, 127, 127)


def test_of_an_animation_the_first_picture_is_taken():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert load_image(data).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
def test_a_file_cut_short_is_named(kind, tmp_path):
    data = encoded(Image.fromarray(noise(64, 64)), kind)
    path = tmp_path / f"holiday.{kind.lower()}"
    for length in (0, 3, 20, len(data) // 2):
        path.write_bytes(data[:length])
        with pytest.raises(ImageError, match=r"holiday\.\w+: not a readable picture"):
            load_image(path, at_least=16)


def test_files_that_are_missing_empty_or_no_pictures_are_named(tmp_path):
    for path in (tmp_path / "nothing.jpg", tmp_path):
        with pytest.raises(FileNotFoundError, match=path.name):
            load_image(path)
    for data, message in ((b"", "empty"), (b"no picture", r"not a readable picture \(cannot identify image file\)\.")):
        (tmp_path / "a.jpg").write_bytes(data)
        with pytest.raises(ImageError, match=rf"a\.jpg: .*{message}"):
            load_image(tmp_path / "a.jpg")


def test_where_pillow_has_no_avif_the_cure_is_a_newer_one(without_avif, tmp_path):
    picture, path = Image.fromarray(photo(48, 32)), tmp_path / "a.avif"
    path.write_bytes(encoded(picture, "AVIF", quality=95))
    for source in (path, path.read_bytes()):
        assert np.abs(np.asarray(load_image(source), np.int64) - np.asarray(picture, np.int64)).max() < 16
    with without_avif():
        for source in (path, path.read_bytes()):
            with pytest.raises(ImageError, match=r"AVIF.*Pillow>=11\.3"):
                load_image(source)
        with pytest.raises(ImageError) as refused:
            load_image(b"no picture")
        assert "AVIF" not in str(refused.value)


@pytest.mark.parametrize("side", [15_000, 30_000, 60_000])
def test_a_giant_picture_is_refused_before_it_is_decoded(side, tmp_path):
    path = tmp_path / "giant.png"
    path.write_bytes(png_header(side, side))
    with pytest.raises(ImageError, match=r"giant\.png: .*decompression bomb"):
        load_image(path)


def test_the_limit_can_be_lowered():
    with pytest.raises(ImageError, match=r"60×50 pixels.*2,999"):
        load_image(noise(60, 50), max_pixels=2_999)
    assert load_image(noise(60, 50), max_pixels=3_000).size == (60, 50)


def test_arrays_of_other_types_are_scaled():
    expected = np.full((2, 2, 3), 51)
    for array in (
        np.full((2, 2, 3), 0.2),
        np.full((2, 2), 0.2, dtype=np.float32),
        np.full((2, 2, 1), 51 * 257, dtype=np.uint16),
        np.full((2, 2, 3), 51, dtype=np.uint8)[::-1, ::-1],
    ):
        assert np.array_equal(np.asarray(load_image(array)), expected)
    assert load_image(np.ones((2, 2), dtype=bool)).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 8, 8), np.uint8), "expected .height, width"),
        (np.zeros((0, 8, 3), np.uint8), "expected .height, width"),
        (np.zeros(8, np.uint8), "expected .height, width"),
        (np.full((8, 8, 3), 200.0), "from 0 to 1"),
        (np.full((8, 8, 3), np.nan), "from 0 to 1"),
        (np.zeros((8, 8, 3), np.int64), "expected pixels as uint8"),
        (None, "expected a path, bytes"),
        (7, "expected a path, bytes"),
        (Image.new("RGB", (0, 4)), "no pixels"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_no_picture_is_refused(array, message):
    with pytest.raises(ImageError, match=message):
        load_image(array)
