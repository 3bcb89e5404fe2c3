"""How good the model is now: retrieval on the validation split, and whether its sets collapse."""

from maxmatch.evaluation.collapse import log_circular_variance, slot_pairing
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.retrieval import chance, retrieval


def measures(encoded: EncodedSplit, pair: tuple[str, str], similarity: str) -> dict[str, float]:
    """Recalls and RSUM between two modalities, and the collapse of each."""
    rows, columns = pair
    images, texts = encoded.sets[rows], encoded.sets[columns]
    found = retrieval(images, texts, encoded.groups[rows], encoded.groups[columns], similarity)
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
