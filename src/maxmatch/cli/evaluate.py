"""`maxmatch evaluate`: measure how well models retrieve."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from maxmatch.cli.common import say, usage_errors

# What queries are divided by. Typer takes lists of an enum, not of literals.
By = StrEnum("By", {"LENGTH": "length", "WORDS": "words", "LABEL": "label"})


SuiteName = Literal["sugarcrepe", "aro", "contrast", "winoground", "labels", "pmrp", "cxc", "eccv"]
_ON_PAGE = 10  # worst queries


def evaluate(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            help="Models: checkpoints, runs (their best epoch is used), files written by --save-sets, models of "
            "transformers or sentence-transformers, folders with images.npy and texts.npy, or .npy files of scores. "
            "Then the data, in any format; for a run, the default is its own data.",
            metavar="MODEL… [DATA]",
        ),
    ] = None,
    scores: Annotated[
        list[Path] | None,
        typer.Option(help="A .npy file with the score of every image (row) and every text (column). Repeatable."),
    ] = None,
    embeddings: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            help="Two .npy files: vectors (n, D) or sets (n, K, D) of images and texts, in the order of the data.",
            metavar="IMAGES TEXTS",
        ),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            help='For scores and embeddings, instead of DATA: a JSON file {"images": [group of each], "texts": […]}.'
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="The split to measure on. Default: test, or val if there is no test.")
    ] = None,
    similarity: Annotated[
        list[str] | None,
        typer.Option(
            help="maxmatch, top_k, max, sinkhorn, … or all. Repeatable. Default: the similarity used in training, then "
            "those listed in the run's recipe."
        ),
    ] = None,
    ensemble: Annotated[
        bool, typer.Option("--ensemble", help="Also measure all models together, by their mean score.")
    ] = False,
    protocol: Annotated[
        Literal["auto", "plain", "coco"],
        typer.Option(help="coco: 1K (five folds) and 5K. auto: coco if there are 5,000 images, else plain."),
    ] = "auto",
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Bootstrap samples of the images, for intervals and tests; 0 for none.")
    ] = 1000,
    paper: Annotated[
        str | None, typer.Option(help="The table of the paper to compare with: table:mscoco, tab:PVSE, …, or none.")
    ] = None,
    measures: Annotated[
        Literal["rsum", "all"],
        typer.Option(
            help="all: also print measures over all captions of an image (mAP@R, coverage), the hardest caption, slots "
            "and sets. --json always has them."
        ),
    ] = "rsum",
    features: Annotated[Path | None, typer.Option(help="A feature store to use instead of the images.")] = None,
    trust_features: Annotated[
        bool, typer.Option("--trust-features", help="Use the store even if another backbone made it.")
    ] = False,
    format: Annotated[str | None, typer.Option(help="The format of the data, if not detected correctly.")] = None,
    images: Annotated[Path | None, typer.Option(help="The image folder, if the data does not name it.")] = None,
    captions_per_image: Annotated[
        int | None, typer.Option(min=1, help="Use only the first N captions of each image.")
    ] = None,
    words: Annotated[
        str | None, typer.Option(help="Also measure captions with any of these words separately: snow,beach,…")
    ] = None,
    words_from: Annotated[
        str | None, typer.Option(help="The same, with the words that a recipe holds out of training.", metavar="RECIPE")
    ] = None,
    by: Annotated[
        list[By] | None,
        typer.Option(
            help="Also show where a model is weak: by the length of captions, by their words, or by what images show. "
            "Repeatable."
        ),
    ] = None,
    worst: Annotated[
        int, typer.Option(min=0, help="Also list this many of the worst queries, in both directions.")
    ] = 0,
    suite: Annotated[
        SuiteName | None,
        typer.Option(
            help="Run a test suite instead. DATA is its file or folder (sugarcrepe, aro, contrast, winoground: with "
            "--images) or a data set (labels, pmrp, cxc, eccv). See docs/suites.md."
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="A JSON file with what images show, for --suite labels, --suite pmrp and --by label. Alone, it "
            "implies --suite labels: how many of the first five photos for “a cat” show one. Default: labels.json of "
            'DATA. Format: {"names": […], "labels": {"ID": [numbers of names], …}}.'
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Append the results to this file, such as results.jsonl; `maxmatch results` shows it."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Also write curves and the worst queries to this .html file.")
    ] = None,
    save_sets: Annotated[
        Path | None, typer.Option(help="Write the encoded sets of the split to this .safetensors file.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: a GPU if there is one.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 64,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes that read images.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON, unrounded.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print the tables as LaTeX (booktabs).")] = False,
) -> None:
    """Measure how well models retrieve.

    Reports R@1, R@5 and R@10 in both directions, RSUM, ranks, ties and collapse of the sets. Ties count against the
    model. Intervals come from a bootstrap over the images, and each row is compared with the first by a paired test. On
    COCO's test split, read from Karpathy's JSON, CxC and ECCV Caption are measured too.

    Examples:

      maxmatch evaluate runs/first

      maxmatch evaluate runs/a flickr8k --similarity maxmatch --similarity mil

      maxmatch evaluate runs/a runs/b f30k_precomp --ensemble --latex

      maxmatch evaluate runs/a runs/b flickr8k --measures all

      maxmatch evaluate runs/a coco --save-sets a.safetensors

      maxmatch evaluate a.safetensors b.safetensors --ensemble --json

      maxmatch evaluate runs/held_out runs/small --words-from flickr8k_held_out

      maxmatch evaluate runs/a flickr8k --by words --page weak.html

      maxmatch evaluate flickr8k --embeddings images.npy texts.npy

      maxmatch evaluate runs/a scores.npy flickr8k --results results.jsonl

      maxmatch evaluate runs/a sugarcrepe --suite sugarcrepe --images val2017

      maxmatch evaluate runs/a coco --suite labels --labels labels.json
    """
    if sum((as_json, markdown, latex)) > 1:
        raise typer.BadParameter("choose one of --json, --markdown and --latex.")
    from maxmatch.core.progress import bar
    from maxmatch.evaluation.encoding import find_source
    from maxmatch.evaluation.labels import labels_beside
    from maxmatch.evaluation.report.make_report import check_page, write_page
    from maxmatch.evaluation.runs import evaluate_runs

    if page is not None:
        with usage_errors():
            check_page(page)
    divided: list[Any] = [one.value for one in by or ()]
    named = list(paths or ())
    given: list[Any] = [*([embeddings] if embeddings else ()), *(scores or ())]
    has_data = bool(named) and (len(named) > 1 or bool(given) or suite is not None) and find_source(named[-1]) is None
    data = named.pop() if has_data else None
    models: list[Any] = [*named, *given]
    if not models:
        raise typer.BadParameter("no model. Name one, or give --embeddings or --scores.")
    changes = {
        "features": features,
        "trust_features": trust_features or None,
        "format": format,
        "images": images,
        "captions_per_image": captions_per_image,
    }
    options = {
        key: str(value) if isinstance(value, Path) else value for key, value in changes.items() if value is not None
    }
    style: Literal["text", "markdown", "latex"] = "markdown" if markdown else "latex" if latex else "text"
    common: dict[str, Any] = {"device": device, "batch_size": batch_size, "say": say, "bar": bar}
    if suite in ("labels", "sugarcrepe", "aro", "contrast", "winoground"):
        apart: dict[str, Any] = {
            "--similarity": similarity,
            "--ensemble": ensemble,
            "--by": by,
            "--words": words or words_from,
        }
        apart |= {"--worst": worst, "--page": page, "--save-sets": save_sets, "--groups": groups}
        refused = [name for name, value in apart.items() if value]
        if refused:
            raise typer.BadParameter(f"--suite {suite} does not take {', '.join(refused)}. Leave it out.")
    if labels is None and data is not None and (suite in ("labels", "pmrp") or "label" in divided):
        labels = labels_beside(data)
    if suite == "labels" or (labels is not None and suite is None and not divided):
        from maxmatch.evaluation.labels import evaluate_labels, render_labels

        with usage_errors():
            named_things = evaluate_labels(
                models, data, labels or "labels.json", split=split, options=options, workers=workers, results=results,
                **common,
            )  # fmt: skip
        text = json.dumps([one.to_json() for one in named_things], indent=2, ensure_ascii=False)
        print(text if as_json else render_labels(named_things, style))
        return
    if suite == "sugarcrepe" or suite == "aro" or suite == "contrast" or suite == "winoground":
        from maxmatch.evaluation.suites import evaluate_suite, render_suite

        if data is None:
            raise typer.BadParameter(f"--suite {suite}: give its file or folder after the models.")
        with usage_errors():
            reached = evaluate_suite(models, data, suite, images=images, draws=bootstrap, results=results, **common)
        text = json.dumps([one.to_json() for one in reached], indent=2, ensure_ascii=False)
        print(text if as_json else render_suite(reached, style))
        return
    with usage_errors():
        found = evaluate_runs(
            models,
            data,
            split=split,
            similarity=similarity or (),
            ensemble=ensemble,
            protocol=protocol,
            draws=bootstrap,
            paper=paper,
            words=_words(words, words_from),
            by=divided,
            suite=suite,
            labels=labels,
            worst=worst or (_ON_PAGE if page else 0),
            groups=groups,
            results=results,
            save_sets=save_sets,
            options=options,
            workers=workers,
            **common,
        )
    if as_json:
        print(json.dumps(found.to_json(), indent=2, ensure_ascii=False))
    else:
        print(found.render(style, measures))
    if page is not None:
        say(f"open {write_page(found, page)}")


def _words(words: str | None, recipe: str | None) -> list[str]:
    """The words that were given, or those that a recipe holds out of training; none if neither was given."""
    if words is not None and recipe is not None:
        raise typer.BadParameter("choose one of --words and --words-from.")
    if recipe is not None:
        from maxmatch.recipe.yaml_files import load_recipe

        found, option = list(load_recipe(recipe).data.hold_out_words), "--words-from"
    elif words is not None:
        found, option = [word for part in words.split(",") if (word := part.strip())], "--words"
    else:
        return []
    if not found:
        raise typer.BadParameter(f"{option}: no words. Expected some, as in --words snow,beach, or a recipe with them.")
    return found
