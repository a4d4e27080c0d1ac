"""Manifests with other times, as writers with other clocks would have written them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from lancekeep.domain.naming import ManifestName
from lancekeep.format.manifest import file_of, message_span, parse_message
from lancekeep.format.messages import Manifest


def set_times(dataset: Path, nanos: Mapping[int, int]) -> None:
    """Give versions of a dataset, or of a branch at this directory, another time in nanoseconds since 1970."""
    for path in (dataset / "_versions").glob("*.manifest"):
        name = ManifestName.parse(path.name)
        if name is not None and name.version in nanos:
            path.write_bytes(with_time(path.read_bytes(), nanos[name.version]))


def with_time(content: bytes, nanos: int) -> bytes:
    begin, _ = message_span(content)
    message = parse_message(Manifest, content)
    message.timestamp.seconds, message.timestamp.nanos = divmod(nanos, 10**9)
    return file_of(message.SerializeToString(), head=content[: begin - 4])


def nanos_of(moment: datetime) -> int:
    """Return nanoseconds that the engine shows as this moment: it truncates in floating point."""
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * 10**9 + moment.microsecond * 1000 + 1
