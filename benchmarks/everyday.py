"""Look at the first five photos that models find for sixty everyday queries, and count the hits.

    python -m benchmarks.everyday find old=FOLDER new=maxmatch-small --data coco flickr8k --out everyday
    python -m benchmarks.everyday judge everyday "a cat" 1 3 4
    python -m benchmarks.everyday table everyday

`find` encodes the photos of a split once per model (cached; an interrupted run resumes) and writes found.json, one
picture per query (a row per model; green: hit, red: no hit, grey: not judged), and unjudged/: photos that nobody has
judged yet, shuffled, so that whoever judges does not know which model found them. `judge` records one such sheet: the
numbers are hits, the rest of the sheet is not. A judgement belongs to a query and a photo, so it serves later models
too. `table` prints Markdown. What counts as a hit is in everyday_queries.yaml.
"""

import argparse
import json
import random
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image, ImageDraw, ImageFont, ImageOps

HERE = Path(__file__).parent
QUERIES, JUDGEMENTS = HERE / "everyday_queries.yaml", HERE / "everyday_judgements.yaml"
FIRST = 5
_CHUNK = 200  # photos encoded and stored at a time
_HEAD = (
    "# Judged on sheets that do not show which model found a photo. Written by `python -m benchmarks.everyday judge`.\n"
)
_SIDE, _GAP, _LINE = 240, 8, 26
_COLOURS = {True: "#2a9d3a", False: "#d13030", None: "#999999"}

Queries = Mapping[str, Mapping[str, str]]  # category -> query -> what counts as a hit
Found = Mapping[str, Mapping[str, Sequence[str]]]  # model -> query -> ids of the first photos
Judgements = dict[str, dict[str, bool]]  # query -> id -> whether it is a hit


def read_judgements(path: Path) -> Judgements:
    judged: Judgements = {}
    for query, answers in (yaml.safe_load(path.read_text("utf-8")) or {}).items() if path.exists() else ():
        hits, misses = (set(answers[answer]) for answer in ("hit", "miss"))
        if hits & misses:
            raise ValueError(f"{path}: {query!r}: judged as hit and as miss: {', '.join(sorted(hits & misses))}.")
        judged[query] = {name: name in hits for name in sorted(hits | misses)}
    return judged


def write_judgements(path: Path, judged: Judgements) -> None:
    rows = {
        query: {
            "hit": [name for name, hit in sorted(answers.items()) if hit],
            "miss": [name for name, hit in sorted(answers.items()) if not hit],
        }
        for query, answers in judged.items()
    }
    text = yaml.safe_dump(rows, sort_keys=False, allow_unicode=True, width=150, default_flow_style=None)
    path.write_text(_HEAD + text, "utf-8")


def unjudged(found: Found, judged: Judgements) -> dict[str, list[str]]:
    """By query, the photos that some model found and nobody judged, in an order that tells nothing about the models."""
    queries = dict.fromkeys(query for answers in found.values() for query in answers)
    left = {}
    for query in queries:
        names = {name for answers in found.values() for name in answers.get(query, ())} - judged.get(query, {}).keys()
        if names:
            left[query] = sorted(names)
            random.Random(query).shuffle(left[query])
    return left


def table(queries: Queries, found: Found, judged: Judgements) -> str:
    """Hits in the first five as Markdown: by category, then by query. Photos that were not judged are named below."""

    def cell(answers: Mapping[str, Sequence[str]], asked: Sequence[str]) -> str:
        verdicts = [judged.get(query, {}).get(name) for query in asked for name in answers[query]]
        missing = verdicts.count(None)
        return f"{verdicts.count(True)} of {len(verdicts)}" + (f", {missing} not judged" if missing else "")

    def row(name: str, asked: Sequence[str]) -> str:
        return f"| {name} | " + " | ".join(cell(answers, asked) for answers in found.values()) + " |"

    def head(name: str) -> list[str]:
        return [f"| {name} | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]

    everything = [query for asked in queries.values() for query in asked]
    lines = [*head("category"), *(row(f"{name} ({len(asked)})", list(asked)) for name, asked in queries.items())]
    lines += [
        row(f"**all** ({len(everything)})", everything),
        "",
        *head("query"),
        *(row(f'"{q}"', [q]) for q in everything),
    ]
    left = unjudged(found, judged)
    if left:
        lines += ["", f"Not judged: {sum(map(len, left.values()))} photos."]
        lines += [f'- "{query}": {", ".join(sorted(names))}' for query, names in left.items()]
    return "\n".join(lines)


def find(models: Mapping[str, str], data: Sequence[str], split: str, out: Path) -> None:
    """Encode the photos of a split with every model, search, and store the ids of the first five for each query."""
    from maxmatch import SetEncoder, top_hits
    from maxmatch.data.load import load_data
    from maxmatch.recipe.schema import Data

    photos = load_data(Data(path=tuple(data)), print).split(split)["image"]
    asked = [query for some in read_queries().values() for query in some]
    found = {}
    for name, folder in models.items():
        model = SetEncoder.from_pretrained(folder)
        sets = _encoded(model, photos.values, photos.ids, out / "sets")
        similarity = model.similarity_like(model.similarity_name)
        first = top_hits(model.encode_texts(asked), sets, FIRST, similarity).indices.tolist()
        found[name] = {
            query: [photos.ids[place] for place in places] for query, places in zip(asked, first, strict=True)
        }
    record = {"data": [Path(one).name for one in data], "split": split, "photos": len(photos), "found": found}
    (out / "found.json").write_text(json.dumps(record, indent=1), "utf-8")
    draw(out, dict(zip(photos.ids, photos.values, strict=True)))


def _encoded(model: Any, photos: Sequence[Any], ids: Sequence[str], folder: Path) -> np.ndarray:
    """The sets of all photos, a file of each chunk."""
    from maxmatch.core.files import whole
    from maxmatch.model.names import model_identity

    folder.mkdir(parents=True, exist_ok=True)
    made_by = f"{model_identity(model)} {model.config}"
    parts = []
    for start in range(0, len(photos), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        path = folder / (sha256("\n".join([made_by, *ids[chunk]]).encode()).hexdigest()[:24] + ".npy")
        if not path.exists():
            sets = model.encode_images(photos[chunk]).numpy()
            with whole(path) as file:
                np.save(file, sets)
        parts.append(np.load(path))
    return np.concatenate(parts)


def read_queries() -> dict[str, dict[str, str]]:
    queries: dict[str, dict[str, str]] = yaml.safe_load(QUERIES.read_text("utf-8"))
    return queries


def draw(out: Path, photos: Mapping[str, Any]) -> None:
    """A picture of each query with a row per model, and a sheet of each query's photos that are not judged."""
    found: Found = json.loads((out / "found.json").read_text("utf-8"))["found"]
    judged = read_judgements(JUDGEMENTS)
    left = unjudged(found, judged)
    meaning = {query: hit for asked in read_queries().values() for query, hit in asked.items()}
    pictures, sheets = out / "pictures", out / "unjudged"
    for folder in (pictures, sheets):
        folder.mkdir(exist_ok=True)
    for old in sheets.glob("[0-9][0-9]-*.webp"):
        old.unlink()
    for number, (query, hit) in enumerate(meaning.items(), 1):
        name = f"{number:02d}-{re.sub('[^a-z]+', '-', query.lower())}.webp"
        rows = [(model, answers[query]) for model, answers in found.items()]
        _sheet(query, rows, photos, judged.get(query, {})).save(pictures / name, quality=80)
        names = left.get(query, [])
        if names:
            rows = [(hit, names[start : start + FIRST]) for start in range(0, len(names), FIRST)]
            _sheet(query, rows, photos, {}, count_on=True).save(sheets / name, quality=80)
    (out / "unjudged.json").write_text(json.dumps(left, indent=1), "utf-8")


def _sheet(
    title: str,
    rows: Sequence[tuple[str, Sequence[str]]],
    photos: Mapping[str, Any],
    judged: Mapping[str, bool],
    count_on: bool = False,
) -> Image.Image:
    """Numbered photos in rows, each below its heading. count_on: a row counts on from the one before."""
    from maxmatch.model.images import load_image

    step = _SIDE + _GAP
    paper = Image.new("RGB", (FIRST * step + _GAP, _LINE + len(rows) * (step + _LINE)), "white")
    pen, font = ImageDraw.Draw(paper), ImageFont.load_default(18)
    pen.text((_GAP, 3), title, "black", font)
    number = 0
    for row, (name, ids) in enumerate(rows):
        top = _LINE + row * (step + _LINE)
        pen.text((_GAP, top + 2), name, "#444444", font)
        number = number if count_on else 0
        for column, one in enumerate(ids):
            number += 1
            left, upper = _GAP + column * step, top + _LINE
            photo = ImageOps.contain(load_image(photos[one]), (_SIDE - 8, _SIDE - 8))
            pen.rectangle((left, upper, left + _SIDE - 1, upper + _SIDE - 1), "#eeeeee", _COLOURS[judged.get(one)], 4)
            paper.paste(photo, (left + (_SIDE - photo.width) // 2, upper + (_SIDE - photo.height) // 2))
            pen.rectangle((left + 4, upper + 4, left + 30, upper + 28), "white")
            pen.text((left + 9, upper + 5), str(number), "black", font)
    return paper


def judge(out: Path, query: str, hits: Sequence[int]) -> None:
    """Record the judgement of one sheet of unjudged photos."""
    left = json.loads((out / "unjudged.json").read_text("utf-8"))
    if query not in left:
        raise SystemExit(f"{query!r}: nothing to judge. There is {', '.join(map(repr, left)) or 'no query left'}.")
    names = left.pop(query)
    if not set(hits) <= set(range(1, len(names) + 1)):
        raise SystemExit(f"{query!r}: expected numbers from 1 to {len(names)}, got {', '.join(map(str, hits))}.")
    judged = read_judgements(JUDGEMENTS)
    judged.setdefault(query, {}).update({name: number in hits for number, name in enumerate(names, 1)})
    write_judgements(JUDGEMENTS, judged)
    (out / "unjudged.json").write_text(json.dumps(left, indent=1), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    finding = verbs.add_parser("find")
    finding.add_argument("models", nargs="+", help="a name or folder, or LABEL=FOLDER")
    finding.add_argument(
        "--data",
        nargs="+",
        required=True,
        help="data sets in any format; the ids of photos begin with the name of the folder, as in coco/474",
    )
    finding.add_argument("--split", default="val")
    finding.add_argument("--out", type=Path, required=True)
    judging = verbs.add_parser("judge")
    judging.add_argument("out", type=Path)
    judging.add_argument("query")
    judging.add_argument("hits", nargs="*", type=int, help="numbers of the photos that are hits")
    verbs.add_parser("table").add_argument("out", type=Path)
    given = parser.parse_args()
    if given.verb == "judge":
        judge(given.out, given.query, given.hits)
        return
    if given.verb == "find":
        models = [model.rpartition("=") for model in given.models]
        find({label or Path(model).name: model for label, _, model in models}, given.data, given.split, given.out)
    found = json.loads((given.out / "found.json").read_text("utf-8"))["found"]
    print(table(read_queries(), found, read_judgements(JUDGEMENTS)))


if __name__ == "__main__":
    main()
