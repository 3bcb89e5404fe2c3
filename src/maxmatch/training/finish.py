"""The end of a run: slots put in order, checkpoints written, the result put down."""

import json

from maxmatch.evaluation.encoding import encode_split
from maxmatch.files import write_whole
from maxmatch.model import SetEncoder
from maxmatch.training.average import with_average
from maxmatch.training.notes import figure_notes, training_notes
from maxmatch.training.pairing import align_slots
from maxmatch.training.run import Run, save
from maxmatch.training.validation import measures

_PAIRING_GROUPS = 10_000  # of the training set, on which the pairing of the slots is measured


def finish(run: Run) -> dict[str, float]:
    """The slots aligned as they meet on the training set, both checkpoints written; the measures of the best one.

    Whatever of it was done already is done again to the same effect.
    """
    if run.unsaved_best is not None:
        save(run)
    with with_average(run.average, run.parts.model):
        _align(run, run.parts.model)
        run.parts.model.notes = training_notes(run.recipe, run.parts.train, run.progress.epoch)
        run.parts.model.save_pretrained(run.folder.last)
    model = SetEncoder.from_pretrained(run.folder.best, run.here.device)
    stability = _align(run, model)
    model.notes = training_notes(run.recipe, run.parts.train, run.progress.best_epoch + 1)
    found = {"best_epoch": float(run.progress.best_epoch), "seconds": run.progress.seconds, "stability": stability}
    if run.parts.val is not None and run.parts.val_feed is not None:
        size, batch = run.parts.val.size, run.recipe.train.batch_size
        encoded = encode_split(model, run.parts.val_feed, size, batch, run.precision)
        similarity = run.recipe.similarities[0]
        options = run.recipe.similarity_options(similarity)
        found |= measures(encoded, run.recipe.objective.pairs[0], similarity, options)
        figures = figure_notes(encoded, run.recipe.objective.pairs[0], similarity, options, run.recipe.data.val_split)
        model.notes = f"{figures}\n\n{model.notes}"
    model.save_pretrained(run.folder.best)
    write_whole(run.folder.done, json.dumps(found, indent=2) + "\n")
    run.states.clear()
    return found


def _align(run: Run, model: SetEncoder) -> float:
    """Order the slots of a model; how stable their pairing is."""
    count = min(run.parts.train.size, _PAIRING_GROUPS)
    encoded = encode_split(model, run.parts.feed, count, run.recipe.train.batch_size, run.precision)
    return align_slots(model, encoded, run.recipe.objective.pairs[0]).stability
