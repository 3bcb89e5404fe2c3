"""How good the model is now: retrieval on the validation split, and whether its sets collapse."""

from collections.abc import Mapping

from maxmatch.evaluation.collapse import log_circular_variance, slot_pairing
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.retrieval import chance, retrieval
from maxmatch.matching.similarity import with_options


def measures(
    encoded: EncodedSplit, pair: tuple[str, str], similarity: str, options: Mapping[str, int | float] | None = None
) -> dict[str, float]:
    """Recalls and RSUM between two modalities, and the collapse of each. options: those of the similarity."""
    rows, columns = pair
    by_options = with_options(similarity, options or {})
    images, texts = encoded.sets[rows], encoded.sets[columns]
    found = retrieval(images, texts, encoded.groups[rows], encoded.groups[columns], by_options)
    by_chance = chance(encoded.groups[rows].cpu(), encoded.groups[columns].cpu())
    pairing = slot_pairing(images, texts, encoded.partners(pair), similarity)
    return {
        **found,
        **{f"chance_{name}": value for name, value in by_chance.items()},
        f"{rows}_log_variance": log_circular_variance(images),
        f"{columns}_log_variance": log_circular_variance(texts),
        "slots_used": pairing.used,
        "pairing_stability": pairing.stability,
    }
