"""Two-tower models of transformers, tiny and with random weights, in folders as the hub has them."""

import json
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = [
    "a",
    "dog",
    "cat",
    "runs",
    "on",
    "the",
    "beach",
    "two",
    "people",
    "ride",
    "red",
    "bus",
    "isn't",
    "it's",
    "bird",
]
TEXTS = [
    "a dog",
    "",
    "a",
    "Two people ride a red BUS.",
    "a dog isn't a cat, it's a bird " * 9,
    "  ",
    "犬 \u00e9 \U0001f415",
]
SIZE, PATCH = 32, 8
LONGEST = 16  # tokens
_TEXT = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": LONGEST,
}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIZE,
    "patch_size": PATCH,
}
_BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]


def _letters():
    return sorted(set("abcdefghijklmnopqrstuvwxyz0123456789'.,!"))


def _clip_tokenizer(**options):
    from transformers import CLIPTokenizer

    letters = [*pre_tokenizers.ByteLevel.alphabet()]
    merges = [("d", "o"), ("do", "g</w>"), ("c", "a"), ("ca", "t</w>")]
    pieces = [*letters, *(f"{one}</w>" for one in letters), *("".join(pair) for pair in merges)]
    vocab = {piece: number for number, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=LONGEST, **options)


def _bert_tokenizer(**options):
    from transformers import BertTokenizer

    pieces = [*_BERT_SPECIALS, *WORDS, *_letters(), *(f"##{one}" for one in _letters())]
    return BertTokenizer(vocab={piece: n for n, piece in enumerate(dict.fromkeys(pieces))}, **options)


def _roberta_tokenizer(**options):
    from transformers import XLMRobertaTokenizer

    pieces = [*_ROBERTA_SPECIALS, *(f"▁{word}" for word in WORDS), "▁", *_letters(), "<mask>"]
    vocab = [(piece, -float(n) / 10) for n, piece in enumerate(dict.fromkeys(pieces))]
    return XLMRobertaTokenizer(vocab=vocab, **options)


def _siglip_tokenizer(**options):
    from transformers import PreTrainedTokenizerFast

    pieces = ["<pad>", "</s>", "<unk>", *(f"▁{word}" for word in WORDS), "▁", *_letters()]
    vocab = [(piece, -float(n) / 10) for n, piece in enumerate(dict.fromkeys(pieces))]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=2))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="</s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=LONGEST,
        model_input_names=["input_ids"],
        **options,
    )


def _siglip2_tokenizer():
    from transformers import Siglip2Tokenizer

    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *_letters(), "do", "dog"]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    options = {"padding_side": "right", "model_input_names": ["input_ids"]}
    tokenizer = Siglip2Tokenizer(vocab=vocab, merges=[("d", "o"), ("do", "g")], **options)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    return tokenizer


def _clip_processor():
    from transformers import CLIPImageProcessorPil

    return CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE})


def _processor(name, **options):
    import transformers

    return getattr(transformers, name)(**options)


def _square(name, **options):
    return lambda: _processor(name, size={"height": SIZE, "width": SIZE}, **options)


_NARROW = {"projection_dim": 12}
_ROBERTA = {**_TEXT, "max_position_embeddings": LONGEST + 2, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_SIGLIP_TEXT = {**_TEXT, "projection_size": 24, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 1}
_SIGLIP_VISION = {**_VISION, "hidden_size": 24}
_ALIGN_VISION = {
    "image_size": SIZE,
    "depth_divisor": 4,
    "hidden_dim": 12,
    "width_coefficient": 0.25,
    "depth_coefficient": 0.25,
    "kernel_sizes": [3, 3],
    "in_channels": [32, 16],
    "out_channels": [16, 48],
    "depthwise_padding": [],
    "strides": [1, 2],
    "num_block_repeats": [1, 1],
    "expand_ratios": [1, 2],
}
_CLAP_AUDIO = {
    "spec_size": 32,
    "num_mel_bins": 8,
    "patch_embeds_hidden_size": 8,
    "hidden_size": 16,
    "depths": [1, 1],
    "num_attention_heads": [2, 2],
    "num_hidden_layers": 2,
    "window_size": 4,
}
# The tokenizer, the preprocessor, and the config as the halves are.
FAMILIES = {
    "clip": (_clip_tokenizer, _clip_processor, {"text_config": _TEXT, "vision_config": _VISION, **_NARROW}),
    "siglip": (
        _siglip_tokenizer,
        _square("SiglipImageProcessorPil"),
        {"text_config": _SIGLIP_TEXT, "vision_config": _SIGLIP_VISION},
    ),
    "siglip2": (
        _siglip2_tokenizer,
        lambda: _processor("Siglip2ImageProcessorPil", patch_size=PATCH, max_num_patches=16),
        {
            "text_config": _SIGLIP_TEXT,
            "vision_config": {**_SIGLIP_VISION, "num_patches": 16},
        },
    ),
    "altclip": (
        _roberta_tokenizer,
        _clip_processor,
        {"text_config": {**_ROBERTA, "project_dim": 20}, "vision_config": _VISION, **_NARROW},
    ),
    "chinese_clip": (
        _bert_tokenizer,
        _square("ChineseCLIPImageProcessorPil", do_center_crop=False),
        {"text_config": _TEXT, "vision_config": _VISION, **_NARROW},
    ),
    "align": (
        _bert_tokenizer,
        _square("EfficientNetImageProcessorPil", do_center_crop=False),
        {"text_config": _TEXT, "vision_config": _ALIGN_VISION, **_NARROW},
    ),
    "metaclip_2": (
        _roberta_tokenizer,
        _clip_processor,
        {"text_config": {**_TEXT, "eos_token_id": 2, "bos_token_id": 0}, "vision_config": _VISION, **_NARROW},
    ),
}

SOUND = (
    _roberta_tokenizer,
    lambda: _processor(
        "ClapFeatureExtractor",
        feature_size=8,
        sampling_rate=8000,
        frequency_max=4000,
        hop_length=80,
        max_length_s=1,
        fft_window_size=256,
        truncation="rand_trunc",
    ),
    {"text_config": _ROBERTA, "audio_config": _CLAP_AUDIO, **_NARROW},
)


def hub_folder(folder, family, seed=0, **changes):
    """A folder as the hub has it: the weights, their config, the tokenizer and the preprocessor."""
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging

    make_tokenizer, make_processor, options = SOUND if family == "clap" else FAMILIES[family]
    tokenizer = make_tokenizer()
    text = {**options["text_config"], "vocab_size": len(tokenizer)}
    if family == "clip":
        text |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = AutoConfig.for_model(family, **{**options, "text_config": text, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(config).eval()
        for name, value in model.named_parameters():  # as after training: no two alike, none zero
            if "logit" not in name and name != "temperature":
                value.data = (20 if value.ndim == 4 else 1) * value.data + 0.05 * torch.randn_like(value)
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    make_processor().save_pretrained(folder)
    return Path(folder)


def pictures():
    """Of all shapes and modes."""
    generator = np.random.default_rng(0)

    def noise(width, height, mode="RGB"):
        channels = len(Image.new(mode, (1, 1)).getbands())
        shape = (height, width) if channels == 1 else (height, width, channels)
        return Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8), mode)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Image.fromarray's mode
        return {
            "square": noise(32, 32),
            "portrait": noise(40, 90),
            "landscape": noise(301, 200),
            "panorama": noise(640, 20),
            "tower": noise(7, 500),
            "one pixel": noise(1, 1),
            "three rows": noise(50, 3),
            "grey": noise(45, 60, "L"),
            "palette": noise(70, 50).quantize(16),
            "transparent": noise(33, 44, "RGBA"),
            "grey and transparent": noise(33, 44, "LA"),
            "ink": noise(33, 44, "CMYK"),
            "one bit": noise(33, 44, "L").convert("1"),
        }


def changed(folder, name, **values):
    """The JSON file with other values; None removes one."""
    file = Path(folder) / name
    data = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))
    return file
