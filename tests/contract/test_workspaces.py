"""What every workspace promises, on each of them: a folder, memory, and S3 behind moto's server over HTTP."""

from __future__ import annotations

import re
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import servers
from tests.contract.aside import Cases
from tests.contract.fixtures import load
from vv_agent.errors import CannotServe, ConfigError, ToolError
from vv_agent.workspace import (
    DiscoveryFilteredWorkspaceBackend,
    InvalidPortableRegexError,
    LocalWorkspaceBackend,
    MemoryWorkspaceBackend,
    S3WorkspaceBackend,
    WorkspaceBackend,
    open_workspace,
)

FIXTURE = load("configured_sub_agent.json")
FILTER = FIXTURE["workspace_filter"]
CASES = Cases("configured_sub_agent.json")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> S3WorkspaceBackend:
    """A new bucket; the credentials are those of the environment."""
    return bucket(monkeypatch)


def bucket(monkeypatch: pytest.MonkeyPatch, through: str | None = None) -> S3WorkspaceBackend:
    url = servers.s3_url()
    if url is None:
        pytest.skip(servers.MISSING["s3"])
    for name, value in {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    name = f"test-{uuid.uuid4().hex[:12]}"
    S3WorkspaceBackend(name, endpoint_url=url, addressing_style="path").client.create_bucket(Bucket=name)
    return S3WorkspaceBackend(name, "runs/one", endpoint_url=through or url, addressing_style="path")


@pytest.fixture(params=["local", "memory", "s3", "filtered"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> WorkspaceBackend:
    if request.param == "local":
        return LocalWorkspaceBackend(tmp_path / "root")
    if request.param == "filtered":
        return DiscoveryFilteredWorkspaceBackend(LocalWorkspaceBackend(tmp_path / "root"), "^never$")
    return MemoryWorkspaceBackend() if request.param == "memory" else request.getfixturevalue("s3")


def code(call: object) -> str:
    assert callable(call)
    with pytest.raises(ToolError) as caught:
        call()
    return caught.value.code


def test_what_is_written_is_read_back(workspace: WorkspaceBackend) -> None:
    assert workspace.write_text("new/folder/a.txt", "größe\r\n") == 9
    assert workspace.read_text("new/folder/a.txt") == "größe\r\n"
    assert workspace.read_bytes("./new//folder/a.txt") == "größe\r\n".encode()
    workspace.write_text("new/folder/a.txt", "short")
    assert workspace.read_text("new/folder/a.txt") == "short"


def test_append_adds_to_the_end_and_creates_a_missing_file(workspace: WorkspaceBackend) -> None:
    assert workspace.write_text("log", "one\r\n", append=True) == 5
    assert workspace.write_text("log", "two", append=True) in (3, 8)  # S3 answers with the whole length
    assert workspace.read_bytes("log") == b"one\r\ntwo"


def test_bytes_are_kept_and_text_has_them_replaced(workspace: WorkspaceBackend) -> None:
    assert workspace.write_bytes("b", b"a\xffb\0") == 4
    assert workspace.read_bytes("b") == b"a\xffb\0"
    assert workspace.read_text("b") == "a\ufffdb\0"
    assert code(lambda: workspace.write_text("b", "\ud800")) == "invalid_arguments"


def test_a_write_that_is_called_off_at_the_last_moment_changes_nothing(workspace: WorkspaceBackend) -> None:
    workspace.write_text("a", "old")

    def lost() -> None:
        raise RuntimeError("lease lost")

    with pytest.raises(RuntimeError, match="lease lost"):
        workspace.write_bytes("a", b"new", before_rename=lost)
    assert workspace.read_text("a") == "old"
    assert workspace.list_files("", "") == ["a"]


def test_what_is_not_there_is_not_found(workspace: WorkspaceBackend) -> None:
    with pytest.raises(ToolError) as caught:
        workspace.read_text("no/such")
    assert (caught.value.code, caught.value.message) == ("path_not_found", "path not found: no/such")
    assert workspace.file_info("no/such") is None
    assert not workspace.exists("no/such")
    assert not workspace.is_file("no/such")
    assert workspace.list_files("no", "") == []


def test_file_info_says_what_is_there(workspace: WorkspaceBackend) -> None:
    workspace.mkdir("sub/deep")
    workspace.mkdir("sub/deep")
    workspace.write_text("sub/a.tar.gz", "123")
    info = workspace.file_info("./sub//x/../a.tar.gz")
    assert info is not None
    assert (info.path, info.is_file, info.is_dir, info.size, info.suffix) == ("sub/a.tar.gz", True, False, 3, ".gz")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", info.modified_at)
    assert workspace.is_file("sub/a.tar.gz")
    if isinstance(workspace, S3WorkspaceBackend):  # it has no folders
        assert workspace.file_info("sub") is None
    else:
        folder = workspace.file_info("sub")
        assert folder is not None
        assert (folder.is_dir, folder.is_file) == (True, False)
        assert workspace.exists("sub/deep")


def test_the_root_is_no_file(workspace: WorkspaceBackend) -> None:
    for path in ("", ".", "a/.."):
        assert code(lambda path=path: workspace.read_bytes(path)) == "workspace_backend_error"
        assert code(lambda path=path: workspace.write_text(path, "x")) == "workspace_backend_error"
        assert not workspace.is_file(path)


def test_files_are_listed_sorted_and_by_their_glob(workspace: WorkspaceBackend) -> None:
    paths = ["a/b.py", "a-b.py", "a.py", "a/c/d.py", "z.txt", "ä.py"]
    for path in paths:
        workspace.write_text(path, "x")
    assert workspace.list_files(".", "") == sorted(paths)
    assert workspace.list_files(".", "**/*.py") == sorted(paths[:-2] + paths[-1:])
    assert workspace.list_files(".", "*.py") == ["a-b.py", "a.py", "ä.py"]
    assert workspace.list_files("a", "**\\*.py") == ["a/b.py", "a/c/d.py"]
    assert workspace.list_files("a/c", "?.py") == ["a/c/d.py"]
    assert [found.path for found in workspace.walk("")] == sorted(paths)
    assert {found.size for found in workspace.walk("a")} <= {0, 1}
    assert next(iter(workspace.walk("a"))).path == "a/b.py"


@pytest.mark.parametrize(
    "path", ["../secret", "../../etc/passwd", "/etc/passwd", "a/../../secret", "~/secret", "a\0b", "\ud800"]
)
def test_a_hostile_path_is_refused_or_stays_inside(workspace: WorkspaceBackend, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("secret")
    with suppress(ToolError):
        assert workspace.read_text(path) not in ("secret", Path("/etc/passwd").read_text())
    with suppress(ToolError):
        workspace.write_text(path, "mine")
    with suppress(ToolError):
        workspace.mkdir(path)
    assert (tmp_path / "secret").read_text() == "secret"
    assert "mine" not in Path("/etc/passwd").read_text()
    with suppress(ToolError):
        workspace.list_files(path, "")
    with suppress(ToolError):
        list(workspace.walk(path))
    assert {item.name for item in tmp_path.iterdir()} <= {"root", "secret"}


def test_many_writers_of_one_file_leave_one_of_their_contents(workspace: WorkspaceBackend) -> None:
    texts = [str(n) * 10_000 for n in range(8)]
    threads = [threading.Thread(target=workspace.write_text, args=("a", text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert workspace.read_text("a") in texts


# What is special to one of them.


def test_memory_cannot_be_named_and_says_why() -> None:
    assert MemoryWorkspaceBackend().ref is None
    assert "no other process" in MemoryWorkspaceBackend().remedy


def test_in_memory_a_file_is_no_folder() -> None:
    workspace = MemoryWorkspaceBackend()
    workspace.write_text("a", "x")
    assert code(lambda: workspace.write_text("a/b", "x")) == "workspace_backend_error"
    assert code(lambda: workspace.mkdir("a")) == "workspace_backend_error"
    workspace.write_text("d/e", "x")
    assert code(lambda: workspace.write_text("d", "x")) == "workspace_backend_error"


def test_outside_access_reaches_absolute_paths_on_a_folder_only(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a.txt").write_text("x")
    inside = LocalWorkspaceBackend(tmp_path / "root")
    inside.write_text("b.txt", "y")
    (tmp_path / "root/link").symlink_to(tmp_path / "out")
    there = str(tmp_path / "out/a.txt")
    for given in (inside, DiscoveryFilteredWorkspaceBackend(inside, "^never$")):
        assert code(lambda given=given: given.read_text(there)) == "path_escapes_workspace"
        wide = given.outside()
        assert wide.read_text(there) == wide.read_text("../out/a.txt") == wide.read_text("link/a.txt") == "x"
        assert wide.list_files("../out", "*.txt") == [there]
        assert wide.list_files(".", "") == ["b.txt", "link/a.txt"] or wide.list_files(".", "") == ["b.txt"]
        info = wide.file_info("../out/a.txt")
        assert info is not None
        assert info.path == there
        assert wide.file_info("/") is not None
    memory = MemoryWorkspaceBackend()
    assert memory.outside() is memory


def test_a_bucket_is_named_without_credentials_and_opened_elsewhere(s3: S3WorkspaceBackend) -> None:
    s3.write_text("a b/ü.txt", "x")
    assert s3.ref is not None
    assert "secret" not in s3.ref
    opened = open_workspace(s3.ref)
    assert isinstance(opened, S3WorkspaceBackend)
    assert opened.read_text("a b/ü.txt") == "x"
    assert opened.ref == s3.ref
    assert S3WorkspaceBackend("b", aws_access_key_id="i", aws_secret_access_key="hidden").ref is None
    narrowed = DiscoveryFilteredWorkspaceBackend(s3, "^a|b/")
    assert narrowed.ref is not None
    again = open_workspace(narrowed.ref)
    assert isinstance(again, DiscoveryFilteredWorkspaceBackend)
    assert (again.pattern, again.ref) == (narrowed.pattern, narrowed.ref)


@pytest.mark.parametrize("ref", ["s3:?x", "s3:b/?unknown=1", "s3:b/?style=x", "nfs:x", "filtered:a|nfs:x", "local:x"])
def test_a_name_of_another_version_cannot_be_served_here(ref: str) -> None:
    with pytest.raises(CannotServe) as caught:
        open_workspace(ref)
    assert caught.value.code == "workspace_unavailable"


def test_a_wrong_bucket_or_style_is_refused_at_once() -> None:
    for arguments in ({"bucket": " "}, {"bucket": "b", "addressing_style": "dns"}):
        with pytest.raises(ConfigError) as caught:
            S3WorkspaceBackend(**arguments)
        assert caught.value.code == "workspace_invalid"


def test_a_bucket_that_is_not_there_is_a_clear_error(s3: S3WorkspaceBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    other = S3WorkspaceBackend("no-such-bucket", endpoint_url=servers.s3_url(), addressing_style="path")
    with pytest.raises(ToolError, match="no-such-bucket") as caught:
        other.write_text("a", "x")
    assert caught.value.code == "workspace_backend_error"


class Fault:
    """A TCP proxy before a server; once armed it cuts every connection that sends a PUT, within the request or
    instead of the answer."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._upstream = (host, int(port))
        self.armed: str | None = None
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._upstream) as server:
            cutting = threading.Event()
            threading.Thread(target=self._back, args=(server, client, cutting), daemon=True).start()
            passed = 0
            while data := client.recv(65536):
                if data.startswith(b"PUT") and self.armed:
                    cutting.set()
                passed += len(data)
                if cutting.is_set() and self.armed == "request" and passed > 200_000:
                    self.cuts += 1
                    return
                server.sendall(data)

    def _back(self, server: socket.socket, client: socket.socket, cutting: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if cutting.is_set() and self.armed == "answer" and b"HTTP/1.1 2" in data:
                    self.cuts += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)


@pytest.fixture
def fault() -> Iterator[Fault]:
    if (url := servers.s3_url()) is None:
        pytest.skip(servers.MISSING["s3"])
    made = Fault(url)
    yield made
    made.close()


@pytest.mark.parametrize("where", ["request", "answer"])
def test_a_connection_cut_in_an_append_leaves_the_old_or_the_new_file(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    workspace = bucket(monkeypatch, through=fault.url)
    workspace.write_text("log", "old\n")
    fault.armed = where
    with pytest.raises(ToolError, match="did not answer for log in bucket") as caught:
        workspace.write_text("log", "x" * 1_000_000, append=True)
    assert (caught.value.code, caught.value.retryable) == ("workspace_backend_error", True)
    assert fault.cuts >= 1
    fault.armed = None
    assert workspace.read_text("log") == ("old\n" if where == "request" else "old\n" + "x" * 1_000_000)


# The filter of listings.


@pytest.mark.parametrize("case", FILTER["portable_cases"]["accepted"], ids=lambda case: case["pattern"])
def test_a_portable_pattern_hides_what_it_matches(case: dict[str, object]) -> None:
    with CASES.run(f"workspace_filter/{case['pattern']}"):
        from vv_agent.workspace.portable import compiled

        matches = compiled(str(case["pattern"]))
        assert [path for path in case["matches"] if not matches(path)] == []  # type: ignore[attr-defined]
        assert [path for path in case["misses"] if matches(path)] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "pattern", [*FILTER["portable_cases"]["rejected"], "(", "a{99999}{9}", "(?:a{999}){999}", "[z-a]"]
)
def test_a_pattern_that_is_not_portable_is_refused(pattern: str) -> None:
    with CASES.run(f"workspace_filter/rejected/{pattern}"), pytest.raises(InvalidPortableRegexError) as caught:
        DiscoveryFilteredWorkspaceBackend(MemoryWorkspaceBackend(), pattern)
    assert caught.value.code == FILTER["invalid_error_code"]
    assert caught.value.message == FILTER["invalid_message"]


def test_listings_leave_out_what_the_filter_hides_and_paths_still_work() -> None:
    with CASES.run("workspace_filter/paths"):
        inner = MemoryWorkspaceBackend()
        for path in FILTER["visible_paths"] + FILTER["excluded_paths"]:
            inner.write_text(path, "x")
        workspace = DiscoveryFilteredWorkspaceBackend(inner, FILTER["pattern"])
        assert workspace.list_files("", "") == FILTER["visible_paths"]
        assert [found.path for found in workspace.walk("")] == FILTER["visible_paths"]
        assert all(workspace.read_text(path) == "x" for path in FILTER["excluded_paths"])


class Raw(MemoryWorkspaceBackend):
    def list_files(self, base: str, glob: str) -> list[str]:
        return list(FILTER["custom_backend_path_normalization"]["raw_paths"])


def test_paths_of_a_foreign_backend_are_normalised_to_be_matched_and_shown_as_they_are() -> None:
    case = FILTER["custom_backend_path_normalization"]
    with CASES.run("workspace_filter/normalisation"):
        assert DiscoveryFilteredWorkspaceBackend(Raw(), case["pattern"]).list_files("", "") == case["visible_paths"]
        assert DiscoveryFilteredWorkspaceBackend(Raw(), "^other$").list_files("", "") == case["raw_paths"]


def test_a_catastrophic_filter_ends_with_an_error() -> None:
    workspace = DiscoveryFilteredWorkspaceBackend(MemoryWorkspaceBackend(), "^(([a-z])+.)+[A-Z]([a-z])+$")
    workspace.write_text("a" * 5000 + "b", "x")
    assert code(lambda: workspace.list_files("", "")) == "invalid_exclude_files_pattern"
