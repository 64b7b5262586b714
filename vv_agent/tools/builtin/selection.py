"""Which files `find_files` and `search_files` consider, and which they leave out unless they are asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vv_agent.errors import ToolError
from vv_agent.tools.base import Arguments
from vv_agent.workspace.base import FileInfo, WorkspaceBackend
from vv_agent.workspace.glob import matcher
from vv_agent.workspace.ignored import Ignored
from vv_agent.workspace.memory import key


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


IGNORED_ROOTS = _words(
    ".venv venv node_modules .git __pycache__ .pytest_cache .mypy_cache .ruff_cache .idea .vscode dist build .next "
    ".nuxt .cache target vendor"
)
"""Folders of the workspace's root that hold dependencies, caches and products, in lower case."""
_SENSITIVE = _words(".env .npmrc .pypirc .netrc credentials id_rsa id_dsa id_ecdsa id_ed25519")
_SENSITIVE_SUFFIXES = (".env", ".key", ".pem", ".p8", ".p12", ".pfx")
_EXAMPLES = frozenset({".env.example", ".env.sample", ".env.template"})
_SECRET_FOLDERS = _words(".config config configs keys secrets .ssh .aws .gcp")
_SECRET_WORDS = re.compile("credential|secret|token|private_key")


@dataclass
class Selection:
    """The files below `base` (as the model wrote it) that one call is about.

    `info` is what is at `base`; a file there is taken whatever the other rules say, unless it is sensitive.
    """

    workspace: WorkspaceBackend
    base: str
    info: FileInfo | None
    glob: str = "**/*"
    include_hidden: bool = False
    include_ignored: bool = False
    include_sensitive: bool = False
    ignored_roots: list[str] = field(default_factory=list)
    """The ignored folders of the root that were met."""

    def __post_init__(self) -> None:
        root = self.info.path if self.info is not None else key(self.base)
        self.root = "" if root in (".", "") else root
        """The canonical path of the base."""
        self._prefix = self.root.rstrip("/") + "/" if self.root else ""
        self._matches = None if self.glob.strip() in ("", "**", "**/*") else matcher(self.glob)
        applies = self.workspace.folder is not None and not self.include_ignored and not self.root.startswith("/")
        self._ignored = Ignored(self.workspace, self.root) if applies and not self.is_file else None
        self._rules_above = self._ignored is not None and self._ignored.applies_above(self.root)
        self._takes_roots = self._ignored is not None and not self.root

    @classmethod
    def of(cls, workspace: WorkspaceBackend, arguments: Arguments) -> Selection:
        """What the arguments select. `ToolError` `path_not_found` when nothing is there."""
        base = arguments.get("path", ".").strip() or "."
        info = workspace.file_info(base)
        names = ("glob", "include_hidden", "include_ignored", "include_sensitive")
        selection = cls(workspace, base, info, **{name: arguments[name] for name in names if name in arguments})
        if info is None and base != "." and next(iter(workspace.walk(base)), None) is None:  # storage without folders
            raise ToolError(f"path not found: {base}", "path_not_found", path=base)
        return selection

    @property
    def is_file(self) -> bool:
        return self.info is not None and self.info.is_file

    def enters(self, folder: str) -> bool:
        """Whether files below this folder can be selected at all; notes the ignored roots."""
        if self._takes_roots and "/" not in folder and folder.lower() in IGNORED_ROOTS:
            self.ignored_roots.append(folder)
            return False
        return self._shows(folder) and not (self._ignored is not None and self._ignored.folder(folder))

    def takes(self, path: str) -> bool:
        """Whether a file met on a walk that asked `enters` belongs to the selection, sensitive or not."""
        if not self._shows(path):
            return False
        if self._matches is not None and not self._matches(path[len(self._prefix) :]):
            return False
        return self._ignored is None or not self._ignored.file(path)

    def fits(self, path: str) -> bool:
        """Whether a file that ripgrep met belongs to the selection; it knows of `.gitignore` files from the base
        down."""
        if not self._shows(path) or not self.workspace.shows(path):
            return False
        if self._matches is not None and not self._matches(path[len(self._prefix) :]):
            return False
        return not self._rules_above or self._ignored is None or not self._ignored.file(path)

    def hides(self, path: str) -> bool:
        """Whether a file is left out because of what it may hold."""
        return not self.include_sensitive and sensitive(path)

    def _shows(self, path: str) -> bool:
        below = path[len(self._prefix) :]
        return self.include_hidden or not (below.startswith(".") or "/." in below)


def sensitive(path: str) -> bool:
    """Whether a file's name says that it holds credentials."""
    name = path[path.rfind("/") + 1 :].lower()
    if name in _SENSITIVE or name.startswith((".env.", "secret.", "secrets.")) or name.endswith(_SENSITIVE_SUFFIXES):
        return name not in _EXAMPLES
    return _SECRET_WORDS.search(name) is not None and not _SECRET_FOLDERS.isdisjoint(path.lower().split("/")[:-1])


TYPES: dict[str, tuple[str, ...]] = {
    "c": ("*.c", "*.h"),
    "cpp": ("*.cpp", "*.cc", "*.cxx", "*.hpp", "*.hh", "*.hxx", "*.h"),
    "css": ("*.css", "*.scss", "*.sass", "*.less"),
    "dockerfile": ("Dockerfile", "Dockerfile.*", "*.dockerfile"),
    "go": ("*.go",),
    "html": ("*.html", "*.htm"),
    "ini": ("*.ini", "*.cfg", "*.conf"),
    "java": ("*.java",),
    "js": ("*.js", "*.jsx", "*.mjs", "*.cjs"),
    "json": ("*.json", "*.jsonl"),
    "log": ("*.log",),
    "makefile": ("Makefile", "makefile", "GNUmakefile", "*.mk"),
    "md": ("*.md", "*.markdown"),
    "php": ("*.php",),
    "py": ("*.py", "*.pyi"),
    "rb": ("*.rb",),
    "rs": ("*.rs",),
    "sh": ("*.sh", "*.bash", "*.zsh"),
    "sql": ("*.sql",),
    "ts": ("*.ts", "*.tsx", "*.mts", "*.cts"),
    "txt": ("*.txt",),
    "xml": ("*.xml", "*.xsd", "*.xsl"),
    "yaml": ("*.yaml", "*.yml"),
}
"""The file types of `search_files`, as patterns of names."""
BINARY = _words(
    ".png .jpg .jpeg .gif .webp .bmp .ico .tiff .pdf .zip .gz .tgz .bz2 .xz .zst .7z .rar .tar .jar .class .war "
    ".pyc .pyo .so .dylib .dll .exe .bin .o .a .lib .obj .wasm .woff .woff2 .ttf .otf .eot .mp3 .mp4 .avi .mov "
    ".mkv .wav .flac .ogg .sqlite .sqlite3 .db .parquet .npy .npz .pkl "
)
"""Suffixes of files that are no text."""


def names_of(kind: str | None) -> Callable[[str], bool]:
    """Whether a path is of a file type; without one, whether it may be text. `ToolError` for an unknown type."""
    if not kind:
        return lambda path: path[path.rfind(".") :].lower() not in BINARY
    if kind not in TYPES:
        raise ToolError(f"unknown type {kind!r}; there are {', '.join(TYPES)}", "invalid_arguments")
    patterns = [matcher(pattern) for pattern in TYPES[kind]]
    return lambda path: any(matches(path[path.rfind("/") + 1 :]) for matches in patterns)


def shown_roots(roots: list[str]) -> list[dict[str, Any]]:
    """How a result names the ignored folders."""
    return [{"path": root} for root in sorted(roots)]
