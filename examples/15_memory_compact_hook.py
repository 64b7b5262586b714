"""Memory makes a long history short; a hook sees it before, and a provider sees each compaction."""

from support import fail, runner, show

from vv_agent import Agent, NoToolPolicy, RunConfig, RuntimeHook, function_tool
from vv_agent.memory import MemoryProvider
from vv_agent.testing import call

SEEN: list[str] = []


@function_tool(idempotency="supported")
def page(number: int) -> str:
    """Read a page of the book."""
    return f"page {number}: " + "the sheep went over the hill, " * 60


class Before(RuntimeHook):
    def before_memory_compact(self, event):
        SEEN.append(f"{len(event.messages)} messages are to be made short")


class Diary(MemoryProvider):
    name = "diary"

    def after_compact(self, event):
        SEEN.append(f"compaction {event.mode}: {event.before_count} messages became {event.after_count}")


agent = Agent(
    name="reader",
    instructions="Read pages 1 to 5 of the book, one at a time, then say what went where.",
    tools=[page],
    no_tool_policy=NoToolPolicy.FINISH,
    hooks=[Before()],
)


def main() -> None:
    config = RunConfig(memory_providers=[Diary()], metadata={"compact_threshold": 4000})
    script = [*(call("page", {"number": number}) for number in range(1, 6)), "The sheep went over the hill."]
    result = runner(*script).run_sync(agent, "Read the book.", run_config=config)
    print(*SEEN, sep="\n")
    if not SEEN:
        fail("nothing was made short")
    show(result)


if __name__ == "__main__":
    main()
