"""Every named model, tiny and with random weights; and raw items for them."""

import numpy as np
import torch

from maxmatch.model.build import build_model
from maxmatch.model.config import ModelConfig, Region, SetPrediction, TowerConfig
from maxmatch.model.presets import PRESETS
from maxmatch.model.text import train_wordpiece_tokenizer, word_tokenizer

torch.set_num_threads(1)  # at these sizes a second thread only waits

CHECKPOINT = ["README.md", "config.json", "model.safetensors", "tokenizer.json"]
CAPTIONS = ["a dog runs on the beach", "two people ride a red bus", "a cat", "the dog isn't a cat, it's a bird"]
FEATURES = 12
D = 16
_BERT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 120,
    "max_position_embeddings": 40,
}
HEAD = {"width": D, "heads": 2, "head_width": 8}
SIZES = {
    "resnet152_bigru": {
        "word_width": 10,
        "image_size": 64,
        "backbone": {"depths": [1, 1], "hidden_sizes": [16, 24], "embedding_size": 8},
        "pretrained": False,
    },
    "region_bigru": {"word_width": 10, "feature_width": FEATURES},
    "region_bert": {"feature_width": FEATURES, "bert": _BERT, "pretrained": False},
    "resnext101_bert": {
        "image_size": 64,
        "backbone": {"depths": [1, 2], "groups": 4, "group_width": 4, "base_width": 8},
        "bert": _BERT,
        "pretrained": False,
    },
    "efficientnet_lite0_bigru": {"word_width": 10, "image_size": 64, "pretrained": False},
    "efficientnet_lite0_minilm": {"bert": _BERT, "image_size": 64, "pretrained": False},
}


def tiny_config(name, **more):
    return PRESETS[name](**{**HEAD, **SIZES[name], **more})


def tokenizer_for(config):
    if config.towers["text"].encoder.name == "gru":
        return word_tokenizer(CAPTIONS, min_count=1, max_length=32)
    return train_wordpiece_tokenizer(CAPTIONS, vocabulary_size=120, max_length=32)


def tiny_model(name, seed=0, **more):
    config = tiny_config(name, **more)
    return build_model(config, {"text": tokenizer_for(config)}, seed=seed)


def with_audio(config):
    """A third tower, over sequences of features."""
    head = SetPrediction(heads=2, head_width=8)
    audio = TowerConfig(encoder=Region(feature_width=5, ordered=True), head=head, set_size=3)
    return ModelConfig(width=config.width, towers={**config.towers, "audio": audio})


def images_for(model, count, seed=0):
    generator = np.random.default_rng(seed)
    if model.config.towers["image"].encoder.name == "region":
        return [generator.normal(size=(int(n), FEATURES)).astype("float32") for n in generator.integers(1, 9, count)]
    shapes = generator.integers(40, 100, (count, 2))
    return [generator.integers(0, 256, (int(h), int(w), 3), dtype=np.uint8) for h, w in shapes]


def texts(count, seed=0):
    generator = np.random.default_rng(seed)
    words = " ".join(CAPTIONS).split()
    return [" ".join(generator.choice(words, int(n))) for n in generator.integers(1, 12, count)]


def with_statistics(model):
    """BatchNorm as after some training, so that evaluation mode matters."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
    return model


def saved_model(folder, seed=1, **more):
    """A model that reads pictures and texts, as after some training, in a folder."""
    with_statistics(tiny_model("resnet152_bigru", seed, **more)).save_pretrained(folder)
    return folder
