"""`vv-agent app-server ...`: serve an editor or a service, and write the schema of the wire."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vv_agent.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from vv_agent.agent import Agent
    from vv_agent.app_server.host import TurnRequest
    from vv_agent.app_server.server import AppServer
    from vv_agent.app_server.sql import SqlThreadStore
    from vv_agent.config import RunConfig
    from vv_agent.llm.reference import ResolvedModelConfig

AGENT_NAME = "assistant"
INSTRUCTIONS = "You are the vv-agent App Server assistant. Complete user requests with available tools."
MAX_CYCLES = 80


def serve(options: Mapping[str, str | None], *, timeout: float, store: str | None) -> int:
    """Serve on standard input and output until the client leaves. The exit code: 2 for what cannot be served, 1 for
    a store that is in use or does not answer."""
    try:
        server, threads = _server(options, timeout, store)
    except (ConfigError, StoreError, OSError) as error:
        sys.stderr.write(f"vv-agent: {error}\n")
        return 1 if isinstance(error, StoreError) and error.code != "store_url_invalid" else 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    thread = server.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        server.stop()
        from vv_agent import process

        process.leave()
        return 0
    threads.close()
    return 0


def _server(options: Mapping[str, str | None], timeout: float, place: str | None) -> tuple[AppServer, SqlThreadStore]:
    """Everything is looked at before the first line is read."""
    missing = [name for name, value in options.items() if not (value and value.strip())]
    if missing:
        raise ConfigError("usage_invalid", f"app-server needs {', '.join(missing)} (vv-agent app-server --help)")
    if options["--listen"] != "stdio":
        raise ConfigError("usage_invalid", f"--listen {options['--listen']!r} is not known; use --listen stdio")
    from vv_agent import process
    from vv_agent.app_server.server import AppServer
    from vv_agent.app_server.sql import open_thread_store
    from vv_agent.app_server.transport import StdioJsonlTransport
    from vv_agent.checkpoint.config import CheckpointConfig
    from vv_agent.config import RunConfig
    from vv_agent.llm.provider import VvLlmModelProvider
    from vv_agent.llm.reference import ModelRef
    from vv_agent.runner import Runner
    from vv_agent.settings import read_settings

    settings = read_settings()
    provider = VvLlmModelProvider.from_settings_file(str(options["--settings"]), timeout_seconds=timeout)
    model = ModelRef.backend(str(options["--backend"]), str(options["--model"]))
    resolved = provider.resolve(model)
    config = RunConfig(model=model)
    if place is not None:
        config = replace(config, checkpoint_config=CheckpointConfig(store=process.store_at(settings.store)))
    threads = open_thread_store(place)
    runner = Runner(model_provider=provider, workspace=Path.cwd(), settings=settings)
    serving = host(default_agent(), config, resolved)
    transport = StdioJsonlTransport.taking_over()
    return AppServer(serving, store=threads, transport=transport, runner=runner), threads


def default_agent() -> Agent:
    """The agent of the command line's server."""
    from vv_agent.agent import Agent, NoToolPolicy

    return Agent(
        name=AGENT_NAME, instructions=INSTRUCTIONS, max_cycles=MAX_CYCLES, no_tool_policy=NoToolPolicy.FINISH
    )  # fmt: skip


def host(agent: Agent, config: RunConfig, resolved: ResolvedModelConfig) -> Any:
    """One agent and one model; file tools work in the folder of the thread."""
    from vv_agent.app_server.host import DefaultAppServerHost
    from vv_agent.app_server.protocol import ModelInfo

    class _Host(DefaultAppServerHost):
        def build_run_config(self, request: TurnRequest) -> RunConfig:
            return config if request.cwd is None else replace(config, workspace=request.cwd)

    model: ModelInfo = ModelInfo(
        id=resolved.requested_model, provider=resolved.backend, context_length=resolved.context_length,
        supports_tools=resolved.function_call_available,
    )  # fmt: skip
    return _Host(agent, config, [model])


def write_schema(out: str) -> int:
    """Write the JSON Schema files below `<out>/json`."""
    from vv_agent.app_server.schema import write_schemas

    return _written(write_schemas, out)


def write_typescript(out: str) -> int:
    """Write the TypeScript files into `out`."""
    from vv_agent.app_server.schema import write_typescript as write

    return _written(write, out)


def _written(write: Any, out: str) -> int:
    try:
        paths: Sequence[Path] = write(Path(out))
    except OSError as error:
        raise ConfigError("usage_invalid", f"--out {out!r} cannot be written: {error}") from None
    sys.stderr.write(f"{len(paths)} files in {paths[0].parent}\n")
    return 0


def send_message(text: str) -> int:
    """One turn through a server of this process whose model repeats what it is told; every message as a line.

    Needs no settings and no network: it shows the wire.
    """
    from vv_agent.app_server.client import AppServerClient
    from vv_agent.app_server.server import AppServer
    from vv_agent.app_server.transport import ChannelTransport
    from vv_agent.config import RunConfig
    from vv_agent.llm.reference import ModelRef
    from vv_agent.runner import Runner
    from vv_agent.testing import ScriptedProvider

    provider = ScriptedProvider([lambda request: str(request.messages[-1].content)])
    resolved = provider.resolve(ModelRef.backend(provider.BACKEND, provider.MODEL))
    ours, theirs = ChannelTransport.pair()
    thread = AppServer(
        host(default_agent(), RunConfig(), resolved), transport=ours, runner=Runner(model_provider=provider)
    ).start()
    client = AppServerClient(_Shown(theirs))
    client.initialize({"name": "vv-agent-debug"})
    thread_id = client.start_thread({})["threadId"]
    client.start_turn({"threadId": thread_id, "input": [{"type": "text", "text": text}]})
    while (message := client.next_message()) is not None and message.get("method") != "turn/completed":
        pass
    client.close()
    thread.join(5.0)
    return 0 if message is not None and message["params"]["status"] == "completed" else 1


class _Shown:
    """A transport whose lines are printed: `>` to the server, `<` from it."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def receive(self) -> bytes | None:
        line: bytes | None = self._transport.receive()
        if line is not None:
            self._show("<", line)
        return line

    def send(self, line: bytes) -> None:
        self._show(">", line)
        self._transport.send(line)

    def close(self) -> None:
        self._transport.close()

    def _show(self, way: str, line: bytes) -> None:
        sys.stdout.write(f"{way} {json.dumps(json.loads(line), ensure_ascii=False)}\n")
        sys.stdout.flush()
