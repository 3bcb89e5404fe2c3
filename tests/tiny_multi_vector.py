"""A tiny random model of sentence-transformers with a vector per token, built from a config: no network."""

from collections.abc import Sequence
from pathlib import Path

import torch
from sentence_transformers import MultiVectorEncoder
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from maxmatch.model.text import train_wordpiece_tokenizer


def multi_vector_model(folder: Path, texts: Sequence[str]) -> MultiVectorEncoder:
    """With a vocabulary of these texts. Its BERT is saved to the folder."""
    tokenizer = train_wordpiece_tokenizer(list(texts), vocabulary_size=200, max_length=32)
    torch.manual_seed(0)
    bert = BertModel(
        BertConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=40,
        )
    )
    bert.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)  # fmt: skip
    return MultiVectorEncoder(str(folder), device="cpu")
