"""A workspace in a bucket of any S3-compatible storage; needs the extra `s3`. The home of boto3.

An object is replaced by one request, so a file is always the old or the new one. There are no folders: `mkdir` does
nothing, and a folder is what names have in common.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode

from vv_agent.errors import CannotServe, ConfigError, ToolError
from vv_agent.workspace.base import FileInfo, Walked, WorkspaceBackend, encoded, everywhere
from vv_agent.workspace.glob import matcher
from vv_agent.workspace.memory import key
from vv_agent.workspace.memory import prefix as below_of

_CLIENTS = threading.Lock()
"""boto3's default session must not make two clients at the same moment."""


class S3WorkspaceBackend(WorkspaceBackend):
    """The objects below `prefix` of a bucket.

    Credentials come from the environment of the process (variables, profile, role) unless they are given here; given
    ones stay in this process, so a run that workers carry out cannot use them. `addressing_style` is `virtual`
    (`bucket.host/key`) or `path` (`host/bucket/key`, what most self-hosted storages want). `client` replaces the boto3
    client, for tests.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region_name: str | None = None,
        aws_access_key_id: str | None = None,
        aws_secret_access_key: str | None = None,
        aws_session_token: str | None = None,
        addressing_style: str = "virtual",
        client: Any = None,
    ) -> None:
        if not bucket.strip():
            raise ConfigError("workspace_invalid", "an S3 workspace needs the name of its bucket")
        if addressing_style not in ("virtual", "path"):
            raise ConfigError("workspace_invalid", f"addressing_style {addressing_style!r} must be virtual or path")
        self.bucket = bucket.strip()
        self.prefix = below_of(prefix)
        self._options = {"endpoint_url": endpoint_url, "region_name": region_name}
        self._credentials = {
            "aws_access_key_id": aws_access_key_id,
            "aws_secret_access_key": aws_secret_access_key,
            "aws_session_token": aws_session_token,
        }
        self._style = addressing_style
        self._given = client

    def __repr__(self) -> str:
        return f"S3WorkspaceBackend({self.bucket!r}, {self.prefix!r})"

    @property
    def ref(self) -> str | None:
        """`s3:<bucket>/<prefix>?<endpoint, region and style>`, never a credential."""
        if self._given is not None or any(self._credentials.values()):
            return None
        options = {name: value for name, value in {**self._options, "style": self._style}.items() if value}
        return f"s3:{quote(f'{self.bucket}/{self.prefix}')}?{urlencode(options)}"

    @property
    def remedy(self) -> str:
        return (
            "its credentials were given in code and are not stored; leave them out and set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (or a profile or role) where the workers run"
        )

    @cached_property
    def client(self) -> Any:
        """The boto3 client, made when it is first used; it serves all threads."""
        if self._given is not None:
            return self._given
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError:
            raise ConfigError("extra_missing", "an S3 workspace needs boto3: pip install 'vv-agent[s3]'") from None
        config = Config(
            s3={"addressing_style": self._style},
            connect_timeout=10,
            read_timeout=60,
            retries={"mode": "standard", "total_max_attempts": 3},
            request_checksum_calculation="when_required",  # what other storages than Amazon's understand
            response_checksum_validation="when_required",
        )
        try:
            with _CLIENTS:
                return boto3.client("s3", config=config, **self._options, **self._credentials)
        except (BotoCoreError, ValueError) as error:
            raise ConfigError("workspace_invalid", f"no S3 client for bucket {self.bucket}: {error}") from error

    def list_files(self, base: str, glob: str) -> list[str]:
        below, matches = below_of(base), matcher(glob)
        return [found.path for found in self.walk(base) if matches(found.path[len(below) :])]

    def walk(self, base: str, enter: Callable[[str], bool] = everywhere) -> Iterator[Walked]:
        start = self.prefix + below_of(base)
        with self._asking(base) as client:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=start)
            for page in pages:
                for item in page.get("Contents", ()):
                    name = item["Key"][len(self.prefix) :]
                    if not name.endswith("/") and key(name) == name:  # what no path of a workspace names
                        yield Walked(name, None, item["Size"])

    def read_text(self, path: str) -> str:
        return self.read_bytes(path).decode("utf-8", "replace")

    def read_bytes(self, path: str) -> bytes:
        with self._asking(path) as client:
            data: bytes = client.get_object(Bucket=self.bucket, Key=self._key(path))["Body"].read()
        return data

    def write_text(self, path: str, content: str, *, append: bool = False) -> int:
        """Adding to a file reads and rewrites it: the number of bytes is then that of the whole file."""
        data = encoded(content)
        if append and self.exists(path):
            data = self.read_bytes(path) + data
        return self.write_bytes(path, data)

    def write_bytes(self, path: str, data: bytes, *, before_rename: Callable[[], None] | None = None) -> int:
        name = self._key(path)
        if before_rename is not None:
            before_rename()
        with self._asking(path) as client:
            client.put_object(Bucket=self.bucket, Key=name, Body=data)
        return len(data)

    def file_info(self, path: str) -> FileInfo | None:
        name = key(path)
        if name == ".":
            return None
        try:
            with self._asking(path) as client:
                head = client.head_object(Bucket=self.bucket, Key=self.prefix + name)
        except ToolError as error:
            if error.code == "path_not_found":
                return None
            raise
        modified = head["LastModified"].astimezone(UTC).isoformat(timespec="microseconds")
        return FileInfo(name, True, False, head["ContentLength"], modified, PurePosixPath(name).suffix)

    def exists(self, path: str) -> bool:
        return self.file_info(path) is not None

    def is_file(self, path: str) -> bool:
        return self.exists(path)

    def mkdir(self, path: str) -> None:
        key(path)

    def _key(self, path: str) -> str:
        if (name := key(path)) == ".":
            raise ToolError(f"{path or '.'}: Is a directory", "workspace_backend_error")
        return self.prefix + name

    @contextmanager
    def _asking(self, path: str) -> Iterator[Any]:
        """The client; errors of boto3, and of a connection that breaks in an answer, as errors of the workspace."""
        client = self.client
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield client
        except ClientError as error:
            answer = error.response.get("Error", {})
            if answer.get("Code") in ("NoSuchKey", "404", "NotFound"):
                raise ToolError(f"path not found: {path}", "path_not_found") from error
            text = (
                f"S3 refused {error.operation_name} of {path} in bucket {self.bucket}: {answer.get('Message') or error}"
            )
            raise ToolError(text, "workspace_backend_error") from error
        except (BotoCoreError, OSError) as error:
            text = f"S3 did not answer for {path} in bucket {self.bucket}: {error}; look at the file before you go on"
            raise ToolError(text, "workspace_backend_error", retryable=True) from error


def open_s3(ref: str) -> S3WorkspaceBackend:
    """The workspace of a `ref`, with the credentials of this process."""
    place, _, query = ref.removeprefix("s3:").partition("?")
    bucket, _, prefix = unquote(place).partition("/")
    options = {name: values[0] for name, values in parse_qs(query).items()}
    style = options.pop("style", "virtual")
    try:
        return S3WorkspaceBackend(bucket, prefix, addressing_style=style, **options)
    except (TypeError, ConfigError) as error:
        raise CannotServe("workspace_unavailable", f"workspace {ref!r} is not named as this version does") from error
