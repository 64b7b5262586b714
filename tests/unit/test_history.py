"""Histories from outside are made valid."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vv_agent import Agent, NoToolPolicy, RunConfig, Runner
from vv_agent.history import sanitized
from vv_agent.llm.base import ModelRequest
from vv_agent.messages import Message, ToolCall
from vv_agent.testing import ScriptedProvider


def asks(*ids: str, text: str = "") -> Message:
    return Message("assistant", text, tool_calls=tuple(ToolCall(name, "t") for name in ids))


def result(name: str | None, text: str = "r") -> Message:
    return Message("tool", text, tool_call_id=name)


USER = Message("user", "Go.")


def test_what_matches_stays_as_it_is() -> None:
    history = [Message("system", "s"), USER, asks("a", "b"), result("a"), result("b"), Message("assistant", "Done.")]
    assert sanitized(history) == history
    thought = [USER, Message("assistant", "", reasoning_content="hm"), USER, USER]
    assert sanitized(thought) == thought


def test_calls_and_results_without_each_other_go() -> None:
    assert sanitized([result("x"), USER, result("x"), asks("a", "b"), result("a"), USER]) == [
        USER, asks("a"), result("a"), USER,
    ]  # fmt: skip
    assert sanitized([asks("a", "b", "c"), result("a"), result("c"), result("b")]) == [asks("a"), result("a")]
    assert sanitized([asks("a", text="I look."), USER, result("a")]) == [Message("assistant", "I look."), USER]
    assert sanitized([USER, asks("a")]) == [USER]


def test_empty_turns_go_before_results_are_looked_at() -> None:
    empty = Message("assistant", "", reasoning_content=" ")
    assert sanitized([asks("a"), empty, result("a"), empty]) == [asks("a"), result("a")]


def test_blank_and_repeated_ids_do_not_count() -> None:
    assert sanitized([asks("a", " ", "a", "b"), result("a", "1"), result(None), result("a", "2"), result("b")]) == [
        asks("a", "b"), result("a", "1"), result("b"),
    ]  # fmt: skip
    assert sanitized([asks("a", "b", "a"), result("a"), result("b"), result("b")]) == [
        asks("a", "b"), result("a"), result("b"),
    ]  # fmt: skip
    again = [asks("a"), result("a"), asks("a"), result("a")]
    assert sanitized(again) == again


@given(
    st.lists(
        st.one_of(
            st.just(USER),
            st.lists(st.sampled_from(["a", "b", " "]), max_size=3).map(lambda ids: asks(*ids)),
            st.sampled_from(["a", "b", " ", None]).map(result),
        )
    )
)
def test_every_call_of_a_sanitized_history_has_its_one_result(messages: list[Message]) -> None:
    kept = sanitized(messages)
    expected: list[str | None] = []
    for message in kept:
        if message.role == "tool":
            assert message.tool_call_id == expected.pop(0)
        else:
            assert not expected
            expected = [call.id for call in message.tool_calls]
    assert not expected
    assert sanitized(kept) == kept
    assert kept.count(USER) == messages.count(USER)


def test_the_initial_messages_of_a_run_are_sent_sanitized() -> None:
    seen: list[Message] = []

    def look(request: ModelRequest) -> str:
        seen.extend(request.messages)
        return "Done."

    agent = Agent(name="a", instructions="Go on.", no_tool_policy=NoToolPolicy.FINISH)
    config = RunConfig(initial_messages=[USER, asks("a"), Message("assistant", "Hm.")])
    Runner(model_provider=ScriptedProvider([look])).run_sync(agent, "And?", run_config=config)
    assert [(message.role, message.content) for message in seen] == [
        ("system", "Go on."), ("user", "Go."), ("assistant", "Hm."), ("user", "And?"),
    ]  # fmt: skip
