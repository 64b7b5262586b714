"""checkpoint_config.json, the part that needs the Runner: admission, precedence and the scope of a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.approved import Approved
from tests.contract.test_checkpoint_config import CASES, CHILDREN, FIXTURE, STRICT
from tests.contract.test_checkpoint_resume import CHECKPOINT_EVENTS
from tests.runs import Died, Host, QueueProvider, Recording
from tests.scenarios.agents import by_agent
from vv_agent import (
    Agent,
    ApprovalDecision,
    CapabilityRef,
    CheckpointConfig,
    NoToolPolicy,
    RunConfig,
    Runner,
    function_tool,
)
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Filter, NewRun
from vv_agent.definition import RunDefinition
from vv_agent.errors import CheckpointError
from vv_agent.events import RunEvent
from vv_agent.result import RunResult
from vv_agent.testing import ScriptedProvider
from vv_agent.testing import call as scripted

AGENT = Agent(name="assistant", instructions="Answer.", no_tool_policy=NoToolPolicy.FINISH)


class Counting(Recording):
    """A store that counts the records it was asked to create."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.created: list[NewRun] = []

    def create(self, runs: Any) -> Any:
        heads = super().create(runs)
        self.created += runs
        return heads


class Provider:
    """A reconciliation provider without a name."""

    def reconcile(self, observation: Any) -> Any:
        raise AssertionError("nothing is in doubt")


class Call:
    """One call of the Runner under two layers of configuration."""

    def __init__(self, folder: Path, store: Counting) -> None:
        self.store = store
        self.folder = folder
        self.events: list[RunEvent] = []
        self.model_calls = 0
        self.result: RunResult | None = None
        self.code: str | None = None

    def make(self, default: Any, run: Any, **more: Any) -> Call:
        provider = QueueProvider(["done"])
        layer = None if default is None else RunConfig(checkpoint_config=self.config(default))
        runner = Runner(model_provider=provider, workspace=self.folder, default_run_config=layer)
        try:
            config = RunConfig(
                checkpoint_config=None if run is None else self.config(run), stream=self.events.append, **more
            )
            self.result = runner.run_sync(AGENT, "hello", run_config=config)
        except CheckpointError as error:
            self.code = error.code
        self.model_calls = len(provider.model.requests)
        return self

    def config(self, wire: Any) -> CheckpointConfig:
        """The strict policies where the fixture leaves them out."""
        fields = STRICT | wire | {"store": self.store}
        fields["capability_refs"] = {k: CapabilityRef(**v) for k, v in wire.get("capability_refs", {}).items()}
        return CheckpointConfig.parse(fields)

    def policy(self) -> Any:
        """The policies the run was created with."""
        return RunDefinition.decode(self.store.created[-1].definition_body).checkpoint_policy


@pytest.fixture
def call(tmp_path: Path) -> Call:
    return Call(tmp_path, Counting())


def present(call: Call, existing: dict[str, Any], wire: dict[str, Any]) -> None:
    """A record under the key: of another definition if the case gives it a digest, claimed or ended if it says so."""
    key, status = existing["checkpoint_key"], existing.get("status", "running")
    text = "another input" if "run_definition_digest" in existing else "hello"
    stops = None if status == "completed" else ("store.claim", "before", 1)
    config = replace(call.config({**wire, "key": key, "resume_policy": "new"}), store=Recording(call.store, stops))
    runner = Runner(model_provider=QueueProvider(["done"]), workspace=call.folder)
    try:
        runner.run_sync(AGENT, text, run_config=RunConfig(checkpoint_config=config))
    except Died:
        if existing.get("claim_token") is not None:
            call.store.claim(key, 1, "a" * 32, owner="elsewhere/1/1", lease=60_000)
    call.store.created.clear()


@pytest.mark.parametrize("case", FIXTURE["runner_cases"], ids=lambda case: case["name"])
def test_a_runner_case(case: dict[str, Any], call: Call) -> None:
    name = f"runner_cases/{case['name']}"
    if "child_invocation" in case:
        with CASES.run(name):
            assert case["child_invocation"] == {"kind": "agent_as_tool", "explicit_checkpoint_config": None}
            keys = family(call, AGENT.as_tool(), case["run_config"])
            keys.remove(case["expected"]["parent_checkpoint_key"])
            assert bool(keys) is case["expected"]["child_checkpoint_enabled"]
        return
    with CASES.run(name):
        if case.get("existing"):
            present(call, case["existing"], case["run_config"] or case["runner_default"])
        more = {slot: Provider() for slot in case.get("configured_capabilities", ())}
        call.make(case["runner_default"], case["run_config"], **more)
        result, expected = call.result, case["expected"]
        seen: dict[str, Callable[[], Any]] = {
            "checkpoint_enabled": lambda: result is not None and result.checkpoint_key is not None,
            "status": lambda: "failed" if result is None else result.status,
            "failure_code": lambda: call.code,
            "model_calls": lambda: call.model_calls,
            "tool_calls": lambda: sum(event.type == "tool_call_started" for event in call.events),
            "checkpoint_events": lambda: [event.type for event in call.events if event.type in CHECKPOINT_EVENTS],
            "generated_key": lambda: bool(result and result.checkpoint_key),
            "checkpoint_created": lambda: [event.type for event in call.events].count("checkpoint_created") == 1,
            "checkpoint_create_count": lambda: len(call.store.created),
            "effective_key": lambda: call.store.created[-1].key,
            "effective_resume_policy": lambda: "new" if again(call, case) == "checkpoint_already_exists" else "other",
            "effective_ambiguous_model_policy": lambda: call.policy().ambiguous_model_policy,
            "effective_ambiguous_tool_policy": lambda: call.policy().ambiguous_tool_policy,
        }
        assert {key: seen[key]() for key in expected} == expected


def family(call: Call, tool: Any, wire: Any) -> list[str]:
    """The keys of the records of a run that has another agent work for it once."""
    boss = Agent(name="boss", instructions="Lead.", no_tool_policy=NoToolPolicy.FINISH, tools=[tool])
    work = {"Lead.": [scripted(tool.name, {"task_description": "x"}), "Done."], "Answer.": ["found"]}
    runner = Runner(model_provider=ScriptedProvider(by_agent(work)), workspace=call.folder)
    result = runner.run_sync(boss, "Go.", run_config=RunConfig(checkpoint_config=call.config(wire)))
    assert result.final_output == "Done."
    return [head.key for head in call.store.find(Filter(root_key=wire["key"]))]


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_child_has_a_key_of_its_own(kind: str, call: Call) -> None:
    name = f"{kind}_child_inherits_parent_checkpoint_config"
    tool = AGENT.as_tool() if kind == "agent_as_tool" else AGENT.as_background_task()
    keys = family(call, tool, {"key": "parent-run"})
    assert len({*keys, "parent-run"}) == 2, "the child has a key of its own"
    with CASES.run(f"run_scope/{name}"):
        assert (len(keys) == 2) is FIXTURE["run_scope"][name]


def test_a_tool_may_run_an_agent_under_a_key_of_its_own(call: Call) -> None:
    @function_tool(idempotency="supported")
    def ask_expert() -> str:
        """Ask an expert."""
        config = RunConfig(checkpoint_config=call.config({"key": "child-run"}))
        runner = Runner(model_provider=QueueProvider(["because"]), workspace=call.folder)
        return str(runner.run_sync(AGENT, "Why?", run_config=config).final_output)

    with CASES.run("run_scope/child_may_use_an_explicit_distinct_checkpoint_key"):
        parent, child = own_runs(call, ask_expert)
        assert (parent.key, child.key) == ("parent-run", "child-run")
        assert FIXTURE["run_scope"]["child_may_use_an_explicit_distinct_checkpoint_key"] is True


def own_runs(call: Call, tool: Any) -> list[NewRun]:
    """The records of a run that calls a tool once."""
    agent = replace(AGENT, tools=[tool])
    runner = Runner(model_provider=ScriptedProvider([scripted(tool.name, {}), "Done."]), workspace=call.folder)
    config = RunConfig(checkpoint_config=call.config({"key": "parent-run"}))
    assert runner.run_sync(agent, "Go.", run_config=config).final_output == "Done."
    return call.store.created


def test_who_resumes_after_an_approval_finds_the_operation_of_before(tmp_path: Path) -> None:
    with CASES.run("run_scope/approval_resume_reenters_operation_journal"):
        assert FIXTURE["run_scope"]["approval_resume_reenters_operation_journal"] is True
        asked = Approved(tmp_path)
        asked.decide(ApprovalDecision.allow())
        assert [entry["state"] for entry in asked.seen] == ["started"]
        assert asked.keys == [asked.key]


def again(call: Call, case: dict[str, Any]) -> str | None:
    """What the same call made once more is refused with."""
    return Call(call.folder, call.store).make(case["runner_default"], case["run_config"]).code


@pytest.mark.parametrize("case", FIXTURE["runner_cases"], ids=lambda case: case["name"])
def test_the_strict_default_of_the_fixture_is_not_ours(case: dict[str, Any]) -> None:
    if "effective_ambiguous_model_policy" in case["expected"]:
        with CASES.run(f"runner_cases/{case['name']}/default_policies"):
            unfilled = CheckpointConfig(key="run-key", store=object())
            assert unfilled.ambiguous_model_policy == case["expected"]["effective_ambiguous_model_policy"]


def test_a_runs_own_configuration_replaces_the_runners_as_a_whole(call: Call) -> None:
    precedence = FIXTURE["precedence"]
    with CASES.run("precedence/layers"), CASES.run("precedence/merge"):
        assert precedence["layers"] == ["run_config", "runner_default_run_config", "framework_disabled"]
        assert precedence["merge"] == "whole_object_replace"
        strict = {"key": "default-key", "resume_policy": "resume_if_present", **STRICT}
        assert call.make(strict, None).store.created[-1].key == "default-key"
        own = CheckpointConfig(key="run-key", store=call.store)
        runner = Runner(
            model_provider=QueueProvider(["done"]), workspace=call.folder,
            default_run_config=RunConfig(checkpoint_config=call.config(strict)),
        )  # fmt: skip
        runner.run_sync(AGENT, "hello", run_config=RunConfig(checkpoint_config=own))
        assert call.store.created[-1].key == "run-key"
        assert call.policy().ambiguous_model_policy == own.ambiguous_model_policy != STRICT["ambiguous_model_policy"]


def test_an_agent_never_implies_a_checkpoint(call: Call) -> None:
    with CASES.run("precedence/agent_implicit_checkpoint"):
        assert not any("checkpoint" in name for name in Agent.__dataclass_fields__)
        result = call.make(None, None).result
        assert (result is not None and result.checkpoint_key is not None) is FIXTURE["precedence"][
            "agent_implicit_checkpoint"
        ]


def test_a_key_belongs_to_one_definition(call: Call) -> None:
    with CASES.run("run_scope/checkpoint_key_belongs_to_one_root_run_definition"):
        assert FIXTURE["run_scope"]["checkpoint_key_belongs_to_one_root_run_definition"] is True
        host = Host(call.store, call.folder)
        host.run(die_at=("store.claim", "before", 1))
        before = host.head()
        host.text = "another input"
        assert host.run(["done"]).code == "checkpoint_definition_mismatch"
        assert host.head() == before


def test_facts_that_differ_are_shown() -> None:
    for section in ("run_scope", "defaults"):
        for name in FIXTURE[section]:
            if f"{section}/{name}" in CASES.differs and "_child_" not in name:
                CASES.show(f"{section}/{name}")
