"""Every model call of a run as a file, for whoever looks into what a model was asked and said."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vv_agent.errors import ConfigError
from vv_agent.llm.base import Model, ModelRequest, Part, collect
from vv_agent.llm.client import LLMClient

_MAY_HOLD_CREDENTIALS = ("extra_headers", "extra_body", "extra_args")


class DumpingModel:
    """A model whose calls are written to `folder`, one JSON file each: the request as the runtime made it, then what
    came or the error. A file that cannot be written fails the call."""

    def __init__(self, model: Model | LLMClient, folder: str | Path) -> None:
        if not isinstance(model, Model):
            raise ConfigError(
                "debug_dump_unsupported",
                f"configured LLM client does not support debug_dump_dir: {type(model).__name__} has no method "
                "stream(request)",
            )
        self._model = model
        self._folder = Path(folder)

    def stream(self, request: ModelRequest) -> Iterator[Part]:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{request.metadata.get('run_id', 'run')}_{len(request.messages):04}_{secrets.token_hex(4)}.json"
        dump = {"at": time.time(), "request": _request(request)}
        parts: list[Part] = []
        try:
            for part in self._model.stream(request):
                parts.append(part)
                yield part
        except Exception as error:
            dump["error"] = repr(error)
            raise
        finally:
            dump["response"] = asdict(collect(parts))
            text = json.dumps(dump, ensure_ascii=False, indent=1, default=str)
            (self._folder / name).write_text(text, encoding="utf-8", errors="replace")


def _request(request: ModelRequest) -> dict[str, Any]:
    settings = request.settings.to_wire() if request.settings else {}
    return {
        "model_id": request.model_id, "metadata": dict(request.metadata), "tools": list(request.tools),
        "messages": [message.to_wire() for message in request.messages],
        "settings": {name: value for name, value in settings.items() if name not in _MAY_HOLD_CREDENTIALS},
    }  # fmt: skip
