"""State that the host keeps with a run: who owns it, how large it may be, and whether it can be restored.

Rules and codes are those of spec 10, section 6. Sizes are bytes of the canonical JSON of a whole entry
`{version, required, state}`; the namespace itself is not counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from vv_agent._json import canonical
from vv_agent.errors import CheckpointError

MAX_ENTRY_BYTES = 65_536
MAX_NAMESPACE_BYTES = 128
RESERVED_PREFIX = "ai.vectorvein.vv-agent."
"""Namespaces of the framework itself; a host may require them, not provide them."""

_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9._-]*\.[a-z0-9._-]+\Z")


@runtime_checkable
class CheckpointExtension(Protocol):
    """Host state that travels with the run. `snapshot` gives JSON; `restore` is called before the first model call.

    A `required` extension that is missing or has another version stops a resume; the state of an optional one that is
    not registered is kept untouched.
    """

    @property
    def namespace(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def required(self) -> bool: ...

    def snapshot(self) -> Any: ...

    def restore(self, state: Any) -> None: ...


def check_namespace(namespace: Any) -> str:
    """The namespace, or `checkpoint_extension_namespace_invalid`."""
    if isinstance(namespace, str) and len(namespace) <= MAX_NAMESPACE_BYTES and _NAMESPACE.match(namespace):
        return namespace
    raise CheckpointError(
        "checkpoint_extension_namespace_invalid",
        f"extension namespace {namespace!r} must be lower-case dotted text such as 'com.example.audit', "
        f"at most {MAX_NAMESPACE_BYTES} bytes",
    )


def check_registered(extensions: Sequence[CheckpointExtension]) -> None:
    """Refuse host extensions with a wrong, reserved or repeated namespace."""
    seen: set[str] = set()
    for extension in extensions:
        namespace = check_namespace(extension.namespace)
        if namespace.startswith(RESERVED_PREFIX):
            raise CheckpointError(
                "checkpoint_extension_namespace_invalid",
                f"extension namespace {namespace!r} is reserved for the framework; use one of your own domain",
            )
        if namespace in seen:
            raise namespace_repeated(namespace)
        seen.add(namespace)


def namespace_repeated(namespace: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint_extension_namespace_duplicate", f"extension namespace {namespace!r} is named twice; keep one"
    )


def extension_entry_size(entry: Mapping[str, Any]) -> int:
    """Bytes of the canonical JSON of `{version, required, state}`."""
    return len(canonical(dict(entry), code="checkpoint_extension_state_invalid"))


def check_sizes(entries: Mapping[str, Mapping[str, Any]], max_total_bytes: int) -> None:
    """Refuse a namespace, an entry or a sum that is too large; to be asked before anything external happens."""
    total = 0
    for namespace, entry in entries.items():
        size = extension_entry_size(entry)
        check_namespace(namespace)
        if size > MAX_ENTRY_BYTES:
            raise CheckpointError(
                "checkpoint_extension_entry_too_large",
                f"extension {namespace!r} holds {size} bytes, at most {MAX_ENTRY_BYTES} fit; keep a reference instead",
            )
        total += size
    if total > max_total_bytes:
        raise CheckpointError(
            "checkpoint_extension_state_too_large",
            f"extensions hold {total} bytes together, at most {max_total_bytes} fit; "
            "raise CheckpointConfig(max_extension_state_bytes=...) or keep references instead",
        )


def check_available(
    entries: Mapping[str, Mapping[str, Any]],
    registered: Sequence[CheckpointExtension],
    required_namespaces: Sequence[str] = (),
) -> None:
    """Refuse a resume whose stored state cannot be restored.

    `checkpoint_required_extension_unavailable` when an entry marked required, or a namespace the configuration
    requires, has no registered extension; `checkpoint_extension_version_mismatch` when it has another version.
    """
    here = {extension.namespace: extension for extension in registered}
    needed = {namespace for namespace, entry in entries.items() if entry["required"]} | {*required_namespaces}
    for namespace in sorted(needed - here.keys()):
        raise CheckpointError(
            "checkpoint_required_extension_unavailable",
            f"the run needs extension {namespace!r}; register it in RunConfig(checkpoint_extensions=[...])",
        )
    for namespace in sorted(entries.keys() & here.keys()):
        stored, current = entries[namespace]["version"], here[namespace].version
        if stored != current:
            raise CheckpointError(
                "checkpoint_extension_version_mismatch",
                f"extension {namespace!r} was stored by version {stored!r}, this program has {current!r}; "
                "register the same one",
            )
