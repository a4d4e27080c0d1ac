"""Uploads that are no Arrow stream, and values on which the engine panics: an error, and nothing is left."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from uuid import uuid4

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance_namespace.errors import ErrorCode, InternalError
from starlette.testclient import TestClient
from writers import stream

import lancekeep
from lancekeep.adapters.rest.routes import LEGACY_ROUTES, ROUTES, Body
from lancekeep.application.catalog import directory_of
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.ports.table_structure import FieldMetadata

PATIENCE = 120
"""Seconds after which a process counts as hanging."""
ROWS = pa.table({"a": pa.array(range(100), pa.int64()), "b": ["x" * 10] * 100})
WHOLE = stream(ROWS)
UPLOADS = [route for route in (*ROUTES, *LEGACY_ROUTES) if route.body is Body.ARROW]
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
QUIET = ServerSettings(log_level="critical")


def preceded(size: int) -> bytes:
    """Return the stream with another length of its schema."""
    return struct.pack("<iI", -1, size) + WHOLE[8:]


def with_wrong_text() -> bytes:
    """Return a stream whose text is no UTF-8: its frame is valid, its values are not."""
    return WHOLE.replace(b"x" * 10, b"\xff" * 10)


def with_growing_dictionary() -> bytes:
    """Return a stream whose dictionary has a million further values, without bytes, for each batch."""
    sink = pa.BufferOutputStream()
    schema = pa.schema([("a", pa.dictionary(pa.int32(), pa.null()))])
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as writer:
        for number in range(1, 101):
            column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.nulls(number << 20))
            writer.write_batch(pa.record_batch([column], schema.names))
    return bytes(sink.getvalue())


TOO_LARGE = ("a schema of 2 GB", "a schema of negative length", "a dictionary that grows")
"""The streams that are refused for the size that they state."""
MALFORMED = {
    "empty": b"",
    "text": b"[1, 2, 3]" * 100,
    "another format": b"ARROW1\0\0" + WHOLE,
    "half": WHOLE[: len(WHOLE) // 2],
    "without its last column": WHOLE[:-512],
    "a schema of 2 GB": preceded(2**31 - 16),
    "a schema of negative length": preceded(2**32 - 16),
    "values that are not valid": with_wrong_text(),
    "a dictionary that grows": with_growing_dictionary(),
}


def upload_all(root: str) -> None:
    """Send each malformed stream by each route and each method; print a line for each answer."""
    catalog = lancekeep.connect(root, commit_store=f"sqlite://{root}/commits.db")
    catalog.write("t", ROWS)
    namespace = CatalogNamespace(catalog)
    for keyed in (False, True):
        client = TestClient(create_app(namespace, QUIET))
        for route in UPLOADS:
            for name, body in MALFORMED.items():
                table = "n" if route.operation == "create_table" else "t"
                headers = {**ARROW, "idempotency-key": str(uuid4())} if keyed else ARROW
                parameters = {"on": "a", "when_not_matched_insert_all": "true"} if "merge" in route.operation else {}
                if "{id}" not in route.path:
                    parameters["id"] = table
                path = route.path.replace("{id}", table)
                answer = client.post(path, params=parameters, content=body, headers=headers)
                expected = 413 if name in TOO_LARGE else 400
                as_expected = (answer.status_code, answer.json()["code"]) == (expected, ErrorCode.INVALID_INPUT)
                print(json.dumps([as_expected, f"{path} {name}: {answer.status_code} {answer.text}"]))


def test_malformed_upload_is_invalid_input_on_every_route(tmp_path: Path) -> None:
    assert {route.operation for route in UPLOADS} == {"create_table", "insert_into_table", "merge_insert_into_table"}
    script = f"from test_malformed_streams import upload_all; upload_all({str(tmp_path)!r})"
    path = {"PYTHONPATH": ":".join(map(str, (Path(__file__).parent, Path(__file__).parents[1])))}
    arguments = ["timeout", "--signal=ABRT", str(PATIENCE), sys.executable, "-X", "faulthandler", "-c", script]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=path)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 2 * len(UPLOADS) * len(MALFORMED)
    assert [text for as_expected, text in answers if not as_expected] == []
    catalog = lancekeep.connect(str(tmp_path), commit_store=f"sqlite://{tmp_path}/commits.db")
    assert catalog.list_tables() == ["t"]
    assert lance.dataset(catalog.describe_table("t").uri).to_table() == ROWS


@pytest.mark.parametrize("name", [name for name in MALFORMED if name != "empty"])
@pytest.mark.parametrize(
    "operation",
    [
        "t/insert?mode=append",
        "t/insert?mode=overwrite",
        "t/merge_insert?on=a&when_matched_update_all=true&when_not_matched_insert_all=true",
        "t/merge_insert?on=a&when_not_matched_by_source_delete=true",
        "n/create",
    ],
)
def test_a_refused_body_has_the_same_answer_for_its_key(tmp_path: Path, operation: str, name: str) -> None:
    """Without a commit store, nothing but the stored answer says that the first attempt had no effect."""
    catalog = lancekeep.connect(str(tmp_path))
    catalog.write("t", ROWS)
    client = TestClient(create_app(CatalogNamespace(catalog), QUIET))
    headers = {**ARROW, "idempotency-key": str(uuid4())}
    answers = [client.post(f"/v1/table/{operation}", content=MALFORMED[name], headers=headers) for _ in range(2)]
    assert answers[0].status_code == (413 if name in TOO_LARGE else 400)
    assert answers[1].status_code == answers[0].status_code
    assert answers[1].json()["error"] == answers[0].json()["error"]
    assert catalog.open("t").version == 1


# -- panics --------------------------------------------------------------------------------------------------------

PANICS = pa.table(
    [pa.array([1, 2, 3] * 400, pa.int64())],
    schema=pa.schema([pa.field("a", pa.int64(), metadata={"lance-encoding:dict-size-ratio": "0"})]),
)
"""Rows whose field has an option on which pylance 14 panics when it writes a file."""


@pytest.fixture
def catalog(tmp_path: Path) -> lancekeep.Catalog:
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db")
    catalog.create_namespace("n")
    return catalog


def unreadable(catalog: lancekeep.Catalog) -> None:
    """Register a table on which pylance 14 panics when it reads the column."""
    kind = pa.list_(pa.struct([("a", pa.int32())]), 1)
    rows = pa.table({"x": pa.array([[{"a": 1}], [{"a": 2}], None], kind), "k": [1, 2, 3]})
    lance.write_dataset(
        rows, f"{directory_of(catalog).places.root_uri.removeprefix('file://')}/p.lance", data_storage_version="2.0"
    )


@pytest.mark.parametrize("name", ["t", "n.t"])
@pytest.mark.parametrize("rows", [PANICS, PANICS.to_reader])
@pytest.mark.parametrize("mode", ["create", "overwrite"])
def test_creation_on_which_the_engine_panics_leaves_nothing(
    catalog: lancekeep.Catalog, name: str, rows: Any, mode: str
) -> None:
    with pytest.raises(lancekeep.EngineFailed, match="engine failed"):
        catalog.write(name, rows() if callable(rows) else rows, mode)
    assert not catalog.table_exists(name)
    assert catalog.write(name, ROWS, "create").version == 1


def test_append_on_which_the_engine_panics_changes_nothing(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", ROWS.select(["a"]))
    option = FieldMetadata("a", {"lance-encoding:dict-size-ratio": "0"}, replace=False)
    catalog.structure.set_field_metadata(lancekeep.ObjectId.of("t"), [option], None)
    for rows in (PANICS, PANICS, PANICS.to_reader()):
        with pytest.raises(lancekeep.EngineFailed):
            catalog.write("t", rows, "append")
    assert lance.dataset(catalog.describe_table("t").uri).count_rows() == ROWS.num_rows


@pytest.mark.parametrize(
    "act",
    [
        lambda catalog: catalog.data.update(lancekeep.ObjectId.of("p"), {"k": "k + 1"}, None),
        lambda catalog: catalog.commit_change("p", lambda dataset: dataset.create_scalar_index("x", "ZONEMAP")),
        lambda catalog: catalog.commit_change("p", lambda dataset: dataset.take([0, 2])),
    ],
    ids=["update", "index", "take"],
)
def test_panic_on_stored_values_is_an_error_of_ours(
    catalog: lancekeep.Catalog, act: Callable[[lancekeep.Catalog], object]
) -> None:
    unreadable(catalog)
    with pytest.raises(lancekeep.EngineFailed, match="the table engine failed"):
        act(catalog)
    assert lance.dataset(catalog.describe_table("p").uri).version == 1


def test_panic_is_an_error_of_the_interface_and_of_the_server(catalog: lancekeep.Catalog) -> None:
    namespace = CatalogNamespace(catalog)
    with pytest.raises(InternalError, match="engine failed"):
        namespace.create_table(api.CreateTableRequest(id=["t"]), stream(PANICS))
    client = TestClient(create_app(namespace, QUIET))
    for key in ({}, {"idempotency-key": str(uuid4())}):
        answer = client.post("/v1/table/t/create", content=stream(PANICS), headers={**ARROW, **key})
        assert (answer.status_code, answer.json()["code"]) == (500, ErrorCode.INTERNAL)
        assert "engine failed" in answer.json()["error"]
    assert catalog.list_tables() == []


def test_panic_has_two_lines_at_the_command_line() -> None:
    class PanicException(BaseException):
        """What native code raises."""

    def connect(*arguments: object, **options: object) -> NoReturn:
        raise PanicException("index out of bounds")

    result = CliRunner().invoke(command, ["fsck", "lake"], obj=SimpleNamespace(connect=connect))
    assert (result.exit_code, type(result.exception)) == (1, SystemExit), result.output
    assert result.output.startswith("Error: the table engine failed")
    assert result.output.count("\n") == 2
