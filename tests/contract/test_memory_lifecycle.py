"""memory_lifecycle.json: capacities as pure functions, compactions and their models through the Runner."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent import Agent, NoToolPolicy, RunConfig, Runner, events, function_tool
from vv_agent.errors import LlmError
from vv_agent.llm.base import ModelResponse, UsageReport
from vv_agent.llm.client import parts_of
from vv_agent.llm.reference import ModelRef, ResolvedModelConfig
from vv_agent.memory import (
    MemoryConfig,
    MemoryManager,
    MemoryProvider,
    MemoryProviderResult,
    SessionMemory,
    SessionMemoryConfig,
    capacity,
)
from vv_agent.messages import Message, ToolCall
from vv_agent.result import RunResult
from vv_agent.testing import ScriptedProvider, call, say
from vv_agent.tools import artifacts
from vv_agent.workspace import LocalWorkspaceBackend, MemoryWorkspaceBackend

DATA = load("memory_lifecycle.json")
CASES = Cases("memory_lifecycle.json")
CAPACITY = DATA["capacity_contract"]


def test_the_defaults_are_those_of_the_contract() -> None:
    with CASES.run("capacity_contract"):
        config, found = MemoryConfig(), capacity(MemoryConfig())
        assert config.compact_threshold == CAPACITY["configured_default_threshold"]
        assert found.reserved_output_tokens == CAPACITY["reserved_output_tokens_fallback"]
        assert config.autocompact_buffer_tokens == CAPACITY["autocompact_buffer_tokens_default"]
        assert config.microcompact_trigger_ratio == CAPACITY["microcompact_trigger_ratio_default"]
        unknown = CAPACITY["unknown_context_window_strategy"]["default_model_context_window"]
        assert found.model_context_window == capacity(MemoryConfig(compact_threshold=0)).model_context_window == unknown
        sources = events.MemoryCompactStartedEvent.model_fields["reserved_output_source"].annotation
        assert list(get_args(sources)) == CAPACITY["reserved_output_source_values"]
        assert capacity(MemoryConfig(compact_threshold=2**64)).model_context_window == 2**64 - 1
        capped = capacity(MemoryConfig(), max_output=4096)
        last = CAPACITY["reserved_output_source_values"][-1]
        assert (capped.reserved_output_tokens, capped.reserved_output_source) == (4096, last)


@pytest.mark.parametrize("case", CAPACITY["context_window_resolution"]["cases"], ids=lambda case: case["name"])
def test_the_window_is_that_of_the_metadata_or_the_model_or_derived(case: dict[str, Any]) -> None:
    with CASES.run(f"window/{case['name']}"):
        given = case["input"]
        config = MemoryConfig.from_metadata({
            "model_context_window": given["task_metadata_model_context_window"],
            "compact_threshold": given.get("configured_threshold"),
            "reserved_output_tokens": given.get("reserved_output_tokens"),
            "autocompact_buffer_tokens": given.get("autocompact_buffer_tokens"),
        })  # fmt: skip
        found = capacity(config, context_length=given["resolved_model_context_window"])
        assert found.model_context_window == case["expected_model_context_window"]


@pytest.mark.parametrize("case", CAPACITY["cases"], ids=lambda case: case["name"])
def test_the_thresholds_follow_from_the_window(case: dict[str, Any]) -> None:
    with CASES.run(f"capacity/{case['name']}"):
        given = case["input"]
        config = MemoryConfig.from_metadata({
            "compact_threshold": str(given["configured_threshold"]),
            "model_context_window": given["model_context_window"],
            "reserved_output_tokens": given["task_metadata_reserved_output_tokens"],
            "autocompact_buffer_tokens": given["autocompact_buffer_tokens"],
        })  # fmt: skip
        found = capacity(
            config, max_tokens=given["effective_model_max_tokens"], max_output=given["model_max_output_tokens"]
        )
        assert {name: getattr(found, name) for name in case["expected"]} == case["expected"]


def test_the_events_have_the_values_of_the_contract() -> None:
    with CASES.run("compaction_events"):
        wanted = DATA["compaction_events"]
        started, done = events.MemoryCompactStartedEvent.model_fields, events.MemoryCompactCompletedEvent.model_fields
        assert list(get_args(started["trigger"].annotation)) == wanted["started"]["trigger_values"]
        assert list(get_args(done["mode"].annotation)) == wanted["completed"]["mode_values"]
        assert set(wanted["started"]["new_producer_fields"]) <= set(started)
        assert set(wanted["completed"]["new_producer_fields"]) <= set(done)


def test_a_warning_comes_after_clearing_and_looks_at_what_is_left() -> None:
    with CASES.run("simultaneous_warning_and_microcompact"):
        config = MemoryConfig(
            compact_threshold=1_000, include_memory_warning=True, warning_threshold_percentage=60,
            microcompact_keep_recent_cycles=1,
        )  # fmt: skip
        history = turns("x" * 2_400, "y" * 2_000)
        manager = MemoryManager(config, count=lambda messages: sum(len(m.content) for m in messages) // 4)
        done = manager.run(history, manager.count(history))
        assert done.mode == "micro"
        assert done.messages[4:] == tuple(history[4:])  # 50 % are left: no warning, though there were 110
        still = manager.run(turns("x" * 600, "y" * 3_000), 900)
        assert still.mode == "micro"
        assert "Memory warning" in still.messages[-1].content
        again = manager.run(still.messages, 900)
        assert again.messages == still.messages


def turns(*results: str) -> list[Message]:
    """A history of calls of `read_file` with these results."""
    history = [Message("system", "Work."), Message("user", "Go.")]
    for n, result in enumerate(results):
        history += [
            Message("assistant", "", tool_calls=(ToolCall(f"c{n}", "read_file"),)),
            Message("tool", result, tool_call_id=f"c{n}"),
        ]
    return history


class Watching(MemoryProvider):
    """Notes what it sees."""

    name = "watching"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def before_compact(self, event: Any) -> MemoryProviderResult:
        self.seen.append(event)
        return MemoryProviderResult(DATA["provider_attempts"]["result_metadata"])

    def after_compact(self, event: Any) -> None:
        self.seen.append(event)


class Broken(MemoryProvider):
    """Fails at both ends."""

    def before_compact(self, event: Any) -> None:
        raise RuntimeError(DATA["provider_attempts"]["before_error"]["error"])

    def after_compact(self, event: Any) -> None:
        raise RuntimeError(DATA["provider_attempts"]["after_error"]["error"])


@function_tool
def look(n: int) -> str:
    """Look something up."""
    return f"result {n}: " + "word " * 100


def refused_then(failures: int) -> tuple[RunResult, list[Any], list[int], Watching]:
    """A run whose third cycle is refused as too long a few times: result, events, messages of each request."""
    left, sizes = [failures], []

    def third(request: Any) -> Any:
        sizes.append(len(request.messages))
        if left[0]:
            left[0] -= 1
            raise LlmError("context_length", "HTTP 400 context_length_exceeded: prompt is too long", definite=True)
        return say("done")

    steps = [call("look", {"n": 1}), call("look", {"n": 2}), *(third for _ in range(4))]
    seen: list[Any] = []
    watching = Watching()
    agent = Agent(name="a", instructions="Work.", tools=[look], no_tool_policy=NoToolPolicy.FINISH)
    config = RunConfig(stream=seen.append, memory_providers=[watching, Broken()])
    result = Runner(model_provider=ScriptedProvider(steps)).run_sync(agent, "Go.", run_config=config)
    return result, [event for event in seen if event.type.startswith("memory_compact")], sizes, watching


def test_a_refused_prompt_is_made_shorter_and_sent_again() -> None:
    with CASES.run("provider_attempts"):
        wanted = DATA["provider_attempts"]
        result, told, _, watching = refused_then(wanted["prompt_too_long_failures_before_success"])
        assert result.final_output == "done"
        started, completed = told[::2], told[1::2]
        assert [event.type for event in started] == ["memory_compact_started"] * wanted["started_count"]
        assert [event.type for event in completed] == ["memory_compact_completed"] * wanted["completed_count"]
        assert {event.trigger for event in started} == {"prompt_too_long"}
        assert [event.mode for event in completed] == ["summary", "none"]  # two messages are left: nothing to drop
        for event in started:
            assert event.metadata["memory_provider_results"] == {"watching": wanted["result_metadata"]}
            (error,) = event.metadata["memory_provider_errors"]
            assert {name: error[name] for name in wanted["before_error"]} == wanted["before_error"]
            assert (error["provider"], error["error_type"]) == ("Broken", "RuntimeError")
        for event in completed:
            (error,) = event.metadata["memory_provider_errors"]
            assert {name: error[name] for name in wanted["after_error"]} == wanted["after_error"]
        with CASES.run("provider_and_journal_share_event_identity"):
            pairs = zip(watching.seen, told, strict=True)
            assert all((a.event_id, a.created_at) == (b.event_id, b.created_at) for a, b in pairs)
        assert len(watching.seen[0].metadata["messages"]) == started[0].message_count


def test_the_strategies_are_forced_then_dropping_more_and_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from vv_agent.memory import stages

    asked: list[float] = []
    dropped = stages.dropped

    def noting(messages: Sequence[Message], ratio: float, keep: int) -> list[Message]:
        asked.append(ratio)
        return dropped(messages, ratio, keep)

    monkeypatch.setattr(stages, "dropped", noting)
    refused_then(3)
    wanted = [attempt["drop_ratio"] for attempt in DATA["provider_attempts"]["strategies"] if attempt["drop_ratio"]]
    assert asked[:1] == wanted
    assert asked == [0.4, pytest.approx(0.6)]


def test_after_three_refusals_the_run_fails() -> None:
    result, told, sizes, _ = refused_then(9)
    assert result.status == "failed"
    assert "Context compaction failed after 3 consecutive attempts. Last error: " in str(result.raw_result.error)
    assert (len(told), len(sizes)) == (6, 4)


class Routing(ScriptedProvider):
    """Counts what is resolved; models with an answer of their own note what they are asked."""

    def __init__(self, steps: Sequence[Any], answers: dict[str, str]) -> None:
        super().__init__(steps)
        self.resolved: list[str] = []
        self.requests: list[Any] = []
        self.answers = answers

    def resolve(self, model: ModelRef) -> ResolvedModelConfig:
        self.resolved.append(str(model))
        plain = super().resolve(ModelRef(model.model))
        return replace(plain, backend=model.backend_name or "scripted")

    def client(self, resolved: ResolvedModelConfig) -> Any:
        answers = self.answers.get(resolved.model_id)
        return super().client(resolved) if answers is None else Asked(self.requests, answers)


class Asked:
    """A model that gives one answer and notes the requests."""

    def __init__(self, requests: list[Any], answer: str) -> None:
        self._requests, self._answer = requests, answer

    def stream(self, request: Any) -> Any:
        self._requests.append(request)
        usage = UsageReport({"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107})
        yield from parts_of(ModelResponse(self._answer, usage=usage))


@pytest.mark.parametrize("which", ["summary_route", "session_extraction_route"])
def test_memory_asks_a_model_of_its_own_resolved_once(which: str, tmp_path: Path) -> None:
    with CASES.run(which):
        route = DATA[which]
        facts = '[{"category": "key_fact", "content": "the code is 7", "importance": 9}]'
        summary = json.dumps({"summary_version": "2.0", "key_facts": ["the code is 7"]})
        texts = {"memory-model": f"```json\n{summary}\n```", "session-memory-model": facts}
        provider = Routing([*(call("look", {"n": n}) for n in range(12)), say("done")], texts)
        prefix = "memory_summary" if which == "summary_route" else "session_memory_extraction"
        metadata = {
            f"{prefix}_backend": route["backend"], f"{prefix}_model": route["model"],
            "compact_threshold": 1_000 if which == "summary_route" else 100_000,
        }  # fmt: skip
        instructions = "Work." if which == "summary_route" else "Work. " + "x" * 44_000
        agent = Agent(name="a", instructions=instructions, tools=[look], no_tool_policy=NoToolPolicy.FINISH)
        shown: list[Any] = []
        before = partial(noting_messages, shown)
        config = RunConfig(metadata=metadata, max_cycles=20, before_cycle_messages=before)
        result = Runner(model_provider=provider, workspace=tmp_path).run_sync(agent, "Go.", run_config=config)
        assert result.final_output == "done"
        assert {request.model_id for request in provider.requests} == {route["request_model"]}
        assert provider.resolved.count(f"{route['backend']}/{route['model']}") == route["resolution_count"]
        assert any("the code is 7" in message.content for message in shown[-1])
        assert [c.usage.total_tokens for c in result.token_usage.cycles].count(107) == len(provider.requests)


def noting_messages(shown: list[Any], cycle: int, messages: Any, state: Any) -> list[Message]:
    """Notes what is shown before a cycle, and says something in the first ones."""
    shown.append(messages)
    return [Message("user", f"Note {cycle}.")] if cycle < 7 else []


def test_the_session_memory_is_one_block_that_is_always_the_newest() -> None:
    with CASES.run("session_memory"):
        wanted = DATA["session_memory"]
        session = SessionMemory(SessionMemoryConfig(min_tokens=1))
        manager = MemoryManager(MemoryConfig(compact_threshold=100), session_memory=session)
        session.add([{"category": "decision", "content": wanted["stale_fact"]}], 1)
        shown = manager.apply_session_memory_context(turns("x" * 600, "x" * 600, "x" * 600, "x" * 600, "x" * 600))
        session.state = type(session.state)()
        session.add([{"category": "decision", "content": wanted["fresh_fact"]}], 2)
        done, changed = manager.compact(shown, cycle_index=2, force=True)
        assert changed
        assert done[0].content.count("<Session Memory>") == wanted["block_count"]
        assert wanted["fresh_fact"] in done[0].content
        assert wanted["stale_fact"] not in done[0].content
        assert session.state.initialized is wanted["initialized_after_compaction"]
        assert (session.state.last_tokens == manager.count(done)) is wanted["baseline_includes_injected_context"]
        assert session.state.last_message_index == -1
        bare = manager.strip_session_memory_context(done)
        assert "<Session Memory>" not in bare[0].content


def test_large_results_are_moved_into_files_of_their_own(tmp_path: Path) -> None:
    with CASES.run("artifacts"):
        wanted = DATA["artifacts"]
        space = LocalWorkspaceBackend(tmp_path)
        names = [
            artifacts.keep(space, 3, call_id, text, lambda: None).rpartition("/")[2]
            for call_id, text in (("../x", "one"), ("../x", "two"))
        ]
        assert len(names) == wanted["fallback_count"]
        assert all(re.fullmatch(wanted["fallback_pattern"], name) for name in names)
        assert (len(set(names)) == len(names)) is wanted["paths_are_distinct"]
        assert artifacts.keep(MemoryWorkspaceBackend(), 3, "call_1", "x", lambda: None).endswith("cycle_3/call_1.txt")
        failing = MemoryManager(MemoryConfig(tool_result_keep_last=0), keep=lambda call_id, text: None)
        done = failing.run(turns("x" * 2_001, "y" * 2_000), 10**9)
        assert f"artifact_path: {wanted['write_failure_path']}\n" in done.messages[3].content
        assert done.messages[5].content == "y" * 2_000


def test_a_folder_outside_the_workspace_is_not_written(tmp_path: Path) -> None:
    with CASES.run("artifacts/escape"):
        space = tmp_path / "space"
        steps = [*(call("long", {}) for _ in range(6)), say("done")]
        agent = Agent(name="a", instructions="Work.", tools=[long], no_tool_policy=NoToolPolicy.FINISH)
        seen: list[Any] = []
        metadata = {"tool_result_artifact_dir": "../outside", "compact_threshold": 12_500}
        config = RunConfig(metadata=metadata, before_cycle_messages=partial(noting_messages, seen), max_cycles=9)
        result = Runner(model_provider=ScriptedProvider(steps), workspace=space).run_sync(
            agent, "Go.", run_config=config
        )
        assert result.final_output == "done"
        moved = [m.content for m in seen[-1] if m.content.startswith("[Tool result compacted]")]
        assert moved
        assert all(f"artifact_path: {DATA['artifacts']['escape_path']}\n" in text for text in moved)
        assert not (tmp_path / "outside").exists()


@function_tool
def long() -> str:
    """Say much."""
    return "word " * 1_600
