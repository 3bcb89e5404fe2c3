"""`evaluate_runs` and `analyse_run`: what `maxmatch evaluate` and `maxmatch analyse` do, from Python."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maxmatch.core.array_checks import UsageError
from maxmatch.core.devices import chosen_device
from maxmatch.core.progress import Bar, no_bar
from maxmatch.data.dataset import TEXT, Split
from maxmatch.data.load import checked_words, load_data, words_met
from maxmatch.evaluation.analysis import Analysis
from maxmatch.evaluation.encoding import (
    EncodedSplit,
    ModelSource,
    Say,
    encode_model,
    find_model,
    find_models,
    load_encoded,
    load_for,
    log_line,
    save_encoded,
)
from maxmatch.evaluation.metrics import (
    FOLD_SIZE,
    IMAGE_TEXT,
    LEVELS,
    MAX_MEMORY,
    EvaluatedModel,
    ModalityPair,
    NotCoco,
    ProtocolName,
    Result,
    SearchRanks,
    check_members,
    choose_pair,
    chosen,
    evaluate,
    extended,
    load_metrics,
    scores_of,
)
from maxmatch.evaluation.paper import ReportedRow, check_label, paper_rows
from maxmatch.evaluation.result_tables import (
    GALLERIES,
    WORD_RECALLS,
    ByWords,
    CaptionRecalls,
    Ratio,
    ResultLine,
    Style,
    Table,
    as_data,
    extended_table,
    rank_table,
    recall_table,
    render,
    words_data,
    words_table,
)
from maxmatch.evaluation.significance import Interval, Sums, intervals, paired_test, resampled
from maxmatch.matching import SIMILARITIES
from maxmatch.matching.similarity import with_options
from maxmatch.model.encoder import SetEncoder
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
    by_words: Sequence[ByWords] = ()
    encoded: Sequence[EncodedSplit] = field(default=(), repr=False)

    @property
    def results(self) -> list[Result]:
        """The results alone: `results[0].figures["rsum"]`."""
        return [line.result for line in self.lines]

    def tables(self) -> list[Table]:
        """Recalls; ranks and collapse; CxC and ECCV Caption; captions with the words. Only those that were measured."""
        made = [recall_table(self.lines, self.paper), rank_table(self.lines), extended_table(self.lines)]
        *first, last = [table for table in made if table is not None]
        where = f"{self.about['data']}, {self.about['split']}: " if "data" in self.about else ""
        counts = f"{where}{self.about['images']:,} images, {self.about['captions']:,} captions"
        by_words = [words_table(self.by_words)] if self.by_words else []
        return [*first, replace(last, notes=[counts, *self.notes]), *by_words]

    def render(self, style: Style = "text") -> str:
        """The tables as text, Markdown or LaTeX."""
        return "\n\n".join(render(table, style) for table in self.tables())

    def to_json(self) -> dict[str, Any]:
        """All figures, unrounded, as `maxmatch evaluate --json` prints them."""
        words = {"by_words": words_data(self.by_words, sorted(self.words))} if self.by_words else {}
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
        similarity: Names of similarities, or "all". None given: the one each model was trained with.
        ensemble: Also measure all models together, by the mean of their scores.
        protocol: "plain", "coco" (1K in five folds, and 5K), or "auto": "coco" where there are 5,000 images.
        draws: Bootstrap samples of the images for intervals and paired tests; 0 for none.
        paper: The label of the paper's table to compare with, "none", or None to recognise it.
        words: Also measure captions with any of these words separately.
        save_sets: A .safetensors file to keep what the (one) model made of the split.
        options: Changes to how the data is read, by the keys of a recipe's `data`: features, format, images, …
        device: None: a GPU where there is one.
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
    names = similarity_names([similarity] if isinstance(similarity, str) else similarity)
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
    teams = [members(sources, encoded, name) for name in names] or [members(sources, encoded)]
    pair = choose_pair(encoded[0].sets)
    singles = [[member] for team in teams for member in team]
    lines, notes = measure([*singles, *(teams if ensemble else [])], pair, protocol, draws)
    about |= {name: len(encoded[0].groups[side]) for name, side in zip(("images", "captions"), pair, strict=True)}
    theirs, paper_notes = _paper(paper, sources, about, lines)
    by_word = by_words(lines, _captions_with(wanted, part, encoded[0]), draws) if part is not None and wanted else []
    return Evaluation(lines, about, [*notes, *paper_notes], theirs, wanted, by_word, encoded)


def similarity_names(asked: Sequence[str]) -> list[str]:
    """The names of similarities, each once; "max" is "mil", and "all" all of them."""
    names = []
    for name in asked:
        name = {"max": "mil"}.get(name, name)
        if name != "all" and name not in SIMILARITIES:
            known = ", ".join([*SIMILARITIES, "max", "all"])
            raise UsageError(f"similarity: expected one of {known}, got {name!r}.")
        names += list(SIMILARITIES) if name == "all" else [name]
    return list(dict.fromkeys(names))


def members(
    sources: Sequence[ModelSource], encoded: Sequence[EncodedSplit], similarity: str | None = None
) -> list[EvaluatedModel]:
    """Models with their sets and a similarity, each by default with the one of its training and its options."""
    found = []
    for source, sets in zip(sources, encoded, strict=True):
        trained = sets.notes.get("similarity", "maxmatch")
        options = sets.notes.get("similarity_options", {}) if similarity in (None, trained) else {}
        found.append(EvaluatedModel(source.name, sets, with_options(similarity or trained, options)))
    return found


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
    texts = part[TEXT]
    places = {str(name): place for place, name in enumerate(texts.ids)}
    captions = [texts.values[places[name]] for name in encoded.ids[TEXT]]
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
    return rows, [f"paper: {label}, its RSUM the sum of its cells{elsewhere}"]


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
        device: None: a GPU where there is one.
        batch_size: Images encoded at once.
        say: Called with each message.
        bar: Opens a progress bar.

    Returns:
        The analysis, and the path of the report.

    Example:
        >>> analyse_run("runs/first").report  # doctest: +SKIP
    """
    from maxmatch.evaluation.report.make_report import ReportOptions, check_installed, make_report, refuse_foreign

    where = chosen_device(device)
    if projection == "umap":
        say("UMAP is deprecated and will be removed in 0.2: leave out --umap for t-SNE.")
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
    with bar("encoding", loaded.part.size) as advance:
        found, page = make_report(
            SetEncoder.from_pretrained(source.path, where),
            loaded.part,
            visible,
            folder,
            ReportOptions(names[0] if names else None, examples, projection, seed, batch_size),
            title=title or source.name,
            facts={"model": source.path, "data": str(loaded.dataset.path), "split": loaded.split},
            run=run,
            say=say,
            advance=advance,
        )
    return AnalysedRun(found, page)


# Several models, ensembles and similarities on one split: each measured, and compared with the first.

SEED = 0
"""Of what is drawn for intervals and tests, so that a result has the same ones every time."""


def measure(
    teams: Sequence[Sequence[EvaluatedModel]],
    pair: ModalityPair = IMAGE_TEXT,
    protocol: ProtocolName = "auto",
    draws: int = 1000,
    max_memory: int = MAX_MEMORY,
    fold_size: int = FOLD_SIZE,
    extended_coco: bool = True,
) -> tuple[list[ResultLine], list[str]]:
    """A line for each team, of one model or of an ensemble, with intervals and a test against the first; and notes.

    draws: of images, for both; 0 for none. extended_coco: also CxC and ECCV Caption, with the protocol "coco". All
    teams must hold the same items.
    """
    first = teams[0][0]
    check_members([first, *(member for team in teams for member in team)], pair)
    size = first.encoded.notes.get("groups")
    coco = chosen(protocol, first.encoded.groups[pair[0]], fold_size, size) == "coco"
    metrics, notes = _coco_metrics() if coco and extended_coco and pair == IMAGE_TEXT else (None, [])
    results = []
    for team in teams:
        scores = scores_of(team, pair, max_memory)
        result = evaluate(team, pair=pair, protocol=protocol, scores=scores, fold_size=fold_size)
        if metrics is not None:
            try:
                images, captions = (first.encoded.ids.get(name, ()) for name in pair)
                more = extended(scores, images, captions, metrics)
                result = replace(result, figures={**result.figures, **more})
            except NotCoco as error:
                metrics, notes = None, [f"CxC and ECCV Caption were not measured: {error}"]
        results.append(result)
        del scores  # before the next ones are made: one matrix is what is promised
    return [_line(result, None if n == 0 else results[0], draws) for n, result in enumerate(results)], notes


def _coco_metrics() -> tuple[Any, list[str]]:
    try:
        return load_metrics(), []
    except ImportError as error:
        return None, [str(error)]


def _line(result: Result, first: Result | None, draws: int) -> ResultLine:
    if not draws:
        return ResultLine(result)
    sure = {prefix: intervals(some, draws, np.random.default_rng(SEED)) for prefix, some in result.galleries.items()}
    if first is None:
        return ResultLine(result, sure)
    differences = {
        prefix: paired_test(first.galleries[prefix], some, draws, np.random.default_rng(SEED))
        for prefix, some in result.galleries.items()
    }
    return ResultLine(result, sure, differences)


# Captions with certain words, such as words that a model has never seen, and captions without.


def by_words(lines: Sequence[ResultLine], met: np.ndarray, draws: int = 1000) -> list[ByWords]:
    """Each line's figures for the captions with the words (met: True, one for each caption of the split) and without.

    With folds, a caption counts where it is a query: all captions of all folds together. Intervals are by bootstrap
    over the images that have such captions; draws = 0 for none.
    """
    for wanted, which in ((met, "any"), (~met, "none")):
        if not wanted.any():
            raise ValueError(f"words: no caption of the split has {which} of the words: there is nothing to compare.")
    found = []
    for prefix in lines[0].result.galleries:
        first = lines[0].result.galleries[prefix]
        for number, line in enumerate(lines):
            galleries = line.result.galleries[prefix]
            having, others = (_side(galleries, wanted, draws) for wanted in (met, ~met))
            ratio = _ratio(first, galleries, met, draws) if number else None
            result = line.result
            found.append(ByWords(result.name, result.similarity, GALLERIES[prefix], having, others, ratio))
    return found


def _side(galleries: Sequence[SearchRanks], wanted: np.ndarray, draws: int) -> CaptionRecalls:
    sums = _sums(galleries, wanted)
    recalls = 100 * sums.found.sum(0) / sums.asked.sum(0)
    sure = {}
    if draws:
        drawn = resampled([sums], draws, np.random.default_rng(SEED))
        sure = {name: _interval(drawn[:, n]) for n, name in enumerate(WORD_RECALLS)}
    return CaptionRecalls(int(wanted.sum()), {name: float(recalls[n]) for n, name in enumerate(WORD_RECALLS)}, sure)


def _ratio(first: Sequence[SearchRanks], second: Sequence[SearchRanks], met: np.ndarray, draws: int) -> Ratio | None:
    """Both models are measured on the same drawn images. Drawings in which the second finds nothing are left out."""
    one, other = (_sums(galleries, met) for galleries in (first, second))
    last = len(LEVELS) - 1
    hits = one.found[:, last].sum(), other.found[:, last].sum()
    if not hits[1]:
        return None
    if not draws:
        return Ratio(float(hits[0] / hits[1]), None, None)
    both = Sums(np.stack([one.found[:, last], other.found[:, last]], 1), one.asked[:, :2])
    drawn = resampled([both], draws, np.random.default_rng(SEED))
    drawn = drawn[drawn[:, 1] > 0]
    return Ratio(float(hits[0] / hits[1]), *_interval(drawn[:, 0] / drawn[:, 1]))


def _interval(drawn: np.ndarray) -> Interval:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(low), float(high))


def _sums(galleries: Sequence[SearchRanks], wanted: np.ndarray) -> Sums:
    """The captions that found their image, by the image that they belong to; images without such captions left out."""
    ranks = np.concatenate([gallery.t2i.ranks.cpu().numpy() for gallery in galleries])
    groups = np.concatenate([gallery.text_groups.cpu().numpy() for gallery in galleries])
    assert len(ranks) == len(wanted), "one answer is needed for each caption"
    place = np.unique(groups[wanted], return_inverse=True)[1]
    found = np.stack([np.bincount(place, ranks[wanted] <= level) for level in LEVELS], 1)
    return Sums(found, np.repeat(np.bincount(place).astype(float)[:, None], len(LEVELS), 1))
