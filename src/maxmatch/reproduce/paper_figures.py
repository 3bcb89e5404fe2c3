"""The paper's figures from models that were trained: t-SNE, heatmap, and what each slot finds."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from maxmatch.core.files import whole
from maxmatch.data.dataset import Split
from maxmatch.data.load import load_data
from maxmatch.evaluation.encoding import EncodedSplit, encode_items
from maxmatch.model.encoder import SetEncoder
from maxmatch.recipe.schema import Recipe
from maxmatch.reproduce.jobs import Job, TablePlan
from maxmatch.reproduce.sweep import Outcome
from maxmatch.reproduce.worker import split_for
from maxmatch.training.run import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS: tuple[Literal["pdf"], Literal["png"]] = ("pdf", "png")


@dataclass(frozen=True)
class Trained:
    """A model of the figure: what it is called, its job, and the split it is shown on."""

    title: str
    job: Job
    split: str
    items: Split
    model: SetEncoder

    @property
    def recipe(self) -> Recipe:
        """What it was trained by."""
        return self.job.recipes[0]

    def encoded(self) -> EncodedSplit:
        """Its sets."""
        return encode_items(self.model, self.items, batch_size=self.recipe.train.batch_size)


def draw(plan: TablePlan, outcomes: Mapping[Path, Outcome], device: str) -> list[Path]:
    """Draw the figure of a target with the models of the first seed that did not fail; the files that were written."""
    from maxmatch.evaluation.report.make_report import check_plots

    check_plots()
    return list(_FIGURES[plan.target.name](plan, _trained(plan, outcomes, device)))


def _trained(plan: TablePlan, outcomes: Mapping[Path, Outcome], device: str) -> Iterator[Trained]:
    for planned in plan.lines:
        for job in planned.jobs[:1]:
            if outcomes[job.folder].result is not None:
                dataset = load_data(job.recipes[0].data, lambda line: None, job.recipes[0].model.resolved().towers)
                name = split_for(dataset, job.recipes[0], job.split)
                model = SetEncoder.from_pretrained(RunFolder(job.folder).best, device)
                yield Trained(planned.line.title[0], job, name, dataset.split(name), model)


def _tsne(plan: TablePlan, models: Iterator[Trained]) -> Iterator[Path]:
    import numpy as np

    from maxmatch.evaluation.report.figures import scatter
    from maxmatch.evaluation.slots import project

    for one in models:
        pair = one.recipe.objective.pairs[0]
        found = project(one.encoded(), pair, seed=0)
        of = np.array([pair.index(name) for name in found.modality])
        figure = scatter(found.points, np.array(found.slot), pair, of, "t-SNE")
        yield from _saved(figure, plan.options.out / f"tsne-{_file_name(one.title)}")


def _heatmap(plan: TablePlan, models: Iterator[Trained]) -> Iterator[Path]:
    from maxmatch.evaluation.report.figures import heatmap
    from maxmatch.evaluation.slots import between_sets

    cosines, pair = {}, ("image", "text")
    for one in models:
        pair = one.recipe.objective.pairs[0]
        cosines[one.title] = between_sets(one.encoded(), pair).true.cpu().numpy()
    if cosines:
        yield from _saved(heatmap(cosines, *pair), plan.options.out / "heatmap")


def _qualitative(plan: TablePlan, models: Iterator[Trained]) -> Iterator[Path]:
    """A report of each model: what its slots find, both ways, and failures, with the pictures."""
    from maxmatch.evaluation.report.make_report import ReportOptions, make_report

    for one in models:
        bare = one.recipe.data.model_copy(update={"features": None})
        visible = load_data(bare, lambda line: None).split(one.split) if one.recipe.data.features else one.items
        facts = {"model": str(one.job.folder), "data": str(one.recipe.data.path), "split": one.split}
        folder = plan.options.out / f"qualitative-{_file_name(one.title)}"
        wanted = ReportOptions(batch_size=one.recipe.train.batch_size)
        yield make_report(
            one.model, one.items, visible, folder, wanted, title=one.title, facts=facts, run=one.job.folder
        )[1]


_FIGURES: dict[str, Callable[[TablePlan, Iterator[Trained]], Iterator[Path]]] = {
    "tsne": _tsne,
    "heatmap": _heatmap,
    "qualitative": _qualitative,
}


def _saved(figure: "Figure", path: Path) -> Iterator[Path]:
    """A figure as PDF, for print, and as PNG."""
    from maxmatch.evaluation.report.figures import render

    for kind in _KINDS:
        file = path.with_name(f"{path.name}.{kind}")
        with whole(file) as opened:
            opened.write(render(figure, kind))
        yield file


def _file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
