"""public_api.json: every name can be imported from its place, every member has the form the contract gives it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load

FIXTURE = load("public_api.json")

PLACES = "the import paths runtime.backends and runtime.stores (DESIGN 10); backends are in vv_agent.dispatch, stores in vv_agent.checkpoint"
RECORD = "the record is ours (DESIGN 10): vv_agent.checkpoint.Head and Snapshot"


def operations(surface: dict[str, Any]) -> list[dict[str, Any]]:
    """The members of a surface, under whatever heading they stand."""
    return [
        member
        for heading in ("members", "protocol_operations", "supporting_operations")
        for member in surface.get(heading, ())
    ]


ALL = [(domain["id"], capability) for domain in FIXTURE["domains"] for capability in domain["capabilities"]]
EVERY = [(surface, member) for surface in FIXTURE["surfaces"] for member in operations(surface)]
ELSEWHERE = ("vv_agent.runtime.backends.", "vv_agent.runtime.stores.")
CASES = Cases(
    "public_api.json",
    differs={f"name/{c['id']}": PLACES for _, c in ALL if c["python"].startswith(ELSEWHERE)}
    | {f"member/{s['id']}.{m['id']}": PLACES for s, m in EVERY if s["python_target"].startswith(ELSEWHERE)}
    | {f"name/{c['id']}": RECORD for _, c in ALL if c["python"] == "vv_agent.runtime.Checkpoint"},
)


def resolve(path: str) -> Any:
    """The object an import path names: a module, or an attribute below one."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ImportError(path)


@pytest.mark.parametrize(("domain", "capability"), ALL, ids=[capability["id"] for _, capability in ALL])
def test_a_name_can_be_imported_from_its_place(domain: str, capability: dict[str, Any]) -> None:
    with CASES.run(f"name/{capability['id']}"):
        assert resolve(capability["python"]) is not None


@pytest.mark.parametrize(("surface", "member"), EVERY, ids=[f"{s['id']}.{m['id']}" for s, m in EVERY])
def test_a_member_has_its_form(surface: dict[str, Any], member: dict[str, Any]) -> None:
    with CASES.run(f"member/{surface['id']}.{member['id']}"):
        target, wanted = resolve(surface["python_target"]), member["python"]
        name = wanted["name"]
        if wanted.get("declaration") == "dataclass_field":
            assert name in {field.name for field in dataclasses.fields(target)}
        elif wanted["kind"] == "property":
            declared = inspect.getattr_static(target, name)
            assert isinstance(declared, property)
            assert_signature(declared.fget, wanted["signature"])
        else:
            function = getattr(target, name)
            assert callable(function)
            assert_signature(function, wanted["signature"])


def assert_signature(function: Any, wanted: dict[str, Any]) -> None:
    """The contract's parameters in their order, kind and duty; more of ours must be optional and by keyword."""
    assert inspect.iscoroutinefunction(function) is wanted["async"]
    ours = [
        {"kind": parameter.kind.name.lower(), "name": parameter.name, "required": parameter.default is parameter.empty}
        for parameter in inspect.signature(function).parameters.values()
    ]
    names = {parameter["name"] for parameter in wanted["parameters"]}
    assert [parameter for parameter in ours if parameter["name"] in names] == wanted["parameters"]
    for parameter in ours:
        if parameter["name"] not in names:
            assert (parameter["kind"], parameter["required"]) == ("keyword_only", False)
