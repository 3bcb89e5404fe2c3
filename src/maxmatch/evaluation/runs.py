"""`evaluate_runs` and `analyse_run`: what `maxmatch evaluate` and `maxmatch analyse` do, from Python."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from maxmatch.core.array_checks import UsageError
from maxmatch.core.devices import chosen_device
from maxmatch.core.files import read_metrics
from maxmatch.core.progress import Bar, no_bar
from maxmatch.data.dataset import IMAGE, TEXT
from maxmatch.data.extraction import check_features
from maxmatch.data.load import checked_words, load_data, words_met
from maxmatch.evaluation.analysis import Analysis, analyse, caption_facets
from maxmatch.evaluation.candidates import (
    Candidate,
    ModelName,
    candidates_of,
    further,
    members,
    similarity_names,
    sources_of,
    stored_candidates,
)
from maxmatch.evaluation.encoding import (
    EncodedSplit,
    GetItem,
    ModelSource,
    Say,
    encode_items,
    find_model,
    find_models,
    left_out,
    load_for,
    log_line,
    paired,
    raw_items,
    save_encoded,
)
from maxmatch.evaluation.labels import Labels, pmrp_figures
from maxmatch.evaluation.leaderboard import append_record, data_digest, identity_of, new_record
from maxmatch.evaluation.measures import Measures
from maxmatch.evaluation.metrics import (
    FOLD_SIZE,
    FOLDS,
    EvaluatedModel,
    ProtocolName,
    Result,
    choose_pair,
    scores_of,
)
from maxmatch.evaluation.other_models import read_groups
from maxmatch.evaluation.paper import ReportedRow, check_label, departures, paper_rows
from maxmatch.evaluation.result_tables import (
    Style,
    Table,
    as_data,
    captions_table,
    extended_table,
    pmrp_table,
    rank_table,
    recall_table,
    render,
    sets_table,
    words_table,
)
from maxmatch.evaluation.significance import ResultLine, by_words, measure
from maxmatch.evaluation.slots import Attention, attention, check_installed, project
from maxmatch.evaluation.weak_spots import (
    By,
    Part,
    case_data,
    case_tables,
    part_table,
    parts_by_label,
    parts_by_length,
    parts_by_words,
    recalls_by_part,
    worst_cases,
)
from maxmatch.matching import SIMILARITIES
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.inputs import PixelReader
from maxmatch.recipe.schema import Data

DataSource = str | Path | Data
RetrievalSuite = Literal["cxc", "eccv", "pmrp"]


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate_runs` found.

    lines: one for each model and similarity, then one for each ensemble. about: data and split, where they are known,
    and the numbers of images and captions. paper: the rows to compare with. by_words: for each line the captions with
    any of `words`, and those without. encoded: what each model made of the split. by: recalls by parts of the queries,
    by what divides them. worst: for each line its worst queries, by direction.
    """

    lines: Sequence[ResultLine]
    about: Mapping[str, Any]
    notes: Sequence[str] = ()
    paper: Sequence[ReportedRow] = ()
    words: Collection[str] = ()
    by_words: Sequence[Mapping[str, Any]] = ()
    encoded: Sequence[EncodedSplit] = field(default=(), repr=False)
    by: Mapping[By, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    worst: Sequence[Mapping[str, Sequence[Mapping[str, Any]]]] = ()
    items: Mapping[str, GetItem] = field(default_factory=dict, repr=False)

    @property
    def results(self) -> list[Result]:
        """The results alone: `results[0].figures["rsum"]`."""
        return [line.result for line in self.lines]

    def tables(self, measures: Measures = "rsum", cases: bool = True) -> list[Table]:
        """Recalls; ranks and collapse; CxC and ECCV Caption; captions with the words; parts of the queries; the worst
        queries. Only those that were measured.

        measures: "all" for two more, of all captions of an image and the hardest one, and of the sets. cases: False
        leaves out the worst queries.
        """
        more = [captions_table(self.lines), sets_table(self.lines)] if measures == "all" else []
        made = [recall_table(self.lines, self.paper), rank_table(self.lines), *more, extended_table(self.lines)]
        made.append(pmrp_table(self.lines))
        *first, last = [table for table in made if table is not None]
        where = ", ".join(str(self.about[key]) for key in ("data", "split") if key in self.about)
        where = f"{where}: " if where else ""
        counts = f"{where}{self.about['images']:,} images, {self.about['captions']:,} captions"
        by_words = [words_table(self.by_words)] if self.by_words else []
        parts = [part_table(by, found) for by, found in self.by.items()]
        worst = [
            table
            for line, some in zip(self.lines, self.worst, strict=bool(self.worst))
            for table in case_tables(line.result.name, some)
        ]
        return [*first, replace(last, notes=[counts, *self.notes]), *by_words, *parts, *(worst if cases else ())]

    def render(self, style: Style = "text", measures: Measures = "rsum") -> str:
        """The tables as text, Markdown or LaTeX."""
        return "\n\n".join(render(table, style) for table in self.tables(measures))

    def to_json(self) -> dict[str, Any]:
        """All figures, unrounded, as `maxmatch evaluate --json` prints them."""
        words = {"by_words": {"words": sorted(self.words), "results": list(self.by_words)}} if self.by_words else {}
        more: dict[str, Any] = {"by": {by: list(found) for by, found in self.by.items()}} if self.by else {}
        if self.worst:
            more["worst"] = [
                {"model": line.result.name, "similarity": line.result.similarity, **worst}
                for line, worst in zip(self.lines, self.worst, strict=True)
            ]
        return as_data(self.lines, self.paper, **self.about, **words, **more, notes=list(self.notes))


def evaluate_runs(
    models: str | Path | Sequence[ModelName],
    data: DataSource | None = None,
    *,
    split: str | None = None,
    similarity: str | Sequence[str] = (),
    ensemble: bool = False,
    protocol: ProtocolName = "auto",
    draws: int = 1000,
    paper: str | None = None,
    words: Collection[str] = (),
    by: Sequence[By] = (),
    suite: RetrievalSuite | None = None,
    labels: str | Path | None = None,
    worst: int = 0,
    groups: str | Path | None = None,
    results: str | Path | None = None,
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
        models: Runs (their best epoch is taken), checkpoints, names of models, or files written with `save_sets`. Of
            other libraries: folders of sentence-transformers, folders with images.npy and texts.npy (vectors or sets,
            rows in the order of the data; or a pair of such files), .npy files of scores (images, texts).
        data: Data in any format. None: the data that the runs were trained on.
        split: None: the split that the run's recipe names, else "test", else "val".
        similarity: Names of similarities, or "all" that can compare the sets. None given: the one each model was
            trained with, then the others that the recipe of a run lists.
        ensemble: Also measure all models together, by the mean of their scores.
        protocol: "plain", "coco" (1K in five folds, and 5K), or "auto": "coco" if there are 5,000 images.
        draws: Bootstrap samples of the images for intervals and paired tests; 0 for none.
        paper: The label of the paper's table to compare with, "none", or None to recognise it.
        words: Also measure captions with any of these words separately.
        by: Also recalls by the "length" of captions, by their "words", or by "label": what the images show.
        suite: Demand "cxc" or "eccv" (COCO's test split with the answers its captions miss), or measure "pmrp" too.
        labels: For "label" and "pmrp", which image shows what: a JSON file, see `maxmatch.evaluation.labels.Labels`.
        worst: Also so many of the worst queries of each model, both ways.
        groups: In place of data, for vectors and scores: a JSON file with the group of each image and text, see
            `maxmatch.evaluation.other_models.read_groups`.
        results: A file to append the results to, one JSON object per line, see `maxmatch.evaluation.leaderboard`.
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
    for option, needs in (("by label", "label" in by), ("suite pmrp", suite == "pmrp")):
        if needs and labels is None:
            raise UsageError(f"{option}: needs a file that says what images show. Give it: --labels FILE.")
    known_labels = None if labels is None else Labels.read(labels)
    protocol = "coco" if suite in ("cxc", "eccv") else protocol
    if groups is not None and data is not None:
        raise UsageError(f"groups: stands in place of the data, but {data} was given too. Leave one of them out.")
    sources = sources_of(models, say)
    if file is not None and len(sources) > 1:
        raise UsageError("save_sets keeps the sets of one model: call it for each.")
    if ensemble and len(sources) < 2:
        raise UsageError("ensemble takes two models or more.")
    loaded = None
    if groups is None and all(source.kind == "sets" for source in sources):
        candidates = stored_candidates(sources, data, split, options or {}, wanted or by, say)
        about = {
            key: candidates[0].encoded.notes[key] for key in ("data", "split") if key in candidates[0].encoded.notes
        }
    else:
        if groups is None:
            loaded = load_for(sources, data, split, options, say=say)
            about = {"data": str(loaded.dataset.path), "split": loaded.split}
            if suite in ("cxc", "eccv") and loaded.part.size != FOLDS * FOLD_SIZE:
                raise UsageError(
                    f"suite {suite}: is about COCO's test split of {FOLDS * FOLD_SIZE:,} images, read from Karpathy's "
                    f"dataset_coco.json, but the split {loaded.split!r} of {about['data']} has {loaded.part.size:,}."
                )
        else:
            about = {"data": str(groups)}
        candidates = candidates_of(
            sources, loaded, groups, device=device, batch_size=batch_size, workers=workers,
            identify=results is not None or save_sets is not None, say=say, bar=bar,
        )  # fmt: skip
    encoded = [one.encoded for one in candidates]
    part = None if loaded is None else loaded.part
    items: dict[str, GetItem] = {} if part is None else dict(raw_items(part, encoded[0]))
    if groups is not None and (captions := read_groups(groups).captions) is not None:
        items[TEXT] = captions.__getitem__
    if file is not None:
        _keep(encoded[0], items, file)
        say(f"{save_sets}: sets written")
    pair = choose_pair(encoded[0].groups)
    if "all" in asked and any(one.sets[pair[0]].shape[1] != one.sets[pair[1]].shape[1] for one in encoded if one.sets):
        names = [name for name in names if not SIMILARITIES[name].in_order]
    teams = [members(candidates, name) for name in names] or [members(candidates)]
    singles = [[member] for number, team in enumerate(teams) for member in team if not number or member.given is None]
    singles += [] if names else further(candidates)
    all_teams = [*singles, *(teams if ensemble else [])]
    lines, notes = measure(all_teams, pair, protocol, draws, measures="all")
    if suite == "pmrp" and known_labels is not None:
        lines = _with_pmrp(lines, all_teams, pair, known_labels, protocol)
    elif suite is not None and not any(name.startswith(f"{suite}_") for name in lines[0].result.figures):
        raise UsageError(f"suite {suite}: {' '.join(notes)}")
    about |= {name: len(encoded[0].groups[side]) for name, side in zip(("images", "captions"), pair, strict=True)}
    theirs, paper_notes = _paper(paper, sources, about, lines)
    worded = by_words(lines, _captions_with(wanted, items, encoded[0]), draws) if wanted else []
    parts = {one: _parts(one, items, encoded[0], known_labels) for one in dict.fromkeys(by)}
    found = Evaluation(
        lines,
        about,
        [*notes, *paper_notes],
        theirs,
        wanted,
        worded,
        encoded,
        by={one: recalls_by_part(lines, some, draws) for one, some in parts.items()},
        worst=_worst(all_teams, lines, pair, worst, items) if worst else (),
        items=items,
    )
    if results is not None:
        _record(found, all_teams, candidates, results, known_labels)
    return found


def _keep(encoded: EncodedSplit, items: Mapping[str, GetItem], file: Path) -> None:
    """Write sets to a file, with the digest of the data that they are of."""
    if not encoded.sets or encoded.masks:
        raise UsageError(f"save_sets: {encoded.notes.get('model', 'the model')} has no sets of one size to keep.")
    captions = _captions(items, encoded, "save_sets") if TEXT in items and TEXT in encoded.groups else None
    save_encoded(replace(encoded, notes={**encoded.notes, "digest": data_digest(encoded, captions)}), file)


def _record(
    found: Evaluation,
    teams: Sequence[Sequence[EvaluatedModel]],
    candidates: Sequence[Candidate],
    path: str | Path,
    labels: Labels | None,
) -> None:
    """Append every line to a file of results; PMRP as a result of its own, which depends on the labels as well."""
    known = {id(one.encoded): identity_of(one.source, one.encoded) for one in candidates}
    first = found.encoded[0]
    captions = _captions(found.items, first, "results") if TEXT in found.items else None
    digest = first.notes.get("digest") or data_digest(first, captions)
    counts = {key: found.about[key] for key in ("images", "captions")}
    data = {"path": found.about.get("data"), "split": found.about.get("split"), "digest": digest, **counts}
    for line, team in zip(found.lines, teams, strict=True):
        one = line.result
        protocol = "plain" if "" in one.galleries else "coco"
        identity = " + ".join(known[id(member.encoded)] for member in team)
        by_labels = {name: value for name, value in one.figures.items() if name.endswith("_pmrp")}
        figures = {name: value for name, value in one.figures.items() if name not in by_labels}
        append_record(path, new_record(one.name, identity, one.similarity, data, protocol, figures))
        if by_labels and labels is not None:
            shown = [digest, labels.names, labels.codes(first.ids[IMAGE]).astype(int).tolist()]
            where = {**data, "digest": hashlib.sha256(json.dumps(shown).encode()).hexdigest()}
            suite = "pmrp" if protocol == "plain" else f"{protocol} pmrp"
            append_record(path, new_record(one.name, identity, one.similarity, where, suite, by_labels))


def _with_pmrp(
    lines: Sequence[ResultLine],
    teams: Sequence[Sequence[EvaluatedModel]],
    pair: tuple[str, str],
    labels: Labels,
    protocol: ProtocolName,
) -> list[ResultLine]:
    """The lines with PMRP among their figures."""
    if pair != (IMAGE, TEXT):
        raise UsageError(f"suite pmrp: is about images and texts, but the models have {' and '.join(pair)}.")
    added = [pmrp_figures(scores_of(team, pair), team[0].encoded, labels, protocol) for team in teams]
    results = [
        replace(line.result, figures={**line.result.figures, **more}) for line, more in zip(lines, added, strict=True)
    ]
    return [replace(line, result=result) for line, result in zip(lines, results, strict=True)]


def _parts(by: By, items: Mapping[str, GetItem], encoded: EncodedSplit, labels: Labels | None) -> list[Part]:
    """The queries in parts."""
    if by == "label":
        assert labels is not None
        sides = [encoded.groups[name].cpu().numpy() for name in (IMAGE, TEXT)]
        parts = parts_by_label(labels, encoded.ids.get(IMAGE, ()), *sides)
    else:
        captions = _captions(items, encoded, f"by {by}")
        parts = parts_by_length(captions) if by == "length" else parts_by_words(captions)
    if not parts:
        raise UsageError(f"by {by}: nothing occurs often enough in this data to be measured separately.")
    return parts


def _worst(
    teams: Sequence[Sequence[EvaluatedModel]],
    lines: Sequence[ResultLine],
    pair: tuple[str, str],
    count: int,
    items: Mapping[str, GetItem],
) -> list[dict[str, list[dict[str, Any]]]]:
    """The worst queries of each line, with captions and ids."""
    ids = teams[0][0].encoded.ids

    def describe(modality: str, place: int) -> str:
        name = pair[0 if modality == IMAGE else 1]
        value = items[name](place) if name == TEXT and name in items else None
        return value if isinstance(value, str) else ids[name][place] if name in ids else str(place)

    return [
        case_data(worst_cases(scores_of(team, pair), line.result, count), describe)
        for team, line in zip(teams, lines, strict=True)
    ]


def _captions(items: Mapping[str, GetItem], encoded: EncodedSplit, option: str) -> list[str]:
    """The captions of an encoded split, in its order."""
    if TEXT not in items:
        known = ", ".join(items) or "no items: add captions to the groups file, or give the data"
        raise UsageError(f"{option}: need captions, but the models have {known}.")
    return [str(items[TEXT](place)) for place in range(len(encoded.groups[TEXT]))]


def _captions_with(words: Collection[str], items: Mapping[str, GetItem], encoded: EncodedSplit) -> np.ndarray:
    """Which captions of the encoded split have any of the words, in its order."""
    captions = _captions(items, encoded, "words")
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
