"""How well a search recognises that nothing in a folder fits a query, on photos whose contents are known.

    python -m benchmarks.nothing_fits coco --labels coco/labels.json --split val --work FOLDER
    python -m benchmarks.nothing_fits flickr8k --split val --work FOLDER

Folders of 100, 300 and all photos are drawn from a split. Answerable are the names of labelled things that are there
and a caption of each photo; not answerable are the same after the photos with that label, or the caption's own photo,
were taken out, words of letters at random, queries whose noun is such a word, and names of things that hardly any
folder has. For each kind: the share that is told to fit. Then the curve: another κ keeps more or fewer answerable
queries. Limits were chosen with the training photos of COCO (--split train --most 1500) and Flickr8k's validation
photos; the encoded photos are cached in the folder --work.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from maxmatch import SetEncoder, score_matrix
from maxmatch.data.dataset import IMAGE, TEXT
from maxmatch.data.load import read_dataset
from maxmatch.evaluation.labels import Labels
from maxmatch.matching.similarity import with_options
from maxmatch.model.names import model_identity
from maxmatch.search.plausible import CutOff, background, content_words, is_understood

SIZES, DRAWS = (100, 300), 5
KEPT = (0.99, 0.95, 0.90, 0.80, 0.70)
TEMPLATES = (
    "a {}", "the {}", "a photo of a {}", "a {} on the table", "a man with a {}", "two {} in the street", "a red {}",
    "{} near the water",
)  # fmt: skip
RARE = (
    "a sundial", "an oil rig", "a coral reef", "a mammoth", "a circuit board", "a printing press", "a space station",
    "an astronaut", "a galaxy", "a solar eclipse", "a volcano erupting", "a tornado", "a gladiator", "a pharaoh",
    "a cave painting", "an igloo", "a pipe organ", "a harp", "a bank vault", "a prison cell", "an x ray", "a passport",
    "a microscope", "a submarine", "a nuclear reactor", "a crocodile", "an octopus", "a jellyfish", "a kangaroo",
    "sushi", "a stethoscope", "a chess tournament", "a chemical formula", "a barcode", "a crossword", "a receipt",
    "a blueprint", "a weather map", "a fossil", "a meteorite",
)  # fmt: skip

_CONSONANTS = "bcdfghjklmnpqrstvwxz"
Scores = Callable[[Sequence[str]], np.ndarray]


class Photos(NamedTuple):
    """Sets (n, K, D), a caption of each, and which names of things each shows, if known: (names, n)."""

    sets: torch.Tensor
    captions: list[str]
    names: list[str]
    shows: np.ndarray


def read_photos(model: SetEncoder, data: Path, split: str, most: int | None, labels: Path | None, work: Path) -> Photos:
    part = read_dataset(data).split(split)
    images, texts = part[IMAGE], part[TEXT]
    places = list(range(len(images)))
    if most is not None:
        places = sorted(random.Random(0).sample(places, min(most, len(places))))
    known = Labels.read(labels) if labels is not None else None
    plain = [str(images.ids[place]).rpartition("/")[2].partition(".")[0].lstrip("0") for place in places]
    if known is not None:
        kept = [number for number, name in enumerate(plain) if name in known.shown]
        places, plain = [places[number] for number in kept], [plain[number] for number in kept]
    by_group: dict[int, list[str]] = {}
    for group, text in zip(texts.groups.tolist(), texts.values, strict=True):
        by_group.setdefault(group, []).append(text)
    captions = [random.Random(place).choice(by_group[int(images.groups[place])]) for place in places]
    file = work / f"{data.stem}-{split}-{len(places)}-{model_identity(model)[:8]}.npy"
    if not file.exists():
        work.mkdir(parents=True, exist_ok=True)
        np.save(file, model.encode_images([images.values[place] for place in places]).numpy())
    names = [f"{'an' if name[0] in 'aeiou' else 'a'} {name}" for name in known.names] if known else []
    shows = np.array([[number in known.shown[one] for one in plain] for number in range(len(names))] if known else [[]])
    return Photos(torch.from_numpy(np.load(file)), captions, names, shows)


def nonsense(model: SetEncoder, count: int) -> list[str]:
    """Words of letters at random that the model does not know."""
    chance, words = random.Random(0), list[str]()
    while len(words) < count:
        parts = [
            chance.choice(letters) for _ in range(chance.randint(1, 2)) for letters in (_CONSONANTS, "aeiou", "bgknrt")
        ]
        word = "".join(parts) + chance.choice("qxzv")
        if model.known_words(word).unknown:
            words.append(word)
    return words


class Folder:
    """Some photos, and what their own background makes of the best score of a query."""

    def __init__(self, backgrounds: dict[int, np.ndarray], places: np.ndarray) -> None:
        self.places = places
        best = {count: scores[:, places].max(1) for count, scores in backgrounds.items()}
        self.cut_off = CutOff(
            len(places), {count: (float(one.mean()), float(one.std())) for count, one in best.items()}
        )

    def margin(self, model: SetEncoder, query: str, scores: np.ndarray) -> float:
        """By how many spreads of the background the best score is above the limit; −∞ where it is not understood."""
        words = model.known_words(query)
        limits = self.cut_off.limits(len(content_words(words.known)))
        spread = np.interp(
            len(content_words(words.known)),
            list(self.cut_off.background),
            [one[1] for one in self.cut_off.background.values()],
        )
        return float((scores.max() - limits.fits) / spread) if is_understood(words) else -np.inf


def margins(model: SetEncoder, photos: Photos, scores: Scores, folder: Folder) -> dict[str, np.ndarray]:
    """The margin of every query of every kind."""
    places = folder.places
    found: dict[str, list[float]] = {}

    def note(kind: str, query: str, row: np.ndarray) -> None:
        found.setdefault(kind, []).append(folder.margin(model, query, row))

    own = scores([photos.captions[place] for place in places])[:, places]
    for number, place in enumerate(places):
        note("caption, photo there", photos.captions[place], own[number])
        note("caption, photo taken out", photos.captions[place], np.delete(own[number], number))
    named = scores(photos.names)[:, places] if photos.names else np.empty((0, len(places)))
    for name, row, shown in zip(photos.names, named, photos.shows[:, places] if photos.names else (), strict=True):
        if shown.any() and not shown.all():
            note("name, shown", name, row)
            note("name, all photos taken out", name, row[~shown])
    words = nonsense(model, 400)
    others = {
        "nonsense": [" ".join(words[start : start + 1 + start % 3]) for start in range(200)],
        "unknown word": [TEMPLATES[place % len(TEMPLATES)].format(word) for place, word in enumerate(words[200:])],
        "rare thing": list(RARE),
    }
    for kind, queries in others.items():
        for query, row in zip(queries, scores(queries)[:, places], strict=True):
            note(kind, query, row)
    return {kind: np.array(values) for kind, values in found.items()}


def listed(photos: Photos, scores: Scores, model: SetEncoder, folder: Folder) -> tuple[float, float]:
    """Of the photos listed for the names that fit: the share that shows the thing, and the share of all such photos."""
    right = shown = there = 0
    for name, row, shows in zip(photos.names, scores(photos.names), photos.shows, strict=True):
        limits = folder.cut_off.limits(len(content_words(model.known_words(name).known)))
        row, shows = row[folder.places], shows[folder.places]
        if shows.any() and row.max() >= limits.fits:
            right += int((shows & (row >= limits.ends)).sum())
            shown += int((row >= limits.ends).sum())
            there += int(shows.sum())
    return right / max(shown, 1), right / max(there, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--split", default="val")
    parser.add_argument("--most", type=int, help="photos of the split, drawn at random")
    parser.add_argument("--model", default="maxmatch-small")
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    model = SetEncoder.from_pretrained(given.model)
    photos = read_photos(model, given.data, given.split, given.most, given.labels, given.work)
    similarity = with_options(model.similarity_name, dict(model.similarity_options))
    cache: dict[str, np.ndarray] = {}

    def scores(texts: Sequence[str]) -> np.ndarray:
        if new := [text for text in dict.fromkeys(texts) if text not in cache]:
            rows = score_matrix(model.encode_texts(new, show_progress=False), photos.sets, similarity).numpy()
            cache.update(zip(new, rows, strict=True))
        return np.array([cache[text] for text in texts])

    backgrounds = {count: scores(texts) for count, texts in background(model).items()}
    total = len(photos.sets)
    chance = np.random.default_rng(0)
    results: dict[int, list[dict[str, np.ndarray]]] = {}
    lists: dict[int, list[tuple[float, float]]] = {}
    for size in (*(size for size in SIZES if size < total), total):
        for _ in range(1 if size == total else DRAWS):
            folder = Folder(backgrounds, np.sort(chance.permutation(total)[:size]))
            results.setdefault(size, []).append(margins(model, photos, scores, folder))
            lists.setdefault(size, []).append(listed(photos, scores, model, folder) if photos.names else (0.0, 0.0))
    print(f"{given.model}, {given.data.stem} {given.split}: told to fit, per cent\n")
    print("| query | " + " | ".join(f"{size:,} photos" for size in results) + " |")
    print("|---" * (len(results) + 1) + "|")
    for kind in results[total][0]:
        shares = [100 * np.mean([(one[kind] >= 0).mean() for one in draws]) for draws in results.values()]
        print(f"| {kind} | " + " | ".join(f"{share:.0f}" for share in shares) + " |")
    if photos.names:
        for number, what in enumerate(("listed photos that show the thing", "of all photos that show it, listed")):
            shares = [100 * np.mean([one[number] for one in some]) for some in lists.values()]
            print(f"| {what} | " + " | ".join(f"{share:.0f}" for share in shares) + " |")
    whole = results[total][0]
    own = scores(photos.captions)
    first = float((own.argmax(1) == np.arange(total)).mean())
    pairs = [("name, shown", "name, all photos taken out"), ("caption, photo there", "caption, photo taken out")]
    print(f"\nAll {total:,} photos, other κ: answerable kept, the rest recognised, per cent\n")
    print("| kept | " + " | ".join(out for _, out in pairs if out in whole) + " | bound for captions |")
    print("|---" * (2 + sum(out in whole for _, out in pairs)) + "|")
    for kept in KEPT:
        cells = [
            100 * (whole[out] < np.quantile(whole[there], 1 - kept)).mean() for there, out in pairs if there in whole
        ]
        bound = 100 * min(1.0, first + 1 - kept)
        print(f"| {100 * kept:.0f} | " + " | ".join(f"{cell:.0f}" for cell in [*cells, bound]) + " |")
    print(
        f"\nThe bound: {100 * first:.0f} % of captions find their photo first. For the others the best score is the "
        "same with and without it, so that of these only as many are recognised as are not kept."
    )


if __name__ == "__main__":
    main()
