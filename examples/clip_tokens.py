"""Match the tokens of a CLIP model: patches of an image with words of a text.

    python examples/clip_tokens.py                                   # a tiny random CLIP; nothing is downloaded
    python examples/clip_tokens.py --model openai/clip-vit-base-patch32 "two dogs in the snow" *.jpg

Take the tokens of both sides from the last layer and map them through CLIP's own norms and projections into its shared
space (49 patches of an image, up to 77 tokens of a text). Matching is exact for at most 16 vectors per set, so cluster
the tokens into K vectors: patches of sky, for example, become one vector. Then compare the sets as usual.

CLIP was trained with one pooled vector per side. Its tokens are close to that vector but were never compared with each
other. So this is a starting point for training with `maxmatch.losses`, not a better CLIP. Both functions below pass
gradients on.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoTokenizer, CLIPConfig, CLIPModel

from maxmatch import score_matrix
from maxmatch.data.scenes import make_scene
from maxmatch.data.scenes.drawing import draw
from maxmatch.data.scenes.world import PAINT, generator
from maxmatch.model.images import ImageTransform
from maxmatch.model.text import encode, train_wordpiece_tokenizer
from maxmatch.sentence_transformers import cluster_tokens

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's own
_SPECIAL = {"bos": "[CLS]", "eos": "[SEP]", "pad": "[PAD]"}


class TokenSets(NamedTuple):
    """Up to K unit vectors per item, and which of them are real."""

    vectors: Tensor
    mask: Tensor


def image_sets(model: Any, pixels: Tensor, size: int) -> TokenSets:
    """Images (B, 3, H, W) -> sets. The first token represents the whole image, the others its patches."""
    patches = model.vision_model(pixel_values=pixels).last_hidden_state[:, 1:]
    tokens = model.visual_projection(model.vision_model.post_layernorm(patches))
    return TokenSets(*cluster_tokens(tokens, size))


def text_sets(model: Any, ids: Tensor, mask: Tensor, size: int) -> TokenSets:
    """Token ids (B, N) -> sets. A token sees those before it: the first is the same in all texts and is dropped."""
    tokens = model.text_projection(model.text_model(input_ids=ids, attention_mask=mask.long()).last_hidden_state)
    return TokenSets(*cluster_tokens(tokens[:, 1:], size, mask[:, 1:]))


def tiny_clip(texts: Sequence[str]) -> tuple[Any, Any]:
    """A CLIP with random weights that knows the words of some texts, and its tokenizer."""
    tokenizer = train_wordpiece_tokenizer(texts, vocabulary_size=120, max_length=16)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text: dict[str, Any] = {**small, "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 16}
    text |= {f"{name}_token_id": tokenizer.token_to_id(token) for name, token in _SPECIAL.items()}
    vision = {**small, "image_size": 64, "patch_size": 16}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)), tokenizer


def main(arguments: list[str] | None = None) -> int:
    """Rank images for a text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", default="a red circle above a blue star")
    parser.add_argument("pictures", nargs="*", help="image files; default: four generated ones")
    parser.add_argument("--model", help="a CLIP on the Hugging Face Hub, or its folder; default: a tiny random one")
    parser.add_argument("--size", type=int, default=8, help="K, vectors per set: at most 16, and fast up to 8")
    chosen = parser.parse_args(arguments)
    torch.manual_seed(0)
    if chosen.model is None:
        model, tokenizer = tiny_clip([chosen.text])
        ids, mask = encode(tokenizer, [chosen.text])
    else:
        model = CLIPModel.from_pretrained(chosen.model)
        tokens = AutoTokenizer.from_pretrained(chosen.model)([chosen.text], truncation=True, return_tensors="pt")
        ids, mask = tokens["input_ids"], tokens["attention_mask"].bool()
    drawn = {f"scene {i}": draw(make_scene(0, i), 64, generator(0, i, PAINT)) for i in range(4)}
    pictures: dict[str, Any] = {name: name for name in chosen.pictures} or drawn
    read = ImageTransform(model.config.vision_config.image_size, "crop", MEAN, STD)
    model.eval()
    with torch.inference_mode():
        images = image_sets(model, torch.stack([read(picture) for picture in pictures.values()]), chosen.size)
        texts = text_sets(model, ids, mask, chosen.size)
        scores = score_matrix(texts.vectors, images.vectors, a_mask=texts.mask, b_mask=images.mask)[0]
    for score, name in sorted(zip(scores.tolist(), pictures, strict=True), reverse=True):
        print(f"{score:.3f}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
