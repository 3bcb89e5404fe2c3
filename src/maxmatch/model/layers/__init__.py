"""From the features of an item to a set of K unit vectors."""

from maxmatch.model.layers.pooling import (
    POOLING,
    aligned_linear,
    grid_positions,
    gru_states,
    masked_max,
    masked_mean,
    sine_positions,
    turned,
    unit_vectors,
    widened,
)
from maxmatch.model.layers.rival_heads import (
    GaussianHead,
    GlobalHead,
    GPOHead,
    MatchProbability,
    PIEHead,
    rank_codes,
)
from maxmatch.model.layers.slot_heads import AggregationBlock, ResidualSetHead, SetHead, SlotAttention, SlotHead

__all__ = [
    "POOLING",
    "AggregationBlock",
    "GPOHead",
    "GaussianHead",
    "GlobalHead",
    "MatchProbability",
    "PIEHead",
    "ResidualSetHead",
    "SetHead",
    "SlotAttention",
    "SlotHead",
    "aligned_linear",
    "grid_positions",
    "gru_states",
    "masked_max",
    "masked_mean",
    "rank_codes",
    "sine_positions",
    "turned",
    "unit_vectors",
    "widened",
]
