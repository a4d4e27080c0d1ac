"""Corrupt objects of the store: manifests, files of the manifest table, hints and properties."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lance
import pyarrow as pa
from fuzz.foreign import DEEP, FUZZ, JSON, SLOW, mutated, read, texts
from hypothesis import example, given
from hypothesis import strategies as st

import lancekeep
from lancekeep import Damaged
from lancekeep.adapters.commit_stores.conditional_put import ConditionalPutCommitStore
from lancekeep.adapters.manifest_stores.columns import SCHEMA
from lancekeep.adapters.manifest_stores.directory_listing import DirectoryListing
from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.adapters.manifest_stores.table_versions import TableVersions
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.domain.catalog import Put
from lancekeep.domain.dataset_files import Place
from lancekeep.domain.errors import ObjectNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.domain.namespace import find_namespace
from lancekeep.domain.table import find_table
from lancekeep.format.file_references import names_in
from lancekeep.format.json_files import parse_reference
from lancekeep.format.lineage import Manifest, difference
from lancekeep.format.manifest import ManifestFile, reads_version_zero
from lancekeep.format.messages import Transaction

STORED = (Damaged, lancekeep.Refused, ObjectNotFound)
"""What stored things may be answered with; never that the caller's input was wrong."""


SMALL = st.one_of(
    st.binary(max_size=60),
    JSON.map(lambda value: json.dumps(value).encode()),
    JSON.map(lambda value: json.dumps({"version": value}).encode()),
    st.sampled_from(
        (DEEP.encode(), b'{"version": Infinity}', b'{"version": "9"}', b'{"version": ' + b"9" * 4000 + b"}")
    ),
)


@cache
def objects() -> dict[str, bytes]:
    """A manifest table of the native engine with deletions and indexes, by the keys of its files."""
    rows = [
        {"object_id": f"n{number}", "object_type": "namespace", "metadata": '{"k":"v"}'} for number in range(30)
    ] + [{"object_id": f"t{number}", "object_type": "table", "location": f"t{number}.lance"} for number in range(30)]
    with TemporaryDirectory() as directory:
        table = lance.write_dataset(
            pa.Table.from_pylist(rows, schema=SCHEMA), f"{directory}/m", data_storage_version="2.2",
            enable_v2_manifest_paths=True, max_rows_per_file=20,
        )  # fmt: skip
        table.create_scalar_index("object_id", "BTREE")
        table.delete("object_id in ('n3', 't4')")
        files = [path for path in Path(directory, "m").rglob("*") if path.is_file()]
        return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def of(directory: str) -> str:
    """The first key in a directory of it, which for manifests is the latest version."""
    return min(key for key in objects() if key.startswith(f"m/{directory}/"))


def stored(**changed: bytes) -> MemoryObjectStore:
    store = MemoryObjectStore()
    for key, content in {**objects(), **{key.replace("|", "/"): content for key, content in changed.items()}}.items():
        store.put(key, content)
    return store


def look(view: Any) -> None:
    """Call every method of a view that the catalog uses."""
    root = ObjectId()
    view.children(root, "table", None, None)
    view.children(root, "namespace", "n2", 3)
    view.owner_of("t1.lance/data")
    for entry in [*view.descendants(root), *view.all_of("table")]:
        found = ObjectId.from_key(entry.object_id)
        read(lambda: find_namespace(view, found), lancekeep.NotFound, *STORED)  # noqa: B023 - called immediately
        read(lambda: find_table(view, found), lancekeep.NotFound, *STORED)  # noqa: B023 - called immediately


def understand(content: bytes, store: MemoryObjectStore) -> None:
    version = read(lambda: TableVersions(store, "m").read(content, None), *STORED)
    if version is not None:
        read(lambda: look(version.view), *STORED)


def decode(content: bytes) -> None:
    """Decode everything that a commit reads of a staged manifest."""
    with suppress(ValueError):
        read(lambda: reads_version_zero(content))
    with suppress(ValueError):
        read(lambda: compare(Manifest(content)))


def compare(staged: Manifest) -> None:
    """Compare a manifest with an intact one, in both directions, and decode its transaction."""
    intact = Manifest(objects()[of("_versions")])
    difference(staged, intact)
    difference(intact, staged)
    staged.change()


@FUZZ
@given(st.binary(max_size=200))
@example(b"LANC")
@example(struct.pack("<QHH4s", 2**64 - 1, 0, 2, b"LANC"))
@example(b"\xff\xff\xff\xff" + struct.pack("<QHH4s", 0, 0, 2, b"LANC"))
def test_any_bytes_are_parsed_or_refused_as_manifest(content: bytes) -> None:
    read(lambda: ManifestFile.parse(content, "m"), Damaged)
    decode(content)
    decode(content + b"LANC")
    understand(content, stored())


@FUZZ
@given(st.data())
def test_mutated_manifest_is_parsed_or_refused(data: st.DataObject) -> None:
    content = data.draw(mutated(objects()[of("_versions")]))
    read(lambda: ManifestFile.parse(content, "m"), Damaged)
    decode(content)
    decode(content + b"LANC")
    understand(content, stored())


INTEGERS = st.one_of(st.sampled_from((0, 1, 2, 3, 2**31 - 1, 2**32, 2**63, 2**64 - 1)), st.integers(0, 30))


@FUZZ
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("rows", "path", "parent", "id", "column", "deletion", "type", "kind", "base", "flags")),
            st.integers(0, 10),
            INTEGERS,
            texts("/.$"),
        ),
        min_size=1,
        max_size=3,
    )
)
@example([("parent", 4, 5, "")])
@example([("parent", 4, 77, "")])
@example([("rows", 0, 2**40, "")])
@example([("path", 0, 0, "../../x")])
@example([("kind", 0, 1, "")])
def test_manifest_with_other_fields_is_parsed_or_refused(changes: list[tuple[str, int, int, str]]) -> None:
    manifest = ManifestFile.parse(objects()[of("_versions")], "m").manifest
    for what, at, number, text in changes:
        fragment = manifest.fragments[at % len(manifest.fragments)]
        field = manifest.fields[at % len(manifest.fields)]
        file = fragment.files[0]
        match what:
            case "rows":
                fragment.physical_rows = number
            case "path":
                file.path = text
            case "parent":
                field.parent_id = number % 2**31
            case "id":
                field.id = number % 2**31
            case "column":
                file.fields[:] = [number % 2**31] * (at % 4)
            case "deletion":
                fragment.deletion_file.id = number
            case "type":
                field.name = text
            case "kind":
                fragment.deletion_file.file_type = number % 2**32
            case "base":
                file.base_id = number % 2**32
            case "flags":
                manifest.reader_feature_flags = number
    understand(ManifestFile(manifest, None).serialize(Transaction()), stored())


@SLOW
@given(st.data(), st.sampled_from(("_deletions", "data")))
def test_changed_files_of_the_manifest_table(data: st.DataObject, directory: str) -> None:
    content = data.draw(st.one_of(mutated(objects()[of(directory)]), st.binary(max_size=50)))
    understand(objects()[of("_versions")], stored(**{of(directory): content}))


def test_corrupt_data_file_is_read_or_refused() -> None:
    """Damage that the engine reports by a RuntimeError."""
    understand(objects()[of("_versions")], stored(**{of("data"): b"\1" + objects()[of("data")][1:]}))


@FUZZ
@given(st.binary(max_size=100))
@example(b"")
def test_bitmap_deletion_file_is_read_or_refused(content: bytes) -> None:
    """A bitmap, in the portable format of Roaring."""
    manifest = ManifestFile.parse(objects()[of("_versions")], "m").manifest
    fragment = next(fragment for fragment in manifest.fragments if fragment.HasField("deletion_file"))
    file = fragment.deletion_file
    file.file_type = 1
    key = f"m/_deletions/{fragment.id}-{file.read_version}-{file.id}.bin"
    understand(ManifestFile(manifest, None).serialize(Transaction()), stored(**{key: content}))


@FUZZ
@given(st.data())
def test_mutated_files_that_cleanup_reads(data: st.DataObject) -> None:
    content = data.draw(st.one_of(mutated(objects()[of("_versions")]), st.binary(max_size=60), SMALL))
    read(lambda: names_in(content, "m"), Damaged)
    read(lambda: parse_reference(content, "x"), Damaged)


@FUZZ
@given(
    st.one_of(texts("/._-0123456789"), *(texts("0-./").map(start.__add__) for start in ("data/", "_deletions/1-1-")))
)
@example("data/\udcff.lance")
@example("_deletions/1-1-" + "9" * 5000 + ".arrow")
@example("_deletions/1-1-\u0663.arrow")
@example(f"_deletions/1-1-{2**80}.bin")
def test_names_of_files_that_a_clean_up_meets(path: str) -> None:
    place = read(lambda: Place.of(path))
    if place is not None:
        read(lambda: place.own_name)


# -- rows that a foreign writer entered --------------------------------------------------------------------------

METADATA = st.one_of(st.none(), JSON.map(json.dumps), texts('{}":[],'), st.sampled_from((DEEP, "NaN", '{"a":1}', "{}")))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "object_id": st.one_of(texts("$"), st.sampled_from(("", "$", "a$$b", "$a", "a$", "a"))),
            "object_type": st.one_of(st.sampled_from(("table", "namespace", "view", "")), st.text(max_size=5)),
            "location": st.one_of(st.none(), texts("/.$%\\"), st.sampled_from(("..", "/x", "__manifest", "a.lance"))),
            "metadata": METADATA,
        }
    ),
    min_size=1,
    max_size=6,
)


def encodable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: text and text.encode("utf-8", "replace").decode() for name, text in row.items()} for row in rows]


@SLOW
@given(ROWS)
@example([{"object_id": "a", "object_type": "namespace", "location": None, "metadata": "[1]"}])
@example([{"object_id": "a", "object_type": "table", "location": "a.lance", "metadata": DEEP}])
@example([{"object_id": "a", "object_type": "table", "location": "a.lance", "metadata": '{"k": 1}'}])
@example([{"object_id": "a", "object_type": "table", "location": "." * 1000, "metadata": None}])
def test_rows_with_odd_values(rows: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as directory:
        odd = pa.Table.from_pylist(encodable(rows), schema=SCHEMA)
        lance.write_dataset(odd, f"{directory}/lake/__manifest", data_storage_version="2.2")
        namespace = lancekeep.DirectoryNamespace(root=f"{directory}/lake", dir_listing_enabled="false")
        catalog = namespace.catalog
        known = lancekeep.NotFound, *STORED
        read(catalog.list_tables, *STORED)
        read(catalog.list_namespaces, *STORED)
        read(lambda: list(catalog.list_all_tables()), *STORED)
        read(catalog.upkeep.fsck, *STORED)
        for row in encodable(rows):
            try:
                name = ObjectId.of(row["object_id"].split("$"))
            except lancekeep.InvalidInput:
                continue
            calls: tuple[Callable[[], Any], ...] = (
                lambda: catalog.describe_table(name),  # noqa: B023 - called immediately
                lambda: catalog.describe_namespace(name),  # noqa: B023 - called immediately
                lambda: catalog.open(name),  # noqa: B023 - called immediately
            )
            for call in calls:
                read(call, *known)
        read(lambda: catalog.declare_table("fresh"), lancekeep.TableAlreadyExists, *STORED)
        read(lambda: catalog.drop_namespace("a", cascade=True), *known)


# -- small files -------------------------------------------------------------------------------------------------


@FUZZ
@given(SMALL)
@example(b'{"version": Infinity}')
@example(b'{"version": -1}')
@example(DEEP.encode())
def test_version_hints_never_change_result(content: bytes) -> None:
    store = MemoryObjectStore()
    manifests = LanceManifestStore(store, "m")
    manifests.apply(lambda view: ([Put(ManifestEntry("n", "namespace"))], None))
    store.put("m/_versions/latest_version_hint.json", content)
    view = read(LanceManifestStore(store, "m").view)
    assert view is not None
    assert view.version == 1
    latest = read(lambda: ConditionalPutCommitStore(store).latest(f"{store.root_uri}m"))
    assert latest is not None
    assert latest.version == 1


@FUZZ
@given(SMALL)
@example(DEEP.encode())
@example(b'{"lancekeep.commit_store": 5}')
def test_what_a_v1_directory_remembers(content: bytes) -> None:
    store = MemoryObjectStore()
    store.put("lake/.lancekeep.json", content)
    properties = read(lambda: DirectoryListing(store, "lake").view().properties, Damaged)
    assert properties is None or all(isinstance(text, str) for pair in properties.items() for text in pair)


@SLOW
@given(SMALL)
def test_opening_a_directory_that_remembers_something(content: bytes) -> None:
    with TemporaryDirectory() as directory:
        Path(directory, ".lancekeep.json").write_bytes(content)
        read(lambda: lancekeep.connect(directory, mode="v1").list_tables(), *STORED)
        read(lambda: lancekeep.connect(directory).list_tables(), *STORED)
