"""Approvals through the front door, on every store and backend: asked, parked, decided from anywhere, once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import until
from vv_agent import (
    Agent,
    ApprovalBroker,
    ApprovalDecision,
    ApprovalRequest,
    CheckpointConfig,
    NoToolPolicy,
    RunConfig,
    Runner,
    ToolContext,
    ToolPolicy,
    function_tool,
)
from vv_agent.budget import RunBudgetLimits
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Change, Claim, Park, Saved, State
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.dispatch.store import StoreDispatcher
from vv_agent.dispatch.threaded import ThreadBackend
from vv_agent.errors import ConfigError, StoreError
from vv_agent.runtime import account
from vv_agent.runtime.approval import digest_of
from vv_agent.runtime.inbox import approval_signal
from vv_agent.settings import Settings
from vv_agent.testing import ScriptedProvider, calls

RAN: list[str] = []
ALLOW = ApprovalDecision.allow()


@function_tool(needs_approval=True, idempotency="supported")
def launch(pad: str) -> str:
    """Launch a rocket."""
    RAN.append(pad)
    return f"launched from {pad}"


@function_tool(idempotency="supported")
def look(where: str) -> str:
    """Look somewhere."""
    RAN.append(where)
    return "nothing there"


def risky(context: ToolContext, arguments: dict[str, Any]) -> bool:
    return arguments["n"] > 10


@function_tool(needs_approval=risky, idempotency="supported")
def spend(n: int) -> str:
    """Spend money."""
    RAN.append(str(n))
    return "spent"


ROCKET = [("look", {"where": "sky"}), ("launch", {"pad": "A"}), ("launch", {"pad": "B"})]
MODELS = ScriptedProvider([calls(*ROCKET), "Done."])
AGENT = Agent(name="rocket", instructions="Launch.", tools=[launch, look, spend], no_tool_policy=NoToolPolicy.FINISH)


@pytest.fixture(autouse=True)
def forget() -> None:
    RAN.clear()


def runner(folder: Path, models: ScriptedProvider = MODELS, **default: Any) -> Runner:
    settings = Settings(imports=(__name__,))
    config = RunConfig(**default) if default else None
    return Runner(model_provider=models, workspace=folder, settings=settings, default_run_config=config)


def backends(store: Any) -> dict[str, Any]:
    return {"inline": None, "threaded": ThreadBackend(1), "distributed": DistributedBackend(StoreDispatcher(store))}


def kept(store: CheckpointStore, mode: str = "inline", **more: Any) -> RunConfig:
    checkpoint = CheckpointConfig(key="k", store=store, resume_policy="resume_if_present")
    return RunConfig(checkpoint_config=checkpoint, execution_backend=backends(store)[mode], **more)


MODES = pytest.mark.parametrize("mode", ["inline", "threaded", "distributed"])


@MODES
def test_a_run_nobody_answers_parks_and_goes_on_after_the_decisions(
    real_store: CheckpointStore, tmp_path: Path, mode: str
) -> None:
    first = runner(tmp_path).run_sync(AGENT, "Go.", run_config=kept(real_store, mode))
    assert (first.status, first.completion_reason, first.final_output) == (
        "wait_user", "wait_user", "Approval required for tool launch.",
    )  # fmt: skip
    assert RAN == ["sky"], "what needs no approval has run, and is kept"
    look_at = real_store.look("k")
    assert look_at is not None
    assert (look_at.head.state, look_at.head.reason, look_at.head.owner) == (State.PARKED, "approval", None)
    state = first.into_state()
    assert [a.arguments for a in state.approval_snapshot()] == [{"pad": "A"}, {"pad": "B"}]
    for name in state.pending_approval_ids():
        state.approve(name)
    second = runner(tmp_path).resume(state)
    assert (second.status, second.final_output) == ("completed", "Done.")
    assert (RAN[0], sorted(RAN[1:])) == ("sky", ["A", "B"])
    texts = [m.content for m in second.messages if m.role == "tool"]
    assert texts == ["nothing there", "launched from A", "launched from B"]
    assert (first.trace_id, first.run_id != second.run_id) == (second.trace_id, True)
    types = [event.type for event in second.events if event.type.startswith(("approval", "run_"))]
    assert types == ["run_started", "approval_resolved", "approval_resolved", "run_completed"]


@MODES
def test_who_iterates_approves_and_goes_on(real_store: CheckpointStore, tmp_path: Path, mode: str) -> None:
    handle = runner(tmp_path).start(AGENT, "Go.", run_config=kept(real_store, mode))
    for event in handle.events():
        if event.type == "approval_requested":
            decision = ALLOW if event.metadata["arguments"]["pad"] == "A" else ApprovalDecision.deny("B is closed")
            handle.approve(event.request_id, decision)
    result = handle.result(10)
    assert (result.status, result.final_output) == ("completed", "Done.")
    assert RAN == ["sky", "A"]
    assert [m.content for m in result.messages if m.role == "tool"][2].count("B is closed") == 1
    assert [e.type for e in result.events].count("run_started") == 1, "it is one segment"


class Provider:
    def __init__(self, answer: Callable[[ApprovalRequest], Any]) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def decide(self, request: ApprovalRequest) -> Any:
        self.asked.append(request.preview)
        return self.answer(request)


@MODES
def test_a_provider_is_asked_in_the_process_of_the_client(
    real_store: CheckpointStore, tmp_path: Path, mode: str
) -> None:
    async def later(request: ApprovalRequest) -> ApprovalDecision:
        return ApprovalDecision.allow_session()

    provider = Provider(later)
    config = kept(real_store, mode, approval_provider=provider)
    result = runner(tmp_path).run_sync(AGENT, "Go.", run_config=config)
    assert (result.status, sorted(RAN)) == ("completed", ["A", "B", "sky"])
    assert sorted(provider.asked) == ['launch {"pad": "A"}', 'launch {"pad": "B"}'], "both were asked side by side"


def test_allow_session_covers_later_calls_of_the_tool(real_store: CheckpointStore, tmp_path: Path) -> None:
    models = ScriptedProvider([calls(("launch", {"pad": "A"})), calls(("launch", {"pad": "B"})), "Done."])
    provider = Provider(lambda request: ApprovalDecision.allow_session())
    result = runner(tmp_path, models).run_sync(AGENT, "Go.", run_config=kept(real_store, approval_provider=provider))
    assert (result.status, RAN, len(provider.asked)) == ("completed", ["A", "B"], 1)


def test_another_part_of_the_program_decides_through_a_broker(tmp_path: Path) -> None:
    broker = ApprovalBroker()
    handle = runner(tmp_path).start(AGENT, "Go.", run_config=RunConfig(approval_broker=broker))
    until(lambda: len(broker.pending()) == 2, "both calls wait")
    for request in broker.pending():
        broker.resolve(request.request_id, ALLOW)
    assert handle.result(10).status == "completed"
    assert broker.pending() == ()
    with pytest.raises(ConfigError, match="unknown approval request: nothing"):
        broker.resolve("nothing", ALLOW)


def test_a_decision_counts_once_and_an_unknown_one_changes_nothing(real_store: CheckpointStore, tmp_path: Path) -> None:
    config = kept(real_store, "distributed")
    handle = runner(tmp_path).start(AGENT, "Go.", run_config=config)
    asked = [next(e for e in handle.events() if e.type == "approval_requested").to_wire()["request_id"]]
    until(lambda: (at := real_store.look("k")) and at.head.state is State.PARKED, "it is parked")
    handle.approve(asked[0], ALLOW)
    handle.approve(asked[0], ALLOW)
    with pytest.raises(ConfigError, match="already_decided"):
        handle.approve(asked[0], ApprovalDecision.deny())
    with pytest.raises(ConfigError, match=r"unknown_approval_request: unknown approval request: approval_x"):
        handle.approve("approval_x", ALLOW)
    with pytest.raises(ConfigError, match="approval_invalid"):
        handle.approve(asked[0], "yes")  # type: ignore[arg-type]
    assert handle.cancel("enough")
    assert handle.result(10).completion_reason == "cancelled"
    assert "B" not in RAN


@MODES
def test_a_word_is_accepted_again_after_the_run_went_on_and_another_one_is_not(
    real_store: CheckpointStore, tmp_path: Path, mode: str
) -> None:
    handle = runner(tmp_path).start(AGENT, "Go.", run_config=kept(real_store, mode))
    asked = []
    for event in handle.events():
        if event.type == "approval_requested":
            asked.append(event.request_id)
            handle.approve(event.request_id, ALLOW)
    assert handle.result(10).status == "completed"
    for later in (handle, runner(tmp_path).attach("k", store=real_store)):
        later.result(10)
        later.approve(asked[0], ALLOW)
        with pytest.raises(ConfigError, match="already_decided"):
            later.approve(asked[0], ApprovalDecision.deny())
    assert sorted(RAN[1:]) == ["A", "B"]


def test_a_request_that_nobody_decides_times_out(real_store: CheckpointStore, tmp_path: Path) -> None:
    config = kept(real_store, approval_timeout_seconds=0.3, approval_provider=Provider(lambda request: None))
    result = runner(tmp_path).run_sync(AGENT, "Go.", run_config=config)
    assert result.status == "completed"
    assert RAN == ["sky"]
    assert [m.content for m in result.messages if m.role == "tool"][1].count("Approval request timed out.") == 1


@pytest.mark.parametrize(
    ("mode", "asks"), [("default", ["11"]), ("on_request", ["11"]), ("always", ["9", "11"]), ("never", [])]
)
def test_the_modes(tmp_path: Path, mode: str, asks: list[str]) -> None:
    models = ScriptedProvider([calls(("spend", {"n": 9}), ("spend", {"n": 11})), "Done."])
    provider = Provider(lambda request: ALLOW)
    config = RunConfig(approval_provider=provider, tool_policy=ToolPolicy(approval=mode))  # type: ignore[arg-type]
    assert runner(tmp_path, models).run_sync(AGENT, "Go.", run_config=config).status == "completed"
    assert sorted(provider.asked) == sorted(f'spend {{"n": {n}}}' for n in asks)
    assert sorted(RAN) == ["11", "9"]


def test_a_run_in_memory_can_be_resumed_while_its_result_is_held(tmp_path: Path) -> None:
    first = runner(tmp_path).run_sync(AGENT, "Go.")
    state = first.into_state()
    for name in state.pending_approval_ids():
        state.approve(name)
    assert runner(tmp_path).resume(state).final_output == "Done."


def test_somebody_else_attaches_and_is_asked(real_store: CheckpointStore, tmp_path: Path) -> None:
    starter = runner(tmp_path).start(AGENT, "Go.", run_config=kept(real_store, "distributed"))
    until(lambda: (at := real_store.look("k")) and at.head.state is State.PARKED, "it is parked")
    provider = Provider(lambda request: ALLOW)
    other = runner(tmp_path, approval_provider=provider).attach("k", store=real_store)
    assert other.result(10).status == starter.result(10).status == "completed"
    assert len(provider.asked) == 2


def test_a_parked_run_holds_no_thread(real_store: CheckpointStore, tmp_path: Path) -> None:
    before = set(threading.enumerate())  # the runs of other tests may be watched for a moment more
    runner(tmp_path).run_sync(AGENT, "Go.", run_config=kept(real_store))
    assert not [t for t in set(threading.enumerate()) - before if t.name in ("vv-run", "vv-fallback")]


class Unlucky(MemoryStore):
    """The save that parks a run does not reach the store, the first time."""

    failed = False

    def save(self, claim: Claim, change: Change) -> Saved:
        if isinstance(change.then, Park) and not self.failed:
            self.failed = True
            raise StoreError("store_corrupt", "not now")
        return super().save(claim, change)


def test_a_decision_that_comes_before_its_request_is_stored_counts(tmp_path: Path) -> None:
    store = Unlucky()
    handle = runner(tmp_path).start(AGENT, "Go.", run_config=kept(store))
    for event in handle.events():
        if event.type == "approval_requested":
            handle.approve(event.request_id, ALLOW)
    with pytest.raises(StoreError):
        handle.result(10)
    head = store.look("k").head  # type: ignore[union-attr]
    store.expire(head.owner or "")
    result = runner(tmp_path).resume("k", store=store)
    assert (result.status, sorted(RAN)) == ("completed", ["A", "B", "sky", "sky"])


def test_a_decision_on_what_was_never_stored_is_none_on_what_the_model_asks_for_next(tmp_path: Path) -> None:
    """The save that parks is lost, the decision is not; then the model, asked again, launches from another pad."""
    store = Unlucky()
    pads = iter("AB")
    started = runner(tmp_path, ScriptedProvider([lambda request: calls(("launch", {"pad": next(pads)})), "Done."]))
    handle = started.start(AGENT, "Go.", run_config=kept(store))
    first = next(event for event in handle.events() if event.type == "approval_requested")
    store.post("k", approval_signal(first.request_id, ALLOW, digest_of("launch", {"pad": "A"})))
    with pytest.raises(StoreError):
        handle.result(10)
    head = store.look("k").head  # type: ignore[union-attr]
    store.expire(head.owner or "")
    again = started.start(AGENT, "Go.", run_config=kept(store))
    asked = next(event for event in again.events() if event.type == "approval_requested")
    assert (asked.request_id != first.request_id, RAN) == (True, [])
    until(lambda: (at := store.look("k")) and at.head.state is State.PARKED, "it is parked")
    again.approve(asked.request_id, ALLOW)
    assert again.result(10).status == "completed"
    assert RAN == ["B"]


def test_who_takes_a_waiting_run_up_again_is_asked(real_store: CheckpointStore, tmp_path: Path) -> None:
    """A live run whose starter is gone: the same call again, and a resume, ask their provider."""
    first = runner(tmp_path).start(AGENT, "Go.", run_config=kept(real_store))
    until(lambda: (at := real_store.look("k")) and at.head.state is State.PARKED, "it is parked")
    provider = Provider(lambda request: ALLOW)
    again = runner(tmp_path).run_sync(AGENT, "Go.", run_config=kept(real_store, approval_provider=provider))
    assert again.status == "completed"
    assert first.result(10).status == "completed", "the first caller sees the end as well"
    assert len(provider.asked) == 2


class Fickle:
    """Wants a yes the first time it is asked only."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, context: ToolContext, arguments: dict[str, Any]) -> bool:
        self.times += 1
        return self.times == 1


def test_a_predicate_is_asked_once_for_each_call(tmp_path: Path) -> None:
    fickle = Fickle()
    tool = function_tool(needs_approval=fickle, idempotency="supported", name="odd")(lambda: "done")
    models = ScriptedProvider([calls(("odd", {})), "Done."])
    agent = Agent(name="odd", instructions="Go.", tools=[tool], no_tool_policy=NoToolPolicy.FINISH)
    provider = Provider(lambda request: ALLOW)
    config = RunConfig(approval_provider=provider)
    assert (
        Runner(model_provider=models, workspace=tmp_path).run_sync(agent, "Go.", run_config=config).status
        == "completed"
    )
    assert (fickle.times, len(provider.asked)) == (1, 1)


def test_a_question_after_a_decision_waits_for_its_answer(real_store: CheckpointStore, tmp_path: Path) -> None:
    wanted = [("launch", {"pad": "A"}), ("ask_user", {"question": "Which pad?"}), ("launch", {"pad": "B"})]
    models = ScriptedProvider([calls(*wanted), "Done."])
    settings = Settings(imports=(__name__,))
    agent = Agent(name="rocket", instructions="Launch.", tools=[launch], no_tool_policy=NoToolPolicy.FINISH)
    made = Runner(model_provider=models, workspace=tmp_path, settings=settings)
    state = made.run_sync(agent, "Go.").into_state()
    for name in state.pending_approval_ids():
        state.approve(name)
    second = made.resume(state)
    assert (second.status, second.final_output, RAN) == ("wait_user", "Which pad?", ["A"])
    third = made.resume(second.into_state(), input="B")
    assert (third.status, third.final_output) == ("completed", "Done.")


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError("out of order")])
def test_a_provider_that_raises_anything_fails_the_run(tmp_path: Path, error: BaseException) -> None:
    def answer(request: ApprovalRequest) -> Any:
        raise error

    result = runner(tmp_path).run_sync(AGENT, "Go.", run_config=RunConfig(approval_provider=Provider(answer)))
    assert (result.status, result.error_code) == ("failed", "approval_provider_failed")
    assert result.raw_result.error == (str(error) or type(error).__name__)


@pytest.mark.parametrize(
    "options",
    [{"approval_broker": "x"}, {"approval_provider": 5}, {"approval_timeout_seconds": "5"}, {"budget_limits": {}},
     {"host_cost_meter": 5}, {"workspace_backend": "x"}],
)  # fmt: skip
def test_an_option_that_is_none_is_refused_when_the_config_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"run_config_invalid: {next(iter(options))}"):
        RunConfig(**options)


def test_a_word_that_comes_too_late_changes_nothing(real_store: CheckpointStore, tmp_path: Path) -> None:
    config = kept(real_store, approval_timeout_seconds=0.2)
    waiting = runner(tmp_path).run_sync(AGENT, "Go.", run_config=config)
    began = real_store.now()
    until(lambda: real_store.now() > began + 400, "the time is over")
    state = waiting.into_state()
    for name in state.pending_approval_ids():
        state.approve(name)
    result = runner(tmp_path).resume(state)
    assert (result.status, RAN) == ("completed", ["sky"])


def test_the_time_of_a_tool_before_an_approval_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(account, "monotonic_ns", lambda: now[0])

    @function_tool(idempotency="supported")
    def works() -> str:
        """Work for three seconds."""
        now[0] += 3_000_000_000
        return "done"

    models = ScriptedProvider([calls(("works", {}), ("launch", {"pad": "A"}))])
    agent = Agent(name="w", instructions="Go.", tools=[works, launch], no_tool_policy=NoToolPolicy.FINISH)
    config = RunConfig(budget_limits=RunBudgetLimits(max_wall_time_ms=60_000))
    result = Runner(model_provider=models, workspace=tmp_path).run_sync(agent, "Go.", run_config=config)
    assert result.status == "wait_user"
    assert result.budget_usage is not None
    assert result.budget_usage.elapsed_ms == 3000
