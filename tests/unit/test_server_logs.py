"""The lines of a server's log."""

from __future__ import annotations

import io
import json
import sys

import pytest

from lancekeep.entrypoints.rest.logs import log_of
from lancekeep.entrypoints.rest.settings import ServerSettings


class Writes(io.StringIO):
    """A stream that notes each of its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.each: list[str] = []

    def write(self, text: str) -> int:
        self.each.append(text)
        return super().write(text)


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several workers write to one pipe; the end of a line that is written apart may follow another line."""
    stream = Writes()
    monkeypatch.setattr(sys, "stderr", stream)
    log = log_of(ServerSettings(log_format="json"))
    log.info("one", number=1)
    log.info("two", text="line\nline")
    assert [json.loads(line)["event"] for line in stream.each] == ["one", "two"]
    assert all(line.endswith("\n") for line in stream.each)
