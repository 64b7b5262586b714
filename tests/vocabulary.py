"""Vocabularies of real models, from the files that `bpe-openai` ships: what a provider would count."""

from __future__ import annotations

import gzip
import importlib.util
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest import mock

HERE = all(importlib.util.find_spec(name) for name in ("bpe_openai", "tiktoken"))
FILES = {
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
}
"""The names under which `tiktoken` keeps them."""


def put(name: str, folder: Path) -> None:
    """Write a vocabulary into a folder as `tiktoken` keeps it."""
    package = importlib.util.find_spec("bpe_openai")
    assert package is not None
    assert package.origin is not None
    packed = Path(package.origin).parent / "data" / f"{name}.tiktoken.gz"
    (folder / FILES[name]).write_bytes(gzip.decompress(packed.read_bytes()))


@cache
def counter(name: str) -> Callable[[str], int]:
    """What counts the tokens of a text with this vocabulary."""
    import tiktoken

    with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", TIKTOKEN_CACHE_DIR=folder):
        put(name, Path(folder))
        encoding = tiktoken.get_encoding(name)
    return lambda text: len(encoding.encode_ordinary(text))
