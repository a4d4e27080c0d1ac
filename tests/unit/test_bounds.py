"""Limits of the lists and names of one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance_namespace as api
import pytest
from starlette.testclient import TestClient

import lancekeep
from lancekeep.domain.bounds import LONGEST_NAME, MOST_ITEMS, MOST_TOGETHER
from lancekeep.domain.identifiers import LONGEST
from lancekeep.domain.properties import MOST_CHARACTERS, MOST_PROPERTIES
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.settings import ServerSettings

LONG_NAME = "x" * (LONGEST_NAME + 1)
LONG, MANY, TOGETHER = "x" * (LONGEST + 1), MOST_ITEMS + 1, MOST_TOGETHER + 1
VERSION = {"id": ["t"], "version": 2, "manifest_path": "x", "naming_scheme": "V2"}
KEYS = {str(number): "" for number in range(MOST_PROPERTIES + 1)}

REQUESTS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "query vectors": (
        "query_table",
        "t/query",
        {"k": 1, "vector": {"multi_vector": [[1.0]] * MANY}},
        "vector has 10,001 entries; at most 10,000",
    ),
    "query columns": (
        "query_table",
        "t/query",
        {"k": 1, "vector": {}, "columns": {"column_aliases": {f"c{number}": "id" for number in range(MANY)}}},
        "columns has 10,001 entries; at most 10,000",
    ),
    "updates": (
        "update_table",
        "t/update",
        {"updates": [[f"c{number}", "1"] for number in range(MANY)]},
        "updates has 10,001 entries; at most 10,000",
    ),
    "new columns": (
        "alter_table_add_columns",
        "t/add_columns",
        {"new_columns": [{"name": f"c{number}", "expression": "1"} for number in range(MANY)]},
        "new_columns has 10,001 entries; at most 10,000",
    ),
    "computed columns": (
        "alter_table_add_columns",
        "t/add_columns",
        {"new_columns": [{"name": f"c{number}", "computed": "1"} for number in range(MANY)]},
        "new_columns has 10,001 entries; at most 10,000",
    ),
    "alterations": (
        "alter_table_alter_columns",
        "t/alter_columns",
        {"alterations": [{"path": "id", "rename": "x"}] * MANY},
        "alterations has 10,001 entries; at most 10,000",
    ),
    "dropped columns": (
        "alter_table_drop_columns",
        "t/drop_columns",
        {"columns": ["id"] * MANY},
        "columns has 10,001 entries; at most 10,000",
    ),
    "metadata": (
        "update_table_schema_metadata",
        "t/schema_metadata/update",
        {"metadata": KEYS},
        "metadata: 10,001 keys are too many; give at most 10,000",
    ),
    "large metadata": (
        "update_table_schema_metadata",
        "t/schema_metadata/update",
        {"metadata": {"k": "v" * MOST_CHARACTERS}},
        "metadata: 16,777,217 characters are too many; give at most 16,777,216",
    ),
    "metadata of a field": (
        "update_field_metadata",
        "t/update_field_metadata",
        {"updates": [{"path": "id", "metadata": KEYS}]},
        "metadata: 10,001 keys are too many; give at most 10,000",
    ),
    "fields": (
        "update_field_metadata",
        "t/update_field_metadata",
        {"updates": [{"path": f"c{number}", "metadata": {}} for number in range(MANY)]},
        "updates has 10,001 entries; at most 10,000",
    ),
    "ranges": (
        "batch_delete_table_versions",
        "t/version/delete",
        {"ranges": [{"start_version": 1, "end_version": 2}] * MANY},
        "ranges has 10,001 entries; at most 10,000",
    ),
    "new tag": ("create_table_tag", "t/tags/create", {"tag": LONG, "version": 1}, "has 247 bytes; at most 246"),
    "moved tag": ("update_table_tag", "t/tags/update", {"tag": LONG, "version": 1}, "has 247 bytes; at most 246"),
    "read tag": ("get_table_tag_version", "t/tags/version", {"tag": LONG}, "has 247 bytes; at most 246"),
    "removed tag": ("delete_table_tag", "t/tags/delete", {"tag": LONG}, "has 247 bytes; at most 246"),
    "new branch": ("create_table_branch", "t/branches/create", {"name": LONG}, "has 247 bytes; at most 246"),
    "new index": (
        "create_table_scalar_index",
        "t/create_scalar_index",
        {"column": "id", "index_type": "BTREE", "name": LONG_NAME},
        "has 4,097 bytes; at most 4,096",
    ),
    "new column": (
        "alter_table_add_columns",
        "t/add_columns",
        {"new_columns": [{"name": LONG_NAME, "expression": "1"}]},
        "has 4,097 bytes; at most 4,096",
    ),
    "renamed column": (
        "alter_table_alter_columns",
        "t/alter_columns",
        {"alterations": [{"path": "id", "rename": LONG_NAME}]},
        "has 4,097 bytes; at most 4,096",
    ),
    "versions": (
        "batch_create_table_versions",
        "version/batch-create",
        {"entries": [VERSION] * TOGETHER},
        "entries has 1,001 entries; at most 1,000",
    ),
    "operations": (
        "batch_commit_tables",
        "batch-commit",
        {"operations": [{"declare_table": {"id": [f"t{number}"]}} for number in range(TOGETHER)]},
        "operations has 1,001 entries; at most 1,000",
    ),
}
"""The operation, its path, its fields and the message of each request, about a table that does not exist."""


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_beyond_a_limit_is_refused_before_it_reads_anything(tmp_path: Path, name: str) -> None:
    operation, path, fields, message = REQUESTS[name]
    with lancekeep.connect(str(tmp_path)) as catalog:
        namespace = CatalogNamespace(catalog)
        identifier = {} if "batch" in path else {"id": ["t"]}
        with pytest.raises(api.errors.InvalidInputError, match=message):
            getattr(namespace, operation)({**identifier, **fields})
        settings = ServerSettings(log_level="error", largest_document=32 << 20)
        with TestClient(create_app(namespace, settings)) as client:
            body = fields["metadata"] if operation == "update_table_schema_metadata" else fields
            answer = client.post(f"/v1/table/{path}", json=body)
        assert answer.status_code == 400
        assert message in answer.json()["detail"]
        assert catalog.list_tables("") == []
