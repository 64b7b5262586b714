"""public_configured_sub_agent.json: what the prompt of an agent says of its sub-agents."""

from __future__ import annotations

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent.prompt import ContextFragment, assemble_fragments, sub_agents_block

FIXTURE = load("public_configured_sub_agent.json")
CASES = Cases(
    "public_configured_sub_agent.json",
    pending=dict.fromkeys(("normalization", "public_runner"), ("control", "hand-offs and sub-agents")),
)


def test_the_fragment_of_sub_agents_stands_behind_the_instructions() -> None:
    wanted = FIXTURE["projection"]
    configs = {entry["id"].strip(): entry["config"] for entry in FIXTURE["normalization"]["raw_entries"]}
    with CASES.run("projection"):
        described = {name.strip("\x1c\x1f "): config["description"] for name, config in reversed(configs.items())}
        instructions = wanted["sections"][0]
        bundle = assemble_fragments([
            ContextFragment(**{**wanted["fragment"], "text": sub_agents_block(described)}),
            ContextFragment(**instructions),
        ])  # fmt: skip
        assert bundle.sections[1] == wanted["fragment"]
        for name in ("prompt", "sections", "sources", "stable_hash", "total_chars"):
            assert getattr(bundle, name) == wanted[name]
    for name in ("normalization", "public_runner"):
        CASES.show(name)
