"""The S3 server of the tests, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from deployments import bucket, s3_options

__all__ = ["bucket", "s3_options", "s3_server"]


@contextmanager
def s3_server() -> Iterator[str]:
    """Yield the URL of a new server."""
    from servers import moto_process  # clients in processes of their own need no server

    with moto_process() as endpoint:
        yield endpoint
