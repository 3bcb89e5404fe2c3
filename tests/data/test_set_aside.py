"""Training images that are set aside, and a part of those that are left: no image is in two splits."""

import pytest
import torch
from small_runs import recipe_for, write_data

from maxmatch.data.load import load_data, random_part, read_ids
from maxmatch.recipe.schema import Data
from maxmatch.training.distributed import Processes
from maxmatch.training.prepare import prepare


def ids_of(split):
    return list(split["image"].ids)


@pytest.fixture
def data(tmp_path):
    write_data(tmp_path / "one", train=12, val=4)
    write_data(tmp_path / "two", train=8, val=4, seed=1)
    return tmp_path


def listed(folder, *ids):
    file = folder / "ids.txt"
    file.write_text("# by hand\n\n" + "\n".join(ids) + "\n")
    return str(file)


def loaded(data, path, *ids, **more):
    return load_data(Data(path=path, set_aside=listed(data, *ids), **more), lambda line: None)


def test_images_that_are_set_aside_leave_the_training_split_with_their_captions(data):
    whole = load_data(Data(path=str(data / "one")), print)
    names = ids_of(whole.split("train"))
    found = loaded(data, str(data / "one"), names[7], names[2])
    assert ids_of(found.split("set_aside")) == [names[2], names[7]]
    assert ids_of(found.split("train")) == [name for name in names if name not in (names[2], names[7])]
    for split in ("train", "set_aside"):
        assert found.split(split)["text"].groups.tolist() == [n for n in range(found.split(split).size) for _ in "ab"]
    captions = whole.split("train")["text"].values
    assert list(found.split("set_aside")["text"].values) == [captions[n] for n in (4, 5, 14, 15)]
    assert ids_of(found.split("val")) == ids_of(whole.split("val"))


def test_of_several_data_sets_an_id_that_two_have_needs_the_name_of_its_data_set(data):
    both = [str(data / "one"), str(data / "two")]
    whole = load_data(Data(path=both), print).split("train")
    common, single = "two/" + ids_of(whole)[12].partition("/")[2], ids_of(whole)[11].partition("/")[2]
    found = loaded(data, both, common, single, weights=(1.0, 0.5))
    assert sorted(ids_of(found.split("set_aside"))) == sorted([common, f"one/{single}"])
    assert found.split("train").sources.tolist() == ["one"] * 11 + ["two"] * 7
    assert found.split("set_aside").sources.tolist() == ["one", "two"]
    with pytest.raises(ValueError, match=r"ids.txt: .* several data sets.*one/.*two/"):
        loaded(data, both, common.partition("/")[2])


def test_ids_that_are_no_training_images_and_empty_lists_are_refused(data):
    one = str(data / "one")
    names = ids_of(load_data(Data(path=one), print).split("train"))
    with pytest.raises(ValueError, match=r"ids.txt: 2 of its ids, such as nobody, nothing"):
        loaded(data, one, names[0], "nobody", "nothing")
    with pytest.raises(ValueError, match="all 12 training images"):
        loaded(data, one, *names)
    with pytest.raises(ValueError, match="no id in it"):
        loaded(data, one)
    with pytest.raises(FileNotFoundError, match=r"data.set_aside.*missing.txt"):
        read_ids(data / "missing.txt")


def test_a_part_of_the_images_is_always_the_same_and_in_every_larger_part(data):
    train = load_data(Data(path=str(data / "one")), print).split("train")
    small, large = (set(ids_of(random_part(train, count, print))) for count in (3, 7))
    assert (len(small), len(large)) == (3, 7)
    assert small < large
    assert ids_of(random_part(train, 3, print)) != ids_of(train)[:3]
    said = []
    assert random_part(train, 99, said.append) is train
    assert "only 12" in said[0]


def test_training_sees_a_part_and_validates_on_what_is_set_aside(data):
    names = ids_of(load_data(Data(path=str(data / "one")), print).split("train"))
    recipe = recipe_for(data / "one")
    options = {"set_aside": listed(data, *names[:3]), "max_images": 5, "val_split": "set_aside"}
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update=options)})
    trained = []
    for seed in (0, 1):
        parts = prepare(recipe.model_copy(update={"seed": seed}), Processes(0, 1, torch.device("cpu")), print)
        assert ids_of(parts.val) == names[:3]
        assert parts.train.size == 5
        assert not set(ids_of(parts.train)) & set(names[:3])
        trained.append(ids_of(parts.train))
    assert trained[0] == trained[1]
