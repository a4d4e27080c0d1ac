"""Errors of the native engine as errors of Lancekeep."""

from __future__ import annotations

import pytest

from lancekeep.adapters.lance.native_errors import classified, query_error
from lancekeep.domain.errors import InvalidInput


@pytest.mark.parametrize("text", [", " * 30_000, "x " * 30_000, "column " * 10_000, ", a.rs:1:1" * 10_000 + "x"])
def test_a_long_message_of_the_engine_is_shortened(text: str) -> None:
    for error in (classified("t", ValueError(f"Invalid: {text}"), reading=False), query_error("t", ValueError(text))):
        assert isinstance(error, InvalidInput)
        assert len(str(error)) < 5000
