"""``lancekeep import`` and ``lancekeep export``: copy rows from and to files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import click

from lancekeep.domain.errors import InvalidInput, Refused
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import message, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores
from lancekeep.entrypoints.cli.output import csv_lines, json_lines, rows_of
from lancekeep.entrypoints.cli.reading import chosen_version, refusing, version_option, where_option
from lancekeep.entrypoints.cli.upkeep import mode

FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".arrow": "arrow",
    ".arrows": "arrow",
}
_CHOICE = click.Choice(sorted({*FORMATS.values()}))


@command("import")
@click.option("--format", "form", type=_CHOICE, help="The format of the files. Default: by file name.")
@click.option(
    "--write",
    "write_mode",
    type=click.Choice(("create", "append", "overwrite")),
    help="Create the table, append to it, or replace its rows. Default: append, or create a table that does not exist.",
)
@mode
@stores
@click.argument("name")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.pass_obj
def import_(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    files: tuple[str, ...],
    mode: str | None,
    form: str | None,
    write_mode: str | None,
) -> None:
    """Write the rows of files into a table, as one version.

    Each FILE is Parquet, CSV, JSON lines or Arrow; '-' is standard input. All files have the columns of the first one.
    `lancekeep ingest` loads many files with Spark, each exactly once.
    """
    with progress("import") as report_progress, chosen.catalog(functions, new=True, mode=mode) as catalog:
        mode_of_write = write_mode or ("append" if catalog.table_exists(name) else "create")
        with _reader(files, form, report_progress) as reader:
            committed = catalog.write(name, reader, mode_of_write)
        rows = catalog.versions.describe(name).rows
    message(f"Committed version {committed.version} of {name}, which has {rows:,} rows.")


@contextmanager
def _reader(files: Sequence[str], form: str | None, report: Callable[[int, int, str], None]) -> Iterator[Any]:
    """Return the batches of files as one stream; translate errors of a file."""
    import pyarrow as pa

    schema: Any = None

    def batches() -> Iterator[Any]:
        nonlocal schema
        for number, file in enumerate(files):
            report(number, len(files), file)
            with _naming(file):
                for batch in _batches(file, form):
                    if schema is None:
                        schema = batch.schema
                        yield batch.slice(0, 0)
                    yield batch if batch.schema == schema else _cast(batch, schema)

    stream = batches()
    if next(stream, None) is None:
        raise InvalidInput(f"{', '.join(files)}: no rows")
    yield pa.RecordBatchReader.from_batches(schema, stream)


def _cast(batch: Any, schema: Any) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([batch.column(each.name).cast(each.type) for each in schema], schema=schema)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Name a file in the error of its decoder."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{file}: {str(error).strip(chr(39))}") from error


def _batches(file: str, form: str | None) -> Iterator[Any]:
    stream = click.open_file(file, "rb")
    with stream:
        match form or _format_of(file):
            case "parquet":
                import pyarrow.parquet as pq

                yield from pq.ParquetFile(_seekable(stream)).iter_batches()
            case "csv":
                from pyarrow import csv

                yield from csv.open_csv(stream)
            case "jsonl":
                from pyarrow import json

                yield from json.read_json(stream).to_batches()
            case _:
                yield from _arrow_batches(_seekable(stream))


def _seekable(stream: IO[bytes]) -> Any:
    import pyarrow as pa

    return stream if stream.seekable() else pa.BufferReader(stream.read())


def _arrow_batches(stream: Any) -> Iterator[Any]:
    """Read a file of either Arrow format."""
    import pyarrow as pa

    is_file = stream.read(6) == b"ARROW1"
    stream.seek(0)
    if is_file:
        opened = pa.ipc.open_file(stream)
        yield from (opened.get_batch(number) for number in range(opened.num_record_batches))
    else:
        yield from pa.ipc.open_stream(stream)


def _format_of(file: str) -> str:
    form = FORMATS.get(Path(file).suffix.lower())
    if form is None:
        raise InvalidInput(f"{file}: the name tells no format. Add --format, or end it with {', '.join(FORMATS)}")
    return form


@command()
@version_option
@click.option("--format", "form", type=_CHOICE, help="The format of the file. Default: by file name.")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Only this column; may be repeated.")
@where_option
@click.option("--overwrite", is_flag=True, help="Replace an existing FILE.")
@mode
@stores
@click.argument("name")
@click.argument("file")
@click.pass_obj
def export(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    file: str,
    mode: str | None,
    version: str | None,
    branch: str | None,
    at: datetime | None,
    form: str | None,
    columns: tuple[str, ...],
    where: str | None,
    overwrite: bool,
) -> None:
    """Write the rows of a table to a file.

    FILE is Parquet, CSV, JSON lines or Arrow; '-' is standard output. It appears when it is complete.
    """
    kind = form or _format_of(file)
    if file != "-" and os.path.exists(file) and not overwrite:
        raise Refused(f"{file} exists. Choose another name, or add --overwrite")
    with chosen.catalog(functions, mode=mode) as catalog:
        dataset = catalog.open(name, **chosen_version(version, branch, at))
        with refusing(), _complete(file) as stream, progress("export") as report_progress:
            scanner = dataset.scanner(columns=list(columns) or None, filter=where, scan_in_order=True)
            batches = _reported(scanner.to_batches(), dataset.count_rows(), report_progress)
            rows = _write(kind, stream, scanner.projected_schema, batches)
    message(f"Wrote {rows:,} rows to {file}.")


@contextmanager
def _complete(file: str) -> Iterator[Any]:
    """Open a file that appears under its name once it is complete.

    A file that exists keeps its permissions and its symbolic link. A pipe or a device is written directly.
    """
    if file == "-":
        yield click.open_file("-", "wb")
        return
    place = Path(file)
    if place.exists() and not place.is_file():
        with place.open("wb") as stream:
            yield stream
        return
    place = place.resolve()
    partial = place.with_name(f"{place.name}.{os.getpid()}.part")
    try:
        with partial.open("xb") as stream:
            if place.exists():
                shutil.copymode(place, partial)
            yield stream
        partial.replace(place)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()


def _reported(batches: Iterator[Any], total: int, report: Callable[[int, int, str], None]) -> Iterator[Any]:
    """Report how many rows of a table are read."""
    done = 0
    for batch in batches:
        done += batch.num_rows
        report(done, total, "rows")
        yield batch


def _write(form: str, stream: IO[bytes], schema: Any, batches: Iterator[Any]) -> int:
    import pyarrow as pa

    written = 0

    def counted() -> Iterator[Any]:
        nonlocal written
        for batch in batches:
            written += batch.num_rows
            yield batch

    if form in ("csv", "jsonl"):
        rows = (row for batch in counted() for row in rows_of(batch))
        for line in csv_lines(schema.names, rows) if form == "csv" else json_lines(rows):
            stream.write(line.encode())
        return written
    if form == "parquet":
        import pyarrow.parquet as pq

        sink = pq.ParquetWriter(stream, schema)
    else:
        sink = pa.ipc.new_stream(stream, schema)
    with sink as writer:
        for batch in counted():
            writer.write_batch(batch)
    return written
