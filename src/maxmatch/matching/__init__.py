"""Comparing sets of vectors: the best one-to-one matching, set similarities, and all pairs at scale."""
