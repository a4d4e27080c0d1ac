"""Files as Arrow batches that fit a schema, read natively inside a task; and what does not fit, with the reason.

A row that cannot be parsed or does not fit its column is set aside, and so is a file that cannot be read or has other
columns. What has been read of a file before the place where it breaks is taken in. Rows are counted from 1; in CSV
neither the header nor empty lines count.
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
"""What the readers raise for content that they do not understand."""


class Aside(Protocol):
    """Keeps what cannot be taken in; raises `InvalidInput` once that is more than is allowed."""

    def __call__(self, file: str, row: int | None, reason: str, record: Any = None) -> None: ...


@attrs.frozen
class Inspection:
    """What a file says about itself: its columns, and for parquet the rows and bytes of each row group.

    schema: None where the file could not be understood; reading it tells why.
    """

    schema: pa.Schema | None
    groups: tuple[tuple[int, int], ...] = ()


@attrs.frozen
class Wanted:
    """What the batches have to be.

    strict: a file has to have all columns. source_column: gets the URI of the file. timezone: of texts of CSV without a
    zone in a column of instants.
    """

    schema: pa.Schema
    strict: bool = False
    source_column: str | None = None
    timezone: str | None = None

    @property
    def of_files(self) -> pa.Schema:
        """The columns that come from the files themselves."""
        return pa.schema([field for field in self.schema if field.name != self.source_column])

    def refusal(self, names: Sequence[str]) -> str | None:
        """Why a file with these columns cannot be taken in; None where it can."""
        own = self.of_files.names
        repeated = sorted({name for name in names if names.count(name) > 1})
        extra = [name for name in names if name not in own]
        missing = [name for name in own if name not in names] if self.strict else []
        problems = [
            *(f"the column {name!r} is there twice" for name in repeated),
            *(f"{name!r} is not a column of the table" for name in extra),
            *(f"the column {name!r} is missing" for name in missing),
        ]
        return "; ".join(problems) or None


def inspect(file: SourceFile, format: str) -> Inspection:  # noqa: A002 - the word that a caller reads
    """The columns of a file, by its footer, header or first megabyte."""
    try:
        return _INSPECTORS[format](file)
    except _UNREADABLE as error:
        _require_content(file, error)
        return Inspection(None)


def read(piece: Piece, format: str, wanted: Wanted, aside: Aside) -> Iterator[pa.RecordBatch]:  # noqa: A002
    """The rows of a piece that fit. Raises `Retryable` where the storage fails, or the file has changed meanwhile."""
    file = piece.file
    source = pa.scalar(file.uri)
    try:
        for row, batch in _READERS[format](piece, wanted, aside):
            yield from _fitting(file, row, batch, wanted, source, aside)
    except _UNREADABLE as error:
        if isinstance(error, InvalidInput):  # of the one who sets aside
            raise
        _require_content(file, error)
        aside(file.uri, None, f"cannot be read: {one_line(error)}")
    info = file.store.get_file_info(file.path)
    if f"{info.size}-{info.mtime_ns}" != file.state:
        raise Retryable(f"{file.uri} was changed or removed while it was read; run the job again")


def _require_content(file: SourceFile, error: Exception) -> None:
    """Raises `Retryable` unless it is the content that cannot be understood: the storage may answer next time."""
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
    file: SourceFile, row: Callable[[int], int], batch: pa.RecordBatch, wanted: Wanted, source: pa.Scalar, aside: Aside
) -> Iterator[pa.RecordBatch]:
    """The batch as the table stores it; where something in it does not fit, halves, down to the rows themselves."""
    refusal = wanted.refusal(batch.schema.names)
    if refusal:
        for at in range(batch.num_rows):
            aside(file.uri, row(at), refusal, _record(batch.slice(at, 1)))
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
                aside(file.uri, row(at), one_line(error), _record(part))


def _complete(batch: pa.RecordBatch, wanted: Wanted, source: pa.Scalar) -> pa.RecordBatch:
    """With the columns that the file lacks; and what CSV left as bytes as text."""
    columns = {}
    for field in wanted.schema:
        if field.name == wanted.source_column:
            columns[field.name] = pa.array([source.as_py()] * batch.num_rows, pa.string())
        elif field.name not in batch.schema.names:
            columns[field.name] = pa.nulls(batch.num_rows, field.type)
        else:
            column = batch.column(field.name)
            is_bytes = pa.types.is_binary(column.type) and not pa.types.is_binary(field.type)
            columns[field.name] = _text(column.cast(pa.string()), field.type, wanted.timezone) if is_bytes else column
    return pa.RecordBatch.from_pydict(columns)


def _text(texts: pa.Array, wanted: pa.DataType, timezone: str | None) -> pa.Array:
    """Return texts of CSV as they can be cast to a type. Raises `InvalidInput` for what the cast would round."""
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
"""Batches, each with the function from a position in it to the number of the row."""


def _numbered(first: int) -> Callable[[int], int]:
    return lambda at: first + at


def _inspect_parquet(file: SourceFile) -> Inspection:
    with file.store.open_input_file(file.path) as stream:
        parquet = pa.parquet.ParquetFile(stream)
        found = [parquet.metadata.row_group(at) for at in range(parquet.metadata.num_row_groups)]
        groups = tuple((group.num_rows, sum(_sizes(group))) for group in found)
        return Inspection(parquet.schema_arrow.remove_metadata(), groups)


def _batch_rows(group: Any) -> int:
    """Of how many rows a batch of a row group has about as many bytes as are read at once."""
    return max(1, min(BATCH_ROWS, _BATCH_BYTES * int(group.num_rows) // max(1, int(group.total_byte_size))))


def _sizes(group: Any) -> list[int]:
    return [group.column(at).total_compressed_size for at in range(group.num_columns)]


def _read_parquet(piece: Piece, wanted: Wanted, aside: Aside) -> Rows:
    with piece.file.store.open_input_file(piece.file.path) as stream:
        parquet = pa.parquet.ParquetFile(stream, buffer_size=CHUNK)  # without, column chunks are read whole
        refusal = wanted.refusal(parquet.schema_arrow.names)
        if refusal:
            aside(piece.file.uri, None, refusal)
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
                aside(piece.file.uri, row, f"the rest of row group {group} cannot be read: {one_line(error)}")
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
    found = {field.name: pa.string() for field in schema if pa.types.is_binary(field.type)}  # no UTF-8: rows say so
    if doubles and len(schema.names) == len(set(schema.names)):
        with file.store.open_input_stream(file.path) as stream:
            first = _open_csv(stream, doubles, lambda row: "skip").read_next_batch()
        found |= {name: type_of_texts(first.column(name)) for name in doubles}
    return Inspection(pa.schema([field.with_type(found.get(field.name, field.type)) for field in schema]))


def _read_csv(piece: Piece, wanted: Wanted, aside: Aside) -> Rows:
    """Read as bytes: a value that does not parse then costs its row, not the block."""
    skipped: list[int] = []
    told: list[tuple[int, str, str]] = []

    def skip(row: Any) -> str:
        """The reader ignores what is raised here, so it is told afterwards."""
        number = row.number - 1  # the header
        skipped.append(number)
        told.append((number, f"has {row.actual_columns} values, the header {row.expected_columns} columns", row.text))
        return "skip"

    def tell() -> None:
        while told:
            aside(piece.file.uri, *told.pop(0))

    columns = dict.fromkeys(wanted.of_files.names, pa.binary())
    with piece.file.store.open_input_stream(piece.file.path) as stream:
        reader = _open_csv(stream, columns, skip)
        refusal = wanted.refusal(reader.schema.names)
        if refusal:
            aside(piece.file.uri, None, refusal)
            return
        taken = 0
        try:
            for batch in reader:
                tell()
                yield _past(skipped, taken), batch
                taken += batch.num_rows
        except _UNREADABLE:
            tell()
            raise
        tell()


def _past(skipped: list[int], taken: int) -> Callable[[int], int]:
    """The number of the row that comes after ``taken + at`` others that were not skipped."""

    def number(at: int) -> int:
        row = taken + at + 1
        for other in skipped:  # in their order
            row += other <= row
        return row

    return number


# -- JSON -----------------------------------------------------------------------------------------------------------


def _inspect_json(file: SourceFile) -> Inspection:
    with file.store.open_input_stream(file.path) as stream:
        blocks = islice(numbered_records(stream), 2)  # the last line may be a block of its own
        lines = [line for block in blocks for line in block]
    readable = [(number, inferable(line)) for number, line in lines]
    found = [(table.schema, table.num_rows) for _, table in parsed(readable, None, lambda number, reason: None)]
    return Inspection(with_wide_integers(agreed(found), [line for _, line in lines]) if found else None)


def _read_json(piece: Piece, wanted: Wanted, aside: Aside) -> Rows:
    schema = pa.schema([pa.field(field.name, as_json_reads(field.type)) for field in wanted.of_files])
    with piece.file.store.open_input_stream(piece.file.path) as stream:
        for lines in numbered_records(stream):
            records = dict(lines)

            def unparsed(number: int, reason: str, records: dict[int, bytes] = records) -> None:
                aside(piece.file.uri, number, reason, records[number].decode(errors="backslashreplace"))

            exact = [each for each in lines if is_exact(each, schema, unparsed)]
            for numbers, table in parsed(exact, schema, unparsed):
                for batch in table.combine_chunks().to_batches():
                    yield numbers.__getitem__, batch


# -- Arrow ----------------------------------------------------------------------------------------------------------


def _open_arrow(stream: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A file (Feather is one), or else a stream."""
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


def _read_arrow(piece: Piece, wanted: Wanted, aside: Aside) -> Rows:
    with piece.file.store.open_input_file(piece.file.path) as stream:
        schema, batches = _open_arrow(stream)
        refusal = wanted.refusal(schema.names)
        if refusal:
            aside(piece.file.uri, None, refusal)
            return
        row = 1
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_ROWS):
                part = batch.slice(start, BATCH_ROWS)
                yield _numbered(row), part
                row += part.num_rows


# -- images ---------------------------------------------------------------------------------------------------------


def _read_image(piece: Piece, wanted: Wanted, aside: Aside) -> Rows:
    """One row for a file: its bytes as they are, and what its header says of them; nothing is decoded."""
    content = piece.file.read()
    format_ = next((name for magic, name in _IMAGE_FORMATS if content.startswith(magic)), None)
    width, height = imagesize.get(BytesIO(content)) if format_ else (-1, -1)
    if format_ is None or width < 1 or height < 1:
        aside(piece.file.uri, None, "is no image of a format that is known, or is cut off")
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
_READERS: dict[str, Callable[[Piece, Wanted, Aside], Rows]] = {
    "parquet": _read_parquet,
    "csv": _read_csv,
    "json": _read_json,
    "arrow": _read_arrow,
    "image": _read_image,
}
