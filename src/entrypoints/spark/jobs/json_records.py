"""Records of JSON files: lines, or the items of one array."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.json

from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.spark.jobs.exact import may_lose_digits, require_exact_record

CHUNK = 1 << 20
"""Bytes that the readers of all formats request at once."""
_LONGEST_ITEM = 256 << 20


def numbered_records(stream: Any) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the records of a file in blocks of about a megabyte, numbered from 1.

    The records are the lines that are not empty, or the items if the file is one JSON array.

    Raises:
        ValueError: the array is broken.
    """
    number, rest = 0, b""
    while True:
        chunk = stream.read(CHUNK)
        if not number and not rest and chunk.lstrip()[:1] == b"[":
            for block in _by_the_megabyte(json.dumps(item).encode() for item in _items(chunk, stream)):
                yield list(enumerate(block, number + 1))
                number += len(block)
            return
        *lines, rest = (rest + chunk).split(b"\n") if chunk else [rest, b""]
        numbered = [(number + at, line) for at, line in enumerate(lines, 1) if line.strip()]
        number += len(lines)
        if numbered:
            yield numbered
        if not chunk:
            return


def parsed(
    lines: list[tuple[int, bytes]], schema: pa.Schema | None, unparsed: Callable[[int, str], None]
) -> Iterator[tuple[list[int], pa.Table]]:
    """Yield the records as tables, each with the numbers of its rows.

    Lines that do not parse are halved until single lines remain; ``unparsed`` receives their numbers and the reasons.
    """
    options = pa.json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "error"
    )
    parts = [lines] if lines else []
    while parts:
        part = parts.pop()
        content = b"\n".join(line for _, line in part)
        try:
            table = pa.json.read_json(
                pa.BufferReader(content), pa.json.ReadOptions(use_threads=False, block_size=len(content) + 1), options
            )
            if table.num_rows != len(part):
                raise InvalidInput(f"{len(part)} lines hold {table.num_rows} records; one is expected on each")
        except (InvalidInput, pa.ArrowException) as error:
            half = len(part) // 2
            if half:
                parts += [part[half:], part[:half]]
            else:
                unparsed(part[0][0], one_line(error))
            continue
        yield [number for number, _ in part], table


def is_exact(numbered: tuple[int, bytes], schema: pa.Schema, unparsed: Callable[[int, str], None]) -> bool:
    """Return whether a record loses no digit in a schema."""
    number, line = numbered
    if may_lose_digits(line):
        try:
            require_exact_record(line, schema)
        except InvalidInput as error:
            unparsed(number, str(error))
            return False
        except ValueError:  # The parser reports broken JSON.
            pass
    return True


def as_json_reads(stored: pa.DataType) -> pa.DataType:
    """Return the type that Arrow's JSON reader yields for a stored type."""
    is_ = pa.types
    if is_.is_list(stored) or is_.is_large_list(stored) or is_.is_fixed_size_list(stored):
        return pa.list_(as_json_reads(stored.value_type))
    if is_.is_struct(stored):
        return pa.struct([pa.field(child.name, as_json_reads(child.type)) for child in stored])
    if is_.is_dictionary(stored):
        return as_json_reads(stored.value_type)
    if is_.is_date(stored) or is_.is_time(stored):
        return pa.string()
    return pa.float32() if is_.is_float16(stored) else stored


def one_line(error: Exception) -> str:
    """Return the message of an error on one line, or else its type."""
    return " ".join(str(error).split()) or type(error).__name__


def _by_the_megabyte(records: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield records in blocks; if the next record is broken, yield the records before it first."""
    block: list[bytes] = []
    size = 0
    try:
        for record in records:
            block.append(record)
            size += len(record)
            if size >= CHUNK:
                yield block
                block, size = [], 0
    except ValueError:
        if block:
            yield block
        raise
    if block:
        yield block


def _items(chunk: bytes, stream: Any) -> Iterator[Any]:
    """Yield the items of one JSON array; at most one item and a megabyte are in memory.

    Raises:
        ValueError: the array is broken, has an item that is too long, or is not the end of the file.
    """
    decode = getincrementaldecoder("utf-8")().decode
    scan = json.JSONDecoder().raw_decode
    text, at, ended, first = decode(chunk).lstrip().removeprefix("["), 0, False, True
    while True:
        begin = _past_space(text, at)
        if first and text[begin : begin + 1] == "]":
            at = begin + 1
            break
        try:
            item, end = scan(text, begin)
            after = _past_space(text, end)
            if text[after] not in ",]":  # a number may continue after the text
                raise IndexError
        except (IndexError, json.JSONDecodeError):
            if ended or len(text) - at > _LONGEST_ITEM:
                raise ValueError("the array of records is broken, or holds a record that is too long") from None
            more = stream.read(max(CHUNK, len(text) - at))  # doubles for a long item
            text, at, ended = text[at:] + decode(more, final=not more), 0, not more
            continue
        yield item
        first, at = False, after + 1
        if text[after] == "]":
            break
    rest = text[at:]
    while not rest.strip():
        more = stream.read(CHUNK)
        if not more:
            return
        rest = decode(more)
    raise ValueError("the file continues after the array of records; expected its end")


def _past_space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at
