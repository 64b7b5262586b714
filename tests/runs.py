"""Runs for tests: a scripted model and tools that count, and records written as a worker that died left them.

`Host` runs an agent on a store through the public Runner. A record in the middle of something is made in two steps: the
Runner creates it and is stopped before its first claim (so that the definition is the one the Runner makes), then
`Host.seed` writes what a worker would have written, through the store's verbs, and dies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vv_agent import Agent, CapabilityRef, CheckpointConfig, NoToolPolicy, RunConfig, Runner
from vv_agent.checkpoint.identity import model_operation_id, tool_operation_id
from vv_agent.checkpoint.record import Change, Claimed, End, Progress, Then
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.events import RunEvent
from vv_agent.llm.base import ModelRequest, ModelResponse, Part
from vv_agent.llm.client import StreamingClient, parts_of
from vv_agent.messages import Message, ToolCall
from vv_agent.result import RunResult
from vv_agent.runtime.owner import process_owner
from vv_agent.runtime.transcript import Transcript, log_entry, message_item, pack, unpack
from vv_agent.testing import CrashingStore, ScriptedProvider

KEY = "case-key"
STRICT = {
    "ambiguous_model_policy": "require_reconciliation",
    "ambiguous_tool_policy": "require_reconciliation",
}
MODEL = model_operation_id(1, "main")
TOOL = tool_operation_id(1, 1)


class Died(BaseException):
    """Stands for the end of the process: nothing in the runtime may catch it and go on."""


class QueueModel(StreamingClient):
    """Answers each call with the next step, whatever the request is, and counts. An exception as a step is raised."""

    def __init__(self, steps: Sequence[Any]) -> None:
        self.steps = list(steps)
        self.requests: list[ModelRequest] = []

    def stream(self, request: ModelRequest) -> Iterator[Part]:
        self.requests.append(request)
        step = self.steps.pop(0)
        step = step(request) if callable(step) else step
        if isinstance(step, BaseException):
            raise step
        yield from parts_of(step if isinstance(step, ModelResponse) else response(step))


def response(step: Mapping[str, Any] | str) -> ModelResponse:
    """A model step of a fixture: `{content, tool_calls[{id, name, arguments}]}`."""
    if isinstance(step, str):
        return ModelResponse(step)
    calls = [ToolCall(c["id"], c["name"], json.dumps(c["arguments"])) for c in step.get("tool_calls", [])]
    usage = (step.get("raw") or {}).get("usage")
    found = ModelResponse(step.get("content") or "", tuple(calls), finish_reason="tool_calls" if calls else "stop")
    return found if usage is None else ModelResponse(found.content, found.tool_calls, usage=_usage(usage))


def _usage(raw: Mapping[str, Any]) -> Any:
    from vv_agent.llm.base import UsageReport

    return UsageReport(raw)


class QueueProvider(ScriptedProvider):
    """A provider of one `QueueModel`."""

    def __init__(self, steps: Sequence[Any]) -> None:
        super().__init__(())
        self._model = QueueModel(steps)  # type: ignore[assignment]

    @property
    def model(self) -> QueueModel:
        return self._model  # type: ignore[return-value]


@dataclass
class Outcome:
    """What one call of the Runner came to, as seen from outside."""

    result: RunResult | None
    error: BaseException | None
    events: list[RunEvent]
    model_calls: int
    saves: list[Change] = field(default_factory=list)

    def types(self, *among: str) -> list[str]:
        return [event.type for event in self.events if not among or event.type in among]

    def event(self, event_type: str) -> Any:
        (found,) = [event for event in self.events if event.type == event_type]
        return found

    @property
    def ok(self) -> RunResult:
        """The result; what was raised instead, if there is none."""
        if self.result is None:
            raise AssertionError("the run gave no result") from self.error
        return self.result

    @property
    def code(self) -> str:
        return str(getattr(self.error, "code", None) or self.ok.error_code)


class Recording(CrashingStore):
    """A store that tells of each save and can die at any verb."""

    def __init__(self, store: CheckpointStore, die_at: tuple[str, str, int] | None = None) -> None:
        super().__init__(store, self._pass)
        self.saves: list[Change] = []
        self._die_at = die_at
        self._passed: dict[tuple[str, str], int] = {}

    def save(self, claim: Any, change: Change) -> Any:
        saved = super().save(claim, change)
        self.saves.append(change)
        return saved

    def _pass(self, boundary: str, side: str) -> None:
        count = self._passed[boundary, side] = self._passed.get((boundary, side), 0) + 1
        if self._die_at == (boundary, side, count):
            raise Died(f"{boundary}:{side}:{count}")


@dataclass
class Host:
    """An agent on a store; each `run` is another process as far as the runtime can tell."""

    store: CheckpointStore
    folder: Path
    tools: Sequence[Any] = ()
    checkpoint: Mapping[str, Any] | None = field(default_factory=dict)
    """Fields of the CheckpointConfig besides key and store; None: no checkpoint. Policies left out are the strict ones."""
    key: str | None = KEY
    agent: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    text: str = "process item 42"

    def run(self, steps: Sequence[Any] = (), *, die_at: tuple[str, str, int] | None = None, **more: Any) -> Outcome:
        """Start the run, or go on with it: a new Runner, a new model with these steps, the same key."""
        store = Recording(self.store, die_at)
        provider = QueueProvider(steps)
        runner = Runner(model_provider=provider, workspace=self.folder)
        events: list[RunEvent] = []
        result, error = None, None
        try:
            config = self.run_config(store, stream=events.append, **more)
            result = runner.run_sync(self.make_agent(), self.text, run_config=config)
        except Died as death:
            error = death
            self.store.expire(process_owner())
        except Exception as problem:
            error = problem
        return Outcome(result, error, events, len(provider.model.requests), store.saves)

    def make_agent(self) -> Agent:
        return Agent(**{
            "name": "checkpoint-agent",
            "instructions": "Use available tools and return the model response.",
            "model": "scripted",
            "tools": list(self.tools),
            **self.agent,
        })  # fmt: skip

    def run_config(self, store: Any, **more: Any) -> RunConfig:
        values: dict[str, Any] = {"max_cycles": 3, "no_tool_policy": NoToolPolicy.FINISH, **self.config, **more}
        if self.checkpoint is not None:
            fields = {"resume_policy": "resume_if_present", **STRICT, **self.checkpoint}
            if "reconciliation_provider" in values:
                fields["capability_refs"] = {
                    **fields.get("capability_refs", {}),
                    "reconciliation_provider": CapabilityRef(id="tests.reconcile", version="1"),
                }
            values["checkpoint_config"] = CheckpointConfig(key=self.key, store=store, **fields)
        return RunConfig(**values)

    # Records as a dead worker left them.

    def seed(
        self,
        *log: Sequence[Any],
        journal: Mapping[str, Mapping[str, Any]] | None = None,
        then: Then | None = None,
        status: str | None = None,
        blobs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """A record with these log items and journal entries. Without `then` the claim is left behind, its lease over."""
        if self.store.load(self.key or "") is None:
            created = self.run(die_at=("store.claim", "before", 1), **more)
            assert isinstance(created.error, Died), created
        key = self.key or ""
        head = self.store.load(key).head  # type: ignore[union-attr]
        answer = self.store.claim(key, head.cycle, f"{head.revision:032x}", owner="gone/1/1", lease=30_000)
        assert isinstance(answer, Claimed), answer
        packed = {name: pack(self._completed(entry, log)) for name, entry in (journal or {}).items()}
        change = Change(
            1, then or Progress(), status=status, log=(log_entry(log),) if log else (), journal=packed,
            ending=isinstance(then, End), blobs={name: pack(value) for name, value in (blobs or {}).items()},
        )  # fmt: skip
        self.store.save(answer.claim, change)
        if then is None:
            self.store.expire("gone/1/1")

    def _completed(self, entry: Mapping[str, Any], log: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """A model's entry with `digest` None gets that of the request the run makes."""
        return {**entry, "digest": self.identity(log)} if entry.get("digest", "") is None else dict(entry)

    def identity(self, more: Sequence[Sequence[Any]] = ()) -> str:
        """What identifies the model request of the record as it stands, with these items added."""
        transcript = Transcript()
        for stored in self.store.load(self.key or "").log:  # type: ignore[union-attr]
            transcript.extend(stored.seq, stored.body)
        for item in more:
            transcript.add(item)
        return transcript.identity.hex()

    def head(self) -> Any:
        return self.store.load(self.key or "").head  # type: ignore[union-attr]

    def journal(self) -> dict[str, Any]:
        """The journal of the open cycle, decoded."""
        stored = self.store.load(self.key or "").journal  # type: ignore[union-attr]
        return {name: unpack(body, name) for name, body in stored.items()}


def receipt(step: Mapping[str, Any] | str, cycle: int = 1) -> list[Any]:
    """The log item of a model receipt."""
    made = response(step)
    message = Message("assistant", made.content, tool_calls=made.tool_calls)
    return ["a", cycle, message.to_wire(), made.usage.raw, None, None, made.finish_reason]


def hint(cycle: int, text: str) -> list[Any]:
    """The log item of the program's message after a cycle."""
    return message_item(cycle, Message("user", text))


def asks(
    name: str = "write_record", *, call_id: str = "call_1", arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A model step that calls one tool."""
    return {"content": "", "tool_calls": [{"id": call_id, "name": name, "arguments": dict(arguments or {})}]}
