"""Small stand-ins for what a page assumes: a folder of photos, a trained model, a dataset. One function per page."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tiny_hub import hub_folder
from tiny_models import tiny_model

Names = dict[str, Any]


def _model(folder: Path) -> Any:
    """An untrained model in the folder that the page names."""
    model = tiny_model("resnet152_bigru")
    model.save_pretrained(folder)
    return model


def _photos(folder: Path) -> list[str]:
    folder.mkdir()
    names = [str(folder / f"{number}.jpg") for number in range(5)]
    for seed, name in enumerate(names):
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (48, 64, 3), np.uint8)).save(name)
    return names


def _captioned(folder: Path) -> None:
    """Images with two captions each, in three splits."""
    rows = ["image,caption,split"]
    photos = _photos(folder)
    for split, count in (("train", 5), ("val", 3), ("test", 3)):
        for number in range(count):
            name = f"{split}{number}.jpg"
            (folder / name).write_bytes(Path(photos[number]).read_bytes() + split.encode())
            rows += [f"{name},a dog on a beach {split} {number} {n},{split}" for n in range(2)]
    for photo in photos:
        Path(photo).unlink()
    (folder / "captions.csv").write_text("\n".join(rows) + "\n")


def quickstart(names: Names) -> None:
    """Photos. The page uses the model that ships."""
    _photos(Path("photos"))


def clip(names: Names) -> None:
    """Photos; and a tiny CLIP in a folder of the name that the page uses, since a folder comes before the hub."""
    _photos(Path("photos"))
    hub_folder(Path("openai/clip-vit-base-patch32"), "clip")


def your_data(names: Names) -> None:
    """Photos with captions; a finished run."""
    _captioned(Path("my-photos"))
    _model(Path("runs/mine/best"))


def features(names: Names) -> None:
    """Photos with captions."""
    _captioned(Path("my-photos"))


def evaluation(names: Names) -> None:
    """A model and a dataset."""
    from maxmatch.data.load import read_dataset

    _captioned(Path("data"))
    names.update(model=_model(Path("model")), dataset=read_dataset("data"))


def analysis(names: Names) -> None:
    """A model and a split of a dataset."""
    evaluation(names)
    names["split"] = names["dataset"].split("test")


def scenes(names: Names) -> None:
    """Two lines of the metadata of generated scenes."""
    from maxmatch.data.scenes import generate

    generate(Path("scenes"), images=2, size=32, workers=1)
    lines = Path("scenes/metadata.jsonl").read_text().splitlines()
    names["row"], names["other"] = map(json.loads, lines)


def own_vectors(names: Names) -> None:
    """Vectors of images and of five captions each, and a matrix of scores."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(1000, 512)).astype(np.float32)
    np.save("images.npy", images)
    np.save("texts.npy", images.repeat(5, 0) + 7 * rng.normal(size=(5000, 512)).astype(np.float32))
    np.save("scores.npy", rng.normal(size=(100, 300)))


def late_interaction(names: Names) -> None:
    """A tiny model with a vector per token, in a folder of the name that the page uses."""
    from tiny_multi_vector import multi_vector_model

    texts = ["a dog runs on the beach", "two people ride a red bus", "snow"]
    multi_vector_model(Path("bert"), texts).save_pretrained("lightonai/GTE-ModernColBERT-v1")


SET_UP = {
    "README.md": quickstart,
    "analysis.md": analysis,
    "api/evaluation.md": evaluation,
    "evaluation.md": evaluation,
    "guides/clip.md": clip,
    "guides/evaluate.md": own_vectors,
    "guides/features.md": features,
    "guides/late-interaction.md": late_interaction,
    "guides/your-data.md": your_data,
    "quickstart.md": quickstart,
    "scenes.md": scenes,
    "search.md": quickstart,
}

# Commands that are run in the page's folder, by their first words; all others are only parsed.
RUN = {
    "README.md": ["train --list", "train f30k_region_bigru --dry-run"],
    "guides/features.md": ["train regions.yaml"],
    "guides/your-data.md": ["data check", "train mine.yaml --dry-run"],
    "reproduce.md": ["reproduce --list"],
}
