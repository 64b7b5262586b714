"""Token counts: a fast estimate that needs no file, and exact counts where a vocabulary is installed.

The runtime budgets with the estimate and corrects it by what the provider says a prompt had; nothing is ever fetched.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from vv_agent.messages import Message
from vv_agent.settings import vocabulary_folder

CJK_TOKENS, OTHER_TOKENS = 0.7, 0.25
"""Tokens of a Chinese, Japanese or Korean character, and of any other (a pictograph counts as one)."""
IMAGE_TOKENS, MOONSHOT_IMAGE_TOKENS = 765, 1024
_MESSAGE_TOKENS = 4
"""What the frame of a message takes."""
_CJK = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
_PICTOGRAPH = re.compile("[\U0001f000-\U0001faff]")


def estimate(text: str) -> int:
    """About how many tokens a text has; at least 1 unless it is empty."""
    if not text:
        return 0
    if text.isascii():
        return max(1, len(text) // 4)
    wide, pictures = len(_CJK.findall(text)), len(_PICTOGRAPH.findall(text))
    return max(1, int(wide * CJK_TOKENS + pictures + (len(text) - wide - pictures) * OTHER_TOKENS))


def estimate_message(message: Message) -> int:
    """About what a message adds to a prompt."""
    total = _MESSAGE_TOKENS + estimate(message.content)
    for call in message.tool_calls:
        total += _MESSAGE_TOKENS + estimate(call.name) + estimate(call.arguments)
    if message.reasoning_content:
        total += estimate(message.reasoning_content)
    return total + IMAGE_TOKENS if message.image_url else total


def estimate_tools(schemas: Iterable[Mapping[str, Any]]) -> int:
    """About what the tool schemas of a request add to it."""
    return sum(estimate(str(schema)) for schema in schemas)


def count_tokens(text: str) -> int:
    """The tokens of a text: by the o200k_base vocabulary if it is here (`encoder`), else the estimate."""
    encode = encoder()
    return len(encode(text)) if encode is not None else estimate(text)


def count_messages(messages: Sequence[Message], model: str = "") -> int:
    """The tokens of the contents, joined by line breaks, and of the images."""
    per_image = MOONSHOT_IMAGE_TOKENS if model.lower().startswith("moonshot") else IMAGE_TOKENS
    images = sum(message.image_url is not None for message in messages)
    return count_tokens("\n".join(message.content for message in messages)) + images * per_image


@lru_cache(maxsize=1)
def encoder() -> Callable[[str], Sequence[int]] | None:
    """The o200k_base vocabulary, where `tiktoken` is installed and its file lies in its cache; else None.

    The file is looked at first: without it, or with a broken one, tiktoken would fetch it.
    """
    file = vocabulary_folder() / _FILE
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != _SHA256:
        return None
    try:
        import tiktoken
    except ImportError:
        return None
    encode: Callable[[str], Sequence[int]] = tiktoken.get_encoding("o200k_base").encode_ordinary
    return encode


_FILE = "fb374d419588a4632f3f557e76b4b70aebbca790"
_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
