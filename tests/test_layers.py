"""Which module may import which (DESIGN section 4): never upwards, no circles, and one home for each foreign package."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "vv_agent"
LAYERS = (
    "errors settings _json _pointer _facade _loop cancellation",
    "messages history events event_store tracing types usage budget results tool_metadata _wire",
    "agent config context hooks approvals references definition definition_rules llm tools workspace sessions checkpoint "
    "memory.provider",
    "prompt skills memory tools.builtin",
    "runtime",
    "dispatch",
    "runner launch following outcome run_handle result sub_tasks interactive agent_runtime testing process",
    "workers app_server cli",
)
"""From below to above; a name stands for the module or the whole package."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names.split()}
FRONT_DOOR = len(LAYERS)

HOMES = {
    "celery": ("dispatch.celery", "workers"),
    "kombu": ("workers.transport",),
    "redis": ("*.redis", "checkpoint.redis"),
    "sqlalchemy": ("checkpoint.sql", "cli.doctor.sql", "sessions.sql", "app_server.sql"),
    "boto3": ("workspace.s3",),
    "botocore": ("workspace.s3",),
    "tiktoken": ("memory.tokens",),
    "regex": ("workspace.portable", "tools.builtin.patterns"),
    "pathspec": ("workspace.ignored",),
    "httpx": ("llm.openai_compatible",),
    "httpx_sse": ("llm.openai_compatible",),
    "httpcore": ("llm.openai_compatible", "llm.connection"),
    "vv_llm": ("llm.vv_llm",),
    "rfc8785": ("_json",),
    "jsonschema": ("tools.arguments",),
    "referencing": ("tools.arguments",),
    "docstring_parser": ("tools.signature",),
    "msgpack": ("checkpoint.record", "checkpoint.store", "checkpoint.redis", "definition", "runtime.transcript"),
    "yaml": ("skills",),
    "typer": ("cli",),
    "rich": ("cli",),
    "pydantic": ("*",),
    "pydantic_core": ("*",),
}
"""Foreign package -> the modules or packages that may import it; `*.sql` is a module of that name anywhere."""


@dataclass(frozen=True)
class Import:
    """One import statement: who, what, where, and whether it is carried out when the module is loaded."""

    source: str
    target: str
    line: int
    at_load: bool

    def __str__(self) -> str:
        return f"vv_agent.{self.source}:{self.line} imports {self.target}"


def name_of(path: Path) -> str:
    """The module's name below vv_agent; a package's is that of its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(source: str) -> Iterator[Import]:
    """Every import of a module, those in functions and for type checkers too."""

    def walk(node: ast.AST, at_load: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(source, alias.name, child.lineno, at_load)
            elif isinstance(child, ast.ImportFrom):
                assert not child.level, f"{source}:{child.lineno}: relative import"
                for alias in child.names:
                    module = f"{child.module}.{alias.name}"
                    known = module.removeprefix("vv_agent.") in MODULES and module.startswith("vv_agent.")
                    yield Import(source, module if known else str(child.module), child.lineno, at_load)
            else:
                deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
                    isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
                )
                yield from walk(child, at_load and not deferred)

    yield from walk(ast.parse(MODULES[source].read_text(encoding="utf-8")), True)


ALL = [found for source in MODULES for found in imports(source)]
OWN = [found for found in ALL if found.target.split(".")[0] == "vv_agent"]


def level(name: str) -> int:
    """The layer of a module: that of the longest name in the table it belongs to."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (found := LEVEL.get(".".join(parts[:length]))) is not None:
            return found
    if name == "":
        return FRONT_DOOR
    raise AssertionError(f"vv_agent.{name} has no layer; add it to LAYERS and to DESIGN section 4")


def at_home(module: str, homes: tuple[str, ...]) -> bool:
    named = tuple(home.removeprefix("*") for home in homes if home.startswith("*"))
    return module in homes or module.startswith(tuple(f"{home}." for home in homes)) or f".{module}".endswith(named)


@pytest.mark.parametrize("source", list(MODULES), ids=lambda name: name or "vv_agent")
def test_a_module_imports_nothing_above_itself(source: str) -> None:
    wrong = [
        f"{found} (layer {level(found.target.removeprefix('vv_agent').lstrip('.'))} from {level(source)})"
        for found in OWN
        if found.source == source and level(found.target.removeprefix("vv_agent").lstrip(".")) > level(source)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_modules_load_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for found in OWN:
        target = found.target.removeprefix("vv_agent").lstrip(".")
        if found.at_load and target != found.source:
            graph[found.source].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(f"vv_agent.{name}" for name in error.args[1]))


def test_a_foreign_package_is_imported_only_in_its_home() -> None:
    foreign = [found for found in ALL if found.target.split(".")[0] not in {"vv_agent", *sys.stdlib_module_names}]
    wrong = [str(found) for found in foreign if not at_home(found.source, HOMES.get(found.target.split(".")[0], ()))]
    assert not wrong, "\n".join(wrong)


ENVIRONMENT = ("settings", "cli.worker")
"""The reader of the environment; and the worker command, which hands its own on to the processes it starts."""


def test_only_the_settings_read_the_environment() -> None:
    wrong = [
        f"vv_agent.{name}:{node.lineno} reads os.{node.attr}"
        for name, path in MODULES.items()
        if name not in ENVIRONMENT
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]
    assert not wrong, "\n".join(wrong)


def test_a_home_is_a_module_of_that_name_or_what_is_below_it() -> None:
    assert at_home("checkpoint.sql", ("*.sql",))
    assert not at_home("checkpoint.nosql", ("*.sql",))
    assert not at_home("llm.settings", ("settings",))
