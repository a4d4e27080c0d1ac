"""How much a scan of fragments reads at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

READ_AHEAD: dict[str, Any] = {"io_buffer_size": 32 << 20, "batch_readahead": 4}
"""Bytes and batches that a scan reads ahead; the engine's defaults are two gigabytes and 16 batches."""
MOST_ROWS, BATCH_BYTES = 8192, 2 << 20


def batch_rows(fragments: Iterable[Any]) -> int:
    """Return the number of rows in a batch of about 2 MB, at most 8,192.

    The engine decodes whole batches, and fails if a column of a batch has more than 2 GB of texts. A batch has rows
    of one fragment, so the fragment with the largest average row decides. A fragment that is not larger than its
    batch has no say.

    Args:
        fragments: The metadata of fragments, as pylance has it.
    """
    found = MOST_ROWS
    for fragment in fragments:
        size = sum(file.file_size_bytes or 0 for file in fragment.files)
        rows = max(1, BATCH_BYTES * fragment.physical_rows // max(1, size))
        if rows < fragment.physical_rows:
            found = min(found, rows)
    return found
