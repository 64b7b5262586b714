"""The host's code in a cycle: how it is called, and what runtime hooks make of model calls and tool calls."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vv_agent import references
from vv_agent._json import canonical
from vv_agent._loop import run_async
from vv_agent.agent import RunContext
from vv_agent.cancellation import CancellationToken
from vv_agent.definition import CapabilityRef
from vv_agent.errors import ToolError
from vv_agent.hooks import (
    AfterLlmEvent,
    AfterToolCallEvent,
    BeforeLlmEvent,
    BeforeLlmPatch,
    BeforeToolCallEvent,
    BeforeToolCallPatch,
    HookEvent,
    Hooks,
    OutputValidation,
    RuntimeHook,
)
from vv_agent.llm.base import ModelResponse
from vv_agent.messages import Message
from vv_agent.results import ToolExecutionResult
from vv_agent.runtime import control
from vv_agent.runtime.control import HookFailed
from vv_agent.runtime.run import Run
from vv_agent.runtime.tool_context import copied
from vv_agent.runtime.transcript import clean, storable
from vv_agent.runtime.waiting import Interrupted, RunCancelled, Stopping, heed, submit, wait_for
from vv_agent.tools.arguments import parse_arguments
from vv_agent.tools.base import ToolContext
from vv_agent.tools.orchestrator import ToolOrchestrator
from vv_agent.tools.output import error_result

_GRACE = 2.0
"""Seconds that code of the host has to stop in when the run is cancelled."""
HOOK_CODE = "runtime_hook_failed"


def host_call(
    run: Run, what: str, code: str, work: Callable[[], Any], kind: Any = object, *, closing: bool = False,
    read: Callable[[Any], Any] = lambda given: given,
) -> Any:  # fmt: skip
    """Call the host's code, asynchronous or not, while the run may be cancelled, its lease lost or the worker stopped.
    What it raises, or gives that is no `kind` or cannot be read, is `HookFailed` with this code.

    `closing`: it is about something that is over, and has its grace also when the run was cancelled before.
    """
    if not closing:
        heed(run)
    token = CancellationToken()

    def asked() -> Any:
        given = _checked(awaited(work(), token), kind)
        return None if given is None else read(given)

    call = submit(run, asked, here=True)
    if closing and (run.inbox.cancel is not None or run.hold.stopped is not None):
        if not call.finished.wait(_GRACE):
            Interrupted(token, [call], 0.0).stop(run, "the run does not go on here")
            raise Stopping if run.inbox.cancel is None else RunCancelled(run.inbox.cancel)
    else:
        wait_for(run, [call], token, grace=_GRACE, finish=closing)
    try:
        return call.result()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the host's code raises ends its own run, not the process
        raise failure(what, code, error) from error


def awaited(given: Any, token: CancellationToken | None = None) -> Any:
    """What a hook gave, waited for."""
    return run_async(given, cancellation=token) if inspect.isawaitable(given) else given


def failure(what: str, code: str, error: BaseException) -> HookFailed:
    return HookFailed(code, clean(f"{what} failed: {type(error).__name__}: {error}"))


def context_of(run: Run) -> RunContext:
    """What hooks and guardrails see of the run."""
    definition = run.program.definition
    return RunContext(
        run_id=run.body.run_id, agent_name=run.body.agent, model=run.program.resolved.model_id,
        workspace=definition.workspace_ref.id if definition.workspace_ref else None,
        metadata=copied(definition.run_metadata), context=run.program.context,
    )  # fmt: skip


# Which tools there are in a cycle.


def shown(run: Run) -> tuple[Mapping[str, Any], ...]:
    """The schemas the model is shown, less what hooks denied."""
    if not (denied := control.denied(run.shared_state)):
        return run.program.advertised
    return tuple(schema for schema in run.program.advertised if name_of(schema) not in denied)


def name_of(schema: Mapping[str, Any]) -> str:
    return str(schema["function"]["name"])


def orchestrator(run: Run) -> ToolOrchestrator:
    """What a call of the open cycle has to pass."""
    found, denied = run.program.orchestrator, control.denied(run.shared_state)
    if denied:
        policy = replace(found.policy, disallowed_tools=(*found.policy.disallowed_tools, *denied))
        found = replace(found, policy=policy)
    names = run.transcript.planned.get(run.cycle)
    return found if names is None else replace(found, planned_tools=names)


# Runtime hooks.


def rewriting(run: Run) -> Callable[[Sequence[Message]], Sequence[Message]] | None:
    """What hooks make of the messages before memory looks at them; None without such hooks."""
    hooks = _having(run, "before_memory_compact")

    def rewritten(messages: Sequence[Message]) -> Sequence[Message]:
        for hook in hooks:
            event = HookEvent(**_seen(run, messages))
            found = _ask(run, hook.before_memory_compact, event, (list, tuple), read=_as_stored)
            messages = messages if found is None else found
        return messages

    return rewritten if hooks else None


def _as_stored(messages: Sequence[Message]) -> list[Message]:
    if not all(isinstance(message, Message) for message in messages):
        raise TypeError("it gave something that is no Message")
    return [Message.from_wire(storable(message.to_wire())) for message in messages]


def before_llm(run: Run) -> tuple[Sequence[Message], Sequence[Mapping[str, Any]]]:
    """Messages and schemas of the model call; what the policy denies is not shown, whoever adds it."""
    messages: Sequence[Message] = run.transcript.messages
    tools: Sequence[Mapping[str, Any]] = shown(run)
    hooks = _having(run, "before_llm")
    for hook in hooks:
        event = BeforeLlmEvent(**_seen(run, messages), tool_schemas=[copied(schema) for schema in tools])
        patch = _ask(run, hook.before_llm, event, BeforeLlmPatch)
        if patch is not None:
            messages = messages if patch.messages is None else patch.messages
            tools = tools if patch.tool_schemas is None else patch.tool_schemas
    if not hooks:
        return messages, tools
    try:
        return list(messages), tuple(_permitted(run, tools))
    except (LookupError, TypeError, AttributeError) as error:
        raise HookFailed(HOOK_CODE, f"before_llm gave what is no function schema: {error!r}") from error


def _permitted(run: Run, tools: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    denied = control.denied(run.shared_state)
    for schema in tools:
        name = name_of(schema)
        if name not in denied and not run.program.policy.denies(name, run.program.tools.get(name)):
            yield schema


def note_shown(run: Run, tools: Sequence[Mapping[str, Any]]) -> None:
    """Note which tools the model was shown, where that is not what it is shown anyway."""
    if not run.program.hooks.runtime:
        return
    names = [name_of(schema) for schema in tools]
    if names != [name_of(schema) for schema in shown(run)]:
        run.log(["n", run.cycle, names])


def after_llm(run: Run, response: ModelResponse, tidy: Callable[[ModelResponse], ModelResponse]) -> ModelResponse:
    """The answer that counts, made `tidy`."""
    for hook in _having(run, "after_llm"):
        event = AfterLlmEvent(**_seen(run, run.transcript.messages), response=response)
        response = _ask(run, hook.after_llm, event, ModelResponse, read=tidy) or response
    return response


def before_tool_call(run: Run, position: int, context: Callable[[], ToolContext]) -> ToolExecutionResult | None:
    """Have hooks look at a call of the open turn, once; the result, if they gave one in its place."""
    turn = run.turn
    assert turn is not None
    hooks = _having(run, "before_tool_call")
    if not hooks:
        return None
    if position not in turn.hooked:
        try:
            parse_arguments(turn.call(position).arguments)
        except ToolError:  # no call: it never reaches planning
            return None
        call, result = turn.call(position), None
        for hook in hooks:
            event = BeforeToolCallEvent(**_seen(run, run.transcript.messages), call=call, context=context())
            patch = _ask(run, hook.before_tool_call, event, BeforeToolCallPatch, read=_read_patch)
            if patch is not None and patch.call is not None:
                call = replace(patch.call, id=call.id)
            if patch is not None and patch.result is not None:
                result = patch.result.model_copy(update={"tool_call_id": call.id})
                break
        run.log(["h", run.cycle, position, storable(call.to_wire()), result and storable(result.to_wire())])
    found = turn.hooked[position][1]
    return ToolExecutionResult.from_wire(found) if found else None


def _read_patch(patch: BeforeToolCallPatch) -> BeforeToolCallPatch:
    """The patch as it can be stored."""
    call, result = patch.call, patch.result
    if call is not None:
        call = replace(call, name=clean(call.name), arguments=clean(call.arguments))
    if result is not None:
        result = ToolExecutionResult.from_wire(storable(result.to_wire()))
    return BeforeToolCallPatch(call=call, result=result)


def after_tool_call(
    run: Run, position: int, context: Callable[[], ToolContext], result: ToolExecutionResult
) -> ToolExecutionResult:
    """The result that is stored. When a hook fails, or is still at it when the run is cancelled, the tool's own is
    withheld (the hook may have had to take something out of it) and the run ends once the batch is settled."""
    assert run.turn is not None
    call = run.turn.call(position)
    for hook in _having(run, "after_tool_call"):
        event = AfterToolCallEvent(**_seen(run, run.transcript.messages), call=call, context=context(), result=result)
        try:
            given = _ask(run, hook.after_tool_call, event, ToolExecutionResult, closing=True)
        except (HookFailed, RunCancelled) as error:
            run.hook_failure = error
            return error_result(call.id, f"Tool {call.name} ran; its result was withheld: a hook failed.", HOOK_CODE)
        if given is not None:
            result = given.model_copy(update={"tool_call_id": call.id})
    return result


def raise_failure(run: Run) -> None:
    """Raise what a hook failed with while results were kept."""
    if run.hook_failure is not None:
        failure, run.hook_failure = run.hook_failure, None
        raise failure


def _having(run: Run, name: str) -> list[Any]:
    """The hooks that have something to say about this."""
    nothing = getattr(RuntimeHook, name)
    return [
        hook for hook in run.program.hooks.runtime
        if getattr(hook, name, None) is not None and getattr(type(hook), name, None) is not nothing
    ]  # fmt: skip


def _seen(run: Run, messages: Sequence[Message]) -> dict[str, Any]:
    return {
        "run": context_of(run), "cycle_index": run.index, "messages": tuple(messages),
        "shared_state": copied(run.shared_state),
    }  # fmt: skip


def _ask(
    run: Run, method: Callable[[Any], Any], event: HookEvent, kind: Any, *, closing: bool = False,
    read: Callable[[Any], Any] = lambda given: given,
) -> Any:  # fmt: skip
    return host_call(run, _named(method), HOOK_CODE, lambda: method(event), kind, closing=closing, read=read)


def _named(method: Callable[..., Any]) -> str:
    return getattr(method, "__qualname__", repr(method))


def _checked(given: Any, kind: Any) -> Any:
    if given is not None and not isinstance(given, kind):
        names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise TypeError(f"it gave {type(given).__name__}, not {names} or None")
    return given


# How hooks are named in a definition.

_SLOTS = {
    "runtime": "runtime_hook:", "after_cycle": "after_cycle_hook:", "input_guardrails": "input_guardrail:",
    "output_guardrails": "output_guardrail:",
}  # fmt: skip
TYPE_SLOT, VALIDATOR_SLOT, REPAIR_SLOT = "output_type", "output_validator", "output_repair"
REPAIR_MODEL_SLOT, REPAIR_SETTINGS_SLOT = "output_repair_model", "output_repair_settings"
_BUILTIN_TYPES = {f"builtins:{kind.__name__}": kind for kind in (str, int, float, bool, list, dict)}


def code_of(hooks: Hooks) -> Iterator[tuple[str, Any]]:
    """The code of a run's hooks, by the slot that names it."""
    for kind, prefix in _SLOTS.items():
        yield from ((f"{prefix}{number}", hook) for number, hook in enumerate(getattr(hooks, kind)))
    if hooks.validation.enabled:
        yield VALIDATOR_SLOT, hooks.validation.validator
        yield REPAIR_SLOT, hooks.validation.repair if hooks.validation.max_repairs else None


def plain_refs(hooks: Hooks) -> dict[str, CapabilityRef]:
    """What is not code: the output type (if it has a name), and the model of a repair."""
    refs, validation = {}, hooks.validation
    if hooks.output_type is not None and (name := references.name_of(hooks.output_type)) is not None:
        refs[TYPE_SLOT] = CapabilityRef(id=name, version=references.version_of(hooks.output_type))
    if validation.enabled and validation.repair_model is not None:
        refs[REPAIR_MODEL_SLOT] = CapabilityRef(id=validation.repair_model, version="1")
    if validation.enabled and validation.repair_model_settings is not None:
        text = canonical(validation.repair_model_settings.to_wire(), code="hook_invalid").decode()
        refs[REPAIR_SETTINGS_SLOT] = CapabilityRef(id=text, version="1")
    return refs


def load_hooks(refs: Mapping[str, str], load: Callable[[str], Any]) -> Hooks:
    """The hooks of a stored definition; input guardrails are asked once, where the run begins."""
    from vv_agent.llm.settings import ModelSettings

    validation = OutputValidation()
    if VALIDATOR_SLOT in refs:
        settings = refs.get(REPAIR_SETTINGS_SLOT)
        validation = OutputValidation(
            validator=load(refs[VALIDATOR_SLOT]), repair=load(refs[REPAIR_SLOT]) if REPAIR_SLOT in refs else None,
            repair_model=refs.get(REPAIR_MODEL_SLOT),
            repair_model_settings=ModelSettings.from_wire(json.loads(settings)) if settings else None,
        )  # fmt: skip
    return Hooks(
        runtime=_loaded(refs, _SLOTS["runtime"], load),
        after_cycle=_loaded(refs, _SLOTS["after_cycle"], load),
        output_guardrails=_loaded(refs, _SLOTS["output_guardrails"], load),
        output_type=load_type(refs.get(TYPE_SLOT), load) if validation.enabled else None,
        validation=validation,
    )


def load_type(ref: str | None, load: Callable[[str], Any]) -> Any:
    """An output type by its name."""
    return None if ref is None else _BUILTIN_TYPES.get(ref) or load(ref)


def _loaded(refs: Mapping[str, str], prefix: str, load: Callable[[str], Any]) -> tuple[Any, ...]:
    names = itertools.takewhile(refs.__contains__, (f"{prefix}{number}" for number in itertools.count()))
    return tuple(load(refs[name]) for name in names)
