"""After training: which slots of two modalities meet, and the text slots put in that order.

Slot i of the one then meets slot i of the other, so that a flattened set is one vector whose inner product with another
is the sum of the matched cosines: what a search engine can index.
"""

from maxmatch.evaluation.collapse import Pairing, slot_pairing
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.model import SetEncoder


def align_slots(model: SetEncoder, encoded: EncodedSplit, pair: tuple[str, str]) -> Pairing:
    """Measure how the slots meet in true pairs, put those of the second modality in that order, and note both.

    encoded: what this very model made of the training set. Sets of the first modality that are larger than those of the
    second cannot all meet one; then nothing is moved.
    """
    rows, columns = (encoded.sets[name] for name in pair)
    found = slot_pairing(rows, columns, encoded.partners(pair), model.similarity_name)
    order = found.partner
    if -1 not in order:
        rest = [slot for slot in range(columns.shape[1]) if slot not in order]
        model.tower(pair[1]).head.reorder([*order, *rest])
        order = list(range(rows.shape[1]))
    if list(model.towers)[:2] == list(pair):  # the pair that a checkpoint has room for
        model.record_pairing(order, found.stability)
    return found._replace(partner=order)
