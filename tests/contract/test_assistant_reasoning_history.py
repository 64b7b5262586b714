"""assistant_reasoning_history.json: which turns of the model are history, and what later requests make of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent import Agent, NoToolPolicy, RunConfig, Runner, function_tool
from vv_agent.llm.base import ModelRequest, ModelResponse, UsageReport
from vv_agent.llm.projection import provider_message
from vv_agent.messages import Message, ToolCall
from vv_agent.result import RunResult
from vv_agent.testing import ScriptedProvider

FIXTURE = load("assistant_reasoning_history.json")
CASES = Cases("assistant_reasoning_history.json")
USAGE = {
    "prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12,
    "completion_tokens_details": {"reasoning_tokens": 6},
}  # fmt: skip


@function_tool(idempotency="supported")
def lookup() -> str:
    """Look something up."""
    return "found"


def after(message: dict[str, Any], policy: str = "continue") -> tuple[RunResult, list[Message]]:
    """A run whose model gives this turn and then ends, and the messages of its second request."""
    calls = tuple(ToolCall.from_wire(call) for call in message["tool_calls"])
    first = ModelResponse(
        message["content"], calls, reasoning=message["reasoning_content"], usage=UsageReport(USAGE),
        finish_reason="tool_calls" if calls else "stop",
    )  # fmt: skip
    seen: list[Message] = []

    def second(request: ModelRequest) -> str:
        seen.extend(request.messages)
        return "Done."

    agent = Agent(name="thinker", instructions="Think.", tools=[lookup], no_tool_policy=NoToolPolicy(policy))
    runner = Runner(model_provider=ScriptedProvider([first, second]))
    return runner.run_sync(agent, "Go.", run_config=RunConfig(max_cycles=2)), seen


@pytest.mark.parametrize("case", FIXTURE["cases"], ids=lambda case: case["name"])
def test_a_turn_is_history_if_anything_was_said_or_thought(case: dict[str, Any]) -> None:
    expected = case["expected"]
    with CASES.run(case["name"]):
        result, seen = after(case["message"])
        turns = [message for message in seen if message.role == "assistant"]
        assert bool(turns) is expected["retain_in_runtime_history"]
        kept = [message for message in result.messages if message.role == "assistant"][:-1]
        assert bool(kept) is expected["retain_in_resumable_history"]
        assert turns == kept
        for turn in turns:
            assert turn.content == expected["visible_content"]
            assert turn.reasoning_content == expected["reasoning_content"]
            if "openai_compatible_projection" in expected:
                assert provider_message(turn) == expected["openai_compatible_projection"]


def test_a_turn_of_reasoning_alone_reaches_the_next_request() -> None:
    case = FIXTURE["runtime_case"]
    wanted = case["expected"]
    with CASES.run(case["name"]):
        result, seen = after(case["first_response"], case["no_tool_policy"])
        turn, hint = seen[-2:]
        assert (turn.role == "assistant" and bool(turn.reasoning_content)) is wanted[
            "next_model_request_contains_reasoning_turn"
        ]
        assert turn.content == wanted["next_model_request_visible_content"]
        assert (hint.role == "user") is wanted["continuation_hint_emitted"]
        usage = result.cycles[0].token_usage
        assert usage is not None
        assert (usage.reasoning_tokens == 6) is wanted["reasoning_usage_preserved"]
        deltas = "".join(event.delta for event in result.events if event.type == "reasoning_delta")  # type: ignore[union-attr]
        assert (deltas == turn.reasoning_content) is wanted["reasoning_stream_telemetry_preserved"]
        assert not [event for event in result.events if event.type == "assistant_delta" and event.cycle_index == 1]  # type: ignore[union-attr]
