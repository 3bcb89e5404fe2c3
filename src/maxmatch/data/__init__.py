"""Data sets: every format is read into the same `Split`s, from which batches are made."""
