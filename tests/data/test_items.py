from pathlib import Path

import numpy as np

from maxmatch.data.dataset import IMAGE, TEXT, Dataset, Items, Split, first_of_each


def test_the_first_captions_of_each_group_are_kept_in_order():
    images = Items([Path("a"), Path("b"), Path("c")], np.arange(3), ["a", "b", "c"])
    words = list("uvwxyz")
    texts = Items(words, np.array([0, 0, 0, 1, 2, 2]), words, [{"n": n} for n in range(6)])
    cut = first_of_each(Dataset(Path("d"), "table", {"train": Split({IMAGE: images, TEXT: texts})}), TEXT, 2)
    kept = cut.split("train")[TEXT]
    assert list(kept.values) == list(kept.ids) == ["u", "v", "x", "y", "z"]
    assert kept.groups.tolist() == [0, 0, 1, 2, 2]
    assert [entry["n"] for entry in kept.metadata] == [0, 1, 3, 4, 5]
    assert cut.split("train")[IMAGE] is images
