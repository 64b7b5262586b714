"""run_config_controls.json: defaults, bounds, and an option for every control."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent import Agent, CheckpointConfig, RunConfig
from vv_agent.budget import RunBudgetLimits
from vv_agent.checkpoint.extensions import check_sizes, extension_entry_size
from vv_agent.checkpoint.memory import MemoryStore
from vv_agent.cli.app_server import default_agent
from vv_agent.config import effective_config
from vv_agent.errors import VVAgentError

FIXTURE = load("run_config_controls.json")
LATER = ("control", "this option is not built yet")
CASES = Cases(
    "run_config_controls.json",
    pending={"per_run_controls/sub_task_manager": LATER, "per_run_controls/diagnostics": LATER},
)
OPTIONS = {field.name for field in dataclasses.fields(RunConfig)}


def test_the_command_line_serves_the_fixed_agent() -> None:
    with CASES.run("app_server_defaults"):
        wanted, agent = FIXTURE["app_server_defaults"], default_agent()
        assert (agent.max_cycles, agent.name, agent.instructions) == (
            wanted["max_cycles"], wanted["agent_name"], wanted["instructions"],
        )  # fmt: skip


@pytest.mark.parametrize("name", FIXTURE["framework_defaults"])
def test_what_nobody_sets(name: str) -> None:
    with CASES.run(f"framework_defaults/{name}"):
        config = effective_config(Agent(name="a", instructions="b"), None, None)
        value, wanted = getattr(config, name), FIXTURE["framework_defaults"][name]
        assert (list(value) if isinstance(value, tuple) else value) == wanted


def entry(size: int) -> dict[str, Any]:
    """An extension's entry of so many bytes, or the smallest there is."""
    small = {"version": "1", "required": False, "state": ""}
    return {**small, "state": "s" * max(0, size - extension_entry_size(small))}


def fits(name: str, value: int) -> bool:
    """Whether an option takes a number, or a text of so many bytes."""
    make: dict[str, Any] = {
        "max_cycles": lambda: RunConfig(max_cycles=value),
        "max_handoffs": lambda: RunConfig(max_handoffs=value),
        "run_budget_wire_integer": lambda: RunBudgetLimits(max_total_tokens=value),
        "checkpoint_key_utf8_bytes": lambda: CheckpointConfig(key="k" * value, store=MemoryStore()),
        "checkpoint_extension_entry_utf8_bytes": lambda: check_sizes({"com.example.n": entry(value)}, 2**20),
    }
    try:
        make[name]()
    except (VVAgentError, ValueError):
        return False
    return True


@pytest.mark.parametrize("name", FIXTURE["integer_bounds"])
def test_a_number_has_its_bounds(name: str) -> None:
    with CASES.run(f"integer_bounds/{name}"):
        low, high = FIXTURE["integer_bounds"][name]["minimum"], FIXTURE["integer_bounds"][name]["maximum"]
        assert [fits(name, value) for value in (low, high, high + 1)] == [True, True, False]
        assert fits(name, low - 1) is (name == "checkpoint_extension_entry_utf8_bytes")  # no entry has less than 0


@pytest.mark.parametrize("control", FIXTURE["per_run_controls"], ids=lambda control: control["capability"])
def test_a_control_has_its_options(control: dict[str, Any]) -> None:
    with CASES.run(f"per_run_controls/{control['capability']}"):
        named = re.findall(r"[a-z]+(?:_[a-z]+)+", control["python"])
        assert control["status"] == "equivalent"
        assert set(named) <= OPTIONS
        assert named or {control["capability"], *re.findall("[a-z]+", control["python"])} & OPTIONS
