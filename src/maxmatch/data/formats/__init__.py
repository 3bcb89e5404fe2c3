"""Formats of data sets, a module each: `recognises`, `read` and, where it can be written, `write`."""
