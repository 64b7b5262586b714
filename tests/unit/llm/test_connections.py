"""Connections belong to the process: warm across threads, never shared with a fork."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpcore
import pytest

from tests.fake_openai import FakeOpenAI
from tests.unit.llm.calling import model, request
from vv_agent.llm.base import collect
from vv_agent.llm.connection import CuttableBackend, SocketHold


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        yield fake


def test_a_thread_that_lives_for_one_call_finds_a_warm_connection(server: FakeOpenAI) -> None:
    client = model((server.url, "stream"))
    for _ in range(3):
        thread = threading.Thread(target=lambda: collect(client.stream(request())))
        thread.start()
        thread.join()
    assert [item.on_connection for item in server.requests] == [1, 2, 3]


def test_calls_at_the_same_time_have_connections_of_their_own(server: FakeOpenAI) -> None:
    client, answers = model((server.url, "slow")), []
    threads = [
        threading.Thread(target=lambda: answers.append(collect(client.stream(request())).content)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["".join(f"{number} " for number in range(20))] * 8
    assert [item.on_connection for item in server.requests].count(1) == 8


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_starts_with_no_connection_and_leaves_its_parents_alone(server: FakeOpenAI) -> None:
    client = model((server.url, "stream"))
    collect(client.stream(request()))
    child = os.fork()
    if child == 0:
        ok = False
        try:
            ok = collect(client.stream(request())).content == "Hello, wörld. 你好"
        finally:
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    collect(client.stream(request()))
    assert [item.on_connection for item in server.requests] == [1, 1, 2]


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl command to make a certificate")
def test_a_tls_stream_reads_writes_and_can_be_cut(tmp_path: Path) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += [
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        str(tmp_path / "key"),
        "-out",
        str(tmp_path / "cert"),
    ]
    subprocess.run(made, check=True, capture_output=True)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with serving.wrap_socket(listener.accept()[0], server_side=True) as peer:
                peer.sendall(peer.recv(100).upper())
                peer.recv(100)

        thread = threading.Thread(target=serve)
        thread.start()
        backend, hold = CuttableBackend(), SocketHold()
        backend.current = hold
        plain = backend.connect_tcp("127.0.0.1", listener.getsockname()[1], 5)
        stream = plain.start_tls(ssl.create_default_context(cafile=str(tmp_path / "cert")), "localhost", 5)
        stream.write(b"hello", 5)
        assert stream.read(100, 5) == b"HELLO"
        assert (hold.fresh, hold.sent, hold.received) == (True, True, True)
        assert isinstance(stream.get_extra_info("ssl_object"), ssl.SSLSocket)
        threading.Timer(0.05, hold.cut).start()
        with suppress(httpcore.ReadError):
            assert stream.read(100, 5) == b""
        thread.join()
        stream.close()
