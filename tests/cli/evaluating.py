"""Small models, and what `maxmatch evaluate` says of them."""

import json

from commands import run
from tiny_models import tiny_config, tokenizer_for

from maxmatch.model.build import build_model


def results(capsys, *arguments):
    code, out, err = run(capsys, "evaluate", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def save_model(folder, preset="region_bigru", seed=0, changed=None, **options):
    config = tiny_config(preset, **options).model_copy(update=changed)
    build_model(config, {"text": tokenizer_for(config)}, seed=seed).save_pretrained(folder)
    return folder
