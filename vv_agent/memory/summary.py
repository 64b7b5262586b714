"""Summaries: what is asked of a model, what is made without one, and the message that takes the place of a history.

The keys of the summary and the two tags are pinned (spec/27); the prompts are ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from vv_agent.memory.stages import is_warning, said_by_program
from vv_agent.memory.tokens import estimate
from vv_agent.messages import Message

VERSION = "2.0"
LISTS = (
    "user_constraints", "decisions", "files_examined_or_modified", "errors_and_fixes", "progress", "key_facts",
    "open_issues", "next_steps",
)  # fmt: skip
"""Keys of a summary whose values are lists, in the order of the prompt."""
_REQUEST = ("<Original User Request>", "</Original User Request>")
_MEMORY = ("<Compressed Agent Memory>", "</Compressed Agent Memory>")
_FILES = ("<Restored Files>", "</Restored Files>")
_ARTIFACTS = ("<Artifacts>", "</Artifacts>")
MAX_REQUEST_CHARS, MAX_REQUESTS_CHARS = 4_000, 16_000
"""Code points a summary keeps of each request of the user, and of all, the newest; the first is kept whole beside
them."""
MAX_ITEMS = 60
"""Entries a list of the summary keeps over several compactions, the newest."""
_MAX_ARTIFACTS = 60
_EXCERPT, _STATE = 200, 500
_SIZES = ((MAX_ITEMS, 4_000), (MAX_ITEMS, 1_000), (30, 1_000), (30, 400), (15, 200), (8, 100))
"""Entries of a list and code points of a text, from much to little: the first that fits is taken."""
_KNOWN = frozenset({*LISTS, "summary_version", "original_user_messages", "current_work_state"})
_TRIES = 200
"""Brackets of an answer from which JSON is looked for: each may cost a look at all that follows."""
_BEGINS_JSON = re.compile(r"[`\s]*(json)?\s*[{\[]")
LEAST_ROOM = 200
"""Tokens a request has in any case: one without content would be paid for nothing."""
PROMPT_CHARS, PROMPT_HEAD, PROMPT_TAIL = 2_000, 1_200, 400
CUT = "\n...[truncated]...\n"
_SYSTEM = {
    "en-US": "You compress the working memory of an agent. Answer with one JSON object and nothing else. Its keys: "
    'summary_version ("2.0"), user_constraints, decisions, files_examined_or_modified (objects with path, action '
    "created/modified/deleted/read, summary), errors_and_fixes (objects with error, fix, file), progress, key_facts, "
    "open_issues, next_steps (lists) and current_work_state (text). Keep every fact, name, number, path and "
    "identifier that later work may need, word for word; what an earlier summary holds stays unless it was overtaken.",
    "zh-CN": "你负责压缩一个智能体的工作记忆。只回答一个 JSON 对象。键为：summary_version（\"2.0\"）、"
    "user_constraints、decisions、files_examined_or_modified"
    "（含 path、action created/modified/deleted/read、summary 的对象）、"
    "errors_and_fixes（含 error、fix、file 的对象）、progress、key_facts、open_issues、next_steps（均为列表）"
    "以及 current_work_state（文本）。后续工作可能用到的每个事实、名称、数字、路径和标识都要原样保留；"
    "以前的摘要里的内容，除非已被取代，也要保留。",
}  # fmt: skip
_ACTIONS = {"edit_file": "modified", "write_file": "created", "read_file": "read"}
_RANK = ("modified", "created", "deleted", "read")


# What a model is asked, and what it answers.


def prompt(messages: Sequence[Message], language: str, room: int) -> tuple[Message, Message]:
    """The request for a summary of about `room` tokens at most."""
    return Message("system", _SYSTEM.get(language, _SYSTEM["en-US"])), Message("user", within(messages, room))


def within(messages: Sequence[Message], room: int) -> str:
    """Messages as text of about `room` tokens at most, but for very small ones; system messages are left out."""
    limit, room = PROMPT_CHARS, max(room, LEAST_ROOM)
    while True:
        text = "\n\n".join(rendered(message, limit) for message in messages if message.role != "system")
        if estimate(text) <= room or limit <= 100:
            break
        limit //= 2
    if (tokens := estimate(text)) > room:  # many small messages: the oldest summary and the newest work are in the ends
        part = max(1, len(text) * room // tokens // 2)
        text = text[:part] + CUT + text[len(text) - part :]
    return text


def rendered(message: Message, limit: int = PROMPT_CHARS) -> str:
    """A message as text for a prompt; one that holds a summary stays whole."""
    calls = "".join(f"\n(calls {call.name} {shortened(call.arguments, limit)})" for call in message.tool_calls)
    text = message.content if is_summary(message) else shortened(message.content, limit)
    return f"[{message.role}] {text}{calls}"


def shortened(text: str, limit: int = PROMPT_CHARS) -> str:
    """Head and tail of a text that is longer than `limit` code points."""
    if len(text) <= limit:
        return text
    return text[: limit * PROMPT_HEAD // PROMPT_CHARS] + CUT + text[len(text) - limit * PROMPT_TAIL // PROMPT_CHARS :]


def answered(raw: str) -> str:
    """A model's answer without its analysis, code fence and tags."""
    text = re.sub(r"<analysis>.*?</analysis>", "", raw, flags=re.DOTALL)
    text = _block(text, ("<summary>", "</summary>")) or text
    fenced = re.search(r"```(?:\w+)?\s*\n(.*?)```", text, flags=re.DOTALL)
    return (fenced.group(1) if fenced else text).strip()


def parsed(raw: str) -> dict[str, Any] | None:
    """The first JSON object in a text."""
    return next((value for value in _decoded(raw, "{") if isinstance(value, dict)), None)


def first_array(raw: str) -> list[Any]:
    """The first JSON array in a text; empty if there is none."""
    return next((value for value in _decoded(raw, "[") if isinstance(value, list)), [])


def _decoded(raw: str, opening: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    for found in islice(re.finditer(re.escape(opening), raw), _TRIES):
        try:
            yield decoder.raw_decode(raw, found.start())[0]
        except (ValueError, RecursionError):
            continue


def made(raw: str, messages: Sequence[Message], event_limit: int, task: str = "") -> dict[str, Any]:
    """The summary of a history from a model's answer about it. What it holds takes the place of what rules find; the
    user's own words, what the model wrote down for itself and earlier facts stay in any case.

    Words that are no JSON become the state of the work. An answer that was cut off, or an object that is no summary,
    has nothing: an earlier summary must not be lost for it.
    """
    text, by_rules = answered(raw), local(messages, event_limit, task)
    found = parsed(text)
    if found is not None and not found.keys().isdisjoint({*LISTS, "current_work_state"}):
        before = _earlier(messages)
        for name, more in (("user_constraints", []), ("key_facts", _notes(messages))):
            if kept := _joined(before.get(name), [*_list(found.get(name)), *more]):
                found[name] = kept
        return {**found, "summary_version": VERSION, "original_user_messages": by_rules["original_user_messages"]}
    if not text or _BEGINS_JSON.match(text):
        return by_rules
    return {**by_rules, "current_work_state": text}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


# What is made without a model.


def local(messages: Sequence[Message], event_limit: int, task: str = "") -> dict[str, Any]:
    """The summary of a history by rules alone; what an earlier one held is carried on."""
    before = _earlier(messages)
    said = [message for message in messages if message.content.strip() and not is_summary(message)]
    events = [_event(message) for message in messages[2:] if not is_summary(message)]
    made: dict[str, Sequence[Any]] = {
        "files_examined_or_modified": _files(messages),
        "errors_and_fixes": list(_errors(messages)),
        "progress": [f"{n:02}. {event}" for n, event in enumerate(events, 1)][-event_limit:],
        "key_facts": _notes(messages),
    }
    return {
        "summary_version": VERSION,
        "original_user_messages": originals(messages, task),
        **{name: _joined(before.get(name), made.get(name, ())) for name in LISTS[:-1]},
        "current_work_state": excerpt(said[-1].content if said else "", _STATE),
        "next_steps": _joined(before.get("next_steps"), ()),
    }


def originals(messages: Sequence[Message], task: str = "") -> list[str]:
    """What the user said, in order; of what earlier summaries kept of it, each once. The first text and the `task` are
    whole."""
    found: list[str] = []
    for message in messages:
        if message.role != "user" or is_warning(message) or said_by_program(message):
            continue
        memory = _block(message.content, _MEMORY) if is_summary(message) else None
        kept = (parsed(memory) or {}).get("original_user_messages") if memory else None
        request = _block(message.content, _REQUEST) if is_summary(message) else None
        texts = kept if isinstance(kept, list) else [request if request is not None else message.content]
        said = [str(text).strip() for text in texts]
        again = isinstance(kept, list) or request is not None
        found += [text for text in said if text and not (again and text in found)]
    first, *later = found or [""]
    newest: list[str] = []
    room = MAX_REQUESTS_CHARS
    for text in reversed(later):
        short = text if text == task else shortened(text, MAX_REQUEST_CHARS)
        room -= 0 if text == task else len(short)
        if room >= 0 or text == task:
            newest.insert(0, short)
    return [text for text in (first, *newest) if text]


def is_summary(message: Message) -> bool:
    """Whether the message took the place of a history."""
    return message.role == "user" and message.content.startswith((_REQUEST[0], _MEMORY[0]))


def _earlier(messages: Sequence[Message]) -> dict[str, Any]:
    blocks = [_block(message.content, _MEMORY) for message in messages if is_summary(message)]
    return next((found for block in blocks if block and (found := parsed(block))), {})


def _joined(before: Any, new: Sequence[Any]) -> list[Any]:
    """Both lists without repeats; the newest entries, each where it was said last, and of files the last word."""
    items = [*_list(before), *new]
    seen: dict[str, Any] = {}
    for item in items:
        seen.pop(_key(item), None)  # what is said again is new
        seen[_key(item)] = item
    return list(seen.values())[-MAX_ITEMS:]


def _key(item: Any) -> str:
    path = item.get("path") if isinstance(item, Mapping) else None
    return f"path {path}" if path else json.dumps(item, sort_keys=True, ensure_ascii=False)


def _event(message: Message) -> str:
    details = []
    if message.tool_calls:
        details.append(f"tool_calls={','.join(call.name for call in message.tool_calls)}")
    if message.tool_call_id:
        details.append(f"tool_call_id={message.tool_call_id}")
    shown = f" ({', '.join(details)})" if details else ""
    return f"{message.role}: {excerpt(message.content, _EXCERPT)}{shown}"


def excerpt(text: str, limit: int) -> str:
    """A text on one line, cut to `limit` code points."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _files(messages: Sequence[Message]) -> list[dict[str, str]]:
    actions: dict[str, str] = {}
    for name, arguments in _calls(messages):
        path = arguments.get("path")
        if (action := _ACTIONS.get(name)) is None or not isinstance(path, str):
            continue
        action = "modified" if name == "write_file" and arguments.get("append") else action
        known = actions.get(path, "read")
        actions[path] = action if _RANK.index(action) < _RANK.index(known) else known
    return [{"path": path, "action": act, "summary": f"{act.capitalize()} {path}"} for path, act in actions.items()]


def _calls(messages: Sequence[Message]) -> Iterator[tuple[str, dict[str, Any]]]:
    for message in messages:
        for call in message.tool_calls:
            try:
                yield call.name, call.parsed()
            except ValueError:
                continue


def _notes(messages: Sequence[Message]) -> list[str]:
    """What the model wrote down for itself."""
    notes = (arguments.get("core_information") for name, arguments in _calls(messages) if name == "compress_memory")
    return [note for note in notes if isinstance(note, str) and note.strip()]


def _errors(messages: Sequence[Message]) -> Iterator[dict[str, str]]:
    """Results that say they are errors, with what the assistant said next."""
    for place, message in enumerate(messages):
        if message.role == "tool" and message.content.startswith(("Error", '{"ok": false', '{"ok":false')):
            later = (m.content for m in messages[place + 1 :] if m.role == "assistant" and m.content.strip())
            fix = excerpt(next(later, ""), _EXCERPT)
            yield {"error": excerpt(message.content, _EXCERPT), "fix": fix, "file": ""}


def bounded(summary: Mapping[str, Any], room: int, task: str = "") -> dict[str, Any]:
    """The known parts of a summary, within about `room` tokens of the message it makes: the newest entries of its
    lists, and the ends of long texts. Of the user's words the first and the task come before all others."""
    known = {name: value for name, value in summary.items() if name in _KNOWN}
    said = [str(text) for text in summary.get("original_user_messages") or [""]]
    kept: dict[str, Any] = {}
    for items, chars in _SIZES:
        first, later = _fitted(said[0], room // 3), said[1:][-items:]
        if task in said[1:] and task not in later:
            later = [task, *later]
        kept = {name: _cut(value, items, chars) for name, value in known.items()}
        kept["original_user_messages"] = [
            first, *(_fitted(text, room // 3) if text == task else shortened(text, chars) for text in later)
        ]  # fmt: skip
        requests = "\n\n".join(kept["original_user_messages"])
        if estimate(json.dumps(kept, ensure_ascii=False)) + estimate(requests) <= room:
            break
    return kept


def _fitted(text: str, tokens: int) -> str:
    """Both ends of a text that has more tokens."""
    has = estimate(text)
    return text if has <= tokens else shortened(text, max(_EXCERPT, len(text) * tokens // has))


_DEPTH = 8
"""Levels of what a model answers that are kept."""


def _cut(value: Any, items: int, chars: int, depth: int = _DEPTH) -> Any:
    match value:
        case str():
            return shortened(value, chars)
        case list() | dict() if not depth:
            return "..."
        case list():
            return [_cut(item, items, chars, depth - 1) for item in value[-items:]]
        case dict():
            return {name: _cut(item, items, chars, depth - 1) for name, item in list(value.items())[:items]}
    return value


# The message that takes the place of the history.


def compressed(
    messages: Sequence[Message], summary: Mapping[str, Any], *, files: Mapping[str, str], artifacts: Iterable[str]
) -> list[Message]:
    """The system messages, and one of the user with the requests, the summary, some files and the list of artifacts."""
    kept = [text for message in messages for text in (_block(message.content, _ARTIFACTS) or "").split("\n") if text]
    paths = list(dict.fromkeys([*kept, *artifacts]))[-_MAX_ARTIFACTS:]
    requests = "\n\n".join(summary["original_user_messages"])
    for tag in (*_REQUEST, *_MEMORY):  # words of the user that quote one must not end the block
        requests = requests.replace(tag, tag.replace("<", "<\u200b"))
    parts = [_tagged(_REQUEST, requests), _tagged(_MEMORY, json.dumps(summary, ensure_ascii=False))]
    if files:
        parts.append(
            _tagged(_FILES, "\n".join(f'<file path="{path}">\n{text}\n</file>' for path, text in files.items()))
        )
    if paths:
        parts.append(_tagged(_ARTIFACTS, "\n".join(paths)))
    text = "\n\n".join(parts).encode("utf-8", "replace").decode()  # JSON may have brought half a surrogate pair
    return [*(message for message in messages if message.role == "system"), Message("user", text)]


def key_files(summary: Mapping[str, Any]) -> list[str]:
    """The paths of a summary's files, the changed ones first."""
    listed = summary.get("files_examined_or_modified")
    items = [i for i in listed if isinstance(i, Mapping)] if isinstance(listed, list) else []
    known = [(str(i.get("action")), i["path"]) for i in items if isinstance(i.get("path"), str)]
    return [path for action in _RANK for given, path in known if given == action]


def _tagged(tags: tuple[str, str], text: str) -> str:
    return f"{tags[0]}\n{text}\n{tags[1]}"


def _block(text: str, tags: tuple[str, str]) -> str | None:
    """What stands between two tags, from the first opening to the last closing one."""
    begin, end = text.find(tags[0]), text.rfind(tags[1])
    return text[begin + len(tags[0]) : end].strip() if 0 <= begin < end else None
