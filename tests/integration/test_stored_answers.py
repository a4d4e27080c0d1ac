"""Stored answers of keyed requests are input: a damaged one is an error that says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest
from starlette.testclient import TestClient

import lancekeep
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.settings import ServerSettings

DAMAGED = {
    "cut off": "{",
    "list": "[1]",
    "empty": "{}",
    "nested": "[" * 100_000,
    "code": '{"refused": "x"}',
    "fields": '{"model": "CreateNamespaceResponse", "response": [1]}',
    "no model": '{"model": "errors", "response": {}}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_answer_is_an_error_that_names_the_way_on(tmp_path: Path, name: str) -> None:
    with (
        lancekeep.connect(str(tmp_path)) as catalog,
        TestClient(create_app(CatalogNamespace(catalog), ServerSettings(log_level="critical"))) as client,
    ):

        def create() -> tuple[int, str]:
            answer = client.post("/v1/namespace/n/create", json={}, headers={"idempotency-key": key})
            return answer.status_code, answer.text

        key = str(uuid4())
        assert create() == create() == (200, '{"properties":{}}')
        [stored] = [path for path in tmp_path.rglob("_requests/*/*.json") if b'"answered"' in path.read_bytes()]
        stored.write_text(json.dumps(json.loads(stored.read_text()) | {"answer": DAMAGED[name]}))
        status, text = create()
        assert status == 500
        assert "send another request with a new key" in text
        key = str(uuid4())
        assert create()[0] == 409
