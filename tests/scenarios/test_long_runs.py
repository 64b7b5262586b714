"""Runs that are much longer than their model's window: what they never pass, and what they never forget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.long_run import AGENT, FACTS, TASKS, Provider, models, serving
from tests.vocabulary import HERE
from vv_agent import CheckpointConfig, RunConfig, Runner
from vv_agent.checkpoint.sql import SqlStore
from vv_agent.result import RunResult

pytestmark = pytest.mark.skipif(
    not HERE, reason="a provider that counts needs tiktoken and bpe-openai (pip install -e .[dev])"
)
NARROW = {"reserved_output_tokens": 2_000, "autocompact_buffer_tokens": 2_000, "compact_threshold": 0}


@contextmanager
def played(provider: Provider, folder: Path, **metadata: Any) -> Iterator[tuple[RunResult, list[Any], SqlStore]]:
    store, seen = SqlStore(f"sqlite:///{folder}/runs.db"), list[Any]()
    with serving(provider) as server:
        runner = Runner(model_provider=models(server.url, folder, provider.window), workspace=folder / "work")
        config = RunConfig(
            model="long", max_cycles=1_000, stream=seen.append, metadata=metadata,
            checkpoint_config=CheckpointConfig(store=store, key="long"),
        )  # fmt: skip
        yield runner.run_sync(AGENT, TASKS[provider.language], run_config=config), seen, store
    store.close()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_long_run_stays_in_its_window_and_knows_its_task(language: str, tmp_path: Path) -> None:
    provider = Provider(100, language, window=32_000)
    with played(provider, tmp_path, **NARROW) as (result, seen, store):
        assert result.final_output == "done"
        changed = {e.cycle_index for e in seen if e.type == "memory_compact_completed" and e.changed}
        untouched = [part for cycle, part in enumerate(provider.shared, 2) if cycle not in changed]
        assert (provider.refused, provider.peak <= provider.window) == (0, True)
        assert provider.summaries >= 1
        assert provider.knows(TASKS[language])
        assert provider.knows(FACTS[language])
        assert len(untouched) > 50
        assert min(untouched) >= 0.9
        assert len([m for m in result.new_items if m.role == "tool"]) == 99
        head = store.load("long").head  # type: ignore[union-attr]
        assert head.log_from > head.entry_n / 2


def test_what_the_model_wrote_down_stays_without_a_model_that_summarises(tmp_path: Path) -> None:
    provider = Provider(100, "en", window=32_000, summarises=False, writes_down=True)
    with played(provider, tmp_path, **NARROW) as (result, _, _store):
        assert result.final_output == "done"
        assert provider.knows(TASKS["en"])
        assert provider.knows(FACTS["en"])


def test_a_window_smaller_than_told_is_found_by_being_refused(tmp_path: Path) -> None:
    provider = Provider(30, "en", window=20_000)
    with played(provider, tmp_path, model_context_window=64_000, **NARROW) as (result, seen, _store):
        assert result.final_output == "done"
        assert provider.refused > 0
        assert {e.trigger for e in seen if e.type == "memory_compact_started"} >= {"prompt_too_long"}
        assert provider.knows(TASKS["en"])
