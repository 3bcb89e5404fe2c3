"""Regions and words left out, crops and mirrored pictures: as a slow loop does it, and as often as promised."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from feeding import COLOURS, CPU, mapped, photo_readers, photo_split, plans, resident
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer, models

from maxmatch.core.types import Batch, Inputs
from maxmatch.data import augment
from maxmatch.data.augment import (
    RandomCrop,
    RandomMirror,
    ResidentPictures,
    SizeAugmentation,
    WordIds,
    crop_box,
    cut_out,
    drop_regions,
    drop_words,
    word_ids,
)
from maxmatch.data.sampler import BatchPlan
from maxmatch.model.images import ImageTransform, load_image
from maxmatch.model.inputs import FeatureReader, PixelReader, TextReader
from maxmatch.model.text import encode, train_wordpiece_tokenizer, word_tokenizer

PAD, START, END, UNK, MASK = range(5)
KNOWN = WordIds(MASK, PAD, torch.tensor([PAD, START, END]), torch.arange(5, 50), torch.arange(50) >= 5)


def draws(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def texts(lengths, width):
    """<start> words <end> padding."""
    ids = torch.full((len(lengths), width), PAD)
    for row, length in zip(ids, lengths, strict=True):
        row[: length + 2] = torch.tensor([START, *(5 + i % 45 for i in range(length)), END])
    return ids, torch.arange(width) < torch.tensor(lengths)[:, None] + 2


def regions_by_hand(mask, p, draws):
    left = [real and u >= p for real, u in zip(mask, draws, strict=True)]
    if any(mask) and not any(left):
        left[max((u, i) for i, (real, u) in enumerate(zip(mask, draws, strict=True)) if real)[1]] = True
    return left


def words_by_hand(ids, p, draws):
    """The words that are left of one text, without padding."""
    hit, fate, other = draws
    words = [i for i, token in enumerate(ids) if token not in (PAD, START, END)]
    deleted = [i for i in words if hit[i] < p and fate[i] >= 0.6]
    if words and len(deleted) == len(words):
        deleted.remove(max(words, key=lambda i: hit[i]))
    result = []
    for i, token in enumerate(ids):
        if i in deleted:
            continue
        if i in words and hit[i] < p and fate[i] < 0.5:
            token = MASK
        elif i in words and hit[i] < p and fate[i] < 0.6:
            token = 5 + math.floor(other[i] * 45)
        result.append(token)
    return result


SHARES = st.sampled_from([0.0, 0.99]) | st.floats(0, 0.99)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), SHARES, st.integers(0, 99))
def test_regions_are_dropped_as_by_hand(counts, p, seed):
    mask = torch.arange(9) < torch.tensor(counts)[:, None]
    drawn = draws(*mask.shape, seed=seed)
    expected = [regions_by_hand(real, p, u) for real, u in zip(mask.tolist(), drawn.tolist(), strict=True)]
    assert drop_regions(mask, p, drawn).tolist() == expected


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), SHARES, st.integers(0, 99))
def test_words_are_dropped_as_by_hand(lengths, p, seed):
    ids, mask = texts(lengths, 12)
    drawn = draws(3, *ids.shape, seed=seed)
    new, left = drop_words(ids, mask, p, KNOWN, drawn)
    for row, length in enumerate(lengths):
        expected = words_by_hand(ids[row, : length + 2].tolist(), p, drawn[:, row].tolist())
        assert new[row][left[row]].tolist() == expected
        assert left[row].tolist() == [place < len(expected) for place in range(12)]
        assert (new[row, len(expected) :] == PAD).all()


def test_a_fifth_of_regions_and_words_is_hit_and_shared_out_as_the_paper_says():
    mask = torch.ones(4_000, 36, dtype=torch.bool)
    ids, real = texts([20] * 8_000, 22)
    ids[:, 1:21] = 49  # one word, so that another in its place is seen, but for one time in 45
    new, left = drop_words(ids, real, 0.2, KNOWN, draws(3, *ids.shape))
    count = 8_000 * 20
    for share, expected, drawn in [
        (1 - drop_regions(mask, 0.2, draws(*mask.shape)).double().mean(), 0.2, mask.numel()),
        ((new == MASK).sum() / count, 0.1, count),
        (((new >= 5) & (new < 49)).sum() / count, 0.02 * 44 / 45, count),
        ((real.sum() - left.sum()) / count, 0.08, count),
    ]:
        assert abs(share.item() - expected) < 4 * math.sqrt(expected * (1 - expected) / drawn)
    assert set(new.unique().tolist()) == {PAD, START, END, MASK, *range(5, 50)}  # <unk> takes no word's place


@pytest.mark.parametrize(
    ("tokenizer", "names"),
    [
        (word_tokenizer(["a dog runs"] * 4), ["<pad>", "<start>", "<end>"]),
        (train_wordpiece_tokenizer(["a dog runs"] * 4, 60), ["[PAD]", "[CLS]", "[SEP]"]),
    ],
)
def test_a_tokenizer_says_what_is_a_word(tokenizer, names):
    known = word_ids(tokenizer, CPU)
    assert known.fixed.tolist() == sorted(tokenizer.token_to_id(name) for name in names)
    assert tokenizer.id_to_token(known.mask) in ("<mask>", "[MASK]")
    assert known.padding == tokenizer.token_to_id(names[0])
    every = set(range(tokenizer.get_vocab_size()))
    assert every - set(known.words.tolist()) == {*known.fixed.tolist(), known.mask, 3 if "<pad>" in names else 1}


def test_the_pieces_of_a_word_share_its_fate():
    tokenizer = train_wordpiece_tokenizer(["a dog", "b"], 12)  # so few that dog is d ##o ##g
    known, mask_token = word_ids(tokenizer, CPU), tokenizer.token_to_id("[MASK]")
    ids, mask = encode(tokenizer, ["a dog b dog a b dog"] * 40)
    drawn = draws(3, *ids.shape, seed=5)
    new, left = drop_words(ids, mask, 0.6, known, drawn)
    pieces = [tokenizer.id_to_token(int(token)) for token in ids[0]]
    assert pieces.count("##o") == pieces.count("##g") == 3
    for row, kept, hit, fate, other in zip(new, left, *drawn, strict=True):
        expected = []
        for place, piece in enumerate(pieces):
            start = place if not piece.startswith("##") else start
            word, token = piece not in ("[CLS]", "[SEP]", "[PAD]"), int(ids[0, place])
            if word and hit[start] < 0.6:
                if fate[start] >= 0.6:
                    continue
                token = mask_token if fate[start] < 0.5 else int(known.words[int(other[place] * len(known.words))])
            expected.append(token)
        assert row[kept].tolist() == expected


def test_a_batch_is_augmented_from_its_seed_alone():
    ids, mask = texts([5, 9], 12)
    features = Inputs(draws(2, 7, 3), torch.ones(2, 7, dtype=torch.bool))
    groups = {"image": torch.arange(2), "text": torch.arange(2)}
    batch = Batch({"image": features, "text": Inputs(ids, mask)}, groups)
    tokenizer = word_tokenizer([" ".join(f"w{i}" for i in range(45))] * 4)
    readers = {"image": FeatureReader(3), "text": TextReader(tokenizer)}
    augment = SizeAugmentation({"image": 0.5, "text": 0.5}, readers, CPU)
    first, again, other = augment(batch, 1), augment(batch, 1), augment(batch, 2)
    for modality in ("image", "text"):
        for a, b in zip(first.inputs[modality], again.inputs[modality], strict=True):
            assert torch.equal(a, b)
        assert not torch.equal(first.inputs[modality].mask, other.inputs[modality].mask)
    assert torch.equal(first.inputs["image"].values, features.values)


def test_what_cannot_be_dropped_or_cropped_is_refused():
    readers = {"image": FeatureReader(3), "photo": PixelReader(ImageTransform(8, "crop", *COLOURS))}
    for drop, message in (
        ({"image": 1.0}, "from 0 to below 1"),
        ({"sound": 0.2}, "'sound' is read by: no such modality"),
        ({"photo": 0.2}, "'photo' is read by: PixelReader"),
    ):
        with pytest.raises(ValueError, match=message):
            SizeAugmentation(drop, readers, CPU)
    for options, message in (({"scale": (0.5, 1.2)}, "scale:"), ({"ratio": (0.0, 1.0)}, "ratio:")):
        with pytest.raises(ValueError, match=message):
            RandomCrop(32, *COLOURS, **options)
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<unk>": 1, "dog": 2}, unk_token="<unk>"))
    with pytest.raises(ValueError, match="a tokenizer with a mask token"):
        SizeAugmentation({"text": 0.2}, {"text": TextReader(tokenizer)}, CPU)


# Pictures.

PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
EVERYTHING = [BatchPlan(np.arange(12), None)]


def generator(seed=0):
    return np.random.default_rng(seed)


def noise(width, height):
    return generator().integers(0, 256, (height, width, 3), dtype=np.uint8)


def boxes(width, height, scale=SCALE):
    """Left, top, width and height of many parts."""
    random = generator()
    left, top, right, bottom = np.array([crop_box(width, height, scale, RATIO, random) for _ in range(2_000)]).T
    return left, top, right - left, bottom - top


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


def test_area_place_and_the_logarithm_of_the_shape_are_uniform():
    """Up to half of a square every part fits, so that none is drawn again."""
    left, top, width, height = boxes(4_000, 4_000, scale=(0.08, 0.5))
    assert is_uniform(width * height / 4_000**2, 0.08, 0.5)
    assert is_uniform(np.log(width / height), math.log(3 / 4), math.log(4 / 3))
    assert is_uniform(left / (4_001 - width), 0, 1)
    assert is_uniform(top / (4_001 - height), 0, 1)


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((5_000, 1), (2_499, 0, 2_500, 1)),
        ((1, 5_000), (0, 2_499, 1, 2_500)),
        ((5_000, 100), (2_433, 0, 2_566, 100)),
        ((100, 5_000), (0, 2_433, 100, 2_566)),
    ],
)
def test_of_a_panorama_the_middle_is_taken_and_becomes_a_square(size, box):
    assert crop_box(*size, (0.9, 1.0), RATIO, generator()) == box
    assert RandomCrop(32, *PLAIN)(noise(*size), generator()).shape == (3, 32, 32)


def test_the_whole_picture_is_what_evaluation_sees_of_it():
    square = noise(50, 50)
    whole = RandomCrop(32, *COLOURS, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)
    torch.testing.assert_close(whole(square, generator()), ImageTransform(32, "squash", *COLOURS)(square))


def test_a_part_is_that_part_of_the_picture_and_depends_on_the_generator_alone():
    picture = noise(60, 40)
    left, top, right, bottom = crop_box(60, 40, SCALE, RATIO, generator(3))
    part = Image.fromarray(picture[top:bottom, left:right]).resize((16, 16), Image.Resampling.BILINEAR)
    crop = RandomCrop(16, *PLAIN, flip=0.0)
    got = crop(picture, generator(3))
    assert np.array_equal((got * 255).round().movedim(0, 2).numpy(), np.asarray(part))
    assert torch.equal(got, crop(picture, generator(3)))
    assert not torch.equal(got, crop(picture, generator(4)))


@pytest.mark.parametrize("kind", ["crop", "mirror"])
def test_half_of_the_pictures_are_mirrored(kind):
    whole, picture = ImageTransform(8, "squash", *PLAIN), noise(12, 8)

    def seen(flip, seed):
        augment = RandomCrop(8, *PLAIN, flip=flip) if kind == "crop" else RandomMirror(whole, flip)
        return augment(picture, generator(seed))

    count = 0
    for seed in range(100):
        got, straight = seen(0.5, seed), seen(0.0, seed)
        mirrored = not torch.equal(got, straight)
        assert not mirrored or torch.equal(got, straight.flip(2))
        count += mirrored
    assert abs(count - 50) < 4 * math.sqrt(25)


@pytest.mark.parametrize(("size", "scale"), [(64, (0.08, 1.0)), (128, (0.36, 1.0))])
def test_a_jpeg_is_decoded_small_but_never_so_small_that_a_part_is_blown_up(size, scale):
    crop = RandomCrop(size, *PLAIN, scale=scale)
    file = io.BytesIO()
    Image.fromarray(np.zeros((1_500, 2_000, 3), np.uint8)).save(file, "JPEG")
    decoded = load_image(file.getvalue(), at_least=crop._at_least())
    smallest = min(decoded.size) * math.sqrt(scale[0] * 3 / 4)
    assert smallest >= size
    assert decoded.width < 2_000


# Pictures that stay on the device.


@pytest.fixture
def photos(tmp_path):
    return photo_split(tmp_path)


def pixels(feed, wanted):
    return [batch.inputs["image"].values for batch in feed.batches(wanted)]


def test_pictures_on_the_device_are_those_from_the_disk_mirrored_or_not(photos):
    readers = photo_readers()
    crops = {"image": RandomMirror(readers["image"].transform)}
    kept = resident(photos, readers, crops=crops)
    torch.testing.assert_close(pixels(kept, EVERYTHING), pixels(mapped(photos, readers), EVERYTHING), rtol=0, atol=1e-6)
    read = pixels(mapped(photos, readers, crops=crops), plans(photos))
    torch.testing.assert_close(pixels(kept, plans(photos)), read, rtol=0, atol=1e-5)


def test_processes_decode_many_pictures_as_threads_do(photos, monkeypatch):
    (photos["image"].values[5]).write_bytes(b"no picture")
    readers = photo_readers()
    state = torch.get_rng_state()
    kept = []
    for few in (100, 1):
        monkeypatch.setattr(augment, "_FEW_THREADS", few)
        monkeypatch.setattr(augment, "_MANY", 2)
        monkeypatch.setattr(augment, "_CHUNK", 5)
        kept.append(ResidentPictures(photos["image"], readers["image"], None, CPU, 2))
    assert torch.equal(kept[0].pixels, kept[1].pixels)
    assert kept[0].failed == kept[1].failed
    assert list(kept[0].failed) == [5]
    assert torch.equal(torch.get_rng_state(), state)


def test_decoded_pictures_are_kept_for_the_next_training_until_a_file_changes(photos, tmp_path, monkeypatch):
    items, readers, cache = photos["image"], photo_readers(), tmp_path / "cache"
    (items.values[5]).write_bytes(b"no picture")
    crop = RandomCrop(14, *COLOURS)

    def kept(augmentation=None, cache=cache):
        return ResidentPictures(items, readers["image"], augmentation, CPU, 2, cache)

    plain, first = kept(cache=None), kept()
    monkeypatch.setattr(augment._Decoded, "__getitem__", None)  # nothing is decoded any more
    again = kept()
    for one in (first, again):
        assert torch.equal(one.pixels, plain.pixels)
        assert one.failed == plain.failed
        assert list(one.failed) == [5]
    with pytest.raises(TypeError):
        kept(crop)  # another size
    monkeypatch.undo()
    assert kept(crop).pixels.shape[1] == 16
    Image.new("RGB", (40, 40), "red").save(items.values[5])
    assert kept().failed == {}
    assert len(list(cache.glob("*.npy"))) == 3
    for file in cache.glob("*.npy"):
        file.write_bytes(b"cut")
    with pytest.raises(ValueError, match="Delete it"):
        kept()


def test_a_picture_that_could_not_be_read_once_is_tried_again(photos, tmp_path, monkeypatch):
    items, reader = photos["image"], photo_readers()["image"]
    plain, look = ResidentPictures(items, reader, None, CPU, 1), ImageTransform.seen

    def once(transform, source):
        if source == items.values[3]:
            raise OSError(5, "Input/output error")
        return look(transform, source)

    monkeypatch.setattr(ImageTransform, "seen", once)
    assert list(ResidentPictures(items, reader, None, CPU, 1, tmp_path / "cache").failed) == [3]
    monkeypatch.setattr(ImageTransform, "seen", look)
    again = ResidentPictures(items, reader, None, CPU, 1, tmp_path / "cache")
    assert again.failed == {}
    assert torch.equal(again.pixels, plain.pixels)


def test_pictures_that_are_not_files_are_not_kept(photos, tmp_path):
    items = replace(photos["image"], values=[path.read_bytes() for path in photos["image"].values])
    kept = ResidentPictures(items, photo_readers()["image"], None, CPU, 1, tmp_path / "cache")
    assert torch.equal(kept.pixels, ResidentPictures(photos["image"], photo_readers()["image"], None, CPU, 1).pixels)
    assert not (tmp_path / "cache").exists()


def test_a_random_part_depends_on_the_seed_and_without_one_it_is_the_middle(photos):
    crops = {"image": RandomCrop(14, *COLOURS, scale=(0.3, 0.9))}
    feed = resident(photos, photo_readers(), crops=crops, threads=3)
    once, again, other = (pixels(feed, plans(photos, epoch=epoch)) for epoch in (0, 0, 1))
    assert all(map(torch.equal, once, again))
    assert not any(map(torch.equal, once, other))
    (middle,) = pixels(feed, EVERYTHING)
    assert middle.shape == (12, 3, 14, 14)


def test_without_a_seed_a_squashed_picture_is_seen_whole(photos):
    readers = {**photo_readers(), "image": PixelReader(ImageTransform(14, "squash", *COLOURS))}
    crops = {"image": RandomCrop(14, *COLOURS, scale=(0.3, 0.9))}
    feeds = (resident(photos, readers, crops=crops), mapped(photos, readers))
    (kept,), (read,) = (pixels(feed, EVERYTHING) for feed in feeds)
    assert (kept - read).abs().mean() < 0.4 * read.std()  # noise resized twice, in place of once; its middle: 0.9


def test_a_part_of_whole_pixels_is_a_slice_of_the_picture():
    pictures = torch.rand(2, 3, 16, 16)
    corners = np.array([[3, 5, 11, 13], [0, 8, 8, 16]], float)
    parts = cut_out(pictures, corners, np.array([False, True]), 8)
    torch.testing.assert_close(parts[0], pictures[0, :, 5:13, 3:11], rtol=0, atol=1e-5)
    torch.testing.assert_close(parts[1], pictures[1, :, 8:16, 0:8].flip(-1), rtol=0, atol=1e-5)


def test_a_part_is_made_larger_as_pillow_does_it():
    square = noise(16, 16)
    theirs = Image.fromarray(square).resize((24, 24), Image.Resampling.BILINEAR, box=(2, 4, 14, 16))
    ours = cut_out(
        torch.from_numpy(square).movedim(2, 0)[None].float(), np.array([[2, 4, 14, 16.0]]), np.array([False]), 24
    )
    inside = (slice(2, -2), slice(2, -2))  # at the border of its box Pillow sees no neighbours
    difference = ours[0].movedim(0, 2).numpy()[inside] - np.asarray(theirs, np.float32)[inside]
    assert np.abs(difference).max() <= 1.0


class Torn(list):
    """Pictures of which one cannot even be found."""

    def __getitem__(self, place):
        if place == 7:
            raise ValueError("a tar that ends early")
        return super().__getitem__(place)


def test_a_picture_that_cannot_be_read_is_named_and_its_group_left_out(photos):
    photos["image"].values[4].write_bytes(b"no picture")
    photos.items["image"] = type(photos["image"])(Torn(photos["image"].values), np.arange(12), photos["image"].ids)
    told = []
    feed = resident(photos, photo_readers(), threads=3, report=told.append)
    assert [item.id for item in told] == ["image image4", "image image7"]
    assert "not a readable picture" in told[0].reason
    (batch,) = feed.batches(EVERYTHING)
    assert batch.groups["image"].tolist() == [0, 1, 2, 3, 5, 6, 8, 9, 10, 11]
    assert not {4, 7} & set(batch.groups["text"].tolist())
