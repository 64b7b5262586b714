"""Every error of the package and its code.

    VVAgentError                     .code (stable), .message (what, why, what to do)
    ├── ConfigError                  the developer: a wrong Agent, RunConfig, tool or argument
    │   ├── SettingsError            the operator: the settings file or the environment
    │   ├── ReferenceInvalid         the developer: code that a worker could not load by import path
    │   └── SkillError               the developer: a skill that is not there or cannot be read
    │       ├── SkillParseError      the author of the skill: its file is not of the form
    │       └── SkillValidationError the author of the skill: a field breaks a rule; .errors lists them
    ├── CheckpointError              the run: a rule of records, claims, definitions or journals
    │   ├── ClaimLost                the worker: somebody else holds the run now; stop, commit nothing
    │   ├── SignalsWaiting           the worker: read `.signals`, then decide again
    │   ├── RunFinished              the caller: the run has ended, nothing can be posted to it
    │   ├── CannotServe              the worker: somebody else may be able to run it; defer
    │   └── StoreError               the operator: the store is down, full, foreign or damaged
    ├── LlmError                     the run: a model call failed; .kind, .retryable, .definite
    │   └── RetryLater               the run: the provider named a time; park until then
    ├── ToolError                    the model: a tool failed; the text is its result
    │   └── ToolNotFoundError        the model or the developer: no tool of that name
    ├── EventStoreError              the run or the developer: an event store refused or is damaged
    └── AppServerClientError         the client of an App Server: a request was refused or not answered

Errors can be pickled: they cross processes. Foreign errors are mapped where the library is used, nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class VVAgentError(Exception):
    """Root of the tree. `str(error)` is `code: message`."""

    default_code = "vv_agent_error"

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.details: Mapping[str, Any] = details

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.__dict__)


def _rebuild(kind: type[VVAgentError], state: dict[str, Any]) -> VVAgentError:
    error = kind.__new__(kind)
    Exception.__init__(error, state["code"], state["message"])
    error.__dict__.update(state)
    return error


class ConfigError(VVAgentError):
    """Misuse of the SDK, found before anything ran."""


class SettingsError(ConfigError):
    """The settings file or an environment variable is wrong. Never holds a key's text."""


class ReferenceInvalid(ConfigError):
    """An object has no import path, or a worker may not load the one it has."""


class SkillError(ConfigError):
    """A skill that is not there, is too large, or lies outside of where it may be."""

    def __init__(self, message: str) -> None:
        super().__init__("skill_invalid", message)


class SkillParseError(SkillError):
    """A SKILL.md that is not text with a YAML header."""


class SkillValidationError(SkillError):
    """Fields of a skill's header break rules; `errors` has one sentence for each."""

    def __init__(self, where: str, errors: Sequence[str]) -> None:
        super().__init__(f"{where}: {'; '.join(errors)}")
        self.errors = tuple(errors)


class CheckpointError(VVAgentError):
    """A rule of the checkpointed run was broken; the code names the rule."""


class ClaimLost(CheckpointError):
    """The claim's token or revision is not the stored one any more: another worker has the run."""

    def __init__(self, message: str, code: str = "checkpoint_revision_conflict") -> None:
        super().__init__(code, message)


class SignalsWaiting(CheckpointError):
    """A save was refused because signals arrived that must be seen first; they are in `signals`."""

    def __init__(self, key: str, signals: Sequence[Any]) -> None:
        super().__init__(
            "signals_waiting",
            f"run {key!r} has unread signals that decide before this save; consume them and save again",
        )
        self.signals = tuple(signals)


class RunFinished(CheckpointError):
    """The run has passed its point of no return."""

    def __init__(self, key: str) -> None:
        super().__init__("run_finished", f"run {key!r} has ended; start a new run under another key")


class CannotServe(CheckpointError):
    """This process cannot run the record (module, tool, workspace or schema); another one may."""


class StoreError(CheckpointError):
    """The store did not carry out a verb; nothing was changed."""


LASTING_FAULTS = frozenset(
    {"store_closed", "store_full", "store_corrupt", "store_incompatible", "store_schema_unsupported"}
)
"""Codes of store errors that trying again does not help."""


class LlmError(VVAgentError):
    """A model call failed.

    `kind` is the code without its prefix `model_`; `retryable` says whether the same request may succeed later;
    `definite` whether the provider certainly did not carry the request out (a refusal, a failed connect);
    `retry_after` is in seconds.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        retryable: bool = False,
        definite: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(f"model_{kind}", message)
        self.kind = kind
        self.retryable = retryable
        self.definite = definite
        self.retry_after = retry_after
        self.status = status


class RetryLater(LlmError):
    """The provider asked to come back after more than a few seconds; `retry_after` says when."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__("rate_limited", message, retryable=True, definite=True, retry_after=retry_after)


class ToolError(VVAgentError):
    """A tool's own failure; its text reaches the model as an ERROR result with this code."""

    def __init__(
        self, message: str, code: str = "tool_execution_failed", *, retryable: bool = False, **details: Any
    ) -> None:
        super().__init__(code, message, **details)
        self.retryable = retryable


class ToolNotFoundError(ToolError):
    """A registry has no tool of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Tool not found: {name}", "tool_not_found")


class EventStoreError(VVAgentError):
    """An event store refused an event or cannot be read.

    Codes: event_store_io_error, event_store_serialization_error, event_store_corrupt_line (with `line_number`, counted
    from 1), event_identity_conflict, event_payload_digest_mismatch.
    """

    line_number: int | None = None
