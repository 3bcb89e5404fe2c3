"""What each vector of a set is worth: retrieval with only slot i of one modality kept (table tab:5)."""

from dataclasses import dataclass

from torch import Tensor

from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.paired import Paired, paired
from maxmatch.evaluation.retrieval import retrieval
from maxmatch.matching.similarity import Similarity


@dataclass(frozen=True)
class Elements:
    """The figures of retrieval (i2t_r1, …, rsum) with whole sets, and with one slot of one modality kept."""

    whole: dict[str, float]
    """With all vectors of both modalities."""
    kept: dict[str, list[dict[str, float]]]
    """By modality and slot: only that slot of that modality is kept, and all vectors of the other."""

    def rsum(self, modality: str) -> list[float]:
        """RSUM of each slot of a modality, kept alone."""
        return [figures["rsum"] for figures in self.kept[modality]]


def element_analysis(
    encoded: EncodedSplit, pair: tuple[str, str], similarity: str | Similarity, whole: dict[str, float] | None = None
) -> Elements:
    """Retrieval with one slot kept, for each slot of both modalities, by the same scores as in evaluation.

    In a collapsed model every slot does as well as the whole set; in one that uses a single slot, only that one does.
    whole: the figures with all vectors, where they are known already.
    """
    data = paired(encoded, pair)
    rows, columns = data.sets
    return Elements(
        whole if whole is not None else _figures(data, rows, columns, similarity),
        {
            pair[0]: [_figures(data, rows[:, [slot]], columns, similarity) for slot in range(rows.shape[1])],
            pair[1]: [_figures(data, rows, columns[:, [slot]], similarity) for slot in range(columns.shape[1])],
        },
    )


def _figures(data: Paired, rows: Tensor, columns: Tensor, similarity: str | Similarity) -> dict[str, float]:
    return retrieval(rows, columns, *data.groups, similarity)
