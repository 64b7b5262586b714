"""A model that can see looks at an image of the workspace."""

import struct
import zlib

from support import WORKSPACE, fail, runner, show

from vv_agent import Agent, NoToolPolicy
from vv_agent.testing import call

agent = Agent(name="viewer", instructions="Look at the image and name its colour.", no_tool_policy=NoToolPolicy.FINISH)


def red_square(size: int = 32) -> bytes:
    """A PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * size) * size
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def main() -> None:
    WORKSPACE.mkdir(parents=True, exist_ok=True)
    (WORKSPACE / "square.png").write_bytes(red_square())
    result = runner(call("read_image", {"path": "square.png"}), "It is red.").run_sync(agent, "Look at square.png.")
    if not any(one.image_path == "square.png" for cycle in result.cycles for one in cycle.tool_results):
        fail("no image was read")
    show(result)


if __name__ == "__main__":
    main()
