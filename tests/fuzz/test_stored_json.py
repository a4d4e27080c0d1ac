"""Stored JSON with one member replaced: decoded or reported, never another error."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lancekeep import Damaged, InvalidInput, Unsupported
from lancekeep.application.partitions.arrow_json import schema_of
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.dropped import DropRecord
from lancekeep.domain.idempotency import Record, decode_entry
from lancekeep.domain.identifiers import DROPPED, ObjectId
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.domain.partitioning import PartitionSpec
from lancekeep.domain.view import SourceVersion, ViewDefinition
from lancekeep.format.begun_clone import BegunClone
from lancekeep.format.digests import decode_digests, digest_of
from lancekeep.format.json_files import hinted_version, parse_reference
from lancekeep.format.tags import Tag

HOSTILE: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 63, 1 << 64, 10**400, 1.5, float("inf"), float("nan"), "", "x", "\x00", "\ud800", [], [[]],
    [None], {}, {"type": "list"}, {"type": "fixed_size_list", "length": 1e999}, {"type": "struct", "fields": [3]},
)  # fmt: skip


def digests(content: bytes) -> object:
    return decode_digests(f"{digest_of(content).blake2b}.jsonl", content)


TAG = {"branch": None, "version": 1, "manifestSize": 9, "createdAt": "2026-01-01T00:00:00Z"}
DROPPED_KEY = ObjectId((DROPPED, "a", "0")).key
UUID = "0" * 8 + "-0000-4000-8000-" + "0" * 12
DECODERS: dict[str, tuple[Callable[[bytes], object], Any]] = {
    "tag": (lambda content: Tag.parse(content, "t"), TAG),
    "reference of a tag": (lambda content: parse_reference(content, "t"), TAG),
    "reference of a branch": (
        lambda content: parse_reference(content, "b"),
        {"parentBranch": None, "parentVersion": 1, "createAt": 1, "manifestSize": 9},
    ),
    "hint": (hinted_version, {"version": 1}),
    "begun clone": (
        BegunClone.parse,
        {"clone": {"source": "s", "version": 1, "transaction": UUID, "began": 1}},
    ),
    "digest": (digests, {"file": "data/a", "size": 9, "blake2b": "00", "start": 1}),
    "entry of a keyed request": (
        lambda content: decode_entry(content, "e"),
        {"kind": "taken_over", "attempt": "a"},
    ),
    "record of a keyed request": (
        lambda content: Record.decode(content.decode("utf-8", "surrogatepass")),
        {"attempt": 1, "id": ["a"], "properties": {"a": "b"}, "location": "a.lance"},
    ),
    "partition spec": (
        lambda content: PartitionSpec.from_json(content.decode()),
        {"id": 1, "fields": [{"field_id": "a", "source_ids": [1], "transform": {"type": "bucket", "num_buckets": 4},
                              "result_type": {"type": "int32"}}]},
    ),
    "schema": (
        lambda content: schema_of(content.decode()),
        {"fields": [{"name": "a", "nullable": True, "type": {"type": "decimal128", "length": 38010},
                     "metadata": {"lance:field_id": "0"}}], "metadata": {"k": "v"}},
    ),
    "properties": (
        lambda content: ManifestEntry("a", "namespace", metadata=content.decode()).properties,
        {"a": "b"},
    ),
    "view": (
        lambda content: ViewDefinition.parse(content.decode(), auto_refresh=False),
        {"table": ["a"], "branch": "b", "columns": ["c"], "filter": "d > 1"},
    ),
    "version of a source": (
        lambda content: SourceVersion.parse(content.decode()),
        {"location": "a", "version": 1, "transaction": "1-a.txn"},
    ),
    "record of a dropped table": (
        lambda content: DropRecord.from_entry(
            ManifestEntry(DROPPED_KEY, "namespace", "a.lance", json.dumps({"lancekeep.dropped": content.decode()}))
        ),
        {"at": 1, "until": 2, "by": "a", "purging": True},
    ),
    "token": (
        lambda content: CommitToken.parse(content.decode()),
        {"base_uri": "file:///a", "version": 1, "path": f"a/_versions/1.manifest-{UUID}", "size": 1, "begins": True,
         "committer": "a", "digest": ""},
    ),
}  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of the value, and of each member within it."""
    yield at
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from places(member, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], other: Any) -> Any:
    if not at:
        return other
    changed = copy.deepcopy(value)
    within = changed
    for key in at[:-1]:
        within = within[key]
    within[at[-1]] = other
    return changed


@pytest.mark.parametrize("name", DECODERS)
def test_json_with_a_replaced_member_is_decoded_or_reported(name: str) -> None:
    decode, sound = DECODERS[name]
    decoded = 0
    for at in places(sound):
        for other in HOSTILE:
            try:
                content = json.dumps(replaced(sound, at, other)).encode()
                decode(content)
                decoded += 1
            except (Damaged, InvalidInput, Unsupported):
                pass
            except Exception as error:
                pytest.fail(f"{content[:200]!r}: {error!r}")
    assert decoded
