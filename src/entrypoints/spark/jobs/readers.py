"""Read files inside a task as Arrow batches that fit a schema.

Rows that cannot be parsed or do not fit their columns are set aside with the reason, as are files that cannot be read
or have other columns. If a file is broken, the rows before the broken place are ingested. Row numbers begin at 1; in
CSV, the header and empty lines do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import Any, Protocol

import attrs
import imagesize
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from pyarrow import ipc

from lancekeep.domain.errors import InvalidInput, Retryable
from lancekeep.entrypoints.spark.arrow_types import fit
from lancekeep.entrypoints.spark.jobs.exact import (
    inferable,
    require_exact,
    type_of_texts,
    with_wide_integers,
)
from lancekeep.entrypoints.spark.jobs.files import Piece, SourceFile
from lancekeep.entrypoints.spark.jobs.json_records import (
    CHUNK,
    as_json_reads,
    is_exact,
    numbered_records,
    one_line,
    parsed,
)
from lancekeep.entrypoints.spark.jobs.merging import agreed

BATCH_ROWS = 8192
_BATCH_BYTES = 4 << 20

IMAGES = pa.schema(
    [
        pa.field("uri", pa.string()),
        pa.field("format", pa.string()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("image", pa.binary()),
    ]
)
_IMAGE_FORMATS = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF8", "gif"),
    (b"RIFF", "webp"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
)

_UNREADABLE = (pa.ArrowException, OSError, ValueError)
"""The errors of the readers for invalid content."""


class OnBadRecord(Protocol):
    """Sets records aside; raises `InvalidInput` once they exceed the limit."""

    def __call__(self, file: str, row: int | None, reason: str, record: Any = None) -> None: ...


@attrs.frozen
class Inspection:
    """The metadata of a file.

    Attributes:
        schema: The columns; None if the file is invalid. Reading it reports the reason.
        groups: The rows and bytes of each row group of a Parquet file.
    """

    schema: pa.Schema | None
    groups: tuple[tuple[int, int], ...] = ()


@attrs.frozen
class Wanted:
    """The batches that a reader must return.

    Attributes:
        schema: Their columns.
        strict: Refuse a file that lacks columns.
        source_column: The column for the URI of the file.
        timezone: The time zone of CSV timestamps without a zone.
    """

    schema: pa.Schema
    strict: bool = False
    source_column: str | None = None
    timezone: str | None = None

    @property
    def of_files(self) -> pa.Schema:
        """The columns that the files provide."""
        return pa.schema([field for field in self.schema if field.name != self.source_column])

    def refusal(self, names: Sequence[str]) -> str | None:
        """Return why a file with these columns is refused, or None."""
        own = self.of_files.names
        repeated = sorted({name for name in names if names.count(name) > 1})
        extra = [name for name in names if name not in own]
        missing = [name for name in own if name not in names] if self.strict else []
        problems = [
            *(f"the column {name!r} occurs twice" for name in repeated),
            *(f"{name!r} is not a column of the table" for name in extra),
            *(f"the column {name!r} is missing" for name in missing),
        ]
        return "; ".join(problems) or None


def inspect(file: SourceFile, format: str) -> Inspection:  # noqa: A002 - the word that a caller reads
    """Return the columns of a file by its footer, header or first megabyte."""
    try:
        return _INSPECTORS[format](file)
    except _UNREADABLE as error:
        _require_content(file, error)
        return Inspection(None)


def read(
    piece: Piece,
    format: str,  # noqa: A002 - as in `inspect`
    wanted: Wanted,
    bad_records: OnBadRecord,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece that fit.

    Raises:
        Retryable: The storage failed, or the file changed during the read.
    """
    file = piece.file
    source = pa.scalar(file.uri)
    try:
        for row, batch in _READERS[format](piece, wanted, bad_records):
            yield from _fitting(file, row, batch, wanted, source, bad_records)
    except _UNREADABLE as error:
        if isinstance(error, InvalidInput):  # raised by `bad_records`
            raise
        _require_content(file, error)
        bad_records(file.uri, None, f"cannot be read: {one_line(error)}")
    info = file.store.get_file_info(file.path)
    if f"{info.size}-{info.mtime_ns}" != file.state:
        raise Retryable(f"{file.uri} was changed or removed while it was read; run the job again")


def _require_content(file: SourceFile, error: Exception) -> None:
    """Raise `Retryable` if the storage fails; return if only the content is invalid."""
    if not isinstance(error, OSError):
        return
    try:
        with file.store.open_input_file(file.path) as stream:
            while stream.read(CHUNK):
                pass
    except (PermissionError, FileNotFoundError):
        return
    except OSError as fault:
        raise Retryable(f"{file.uri} could not be read: {one_line(fault)}") from fault


# -- values ---------------------------------------------------------------------------------------------------------


def _fitting(
    file: SourceFile,
    row: Callable[[int], int],
    batch: pa.RecordBatch,
    wanted: Wanted,
    source: pa.Scalar,
    bad_records: OnBadRecord,
) -> Iterator[pa.RecordBatch]:
    """Yield a batch as the table stores it; halve what does not fit, down to single rows."""
    refusal = wanted.refusal(batch.schema.names)
    if refusal:
        for at in range(batch.num_rows):
            bad_records(file.uri, row(at), refusal, _record(batch.slice(at, 1)))
        return
    parts = [(0, batch)]
    while parts:
        at, part = parts.pop()
        try:
            yield fit(_complete(part, wanted, source), wanted.schema)
        except (InvalidInput, pa.ArrowException, KeyError) as error:  # KeyError: a struct lacks a field
            half = part.num_rows // 2
            if half:
                parts += [(at + half, part.slice(half)), (at, part.slice(0, half))]
            elif part.num_rows:
                bad_records(file.uri, row(at), one_line(error), _record(part))


def _complete(batch: pa.RecordBatch, wanted: Wanted, source: pa.Scalar) -> pa.RecordBatch:
    """Add the columns that the file lacks, and decode bytes of CSV as text."""
    columns, read = {}, frozenset(batch.schema.names)
    for field in wanted.schema:
        if field.name == wanted.source_column:
            columns[field.name] = pa.array([source.as_py()] * batch.num_rows, pa.string())
        elif field.name not in read:
            columns[field.name] = pa.nulls(batch.num_rows, field.type)
        else:
            column = batch.column(field.name)
            is_bytes = pa.types.is_binary(column.type) and not pa.types.is_binary(field.type)
            columns[field.name] = _text(column.cast(pa.string()), field.type, wanted.timezone) if is_bytes else column
    return pa.RecordBatch.from_pydict(columns)


def _text(texts: pa.Array, wanted: pa.DataType, timezone: str | None) -> pa.Array:
    """Return texts of CSV in a form that casts to a type.

    Raises:
        InvalidInput: The cast would round a value.
    """
    if pa.types.is_float64(wanted):
        require_exact(texts)
    if timezone is None or not pa.types.is_timestamp(wanted) or wanted.tz is None:
        return texts
    zoned = pc.match_substring_regex(texts, r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)$")
    nothing = pa.scalar(None, pa.string())
    local = pc.if_else(zoned, nothing, texts).cast(pa.timestamp(wanted.unit))
    instants = pc.if_else(zoned, texts, nothing).cast(wanted)
    return pc.coalesce(instants, pc.assume_timezone(local, timezone).cast(wanted))


def _record(row: pa.RecordBatch) -> Any:
    values = row.to_pylist()[0]
    return {
        name: value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
        for name, value in values.items()
    }


# -- parquet --------------------------------------------------------------------------------------------------------


Rows = Iterator[tuple[Callable[[int], int], pa.RecordBatch]]
"""Batches, each with a function from a position in it to the row number."""


def _numbered(first: int) -> Callable[[int], int]:
    return lambda at: first + at


def _inspect_parquet(file: SourceFile) -> Inspection:
    with file.store.open_input_file(file.path) as stream:
        parquet = pa.parquet.ParquetFile(stream)
        found = [parquet.metadata.row_group(at) for at in range(parquet.metadata.num_row_groups)]
        groups = tuple((group.num_rows, sum(_sizes(group))) for group in found)
        return Inspection(parquet.schema_arrow.remove_metadata(), groups)


def _batch_rows(group: Any) -> int:
    """Return how many rows of a row group have about `_BATCH_BYTES`."""
    return max(1, min(BATCH_ROWS, _BATCH_BYTES * int(group.num_rows) // max(1, int(group.total_byte_size))))


def _sizes(group: Any) -> list[int]:
    return [group.column(at).total_compressed_size for at in range(group.num_columns)]


def _read_parquet(piece: Piece, wanted: Wanted, bad_records: OnBadRecord) -> Rows:
    with piece.file.store.open_input_file(piece.file.path) as stream:
        parquet = pa.parquet.ParquetFile(stream, buffer_size=CHUNK)  # by default, it reads column chunks whole
        refusal = wanted.refusal(parquet.schema_arrow.names)
        if refusal:
            bad_records(piece.file.uri, None, refusal)
            return
        first = piece.first_row
        for group in range(parquet.metadata.num_row_groups) if piece.row_groups is None else piece.row_groups:
            row = first
            size = _batch_rows(parquet.metadata.row_group(group))
            try:
                for batch in parquet.iter_batches(size, row_groups=[group], use_threads=False):
                    yield _numbered(row), batch
                    row += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                _require_content(piece.file, error)
                bad_records(piece.file.uri, row, f"the rest of row group {group} cannot be read: {one_line(error)}")
            first += parquet.metadata.row_group(group).num_rows


# -- CSV ------------------------------------------------------------------------------------------------------------


def _open_csv(stream: Any, columns: dict[str, pa.DataType], skipped: Callable[[Any], str]) -> Any:
    return pa.csv.open_csv(
        stream,
        pa.csv.ReadOptions(use_threads=False, block_size=CHUNK),
        pa.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skipped),
        pa.csv.ConvertOptions(
            column_types=columns,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _inspect_csv(file: SourceFile) -> Inspection:
    with file.store.open_input_stream(file.path) as stream:
        schema = _open_csv(stream, {}, lambda row: "skip").schema
    doubles = {field.name: pa.string() for field in schema if pa.types.is_float64(field.type)}
    found = {field.name: pa.string() for field in schema if pa.types.is_binary(field.type)}  # not UTF-8
    if doubles and len(schema.names) == len(set(schema.names)):
        with file.store.open_input_stream(file.path) as stream:
            first = _open_csv(stream, doubles, lambda row: "skip").read_next_batch()
        found |= {name: type_of_texts(first.column(name)) for name in doubles}
    return Inspection(pa.schema([field.with_type(found.get(field.name, field.type)) for field in schema]))


def _read_csv(piece: Piece, wanted: Wanted, bad_records: OnBadRecord) -> Rows:
    """Read values as bytes, so that an invalid value costs its row and not the block."""
    skipped: list[int] = []
    found: list[tuple[int, str, str]] = []

    def skip(row: Any) -> str:
        """Collect the row; the reader ignores errors raised here, so `report` sets it aside later."""
        number = row.number - 1  # the header
        skipped.append(number)
        found.append((number, f"has {row.actual_columns} values, the header {row.expected_columns} columns", row.text))
        return "skip"

    def report() -> None:
        while found:
            bad_records(piece.file.uri, *found.pop(0))

    columns = dict.fromkeys(wanted.of_files.names, pa.binary())
    with piece.file.store.open_input_stream(piece.file.path) as stream:
        reader = _open_csv(stream, columns, skip)
        refusal = wanted.refusal(reader.schema.names)
        if refusal:
            bad_records(piece.file.uri, None, refusal)
            return
        taken = 0
        try:
            for batch in reader:
                report()
                yield _past(skipped, taken), batch
                taken += batch.num_rows
        except _UNREADABLE:
            report()
            raise
        report()


def _past(skipped: list[int], taken: int) -> Callable[[int], int]:
    """Return the number of the row after ``taken + at`` rows that were not skipped."""

    def number(at: int) -> int:
        row = taken + at + 1
        for other in skipped:  # ascending
            row += other <= row
        return row

    return number


# -- JSON -----------------------------------------------------------------------------------------------------------


def _inspect_json(file: SourceFile) -> Inspection:
    with file.store.open_input_stream(file.path) as stream:
        blocks = islice(numbered_records(stream), 2)  # the last line may be a separate block
        lines = [line for block in blocks for line in block]
    readable = [(number, inferable(line)) for number, line in lines]
    found = [(table.schema, table.num_rows) for _, table in parsed(readable, None, lambda number, reason: None)]
    return Inspection(with_wide_integers(agreed(found), [line for _, line in lines]) if found else None)


def _read_json(piece: Piece, wanted: Wanted, bad_records: OnBadRecord) -> Rows:
    schema = pa.schema([pa.field(field.name, as_json_reads(field.type)) for field in wanted.of_files])
    with piece.file.store.open_input_stream(piece.file.path) as stream:
        for lines in numbered_records(stream):
            records = dict(lines)

            def unparsed(number: int, reason: str, records: dict[int, bytes] = records) -> None:
                bad_records(piece.file.uri, number, reason, records[number].decode(errors="backslashreplace"))

            exact = [each for each in lines if is_exact(each, schema, unparsed)]
            for numbers, table in parsed(exact, schema, unparsed):
                for batch in table.combine_chunks().to_batches():
                    yield numbers.__getitem__, batch


# -- Arrow ----------------------------------------------------------------------------------------------------------


def _open_arrow(stream: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Open a file (Feather is one) or a stream."""
    try:
        reader = ipc.open_file(stream)
    except pa.ArrowInvalid:
        stream.seek(0)
        batches = ipc.open_stream(stream)
        return batches.schema, iter(batches)
    return reader.schema, (reader.get_batch(at) for at in range(reader.num_record_batches))


def _inspect_arrow(file: SourceFile) -> Inspection:
    with file.store.open_input_file(file.path) as stream:
        return Inspection(_open_arrow(stream)[0].remove_metadata())


def _read_arrow(piece: Piece, wanted: Wanted, bad_records: OnBadRecord) -> Rows:
    with piece.file.store.open_input_file(piece.file.path) as stream:
        schema, batches = _open_arrow(stream)
        refusal = wanted.refusal(schema.names)
        if refusal:
            bad_records(piece.file.uri, None, refusal)
            return
        row = 1
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_ROWS):
                part = batch.slice(start, BATCH_ROWS)
                yield _numbered(row), part
                row += part.num_rows


# -- images ---------------------------------------------------------------------------------------------------------


def _read_image(piece: Piece, wanted: Wanted, bad_records: OnBadRecord) -> Rows:
    """Yield one row: the unchanged bytes of a file, and its header's size; nothing is decoded."""
    content = piece.file.read()
    format_ = next((name for magic, name in _IMAGE_FORMATS if content.startswith(magic)), None)
    width, height = imagesize.get(BytesIO(content)) if format_ else (-1, -1)
    if format_ is None or width < 1 or height < 1:
        bad_records(piece.file.uri, None, "is not an image of a known format, or is truncated")
        return
    row = [{"uri": piece.file.uri, "format": format_, "width": width, "height": height, "image": content}]
    yield _numbered(1), pa.RecordBatch.from_pylist(row, IMAGES)


_INSPECTORS: dict[str, Callable[[SourceFile], Inspection]] = {
    "parquet": _inspect_parquet,
    "csv": _inspect_csv,
    "json": _inspect_json,
    "arrow": _inspect_arrow,
    "image": lambda file: Inspection(IMAGES),
}
_READERS: dict[str, Callable[[Piece, Wanted, OnBadRecord], Rows]] = {
    "parquet": _read_parquet,
    "csv": _read_csv,
    "json": _read_json,
    "arrow": _read_arrow,
    "image": _read_image,
}
