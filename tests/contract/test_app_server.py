"""app_server_observable.json: live, over the server's own wire."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from tests.app_server import TEXT, Served, refused
from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.runs import Recording
from vv_agent import RunConfig, Runner, function_tool
from vv_agent.app_server import (
    JsonRpcMessage,
    MemoryThreadStore,
    MessageProcessor,
    OutgoingRouter,
    SqlThreadStore,
)
from vv_agent.app_server.items import Projection
from vv_agent.app_server.protocol import AppThread, AppTurn
from vv_agent.app_server.rpc import ErrorResponse, Request, RpcError, encode
from vv_agent.app_server.schema import BUNDLE, json_schemas, typescript, write_schemas, write_typescript
from vv_agent.app_server.sql import THREAD, TurnRecord
from vv_agent.budget import RunBudgetLimits
from vv_agent.checkpoint.config import CheckpointConfig
from vv_agent.checkpoint.identity import tool_operation_id
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.cli.app_server import default_agent
from vv_agent.events import make_event
from vv_agent.runtime.owner import process_owner
from vv_agent.testing import ScriptedProvider, call, calls

FIXTURE = load("app_server_observable.json")
CASES = Cases("app_server_observable.json")


def plant(store: SqlThreadStore, thread_id: str, turn_id: str | None = None, status: str = "idle", **turn: Any) -> None:
    """A thread, and perhaps a turn, under ids of the fixture."""
    thread = AppThread(
        thread_id=thread_id, agent_key="default", cwd=None, created_at=1, updated_at=1, archived_at=None, status=status
    )  # type: ignore[arg-type]
    with store._transaction() as tx:
        body = json.dumps(thread.to_wire())
        tx.execute(insert(THREAD).values(thread_id=thread_id, n=1, archived=False, last_seq=0, body=body))
    if turn_id is not None:
        made = AppTurn(
            turn_id=turn_id, thread_id=thread_id, run_id=None, status="interrupted", started_at=1, completed_at=2,
            input=[{"type": "text", "text": "process item 42"}],
        )  # fmt: skip
        store.put_turn(TurnRecord(made, **turn))


def a_processor() -> tuple[MessageProcessor, OutgoingRouter]:
    return MessageProcessor.with_runtime(8, Runner(model_provider=ScriptedProvider(["Done."])), default_agent())


# jsonRpc, timestamps, input.


@pytest.mark.parametrize("request_id", FIXTURE["jsonRpc"]["validRequestIds"], ids=repr)
def test_a_valid_id_comes_back_with_its_type(request_id: Any) -> None:
    with CASES.run(f"jsonRpc/valid/{request_id!r}"):
        line = json.dumps({"jsonrpc": FIXTURE["jsonRpc"]["version"], "id": request_id, "method": "thread/list"})
        parsed = JsonRpcMessage.parse(line)
        assert isinstance(parsed, Request)
        assert (parsed.id, type(parsed.id)) == (request_id, type(request_id))
        processor, outgoing = a_processor()
        processor.connect("c")
        processor.process("c", line)
        answer = json.loads(outgoing.receive("c", 5) or b"")
        assert (answer["id"], type(answer["id"]), answer["error"]["code"]) == (request_id, type(request_id), -32010)


@pytest.mark.parametrize("request_id", FIXTURE["jsonRpc"]["invalidRequestIds"], ids=repr)
def test_an_invalid_id_is_refused(request_id: Any) -> None:
    with CASES.run(f"jsonRpc/invalid/{request_id!r}"), pytest.raises(RpcError) as refusal:
        JsonRpcMessage.parse(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "thread/list"}))
    assert (refusal.value.code, refusal.value.request_id) == (-32600, None)


def test_only_an_error_may_have_a_null_id() -> None:
    with CASES.run("jsonRpc/errorResponseAllowsNullId"):
        parsed = JsonRpcMessage.parse('{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}')
        assert isinstance(parsed, ErrorResponse)
        with pytest.raises(RpcError):
            JsonRpcMessage.parse('{"jsonrpc":"2.0","id":null,"result":{}}')


def test_times_are_unix_seconds() -> None:
    with CASES.run("timestamps"):
        times = FIXTURE["timestamps"]
        event = make_event(
            "run_started", event_id="e", run_id="r", trace_id="t", created_at=times["eventMillis"] / 1000, input="x"
        )
        shown = Projection("a", "b").show(event)
        assert shown is not None
        assert shown.item.to_wire()["createdAt"] == times["eventSeconds"]
        assert f'"createdAt":{times["eventSeconds"]}' in encode(shown.item.to_wire()).decode()


def test_input_is_a_list_of_objects() -> None:
    def heard(request: Any) -> str:
        return str(request.messages[-1].content)

    with Served([heard]) as served:
        thread_id = served.thread()
        with CASES.run("input/valid"):
            served.client.start_turn({"threadId": thread_id, "input": FIXTURE["input"]["valid"]})
            text, image = FIXTURE["input"]["valid"]
            done = served.next("turn/completed")
            assert done["finalOutput"] == text["text"] + "\n" + json.dumps(image)
        for wrong in FIXTURE["input"]["invalid"]:
            with CASES.run(f"input/invalid/{wrong!r}"):
                for given in (wrong, [wrong]):
                    error = refused(served.client.start_turn, {"threadId": thread_id, "input": given})
                    assert error.rpc_code == -32602
        assert len(served.read(thread_id)["turns"]) == 1


# liveReplay, toolLifecycle.


def test_what_is_told_is_what_is_read_later() -> None:
    with CASES.run("liveReplay"):
        wanted = FIXTURE["liveReplay"]["item"]
        event = make_event(
            "run_completed", event_id=wanted["itemId"].removeprefix("item_"), run_id="r", trace_id="t",
            created_at=wanted["createdAt"], status="completed", final_output=wanted["payload"]["text"],
        )  # fmt: skip
        shown = Projection(wanted["threadId"], wanted["turnId"]).show(event)
        assert shown is not None
        assert [method for method, _ in shown.notes] == [FIXTURE["liveReplay"]["notificationMethod"]]
        store = MemoryThreadStore()
        plant(store, wanted["threadId"])
        told = store.add_item(shown.item)
        assert told is not None
        assert told.model_copy(update={"seq": None}).to_wire() == wanted
        assert store.page(wanted["threadId"], 0, 10).items == [told]
        assert store.add_item(shown.item) is None
        store.close()


def lifecycle(view: Projection, event_type: str, item: dict[str, Any]) -> list[dict[str, Any]]:
    """The notifications of the event that stands behind a fixture item."""
    payload = item["payload"]
    metadata = {re.sub("([A-Z])", lambda m: f"_{m[1].lower()}", k): v for k, v in payload["toolMetadata"].items()}
    fields = {"arguments": {"path": "README.md"}}
    if event_type == "tool_call_completed":
        fields = {
            "status": payload["status"], "directive": payload["directive"], "error_code": payload["errorCode"],
            "execution_started": payload["executionStarted"], "duration_ms": payload["durationMs"],
        }  # fmt: skip
    shown = view.show(make_event(
        event_type, event_id=item["itemId"].removeprefix("item_"), run_id="r", trace_id="t", created_at=item["createdAt"],
        tool_call_id=payload["toolCallId"], tool_name=payload["toolName"], tool_metadata=metadata, **fields,
    ))  # fmt: skip
    assert shown is not None
    return [
        {"jsonrpc": "2.0", "method": method, "params": {**shown.item.to_wire(), **extra}}
        for method, extra in shown.notes
    ]


def test_a_planned_call_is_not_shown() -> None:
    with CASES.run("toolLifecycle/plannedHasNoNotification"):
        case = FIXTURE["toolLifecycle"]["plannedHasNoNotification"]
        view = Projection("thread-tool", "turn-tool")
        assert (
            view.show(make_event(run_id="r", trace_id="t", event_type=case["event"].pop("type"), **case["event"]))
            is None
        )
        assert (case["notifications"], case["persistedItem"]) == ([], None)
        asked = view.show(make_event(
            "approval_requested", event_id="e", run_id="r", trace_id="t", created_at=1, request_id="a",
            tool_call_id="call_tool", tool_name="inspect", message="May it?",
        ))  # fmt: skip
        assert asked is not None
        assert asked.besides[0][1].to_wire()["arguments"] == case["event"]["arguments"]


@pytest.mark.parametrize("group", ["executed", "policyDenial"])
def test_a_tool_call_is_told_in_full(group: str) -> None:
    with CASES.run(f"toolLifecycle/{group}"):
        case = FIXTURE["toolLifecycle"][group]
        view = Projection("thread-tool", "turn-tool")
        started, completed = case["startedNotifications"], case["completedNotifications"]
        if started:
            assert lifecycle(view, "tool_call_started", started[0]["params"]) == started
        assert lifecycle(view, "tool_call_completed", completed[0]["params"]) == completed


# approval.


@function_tool(needs_approval=True, idempotency="supported")
def launch(pad: str) -> str:
    """Launch."""
    return pad


@pytest.mark.parametrize("decision", [*FIXTURE["approval"]["decisions"], "Allow", "yes", 7])
def test_a_decision_is_one_of_four_words(decision: Any) -> None:
    with CASES.run(f"approval/decisions/{decision}"):
        known = decision in FIXTURE["approval"]["decisions"]
        with Served([call("launch", {"pad": "A"}), "Done."], [launch]) as served:
            served.turn(served.thread())
            asked = served.next("approval/request")
            served.client.send_response(asked["requestId"], {"decision": decision})
            told = served.next("approval/resolved")
            served.next("turn/completed")
        assert (told["decision"], told.get("reason")) == (
            (decision, None) if known else ("deny", "invalid approval response")
        )


def test_an_approval_that_nobody_answers_times_out() -> None:
    with CASES.run("approval/timeoutDecision"), Served(
        [call("launch", {"pad": "A"}), "Done."], [launch], approval_timeout=0.05
    ) as served:  # fmt: skip
        served.turn(served.thread())
        assert served.next("approval/resolved")["decision"] == FIXTURE["approval"]["timeoutDecision"]
        served.next("turn/completed")


def test_an_approval_of_a_client_that_left_times_out() -> None:
    with CASES.run("approval/disconnectDecision"):
        store = MemoryThreadStore()
        served = Served([call("launch", {"pad": "A"}), "Done."], [launch], store=store).hello()
        thread_id = served.thread()
        served.turn(thread_id)
        served.next("approval/request")
        served.close(check=False)
        (resolved,) = [item for item in store.page(thread_id, 0, 100).items if "action" in item.payload]
        assert resolved.payload["action"] == FIXTURE["approval"]["disconnectDecision"]
        store.close()


def test_a_request_id_that_waits_is_not_used_again() -> None:
    with CASES.run("approval/duplicateServerRequestId"):
        assert FIXTURE["approval"]["duplicateServerRequestId"] == "reject"
        router = OutgoingRouter()
        router.connect("c")
        asked = Projection("t", "u").show(make_event(
            "approval_requested", event_id="e", run_id="r", trace_id="t", created_at=1, request_id="a", tool_call_id="c",
            tool_name="n", message="m", metadata={"arguments": {}},
        ))  # fmt: skip
        assert asked is not None
        router.request("c", "approval/request", "a", asked.besides[0][1], lambda answer: None)
        with pytest.raises(RpcError):
            router.request("c", "approval/request", "a", asked.besides[0][1], lambda answer: None)


# ordering, nullability, restart, schema.


def test_messages_come_in_their_order() -> None:
    with Served() as served:
        thread_id = served.thread()
        served.run(thread_id)
    named = [m.get("method", "response") for m in served.wire.received()][1:]
    order = FIXTURE["ordering"]
    with CASES.run("ordering/threadStart"):
        assert named[:2] == order["threadStart"]
    with CASES.run("ordering/turnStart"):
        assert named[2:5] == order["turnStart"]
    with CASES.run("ordering/turnTerminal"):
        assert named[-2:] == order["turnTerminal"]


def test_absent_values_that_are_null() -> None:
    with Served([call("launch", {"pad": "A"}), "Done."], [launch]) as served:
        started = served.client.start_thread({})
        thread_id = started["threadId"]
        with CASES.run("nullability/threadStartResponse"):
            assert started.items() >= FIXTURE["nullability"]["threadStartResponse"].items()
        with CASES.run("nullability/threadSnapshot"):
            thread = served.read(thread_id)["thread"]
            assert thread.items() >= FIXTURE["nullability"]["threadSnapshot"].items()
        with CASES.run("nullability/turnSnapshot"):
            served.turn(thread_id)
            served.client.follow_up_turn({"threadId": thread_id, "input": TEXT})
            queued = served.read(thread_id)["turns"][-1]
            assert queued.items() >= FIXTURE["nullability"]["turnSnapshot"].items()
        for _ in range(2):
            asked = served.next("approval/request")
            served.client.send_response(asked["requestId"], {"decision": "allow"})
            served.next("turn/completed")


def test_a_store_that_is_opened_again_has_no_running_thread(tmp_path: Path) -> None:
    with CASES.run("restart/staleRunningThreadStatus"):
        url = f"sqlite:///{tmp_path}/threads.db"
        store = SqlThreadStore(url)
        plant(store, "thread_7", status="running")
        store.close()
        store = SqlThreadStore(url)
        found = store.thread("thread_7")
        assert found is not None
        assert found.status == FIXTURE["restart"]["staleRunningThreadStatus"]
        store.close()


def test_a_connection_may_come_again_under_its_name() -> None:
    with CASES.run("restart/connectionIdCanReinitialize"):
        processor, outgoing = a_processor()
        hello = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"x"}}}'
        codes = []
        for step in ("connect", "again", "reconnect"):
            if step != "again":
                processor.disconnect("c")
                processor.connect("c")
            processor.process("c", hello)
            answer = json.loads(outgoing.receive("c", 5) or b"")
            codes.append(answer.get("error", {}).get("code"))
        assert codes == [None, -32011, None]


def test_the_exported_files_are_those(tmp_path: Path) -> None:
    wanted = FIXTURE["schema"]
    with CASES.run("schema/json"):
        assert [f"{name}.json" for name in json_schemas()] == wanted["json"]
        written = {path.name for path in write_schemas(tmp_path)}
        assert written == {*wanted["json"], BUNDLE}
        assert {path.name for path in (tmp_path / "json").iterdir()} == written
    with CASES.run("schema/typescript"):
        assert list(typescript()) == wanted["typescript"]
        assert {path.name for path in write_typescript(tmp_path / "ts")} == set(wanted["typescript"])
    with CASES.run("schema/typescriptSelfContained"):
        assert not [name for name, text in typescript().items() if "import " in text or f" {name[:-3]} " not in text]


# terminal.

STATUSES = {
    case["agentStatus"] + "/" + str(case["completionReason"]): case
    for case in FIXTURE["terminal"]["agentStatusProjection"]
}
OPTIONAL = frozenset(FIXTURE["terminal"]["optionalFieldsOmittedWhenAbsent"])


def check_terminal(name: str, done: dict[str, Any], snapshot: dict[str, Any]) -> None:
    """The end of a turn against a case: in the notification, and in what is stored."""
    case = STATUSES[name]
    with CASES.run(f"terminal/{case['name']}"):
        assert done["status"] == case["turnStatus"]
        assert done.get("completionReason") == case["completionReason"]
        for field, wish in case.items():
            if field.endswith("Field"):
                assert (field.removesuffix("Field") in done) is (wish == "present"), field
        assert snapshot["thread"]["status"] == FIXTURE["terminal"]["threadStatusAfterTurn"]
        turn = snapshot["turns"][-1]
        assert turn["status"] == done["status"]
        assert turn["result"].items() <= done.items()
        assert "tokenUsage" in done
        assert not [name for name, value in done.items() if name in OPTIONAL and value is None]


def test_a_turn_that_waits_for_its_user() -> None:
    with Served([call("ask_user", {"question": "Which one?"})]) as served:
        thread_id = served.thread()
        check_terminal("wait_user/wait_user", served.run(thread_id), served.read(thread_id))


def test_a_turn_that_was_cancelled() -> None:
    with Served(["Never."], delay=30) as served:
        thread_id = served.thread()
        served.turn(thread_id)
        served.client.interrupt_turn({"threadId": thread_id})
        check_terminal("failed/cancelled", served.next("turn/completed"), served.read(thread_id))


def test_a_turn_whose_budget_is_used_up() -> None:
    limits = RunConfig(budget_limits=RunBudgetLimits(max_tool_calls=0))
    with Served([call("launch", {"pad": "A"}), "Done."], [launch], config=limits) as served:
        thread_id = served.thread()
        check_terminal("failed/budget_exhausted", served.run(thread_id), served.read(thread_id))


# durableResume.

DURABLE = FIXTURE["durableResume"]
PROTOCOL = {case["name"]: case for case in DURABLE["protocolCases"]}
PROJECTIONS = {case["name"]: case for case in DURABLE["projectionCases"]}


@function_tool
def write_record(value: str) -> str:
    """Write."""
    return value


END = ("store.save.end", "before", 1)


class Durable:
    """A turn whose first run died in the middle, on a server that can resume it."""

    def __init__(self, steps: list[Any], die_at: tuple[str, str, int]) -> None:
        self.key = PROTOCOL["live_claim_keeps_existing_owner"]["request"]["params"]["checkpointKey"]
        self.runs: Any = Recording(MemoryStore(), die_at)
        self.calls = 0

        def counted(step: Any) -> Any:
            def answer(request: Any) -> Any:
                self.calls += 1
                return step(request) if callable(step) else step

            return answer

        policies = {
            "ambiguous_model_policy": "retry_with_duplicate_risk",
            "ambiguous_tool_policy": "require_reconciliation",
        }
        checkpoint = CheckpointConfig(key=self.key, store=self.runs, **policies)  # type: ignore[arg-type]
        self.served = Served(
            [counted(step) for step in steps], [write_record], config=RunConfig(checkpoint_config=checkpoint)
        )
        self.served.hello()
        self.thread_id = self.served.thread()
        self.turn_id = self.served.turn(self.thread_id)
        self.served.next("turn/completed", status="failed")
        head = self.runs.look(self.key).head
        self.run_id = head.run_id
        self.runs.expire(str(head.owner))
        self.calls = 0

    def resume(self, case: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The answer, and what was told until the turn was over: in the words of the fixture."""
        before = len(self.served.wire.seen)
        params = {"threadId": self.thread_id, "turnId": self.turn_id, "checkpointKey": self.key}
        answer = self.served.client.resume_turn(params)
        if case["notifications"]:
            self.served.next("turn/completed")
        told = [m for way, m in self.served.wire.seen[before:] if way == "<" and "method" in m]
        same = {self.thread_id: "thread-1", self.turn_id: "turn-1", self.run_id: case["response"]["result"]["runId"]}
        text = json.dumps([answer, [m for m in told if not m["method"].startswith("item/")]])
        for ours, theirs in same.items():
            text = text.replace(f'"{ours}"', f'"{theirs}"')
        renamed = json.loads(text)
        assert not [
            name for name in DURABLE["sensitiveFieldsNeverProjected"] if name in json.dumps(self.served.wire.seen)
        ]
        return renamed[0], renamed[1]


def without_usage(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fixture's run used nothing that it shows."""
    return [{**m, "params": {k: v for k, v in m["params"].items() if k != "tokenUsage"}} for m in messages]


def test_a_resumed_turn_that_needs_a_decision() -> None:
    case = PROTOCOL["resume_reaches_reconciliation_interruption"]
    steps = [
        call("write_record", {"value": "zero"}),
        calls(("write_record", {"value": "one"}), ("write_record", {"value": "two"})),
    ]
    durable = Durable(steps, ("store.save.commit", "before", 2))
    with CASES.run(f"durableResume/protocolCases/{case['name']}"):
        answer, told = durable.resume(case)
        assert answer == case["response"]["result"]
        operation = case["notifications"][-1]["params"]["interruption"]
        ours = told[-1]["params"]["interruption"]
        assert ours.pop("operationId") == tool_operation_id(2, 2)  # whose name for it is the runtime's own
        assert ours == {name: value for name, value in operation.items() if name != "operationId"}
        ours["operationId"] = operation["operationId"]
        assert without_usage(told) == case["notifications"]
    snapshot = durable.served.read(durable.thread_id)
    done = durable.served.wire.received()[-2]["params"]
    check_terminal("reconciliation_required/None", done, snapshot)
    check_projection("reconciliation_required", snapshot["turns"][-1])
    durable.served.close()


def test_a_turn_that_somebody_else_has() -> None:
    case = PROTOCOL["live_claim_keeps_existing_owner"]
    durable = Durable([call("write_record", {"value": "one"}), "done"], END)
    durable.runs.claim(durable.key, 2, "1" * 32, owner=process_owner(), lease=30_000)
    with CASES.run(f"durableResume/protocolCases/{case['name']}"):
        answer, told = durable.resume(case)
        assert answer == case["response"]["result"]
        assert (told, durable.calls) == (case["notifications"], case["externalCalls"])
    with CASES.run("durableResume/projectionCases/live_claim"):
        wanted = PROJECTIONS["live_claim"]
        assert (answer["status"], answer["checkpoint"]) == (wanted["turnStatus"], wanted["checkpoint"])
        assert not {"completionReason", "error", "interruption"} & answer.keys()
    durable.served.close()


def test_a_turn_that_is_over() -> None:
    case = PROTOCOL["terminal_replay_is_response_only"]
    durable = Durable([call("write_record", {"value": "one"}), "done"], END)
    durable.resume(PROTOCOL["resume_reaches_reconciliation_interruption"])
    durable.calls = 0
    with CASES.run(f"durableResume/protocolCases/{case['name']}"):
        answer, told = durable.resume(case)
        assert answer == case["response"]["result"]
        assert (told, durable.calls) == (case["notifications"], case["externalCalls"])
    check_projection("terminal_replay", durable.served.read(durable.thread_id)["turns"][-1])
    durable.served.close()


def check_projection(name: str, turn: dict[str, Any]) -> None:
    """A stored turn against a case."""
    with CASES.run(f"durableResume/projectionCases/{name}"):
        wanted = PROJECTIONS[name]
        assert turn["status"] == wanted["turnStatus"]
        result = turn["result"]
        for field, value in wanted.items():
            if field.endswith("Field"):
                assert field.removesuffix("Field") not in result, field
            elif field in ("checkpoint", "completionReason"):
                assert result[field] == value
            elif field == "interruption":
                assert result[field] == {**value, "operationId": tool_operation_id(2, 2)}


@pytest.mark.parametrize(
    "params",
    [
        {"turnId": "turn_99"}, {"checkpointKey": ""}, {"checkpointKey": "\u00e9" * 257}, {"checkpointKey": "other"},
        {"input": TEXT}, {"approval": {}},
    ],
    ids=["turn", "empty", "long", "other", "input", "approval"],
)  # fmt: skip
def test_what_cannot_be_resumed(params: dict[str, Any]) -> None:
    durable = Durable([call("write_record", {"value": "one"}), "done"], END)
    given = {"threadId": durable.thread_id, "turnId": durable.turn_id, "checkpointKey": durable.key, **params}
    with CASES.run("durableResume/refusals"):
        assert refused(durable.served.client.resume_turn, given).rpc_code == -32602
    durable.served.close()
