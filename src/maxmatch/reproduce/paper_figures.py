"""The paper's figures from models that were trained: t-SNE, heatmap, and what each slot finds."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from maxmatch.core.files import whole
from maxmatch.evaluation.encoding import EncodedSplit, encode_model
from maxmatch.evaluation.runs import analyse_run
from maxmatch.reproduce.jobs import Job, TablePlan
from maxmatch.reproduce.sweep import Outcome
from maxmatch.reproduce.worker import data_of, sources_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS: tuple[Literal["pdf"], Literal["png"]] = ("pdf", "png")


class _Model(NamedTuple):
    """A model of the figure: what it is called, and its job."""

    title: str
    job: Job

    @property
    def pair(self) -> tuple[str, str]:
        """The two modalities."""
        return self.job.recipes[0].objective.pairs[0]

    def encoded(self, device: str) -> EncodedSplit:
        """Its sets."""
        (source,), batch_size = sources_of(self.job), self.job.recipes[0].train.batch_size
        return encode_model(source, data_of(self.job), device=device, batch_size=batch_size)


def draw(plan: TablePlan, outcomes: Mapping[Path, Outcome], device: str) -> list[Path]:
    """Draw the figure of a target with the models of the first seed that did not fail; the files that were written."""
    from maxmatch.evaluation.report.make_report import check_plots

    check_plots()
    models = [
        _Model(planned.line.title[0], job)
        for planned in plan.lines
        for job in planned.jobs[:1]
        if outcomes[job.folder].result is not None
    ]
    return list(_FIGURES[plan.target.name](plan, models, device))


def _tsne(plan: TablePlan, models: Sequence[_Model], device: str) -> Iterator[Path]:
    import numpy as np

    from maxmatch.evaluation.report.figures import scatter
    from maxmatch.evaluation.slots import project

    for one in models:
        found = project(one.encoded(device), one.pair, seed=0)
        of = np.array([one.pair.index(name) for name in found.modality])
        figure = scatter(found.points, np.array(found.slot), one.pair, of, "t-SNE")
        yield from _saved(figure, plan.options.out / f"tsne-{_file_name(one.title)}")


def _heatmap(plan: TablePlan, models: Sequence[_Model], device: str) -> Iterator[Path]:
    from maxmatch.evaluation.report.figures import heatmap
    from maxmatch.evaluation.slots import between_sets

    cosines = {one.title: between_sets(one.encoded(device), one.pair).true.cpu().numpy() for one in models}
    if cosines:
        yield from _saved(heatmap(cosines, *models[0].pair), plan.options.out / "heatmap")


def _qualitative(plan: TablePlan, models: Sequence[_Model], device: str) -> Iterator[Path]:
    """A report of each model: what its slots find, both ways, and failures, with the pictures."""
    for one in models:
        recipe = one.job.recipes[0]
        folder = plan.options.out / f"qualitative-{_file_name(one.title)}"
        yield analyse_run(
            one.job.folder,
            recipe.data,
            folder,
            split=data_of(one.job).split,
            title=one.title,
            device=device,
            batch_size=recipe.train.batch_size,
            say=lambda line: None,
        ).report


_FIGURES: dict[str, Callable[[TablePlan, Sequence[_Model], str], Iterator[Path]]] = {
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
