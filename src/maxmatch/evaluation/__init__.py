"""From models and data to results: `evaluate_runs`, `analyse_run`; and the metrics, tests and reports behind them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maxmatch.evaluation.runs import AnalysedRun, Evaluation, analyse_run, evaluate_runs

__all__ = ["AnalysedRun", "Evaluation", "analyse_run", "evaluate_runs"]


def __getattr__(name: str) -> Any:
    """Import torch only for who asks for one of these names."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from maxmatch.evaluation import runs

    return getattr(runs, name)
