"""after_cycle_hook.json: snapshots, decisions, their limits, and what they make of a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.runs import Died, Host, asks
from vv_agent import (
    AfterCycleDecision,
    AfterCycleHook,
    AfterCycleSnapshot,
    CapabilityRef,
    NativeCycleOutcome,
    ToolRegistry,
    function_tool,
)
from vv_agent import hooks as limits
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.errors import CheckpointError
from vv_agent.llm.base import ModelRequest
from vv_agent.runtime import control

FIXTURE = load("after_cycle_hook.json")
RUNS = {case["name"]: case for case in FIXTURE["runner_cases"]}
CASES = Cases(
    "after_cycle_hook.json",
    differs={
        "distributed/wire_field": "a recipe names no code: the definition does, by import path (DESIGN 3)",
        "distributed/stateful_pairing": "extensions live in the process that registers them: refused for workers",
    },
)
LIMITS = {
    "max_steering_messages": limits.MAX_STEERING_MESSAGES,
    "max_steering_message_utf8_bytes": limits.MAX_STEERING_BYTES,
    "max_total_steering_utf8_bytes": limits.MAX_ALL_STEERING_BYTES,
    "max_disallow_tools": limits.MAX_DISALLOWED_TOOLS,
    "max_tool_name_utf8_bytes": limits.MAX_TOOL_NAME_BYTES,
    "max_stop_code_ascii_bytes": limits.MAX_STOP_CODE_BYTES,
    "max_stop_message_utf8_bytes": limits.MAX_STOP_MESSAGE_BYTES,
}


class Scripted(AfterCycleHook):
    """Decides in the order given, then no more; and keeps what it saw."""

    def __init__(self, *decisions: Any) -> None:
        self.decisions = list(decisions)
        self.seen: list[AfterCycleSnapshot] = []

    def after_cycle(self, snapshot: AfterCycleSnapshot) -> Any:
        self.seen.append(snapshot)
        return self.decisions.pop(0) if self.decisions else None


def host(folder: Path, *hooks: Any, **config: Any) -> Host:
    return Host(MemoryStore(), folder, checkpoint=None, config={"after_cycle_hooks": hooks, **config})


FINISH = asks("task_finish", arguments={"message": "done"})


def test_without_hooks_nothing_is_there(tmp_path: Path) -> None:
    case = RUNS["disabled_is_exact_noop"]
    with CASES.run("disabled_is_exact_noop"), CASES.run("default_behavior"):
        said: list[ModelRequest] = []

        def last(request: ModelRequest) -> str:
            said.append(request)
            return "still working"

        place = host(tmp_path, no_tool_policy=case["no_tool_policy"], max_cycles=case["max_cycles"])
        outcome = place.run([case["cycles"][0]["assistant"], last])
        added = [message.content for message in said[0].messages if message.role == "user"][1:]
        assert added == case["expected"]["next_user_messages"]
        assert (control.KEY in outcome.ok.raw_result.shared_state) is case["expected"]["reserved_state_present"]
        assert FIXTURE["permission_state"]["reserved_shared_state_key"] == control.KEY
        assert "diagnostic" not in outcome.types()


def test_a_hook_that_goes_on_changes_nothing(tmp_path: Path) -> None:
    case = RUNS["continue_observes_without_mutation"]
    with CASES.run("continue_observes_without_mutation"):
        hook = Scripted(case["hooks"][0]["decision"])
        place = host(tmp_path, hook, no_tool_policy=case["no_tool_policy"], max_cycles=case["max_cycles"])
        outcome, expected = place.run([case["cycles"][0]["assistant"]]), case["expected"]
        assert (outcome.ok.status, outcome.ok.completion_reason) == (expected["status"], expected["completion_reason"])
        assert len(hook.seen) == expected["hook_invocations"]
        assert [message.role for message in outcome.ok.raw_result.messages] == ["system", "user", "assistant"]
        assert control.KEY not in outcome.ok.raw_result.shared_state


def test_a_stop_is_no_success(tmp_path: Path) -> None:
    case = RUNS["stop_cannot_be_projected_as_success"]
    with CASES.run("stop_cannot_be_projected_as_success"):
        hook = Scripted(case["hooks"][0]["decision"])
        outcome, expected = host(tmp_path, hook).run([FINISH]), case["expected"]
        native = hook.seen[0].native_outcome
        assert {name: getattr(native, name) for name in case["native_outcome"]} == case["native_outcome"]
        raw = outcome.ok.raw_result
        assert (raw.status, raw.completion_reason, raw.final_answer, raw.error) == (
            expected["status"], expected["completion_reason"], expected["final_answer"], expected["error"],
        )  # fmt: skip
        assert outcome.types().count("run_completed") == expected["run_completed_event_count"]


class Lifecycle(Scripted):
    """Keeps a count with the run, and denies a tool after the first cycle."""

    namespace, version, required = "com.example.lifecycle", "1", True

    def __init__(self) -> None:
        super().__init__()
        self.observed = 0
        self.restored: list[Any] = []

    def after_cycle(self, snapshot: AfterCycleSnapshot) -> Any:
        self.seen.append(snapshot)
        self.observed += 1
        return AfterCycleDecision.go_on(disallow_tools=["bash"]) if self.observed == 1 else None

    def snapshot(self) -> Any:
        return {"observed_cycles": self.observed}

    def restore(self, state: Any) -> None:
        self.restored.append(state)
        self.observed = state["observed_cycles"]


def test_a_resumed_run_has_the_state_of_its_hook_and_the_denials(tmp_path: Path) -> None:
    @function_tool(name="bash")
    def bash() -> str:
        """Do it."""
        return "done"

    @function_tool(name="read_file")
    def read_file() -> str:
        """Read it."""
        return "text"

    case = RUNS["checkpoint_resume_restores_hook_and_control_state"]
    with CASES.run("checkpoint_resume_restores_hook_and_control_state"), CASES.run("durability"):
        expected, wanted = case["expected_after_resume"], case["hook"]
        first, second = Lifecycle(), Lifecycle()
        assert (first.namespace, first.version, first.required) == (
            wanted["namespace"], wanted["version"], wanted["required"],
        )  # fmt: skip
        refs = {"after_cycle_hook:0": CapabilityRef(id="lifecycle.policy", version="1")}
        refs |= {f"tool:{n}": CapabilityRef(id=f"tool.{n}", version="1") for n in range(2)}
        place = Host(
            MemoryStore(), tmp_path, [bash, read_file], checkpoint={"capability_refs": refs},
            config={"tool_registry_factory": ToolRegistry, "no_tool_policy": "continue"},
        )  # fmt: skip
        died = place.run(["one"], after_cycle_hooks=[first], die_at=("store.save.commit", "after", 1))
        assert isinstance(died.error, Died)
        outcome = place.run([asks("bash"), "two"], after_cycle_hooks=[second], no_tool_policy="continue")
        assert second.seen[0].cycle_index == expected["first_hook_snapshot_cycle"]
        assert second.restored[0] == expected["restored_extension_state"]
        assert list(second.seen[0].available_tool_names) == expected["available_tools"]
        assert list(second.seen[0].disallowed_tool_names) == ["bash"]
        assert [s.cycle_index for s in second.seen].count(1) == expected["cycle_1_hook_reinvocations"]
        assert outcome.ok.raw_result.shared_state[control.KEY] == case["committed_control_state"]
        assert outcome.ok.cycles[1].tool_results[0].error_code == "tool_not_allowed"


@pytest.mark.parametrize("case", FIXTURE["invalid_decisions"], ids=lambda case: case["name"])
def test_what_is_no_decision_fails_the_run(case: dict[str, Any], tmp_path: Path) -> None:
    with CASES.run(f"invalid_decisions/{case['name']}"):
        outcome = host(tmp_path, Scripted(case["decision"])).run(["done"])
        raw = outcome.ok.raw_result
        assert (raw.status, raw.completion_reason, raw.error_code) == ("failed", "failed", case["error_code"])
        assert (raw.error or "").startswith(case["error_code"])


def test_the_snapshot_has_the_fields_of_the_contract_and_is_a_copy(tmp_path: Path) -> None:
    with CASES.run("snapshot"):
        names = {item.name for item in dataclasses.fields(AfterCycleSnapshot)}
        assert names == set(FIXTURE["snapshot"]["required_fields"])
        assert not names & set(FIXTURE["snapshot"]["task_domain_fields_forbidden"])
        outcome_names = {item.name for item in dataclasses.fields(NativeCycleOutcome)}
        assert outcome_names == set(FIXTURE["snapshot"]["native_outcome"]["required_fields"])
        assert [*limits.NativeCycleOutcomeKind] == FIXTURE["snapshot"]["native_outcome"]["kind_values"]

        class Vandal(AfterCycleHook):
            def after_cycle(self, snapshot: AfterCycleSnapshot) -> None:
                snapshot.shared_state["deep"].append("changed")
                snapshot.cycle.tool_calls[0].arguments.clear()
                with pytest.raises(dataclasses.FrozenInstanceError):
                    snapshot.cycle_index = 7  # type: ignore[misc]

        second = Scripted()
        outcome = host(tmp_path, Vandal(), second, shared_state={"deep": ["kept"]}).run([FINISH])
        assert second.seen[0].shared_state == {"deep": ["kept"]}, "each hook has copies of its own"
        assert second.seen[0].cycle.tool_calls[0].arguments == {"message": "done"}
        assert outcome.ok.raw_result.shared_state == {"deep": ["kept"]}


def test_decisions_have_the_limits_of_the_contract(tmp_path: Path) -> None:
    with CASES.run("decision"):
        wanted = FIXTURE["decision"]
        assert wanted["limits"] == LIMITS
        assert set(AfterCycleDecision.model_fields) == set(wanted["closed_fields"])
        assert [*limits.AfterCycleAction] == wanted["action_values"]
        assert AfterCycleDecision().to_wire() == wanted["canonical_continue"]
        codes = wanted["error_codes"]
        long = "x" * (LIMITS["max_steering_message_utf8_bytes"] + 1)
        many = ["x"] * (LIMITS["max_steering_messages"] + 1)
        for messages in ([long], many, ["é" * 8192] * 5):
            wrong = {"action": "steer", "steering_messages": messages}
            assert host(tmp_path, Scripted(wrong)).run(["done"]).code == codes["invalid_decision"]
        for tools in (["x"] * 2, ["x" * 257], [f"t{n}" for n in range(1025)]):
            assert host(tmp_path, Scripted({"disallow_tools": tools})).run(["done"]).code == codes["invalid_decision"]
        for stop in ({"code": "Upper", "message": "no"}, {"code": "ok", "message": "m" * 4097}):
            wrong = {"action": "stop_non_success", "stop": stop}
            assert host(tmp_path, Scripted(wrong)).run(["done"]).code == codes["invalid_decision"]
        assert host(tmp_path, Scripted(42)).run(["done"]).code == codes["invalid_decision"]
        half = AfterCycleDecision.steer(*["x"] * 20)
        assert host(tmp_path, Scripted(half), Scripted(half)).run(["a", "b"]).code == codes["invalid_decision"]

        class Broken(AfterCycleHook):
            def after_cycle(self, snapshot: AfterCycleSnapshot) -> None:
                raise OSError("no disk")

        broken = host(tmp_path, Broken()).run(["done"])
        assert broken.code == codes["hook_failure"]
        assert "no disk" in str(broken.ok.raw_result.error)
        steers = AfterCycleDecision.steer("more")
        for steps, more in ((["a"], {"max_cycles": 1}), ([asks("ask_user", arguments={"question": "?"})], {})):
            assert host(tmp_path, Scripted(steers), **more).run(steps).code == codes["steer_unavailable"]
        state = {control.KEY: {"schema_version": control.SCHEMA, "disallowed_tools": ["b", "a"]}}
        assert host(tmp_path, shared_state=state).run(["done"]).code == codes["control_state_invalid"]


def test_hooks_are_composed_as_the_contract_says(tmp_path: Path) -> None:
    with CASES.run("composition"), CASES.run("terminal_precedence"), CASES.run("permission_state"):
        steer = [AfterCycleDecision.steer(f"m{n}", disallow_tools=[f"t{n}", "z"]) for n in (1, 2)]
        stop = AfterCycleDecision.stop_non_success("host.stop", "enough")
        first, second = Scripted(steer[0], steer[0]), Scripted(steer[1], stop)
        third = Scripted()
        seen: list[str] = []

        def last(request: ModelRequest) -> str:
            seen.extend(message.content for message in request.messages if message.role == "user")
            return "again"

        outcome = host(tmp_path, first, second, third).run(["one", last])
        assert seen[1:] == ["m1", "m2"], "in the order of registration, in place of a hint"
        assert outcome.ok.raw_result.error == "host.stop: enough", "a stop comes before steering and completion"
        assert [len(hook.seen) for hook in (first, second, third)] == [2, 2, 1], "nobody is asked after a stop"
        assert outcome.ok.raw_result.shared_state[control.KEY]["disallowed_tools"] == ["t1", "t2", "z"]
        assert set(outcome.ok.raw_result.shared_state[control.KEY]) == set(FIXTURE["permission_state"]["closed_fields"])
        assert FIXTURE["permission_state"]["schema_version"] == control.SCHEMA


def test_a_hook_without_a_name_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with CASES.run("distributed/run_definition_capability_slots"):
        (slot,) = FIXTURE["distributed"]["run_definition_capability_slots"]
        place = Host(MemoryStore(), tmp_path, config={"after_cycle_hooks": [Scripted()]})
        refused = place.run(["never"])
        assert isinstance(refused.error, CheckpointError)
        assert (refused.code, refused.model_calls) == ("checkpoint_definition_unstable", 0)
        assert slot in str(refused.error)
    CASES.show("distributed/wire_field")
    CASES.show("distributed/stateful_pairing")
