"""Tokenizers: word-level and wordpiece, both Hugging Face `tokenizers`, saved whole as one tokenizer.json.

A tokenizer carries its own maximum length. `encode` is all the rest of the library needs of it.
"""

import hashlib
import json
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

MAX_LENGTH = 128
WORD_SPECIALS = ("<pad>", "<start>", "<end>", "<unk>", "<mask>")
WORDPIECE_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_SAMPLED = 64  # words that show how a tokenizer splits
_PADDING = ("<pad>", "[PAD]", "<|endoftext|>", "</s>")
# Words as the Penn Treebank splits them: "don't" is "do n't", "man's" is "man 's", "t-shirt" stays whole; any other
# sign is a token of its own. GloVe's vectors are of such words.
_WORD = r"\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:[-/.]\w+)*|[^\w\s]"
_ENDING = re.compile("n['’]t|['’](?:s|re|ve|ll|d|m)", re.IGNORECASE)  # means nothing without the word before it


_SHOW_NOTHING = frozenset(
    [
        "the",
        "and",
        "with",
        "are",
        "that",
        "his",
        "some",
        "has",
        "other",
        "there",
        "for",
        "this",
        "their",
        "her",
        "its",
        "from",
        "into",
        "him",
        "who",
        "has",
        "was",
        "one",
        "has",
        "been",
        "them",
        "they",
        "through",
        "each",
        "another",
        "while",
        "what",
        "very",
        "which",
        "have",
        "being",
        "out",
        "off",
        "down",
        "next",
    ]
)


class TextTruncated(UserWarning):
    """A text had more tokens than the tokenizer's maximum; the rest was left out."""


class Tokens(NamedTuple):
    """The token ids (B, N) of B texts, padded on the right, and which of them are real: tensors or arrays."""

    ids: Any
    mask: Any


class Words(NamedTuple):
    """The words of a text as it is written, each once: those a model knows, and those it has no vector for."""

    known: list[str]
    unknown: list[str]


def word_tokenizer(captions: Iterable[str], min_count: int = 4, max_length: int = MAX_LENGTH) -> Tokenizer:
    """A tokenizer of lower-cased words that occur at least `min_count` times in the captions, the frequent ones first.

    <pad> 0, <start> 1, <end> 2, <unk> 3, <mask> 4; every text becomes <start> … <end>.
    """
    captions = list(captions)
    words = frequent_words(captions, min_count)
    if not words:
        counts = Counter(word for words in split_into_words(captions) for word in words).most_common(1)
        most = f"the most frequent is {counts[0][0]!r}, {counts[0][1]} times" if counts else "they have no words"
        raise ValueError(f"min_count: no word of the captions occurs {min_count} times; {most}. Choose a smaller one.")
    return vocabulary_tokenizer(words, max_length)


def frequent_words(captions: Iterable[str], min_count: int) -> list[str]:
    """The words that occur at least `min_count` times in the captions, the frequent ones first."""
    pieces = Counter(piece for caption in captions for piece in caption.split(" "))  # each is split once
    counts: Counter[str] = Counter()
    for times, words in zip(pieces.values(), split_into_words(pieces), strict=True):
        for word in words:
            counts[word] += times
    return sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))


def learned_words(tokenizer: Tokenizer, most: int) -> list[str]:
    """The words that were most frequent in the captions that a tokenizer of whole words was made of, but for those that
    alone show nothing; none for a tokenizer of pieces, whose order tells nothing.
    """
    if not isinstance(tokenizer.model, models.WordLevel):
        return []
    words = (word for word, _ in sorted(tokenizer.get_vocab().items(), key=lambda one: one[1]))
    shown = (word for word in words if len(word) > 2 and word.isalpha() and word not in _SHOW_NOTHING)
    return list(islice(shown, most))


def vocabulary_tokenizer(words: Sequence[str], max_length: int = MAX_LENGTH) -> Tokenizer:
    """A tokenizer of these lower-cased words, after the special tokens; otherwise as `word_tokenizer`."""
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([*WORD_SPECIALS, *words]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    _split_into_words(tokenizer)
    tokenizer.add_special_tokens(list(WORD_SPECIALS))
    _enclose(tokenizer, "<start>", "<end>")
    return _limit(tokenizer, "<pad>", max_length)


def split_into_words(captions: Iterable[str]) -> Iterator[list[str]]:
    """The words of each caption, as `word_tokenizer` divides it."""
    splitter = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    _split_into_words(splitter)
    for caption in captions:
        text = splitter.normalizer.normalize_str(caption)
        yield [word for word, _ in splitter.pre_tokenizer.pre_tokenize_str(text)]


def wordpiece_tokenizer(vocabulary: Sequence[str], max_length: int = MAX_LENGTH) -> Tokenizer:
    """BERT's uncased tokenizer with a given vocabulary (the lines of a vocab.txt, in order)."""
    ids = {piece: index for index, piece in enumerate(vocabulary)}
    absent = [special for special in WORDPIECE_SPECIALS if special not in ids]
    if absent:
        raise ValueError(f"vocabulary: expected BERT's special tokens among its pieces, but {absent} are missing.")
    tokenizer = _wordpiece(Tokenizer(models.WordPiece(ids, unk_token="[UNK]")))
    tokenizer.add_special_tokens(list(WORDPIECE_SPECIALS))
    _enclose(tokenizer, "[CLS]", "[SEP]")
    return _limit(tokenizer, "[PAD]", max_length)


def train_wordpiece_tokenizer(
    captions: Iterable[str], vocabulary_size: int = 8_000, max_length: int = MAX_LENGTH
) -> Tokenizer:
    """A wordpiece tokenizer whose pieces are learned from captions, the same every time, special tokens first."""
    captions = list(captions)
    # The trainer numbers the letters within words in a random order, and of pieces that are equally frequent it takes
    # the one with the smaller numbers. Letters that are numbered before, like special tokens, keep their numbers.
    within = sorted(piece for piece in _learned_pieces(captions, 0, ()) if piece.startswith("##"))
    return wordpiece_tokenizer(_learned_pieces(captions, vocabulary_size, within), max_length)


def _learned_pieces(captions: list[str], vocabulary_size: int, numbered: Sequence[str]) -> list[str]:
    """The pieces of captions: special tokens, those numbered beforehand, all other letters, and what they make up."""
    tokenizer = _wordpiece(Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")))
    first = [*WORDPIECE_SPECIALS, *numbered]
    trainer = trainers.WordPieceTrainer(vocab_size=vocabulary_size, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator(captions, trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=lambda piece: ids[piece])


def load_tokenizer(path: str | Path, max_length: int | None = None) -> Tokenizer:
    """A tokenizer from its tokenizer.json, ours or any other's. Without a maximum length, the file's own holds."""
    tokenizer = read_tokenizer(path)
    padding = next((token for token in _PADDING if tokenizer.token_to_id(token) is not None), None)
    if padding is None:
        raise ValueError(f"{path}: no padding token; expected one of {', '.join(_PADDING)}. Add one and save it again.")
    if max_length is None:
        max_length = (tokenizer.truncation or {}).get("max_length", MAX_LENGTH)
    return _limit(tokenizer, padding, max_length)


def read_tokenizer(path: str | Path) -> Tokenizer:
    """A tokenizer as its tokenizer.json says, truncation and padding too."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file. Expected the tokenizer.json of a model.")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special than Exception
        raise ValueError(f"{path}: not a readable tokenizer.json ({error}). Save or fetch it again.") from error


def as_text(item: object) -> str:
    """A text that can be encoded, which may be empty. ValueError where it is not a string."""
    if not isinstance(item, str):
        raise ValueError(f"expected a text, got {type(item).__name__}. Convert it with str().")
    return item.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair cannot be encoded


def text_length(item: object) -> int:
    """How many characters a text has: texts of similar length share a batch."""
    return len(item) if isinstance(item, str) else 0


def fingerprint(tokenizer: Tokenizer) -> str:
    """A hash of a tokenizer: its vocabulary, its maximum length, and how it splits and numbers some words in several
    spellings. Not of its file, which another version of `tokenizers` may write differently.
    """
    numbered = sorted(tokenizer.get_vocab().items(), key=lambda piece: (piece[1], piece[0]))
    words = [word for word, _ in numbered if word.isalpha()][:_SAMPLED]
    spelt = [text for word in words for text in (word, word.title(), f"{word}'s {word}-{word}, {word}\u0301")]
    sampled = [encoding.ids for encoding in tokenizer.encode_batch(["", *spelt])]
    described = json.dumps([numbered, (tokenizer.truncation or {}).get("max_length"), sampled])
    return hashlib.sha256(described.encode()).hexdigest()


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokens:
    """`encode_arrays`, as tensors."""
    import torch

    ids, mask = encode_arrays(tokenizer, texts)
    return Tokens(torch.from_numpy(ids), torch.from_numpy(mask))


def encode_arrays(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokens:
    """The ids of a batch of texts, padded to the longest. A text longer than the tokenizer's maximum is truncated, with
    the same warning each time, so that Python shows it once. An empty text still gives a token. The padding of a
    tokenizer that always pads to one length counts as text, as in SigLIP.
    """
    encodings = tokenizer.encode_batch(list(texts))
    if any(encoding.overflowing for encoding in encodings):
        warnings.warn(
            f"a text has more than {(tokenizer.truncation or {})['max_length']} tokens; the rest is left out. "
            "Build or load the tokenizer with a larger max_length if the model allows it.",
            TextTruncated,
            stacklevel=2,
        )
    if not encodings:
        return Tokens(np.empty((0, 0), np.int64), np.empty((0, 0), np.bool_))
    ids = np.array([encoding.ids for encoding in encodings], np.int64)
    mask = np.array([encoding.attention_mask for encoding in encodings], np.bool_)
    if not ids.shape[1]:  # only empty texts, and a tokenizer that adds no special tokens
        ids, mask = np.full((len(ids), 1), (tokenizer.padding or {})["pad_id"]), np.ones((len(ids), 1), np.bool_)
    if (tokenizer.padding or {}).get("length"):
        mask[:] = True
    mask[~mask.any(1), 0] = True
    return Tokens(ids, mask)


def known_words(tokenizer: Tokenizer, *texts: str) -> Words:
    """The words of texts, by whether the tokenizer knows all of their pieces. A special token is not known: <unk>.

    Letters, digits and pictographs make a word. Punctuation does not, nor does the 's of "dog's".
    """
    unknown: set[int | None] = {tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "")}
    unknown |= {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    known: dict[str, bool] = {}
    for text in map(as_text, texts):
        encoding = tokenizer.encode(text)
        tokens = zip(encoding.word_ids, encoding.ids, encoding.offsets, strict=True)
        for place, pieces in groupby(tokens, key=lambda token: token[0]):
            _, ids, offsets = zip(*pieces, strict=True)
            word = text[offsets[0][0] : offsets[-1][1]].strip()
            if place is not None and _is_word(word):  # None: a token that encloses every text
                known[word] = unknown.isdisjoint(ids)
    return Words([word for word in known if known[word]], [word for word in known if not known[word]])


def _is_word(text: str) -> bool:
    if text.isalnum():
        return True
    kinds = {unicodedata.category(sign) for sign in text}
    return any(kind[0] in "LN" or kind == "So" for kind in kinds) and not _ENDING.fullmatch(text)


def _split_into_words(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace("’", "'"), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\s+"), "removed"), pre_tokenizers.Split(Regex(_WORD), "isolated")]
    )


def _wordpiece(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _enclose(tokenizer: Tokenizer, start: str, end: str) -> None:
    specials = [(token, tokenizer.token_to_id(token)) for token in (start, end)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{start} $A {end}", special_tokens=specials)


def _limit(tokenizer: Tokenizer, padding: str, max_length: int) -> Tokenizer:
    """Truncate to `max_length` tokens and pad to the longest text of a batch, both on the right."""
    special = tokenizer.num_special_tokens_to_add(False)
    if max_length <= special:
        raise ValueError(
            f"max_length: {max_length} leaves no room for text beside {special} special tokens. Choose a larger one."
        )
    tokenizer.enable_truncation(max_length)
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id(padding), pad_token=padding)
    return tokenizer
