"""`evaluate_runs` and `analyse_run`: what `maxmatch evaluate` and `maxmatch analyse` do, from Python."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from maxmatch.core.array_checks import UsageError
from maxmatch.core.devices import chosen_device
from maxmatch.core.files import read_metrics
from maxmatch.core.progress import Bar, no_bar
from maxmatch.data.dataset import IMAGE, TEXT, Split
from maxmatch.data.extraction import check_features
from maxmatch.data.load import checked_words, load_data, words_met
from maxmatch.evaluation.analysis import Analysis, analyse, caption_facets
from maxmatch.evaluation.encoding import (
    EncodedSplit,
    GetItem,
    ModelSource,
    Say,
    encode_items,
    encode_model,
    find_model,
    find_models,
    left_out,
    load_encoded,
    load_for,
    log_line,
    paired,
    raw_items,
    save_encoded,
)
from maxmatch.evaluation.measures import Measures
from maxmatch.evaluation.metrics import EvaluatedModel, ProtocolName, Result, choose_pair
from maxmatch.evaluation.paper import ReportedRow, check_label, departures, paper_rows
from maxmatch.evaluation.result_tables import (
    Style,
    Table,
    as_data,
    captions_table,
    extended_table,
    rank_table,
    recall_table,
    render,
    sets_table,
    words_table,
)
from maxmatch.evaluation.significance import ResultLine, by_words, measure
from maxmatch.evaluation.slots import Attention, attention, check_installed, project
from maxmatch.matching import SIMILARITIES
from maxmatch.matching.similarity import with_options
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.inputs import PixelReader
from maxmatch.recipe.schema import Data

DataSource = str | Path | Data


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate_runs` found.

    lines: one for each model and similarity, then one for each ensemble. about: data and split, where they are known,
    and the numbers of images and captions. paper: the rows to compare with. by_words: for each line the captions with
    any of `words`, and those without. encoded: what each model made of the split.
    """

    lines: Sequence[ResultLine]
    about: Mapping[str, Any]
    notes: Sequence[str] = ()
    paper: Sequence[ReportedRow] = ()
    words: Collection[str] = ()
    by_words: Sequence[Mapping[str, Any]] = ()
    encoded: Sequence[EncodedSplit] = field(default=(), repr=False)

    @property
    def results(self) -> list[Result]:
        """The results alone: `results[0].figures["rsum"]`."""
        return [line.result for line in self.lines]

    def tables(self, measures: Measures = "rsum") -> list[Table]:
        """Recalls; ranks and collapse; CxC and ECCV Caption; captions with the words. Only those that were measured.

        measures: "all" for two more, of all captions of an image and the hardest one, and of the sets.
        """
        more = [captions_table(self.lines), sets_table(self.lines)] if measures == "all" else []
        made = [recall_table(self.lines, self.paper), rank_table(self.lines), *more, extended_table(self.lines)]
        *first, last = [table for table in made if table is not None]
        where = f"{self.about['data']}, {self.about['split']}: " if "data" in self.about else ""
        counts = f"{where}{self.about['images']:,} images, {self.about['captions']:,} captions"
        by_words = [words_table(self.by_words)] if self.by_words else []
        return [*first, replace(last, notes=[counts, *self.notes]), *by_words]

    def render(self, style: Style = "text", measures: Measures = "rsum") -> str:
        """The tables as text, Markdown or LaTeX."""
        return "\n\n".join(render(table, style) for table in self.tables(measures))

    def to_json(self) -> dict[str, Any]:
        """All figures, unrounded, as `maxmatch evaluate --json` prints them."""
        words = {"by_words": {"words": sorted(self.words), "results": list(self.by_words)}} if self.by_words else {}
        return as_data(self.lines, self.paper, **self.about, **words, notes=list(self.notes))


def evaluate_runs(
    models: str | Path | Sequence[str | Path],
    data: DataSource | None = None,
    *,
    split: str | None = None,
    similarity: str | Sequence[str] = (),
    ensemble: bool = False,
    protocol: ProtocolName = "auto",
    draws: int = 1000,
    paper: str | None = None,
    words: Collection[str] = (),
    save_sets: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    device: str | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    say: Say = log_line,
    bar: Bar = no_bar,
) -> Evaluation:
    """Measure how well one or several models retrieve; each item is encoded once for each model.

    Args:
        models: Runs (their best epoch is taken), checkpoints, names of models, or files written with `save_sets`.
        data: Data in any format. None: the data that the runs were trained on.
        split: None: the split that the run's recipe names, else "test", else "val".
        similarity: Names of similarities, or "all" that can compare the sets. None given: the one each model was
            trained with, then the others that the recipe of a run lists.
        ensemble: Also measure all models together, by the mean of their scores.
        protocol: "plain", "coco" (1K in five folds, and 5K), or "auto": "coco" if there are 5,000 images.
        draws: Bootstrap samples of the images for intervals and paired tests; 0 for none.
        paper: The label of the paper's table to compare with, "none", or None to recognise it.
        words: Also measure captions with any of these words separately.
        save_sets: A .safetensors file to keep what the (one) model made of the split.
        options: Changes to how the data is read, by the keys of a recipe's `data`: features, format, images, …
        device: None: a GPU if there is one.
        batch_size: Images encoded at once.
        workers: Processes that read pictures.
        say: Called with each message.
        bar: Opens a progress bar.

    Returns:
        The results, with `tables()`, `render()` and `to_json()`.

    Example:
        >>> found = evaluate_runs("runs/first")  # doctest: +SKIP
        >>> found.results[0].figures["rsum"]  # doctest: +SKIP
    """
    asked = [similarity] if isinstance(similarity, str) else similarity
    names = similarity_names(asked)
    check_label(paper)
    wanted = checked_words(words, "words") if words else frozenset()
    file = None if save_sets is None else Path(save_sets).expanduser()
    if file is not None and file.suffix != ".safetensors":
        raise UsageError(f"save_sets: expected a name that ends in .safetensors, got {file.name}.")
    sources = find_models([models] if isinstance(models, str | Path) else models, say)
    if file is not None and len(sources) > 1:
        raise UsageError("save_sets keeps the sets of one model: call it for each.")
    if ensemble and len(sources) < 2:
        raise UsageError("ensemble takes two models or more.")
    if all(source.kind == "sets" for source in sources):
        encoded, part = _stored(sources, data, split, options or {}, wanted, say), None
        about = {key: encoded[0].notes[key] for key in ("data", "split") if key in encoded[0].notes}
    else:
        loaded = load_for(sources, data, split, options, say=say)
        by_path = {
            source.path: encode_model(
                source, loaded, device=device, batch_size=batch_size, workers=workers, say=say, bar=bar
            )
            for source in {source.path: source for source in sources}.values()
        }
        encoded, part = [by_path[source.path] for source in sources], loaded.part
        about = {"data": str(loaded.dataset.path), "split": loaded.split}
    if file is not None:
        save_encoded(encoded[0], file)
        say(f"{save_sets}: sets written")
    pair = choose_pair(encoded[0].sets)
    if "all" in asked and any(one.sets[pair[0]].shape[1] != one.sets[pair[1]].shape[1] for one in encoded):
        names = [name for name in names if not SIMILARITIES[name].in_order]
    teams = [members(sources, encoded, name) for name in names] or [members(sources, encoded)]
    singles = [[member] for team in teams for member in team]
    singles += [] if names else _further(sources, encoded)
    lines, notes = measure([*singles, *(teams if ensemble else [])], pair, protocol, draws, measures="all")
    about |= {name: len(encoded[0].groups[side]) for name, side in zip(("images", "captions"), pair, strict=True)}
    theirs, paper_notes = _paper(paper, sources, about, lines)
    worded = by_words(lines, _captions_with(wanted, part, encoded[0]), draws) if part is not None and wanted else []
    return Evaluation(lines, about, [*notes, *paper_notes], theirs, wanted, worded, encoded)


def similarity_names(asked: Sequence[str]) -> list[str]:
    """The names of similarities, each once; "max" is "mil", and "all" all of them that compare sets of any size."""
    names = []
    for name in asked:
        name = {"max": "mil"}.get(name, name)
        if name != "all" and name not in SIMILARITIES:
            known = ", ".join([*SIMILARITIES, "max", "all"])
            raise UsageError(f"similarity: expected one of {known}, got {name!r}.")
        names += [one for one, entry in SIMILARITIES.items() if entry.set_size is None] if name == "all" else [name]
    return list(dict.fromkeys(names))


def members(
    sources: Sequence[ModelSource], encoded: Sequence[EncodedSplit], similarity: str | None = None
) -> list[EvaluatedModel]:
    """Models with their sets and a similarity, each by default with the one of its training and its options."""
    found = []
    for source, sets in zip(sources, encoded, strict=True):
        trained = sets.notes.get("similarity", "maxmatch")
        options = sets.notes.get("similarity_options", {}) if similarity in (None, trained) else {}
        if similarity not in (None, trained) and SIMILARITIES[trained].set_size is not None:
            raise UsageError(f"similarity: {source.name} makes sets that {trained} alone compares, got {similarity!r}.")
        found.append(EvaluatedModel(source.name, sets, with_options(similarity or trained, options)))
    return found


def _further(sources: Sequence[ModelSource], encoded: Sequence[EncodedSplit]) -> list[list[EvaluatedModel]]:
    """Each model with the similarities that its recipe lists beside the one of its training."""
    return [
        members([source], [sets], name)
        for source, sets in zip(sources, encoded, strict=True)
        for name in sets.notes.get("similarities", ())
        if name != sets.notes["similarity"]
    ]


def _stored(
    sources: Sequence[ModelSource],
    data: DataSource | None,
    split: str | None,
    options: Mapping[str, Any],
    words: Collection[str],
    say: Say,
) -> list[EncodedSplit]:
    """The sets of files alone: nothing can be asked for that takes the data."""
    encoded = [load_encoded(Path(source.path)) for source in sources]
    known = encoded[0].notes.get("split", split)
    if split not in (None, known):
        raise ValueError(f"split {split}: these sets are of {known!r}. Encode that split first.")
    if options:
        raise ValueError(
            f"{next(iter(options))}: changes how data is read, but files of sets are encoded already. Leave it out, "
            "or give the model and the data."
        )
    if words:
        raise UsageError("words: need captions, which files of sets do not hold. Give a model and the data.")
    if data is not None:
        say(f"{data}: not read; files of sets need no data")
    return encoded


def _captions_with(words: Collection[str], part: Split, encoded: EncodedSplit) -> np.ndarray:
    """Which captions of the encoded split have any of the words, in its order."""
    if TEXT not in encoded.ids:
        raise UsageError(f"words: need captions, but the models have {', '.join(encoded.ids)}.")
    captions = list(map(raw_items(part, encoded)[TEXT], range(len(encoded.ids[TEXT]))))
    return np.array([len(met) > 0 for met in words_met(captions, frozenset(words))], np.bool_)


def _paper(
    label: str | None, sources: Sequence[ModelSource], about: Mapping[str, Any], lines: Sequence[ResultLine]
) -> tuple[Sequence[ReportedRow], list[str]]:
    """The paper's rows to compare with, and a note about them."""
    recipes = [source.recipe.name for source in sources if source.recipe is not None]
    split = about.get("split")
    found = paper_rows(label, [*recipes, str(about.get("data", ""))], about["images"], split)
    if found is None:
        return [], []
    label, rows = found
    measured = [f"{prefix}rsum" for prefix in lines[0].result.galleries]
    rows = [row for row in rows if any(name in row.figures for name in measured)]
    if not rows:
        return [], [f"paper: {label} has no figures of this protocol"]
    elsewhere = "" if split is None or split.startswith("test") else f"; on the test split, ours on {split}"
    lacking = [
        f"{source.name}: {line}"
        for source in sources
        if source.recipe is not None
        for line in departures(source.recipe)
    ]
    return rows, [f"paper: {label}, its RSUM the sum of its cells{elsewhere}", *lacking]


class AnalysedRun(NamedTuple):
    """What `analyse_run` found, and where its report is."""

    analysis: Analysis
    report: Path


def analyse_run(
    model: str | Path,
    data: DataSource | None = None,
    out: str | Path | None = None,
    *,
    split: str | None = None,
    similarity: str | None = None,
    examples: int = 5,
    projection: str = "tsne",
    seed: int = 0,
    title: str | None = None,
    options: Mapping[str, Any] | None = None,
    device: str | None = None,
    batch_size: int = 64,
    say: Say = log_line,
    bar: Bar = no_bar,
) -> AnalysedRun:
    """Analyse what the slots of a model have learned, and write report.html, figures/ and analysis.json.

    Args:
        model: A run (its best epoch is taken), a checkpoint or the name of a model.
        data: Data in any format. None: the data that the run was trained on.
        out: The report's folder. None: analysis/ in the run, or analysis-NAME here.
        split: None: the split that the run's recipe names, else "test", else "val".
        similarity: None: the one of training.
        examples: Queries and failures shown in each direction.
        projection: "tsne" or "umap".
        seed: Of the examples drawn, and of the projection.
        title: The model's name in the report.
        options: Changes to how the data is read, by the keys of a recipe's `data`: features, format, images, …
        device: None: a GPU if there is one.
        batch_size: Images encoded at once.
        say: Called with each message.
        bar: Opens a progress bar.

    Returns:
        The analysis, and the path of the report.

    Example:
        >>> analyse_run("runs/first").report  # doctest: +SKIP
    """
    from maxmatch.evaluation.report.make_report import check_plots, refuse_foreign, write_report

    where = chosen_device(device)
    if projection == "umap":
        say("UMAP is deprecated and will be removed in 0.2: leave out --umap for t-SNE.")
    check_plots()
    check_installed(projection)
    names = similarity_names([similarity] if similarity else [])
    if len(names) > 1:
        raise UsageError("similarity: a report is made with one, got 'all'.")
    (source,) = find_models([model], say)
    if source.kind != "checkpoint" or (isinstance(data, str | Path) and find_model(data) is not None):
        raise ValueError("MODEL: expected one checkpoint or run, then DATA: a report is about one model and its data.")
    run = Path(source.path).parent
    default = run / "analysis" if source.recipe is not None else f"analysis-{Path(source.path).resolve().name}"
    folder = Path(out or default).expanduser()
    refuse_foreign(folder)
    preferred = [] if source.recipe is None else [source.recipe.evaluate.split]
    loaded = load_for([source], data, split, options, preferred, say)
    visible = loaded.part
    if loaded.described.features is not None:  # show the pictures that the features were made of
        pictures = load_data(loaded.described.model_copy(update={"features": None}), lambda line: None)
        visible = pictures.split(loaded.split)
    say(f"{source.path} on {loaded.part.size:,} images of {loaded.dataset.path}, split {loaded.split!r}")
    encoder = SetEncoder.from_pretrained(source.path, where)
    if SIMILARITIES[encoder.similarity_name].set_size is not None:
        raise UsageError(
            f"{source.path}: a report is about the slots of sets, which a model compared by {encoder.similarity_name} "
            "does not have. Use `maxmatch evaluate`."
        )
    check_features(encoder, loaded.described, loaded.dataset)
    pair = choose_pair(encoder.towers)
    with bar("encoding", loaded.part.size) as advance:
        encoded = encode_items(encoder, loaded.part, batch_size=batch_size, report=left_out(say), advance=advance)
    say("measuring")
    chosen = names[0] if names else encoder.similarity_name
    found = analyse(
        encoded,
        pair,
        chosen,
        options=encoder.similarity_options if chosen == encoder.similarity_name else {},
        facets=caption_facets(loaded.part, encoded, pair),
        examples=examples,
        worst=examples,
        seed=seed,
    )
    items = raw_items(visible, encoded)
    looks, seen = _looks(encoder, found, items, encoded, say)
    say("drawing")
    try:
        projected = project(paired(encoded, pair), method=projection, seed=seed)
    except ValueError as error:  # too few vectors
        say(f"{error} The report does without it.")
        projected = None
    report = write_report(
        found,
        folder,
        title=title or source.name,
        facts={"model": source.path, "data": str(loaded.dataset.path), "split": loaded.split},
        items=items,
        projection=projected,
        attention=looks,
        seen=seen,
        records=read_metrics(run),
    )
    return AnalysedRun(found, report)


def _looks(
    model: SetEncoder, found: Analysis, items: Mapping[str, GetItem], encoded: EncodedSplit, say: Say
) -> tuple[Attention | None, list[Image.Image | None]]:
    """What the slots look at in the images that are shown as examples, each with the first of its captions; and of
    each image what the model sees of it.
    """
    from maxmatch.evaluation.report.make_report import picture_of

    if found.pair != (IMAGE, TEXT):
        return None, []
    groups, texts = encoded.groups[IMAGE].tolist(), encoded.groups[TEXT].tolist()
    shown = [example.item for example in found.by_slot[0].examples]
    images = [items[IMAGE](place) for place in shown]
    captions = [items[TEXT](texts.index(groups[place])) for place in shown]
    reader = model.tower(IMAGE).reader
    seen: list[Image.Image | None] = [None] * len(shown)
    if isinstance(reader, PixelReader):
        if any(picture_of(image) is None for image in images):
            say("the pictures are missing: the report does not show what slots look at")
            return None, []
        seen = [reader.transform.unsquashed(image) for image in images]
    try:
        return attention(model, images, captions), seen
    except ValueError as error:  # a head of another kind, that has no attention to show
        say(f"{error} The report does without it.")
        return None, []
