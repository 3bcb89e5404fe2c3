"""Reports: figures and pages."""
