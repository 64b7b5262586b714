"""Code by import path: how an object is named in a definition, and what a worker may load by such a name.

A reference is `module:qualname`. It names one object: what `name_of` returns, `load` resolves to the same object in
another process. Its version is "1" unless the object sets `__vv_version__`; an object that no rule below can name may
carry its reference itself, as the string `__vv_ref__`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Sequence
from types import MethodType, ModuleType
from typing import Any

from vv_agent.errors import ReferenceInvalid

_REFERENCE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*\Z")
_PLAIN_DATA = (str, bytes, int, float, complex, tuple, list, dict, set, frozenset, type(None), ModuleType)
_MOVE = "move it to the top level of a module, or give it a string __vv_ref__ = 'module:name'"


def name_of(obj: Any) -> str | None:
    """The reference of an object, or None when another process could not find it (`why_unnamed` says why).

    In this order: the string `__vv_ref__`; functions and classes under their own module and qualified name; an
    object that wraps a function (`__wrapped__`) and stands in its place; any other object that is a global of an
    imported module. Objects of the running script are named through the module of its file. Plain data has no name.
    """
    return _naming(obj)[0]


def why_unnamed(obj: Any) -> str:
    """One sentence for the developer: why `name_of` gave None, and what to do."""
    return _naming(obj)[1]


def version_of(obj: Any) -> str:
    """The version of an object's behaviour: its `__vv_version__`, else "1"."""
    version = getattr(obj, "__vv_version__", None)
    return version if isinstance(version, str) and version.strip() else "1"


def load(ref: str, allowed: Sequence[str]) -> Any:
    """The object a reference names, from `vv_agent` or a module the operator allows (a name allows its submodules).

    Raises `ReferenceInvalid` with `reference_not_allowed` before anything is imported, or `reference_unresolved` for
    text that is no reference, a module that does not import, or a name that is not there. An allowed module does not
    lend out what it merely imported: a function or class must itself be defined in an allowed module, and the path
    goes through classes only.
    """
    if not isinstance(ref, str) or _REFERENCE.match(ref) is None:
        raise _unresolved(ref, "it is not of the form module:qualname")
    module_name, _, path = ref.partition(":")
    if not _is_allowed(module_name, allowed):
        raise _not_allowed(ref, f"module {module_name!r} is not allowed here", module_name)
    obj: Any = _module(module_name, ref)
    for position, step in enumerate(path.split(".")):
        if position and not isinstance(obj, type):
            raise _unresolved(ref, f"the path goes through {type(obj).__name__!r}, which is not a class")
        try:
            obj = getattr(obj, step)
        except AttributeError:
            raise _unresolved(ref, f"module {module_name!r} has no {path!r}") from None
    home = _home(obj)
    if home is not None and home != "__main__" and not _is_allowed(home, allowed):
        raise _not_allowed(ref, f"it is defined in module {home!r}", home)
    return obj


def _home(obj: Any) -> str | None:
    """The module that must be allowed for this object beside the one it was found in."""
    if isinstance(obj, ModuleType):
        return obj.__name__
    if isinstance(obj, type) or inspect.isroutine(obj):
        return getattr(obj, "__module__", None) or "builtins"
    return None


def _is_allowed(module: str, allowed: Sequence[str]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in ("vv_agent", *allowed))


def _module(name: str, ref: str) -> ModuleType:
    main = sys.modules.get("__main__")
    if main is not None and _script_module(main) == name:
        return main  # importing the running script again would run it again
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        cause = f"{type(error).__name__}: {error}"
        raise _unresolved(ref, f"module {name!r} did not import ({cause})") from error


def _unresolved(ref: Any, problem: str) -> ReferenceInvalid:
    return ReferenceInvalid(
        "reference_unresolved",
        f"reference {ref!r}: {problem}; make the module importable for the worker, or start the run again with code "
        "that is there",
        reference=ref,
    )


def _not_allowed(ref: str, problem: str, module: str) -> ReferenceInvalid:
    return ReferenceInvalid(
        "reference_not_allowed",
        f"reference {ref!r}: {problem}; add {module!r} to VV_AGENT_IMPORTS if you trust it, or move the object to an "
        "allowed module",
        reference=ref,
    )


def _naming(obj: Any) -> tuple[str | None, str]:
    """The reference and "", or None and the reason."""
    if not isinstance(obj, type) and isinstance(given := getattr(obj, "__vv_ref__", None), str):
        if _REFERENCE.match(given):
            return given, ""
        return None, f"its __vv_ref__ {given!r} is not of the form module:qualname"
    if isinstance(obj, _PLAIN_DATA):
        return None, f"{type(obj).__name__} is plain data, not code; give a reference for it"
    if isinstance(obj, type) or inspect.isroutine(obj):
        return _by_qualname(obj, obj)
    if inspect.isroutine(wrapped := getattr(obj, "__wrapped__", None)):
        name, reason = _by_qualname(wrapped, obj)
        if name is not None:
            return name, reason
    return _by_identity(obj)


def _by_qualname(named: Any, obj: Any) -> tuple[str | None, str]:
    module_name, qualname = getattr(named, "__module__", None), getattr(named, "__qualname__", "")
    if not isinstance(module_name, str) or (module := sys.modules.get(module_name)) is None:
        return None, f"{qualname or obj!r} belongs to no imported module; {_MOVE}"
    if "<" in qualname:
        kind = "a lambda" if qualname.endswith("<lambda>") else "defined inside a function"
        return None, f"{qualname} is {kind}, no other process can find it; {_MOVE}"
    found: Any = module
    for step in qualname.split("."):
        found = getattr(found, step, None)
    if found is not obj and not (isinstance(obj, MethodType) and found == obj):
        return None, f"{module_name}:{qualname} is another object than this one; {_MOVE}"
    return _under(module, qualname)


_found: dict[int, tuple[ModuleType, str]] = {}  # by id, and true while the global is still that object


def _by_identity(obj: Any) -> tuple[str | None, str]:
    if (place := _found.get(id(obj))) is not None and vars(place[0]).get(place[1]) is obj:
        return _under(*place)
    places = [
        (module, name)
        for module in list(sys.modules.values())
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is obj and name.isidentifier()
    ]
    if not places:
        return None, f"this {type(obj).__name__} is no global of an imported module; {_MOVE}"
    if len(places) > 1:
        places = [place for place in places if _binds(*place)] or places
    place = min(places, key=lambda place: (place[0].__name__ == "__main__", place[0].__name__, place[1]))
    _found[id(obj)] = place
    return _under(*place)


def _binds(module: ModuleType, name: str) -> bool:
    """Whether the module's source makes the global itself; a module that only imported it must not give its name,
    or the name would depend on who else was imported."""
    try:
        source = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    return not any(
        (alias.asname or alias.name) in (name, "*")
        for statement in ast.walk(source)
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for alias in statement.names
    )


def _under(module: ModuleType, qualname: str) -> tuple[str | None, str]:
    if module.__name__ != "__main__":
        return f"{module.__name__}:{qualname}", ""
    if (name := _script_module(module)) is not None:
        return f"{name}:{qualname}", ""
    return None, (
        f"{qualname} is defined in the running script, which no worker can import; {_MOVE}, or start the script from "
        "a file in a folder on the import path"
    )


def _script_module(main: ModuleType) -> str | None:
    """The name under which the running script's file can be imported; None for a shell, `-c` or a foreign name."""
    path = getattr(main, "__file__", None)
    if path is None:
        return None
    spec = getattr(main, "__spec__", None)
    name = spec.name if spec is not None else os.path.splitext(os.path.basename(path))[0]
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    try:
        found = importlib.util.find_spec(name)
        same = found is not None and found.origin is not None and os.path.samefile(found.origin, path)
    except (ImportError, ValueError, OSError):
        return None
    return name if same else None
