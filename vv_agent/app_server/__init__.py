"""The App Server: drive agents from any program, by JSON-RPC over lines of JSON.

Names are loaded when they are first used; `import vv_agent.app_server` itself loads nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    **dict.fromkeys(("AppServerHost", "DefaultAppServerHost", "TurnRequest"), "vv_agent.app_server.host"),
    **dict.fromkeys(("AppServerClient", "AppServerClientError", "AsyncAppServerClient"), "vv_agent.app_server.client"),
    **dict.fromkeys(("AppServerTransport", "ChannelTransport", "StdioJsonlTransport"), "vv_agent.app_server.transport"),
    **dict.fromkeys(("MemoryThreadStore", "SqlThreadStore", "open_thread_store"), "vv_agent.app_server.sql"),
    **dict.fromkeys(("ModelInfo", "TurnResumeParams", "TurnResumeResponse"), "vv_agent.app_server.protocol"),
    "AppServer": "vv_agent.app_server.server",
    "AppServerRunAdapter": "vv_agent.app_server.runs",
    "MessageProcessor": "vv_agent.app_server.processor",
    "OutgoingRouter": "vv_agent.app_server.outgoing",
    "JsonRpcMessage": "vv_agent.app_server.rpc",
}
__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module 'vv_agent.app_server' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
