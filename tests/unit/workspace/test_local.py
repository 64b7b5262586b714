"""The local workspace: paths stay inside, writes are whole, links swapped in are not followed."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vv_agent.errors import CannotServe, ConfigError, ToolError
from vv_agent.workspace import FileInfo, LocalWorkspaceBackend, WorkspaceBackend, open_workspace
from vv_agent.workspace.identity import ID_FILE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def workspace(root: Path) -> LocalWorkspaceBackend:
    return LocalWorkspaceBackend(root)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text("secret")
    return folder


def code(call: Callable[[], object]) -> str:
    with pytest.raises(ToolError) as caught:
        call()
    return caught.value.code


def test_what_is_written_is_read_back_and_counted_in_bytes(workspace: LocalWorkspaceBackend, root: Path) -> None:
    assert workspace.write_text("new/folder/a.txt", "größe\n") == 8
    assert workspace.read_text("new/folder/a.txt") == "größe\n"
    assert (root / "new/folder/a.txt").read_bytes() == "größe\n".encode()


def test_append_adds_to_the_end_and_creates_a_missing_file(workspace: LocalWorkspaceBackend) -> None:
    assert workspace.write_text("log", "one\r\n", append=True) == 5
    assert workspace.write_text("log", "two", append=True) == 3
    assert workspace.read_bytes("log") == b"one\r\ntwo"


def test_undecodable_bytes_are_replaced_in_text_and_kept_in_bytes(workspace: LocalWorkspaceBackend) -> None:
    workspace.write_bytes("b", b"a\xffb")
    assert workspace.read_text("b") == "a\ufffdb"
    assert workspace.read_bytes("b") == b"a\xffb"


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret.txt",
        "a/../../outside/secret.txt",
        "~",
        "~root",
        "a\0b",
        "\ud800",
        "link/secret.txt",
        "file-link",
    ],
)
def test_a_path_that_leads_out_is_refused_by_every_method(
    workspace: LocalWorkspaceBackend, root: Path, outside: Path, path: str
) -> None:
    (root / "link").symlink_to(outside)
    (root / "file-link").symlink_to(outside / "secret.txt")
    calls: list[Callable[[], object]] = [
        lambda: workspace.read_text(path),
        lambda: workspace.read_bytes(path),
        lambda: workspace.write_text(path, "x"),
        lambda: workspace.write_text(path, "x", append=True),
        lambda: workspace.write_bytes(path, b"x"),
        lambda: workspace.file_info(path),
        lambda: workspace.exists(path),
        lambda: workspace.is_file(path),
        lambda: workspace.mkdir(path),
        lambda: workspace.list_files(path, ""),
    ]
    assert {code(call) for call in calls} == {"path_escapes_workspace"}
    assert (outside / "secret.txt").read_text() == "secret"


def test_the_refusal_names_the_path_as_it_was_given(workspace: LocalWorkspaceBackend, outside: Path) -> None:
    with pytest.raises(ToolError) as caught:
        workspace.read_text(str(outside / "secret.txt"))
    assert caught.value.message == f"Path escapes workspace: {outside}/secret.txt"


def test_absolute_paths_and_links_are_fine_while_they_stay_inside(workspace: LocalWorkspaceBackend, root: Path) -> None:
    (root / "real").mkdir()
    (root / "link").symlink_to("real")
    workspace.write_text("link/a.txt", "x")
    assert (root / "real/a.txt").read_text() == "x"
    assert workspace.read_text(str(root / "real/../link/a.txt")) == "x"
    (root / "alias").symlink_to("real/a.txt")
    workspace.write_text("alias", "y")
    assert (root / "alias").is_symlink()
    assert (root / "real/a.txt").read_text() == "y"


def test_a_root_given_through_a_symlink_is_the_folder_it_names(tmp_path: Path, root: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    workspace = LocalWorkspaceBackend(tmp_path / "alias")
    workspace.write_text(str(tmp_path / "alias/a"), "x")
    assert workspace.root == root
    assert workspace.read_text("a") == "x"


class _Swapping(LocalWorkspaceBackend):
    """Between the check of a path and its use, somebody puts a symlink in its place."""

    def __init__(self, root: Path, swap: Callable[[], None]) -> None:
        super().__init__(root)
        self._swap = swap

    def _locate(self, path: str) -> tuple[str, ...]:
        parts = super()._locate(path)
        self._swap()
        return parts


@pytest.mark.parametrize("what", ["folder", "file"])
@pytest.mark.parametrize(
    "use",
    [
        lambda workspace: workspace.read_bytes("sub/secret.txt"),
        lambda workspace: workspace.write_bytes("sub/secret.txt", b"x"),
        lambda workspace: workspace.file_info("sub/secret.txt"),
    ],
    ids=["read", "write", "stat"],
)
def test_a_symlink_swapped_in_after_the_check_is_not_followed(
    root: Path, outside: Path, what: str, use: Callable[[WorkspaceBackend], object]
) -> None:
    (root / "sub").mkdir()
    (root / "sub/secret.txt").write_text("mine")

    def swap() -> None:
        (root / "sub/secret.txt").unlink()
        if what == "file":
            (root / "sub/secret.txt").symlink_to(outside / "secret.txt")
        else:
            (root / "sub").rmdir()
            (root / "sub").symlink_to(outside)

    assert code(lambda: use(_Swapping(root, swap))) == "path_escapes_workspace"
    assert (outside / "secret.txt").read_text() == "secret"
    assert os.listdir(outside) == ["secret.txt"]


def test_a_symlink_swapped_in_during_the_write_is_replaced_not_followed(
    workspace: LocalWorkspaceBackend, root: Path, outside: Path
) -> None:
    workspace.write_bytes("a", b"mine", before_rename=lambda: (root / "a").symlink_to(outside / "secret.txt"))
    assert (root / "a").read_bytes() == b"mine"
    assert not (root / "a").is_symlink()
    assert (outside / "secret.txt").read_text() == "secret"


def test_the_old_content_stays_until_the_rename(workspace: LocalWorkspaceBackend, root: Path) -> None:
    workspace.write_text("a", "old")
    seen = []
    workspace.write_bytes("a", b"new", before_rename=lambda: seen.append((root / "a").read_text()))
    assert seen == ["old"]
    assert workspace.read_text("a") == "new"


def test_a_write_that_is_called_off_leaves_nothing_behind(workspace: LocalWorkspaceBackend, root: Path) -> None:
    workspace.write_text("a", "old")

    def lost() -> None:
        raise RuntimeError("lease lost")

    with pytest.raises(RuntimeError, match="lease lost"):
        workspace.write_bytes("a", b"new", before_rename=lost)
    assert os.listdir(root) == ["a"]
    assert workspace.read_text("a") == "old"


def test_content_is_on_the_disk_before_it_becomes_visible(
    workspace: LocalWorkspaceBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("old")
    synced: list[tuple[int, int, str]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced.append((status.st_ino, status.st_size, (root / "a").read_text()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    workspace.write_bytes("a", b"newer")
    assert synced == [((root / "a").stat().st_ino, 5, "old")]


def test_a_replaced_file_keeps_its_mode_and_a_new_one_gets_the_usual(
    workspace: LocalWorkspaceBackend, root: Path
) -> None:
    (root / "run.sh").write_text("old")
    (root / "run.sh").chmod(0o750)
    workspace.write_text("run.sh", "new")
    workspace.write_text("plain", "new")
    (root / "made-by-python").touch()
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o750
    assert (root / "plain").stat().st_mode == (root / "made-by-python").stat().st_mode


def test_what_is_no_regular_file_is_refused_and_does_not_block(workspace: LocalWorkspaceBackend, root: Path) -> None:
    os.mkfifo(root / "pipe")
    workspace.mkdir("folder")
    workspace.write_text("file", "x")
    for path in ("pipe", "folder", "", ".", "file/below"):
        assert code(lambda path=path: workspace.read_bytes(path)) == "workspace_backend_error"
        assert code(lambda path=path: workspace.write_text(path, "x")) == "workspace_backend_error"
    assert code(lambda: workspace.mkdir("file")) == "workspace_backend_error"
    assert code(lambda: workspace.read_text("x" * 300)) == "workspace_backend_error"
    assert code(lambda: workspace.write_text("a", "\ud800")) == "invalid_arguments"


def test_a_missing_file_is_not_found(workspace: LocalWorkspaceBackend) -> None:
    with pytest.raises(ToolError) as caught:
        workspace.read_text("no/such")
    assert (caught.value.code, caught.value.message) == ("path_not_found", "path not found: no/such")
    assert workspace.file_info("no/such") is None
    assert not workspace.exists("no")
    assert not workspace.is_file("no")
    assert workspace.list_files("no", "") == []


def test_file_info_gives_the_canonical_path(workspace: LocalWorkspaceBackend, root: Path) -> None:
    workspace.write_text("sub/a.tar.gz", "x")
    (root / "link").symlink_to("sub/a.tar.gz")
    os.utime(root / "sub/a.tar.gz", (1.5, 1.5))
    expected = FileInfo("sub/a.tar.gz", True, False, 1, "1970-01-01T00:00:01.500000+00:00", ".gz")
    assert workspace.file_info("./sub//x/../a.tar.gz") == expected
    assert workspace.file_info("link") == expected
    folder = workspace.file_info("sub")
    assert folder is not None
    assert (folder.path, folder.is_dir, folder.suffix) == ("sub", True, "")
    top = workspace.file_info("")
    assert top is not None
    assert (top.path, top.is_dir) == (".", True)


def test_listing_is_sorted_relative_and_follows_no_links_out_or_in_circles(
    workspace: LocalWorkspaceBackend, root: Path, outside: Path
) -> None:
    for path in ("b.py", "a.txt", "sub/c.py", "sub/deep/d.py", ".hidden/e.py"):
        workspace.write_text(path, "x")
    (root / "sub/circle").symlink_to(root)
    (root / "out").symlink_to(outside)
    (root / "out.py").symlink_to(outside / "secret.txt")
    (root / "in.py").symlink_to("b.py")
    os.mkfifo(root / "pipe.py")
    assert workspace.list_files(".", "**/*.py") == [".hidden/e.py", "b.py", "in.py", "sub/c.py", "sub/deep/d.py"]
    assert workspace.list_files("sub", "*.py") == ["sub/c.py"]
    assert workspace.list_files("sub/circle/sub", "") == ["sub/c.py", "sub/deep/d.py"]
    assert workspace.list_files("a.txt", "") == []


def test_the_id_is_made_once_and_never_listed_or_overwritten(workspace: LocalWorkspaceBackend, root: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda _: LocalWorkspaceBackend(root).id, range(32)))
    assert len(ids) == 1
    assert re.fullmatch("[0-9a-f]{32}", str(workspace.id))
    assert os.listdir(root) == [ID_FILE]
    (root / f"{ID_FILE}.0123456789abcdef.tmp").write_text("left by a crash")
    assert workspace.list_files("", "") == []
    assert code(lambda: workspace.write_text(ID_FILE, "x")) == "workspace_backend_error"


@pytest.mark.parametrize("damage", ["empty", "link"])
def test_a_damaged_id_is_a_configuration_error(
    workspace: LocalWorkspaceBackend, root: Path, outside: Path, damage: str
) -> None:
    if damage == "empty":
        (root / ID_FILE).touch()
    else:
        (root / ID_FILE).symlink_to(outside / "secret.txt")
    with pytest.raises(ConfigError) as caught:
        _ = workspace.id
    assert caught.value.code == "workspace_id_invalid"


def test_a_root_that_is_read_only_has_no_id_and_stays_usable() -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a").write_text("x")
        Path(folder).chmod(0o555)
        if user == 0:
            os.seteuid(65534)  # the superuser may write anywhere
        try:
            workspace = LocalWorkspaceBackend(folder)
            assert workspace.id is None
            assert workspace.ref == f"local:{os.path.realpath(folder)}#"
            assert open_workspace(workspace.ref).read_text("a") == "x"
            assert code(lambda: workspace.write_text("b", "x")) == "workspace_backend_error"
        finally:
            os.seteuid(user)
            Path(folder).chmod(0o755)


def test_a_reference_opens_the_same_workspace_again(tmp_path: Path) -> None:
    workspace = LocalWorkspaceBackend(tmp_path / "made#here")
    ref = workspace.ref
    assert ref == f"local:{tmp_path}/made#here#{workspace.id}"
    workspace.write_text("a", "x")
    opened = open_workspace(ref)
    assert opened.read_text("a") == "x"
    assert opened.ref == ref


def test_a_reference_to_another_folder_cannot_be_served(tmp_path: Path, root: Path, outside: Path) -> None:
    wanted = LocalWorkspaceBackend(root).ref
    missing = wanted.replace("/root#", "/gone#")
    other = wanted.replace("/root#", "/outside#")
    read_only = f"local:{root}#"
    for ref in (missing, other, read_only, "local:relative#1", "nonsense", "local:/\0#1"):
        with pytest.raises(CannotServe) as caught:
            open_workspace(ref)
        assert caught.value.code == "workspace_unavailable"
    assert os.listdir(outside) == ["secret.txt"]
    assert open_workspace(f"local:{outside}#").read_text("secret.txt") == "secret"


def test_a_backend_with_only_the_eight_methods_can_replace_whole_files() -> None:
    class Dictionary(WorkspaceBackend):
        def __init__(self) -> None:
            self.files: dict[str, str] = {}

        def list_files(self, base: str, glob: str) -> list[str]:
            return sorted(self.files)

        def read_text(self, path: str) -> str:
            return self.files[path]

        def read_bytes(self, path: str) -> bytes:
            return self.files[path].encode()

        def write_text(self, path: str, content: str, *, append: bool = False) -> int:
            self.files[path] = content
            return len(content.encode())

        def file_info(self, path: str) -> FileInfo | None:
            return None

        def exists(self, path: str) -> bool:
            return path in self.files

        def is_file(self, path: str) -> bool:
            return path in self.files

        def mkdir(self, path: str) -> None:
            pass

    workspace = Dictionary()
    called: list[int] = []
    assert workspace.write_bytes("a", "ä".encode(), before_rename=lambda: called.append(len(workspace.files))) == 2
    assert (called, workspace.files, workspace.ref) == ([0], {"a": "ä"}, None)
    assert code(lambda: workspace.write_bytes("a", b"\xff")) == "unsupported_encoding"
