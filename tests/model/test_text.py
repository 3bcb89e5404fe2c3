import json
import warnings
from collections import Counter

import pytest
import torch
from made_data import run
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from maxmatch.model.text import (
    TextTruncated,
    encode,
    fingerprint,
    frequent_words,
    known_words,
    load_tokenizer,
    split_into_words,
    train_wordpiece_tokenizer,
    word_tokenizer,
    wordpiece_tokenizer,
)

CAPTIONS = ["A dog runs.", "The dog isn't a cat", "a Dog's t-shirt", "dog"]


@pytest.fixture(params=["word", "wordpiece"])
def tokenizer(request):
    if request.param == "word":
        return word_tokenizer(CAPTIONS, min_count=1, max_length=16)
    return train_wordpiece_tokenizer(CAPTIONS, vocabulary_size=100, max_length=16)


def test_special_words_come_first_and_frequent_words_next():
    vocabulary = word_tokenizer(CAPTIONS, min_count=1).get_vocab()
    assert [vocabulary[word] for word in ("<pad>", "<start>", "<end>", "<unk>", "<mask>")] == [0, 1, 2, 3, 4]
    assert [vocabulary[word] for word in ("dog", "a")] == [5, 6]


def test_frequent_words_are_those_of_the_captions_divided_one_by_one():
    captions = [*CAPTIONS, "Dog  dog\tdog's\nT-shirt", " e\u0301 \u00e9 \u0301 DON\u2019T don't", "", "a b\u00a0c ,d,e"]
    counts = Counter(word for words in split_into_words(captions) for word in words)
    expected = sorted((word for word in counts if counts[word] >= 2), key=lambda word: (-counts[word], word))
    assert frequent_words(captions, 2) == expected


@pytest.mark.parametrize(("count", "kept"), [(3, False), (4, True)])
def test_a_word_is_kept_from_four_occurrences_on(count, kept):
    assert ("dog" in word_tokenizer(["a"] * 4 + ["Dog"] * count).get_vocab()) is kept


@pytest.mark.parametrize(("captions", "most"), [(["a dog", "a cat"], "'a', 2 times"), (["", " "], "no words")])
def test_captions_without_a_word_that_is_frequent_enough_are_refused(captions, most):
    with pytest.raises(ValueError, match=f"min_count: .*5000.*{most}"):
        word_tokenizer(captions, min_count=5000)


def test_words_are_lower_cased_and_divided_as_in_the_penn_treebank():
    text = "A man\u2019s T-shirt: he DOESN'T care, 3.5 and/or more..."
    tokens = word_tokenizer([text], min_count=1).encode(text).tokens
    assert " ".join(tokens) == "<start> a man 's t-shirt : he does n't care , 3.5 and/or more . . . <end>"


def test_an_unknown_word_becomes_unk():
    ids, _ = encode(word_tokenizer(CAPTIONS, min_count=1), ["a zebra"])
    assert ids.tolist() == [[1, 6, 3, 2]]


@pytest.mark.parametrize(
    ("text", "known", "unknown"),
    [
        ("a DOG, a Zebra and a dog!", ["a", "DOG", "dog"], ["Zebra", "and"]),
        ("zebra zebra", [], ["zebra"]),
        ("dog's isn't zebra's zebra\u2019s", ["dog", "is"], ["zebra"]),  # 's and n't alone mean nothing
        ("t-shirt dog-zebra", ["t-shirt"], ["dog-zebra"]),
        ("3 dogs in 2024, 3.5%", [], ["3", "dogs", "in", "2024", "3.5"]),
        ("собака 一只狗 כלב", [], ["собака", "一只狗", "כלב"]),
        ("🐶 ❤\ufe0f 👍🏽", [], ["🐶", "❤", "👍"]),
        ("<unk> <pad> dog", ["dog"], ["<unk>", "<pad>"]),
        ("a\u200bdog\t\ndog", ["a", "dog"], []),
        ("", [], []),
        (" ?! … -- \ud800", [], []),
    ],
)
def test_words_are_known_or_not_and_punctuation_is_no_word(text, known, unknown):
    assert known_words(word_tokenizer(CAPTIONS, min_count=1), text) == (known, unknown)


def test_the_words_of_several_texts_are_listed_once():
    assert known_words(word_tokenizer(CAPTIONS, min_count=1), "a dog", "zebra", "a zebra") == (["a", "dog"], ["zebra"])


def test_every_word_is_known_that_can_be_made_of_pieces():
    pieces = train_wordpiece_tokenizer(CAPTIONS, vocabulary_size=100)
    assert known_words(pieces, "A dog rants, cats: 狗 собака [UNK]") == (
        ["A", "dog", "rants", "cats"],
        ["狗", "собака", "[UNK]"],
    )
    plain = Tokenizer(models.WordLevel({"?": 0, "dog": 1}, unk_token="?"))  # whose unknown token is no special one
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    assert known_words(plain, "dog cat") == (["dog"], ["cat"])
    spelt = Tokenizer(models.BPE({"d": 0, "o": 1, "g": 2}, []))  # without an unknown token at all
    assert known_words(spelt, "dog") == (["dog"], [])


def test_saved_and_loaded_tokenizers_encode_alike(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path), pretty=False)
    again = load_tokenizer(path)
    texts = [*CAPTIONS, "", "zebra \U0001f436 नमस्ते", "dog " * 10]
    for mine, theirs in zip(encode(tokenizer, texts), encode(again, texts), strict=True):
        assert torch.equal(mine, theirs)
    assert json.loads(path.read_text())["truncation"]["max_length"] == again.truncation["max_length"] == 16
    assert fingerprint(again) == fingerprint(tokenizer)


def test_texts_are_padded_on_the_right_to_the_longest_and_come_back_from_their_ids(tokenizer):
    ids, mask = encode(tokenizer, ["a dog", "dog", ""])
    assert mask.sum(1).tolist() == [4, 3, 2]
    assert mask[:, 0].all()
    assert (ids[~mask] == 0).all()
    assert tokenizer.decode(ids[0][mask[0]].tolist()) == "a dog"
    assert encode(tokenizer, []).ids.shape == (0, 0)


def test_an_empty_text_gives_a_token_even_without_special_tokens(tmp_path):
    bare = Tokenizer(models.WordLevel({"<pad>": 0, "<unk>": 1, "dog": 2}, unk_token="<unk>"))
    bare.pre_tokenizer = pre_tokenizers.Whitespace()
    bare.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert encode(loaded, [""]).mask.tolist() == [[True]]
    assert encode(loaded, ["", "dog dog"]).mask.tolist() == [[True, False], [True, True]]


def test_any_text_can_be_encoded(tokenizer):
    for text in ("\U0001f436\u200d\U0001f9ba!", "犬が走る", "नमस्ते दुनिया", "مرحبا", "\x00\ufffd", " \n\t ", ""):
        ids, mask = encode(tokenizer, [text, "dog"])
        assert ids.shape == mask.shape
        assert mask[:, :2].all()


def test_words_of_any_script_enter_the_vocabulary():
    vocabulary = word_tokenizer(["नमस्ते दुनिया Straße ЖУК \U0001f436"] * 4).get_vocab()
    assert {"नमस्ते", "दुनिया", "straße", "жук", "\U0001f436"} <= set(vocabulary)


def test_long_texts_are_cut_with_one_warning_and_the_end_token_is_kept(tokenizer):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for length in (100, 200, 10_000):
            ids, _ = encode(tokenizer, ["dog " * length, "dog"])
    assert [warning.category for warning in caught] == [TextTruncated]
    assert "more than 16 tokens" in str(caught[0].message)
    assert ids.shape == (2, 16)
    assert ids[0, -1] == encode(tokenizer, ["dog"]).ids[0, -1]


def test_wordpiece_takes_the_vocabulary_of_a_bert():
    pieces = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "##s", "a"]
    tokenizer = wordpiece_tokenizer(pieces)
    assert encode(tokenizer, ["A dogs zebra"]).ids.tolist() == [[3, 8, 6, 7, 2, 4]]


def test_wordpieces_are_learned_the_same_way_every_time_and_in_every_process():
    captions = [f"w{n % 7}{n % 11}{n % 13} {n}" for n in range(300)]
    learned = {json.dumps(train_wordpiece_tokenizer(captions, 120).get_vocab(), sort_keys=True) for _ in range(5)}
    code = (
        "import json; from maxmatch.model.text import train_wordpiece_tokenizer as train\n"
        f"print(json.dumps(train({captions!r}, 120).get_vocab(), sort_keys=True))"
    )
    elsewhere = run(code)
    assert learned == {elsewhere.stdout.strip()}, elsewhere.stderr
    vocabulary = json.loads(elsewhere.stdout)
    assert sorted(vocabulary.values()) == list(range(120))
    assert train_wordpiece_tokenizer(captions, 120).encode("w111", add_special_tokens=False).tokens[0].startswith("w")


def test_a_vocabulary_without_special_tokens_and_a_maximum_without_room_are_refused():
    with pytest.raises(ValueError, match="special tokens"):
        wordpiece_tokenizer(["a", "[UNK]"])
    with pytest.raises(ValueError, match="leaves no room"):
        word_tokenizer(CAPTIONS, min_count=1, max_length=2)


def test_a_broken_file_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_tokenizer(path)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a readable"):
        load_tokenizer(path)
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(path))
    with pytest.raises(ValueError, match="no padding token"):
        load_tokenizer(path)


def test_a_tokenizer_that_cuts_divides_spells_or_numbers_otherwise_is_another(tokenizer, tmp_path):
    def changed(change):
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        other = load_tokenizer(tmp_path / "tokenizer.json")
        change(other)
        return fingerprint(other)

    known = [
        fingerprint(tokenizer),
        changed(lambda other: other.enable_truncation(15)),
        changed(lambda other: setattr(other, "pre_tokenizer", pre_tokenizers.WhitespaceSplit())),
        changed(lambda other: setattr(other, "normalizer", normalizers.NFC())),
        changed(lambda other: other.add_tokens(["zebra"])),
        fingerprint(word_tokenizer(CAPTIONS[:3], min_count=1, max_length=16)),
    ]
    assert len(set(known)) == len(known)
