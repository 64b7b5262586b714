"""Memory among refusals, crashes and providers whose call ids come again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import Died
from tests.scenarios.test_memory import answers, compactions, host, is_summary, steps, store, summarises
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import LlmError
from vv_agent.llm.base import ModelRequest
from vv_agent.memory import MemoryConfig, stages
from vv_agent.memory import summary as summaries
from vv_agent.messages import Message, ToolCall

__all__ = ["store"]


@pytest.mark.parametrize("n", range(7, 11))
def test_a_crash_after_a_refused_prompt_is_not_the_end_where_calls_are_reconciled(
    store: CheckpointStore, tmp_path: Path, n: int
) -> None:
    """The prompt that was refused is no longer the one of the record: the call that is planned is a new one."""
    there = host(store, tmp_path, ambiguous_model_policy="require_reconciliation")
    there.config = {**there.config, "metadata": {}}
    refused = LlmError("context_length", "prompt is too long", definite=True)
    first = there.run([*steps(3), refused, summarises, answers], die_at=("store.save.progress", "after", n))
    assert isinstance(first.error, Died)
    second = there.run([lambda request: summarises(request) if is_summary(request) else "done"] * 4)
    assert second.error is None


def test_a_result_is_judged_by_the_tool_of_its_own_call() -> None:
    history = [Message("system", "s"), Message("user", "task")]
    for name in ("sign_contract", "a", "b", "read_file"):
        history += [
            Message("assistant", "", tool_calls=(ToolCall("call_1", name),)),
            Message("tool", "r" * 5_000, tool_call_id="call_1"),
        ]
    done = stages.cleared(history, MemoryConfig())
    assert done[3].content != stages.CLEARED, "sign_contract is no tool whose results may be cleared"


def test_what_the_user_says_twice_is_kept_twice() -> None:
    history = [Message("user", text) for text in ("task", "yes", "Now delete B?", "yes")]
    assert summaries.originals(history) == ["task", "yes", "Now delete B?", "yes"]


@pytest.mark.parametrize(
    "numbers",
    [
        {"model_context_window": 8_192},
        {"model_context_window": 16_384},
        {"model_context_window": 8_192, "reserved_output_tokens": 8_192},
    ],
    ids=["8k", "16k", "no room at all"],
)
def test_a_small_window_is_used_not_summarised_away(tmp_path: Path, numbers: dict[str, int]) -> None:
    """The defaults are made for large windows; a model with a small one still sees what its tools gave."""
    there = host(MemoryStore(), tmp_path)
    there.config = {**there.config, "metadata": numbers}

    def answers_all(request: ModelRequest) -> str:
        assert [m.tool_call_id for m in request.messages if m.role == "tool"] == ["call_1", "call_2", "call_3"]
        return "done"

    outcome = there.run([*steps(3), answers_all])
    assert outcome.ok.final_output == "done"
    assert compactions(outcome) == []


def test_a_small_window_that_is_full_is_summarised(tmp_path: Path) -> None:
    there = host(MemoryStore(), tmp_path)
    there.config = {**there.config, "metadata": {"model_context_window": 2_000, "microcompact_trigger_ratio": 1}}
    assert compactions(there.run([*steps(4), summarises, "done"])) == ["summary"]
