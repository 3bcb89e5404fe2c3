"""The losses of the paper: pure functions of scores (B, C), of sets (B, K, D) and of a boolean `positive` (B, C).

They know no encoder and no similarity. A batch is B distinct images with all their captions, any number of them;
`positive[i, j]` means that caption j describes image i. What is positive is never a negative.
"""

from maxmatch.losses.contrastive import caption_matching, contrastive, phrase_contrastive
from maxmatch.losses.distillation import distillation
from maxmatch.losses.diversity import global_discriminative, intra_set_divergence, pvse_diversity, uniformity
from maxmatch.losses.mmd import mmd
from maxmatch.losses.objective import objective
from maxmatch.losses.probabilistic import gaussian_kl, pair_bce
from maxmatch.losses.triplet import triplet

__all__ = [
    "caption_matching",
    "contrastive",
    "distillation",
    "gaussian_kl",
    "global_discriminative",
    "intra_set_divergence",
    "mmd",
    "objective",
    "pair_bce",
    "phrase_contrastive",
    "pvse_diversity",
    "triplet",
    "uniformity",
]
