"""How well any model retrieves: `evaluate_scores`, `evaluate_embeddings`, `RetrievalMetric`.

For models and data by name: `evaluate_runs`, `evaluate_suite`, `analyse_run`; and the metrics, tests and reports behind
them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maxmatch.evaluation.evaluator import RetrievalResult, evaluate_embeddings, evaluate_scores
    from maxmatch.evaluation.retrieval_metric import RetrievalMetric, compute_metrics
    from maxmatch.evaluation.runs import AnalysedRun, Evaluation, analyse_run, evaluate_runs
    from maxmatch.evaluation.suites import evaluate_suite

__all__ = [
    "AnalysedRun",
    "Evaluation",
    "RetrievalMetric",
    "RetrievalResult",
    "analyse_run",
    "compute_metrics",
    "evaluate_embeddings",
    "evaluate_runs",
    "evaluate_scores",
    "evaluate_suite",
]

_HOMES = {
    "evaluator": {"RetrievalResult", "evaluate_embeddings", "evaluate_scores"},
    "retrieval_metric": {"RetrievalMetric", "compute_metrics"},
    "runs": {"AnalysedRun", "Evaluation", "analyse_run", "evaluate_runs"},
    "suites": {"evaluate_suite"},
}


def __getattr__(name: str) -> Any:
    """Import torch only for who asks for one of these names."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"maxmatch.evaluation.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
