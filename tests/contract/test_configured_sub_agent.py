"""configured_sub_agent.json: what a run of a configured sub-agent is made from, is told, and may do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.scenarios.agents import by_agent
from vv_agent import (
    Agent,
    CheckpointConfig,
    ModelSettings,
    NoToolPolicy,
    RunConfig,
    Runner,
    ToolContext,
    ToolPolicy,
    function_tool,
)
from vv_agent.agent import SubAgentConfig
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import Filter
from vv_agent.definition import CapabilityRef, RunDefinition
from vv_agent.errors import ConfigError
from vv_agent.events import parse_event
from vv_agent.runtime.sub_runs import SubRun
from vv_agent.runtime.team import RESERVED_METADATA
from vv_agent.testing import ScriptedProvider, call
from vv_agent.tools.policy import ApprovalPolicy, merge_policies

FIXTURE = load("configured_sub_agent.json")
EVENTS = [json.loads(line) for line in load("configured_sub_agent_events.jsonl") if line.strip()]
ADAPTERS = "live payloads of foreign clients are run in test_llm_stream_projection"
CASES = Cases(
    "configured_sub_agent.json",
    differs={
        "task_projection/native_multimodal": "what the model of the child can do decides, not its parent",
        "task_projection/allow_interruption": "no switch: a child is not offered ask_user, and anybody may steer it",
        "metadata_projection/request_value": "a request brings no metadata: no tool has a parameter for it",
        "manager/async_submission/single_error_code": "creation is part of a save, which cannot be refused by itself",
        "lifecycle/async_may_finish_after_parent": "a run that ends cancels what works below it (DESIGN 6.6)",
        "stream_forwarding/stream_observer_failure_isolated": ADAPTERS,
    },
)
VALIDATION, PROJECTION = FIXTURE["validation"], FIXTURE["task_projection"]
SEEN: list[dict[str, Any]] = []


@function_tool(idempotency="supported")
def custom_tool(context: ToolContext) -> str:
    """Look at the metadata of the call."""
    SEEN.append(dict(context.metadata))
    return "seen"


def sub(**more: Any) -> SubAgentConfig:
    return SubAgentConfig(**{"model": "child-model", "system_prompt": "Research.", "max_cycles": 4, **more})


class Tree:
    """A run that gives work, and the record of the work."""

    def __init__(self, config: SubAgentConfig, *steps: Any, work: Any = None, **more: Any) -> None:
        give = call("create_sub_task", {
            "agent_id": "researcher", "task_description": "Collect facts", "output_requirements": "Return JSON",
        }, "delegate")  # fmt: skip
        agent = Agent(
            name="boss", instructions="Lead.", no_tool_policy=NoToolPolicy.FINISH, sub_agents={"researcher": config},
            **{"tools": [custom_tool], **more.pop("agent", {})},
        )  # fmt: skip
        done = call("task_finish", {"message": "child done"})
        script = by_agent({"Lead.": [*(steps or (give,)), "Done."], "Research.": work or [call("custom_tool"), done]})
        self.store = MemoryStore()
        checkpoint = CheckpointConfig(
            key="parent-task", store=self.store,
            capability_refs={"behavior_affecting_run_metadata": CapabilityRef(id="m", version="1")},
        )  # fmt: skip
        runner = Runner(model_provider=ScriptedProvider(script), workspace=more.pop("workspace", None))
        SEEN.clear()
        self.result = runner.run_sync(agent, "Go.", run_config=RunConfig(checkpoint_config=checkpoint, **more))
        below = [head for head in self.store.find(Filter(root_key="parent-task")) if head.parent_key is not None]
        self.records = [SubRun(self.store, head.key) for head in sorted(below, key=lambda head: head.created_at)]
        self.definition = RunDefinition.decode(self.store.definition(below[0].definition)) if below else None

    def told(self) -> list[Any]:
        return [json.loads(message.content) for message in self.result.messages if message.role == "tool"]

    def events(self, *types: str) -> list[Any]:
        return [event for event in self.result.events if event.type in types]


def test_what_a_config_may_say() -> None:
    space = VALIDATION["portable_whitespace"]
    with CASES.run("validation/wire"):
        assert SubAgentConfig.from_wire({"model": "m"}).to_wire() == {"model": "m", **VALIDATION["wire_defaults"]}
        assert sub(model=VALIDATION["normalized_model_input"]).model == VALIDATION["normalized_model_value"]
        assert sub(model=space["model_input"]).model == space["model_value"]
        assert sub(backend=space["blank_backend_input"]).backend is None
    for name, value in VALIDATION["wire_rejections"].items():
        field = next(f for f in sorted(VALIDATION["wire_defaults"], key=len, reverse=True) if name.startswith(f))
        with CASES.run(f"validation/{name}"), pytest.raises(ConfigError):
            SubAgentConfig.from_wire({"model": "m", field: value})
    with CASES.run("validation/unknown_top_level_fields"), pytest.raises(ConfigError):
        SubAgentConfig.from_wire({"model": "m", "other": 1})


@pytest.mark.parametrize("kind", ["model", "system_prompt"])
def test_a_blank_text_fails_the_work(kind: str) -> None:
    blank = VALIDATION["portable_whitespace"][f"blank_{kind}_input"]
    with CASES.run(f"validation/empty_{kind}"):
        (outcome,) = Tree(sub(**{kind: blank})).told()
        wanted = (VALIDATION[f"empty_{kind}_error_code"], VALIDATION[f"empty_{kind}_message"])
        assert (outcome["error_code"], outcome["error"]) == wanted


def test_which_model_works(tmp_path: Path) -> None:
    rules = FIXTURE["model_resolution"]
    with CASES.run("model_resolution/resolved_without_endpoint"):
        (outcome,) = Tree(sub(backend=rules["blank_backend_input"])).told()
        wanted = {**rules["resolved_without_endpoint"], "backend": "scripted"}
        assert outcome["resolved"] == wanted
    with CASES.run("model_resolution/explicit_backend_requires_resolver"):
        tree = Tree(sub(backend="elsewhere"))
        assert tree.told()[0]["error_code"] == "model_backend_mismatch"
        assert [e.status for e in tree.events("sub_run_started", "sub_run_completed")] == ["running", "failed"]
    with CASES.run("model_resolution/resolved_token_limits"):
        Tree(sub(), workspace=tmp_path)
        assert SEEN[0]["model_context_window"] == 128_000
        Tree(sub(metadata={"model_context_window": 5000}), workspace=tmp_path)
        assert SEEN[0]["model_context_window"] == 5000


def test_what_the_work_is_made_from() -> None:
    parent = ToolPolicy(disallowed_tools=["parent_excluded"])
    tree = Tree(
        sub(exclude_tools=["sub_excluded"]), agent={"tool_policy": parent, "max_cycles": 9},
        model_settings=ModelSettings(temperature=0.25, max_tokens=99),
        metadata={"agent_type": "computer", "memory_threshold_percentage": 80}, shared_state={"parent": 1},
    )  # fmt: skip
    definition, (child,) = tree.definition, tree.records
    assert definition is not None
    controls = definition.runtime_controls
    names = [tool.tool_schema.function.name for tool in definition.tools]
    settings = definition.model.settings.model_dump(exclude_unset=True)
    ours = {
        "model": definition.model.model_id, "user_prompt": child.task, "max_cycles": controls.max_cycles,
        "memory_compact_threshold": controls.memory_compact_threshold,
        "memory_threshold_percentage": controls.memory_threshold_percentage,
        "no_tool_policy": controls.no_tool_policy, "use_workspace": "read_file" in names,
        "agent_type": definition.run_metadata["agent_type"], "native_multimodal": controls.native_multimodal,
        "extra_tool_names": [name for name in names if name == "custom_tool"], "allow_interruption": controls.allow_interruption,
        "exclude_tools": sorted({*definition.tool_policy.disallowed_tools} - {"ask_user"}),
        "model_settings": {name: value for name, value in settings.items() if value},
        "initial_messages": list(definition.initial_messages), "initial_shared_state": dict(definition.initial_shared_state),
    }  # fmt: skip
    for name, wanted in PROJECTION.items():
        with CASES.run(f"task_projection/{name}"):
            assert ours[name] == wanted
    assert not {"create_sub_task", "sub_task_status", "ask_user", "parent_excluded"} & set(names)
    assert "parent" not in child.state


def test_what_the_work_knows_of_itself(tmp_path: Path) -> None:
    lies = dict.fromkeys(FIXTURE["reserved_metadata_keys"], "a lie")
    given = {
        "language": "en-US", "active_skills": ["review"], "bash_shell": "bash", **lies, "other": "not copied",
        "session_memory_enabled": True,
    }  # fmt: skip
    config = sub(metadata={"sub_config_value": "sub", **lies})
    tree = Tree(config, metadata=given, workspace=tmp_path, tracing={"trace_id": "trace-parity"})
    (record,) = tree.records
    assert record.body.parent is not None
    (metadata,) = SEEN
    names = {
        "<workspace>": str(tmp_path), "child-task": record.body.parent["task_id"], "child-session": record.body.session_id,
        "child-run": record.body.run_id, "parent-run": tree.result.run_id,
    }  # fmt: skip
    for name, wanted in FIXTURE["metadata_projection"].items():
        if name == "available_skills":
            continue  # see tests/scenarios/test_skills: they need files
        with CASES.run(f"metadata_projection/{name}"):
            assert metadata[name] == (names.get(wanted, wanted) if isinstance(wanted, str) else wanted)
    with CASES.run("reserved_metadata_keys"):
        assert sorted(RESERVED_METADATA) == sorted(FIXTURE["reserved_metadata_keys"])
        assert "a lie" not in metadata.values()
        assert "other" not in metadata
    with CASES.run("identity"):
        task_id = record.body.parent["task_id"]
        assert task_id == record.body.session_id
        assert task_id.startswith("parent-task_sub_researcher_")
        assert record.body.trace_id == "trace-parity"


def test_what_the_work_may_do() -> None:
    rules = FIXTURE["tool_policy_projection"]
    case = rules["metadata_denial_merge_case"]
    with CASES.run("tool_policy_projection/metadata_denial_merge_case"):
        tree = Tree(sub(**case["child"]), agent={"tool_policy": ToolPolicy(**case["parent"])})
        assert tree.definition is not None
        policy = tree.definition.tool_policy.model_dump(mode="json")
        assert {name: policy[name] for name in case["effective"]} == case["effective"]
    with CASES.run("tool_policy_projection/inherited"):
        policy = ToolPolicy(allowed_tools=["custom_tool", "create_sub_task"], approval=ApprovalPolicy.NEVER)
        tree = Tree(sub(), agent={"tool_policy": policy})
        assert tree.definition is not None
        kept = tree.definition.tool_policy
        assert (set(kept.allowed_tools or ()), kept.approval) == ({"custom_tool", "create_sub_task"}, "never")
        assert set(rules["always_disallowed_for_child"]) <= set(kept.disallowed_tools)
    with CASES.run("tool_policy_projection/approval_modes"):
        assert [mode.value for mode in ApprovalPolicy] == rules["approval_modes"]["values"]
        override = merge_policies(
            ToolPolicy(approval=ApprovalPolicy.ALWAYS), None, ToolPolicy(approval=ApprovalPolicy.ON_REQUEST)
        )
        assert override.approval is ApprovalPolicy.ON_REQUEST


def test_the_events_of_work() -> None:
    """The lines of the fixture, with what differs from run to run put in their place."""

    def normal(wire: dict[str, Any]) -> dict[str, Any]:
        names = {
            "event_id",
            "created_at",
            "run_id",
            "trace_id",
            "session_id",
            "child_session_id",
            "task_id",
            "parent_run_id",
            "parent_tool_call_id",
        }
        kept = {name: value for name, value in wire.items() if name not in names}
        kept["metadata"] = {name: value for name, value in wire["metadata"].items() if name != "parent_task_id"}
        return {**kept, "names": sorted(names & wire.keys())}

    done = call("task_finish", {"message": "child done"})
    good = Tree(sub(), work=[done])
    bad = Tree(sub(system_prompt=" "))
    made = [e.to_wire() for tree in (good, bad) for e in tree.events("sub_run_started", "sub_run_completed")]
    for number, (ours, line) in enumerate(zip(made, EVENTS, strict=True)):
        with CASES.run(f"events/{number}"):
            assert normal(ours) == normal(line)
            assert parse_event(line).to_wire() == line
    with CASES.run("lifecycle"):
        assert [wire["type"] for wire in made[:2]] == FIXTURE["lifecycle"]["event_sequence"]


def test_work_that_goes_on() -> None:
    asked: list[list[str]] = []

    def more(request: Any) -> Any:
        (outcome,) = [
            json.loads(m.content) for m in request.messages if m.role == "tool" and "final_answer" in m.content
        ]
        return call(
            "sub_task_status", {"task_ids": [outcome["task_id"]], "message": "second prompt", "wait_for_response": True}
        )

    def work(request: Any) -> Any:
        asked.append([message.content for message in request.messages if message.role == "user"])
        return call("task_finish", {"message": "first answer" if len(asked) < 2 else "second answer"})

    give = call("create_sub_task", {"agent_id": "researcher", "task_description": "first prompt"})
    tree = Tree(sub(), give, more, work=[call("custom_tool"), work, work])
    one, two = tree.records
    with CASES.run("continuation/history"):
        assert asked[1] == ["first prompt", "second prompt"]
        texts = [message.content for message in two.transcript.messages]
        assert sum("first answer" in text for text in texts) == 1
        assert "seen" in texts  # a whole turn, with its result
    with CASES.run("continuation/stable_identity"):
        assert one.body.parent is not None
        assert two.body.parent is not None
        assert (one.body.agent, one.body.session_id) == (two.body.agent, two.body.session_id)
        assert one.body.parent["task_id"] == two.body.parent["task_id"]
    with CASES.run("continuation/fresh_run_id"):
        assert one.body.run_id != two.body.run_id
    with CASES.run("continuation/current_parent_turn_binding"):
        assert one.body.parent["call_id"] != two.body.parent["call_id"]
        assert one.body.parent["run_id"] == two.body.parent["run_id"] == tree.result.run_id


def test_work_that_cannot_go_on() -> None:
    errors = FIXTURE["manager"]["continuation_errors"]

    def more(request: Any) -> Any:
        (outcome,) = [json.loads(m.content) for m in request.messages if m.role == "tool" and "cycles" in m.content]
        return call("sub_task_status", {"task_ids": [outcome["task_id"]], "message": "go on"})

    give = call("create_sub_task", {"agent_id": "researcher", "task_description": "x"})
    tree = Tree(sub(max_cycles=0), give, more, work=["still at it"])
    with CASES.run("manager/continue_max_cycles_rejected"):
        outcome, refused = tree.told()
        assert refused["error"] == errors["max_cycles"].format(task_id=outcome["task_id"])
        assert (outcome["cycles"], outcome["status"]) == (1, "max_cycles")


def test_a_cancel_reaches_all_work() -> None:
    with CASES.run("cancellation"):
        from vv_agent.cancellation import CancellationToken

        token = CancellationToken()

        def work(request: Any) -> Any:
            token.cancel("enough")
            request.cancellation.wait(20)
            return "late"

        tree = Tree(sub(), work=[work], cancellation_token=token)
        assert tree.result.completion_reason == "cancelled"
        assert [record.head.status for record in tree.records] == [FIXTURE["cancellation"]["terminal_status"]]


def test_what_is_run_elsewhere_or_set_aside() -> None:
    for name in CASES.differs:
        if name not in CASES.aside:
            CASES.show(name)
