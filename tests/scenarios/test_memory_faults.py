"""Memory among refusals, crashes and providers whose call ids come again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import Died
from tests.scenarios.test_memory import answers, host, is_summary, steps, store, summarises
from vv_agent.checkpoint.store import CheckpointStore
from vv_agent.errors import LlmError
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
