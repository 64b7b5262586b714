"""Store URLs as they may be shown."""

from __future__ import annotations

import re


def without_password(url: str) -> str:
    """The URL with `***` for what is, or could be, a password: it may be malformed, with the password out of place."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    if not rest.startswith("/"):
        user, at, place = rest.rpartition("@")
        if at and ":" in user:
            user = f"{user.partition(':')[0]}:***"
        if separator:  # a "port" that is no number: the password of a URL that lacks its host
            place = re.sub(r"^([^\[\]/?:@]*):(?!\d*(?:[/?#,]|$))[^/?#]*", r"\1:***", place)
        rest = user + at + place
    rest = re.sub(r"(?i)([?&;](?:\w*password|passwd|pwd)=)[^&;#]*", r"\1***", rest)
    return scheme + separator + rest
