"""What tools that change a file have in common: one rename as the effect, and a crash that can be judged later.

What the file was before and will be after is known before the effect, as SHA-256 images; recovery compares them with
the file before any rule about baselines is asked (it may be this very call that changed the file).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vv_agent.errors import ToolError
from vv_agent.tools.base import Arguments, Intent, ToolContext
from vv_agent.tools.builtin.base import BuiltinTool, workspace_of
from vv_agent.tools.builtin.baselines import current, image, key


@dataclass(eq=False, kw_only=True)
class FileChange(BuiltinTool):
    """A tool that makes of one file another (`Decidable`). A tool gives `after` and `replayed`."""

    def after(self, before: bytes | None, arguments: Arguments) -> bytes:
        """The bytes of the file once the call is done."""
        raise NotImplementedError

    def intend(self, context: ToolContext, arguments: Arguments) -> Intent:
        path: str = arguments["path"]
        try:
            workspace = workspace_of(context)
            before = current(workspace, path)
            after = self.after(before, arguments)
            return {"path": key(workspace, path), "before": image(before), "after": image(after)}
        except Exception:  # the call will most likely fail in the same way; should it not, nobody can tell later
            return {"path": path, "before": None, "after": None}

    def examine(
        self, context: ToolContext, arguments: Arguments, intent: Intent
    ) -> Literal["done", "not_done", "ambiguous"]:
        try:
            found = image(current(workspace_of(context), arguments["path"]))
        except Exception:
            return "ambiguous"
        if intent["after"] is None:
            return "ambiguous"
        if found == intent["after"]:
            return "done"
        return "not_done" if found == intent["before"] else "ambiguous"


def replace_file(context: ToolContext, path: str, before: str | None, data: bytes) -> None:
    """Write the file, if it still has the image `before` and the claim still stands at the last moment."""
    workspace = workspace_of(context)

    def still_mine() -> None:
        if image(current(workspace, path)) != before:
            raise ToolError(f"The file changed while it was being written: {path}", "file_changed_since_read")
        context.check_claim()

    context.check_claim()
    workspace.write_bytes(path, data, before_rename=still_mine)
