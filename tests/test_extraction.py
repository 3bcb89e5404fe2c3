"""A backbone run once: what is stored is what it would have made of the pictures, whatever happens meanwhile."""

import gc
import json
import signal
from multiprocessing import active_children
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_data import features, run, split
from PIL import Image
from sample_splits import split_of
from tiny_models import images_for, saved_model, tiny_model, with_statistics
from transformers import ResNetConfig, ResNetModel

from maxmatch.data.convert import convert
from maxmatch.data.dataset import IMAGE, TEXT, Dataset, Items, Split
from maxmatch.data.extraction import decoding_workers, describe_store, extract, load_backbone
from maxmatch.data.features import FeatureStore, FeatureWriter
from maxmatch.data.feed import MappedFeed
from maxmatch.data.formats import folder, karpathy, precomp
from maxmatch.data.load import load_data, read_dataset
from maxmatch.data.sampler import BatchPlan
from maxmatch.evaluation.encoding import readers_for
from maxmatch.evaluation.runs import evaluate_runs
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.inputs import FeatureReader, PixelReader
from maxmatch.recipe.schema import Data

COUNT = 7


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Pictures of several sizes in two splits, as Karpathy's JSON."""
    model = tiny_model("resnet152_bigru")
    place = tmp_path_factory.mktemp("data")
    paths = []
    for number, array in enumerate(images_for(model, COUNT)):
        paths.append(place / f"{number}.png")
        Image.fromarray(array).save(paths[-1])
    splits = {}
    for name, part in (("train", slice(0, 5)), ("val", slice(5, COUNT))):
        images = Items(paths[part], np.arange(len(paths[part])), [path.stem for path in paths[part]])
        texts = Items([f"a dog {path.stem}" for path in paths[part]], np.arange(len(paths[part])), images.ids)
        splits[name] = Split({IMAGE: images, TEXT: texts})
    karpathy.write(splits, place / "data")
    return place / "data"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return saved_model(tmp_path_factory.mktemp("model") / "tiny")


def extracted(model, dataset, folder, dtype="float32", **options):
    backbone = load_backbone(str(model))
    dataset = dataset if isinstance(dataset, Dataset) else read_dataset(dataset)
    with FeatureWriter(folder, describe_store(backbone, dtype)) as writer:
        extract(backbone, dataset, writer, **options)
        return writer.finish()


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_stored_is_the_grid_that_the_backbone_makes_of_each_picture(data, checkpoint, tmp_path):
    store = extracted(checkpoint, data, tmp_path / "store", batch_size=3)
    model = type(tiny_model("resnet152_bigru")).from_pretrained(checkpoint)
    tower = model.tower(IMAGE)
    assert store.ids == [str(number) for number in range(COUNT)]
    for part in read_dataset(data).splits.values():
        for name, path in zip(part[IMAGE].ids, part[IMAGE].values, strict=True):
            with torch.inference_mode():
                cells, grid = tower.encoder.cells(tower.reader.read(path)[None])
            torch.testing.assert_close(torch.tensor(store.values[store.positions[name]]), cells[0])
            assert store.info.grid == grid


def test_a_store_says_which_backbone_and_which_preprocessing_made_it(data, checkpoint, tmp_path):
    store = extracted(checkpoint, data, tmp_path / "store", "float16")
    assert store.info.source.startswith("Hugging Face resnet, weights ")
    assert "crop 64 px, mean 0.485, 0.456, 0.406, std 0.229, 0.224, 0.225" in store.info.source
    other = tmp_path / "other"
    with_statistics(tiny_model("resnet152_bigru", seed=2)).save_pretrained(other)
    with pytest.raises(ValueError, match="holds other features: source 'Hugging Face resnet, weights"):
        extracted(other, data, tmp_path / "store", "float16")


KILLED = """
import sys
from pathlib import Path
from killed import Countdown, in_child
from maxmatch.data import features
from maxmatch.data.load import read_dataset
from maxmatch.data.extraction import describe_store, extract, load_backbone

features._COMMIT_SECONDS = 0
root = Path(sys.argv[1])
dataset, backbone = read_dataset(sys.argv[2]), load_backbone(sys.argv[3])
append = features.FeatureWriter.append
for step in range(1, 4):
    countdown = Countdown(step)
    def torn(self, *arguments):
        def half():
            self._arrays[0].append(arguments[1][0][:3])
            self._arrays[0].sync()
        countdown.tick(half)
        append(self, *arguments)
    def work():
        features.FeatureWriter.append = torn
        with features.FeatureWriter(root / str(step), describe_store(backbone, "float32")) as writer:
            extract(backbone, dataset, writer, batch_size=3)
    print(in_child(work))
"""


def test_killed_and_resumed_equals_uninterrupted_to_the_bit(data, checkpoint, tmp_path):
    """Each child is killed by SIGKILL in the middle of writing a batch."""
    extracted(checkpoint, data, tmp_path / "straight", batch_size=3)
    done = run(KILLED, tmp_path, data, checkpoint)
    assert done.stdout.split() == [str(-signal.SIGKILL)] * 3, done.stderr
    for step in range(1, 4):
        assert not (tmp_path / str(step) / "store.json").exists()
        advanced = []
        extracted(checkpoint, data, tmp_path / str(step), batch_size=3, advance=advanced.append)
        assert advanced[0] == 3 * (step - 1)  # what was done is not done again
        assert sum(advanced) == COUNT
        assert files(tmp_path / str(step)) == files(tmp_path / "straight")


def test_a_picture_that_cannot_be_read_is_reported_and_left_out(data, checkpoint, tmp_path):
    good = extracted(checkpoint, data, tmp_path / "good", batch_size=3)
    karpathy_copy = tmp_path / "data"
    karpathy.write(read_dataset(data).splits, karpathy_copy)
    (karpathy_copy / "images" / "1.png").write_bytes(b"no picture")
    (karpathy_copy / "images" / "6.png").unlink()
    problems, advanced = [], []
    store = extracted(
        checkpoint, karpathy_copy, tmp_path / "store", batch_size=3, report=problems.append, advance=advanced.append
    )
    assert store.ids == ["0", "2", "3", "4", "5"]
    assert "image '1' of the split 'train' is left out" in problems[0].what
    assert "no such file" in problems[1].what
    assert sum(advanced) == COUNT
    for name in store.ids:
        assert np.array_equal(store.values[store.positions[name]], good.values[good.positions[name]])
    again = extracted(checkpoint, karpathy_copy, tmp_path / "store", batch_size=3, report=problems.append)
    assert again.ids == store.ids  # the bad ones are named anew, nothing else happens
    assert len(problems) == 4


@pytest.fixture(scope="module")
def damaged(data, tmp_path_factory):
    """The same pictures, of which one is not readable."""
    place = tmp_path_factory.mktemp("damaged") / "data"
    karpathy.write(read_dataset(data).splits, place)
    (place / "images" / "1.png").write_bytes(b"no picture")
    return place


def test_processes_store_the_bytes_that_threads_do_and_report_the_same_pictures(damaged, checkpoint, tmp_path):
    problems = {0: [], 2: []}
    for workers, found in problems.items():
        extracted(checkpoint, damaged, tmp_path / str(workers), batch_size=2, workers=workers, report=found.append)
        assert not active_children()
    assert files(tmp_path / "0") == files(tmp_path / "2")
    assert "image '1' of the split 'train' is left out" in problems[2][0].what
    assert problems[0] == problems[2]


def test_interrupted_among_processes_it_leaves_none_and_resumes(data, checkpoint, tmp_path):
    def interrupt(count):
        if count:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extracted(checkpoint, data, tmp_path / "store", batch_size=2, workers=2, advance=interrupt)
    gc.collect()  # the error holds the frames of the loop
    assert not active_children()
    assert len(extracted(checkpoint, data, tmp_path / "store", batch_size=2, workers=2)) == COUNT
    extracted(checkpoint, data, tmp_path / "straight", batch_size=2)
    assert files(tmp_path / "store") == files(tmp_path / "straight")


def test_with_too_little_shared_memory_threads_decode(data, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("maxmatch.data.extraction.shutil.disk_usage", lambda path: SimpleNamespace(free=2**16))
    monkeypatch.setattr("maxmatch.model.inputs.in_processes", lambda parts, workers: pytest.fail("no room for these"))
    assert len(extracted(checkpoint, data, tmp_path / "store", batch_size=2, workers=8)) == COUNT


@pytest.mark.parametrize(
    ("cores", "device", "expected"), [(64, "cuda", 16), (4, "cuda", 4), (2, "cuda", 0), (8, "cpu", 0)]
)
def test_pictures_are_decoded_by_a_process_per_core_beside_a_gpu(cores, device, expected, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(cores), raising=False)
    assert decoding_workers(torch.device(device)) == expected


def test_an_image_of_two_splits_is_taken_once_and_two_of_one_id_are_refused(data, checkpoint, tmp_path):
    splits = dict(read_dataset(data).splits)
    dataset = Dataset(data, "karpathy", {**splits, "test": splits["val"]})
    assert len(extracted(checkpoint, dataset, tmp_path / "store")) == COUNT
    renamed = Items(splits["train"][IMAGE].values[:2], np.arange(2), ["5", "6"])
    dataset = Dataset(data, "karpathy", {**splits, "test": Split({IMAGE: renamed})})
    with pytest.raises(ValueError, match="image '5' of the split 'val' is another in 'test'"):
        extracted(checkpoint, dataset, tmp_path / "other")


def test_pictures_may_lie_in_tars_and_need_no_captions(checkpoint, tmp_path):
    part = {"all": Split({IMAGE: split_of(0, [1, 1, 1])[IMAGE]})}
    folder.write(part, tmp_path / "folder")
    store = extracted(checkpoint, tmp_path / "folder", tmp_path / "store")
    assert store.ids == ["COCO_000.jpg", "COCO_001.png", "COCO_002.jpg"]
    dataset = Dataset(tmp_path, "made", part)  # bytes in place of paths
    again = extracted(checkpoint, dataset, tmp_path / "again")
    assert np.array_equal(store.values.take(range(3)).values, again.values.take(range(3)).values)


def test_the_rest_of_a_model_trains_on_what_was_stored_as_on_the_pictures(data, checkpoint, tmp_path):
    extracted(checkpoint, data, tmp_path / "store")
    model = type(tiny_model("resnet152_bigru")).from_pretrained(checkpoint)
    stored = load_data(Data(path=str(data), features=str(tmp_path / "store")), print)
    pixels = load_data(Data(path=str(data)), print)
    batches = []
    for dataset, kind in ((pixels, PixelReader), (stored, FeatureReader)):
        readers = readers_for(model, dataset.split("train"))
        assert isinstance(readers[IMAGE], kind)
        feed = MappedFeed(dataset.split("train"), readers, "cpu", workers=0)
        [batch] = feed.batches([BatchPlan(np.arange(5), None)])
        batches.append(model(IMAGE, *batch.inputs[IMAGE]).vectors)
    torch.testing.assert_close(batches[1], batches[0])


def test_any_vision_model_of_hugging_face_can_be_run(data, tmp_path):
    config = ResNetConfig(depths=[1, 1], hidden_sizes=[16, 24], embedding_size=8)
    torch.manual_seed(0)
    ResNetModel(config).save_pretrained(tmp_path / "resnet")
    said = {"size": {"shortest_edge": 256}, "crop_size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3}
    (tmp_path / "resnet" / "preprocessor_config.json").write_text(json.dumps(said))
    store = extracted(f"hf:{tmp_path / 'resnet'}", data, tmp_path / "store")
    assert "crop 32 px, mean 0.5, 0.5, 0.5, std 0.229" in store.info.source
    assert (store.info.grid, store.info.width) == ((4, 4), 24)


def test_a_model_without_a_backbone_and_data_without_pictures_are_refused(data, checkpoint, tmp_path):
    with pytest.raises(ValueError, match="region_bigru has no backbone whose features"):
        load_backbone("region_bigru")
    with pytest.raises(ValueError, match=r"nothing: no such folder.*one of resnet152_bigru, .*or hf:NAME"):
        load_backbone(str(tmp_path / "nothing"))
    precomp.write({"train": split(features(2), 1)}, tmp_path / "regions")
    with pytest.raises(ValueError, match="holds features already"):
        extracted(checkpoint, tmp_path / "regions", tmp_path / "store")


def with_source(store, source):
    """The same store, said to come from elsewhere."""
    file = store.folder / "store.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"source": source}))


def measured(model, data, store, **more):
    options = {"features": str(store.folder), **more}
    return evaluate_runs(model, data, split="val", draws=0, options=options, device="cpu", say=print).results[0].figures


def test_features_of_the_models_own_backbone_are_evaluated_and_of_another_refused(data, checkpoint, tmp_path):
    store = extracted(checkpoint, data, tmp_path / "store")
    found = measured(checkpoint, data, store)
    other = saved_model(tmp_path / "other", seed=2)
    with pytest.raises(ValueError, match="weights") as refused:
        measured(other, data, store)
    assert store.info.source in str(refused.value)
    assert describe_store(load_backbone(str(other)), "float32").source in str(refused.value)
    assert "trust_features" in str(refused.value)
    measured(other, data, store, trust_features=True)
    with_source(store, "random numbers")
    with pytest.raises(ValueError, match="random numbers"):
        measured(checkpoint, data, store)
    assert measured(checkpoint, data, store, trust_features=True) == found


def test_features_of_another_width_are_refused_also_where_they_are_trusted(data, checkpoint, tmp_path):
    store = extracted(checkpoint, data, tmp_path / "store")
    narrow = saved_model(
        tmp_path / "narrow", backbone={"depths": [1, 1], "hidden_sizes": [16, 20], "embedding_size": 8}
    )
    for trust in (False, True):
        with pytest.raises(ValueError, match=r"24.*20"):
            measured(narrow, data, store, trust_features=trust)


def test_a_half_precision_copy_of_a_model_takes_the_features_of_the_whole_one(data, checkpoint, tmp_path):
    store = extracted(checkpoint, data, tmp_path / "store")
    half = SetEncoder.from_pretrained(checkpoint).save_pretrained(tmp_path / "half", dtype="float16")
    measured(half, data, store)


def test_the_sign_of_a_zero_weight_makes_no_other_backbone(data, checkpoint, tmp_path):
    store = extracted(checkpoint, data, tmp_path / "store")
    sources = []
    for zero in (0.0, -0.0):  # a moving average of weights makes −0 to 0
        backbone = load_backbone(str(checkpoint))
        with torch.no_grad():
            next(backbone.encoder.backbone.parameters()).flatten()[0] = zero
        sources.append(describe_store(backbone, "float32").source)
    assert sources[0] == sources[1] != store.info.source


def test_a_converted_store_still_says_which_backbone_made_it(data, checkpoint, tmp_path):
    store = extracted(checkpoint, data, tmp_path / "store")
    convert(data, tmp_path / "with_captions", "features", features=store.folder)
    convert(tmp_path / "with_captions", tmp_path / "again", "features")
    assert FeatureStore.open(tmp_path / "again").info.source == store.info.source
    evaluate_runs(checkpoint, tmp_path / "again", split="val", draws=0, device="cpu", say=print)
    with_source(FeatureStore.open(tmp_path / "again"), "random numbers")
    with pytest.raises(ValueError, match="random numbers"):
        evaluate_runs(checkpoint, tmp_path / "again", split="val", draws=0, device="cpu", say=print)
