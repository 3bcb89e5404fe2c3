"""Shards of random sets, as `maxmatch encode` would leave them, without a model."""

import numpy as np

from maxmatch.core.progress import Skipped
from maxmatch.search.shards import EncodedItems, ShardManifest, begin, complete, finish, write_batch

K, D = 3, 8


def random_sets(count, seed=0, dtype="float32"):
    sets = np.random.default_rng(seed).normal(size=(count, K, D))
    return (sets / np.linalg.norm(sets, axis=2, keepdims=True)).astype(dtype)


def write_shards(folder, count, shard_size=8, seed=0, prefix="item", **more):
    """Shards with items `prefix` and a number; every tenth is left out."""
    known = {
        "model": "somewhere/model",
        "identity": "a" * 64,
        "modality": "image",
        "set_size": K,
        "dim": D,
        "dtype": "float32",
        "source": "/photos",
        "source_format": "folder",
        "source_digest": f"{prefix} {count} {seed}",
        "items": count,
        "shard_size": shard_size,
    }
    manifest = begin(folder, ShardManifest(**{**known, **more}))
    sets = random_sets(count, seed)
    for number in range(manifest.shards):
        places = [place for place in manifest.places(number) if place % 10 != 9]
        lost = [Skipped(f"{prefix}{n}", "cut short.", n) for n in manifest.places(number) if n % 10 == 9]
        metadata = [{"year": 2000 + place, "path": f"/photos/{prefix}{place}.jpg"} for place in places]
        batch = EncodedItems(
            places, [f"{prefix}{n}" for n in places], metadata, sets[places].astype(manifest.dtype), lost
        )
        write_batch(folder, number, batch)
        complete(folder, number, manifest)
    finish(folder, manifest, [])
    return {f"{prefix}{n}": sets[n].astype(manifest.dtype) for n in range(count) if n % 10 != 9}
