"""All figures of a trained model that the paper's tables speak of, from one encoding of the split."""

from typing import Any

import torch

from maxmatch.data.items import Dataset
from maxmatch.data.loading import load_data
from maxmatch.evaluation.collapse import log_circular_variance, slot_pairing
from maxmatch.evaluation.elements import element_analysis
from maxmatch.evaluation.encoding import EncodedSplit, encode_items
from maxmatch.evaluation.ranking import ranks_both_ways
from maxmatch.evaluation.retrieval import chance, figures
from maxmatch.matching.scoring import score_matrix
from maxmatch.model import SetEncoder
from maxmatch.recipe import Recipe
from maxmatch.reproduce.jobs import Job
from maxmatch.training.run_folder import RunFolder


def measure(job: Job, device: str | None = None) -> dict[str, Any]:
    """The figures of a job whose models are trained, the split they were measured on and how many images it has."""
    ...
