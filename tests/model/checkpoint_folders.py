"""The files of a checkpoint, changed by hand or read by another process."""

import json

import torch
from made_data import run

FILES = ["README.md", "config.json", "model.safetensors", "tokenizer.json"]


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def run_with_our_threads(code, *arguments):
    """Another process, with as many threads as this one: sums in another order are not the same bit by bit."""
    return run(f"import torch; torch.set_num_threads({torch.get_num_threads()})\n{code}", *arguments)
