"""Node and the TypeScript compiler for tests; where there is none, the last lines of the session say so."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests import servers

TYPESCRIPT = "typescript@5.9.3"
_HOME = Path(__file__).resolve().parents[1] / "target" / "node"


@cache
def missing() -> str | None:
    """Why no TypeScript can be compiled here; the compiler is installed once, below target/."""
    why = None
    if shutil.which("node") is None:
        why = "there is no node on this machine"
    elif not tsc().exists():
        _HOME.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(_HOME), TYPESCRIPT]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            why = None if done.returncode == 0 else f"npm could not install {TYPESCRIPT}: {done.stderr.strip()[-200:]}"
        except (OSError, subprocess.TimeoutExpired) as error:
            why = f"npm could not install {TYPESCRIPT}: {error}"
    if why is not None:
        servers.MISSING["node"] = why
    return why


def tsc() -> Path:
    return _HOME / "node_modules" / "typescript" / "bin" / "tsc"


def compiled(folder: Path, *options: str) -> None:
    """Compile every .ts file of a folder, each one strictly; fails with what the compiler says."""
    files = sorted(str(path) for path in folder.glob("*.ts"))
    command = [
        "node",
        str(tsc()),
        "--strict",
        "--target",
        "es2022",
        "--lib",
        "es2022",
        "--skipLibCheck",
        "--module",
        "commonjs",
        *options,
        *files,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
