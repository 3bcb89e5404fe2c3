"""Reports: figures, and a page that stands alone."""

from maxmatch.report.writing import write_report

__all__ = ["write_report"]
