"""Control at bad moments: words that come together, stores that fail once, code of the host that gives nonsense."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.harness import until
from tests.runs import STRICT, TOOL
from tests.scenarios.agents import by_agent
from tests.scenarios.conftest import Scripts
from vv_agent import (
    Agent,
    AgentStatus,
    ApprovalDecision,
    BeforeLlmPatch,
    BeforeToolCallPatch,
    CheckpointConfig,
    GuardrailResult,
    InputGuardrail,
    InteractiveAgentClient,
    NoToolPolicy,
    OutputGuardrail,
    RunConfig,
    Runner,
    RuntimeHook,
    ToolPolicy,
    function_tool,
    process,
)
from vv_agent.agent import SubAgentConfig
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.reconciliation import ReconciliationDecision
from vv_agent.checkpoint.record import Filter, State
from vv_agent.dispatch.inline import InlineBackend
from vv_agent.dispatch.threaded import ThreadBackend
from vv_agent.errors import ConfigError, StoreError
from vv_agent.hooks import AfterCycleDecision, AfterCycleHook
from vv_agent.llm.base import ModelResponse
from vv_agent.messages import Message, ToolCall
from vv_agent.runtime.inbox import reconcile_signal
from vv_agent.settings import Settings
from vv_agent.testing import CrashingStore, ScriptedProvider, call, calls

FINISH = NoToolPolicy.FINISH
BACKENDS = [InlineBackend, ThreadBackend]
ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    ran.append(f"pay {amount}")
    return f"paid {amount}"


@function_tool
def note(text: str) -> str:
    """Note something."""
    ran.append(text)
    return text


def kept(store: Any, **more: Any) -> RunConfig:
    checkpoint = CheckpointConfig(key="k", store=store, resume_policy="resume_if_present", **more.pop("checkpoint", {}))
    return RunConfig(checkpoint_config=checkpoint, **more)


def runner(steps: Any, folder: Path) -> Runner:
    return Runner(model_provider=ScriptedProvider(steps), workspace=folder)


class Yes:
    def decide(self, request: Any) -> ApprovalDecision:
        ran.append(f"asked {request.agent_name}")
        return ApprovalDecision.allow_session()


# Approvals.


def test_a_deny_stands_beside_a_yes_to_all_later_calls(tmp_path: Path) -> None:
    store = MemoryStore()
    agent = Agent(name="clerk", instructions="Pay.", tools=[pay], no_tool_policy=FINISH)
    there = runner([calls(("pay", {"amount": 5}), ("pay", {"amount": 5000})), "Done."], tmp_path)
    first, second = there.run_sync(agent, "Pay.", run_config=kept(store)).approval_snapshot()
    handle = there.attach("k", store=store)
    handle.approve(second.interruption_id, ApprovalDecision.deny("too much"))
    handle.approve(first.interruption_id, ApprovalDecision.allow_session())
    assert there.run_sync(agent, "Pay.", run_config=kept(store)).status == "completed"
    assert ran == ["pay 5"]


def test_a_yes_reaches_the_run_below_that_was_handed_over_and_is_not_parked_yet(tmp_path: Path) -> None:
    cashier = Agent(name="cashier", instructions="Cashier.", tools=[pay], no_tool_policy=FINISH)
    desk = Agent(name="desk", instructions="Desk.", handoffs=[cashier], no_tool_policy=FINISH)
    lead = Agent(name="lead", instructions="Lead.", tools=[desk.as_tool()], no_tool_policy=FINISH)
    script = by_agent({
        "Lead.": [call("desk", {"task_description": "pay 5"}), "Done."],
        "Desk.": [call("transfer_to_cashier", {"input": "pay 5"})], "Cashier.": [call("pay", {"amount": 5}), "Paid."],
    })  # fmt: skip
    asked = threading.Event()

    class Soon(Yes):
        def decide(self, request: Any) -> ApprovalDecision:
            asked.set()
            return super().decide(request)

    def late(boundary: str, side: str) -> None:
        if (boundary, side) == ("store.save.park", "before") and not asked.is_set():
            asked.wait(2)
            time.sleep(0.05)  # the answer is posted while the park is saved

    config = kept(CrashingStore(MemoryStore(), late), approval_provider=Soon())
    assert runner(script, tmp_path).start(lead, "Go.", run_config=config).result(20).status == "completed"
    assert ran == ["asked cashier", "pay 5"]


def test_a_yes_to_all_later_calls_of_a_tool_is_none_to_another_agents_tool(tmp_path: Path) -> None:
    bank = Agent(name="bank", instructions="Bank.", tools=[pay], no_tool_policy=FINISH)
    post = Agent(name="post", instructions="Post.", tools=[pay], handoffs=[bank], no_tool_policy=FINISH)
    script = by_agent({
        "Post.": [call("pay", {"amount": 1}), call("transfer_to_bank", {"input": "x"})],
        "Bank.": [call("pay", {"amount": 2}), "Done."],
    })  # fmt: skip
    assert (
        runner(script, tmp_path).run_sync(post, "Go.", run_config=RunConfig(approval_provider=Yes())).status
        == "completed"
    )
    assert ran == ["asked post", "pay 1", "asked bank", "pay 2"]


def test_the_provider_of_a_start_is_asked_after_an_answer_too(tmp_path: Path) -> None:
    agent = Agent(name="clerk", instructions="Pay.", tools=[pay], no_tool_policy=NoToolPolicy.WAIT_USER)
    there = runner(["How much?", call("pay", {"amount": 5}), "Anything else?"], tmp_path)
    waiting = there.run_sync(agent, "Pay.", run_config=RunConfig(approval_provider=Yes()))
    assert there.start_resume(waiting.into_state(), input="5").result(10).status == "wait_user"
    assert ran == ["asked clerk", "pay 5"]


@pytest.mark.parametrize("wrong", [{"reason": ValueError("no")}, {"metadata": [1]}, {"metadata": {"x": object()}}])
def test_a_decision_that_cannot_be_stored_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="approval_invalid"):
        ApprovalDecision.deny(**wrong)


class Away(MemoryStore):
    """A store that takes no signal for longer than anybody is patient."""

    def __init__(self) -> None:
        super().__init__()
        self.until = float("inf")

    def post(self, key: str, signal: Any) -> Any:
        if signal.kind == "approval" and time.monotonic() < self.until:
            raise StoreError("store_unavailable", "away")
        return super().post(key, signal)


def test_the_word_of_a_provider_outlasts_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vv_agent.runtime.patience.PATIENCE", 0.2, raising=False)
    store = Away()
    agent = Agent(name="clerk", instructions="Pay.", tools=[pay], no_tool_policy=FINISH)
    there = runner([call("pay", {"amount": 5}), "Done."], tmp_path)
    handle = there.start(agent, "Pay.", run_config=kept(store, approval_provider=Yes()))
    until(lambda: ran, "it was asked")
    store.until = time.monotonic() + 6
    assert handle.result(20).status == "completed"


# Reconciliation, in any segment.


def test_a_call_in_doubt_after_an_answer_waits_for_a_person(tmp_path: Path) -> None:
    store = MemoryStore()
    agent = Agent(name="a", instructions="A.", tools=[note_record], no_tool_policy=NoToolPolicy.WAIT_USER)
    models = Scripts.of(["Which one?", asks_record])
    there = Runner(model_provider=models, workspace=tmp_path, settings=Settings(imports=("tests",)))
    waiting = there.run_sync(agent, "Go.", run_config=kept(store, checkpoint=STRICT))
    assert waiting.status == "wait_user"
    assert there.resume(waiting.into_state(), input="this").status == "reconciliation_required"
    again = there.attach("k", store=store)
    assert again.result(10).status == "reconciliation_required"
    (told,) = [event for event in again.events() if event.type == "reconciliation_required"]
    assert told.cycle_index == told.resume_observation.cycle_index == 1


@function_tool(name="write_record")
def note_record() -> str:
    """Write a record."""
    raise ConnectionError("nobody knows")


asks_record = call("write_record", {}, "call_1")


# Runs below.


def family() -> tuple[Agent, list[Any]]:
    clerk = Agent(name="clerk", instructions="Clerk.", tools=[note_record], no_tool_policy=FINISH)
    lead = Agent(name="lead", instructions="Lead.", tools=[clerk.as_tool()], no_tool_policy=FINISH)
    begin = call("clerk", {"task_description": "write"})
    return lead, by_agent({"Lead.": [begin, "All done."], "Clerk.": [asks_record, "Written."]})


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_waits_for_a_run_below_goes_on_once_a_person_decided_about_it(tmp_path: Path, backend: Any) -> None:
    lead, script = family()
    store = MemoryStore()
    config = kept(store, checkpoint=STRICT, execution_backend=backend())
    handle = runner(script, tmp_path).start(lead, "Go.", run_config=config)

    def in_doubt() -> Any:
        return next(iter(store.find(Filter(statuses=frozenset({"reconciliation_required"})))), None)

    until(in_doubt, "the run below waits for a person")
    result = ReconciliationDecision.replay_result({"content": "ok"})
    store.post(in_doubt().key, reconcile_signal("r1", TOOL, result))
    assert handle.result(20).final_output == "All done."


class FailsOnce(CrashingStore):
    """Does not answer one look at a run below."""

    armed = failed = False

    def look(self, key: str) -> Any:
        if self.armed and not self.failed and key.startswith("c_"):
            self.failed = True
            raise StoreError("store_unavailable", "database is locked")
        return self._store.look(key)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_that_fails_once_does_not_leave_a_run_below_behind(tmp_path: Path, backend: Any) -> None:
    clerk = Agent(name="clerk", instructions="Clerk.", tools=[pay], no_tool_policy=FINISH)
    lead = Agent(name="lead", instructions="Lead.", tools=[clerk.as_tool()], no_tool_policy=FINISH)
    begin = call("clerk", {"task_description": "pay"})
    script = by_agent({"Lead.": [begin, "All done."], "Clerk.": [call("pay", {"amount": 5}), "Paid."]})
    store = FailsOnce(MemoryStore(), lambda *at: None)
    handle = runner(script, tmp_path).start(lead, "Go.", run_config=kept(store, execution_backend=backend()))
    asked = next(event for event in handle.events() if event.type == "approval_requested")
    store.armed = True
    until(lambda: store.failed, "the store failed once")
    handle.approve(asked.request_id, ApprovalDecision.allow())
    assert handle.result(20).final_output == "All done."


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_below_that_breaks_is_told_to_who_waits_for_it(tmp_path: Path, backend: Any) -> None:
    lead, script = family()
    broken = MemoryStore()
    real = broken.claim

    def claim(key: str, *given: Any, **more: Any) -> Any:
        if key.startswith("c_"):
            raise ZeroDivisionError("a fault of ours")
        return real(key, *given, **more)

    broken.claim = claim  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        runner(script, tmp_path).start(lead, "Go.", run_config=kept(broken, execution_backend=backend())).result(20)


def test_what_a_hook_denies_for_the_rest_of_the_run_is_denied_to_sub_agents(tmp_path: Path) -> None:
    class Denies(AfterCycleHook):
        def after_cycle(self, snapshot: Any) -> AfterCycleDecision:
            return AfterCycleDecision.go_on(disallow_tools=["note"])

    clerk = SubAgentConfig("m", system_prompt="Clerk.")
    lead = Agent(name="lead", instructions="Lead.", tools=[note], sub_agents={"clerk": clerk}, no_tool_policy=FINISH)
    work = call("create_sub_task", {"agent_id": "clerk", "task_description": "x"})
    finish = call("task_finish", {"message": "done"})
    script = by_agent({
        "Lead.": [call("note", {"text": "lead"}), work, "Done."], "Clerk.": [call("note", {"text": "clerk"}), finish],
    })  # fmt: skip
    result = runner(script, tmp_path).run_sync(lead, "Go.", run_config=RunConfig(after_cycle_hooks=[Denies()]))
    assert result.status == "completed"
    assert ran == ["lead"]


def test_a_run_that_is_given_back_before_its_model_was_asked_warns_of_nothing(tmp_path: Path) -> None:
    store = MemoryStore()

    @function_tool(idempotency="supported")
    def look() -> str:
        """Look; meanwhile the process is told to stop."""
        process.engine_for(store, Settings()).stop()
        return "seen"

    agent = Agent(name="a", instructions="A.", tools=[look], no_tool_policy=FINISH)
    provider = ScriptedProvider([call("look", {}), "Done."])
    there = Runner(model_provider=provider, workspace=tmp_path, settings=Settings())
    handle = there.start(agent, "Go.", run_config=kept(store))
    until(lambda: (at := store.look("k")) and at.head.state is State.READY and at.head.cycle == 2, "it was given back")
    assert not [e for e in handle._feed.events if e.type == "model_retry_duplicate_risk"]


# Code of the host.


def hook(method: str, answer: Any) -> RuntimeHook:
    def given(self: Any, event: Any) -> Any:
        return answer() if callable(answer) else answer

    return type("Nonsense", (RuntimeHook,), {method: given})()


def raises(error: BaseException) -> Any:
    def answer() -> Any:
        raise error

    return answer


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("before_llm", lambda: BeforeLlmPatch(messages=[5])),  # type: ignore[list-item]
        ("before_llm", lambda: BeforeLlmPatch(tool_schemas="x")),  # type: ignore[arg-type]
        ("after_llm", ModelResponse(None)),  # type: ignore[arg-type]
        ("after_llm", ModelResponse("x", ("x",))),  # type: ignore[arg-type]
        ("after_llm", ModelResponse("x", (ToolCall("c", "note", {"text": "x"}),))),  # type: ignore[arg-type]
        ("before_tool_call", lambda: BeforeToolCallPatch(call=5)),  # type: ignore[arg-type]
        ("before_tool_call", lambda: BeforeToolCallPatch(result="x")),  # type: ignore[arg-type]
        ("before_memory_compact", [Message("user", 5)]),  # type: ignore[arg-type]
        ("before_llm", raises(asyncio.CancelledError("x"))),
        ("after_tool_call", raises(GeneratorExit("x"))),
    ],
)
def test_a_hook_that_gives_nonsense_fails_the_run(tmp_path: Path, method: str, answer: Any) -> None:
    agent = Agent(name="a", instructions="A.", tools=[note], hooks=[hook(method, answer)], no_tool_policy=FINISH)
    result = runner([call("note", {"text": "x"}), "Done."], tmp_path).run_sync(agent, "Go.")
    assert (result.status, result.error_code) == (AgentStatus.FAILED, "runtime_hook_failed")


def test_a_guardrail_that_gives_nonsense_blocks(tmp_path: Path) -> None:
    class Blocks(OutputGuardrail):
        def check(self, context: Any, result: Any) -> GuardrailResult:
            return GuardrailResult.block(None)  # type: ignore[arg-type]

    agent = Agent(name="a", instructions="A.", output_guardrails=[Blocks()], no_tool_policy=FINISH)
    assert runner(["Done."], tmp_path).run_sync(agent, "Go.").error_code == "guardrail_failed"


def test_an_asynchronous_policy_is_waited_for(tmp_path: Path) -> None:
    async def nobody(name: str, arguments: Any) -> bool:
        return False

    agent = Agent(name="a", instructions="A.", tools=[note], no_tool_policy=FINISH)
    config = RunConfig(tool_policy=ToolPolicy(can_use_tool=nobody))
    runner([call("note", {"text": "x"}), "Done."], tmp_path).run_sync(agent, "Go.", run_config=config)
    assert ran == []
    with pytest.raises(ConfigError, match="can_use_tool"):
        ToolPolicy(can_use_tool=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["policy", "guardrail of a sub-agent", "guardrail after a hand-off"])
def test_code_of_the_host_that_does_not_come_back_ends_with_the_cancel(tmp_path: Path, where: str) -> None:
    entered, free = threading.Event(), threading.Event()

    def hangs(*_: Any) -> Any:
        entered.set()
        free.wait(30)

    class Slow(InputGuardrail):
        check = hangs

    guards = [] if where == "policy" else [Slow()]
    expert = Agent(name="expert", instructions="Expert.", input_guardrails=guards, no_tool_policy=FINISH)
    lead = Agent(
        name="lead", instructions="Lead.", tools=[note, expert.as_tool()], handoffs=[expert], no_tool_policy=FINISH
    )
    steps = {
        "policy": call("note", {"text": "x"}), "guardrail of a sub-agent": call("expert", {"task_description": "x"}),
        "guardrail after a hand-off": call("transfer_to_expert", {"input": "x"}),
    }  # fmt: skip
    config = RunConfig(tool_policy=ToolPolicy(can_use_tool=hangs) if where == "policy" else None)
    handle = runner([steps[where], "Done."], tmp_path).start(lead, "Go.", run_config=config)
    assert entered.wait(10)
    handle.cancel("stop")
    assert handle.result(10).completion_reason == "cancelled"
    free.set()


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_a_turn_that_is_closed_or_cancelled_while_it_is_prepared_does_nothing(tmp_path: Path, how: str) -> None:
    entered, free = threading.Event(), threading.Event()

    class Slow(InputGuardrail):
        def check(self, context: Any, input: str) -> Any:  # noqa: A002
            entered.set()
            free.wait(10)

    agent = Agent(name="a", instructions="A.", tools=[note], input_guardrails=[Slow()], no_tool_policy=FINISH)
    client = InteractiveAgentClient(runner([call("note", {"text": "x"}), "Done."], tmp_path))
    session = client.create_session(agent=agent)
    results: list[Any] = []
    turn = threading.Thread(target=lambda: results.append(session.prompt("Go.")))
    turn.start()
    assert entered.wait(10)
    getattr(session, how)()
    free.set()
    turn.join(10)
    assert [result.completion_reason for result in results] == ["cancelled"]
    assert ran == []
