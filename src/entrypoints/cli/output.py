"""Print the data of a command.

The form is a table for people, JSON, JSON lines, CSV or an Arrow stream. Data goes to stdout, messages go to stderr.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from itertools import chain, islice, zip_longest
from shutil import get_terminal_size
from typing import Any, ParamSpec, TypeVar

import attrs
import click
from rich.cells import cell_len, chop_cells

from lancekeep.entrypoints.cli.cells import cell, json_ready, json_text, moment, plain, size, values_of
from lancekeep.entrypoints.cli.console import message

P = ParamSpec("P")
T = TypeVar("T")
FORM = "lancekeep.form"
"""The key of `click.Context.meta` under which the commands of upkeep keep their form."""
FORMS = ("table", "json", "jsonl", "csv", "arrow")
TEXT, COUNT, BYTES, TIME, NUMBER, DIFFERENCE = "text", "count", "bytes", "time", "number", "difference"
_RIGHT = (COUNT, BYTES, NUMBER, DIFFERENCE)
_WHOLE = (*_RIGHT, TIME)
"""The kinds of columns that do not wrap."""
_NARROWEST, _GAP, _LONGEST_NAME = 10, 2, 24
"""The least width of a column of a table, the space between two columns, and the width of names beside values."""
_BATCH = 1000

Row = Mapping[str, Any]


@attrs.frozen
class Column:
    """A column of a result.

    Attributes:
        name: Its name.
        kind: What it holds: text, a count, bytes, a time, a number or a difference. None: any value.
    """

    name: str
    kind: str | None = TEXT

    def shown(self, value: Any, exact: bool) -> str:
        """Return a value for a table."""
        match self.kind:
            case _ if value is None:
                return "null" if self.kind in (None, NUMBER) else ""
            case "count":
                return str(value) if exact else f"{value:,}"
            case "difference":
                return f"{value:+,}" if value else "0"
            case "bytes":
                return str(value) if exact else size(value)
            case "time" if isinstance(value, datetime):
                return value.isoformat() if exact else moment(value)
            case "text" if isinstance(value, list):
                return ", ".join(map(plain, map(str, value)))
            case "text":
                return plain(str(value))
            case _:
                return cell(value, exact=exact)


@attrs.frozen
class Output:
    """Prints a result in the form that the caller chose.

    Attributes:
        form: One of `FORMS`.
        exact: Print whole values, all digits and plain bytes in tables.
    """

    form: str
    exact: bool = False

    def rows(self, columns: Sequence[Column], rows: Iterable[Row], none: str = "") -> None:
        """Print rows. In place of an empty table, print the message ``none``."""
        match self.form:
            case "json":
                _print_array(map(json_text, rows))
            case "jsonl":
                _print_lines(json_lines(rows))
            case "csv":
                _print_lines(csv_lines([column.name for column in columns], rows))
            case "arrow":
                _print_arrow(*_as_arrow(columns, rows))
            case _:
                shown = [
                    {column.name: column.shown(row.get(column.name), self.exact) for column in columns} for row in rows
                ]
                if shown:
                    _print_table(columns, shown)
                elif none:
                    message(none)

    def document(self, columns: Sequence[Column], found: Row) -> None:
        """Print one object: as a table, one line for each member with a value."""
        if self.form == "json":
            click.echo(json.dumps(json.loads(json_text(found)), indent=2, ensure_ascii=False))
        elif self.form == "table":
            given = [column for column in columns if found.get(column.name) not in (None, [], {}, "")]
            shown = {column.name: column.shown(found[column.name], self.exact) for column in given}
            _print_members(shown)
        else:
            self.rows(columns, [found])

    def number(self, name: str, value: int) -> None:
        """Print one number; in a table alone, so that a shell can use it."""
        if self.form == "table":
            click.echo(str(value))
        else:
            self.document([Column(name, COUNT)], {name: value})

    def batches(self, schema: Any, batches: Iterable[Any], none: str = "") -> None:
        """Print record batches of Arrow."""
        if self.form == "arrow":
            _print_arrow(schema, batches)
        else:
            rows = (row for batch in batches for row in rows_of(batch))
            self.rows([Column(field.name, _kind_of(field.type)) for field in schema], rows, none)


def rows_of(batch: Any) -> Iterator[Row]:
    """Return the rows of a record batch."""
    names = batch.schema.names
    return (dict(zip(names, row, strict=True)) for row in zip(*map(values_of, batch.columns), strict=True))


def _kind_of(arrow_type: Any) -> str | None:
    import pyarrow.types as types

    is_number = types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_decimal(arrow_type)
    return NUMBER if is_number else None


def output(command: Callable[P, T]) -> Callable[..., T]:
    """Add ``-o`` and ``--exact``; the command receives an `Output` as ``out``."""

    @click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(FORMS),
        default="table",
        show_default=True,
        help="Form of the result.",
    )
    @click.option("--exact", is_flag=True, help="In tables, print whole values, all digits, bytes and time zones.")
    @wraps(command)
    def with_output(*args: Any, form: str, exact: bool, **kwargs: Any) -> T:
        return command(*args, out=Output(form, exact), **kwargs)  # type: ignore[arg-type]  # adds `out`

    return with_output


def print_report(found: Any, member: str = "", of: type | None = None) -> None:
    """Print a report in the form of ``-o``: as one JSON document, or its rows.

    Args:
        found: The report, as values that JSON has.
        member: The member with the rows. By default, the report is the rows, or one row.
        of: The attrs class of the rows, which names the columns.
    """
    form = click.get_current_context().meta[FORM]
    if form == "json":
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    rows = found[member] if member else found if isinstance(found, list) else [found]
    fields = {each.name: each.type for each in attrs.fields(of)} if of else {}
    names = list(fields) or list(dict.fromkeys(name for row in rows for name in row))
    counted = [
        name for name in names if fields.get(name) == "int" or (rows and not fields and type(rows[0][name]) is int)
    ]
    Output(form).rows([Column(name, COUNT if name in counted else TEXT) for name in names], rows)


# -- forms of data -------------------------------------------------------------------------------------------------


def _print_array(texts: Iterable[str]) -> None:
    separator = "[\n  "
    for text in texts:
        click.echo(separator + text, nl=False)
        separator = ",\n  "
    click.echo("[]" if separator.startswith("[") else "\n]")


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line, nl=False)


def json_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Return rows as JSON lines."""
    return (f"{json_text(row)}\n" for row in rows)


def csv_lines(names: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """Return a header and rows as lines of CSV; nested values are JSON."""
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for values in chain([names], (map(_csv_value, map(row.get, names)) for row in rows)):
        writer.writerow(values)
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def _csv_value(value: Any) -> Any:
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    text = json_text(json_ready(value))
    return json.loads(text) if text.startswith('"') else text


def _as_arrow(columns: Sequence[Column], rows: Iterable[Row]) -> tuple[Any, Iterator[Any]]:
    import pyarrow as pa

    integer = pa.int64()
    types = {COUNT: integer, BYTES: integer, DIFFERENCE: integer, TIME: pa.timestamp("us", tz="UTC")}
    schema = pa.schema([(column.name, types.get(column.kind or TEXT, pa.string())) for column in columns])
    texts = [column.name for column in columns if column.kind not in types]

    def ready(row: Row) -> Row:
        return {**row, **{name: str(_csv_value(row[name])) for name in texts if row.get(name) is not None}}

    ready_rows = map(ready, rows)
    chunks = iter(lambda: list(islice(ready_rows, _BATCH)), [])
    return schema, (pa.RecordBatch.from_pylist(chunk, schema) for chunk in chunks)


def _print_arrow(schema: Any, batches: Iterable[Any]) -> None:
    import pyarrow as pa

    if sys.stdout.isatty():
        raise click.UsageError("-o arrow writes binary data; redirect stdout to a file or a program")
    with pa.ipc.new_stream(sys.stdout.buffer, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


# -- tables --------------------------------------------------------------------------------------------------------


def _width() -> int:
    """Return the width for tables. Without a terminal and without COLUMNS, lines do not wrap."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return max(int(os.environ["COLUMNS"]), _NARROWEST)
    return get_terminal_size().columns if sys.stdout.isatty() else 1 << 16


def print_folded(first: str, rest: str, text: str) -> None:
    """Print a text after the prefix ``first``; its other lines begin with ``rest``."""
    most = max(_width() - len(first), _NARROWEST)
    text = plain(text)
    for at in range(0, max(len(text), 1), most):
        click.echo(f"{rest if at else first}{text[at : at + most]}".rstrip())


def _print_table(columns: Sequence[Column], rows: Sequence[Mapping[str, str]]) -> None:
    """Print a table whose texts wrap; in a narrow terminal, row by row."""
    titles = {column.name: plain(column.name) for column in columns}
    whole = {
        name: max(cell_len(text) for text in (title, *(row[name] for row in rows))) for name, title in titles.items()
    }
    fixed = sum(whole[column.name] for column in columns if column.kind in _WHOLE)
    wrapping = [whole[column.name] for column in columns if column.kind not in _WHOLE]
    free = _width() - _GAP * (len(columns) - 1) - fixed
    most = _widest(wrapping, free)
    if most is None:
        for number, row in enumerate(rows, 1):
            click.secho(f"row {number}", bold=True)
            _print_members({name: value for name, value in row.items() if value})
        return
    widths = [whole[each.name] if each.kind in _WHOLE else min(whole[each.name], most) for each in columns]
    right = [column.kind in _RIGHT for column in columns]
    _print_row([titles[column.name] for column in columns], widths, right, bold=True)
    for row in rows:
        _print_row([row[column.name] for column in columns], widths, right)


def _widest(wrapping: Sequence[int], free: int) -> int | None:
    """Return the width to which columns must wrap to fit; None if they would be too narrow."""
    most = max(wrapping, default=0)
    while sum(min(each, most) for each in wrapping) > free:
        most -= 1
        if most < _NARROWEST:
            return None
    return most


def _print_members(members: Mapping[str, str]) -> None:
    names = [plain(name) for name in members]
    left = min(max(map(cell_len, names), default=0), _LONGEST_NAME)
    widths = [left, max(_width() - left - _GAP, _NARROWEST)]
    for name, value in zip(names, members.values(), strict=True):
        _print_row([name, value], widths, [False, False], bold_first=True)


def _print_row(
    texts: Sequence[str],
    widths: Sequence[int],
    right: Sequence[bool],
    *,
    bold: bool = False,
    bold_first: bool = False,
) -> None:
    """Print the cells of a row, each on as many lines as it needs."""
    for line in zip_longest(*(_wrapped(text, width) for text, width in zip(texts, widths, strict=True)), fillvalue=""):
        cells = []
        for at, (part, width, is_right) in enumerate(zip(line, widths, right, strict=True)):
            shown = click.style(part, bold=True) if part and (bold or (bold_first and at == 0)) else part
            space = " " * (width - cell_len(part))
            cells.append(f"{space}{shown}" if is_right else f"{shown}{space}")
        click.echo((" " * _GAP).join(cells).rstrip())


def _wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines, after a space in the second half of the line."""
    lines = []
    while cell_len(text) > width:
        first = chop_cells(text, width)[0]
        space = first.rfind(" ") + 1
        at = space if space > len(first) // 2 and not text[len(first)].isspace() else len(first)
        lines.append(text[:at].rstrip())
        text = text[at:].lstrip(" ")
    return [*lines, text]
