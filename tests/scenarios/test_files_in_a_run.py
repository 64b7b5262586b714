"""Files of a run: what workers elsewhere can open, leases beside a hostile pattern, and an image that is shown."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.harness import until
from tests.runs import Died, Host
from vv_agent import (
    Agent,
    CheckpointError,
    ExecutionMode,
    ModelRef,
    NoToolPolicy,
    RunConfig,
    Runner,
    ToolContext,
    function_tool,
)
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.record import State
from vv_agent.checkpoint.store import open_store
from vv_agent.dispatch.distributed import DistributedBackend
from vv_agent.dispatch.store import StoreDispatcher
from vv_agent.dispatch.threaded import ThreadBackend
from vv_agent.llm.reference import ResolvedModelConfig
from vv_agent.settings import Settings
from vv_agent.testing import ScriptedProvider, call, calls, say
from vv_agent.workspace import DiscoveryFilteredWorkspaceBackend, MemoryWorkspaceBackend, S3WorkspaceBackend

CATASTROPHIC = r"^(([a-z])+.)+[A-Z]([a-z])+$"
waiting: list[str] = []
go_on = threading.Event()


@function_tool(idempotency="supported")
def wait(context: ToolContext) -> str:
    """Comes back when it is told."""
    waiting.append(context.run_id)
    assert go_on.wait(60)
    return "back"


def an_agent(*tools: Any) -> Agent:
    return Agent(name="files", instructions="Test.", tools=list(tools), no_tool_policy=NoToolPolicy.FINISH)


def test_leases_of_other_runs_are_renewed_while_a_pattern_backtracks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a.txt").write_text("a" * 5_000)
    settings = Settings(store=f"sqlite:///{tmp_path}/runs.db", lease_seconds=1.0)
    backend = ThreadBackend(22)
    waiting.clear()
    go_on.clear()
    steps = [call("wait"), say("done")]
    handles = [
        Runner(model_provider=ScriptedProvider(steps), workspace=tmp_path / "work", settings=settings).start(
            an_agent(wait), "Go.", run_config=RunConfig(checkpoint_key=f"k{n}", execution_backend=backend)
        )
        for n in range(20)
    ]
    try:
        until(lambda: len(waiting) == 20, "all runs wait in their tool")
        search = [call("search_files", {"pattern": CATASTROPHIC, "case_sensitive": True}), say("done")]
        hostile = Runner(model_provider=ScriptedProvider(search), workspace=tmp_path / "work", settings=settings)
        result = hostile.run_sync(
            an_agent(), "Go.", run_config=RunConfig(checkpoint_key="hostile", execution_backend=backend)
        )
        assert "takes too long" in result.raw_result.cycles[0].tool_results[0].content
        store = open_store(settings.store)
        heads = [snapshot.head for n in range(20) if (snapshot := store.load(f"k{n}")) is not None]
        store.close()
        assert [head.state for head in heads] == [State.CLAIMED] * 20
    finally:
        go_on.set()
    assert [handle.result().status.value for handle in handles] == ["completed"] * 20
    assert len(waiting) == 20  # no run was taken over, so no tool began twice


def test_files_in_memory_are_refused_where_others_must_see_them(tmp_path: Path) -> None:
    runner = Runner(
        model_provider=ScriptedProvider([say("done")]), settings=Settings(store=f"sqlite:///{tmp_path}/runs.db")
    )
    memory = MemoryWorkspaceBackend()
    for workspace in (memory, DiscoveryFilteredWorkspaceBackend(memory, "^x$")):
        config = RunConfig(checkpoint_key="k", workspace_backend=workspace, execution_mode=ExecutionMode.DISTRIBUTED)
        with pytest.raises(
            CheckpointError, match="no other process can see files in memory: use a folder or S3"
        ) as caught:
            runner.run_sync(an_agent(), "Go.", run_config=config)
        assert caught.value.code == "checkpoint_definition_unstable"
    inline = runner.run_sync(an_agent(), "Go.", run_config=RunConfig(workspace_backend=memory))
    assert inline.status.value == "completed"


S3_STEPS = [call("write_file", {"path": "made/by.txt", "content": "the worker"}), call("find_files"), say("done")]
s3_provider = ScriptedProvider(S3_STEPS)


def test_a_worker_in_another_process_opens_the_bucket_with_its_own_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (url := servers.s3_url()) is None:
        pytest.skip(servers.MISSING["s3"])
    for name, value in {
        "ACCESS_KEY_ID": "id-of-test",
        "SECRET_ACCESS_KEY": "s3cr3t",
        "DEFAULT_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    workspace = S3WorkspaceBackend(f"b-{uuid.uuid4().hex[:12]}", "one", endpoint_url=url, addressing_style="path")
    workspace.client.create_bucket(
        Bucket=workspace.bucket, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
    )
    database = tmp_path / "runs.db"
    settings = Settings(store=f"sqlite:///{database}", imports=("tests",), queue="q")
    store = open_store(settings.store)
    config = RunConfig(
        checkpoint_key="k", workspace_backend=workspace,
        execution_backend=DistributedBackend(StoreDispatcher(store), fallback=False),
    )  # fmt: skip
    s3_provider.__vv_ref__ = "tests.scenarios.test_files_in_a_run:s3_provider"  # type: ignore[attr-defined]
    handle = Runner(model_provider=s3_provider, settings=settings).start(an_agent(), "Go.", run_config=config)
    environment = {**os.environ, "VV_AGENT_STORE": settings.store, "VV_AGENT_IMPORTS": "tests", "VV_AGENT_QUEUE": "q"}
    worker = subprocess.Popen([sys.executable, "-m", "vv_agent.cli", "worker"], env=environment)
    try:
        result = handle.result()
    finally:
        worker.terminate()
        worker.wait(30)
    assert result.status.value == "completed"
    assert '"made/by.txt"' in result.raw_result.cycles[1].tool_results[0].content
    assert workspace.read_text("made/by.txt") == "the worker"
    store.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("runs.db*"))
    assert workspace.bucket.encode() in stored
    assert b"s3cr3t" not in stored
    assert b"id-of-test" not in stored


class Seeing(ScriptedProvider):
    """A model that takes images."""

    def resolve(self, model: ModelRef) -> ResolvedModelConfig:
        return dataclasses.replace(super().resolve(model), native_multimodal=True)


def test_a_model_that_sees_is_shown_the_image_after_the_results_of_the_batch(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"png")
    steps = [calls(("read_image", {"path": "a.png"}), ("file_info", {"path": "a.png"})), say("done")]
    seen: list[list[tuple[str, str | None]]] = []
    _run(Seeing, steps, tmp_path, seen)
    assert [role for role, _ in seen[1]] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert seen[1][-1][1] == "data:image/png;base64,cG5n"
    blind: list[list[tuple[str, str | None]]] = []
    refused = _run(ScriptedProvider, steps, tmp_path, blind)
    assert [role for role, _ in blind[1]] == ["system", "user", "assistant", "tool", "tool"]
    assert refused.raw_result.cycles[0].tool_results[0].error_code == "tool_not_allowed"


def _run(provider: Callable[..., Any], steps: list[Any], root: Path, seen: list[list[tuple[str, str | None]]]) -> Any:
    made = provider(steps)
    stream = made._model.stream

    def noted(request: Any) -> Any:
        seen.append([(message.role, message.image_url) for message in request.messages])
        return stream(request)

    made._model.stream = noted
    return Runner(model_provider=made, workspace=root).run_sync(an_agent(), "Go.")


@pytest.mark.parametrize("save", [("store.save.started", "after", 1), ("store.save.commit", "before", 2)], ids=str)
def test_an_edit_that_a_crash_interrupted_is_made_once(tmp_path: Path, save: tuple[str, str, int]) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    host = Host(MemoryStore(), tmp_path, [], config={"max_cycles": 9})
    edit = {"path": "a.txt", "old_string": "a", "new_string": "aa", "replace_all": True}
    read, change = (
        {"content": "", "tool_calls": [{"id": name, "name": name, "arguments": arguments}]}
        for name, arguments in (("read_file", {"path": "a.txt"}), ("edit_file", edit))
    )
    died = host.run([read, change], die_at=save)
    assert isinstance(died.error, Died)
    assert (tmp_path / "a.txt").read_text() == ("a\n" if save[0].endswith("started") else "aa\n")
    after = host.run(["done"]).ok
    assert (after.status.value, (tmp_path / "a.txt").read_text()) == ("completed", "aa\n")
    assert '"replaced_count": 1' in after.raw_result.cycles[1].tool_results[0].content
