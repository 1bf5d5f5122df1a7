"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name beside it, and rename it once it is complete.

    A file that stands there is replaced by a complete one or left as it is. A link stays a link.
    What is no regular file, such as a pipe, is written to directly.

    Raises:
        OSError: It cannot be written; nothing is left behind.
        RuntimeError: Links that lead in a circle.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    partial = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        if target.exists():
            partial.chmod(target.stat().st_mode & 0o777)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
