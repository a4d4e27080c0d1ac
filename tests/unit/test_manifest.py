"""The one field that is read of a manifest, and the manifests that are refused by it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancekeep.domain.errors import CommitRefused
from lancekeep.domain.manifest import refuse_accidental_overwrite, transaction_file

UUID = "7b1e5eaa-8371-4c00-912e-00784d3391fc"


def manifest(transaction: str, before: bytes = b"") -> bytes:
    """A manifest with a transaction file, behind other fields."""
    message = b"\x18\x02" + before + bytes([12 << 3 | 2, len(transaction)]) + transaction.encode()
    return len(message).to_bytes(4, "little") + message + (0).to_bytes(8, "little") + b"\0\0\2\0LANC"


@pytest.mark.parametrize("version", [2, 7])
def test_a_transaction_built_on_nothing_is_refused_above_version_1(version: int) -> None:
    with pytest.raises(CommitRefused, match="as if the table were empty"):
        refuse_accidental_overwrite(version, manifest(f"0-{UUID}.txn"), "t")


def test_honest_transactions_pass() -> None:
    refuse_accidental_overwrite(1, manifest(f"0-{UUID}.txn"), "t")
    refuse_accidental_overwrite(2, manifest(f"1-{UUID}.txn"), "t")
    refuse_accidental_overwrite(11, manifest(f"10-{UUID}.txn"), "t")
    lookalike = b"\x62\x2a0-" + b"x" * 40  # the same bytes inside another field
    refuse_accidental_overwrite(2, manifest(f"1-{UUID}.txn", b"\x0a" + bytes([len(lookalike)]) + lookalike), "t")


@given(st.binary(max_size=300))
def test_garbage_is_refused_or_has_no_transaction(content: bytes) -> None:
    with suppress(CommitRefused):
        assert isinstance(transaction_file(content), str)
