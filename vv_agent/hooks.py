"""Where a host may look into a run and change it: runtime hooks, after-cycle hooks, guardrails, output validation.

Every method may be asynchronous; `None` leaves things as they are. In a run that workers carry out, hooks are loaded by
import path: make them globals of a module. They keep no state of a run in themselves: several runs share one object.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from vv_agent._facade import only_known
from vv_agent._wire import LAX, Wire
from vv_agent.agent import RunContext
from vv_agent.errors import ConfigError, VVAgentError
from vv_agent.llm.base import ModelResponse
from vv_agent.messages import Message, ToolCall
from vv_agent.results import AgentResult, CompletionReason, CycleRecord, ToolExecutionResult
from vv_agent.tools.base import ToolContext
from vv_agent.usage import TaskTokenUsage

if TYPE_CHECKING:
    from vv_agent.agent import Agent
    from vv_agent.config import RunConfig
    from vv_agent.llm.settings import ModelSettings

T = TypeVar("T")
Answer: TypeAlias = "T | Awaitable[T | None] | None"
"""What a hook gives: a value, an awaitable of one, or None."""


def _must(what: str, fits: bool, given: object) -> None:
    if not fits:
        raise ConfigError("hook_answer_invalid", f"{what} cannot be {given!r}; see the class it was given to")


def _is_list(given: object) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str | bytes)


# Runtime hooks.


@dataclass(frozen=True, kw_only=True)
class HookEvent:
    """What every runtime hook sees. `messages` are the history, `shared_state` is a copy."""

    run: RunContext
    cycle_index: int
    messages: Sequence[Message]
    shared_state: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BeforeLlmEvent(HookEvent):
    """A model is about to be called; `tool_schemas` are those it will be shown."""

    tool_schemas: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class BeforeLlmPatch:
    """What to send instead, in this call only: the history stays as it is. A schema that is added makes its tool one
    the model may call in this cycle, if the run has such a tool and no policy denies it."""

    messages: Sequence[Message] | None = None
    tool_schemas: Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        for name, kind in (("messages", Message), ("tool_schemas", Mapping)):
            given = getattr(self, name)
            _must(name, given is None or (_is_list(given) and all(isinstance(one, kind) for one in given)), given)
        for message in self.messages or ():
            _must("the content of a message", isinstance(message.content, str), message.content)


@dataclass(frozen=True, kw_only=True)
class AfterLlmEvent(HookEvent):
    """A model has answered; its text was already streamed."""

    response: ModelResponse


@dataclass(frozen=True, kw_only=True)
class BeforeToolCallEvent(HookEvent):
    """A call of a tool is about to be checked."""

    call: ToolCall
    context: ToolContext


@dataclass(frozen=True, kw_only=True)
class BeforeToolCallPatch:
    """Another call in place of the model's (it keeps its id), or a result: then the tool does not run."""

    call: ToolCall | None = None
    result: ToolExecutionResult | None = None

    def __post_init__(self) -> None:
        _must("call", self.call is None or isinstance(self.call, ToolCall), self.call)
        _must("result", self.result is None or isinstance(self.result, ToolExecutionResult), self.result)
        for text in () if self.call is None else (self.call.name, self.call.arguments):
            _must("name and arguments of a call", isinstance(text, str), text)


@dataclass(frozen=True, kw_only=True)
class AfterToolCallEvent(HookEvent):
    """A tool has run."""

    call: ToolCall
    context: ToolContext
    result: ToolExecutionResult


class RuntimeHook:
    """Derive from it and override what you need. Hooks run in the order agent, runner, run; each sees what the one
    before it made. What a hook raises fails the run (`runtime_hook_failed`). After a crash a hook may be called again
    for what was not saved."""

    def before_memory_compact(self, event: HookEvent) -> Answer[Sequence[Message]]:
        """Other messages in place of the history, before memory looks at its length; asked before each model call."""
        return None

    def before_llm(self, event: BeforeLlmEvent) -> Answer[BeforeLlmPatch]:
        """Other messages or schemas for this call."""
        return None

    def after_llm(self, event: AfterLlmEvent) -> Answer[ModelResponse]:
        """Another answer: it is what is stored, and what the tools are called by."""
        return None

    def before_tool_call(self, event: BeforeToolCallEvent) -> Answer[BeforeToolCallPatch]:
        """Another call, or a result without a call; policy and approval look at what comes out of it."""
        return None

    def after_tool_call(self, event: AfterToolCallEvent) -> Answer[ToolExecutionResult]:
        """Another result. It always runs to its end before anything of the tool's result is stored."""
        return None


# After-cycle hooks (spec/18, section 4).


class AfterCycleAction(StrEnum):
    """What a hook wants: nothing, another cycle with messages of its own, or the end of the run as failed."""

    CONTINUE = "continue"
    STEER = "steer"
    STOP_NON_SUCCESS = "stop_non_success"


class NativeCycleOutcomeKind(StrEnum):
    """What would follow the cycle without hooks."""

    CONTINUE = "continue"
    COMPLETED = "completed"
    WAIT_USER = "wait_user"
    MAX_CYCLES = "max_cycles"


@dataclass(frozen=True, kw_only=True)
class NativeCycleOutcome:
    """What would follow without hooks, and whether a hook may ask for another cycle instead."""

    kind: NativeCycleOutcomeKind
    completion_reason: CompletionReason | None
    completion_tool_name: str | None
    steer_allowed: bool


@dataclass(frozen=True, kw_only=True)
class AfterCycleSnapshot:
    """A complete cycle, as copies. `task_id` is the key of the run's record, the same over all its segments."""

    task_id: str
    cycle_index: int
    max_cycles: int
    remaining_cycles: int
    cycle: CycleRecord
    messages: tuple[Message, ...]
    shared_state: Mapping[str, Any]
    cumulative_token_usage: TaskTokenUsage
    available_tool_names: tuple[str, ...]
    disallowed_tool_names: tuple[str, ...]
    native_outcome: NativeCycleOutcome


MAX_STEERING_MESSAGES = 32
MAX_STEERING_BYTES = 16_384
"""UTF-8 bytes of one message."""
MAX_ALL_STEERING_BYTES = 65_536
MAX_DISALLOWED_TOOLS = 1024
MAX_TOOL_NAME_BYTES = 256
MAX_STOP_CODE_BYTES = 128
MAX_STOP_MESSAGE_BYTES = 4096


def _bytes(limit: int) -> AfterValidator:
    def check(text: str) -> str:
        if not text.strip():
            raise ValueError("must not be blank")
        if len(text.encode("utf-8", "surrogatepass")) > limit:
            raise ValueError(f"has more than {limit} bytes")
        return text

    return AfterValidator(check)


def faults_of(error: ValidationError) -> str:
    """Each field that is wrong, and why."""
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())


class AfterCycleStop(Wire):
    """Why a hook ends the run: the error is `code: message`."""

    code: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]*\z", max_length=MAX_STOP_CODE_BYTES)]
    message: Annotated[str, _bytes(MAX_STOP_MESSAGE_BYTES)]


class AfterCycleDecision(Wire):
    """What a hook decides; its helpers make one. The same limits hold for the decisions of all hooks together."""

    action: Annotated[AfterCycleAction, LAX] = AfterCycleAction.CONTINUE
    steering_messages: Annotated[
        tuple[Annotated[str, _bytes(MAX_STEERING_BYTES)], ...],
        Field(strict=False, max_length=MAX_STEERING_MESSAGES),
    ] = ()
    """Messages of the user before the next model call."""
    disallow_tools: Annotated[
        tuple[Annotated[str, _bytes(MAX_TOOL_NAME_BYTES)], ...], Field(strict=False, max_length=MAX_DISALLOWED_TOOLS)
    ] = ()
    """Tools that are denied from now on, for the rest of the run."""
    stop: AfterCycleStop | None = None

    @classmethod
    def go_on(cls, *, disallow_tools: Sequence[str] = ()) -> AfterCycleDecision:
        return cls._made(disallow_tools=disallow_tools)

    @classmethod
    def steer(cls, *messages: str, disallow_tools: Sequence[str] = ()) -> AfterCycleDecision:
        """Another cycle, which begins with these messages; only where the snapshot's outcome allows it."""
        return cls._made(action=AfterCycleAction.STEER, steering_messages=messages, disallow_tools=disallow_tools)

    @classmethod
    def stop_non_success(cls, code: str, message: str) -> AfterCycleDecision:
        """End the run as failed."""
        return cls._made(action=AfterCycleAction.STOP_NON_SUCCESS, stop={"code": code, "message": message})

    @classmethod
    def _made(cls, **values: Any) -> AfterCycleDecision:
        """`ConfigError` `after_cycle_decision_invalid` that names what is wrong."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise ConfigError("after_cycle_decision_invalid", f"the decision is wrong: {faults_of(error)}") from None

    @model_validator(mode="after")
    def _fits_its_action(self) -> AfterCycleDecision:
        steers, stops = self.action is AfterCycleAction.STEER, self.action is AfterCycleAction.STOP_NON_SUCCESS
        if bool(self.steering_messages) != steers:
            raise ValueError("messages are given with the action steer, and only with it")
        if (self.stop is not None) != stops:
            raise ValueError("stop is given with the action stop_non_success, and only with it")
        if stops and self.disallow_tools:
            raise ValueError("a run that stops has no tools to deny")
        if sum(len(text.encode("utf-8", "surrogatepass")) for text in self.steering_messages) > MAX_ALL_STEERING_BYTES:
            raise ValueError(f"the messages have more than {MAX_ALL_STEERING_BYTES} bytes together")
        if len(set(self.disallow_tools)) != len(self.disallow_tools):
            raise ValueError("a tool is denied once")
        return self


class AfterCycleHook:
    """Called after each complete cycle, before it is committed: once for a cycle that was committed, perhaps again for
    one that was not. So the same snapshot must give the same decision, without effects outside. What it raises fails
    the run. An object that is a `CheckpointExtension` too keeps its state with the run."""

    def after_cycle(self, snapshot: AfterCycleSnapshot) -> Answer[AfterCycleDecision]:
        return None


# Guardrails.


@dataclass(frozen=True)
class GuardrailResult:
    """What a guardrail says. `require_approval` acts like `block`: there is nobody to ask."""

    action: Literal["allow", "block", "require_approval"]
    value: Any = None
    message: str = ""

    def __post_init__(self) -> None:
        _must("action", self.action in ("allow", "block", "require_approval"), self.action)
        _must("message", isinstance(self.message, str), self.message)

    @classmethod
    def allow(cls, value: Any = None) -> GuardrailResult:
        """Go on, with another text if one is given."""
        return cls("allow", value)

    @classmethod
    def block(cls, message: str) -> GuardrailResult:
        return cls("block", message=message)

    @classmethod
    def require_approval(cls, message: str) -> GuardrailResult:
        return cls("require_approval", message=message)


class InputGuardrail:
    """Looks at the input before there is a run, in the process that starts it."""

    def check(self, context: RunContext, input: str) -> Answer[GuardrailResult]:  # noqa: A002 - the contract's name
        return None


class OutputGuardrail:
    """Looks at the result of a segment before it is stored. A text that it allows instead replaces the output."""

    def check(self, context: RunContext, result: AgentResult) -> Answer[GuardrailResult]:
        return None


# Output validation (spec/18, section 5).


@dataclass(frozen=True)
class OutputValidationContext:
    """Whose output is validated. `output_type_name` is None without an output type."""

    run_id: str
    agent_name: str
    output_type_name: str | None = None


@dataclass(frozen=True)
class OutputValidationResult:
    """What a validator says; made by `ok` and `fail`."""

    valid: bool
    code: str | None = None
    message: str | None = None

    @classmethod
    def ok(cls) -> OutputValidationResult:
        return cls(True)

    @classmethod
    def fail(cls, code: str, message: str | None = None) -> OutputValidationResult:
        return cls(False, code, message)


@dataclass(frozen=True, kw_only=True)
class OutputRepairRequest:
    """What a repair gets: the text that is wrong, and why. `tools` is always empty."""

    invalid_output: str
    validation_code: str
    validation_message: str | None
    model: str | None
    model_settings: ModelSettings | None
    tools: tuple[()] = ()


OutputValidator: TypeAlias = Callable[[Any, OutputValidationContext], "Answer[OutputValidationResult]"]
OutputRepair: TypeAlias = Callable[[OutputRepairRequest], "str | Awaitable[str]"]


@only_known("output_validation_invalid")
@dataclass(frozen=True, kw_only=True)
class OutputValidation:
    """Checks the output of a completed run, and has it repaired once.

    `validator(output, context)` says whether the output is right (a value of the output type, if there is one).
    `repair(request)` gives another text, perhaps by calling `repair_model`, which is the host's to do: the run never
    does it. `enabled` None: if there is a validator.
    """

    validator: OutputValidator | None = None
    repair: OutputRepair | None = None
    repair_model: str | None = None
    repair_model_settings: ModelSettings | None = None
    max_repairs: int = 1
    enabled: bool | None = None

    def __post_init__(self) -> None:
        if self.validator is None and (self.enabled or self.repair is not None):
            what = "a repair" if self.repair is not None else "output validation"
            raise ConfigError(
                "output_validation_invalid", f"{what} needs a validator; give OutputValidation(validator=...)"
            )
        if isinstance(self.max_repairs, bool) or self.max_repairs not in (0, 1):
            raise ConfigError("output_validation_invalid", f"max_repairs is {self.max_repairs!r}; it is 0 or 1")
        for name in ("validator", "repair"):
            if (given := getattr(self, name)) is not None and not callable(given):
                raise ConfigError("output_validation_invalid", f"{name} {given!r} is no function")
        if self.enabled is None:
            object.__setattr__(self, "enabled", self.validator is not None)


# What a run has of all this.


@dataclass(frozen=True)
class Hooks:
    """The hooks of one agent in one run, in the order in which they are called."""

    runtime: Sequence[Any] = ()
    after_cycle: Sequence[Any] = ()
    input_guardrails: Sequence[Any] = ()
    output_guardrails: Sequence[Any] = ()
    output_type: Any = None
    validation: OutputValidation = field(default_factory=OutputValidation)


METHODS = {
    "runtime": tuple(name for name in vars(RuntimeHook) if not name.startswith("_")), "after_cycle": ("after_cycle",),
    "input_guardrails": ("check",), "output_guardrails": ("check",),
}  # fmt: skip
"""Kind of hook -> its methods; an object is of a kind that has one of them."""


def check_hooks(hooks: Hooks) -> None:
    """Refuse what is no hook of its kind, and an output type that pydantic cannot read (`hook_invalid`)."""
    for kind, methods in METHODS.items():
        for hook in getattr(hooks, kind):
            if isinstance(hook, type) or not any(callable(getattr(hook, name, None)) for name in methods):
                raise ConfigError(
                    "hook_invalid",
                    f"{hook!r} among the {kind} hooks has no method {' or '.join(methods)}; give an object",
                )
    if hooks.output_type is not None:
        output_schema(hooks.output_type)


def output_schema(kind: Any) -> dict[str, Any]:
    """The JSON schema of an output type."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(kind).json_schema()
    except (PydanticUserError, NameError) as error:
        raise ConfigError("hook_invalid", f"output_type {kind!r} is no type that pydantic can read: {error}") from error


def typed(output: str, kind: Any) -> Any:
    """The output as a value of `kind`: text for `str`, else its JSON read strictly. `output_type_invalid` when it is
    not one."""
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(kind).validate_json(output, strict=True) if kind is not str else output
    except ValidationError as error:
        raise VVAgentError("output_type_invalid", str(error)) from error


def hooks_of(agent: Agent, config: RunConfig) -> Hooks:
    """What an agent has, then what the effective config adds."""
    hooks = Hooks(
        runtime=(*agent.hooks, *config.hooks),
        after_cycle=tuple(config.after_cycle_hooks),
        input_guardrails=tuple(agent.input_guardrails),
        output_guardrails=tuple(agent.output_guardrails),
        output_type=agent.output_type,
        validation=agent.output_validation or OutputValidation(),
    )
    check_hooks(hooks)
    return hooks
