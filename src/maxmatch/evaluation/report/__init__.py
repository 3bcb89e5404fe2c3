"""Reports: figures, and a page that stands alone."""

from maxmatch.evaluation.report.make_report import write_report

__all__ = ["write_report"]
