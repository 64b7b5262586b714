"""A model that plays a script: for tests, examples and demos, with no network.

What it answers is a function of the request alone, so that it can be called by any worker, in any process, again
after a crash, and give the same answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from vv_agent.errors import ConfigError, LlmError
from vv_agent.llm.base import Finish, ModelRequest, ModelResponse, Part, TextDelta, UsageReport
from vv_agent.llm.client import StreamingClient, parts_of
from vv_agent.llm.reference import EndpointOption, EndpointTarget, ModelRef, ResolvedModelConfig, Secret
from vv_agent.messages import ToolCall

if TYPE_CHECKING:
    from vv_agent.llm.settings import ModelSettings

Answer: TypeAlias = ModelResponse | str | Sequence[Part] | Exception
Step: TypeAlias = Answer | Callable[[ModelRequest], Answer]


class ScriptedModel(StreamingClient):
    """Answers the n-th turn of a run with the n-th step; it keeps no state.

    A step is a `ModelResponse`, a text, a list of parts, an exception to raise, or a function of the request that
    gives one of these. `delay` is a wait in seconds before each answer (it can be cancelled); `usage` is a provider's
    usage object for the steps that bring none. `aside` answers what memory asks beside the turns (a summary, an
    extraction); with nothing, memory does without a model. A call beyond the last step raises `LlmError`
    (invalid_request).

    >>> model = ScriptedModel([call("add", {"a": 1, "b": 2}), "The sum is 3."])
    """

    def __init__(
        self,
        steps: Sequence[Step],
        *,
        delay: float = 0.0,
        usage: Mapping[str, Any] | None = None,
        chunk_chars: int = 8,
        aside: Step = "",
    ) -> None:
        self._aside = aside
        self._steps = tuple(steps)
        self._delay = delay
        self._usage = usage
        self._chunk_chars = chunk_chars

    def stream(self, request: ModelRequest) -> Iterator[Part]:
        if request.cancellation.wait(self._delay) if self._delay else request.cancellation.cancelled:
            raise LlmError("cancelled", f"scripted answer cancelled: {request.cancellation.reason}", definite=True)
        if "purpose" in request.metadata:
            step = self._aside
        elif request.turn < len(self._steps):
            step = self._steps[request.turn]
        else:
            raise LlmError("invalid_request", "scripted response queue is empty", definite=True)
        while callable(step):  # a function may give what `call` gives, which is one as well
            step = step(request)
        yield from self._play(step)

    def _play(self, answer: Answer) -> Iterator[Part]:
        match answer:
            case Exception():
                raise answer
            case str():
                yield from self._play(ModelResponse(answer))
            case ModelResponse():
                usage = answer.usage if answer.usage.raw is not None else UsageReport(self._usage)
                for part in parts_of(replace(answer, usage=usage)):
                    yield from self._chunks(part) if isinstance(part, TextDelta) else (part,)
            case _:
                yield from answer
                if not answer or not isinstance(answer[-1], Finish):
                    yield Finish("stop")

    def _chunks(self, part: TextDelta) -> Iterator[Part]:
        for start in range(0, len(part.text), self._chunk_chars):
            yield TextDelta(part.text[start : start + self._chunk_chars])


ScriptedLLM = ScriptedModel


def say(text: str, *, reasoning: str | None = None) -> ModelResponse:
    """A step that answers with text."""
    return ModelResponse(text, reasoning=reasoning)


def call(name: str, arguments: Mapping[str, Any] | None = None, id: str | None = None) -> Step:  # noqa: A002
    """A step that calls one tool; without `id`, the id is made from the turn, so that it is unique in the run."""
    return calls((name, arguments or {}, id))


def calls(*wanted: tuple[str, Mapping[str, Any]] | tuple[str, Mapping[str, Any], str | None], text: str = "") -> Step:
    """A step that calls several tools at once: `calls(("add", {"a": 1}), ("sub", {"a": 2}, "call_x"))`."""

    return _Calls(tuple((name, json.dumps(arguments), *given) for name, arguments, *given in wanted), text)


@dataclass(frozen=True, slots=True)
class _Calls:
    """The step of `calls`, as a value that can be pickled."""

    wanted: tuple[tuple[Any, ...], ...]
    text: str

    def __call__(self, request: ModelRequest) -> ModelResponse:
        made = []
        for position, (name, arguments, *given) in enumerate(self.wanted, 1):
            call_id = given[0] if given and given[0] else f"call_{request.turn + 1}_{position}"
            made.append(ToolCall(call_id, name, arguments))
        return ModelResponse(self.text, tuple(made), finish_reason="tool_calls")


class ScriptedProvider:
    """A `ModelProvider` with one model, `scripted/demo-model`, that plays `steps`."""

    BACKEND = "scripted"
    MODEL = "demo-model"

    def __init__(
        self, steps: Sequence[Step], *, delay: float = 0.0, usage: Mapping[str, Any] | None = None, aside: Step = ""
    ) -> None:
        self._model = ScriptedModel(steps, delay=delay, usage=usage, aside=aside)

    def resolve(self, model: ModelRef) -> ResolvedModelConfig:
        if model.backend_name not in (None, self.BACKEND):
            raise ConfigError(
                "model_backend_mismatch",
                f"the scripted provider serves backend {self.BACKEND!r}, not {model.backend_name!r}",
            )
        endpoint = EndpointTarget(self.BACKEND, Secret(""), "scripted://local", self.BACKEND)
        return ResolvedModelConfig(
            backend=self.BACKEND,
            requested_model=model.model,
            selected_model=model.model,
            model_id=model.model,
            context_length=128_000,
            max_output_tokens=16_384,
            function_call_available=True,
            response_format_available=True,
            endpoint_options=(EndpointOption(endpoint, model.model),),
        )

    def client(self, resolved: ResolvedModelConfig) -> ScriptedModel:
        return self._model

    def default_settings(self, resolved: ResolvedModelConfig) -> ModelSettings:
        from vv_agent.llm.settings import ModelSettings

        return ModelSettings()

    def default_model_ref(self) -> ModelRef:
        return ModelRef.backend(self.BACKEND, self.MODEL)
