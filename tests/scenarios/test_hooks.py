"""Hooks, guardrails and output validation through the front door: on every store and backend, and over crashes."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.runs import KEY, Died, Host, QueueProvider, asks
from tests.scenarios.conftest import Bench, Scripts, an_agent
from vv_agent import (
    AfterCycleDecision,
    AfterCycleHook,
    ApprovalDecision,
    BeforeLlmPatch,
    BeforeToolCallPatch,
    CapabilityRef,
    GuardrailResult,
    InputGuardrail,
    MemorySession,
    Message,
    NoToolPolicy,
    OutputGuardrail,
    OutputValidation,
    OutputValidationResult,
    RunConfig,
    Runner,
    RuntimeHook,
    SqliteSession,
    ToolContext,
    ToolExecutionResult,
    ToolExposure,
    ToolPolicy,
    VVAgentError,
    function_tool,
)
from vv_agent.checkpoint.identity import model_operation_id
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Change, Claim, Saved
from vv_agent.errors import CheckpointError, ConfigError
from vv_agent.runtime import control
from vv_agent.runtime.inbox import cancel_signal, reconcile_signal
from vv_agent.testing import call, calls

SEEN: Counter[str] = Counter()
RAN: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    SEEN.clear()
    RAN.clear()


@function_tool(idempotency="supported")
def say(text: str) -> str:
    """Say it."""
    RAN.append(text)
    return f"said {text}, secret 1234"


@function_tool(idempotency="supported", exposure=ToolExposure.HIDDEN)
def whisper(text: str) -> str:
    """Whisper it."""
    RAN.append(f"({text})")
    return "whispered"


@function_tool(needs_approval=True, idempotency="supported")
def shout(text: str) -> str:
    """Shout it."""
    RAN.append(f"{text}!")
    return "shouted"


class Patching(RuntimeHook):
    """One change at each place, some of them asynchronous."""

    async def before_llm(self, event: Any) -> BeforeLlmPatch:
        messages = [*event.messages, Message("user", f"Mind cycle {event.cycle_index}.")]
        return BeforeLlmPatch(messages=messages, tool_schemas=[*event.tool_schemas, whisper.to_openai_schema()])

    def after_llm(self, event: Any) -> Any:
        return replace(event.response, content=event.response.content.replace("bad", "good"))

    def before_tool_call(self, event: Any) -> BeforeToolCallPatch | None:
        text = event.call.parsed()["text"]
        if text == "never":
            result = ToolExecutionResult(tool_call_id="", content="it is not said")
            return BeforeToolCallPatch(result=result)
        return BeforeToolCallPatch(call=replace(event.call, id="other", arguments=f'{{"text": "{text} twice"}}'))

    async def after_tool_call(self, event: Any) -> ToolExecutionResult:
        result: ToolExecutionResult = event.result
        return result.model_copy(update={"content": result.content.replace("1234", "****")})


PATCHING = Patching()


def minds(request: Any) -> Any:
    assert request.messages[-1].content == "Mind cycle 1."
    assert "whisper" in [schema["function"]["name"] for schema in request.tools]
    return calls(("say", {"text": "hello"}), ("say", {"text": "never"}), ("whisper", {"text": "psst"}))


@pytest.mark.feature("hooks")
def test_runtime_hooks_change_what_is_asked_said_and_done(bench: Bench) -> None:
    result = bench.run(an_agent(say, whisper, hooks=[PATCHING]), [minds, "a bad day"])
    assert (result.status, result.final_output) == ("completed", "a good day"), result.raw_result.error
    assert sorted(RAN) == ["(psst twice)", "hello twice"]
    contents = [one.content for one in result.cycles[0].tool_results]
    assert contents == ["said hello twice, secret ****", "it is not said", "whispered"]
    assert not [m for m in result.raw_result.messages if m.content.startswith("Mind")], "a patch of one call only"
    planned = [e for e in result.events if e.type == "tool_call_planned"]
    assert [e.arguments["text"] for e in planned] == ["hello twice", "never", "psst twice"]
    started = [e.execution_started for e in result.events if e.type == "tool_call_completed"]
    assert started == [True, False, True]


def test_a_hook_may_shorten_the_history_before_memory_looks_at_it(tmp_path: Path) -> None:
    class Forgets(RuntimeHook):
        def before_memory_compact(self, event: Any) -> list[Message]:
            return [message for message in event.messages if "forget" not in message.content]

    def remembers(request: Any) -> str:
        SEEN.update(message.content for message in request.messages)
        return "done"

    config = {"no_tool_policy": NoToolPolicy.CONTINUE, "max_cycles": 2}
    host = Host(MemoryStore(), tmp_path, checkpoint=None, agent={"hooks": [Forgets()]}, config=config)
    host.run(["forget this", remembers])
    assert "forget this" not in SEEN
    assert "Continue working on the task." in SEEN


class Cautious(AfterCycleHook):
    """Lets nothing be said twice, and wants to be told before the end."""

    async def after_cycle(self, snapshot: Any) -> Any:
        SEEN[f"{snapshot.task_id}/{snapshot.cycle_index}"] += 1
        if snapshot.cycle_index == 1:
            return AfterCycleDecision.go_on(disallow_tools=["say"])
        if snapshot.native_outcome.kind == "completed" and snapshot.cycle_index == 3:
            return AfterCycleDecision.steer("Are you sure?")
        return None


CAUTIOUS = Cautious()


@pytest.mark.feature("hooks")
def test_an_after_cycle_hook_denies_and_steers(bench: Bench) -> None:
    steps = [call("say", {"text": "once"}), call("say", {"text": "again"}), "Done.", "Yes."]
    result = bench.run(an_agent(say), steps, key="k", after_cycle_hooks=[CAUTIOUS])
    assert (result.status, result.final_output, RAN) == ("completed", "Yes.", ["once"])
    assert result.cycles[1].tool_results[0].error_code == "tool_not_allowed"
    assert Message("user", "Are you sure?") in result.raw_result.messages
    assert result.raw_result.shared_state[control.KEY]["disallowed_tools"] == ["say"]
    assert {f"k/{cycle}": 1 for cycle in (1, 2, 3, 4)} == SEEN


class Careful(OutputGuardrail):
    def check(self, context: Any, result: Any) -> GuardrailResult:
        SEEN["guardrail"] += 1
        if "war" in result.final_answer:
            return GuardrailResult.block("Not that.")
        return GuardrailResult.allow(f"{result.final_answer} ({context.agent_name})")


CAREFUL = Careful()


@pytest.mark.feature("guardrails")
def test_output_guardrails_rewrite_and_block(bench: Bench) -> None:
    agent = an_agent(output_guardrails=[CAREFUL])
    assert bench.run(agent, ["peace"]).final_output == "peace (tester)"
    blocked = bench.run(agent, ["war"])
    raw = blocked.raw_result
    assert (raw.status, raw.error, raw.final_answer, raw.partial_output) == ("failed", "Not that.", None, "war")
    assert blocked.events[-1].to_wire()["partial_output"] == "war"
    assert SEEN["guardrail"] == 2


class Answer(BaseModel):
    number: int


def even(answer: Any, context: Any) -> OutputValidationResult:
    SEEN["validator"] += 1
    assert (type(answer), context.output_type_name) == (Answer, "Answer")
    return OutputValidationResult.ok() if answer.number % 2 == 0 else OutputValidationResult.fail("odd")


async def add_one(request: Any) -> str:
    SEEN["repair"] += 1
    if request.validation_code == "odd":
        return '{"number": 8}'
    return '{"number": 2}'


CHECKED = OutputValidation(validator=even, repair=add_one, repair_model="m")


@pytest.mark.feature("output types")
def test_the_output_is_a_value_and_is_repaired_once(bench: Bench) -> None:
    agent = an_agent(output_type=Answer, output_validation=CHECKED)
    assert bench.run(agent, ['{"number": 4}']).final_output == Answer(number=4)
    assert SEEN == {"validator": 1}
    assert bench.run(agent, ['{"number": 7}']).final_output == Answer(number=8)
    assert bench.run(agent, ["four"]).final_output == Answer(number=2)
    assert SEEN == {"validator": 4, "repair": 2}


def test_an_output_of_another_type_is_raised_after_the_end_is_stored(bench: Bench) -> None:
    with pytest.raises(VVAgentError, match="failed to validate final output for agent 'tester' as Answer"):
        bench.run(an_agent(output_type=Answer), ["four"], key="typed")
    look = bench.store.look("typed")
    assert look is not None
    assert (look.head.state, look.head.status) == ("ended", "completed")


def test_a_resumed_run_gives_a_value_too(tmp_path: Path) -> None:
    class Local(BaseModel):
        number: int

    runner = Runner(model_provider=QueueProvider([asks("shout", arguments={"text": "a"}), '{"number": 4}']))
    waiting = runner.run_sync(an_agent(shout, output_type=Local), "Go.")
    assert waiting.final_output == "Approval required for tool shout."
    state = waiting.into_state()
    state.approve(state.pending_approval_ids()[0])
    assert runner.resume(state).final_output == Local(number=4)


@pytest.mark.feature("output types")
def test_another_process_gives_the_value_if_it_may_load_the_type(bench: Bench) -> None:
    """What `attach` and `resume` read of a run that ended."""
    bench.run(an_agent(output_type=Answer), ['{"number": 4}'], key="k")
    assert bench.runner([]).resume("k", store=bench.store).final_output == Answer(number=4)


class NoSecrets(InputGuardrail):
    async def check(self, context: Any, input: str) -> GuardrailResult | None:  # noqa: A002
        SEEN["input"] += 1
        if "secret" in input:
            return GuardrailResult.block("No secrets.")
        return GuardrailResult.allow(input.upper())


NO_SECRETS = NoSecrets()


@pytest.mark.feature("guardrails")
def test_an_input_guardrail_stands_before_the_run(bench: Bench) -> None:
    agent = an_agent(input_guardrails=[NO_SECRETS])
    blocked = bench.run(agent, ["never"], "a secret", key="b")
    assert (blocked.status, blocked.final_output, bench.store.look("b")) == ("failed", "No secrets.", None)
    first = bench.run(agent, ["hi"], "hello", key="k")
    assert (first.input, first.status) == ("HELLO", "completed")
    again = bench.run(agent, ["hi"], "hello", key="k")
    assert again.run_id == first.run_id, "the same call attaches"


# Over waits and crashes.


class Doubles(RuntimeHook):
    def before_tool_call(self, event: Any) -> BeforeToolCallPatch:
        SEEN["patched"] += 1
        text = event.call.parsed()["text"]
        return BeforeToolCallPatch(call=replace(event.call, arguments=f'{{"text": "{text}{text}"}}'))


class Counts(AfterCycleHook):
    def after_cycle(self, snapshot: Any) -> None:
        SEEN[f"cycle {len([m for m in snapshot.messages if m.role == 'assistant'])}"] += 1


DOUBLES, COUNTS = Doubles(), Counts()


def test_who_approves_sees_the_patched_call_and_nothing_is_asked_twice(bench: Bench) -> None:
    agent = an_agent(shout, hooks=[DOUBLES])
    config = bench.config("k", after_cycle_hooks=[COUNTS])
    runner = bench.runner([call("shout", {"text": "hey"}), "Done."])
    waiting = runner.run_sync(agent, "Go.", run_config=config)
    (asked,) = waiting.approval_snapshot()
    assert asked.arguments == {"text": "heyhey"}
    assert SEEN == {"patched": 1}, "the cycle is not complete"
    bench.runner([]).attach("k", store=bench.store).approve(asked.interruption_id, ApprovalDecision.allow())
    result = runner.resume("k", store=bench.store)
    assert (result.status, RAN) == ("completed", ["heyhey!"])
    assert SEEN == {"patched": 1, "cycle 1": 1, "cycle 2": 1}


REFS = {
    f"{slot}:0": CapabilityRef(id=f"tests.{slot}", version="1")
    for slot in ("output_guardrail", "after_cycle_hook", "runtime_hook", "tool")
}


def place(folder: Path, store: Any = None, **more: Any) -> Host:
    checkpoint = {"capability_refs": REFS, **more.pop("checkpoint", {})}
    return Host(store or MemoryStore(), folder, checkpoint=checkpoint, **more)


LOOSE = {"ambiguous_model_policy": "retry_with_duplicate_risk"}
VALIDATING = {"output_type": Answer, "output_validation": CHECKED}


@pytest.mark.parametrize(
    ("boundary", "side", "count", "repairs"),
    [
        ("store.save.progress", "before", 1, 1),  # before anybody knows of the repair
        ("store.save.progress", "after", 1, 1),  # recorded, not made: nobody can tell, so it is made and shown
        ("store.save.progress", "before", 2, 2),  # made, its receipt lost
        ("store.save.progress", "after", 2, 1),  # kept
        ("store.save.end", "before", 1, 1),
        ("store.save.end", "after", 1, 1),
    ],
)
def test_a_repair_is_not_paid_twice_unseen(boundary: str, side: str, count: int, repairs: int, tmp_path: Path) -> None:
    host = place(tmp_path, agent=VALIDATING, checkpoint=LOOSE)
    died = host.run(['{"number": 7}'], die_at=(boundary, side, count))
    assert isinstance(died.error, Died)
    outcome = host.run(['{"number": 7}'])
    assert outcome.ok.final_output == Answer(number=8)
    assert SEEN["repair"] == repairs
    in_doubt = (side, count) in (("after", 1), ("before", 2)) and boundary == "store.save.progress"
    shown = [e.operation_id for e in outcome.events if e.type == "model_retry_duplicate_risk"]
    assert (REPAIR in shown) is in_doubt


REPAIR = model_operation_id(1, "repair")


def test_a_repair_in_doubt_parks_where_that_is_wanted_and_takes_a_decision(tmp_path: Path) -> None:
    host = place(tmp_path, agent=VALIDATING)
    assert isinstance(host.run(['{"number": 7}'], die_at=("store.save.progress", "before", 3)).error, Died)
    parked = host.run([])
    assert parked.ok.status == "reconciliation_required"
    assert parked.ok.resume_observation is not None
    assert parked.ok.resume_observation.operation_id == REPAIR
    decision = {"kind": "replay_success", "response": {"content": '{"number": 6}'}}
    host.store.post(KEY, reconcile_signal("decided", REPAIR, decision))
    outcome = host.run([])
    assert (outcome.ok.final_output, SEEN["repair"]) == (Answer(number=6), 1)


class Meanwhile(MemoryStore):
    """A cancel comes just before the end is saved."""

    came = False

    def save(self, claim: Claim, change: Change) -> Saved:
        if change.ending and not self.came:
            self.came = True
            self.post(claim.key, cancel_signal("meanwhile", "enough"))
        return super().save(claim, change)


def test_a_cancel_before_the_end_is_saved_asks_no_guardrail_again(tmp_path: Path) -> None:
    host = place(tmp_path, Meanwhile(), agent={"output_guardrails": [CAREFUL]})
    result = host.run(["peace"]).ok
    assert (result.completion_reason, result.final_output, SEEN["guardrail"]) == ("cancelled", "enough", 1)


def test_an_end_that_is_decided_is_only_finished(tmp_path: Path) -> None:
    """The candidate is stored: guardrails have had their say."""
    session = SqliteSession(tmp_path / "sessions.db", "s")
    host = place(tmp_path, agent={"output_guardrails": [CAREFUL]}, config={"session": session})
    assert isinstance(host.run(["peace"], die_at=("store.save.end", "before", 1)).error, Died)
    result = host.run([]).ok
    assert (result.final_output, SEEN["guardrail"]) == ("peace (checkpoint-agent)", 1)


class Stuck(OutputGuardrail):
    began = threading.Event()
    over = threading.Event()

    def check(self, context: Any, result: Any) -> None:
        self.began.set()
        self.over.wait(30)


def test_a_guardrail_that_does_not_answer_can_be_cancelled(tmp_path: Path) -> None:
    runner = Runner(model_provider=QueueProvider(["peace"]), workspace=tmp_path)
    handle = runner.start(an_agent(output_guardrails=[Stuck()]), "Go.")
    assert Stuck.began.wait(10)
    assert handle.cancel("enough")
    result = handle.result(20)
    Stuck.over.set()
    assert (result.completion_reason, result.final_output) == ("cancelled", "enough")


class Sticks(RuntimeHook):
    """Host code that does not come back by itself."""

    def __init__(self) -> None:
        self.began, self.over = threading.Event(), threading.Event()

    def stick(self, *given: Any) -> Any:
        self.began.set()
        self.over.wait(30)
        return []


class SticksAfterwards(Sticks):
    def after_tool_call(self, event: Any) -> None:
        self.stick()


@pytest.mark.parametrize("where", ["needs_approval", "before_cycle_messages", "interruption_messages", "after"])
def test_host_code_that_does_not_answer_can_be_cancelled(tmp_path: Path, where: str) -> None:
    host = SticksAfterwards() if where == "after" else Sticks()
    asked = replace(say, needs_approval=host.stick) if where == "needs_approval" else say
    config: dict[str, Any] = {where: host.stick} if where.endswith("messages") else {}
    runner = Runner(model_provider=QueueProvider([asks("say", arguments={"text": "x"}), "peace"]), workspace=tmp_path)
    agent = an_agent(asked, hooks=[host] if where == "after" else [])
    handle = runner.start(agent, "Go.", run_config=RunConfig(**config))
    assert host.began.wait(10)
    assert handle.cancel("enough")
    try:
        result = handle.result(15)
    finally:
        host.over.set()
    assert (result.completion_reason, result.final_output) == ("cancelled", "enough")
    ran = ["x"] if where == "after" else []
    assert ran == RAN


# What goes wrong says so.


class Withholds(RuntimeHook):
    def after_tool_call(self, event: Any) -> Any:
        raise OSError("no disk")


def test_a_failed_hook_fails_the_run_and_withholds_what_it_was_to_clean(tmp_path: Path) -> None:
    host = Host(MemoryStore(), tmp_path, [say], checkpoint=None, agent={"hooks": [Withholds()]})
    outcome = host.run([asks("say", arguments={"text": "hello"}), "never"])
    raw = outcome.ok.raw_result
    assert (raw.status, raw.error_code, RAN) == ("failed", "runtime_hook_failed", ["hello"])
    assert "OSError: no disk" in str(raw.error)
    assert "1234" not in str([message.to_wire() for message in raw.messages])


@pytest.mark.parametrize("name", ["before_llm", "after_llm", "before_tool_call"])
@pytest.mark.parametrize("given", [42, OSError("no disk")], ids=["nonsense", "error"])
def test_a_hook_that_gives_nonsense_fails_the_run(name: str, given: Any, tmp_path: Path) -> None:
    def method(self: Any, event: Any) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    hook = type("Wrong", (RuntimeHook,), {name: method})()
    host = Host(MemoryStore(), tmp_path, [say], checkpoint=None, agent={"hooks": [hook]})
    raw = host.run([asks("say", arguments={"text": "hello"}), "never"]).ok.raw_result
    assert (raw.status, raw.error_code, RAN) == ("failed", "runtime_hook_failed", [])
    called = [m for m in raw.messages if m.role == "assistant" and m.tool_calls]
    answered = [m for m in raw.messages if m.role == "tool"]
    assert len(called) == len(answered), "each call has a result"


def test_hooks_cannot_bring_back_a_denied_tool(tmp_path: Path) -> None:
    class Brings(RuntimeHook):
        def before_llm(self, event: Any) -> BeforeLlmPatch:
            return BeforeLlmPatch(tool_schemas=[*event.tool_schemas, say.to_openai_schema()])

    policy = ToolPolicy(disallowed_tools=["say"])
    host = Host(MemoryStore(), tmp_path, [say], checkpoint=None, agent={"hooks": [Brings()], "tool_policy": policy})

    def shown(request: Any) -> Any:
        assert "say" not in [schema["function"]["name"] for schema in request.tools]
        return asks("say", arguments={"text": "hello"})

    outcome = host.run([shown, "done"])
    assert outcome.ok.cycles[0].tool_results[0].error_code == "tool_not_allowed"
    assert RAN == []


def test_a_tool_cannot_lift_a_denial(tmp_path: Path) -> None:
    @function_tool(name="lift")
    def lifts(context: ToolContext) -> str:
        """Lift it."""
        context.shared_state.pop(control.KEY, None)
        context.shared_state["mine"] = 1
        return "lifted"

    class Denies(AfterCycleHook):
        def after_cycle(self, snapshot: Any) -> Any:
            return AfterCycleDecision.go_on(disallow_tools=["say"]) if snapshot.cycle_index == 1 else None

    host = Host(
        MemoryStore(), tmp_path, [say, lifts], checkpoint=None,
        config={"after_cycle_hooks": [Denies()], "no_tool_policy": "continue", "max_cycles": 4},
    )  # fmt: skip
    outcome = host.run(["hm", asks("lift"), asks("say", arguments={"text": "hello"}), "done"])
    assert RAN == []
    assert outcome.ok.raw_result.shared_state["mine"] == 1
    assert outcome.ok.raw_result.shared_state[control.KEY]["disallowed_tools"] == ["say"]


def test_what_is_no_hook_is_refused_before_anything_runs(tmp_path: Path) -> None:
    runner = Runner(model_provider=Scripts.of(["never"]), workspace=tmp_path)
    for more in ({"hooks": [42]}, {"hooks": [Patching]}, {"output_guardrails": [PATCHING]}, {"output_type": 42}):
        with pytest.raises(ConfigError, match="hook_invalid"):
            runner.run_sync(an_agent(**more), "Go.")
    for wrong in ({"enabled": True}, {"repair": add_one}, {"validator": even, "max_repairs": 2}, {"validator": "even"}):
        with pytest.raises(ConfigError, match="output_validation_invalid"):
            OutputValidation(**wrong)
    with pytest.raises(CheckpointError, match="checkpoint_definition_unstable: runtime_hook:0 has no name"):
        runner.run_sync(an_agent(hooks=[Withholds()]), "Go.", run_config=RunConfig(execution_mode="distributed"))


def test_a_blocked_run_keeps_nothing_but_its_messages(tmp_path: Path) -> None:
    session = MemorySession("s")
    host = Host(
        MemoryStore(), tmp_path, checkpoint=None, agent={"output_guardrails": [CAREFUL]},
        config={"session": session, "no_tool_policy": NoToolPolicy.FINISH},
    )  # fmt: skip
    assert host.run(["war"]).ok.status == "failed"
    assert [item.role for item in session.get_items()] == ["user", "assistant"]
