"""Benchmarks: `make bench`. Every row is first checked for equality with a reference, then timed."""
