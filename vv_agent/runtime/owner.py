"""The identity of a process that holds claims, and whether such a process is still alive.

An owner is `host/pid/start`. The host is the kernel's boot id with the pid namespace, so that a pid means the same
thing to everybody who compares it; where neither can be read (not Linux) the host is a random text and the lease
decides.
"""

from __future__ import annotations

import os
import uuid
from functools import lru_cache
from pathlib import Path


def process_owner() -> str:
    """This process as an owner."""
    return _owner(os.getpid())


def process_host() -> str:
    """This process's host, the first part of its owner."""
    return _host()


def is_dead(owner: str) -> bool:
    """True only if the owner was on this host and certainly is no more: no such process, a zombie, or a pid that
    another process has now. A process we may not look at is alive."""
    host, _, rest = owner.partition("/")
    pid, _, start = rest.partition("/")
    if host != _host() or not pid.isdigit():
        return False
    found = _start_of(int(pid))
    if found is None:
        return not _exists(int(pid))
    return found != start


@lru_cache(maxsize=4)
def _owner(pid: int) -> str:
    return f"{_host()}/{pid}/{_start_of(pid) or uuid.uuid4().hex[:12]}"


@lru_cache(maxsize=1)
def _host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        return f"local-{uuid.uuid4().hex[:12]}"
    return f"{boot[:18]}-{space.strip('pid:[]')}"


def _start_of(pid: int) -> str | None:
    """The start time of a process in clock ticks since boot; "zombie" for one that only waits to be collected."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "zombie" if fields[0] in "ZX" else fields[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
