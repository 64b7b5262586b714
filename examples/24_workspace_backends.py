"""The same task on files in a folder, in memory, and in a bucket.

For the bucket set VV_AGENT_EXAMPLE_S3_BUCKET, perhaps VV_AGENT_EXAMPLE_S3_ENDPOINT, and the credentials of the AWS
environment; `pip install 'vv-agent[s3]'`.
"""

import os
import tempfile

from support import fail, runner, show

from vv_agent import Agent, RunConfig
from vv_agent.testing import call
from vv_agent.workspace import (
    DiscoveryFilteredWorkspaceBackend,
    LocalWorkspaceBackend,
    MemoryWorkspaceBackend,
    S3WorkspaceBackend,
    WorkspaceBackend,
)

agent = Agent(name="writer", instructions="Write notes.txt with the word milk in it, then task_finish.")


def write(files: WorkspaceBackend) -> None:
    """Let the agent write a file and look at it."""
    print(type(files).__name__)
    result = runner(
        call("write_file", {"path": "notes.txt", "content": "milk\n"}), call("task_finish", {"message": "Noted."})
    ).run_sync(agent, "Note: milk.", run_config=RunConfig(workspace_backend=files))
    if "milk" not in files.read_text("notes.txt"):
        fail("the file is not there")
    show(result)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(LocalWorkspaceBackend(folder))
    write(MemoryWorkspaceBackend())
    write(DiscoveryFilteredWorkspaceBackend(MemoryWorkspaceBackend(), r"^generated/"))
    if bucket := os.environ.get("VV_AGENT_EXAMPLE_S3_BUCKET"):
        endpoint = os.environ.get("VV_AGENT_EXAMPLE_S3_ENDPOINT")
        write(S3WorkspaceBackend(bucket, "vv-agent-example", endpoint_url=endpoint))
    else:
        print("S3 is left out: VV_AGENT_EXAMPLE_S3_BUCKET is not set")


if __name__ == "__main__":
    main()
