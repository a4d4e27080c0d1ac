"""The port that encodes the rows of appends as data files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs

from lancekeep.format.append import Appendable


@attrs.frozen
class Rows:
    """The rows of one append, in memory.

    Attributes:
        table: a ``pyarrow.Table``.
        count: the number of rows.
        size: the size in bytes.
        encoded: the Arrow IPC stream from which they were decoded, if it can be sent on: its messages have the format
            of Arrow 0.15 and are not compressed.
    """

    table: Any = attrs.field(repr=False)
    count: int
    size: int
    encoded: bytes | None = attrs.field(default=None, repr=False)

    @property
    def schema(self) -> Any:
        """The ``pyarrow.Schema``; appends of equal schemas may share a data file."""
        return self.table.schema


@attrs.frozen
class EncodedFile:
    """A data file in memory.

    Attributes:
        content: the bytes of the file.
        rows: the number of its rows.
        layout: the encoded ``DataFile`` message, without name and size.
    """

    content: bytes = attrs.field(repr=False)
    rows: int
    layout: bytes = attrs.field(repr=False)


class DataFiles(Protocol):
    """Encode rows as data files. Nothing is sent to any store.

    Instances may be shared between threads.
    """

    def gather(self, data: Any, most: int) -> tuple[Rows | None, Any]:
        """Read a stream if it is small.

        An error of the stream is raised by the returned stream, not here.

        Args:
            data: a ``pyarrow.RecordBatchReader``, which is consumed; a ``pyarrow.Table``, or `Rows`.
            most: the size in bytes from which on the data are large.

        Returns:
            The rows, or None if there are none, they are too many, or the stream failed; and all rows, as a stream, or
            unchanged if they were no stream.
        """

    def conforming(self, rows: Rows, version: Appendable) -> Rows | None:
        """Return rows with the schema of a table.

        Returns:
            The rows; None if only the engine can append them.

        Raises:
            Unsupported: this module cannot write the table's columns.
        """

    def encode(self, rows: Sequence[Rows], version: Appendable) -> EncodedFile:
        """Encode conforming rows as one data file.

        Raises:
            Unsupported: this module cannot write the table's columns.
            InvalidInput: the engine cannot store the rows.
        """
