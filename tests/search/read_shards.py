"""What shards of sets hold."""

import json

from maxmatch.search.shards import read_manifest, read_shard


def read_all(folder):
    manifest = read_manifest(folder)
    return [read_shard(folder, number, manifest) for number in range(manifest.shards)]


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def skipped(folder):
    return {row["id"]: row["reason"] for row in rows(folder / "skipped.jsonl")}
