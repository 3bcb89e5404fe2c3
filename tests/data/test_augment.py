import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from maxmatch.core.types import Batch, Inputs
from maxmatch.data.augment import (
    SizeAugmentation,
    WordIds,
    drop_regions,
    drop_words,
    regions_left,
    word_ids,
    words_left,
)
from maxmatch.model.images import ImageTransform
from maxmatch.model.inputs import FeatureReader, PixelReader, TextReader
from maxmatch.model.text import encode, train_wordpiece_tokenizer, word_tokenizer

PAD, START, END, UNK, MASK = range(5)
KNOWN = WordIds(MASK, PAD, torch.tensor([PAD, START, END]), torch.arange(5, 50))
CPU = torch.device("cpu")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


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


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.floats(0, 0.99), st.integers(0, 99))
def test_regions_are_dropped_as_by_hand(counts, p, seed):
    mask = torch.arange(9) < torch.tensor(counts)[:, None]
    draws = torch.rand(mask.shape, generator=generator(seed))
    expected = [regions_by_hand(real, p, u) for real, u in zip(mask.tolist(), draws.tolist(), strict=True)]
    assert regions_left(mask, p, draws).tolist() == expected


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.floats(0, 0.99), st.integers(0, 99))
def test_words_are_dropped_as_by_hand(lengths, p, seed):
    ids, mask = texts(lengths, 12)
    draws = torch.rand((3, *ids.shape), generator=generator(seed))
    new, left = words_left(ids, mask, p, KNOWN, draws)
    for row, length in enumerate(lengths):
        expected = words_by_hand(ids[row, : length + 2].tolist(), p, draws[:, row].tolist())
        assert new[row][left[row]].tolist() == expected
        assert left[row].tolist() == [place < len(expected) for place in range(12)]
        assert (new[row, len(expected) :] == PAD).all()


def test_one_region_in_five_is_dropped():
    mask = torch.ones(4_000, 36, dtype=torch.bool)
    share = 1 - drop_regions(mask, 0.2, generator()).double().mean().item()
    assert abs(share - 0.2) < 4 * math.sqrt(0.2 * 0.8 / mask.numel())


def test_of_the_words_a_fifth_is_hit_and_shared_out_as_the_paper_says():
    ids, mask = texts([20] * 8_000, 22)
    ids[:, 1:21] = 49  # one word, so that another in its place is seen, but for one time in 45
    new, left = drop_words(ids, mask, 0.2, KNOWN, generator())
    count = 8_000 * 20
    for share, expected in [
        ((new == MASK).sum() / count, 0.1),
        (((new >= 5) & (new < 49)).sum() / count, 0.02 * 44 / 45),
        ((mask.sum() - left.sum()) / count, 0.08),
    ]:
        assert abs(share.item() - expected) < 4 * math.sqrt(expected * (1 - expected) / count)
    assert set(new.unique().tolist()) == {PAD, START, END, MASK, *range(5, 50)}  # <unk> takes no word's place


@given(st.integers(0, 200))
def test_no_item_is_left_empty_however_much_is_dropped(seed):
    mask = torch.arange(6) < torch.tensor([1, 2, 6, 6])[:, None]
    assert drop_regions(mask, 0.99, generator(seed)).any(1).all()
    ids, mask = texts([1, 2, 6, 0], 8)
    new, left = drop_words(ids, mask, 0.99, KNOWN, generator(seed))
    words = left & (new > END)
    assert words.any(1).tolist() == [True, True, True, False]
    assert (new[:, 0] == START).all()
    assert ((new == END).sum(1) == 1).all()


def test_what_was_padding_stays_padding():
    mask = torch.arange(6) < torch.tensor([1, 3])[:, None]
    assert not (drop_regions(mask, 0.5, generator()) & ~mask).any()


def test_nothing_is_dropped_at_zero():
    ids, mask = texts([3, 5], 9)
    new, left = drop_words(ids, mask, 0.0, KNOWN, generator())
    assert torch.equal(new, ids)
    assert torch.equal(left, mask)
    assert torch.equal(drop_regions(mask, 0.0, generator()), mask)


@pytest.mark.parametrize(
    ("tokenizer", "names"),
    [
        (word_tokenizer(["a dog runs"] * 4), ["<pad>", "<start>", "<end>"]),
        (train_wordpiece_tokenizer(["a dog runs"] * 4, 60), ["[PAD]", "[CLS]", "[SEP]"]),
    ],
)
def test_a_tokenizer_says_what_is_a_word(tokenizer, names):
    known = word_ids(tokenizer)
    assert known.fixed.tolist() == sorted(tokenizer.token_to_id(name) for name in names)
    assert tokenizer.id_to_token(known.mask) in ("<mask>", "[MASK]")
    assert known.padding == tokenizer.token_to_id(names[0])
    every = set(range(tokenizer.get_vocab_size()))
    assert every - set(known.words.tolist()) == {*known.fixed.tolist(), known.mask, 3 if "<pad>" in names else 1}


def test_the_pieces_of_a_word_share_its_fate():
    tokenizer = train_wordpiece_tokenizer(["a dog", "b"], 12)  # so few that dog is d ##o ##g
    known, mask_token = word_ids(tokenizer), tokenizer.token_to_id("[MASK]")
    ids, mask = encode(tokenizer, ["a dog b dog a b dog"] * 40)
    draws = torch.rand((3, *ids.shape), generator=generator(5))
    new, left = words_left(ids, mask, 0.6, known, draws)
    pieces = [tokenizer.id_to_token(int(token)) for token in ids[0]]
    assert pieces.count("##o") == pieces.count("##g") == 3
    for row, kept, hit, fate, other in zip(new, left, *draws, strict=True):
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


def test_an_unknown_word_is_a_word():
    tokenizer = word_tokenizer(["a dog runs"] * 4)
    ids, mask = encode(tokenizer, ["zebra zebra zebra zebra"] * 50)
    new, _ = drop_words(ids, mask, 0.5, word_ids(tokenizer), generator())
    assert (new == tokenizer.token_to_id("<mask>")).any()


def test_a_tokenizer_without_a_mask_token_is_refused():
    bare = Tokenizer(models.WordLevel({"<pad>": 0, "<unk>": 1, "dog": 2}, unk_token="<unk>"))
    with pytest.raises(ValueError, match="takes a tokenizer with a mask token"):
        word_ids(bare)


def batch():
    ids, mask = texts([5, 9], 12)
    features = Inputs(torch.randn(2, 7, 3, generator=generator()), torch.ones(2, 7, dtype=torch.bool))
    return Batch({"image": features, "text": Inputs(ids, mask)}, {"image": torch.arange(2), "text": torch.arange(2)})


def readers():
    tokenizer = word_tokenizer([" ".join(f"w{i}" for i in range(45))] * 4)
    return {"image": FeatureReader(3), "text": TextReader(tokenizer)}


def test_a_batch_is_augmented_from_its_seed_alone():
    augment = SizeAugmentation({"image": 0.5, "text": 0.5}, readers(), CPU)
    first, again, other = augment(batch(), 1), augment(batch(), 1), augment(batch(), 2)
    for modality in ("image", "text"):
        for a, b in zip(first.inputs[modality], again.inputs[modality], strict=True):
            assert torch.equal(a, b)
        assert not torch.equal(first.inputs[modality].mask, other.inputs[modality].mask)
    assert torch.equal(first.inputs["image"].values, batch().inputs["image"].values)


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        ({"image": 1.0}, "from 0 to below 1"),
        ({"sound": 0.2}, "'sound' is read by: no such modality"),
        ({"photo": 0.2}, "'photo' is read by: PixelReader"),
    ],
)
def test_what_cannot_be_dropped_is_refused(drop, message):
    pixels = PixelReader(ImageTransform(8, "crop", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))
    with pytest.raises(ValueError, match=message):
        SizeAugmentation(drop, {**readers(), "photo": pixels}, CPU)
