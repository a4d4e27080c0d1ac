"""What the commit layer reads of a staged manifest, and the manifests that it refuses."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancekeep.domain.errors import CommitRefused
from lancekeep.domain.lineage import refuse_accidental_overwrite
from lancekeep.format.manifest import reads_version_zero

UUID = "7b1e5eaa-8371-4c00-912e-00784d3391fc"


def manifest(transaction: str, before: bytes = b"") -> bytes:
    """Return a manifest with a transaction file after other fields."""
    message = b"\x18\x02" + before + bytes([12 << 3 | 2, len(transaction)]) + transaction.encode()
    return len(message).to_bytes(4, "little") + message + (0).to_bytes(8, "little") + b"\0\0\2\0LANC"


@pytest.mark.parametrize("version", [2, 7])
def test_manifest_built_on_version_zero_is_refused_above_version_1(version: int) -> None:
    assert reads_version_zero(manifest(f"0-{UUID}.txn"))
    with pytest.raises(CommitRefused, match="as if the table were empty"):
        refuse_accidental_overwrite(version, True, "t")


@pytest.mark.parametrize(("version", "reads_zero"), [(1, True), (1, False), (2, False)])
def test_first_version_and_manifest_built_on_a_later_version_pass(version: int, reads_zero: bool) -> None:
    refuse_accidental_overwrite(version, reads_zero, "t")


@pytest.mark.parametrize("read_version", [1, 10])
def test_manifest_built_on_a_later_version_is_accepted(read_version: int) -> None:
    assert not reads_version_zero(manifest(f"{read_version}-{UUID}.txn"))
    lookalike = b"\x62\x2a0-" + b"x" * 40  # the same bytes inside another field
    assert not reads_version_zero(manifest(f"{read_version}-{UUID}.txn", b"\x0a" + bytes([len(lookalike)]) + lookalike))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_decoded_or_raise_value_error(content: bytes) -> None:
    for damaged in (content, content + b"LANC"):
        with suppress(ValueError):
            assert isinstance(reads_version_zero(damaged), bool)
