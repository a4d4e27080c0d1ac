"""Servers that vend credentials of Google Cloud Storage and Azure to native clients, before fakes that enforce them.

pylance reads and writes through the fakes (`fake_gcs`, `fake_azure`), which check every request as the clouds document
it. The served namespace is pylance's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import lance
import pyarrow as pa
import pytest
from contracts.test_commit_stores import self_signed
from fake_azure import FakeAzure
from fake_gcs import FakeGcs
from fake_storage import serving
from lance.namespace import DirectoryNamespace, RestNamespace
from lance_namespace import CreateNamespaceRequest, DescribeTableRequest
from rest_server import running
from starlette.testclient import TestClient
from vending import POLICY

from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.adapters.credential_vendors.azure import AzureVendor
from lancekeep.adapters.credential_vendors.remembered import Issued
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings

ADMIN = """
[[grants]]
role = "admin"
on = "a"
principals = ["key:admin"]
"""
DENIED = r"403|privileges|Permission"


class Lake:
    """A catalog in a cloud, with the tables ``a.t`` and ``a.neighbour``, and a server that vends credentials.

    Attributes:
        cloud: The fake.
        options: The storage options of the catalog.
        token: The name of the storage option with vended credentials.
    """

    def __init__(
        self, cloud: Any, root: str, options: Mapping[str, str], vending: Mapping[str, Any], token: str, folder: Path
    ) -> None:
        self.cloud, self.options, self.token = cloud, dict(options), token
        self.own = DirectoryNamespace(root=root, **{f"storage.{name}": value for name, value in options.items()})
        self.own.create_namespace(CreateNamespaceRequest(id=["a"]))
        for name, rows in (("t", [1]), ("neighbour", [9])):
            self.write(self.own, rows, name, "create", self.options)
        keys = KeyFile(folder / "keys.json")
        self.keys = {name: keys.create(name)[1] for name in ("reader", "writer", "admin", "collector")}
        (folder / "policy.toml").write_text(POLICY + ADMIN)
        policy = str(folder / "policy.toml")
        settings = ServerSettings(log_level="error", keys=str(keys.path), policy=policy, vending=vending)
        security = security_of(settings, self.options)
        self.app = create_app(self.own, settings, around=security.around, middleware=security.middleware)

    def write(self, namespace: Any, rows: Any, name: str, mode: str, options: Mapping[str, str] | None = None) -> None:
        data = rows if isinstance(rows, pa.RecordBatchReader) else pa.table({"id": rows})
        lance.write_dataset(
            data, namespace_client=namespace, table_id=["a", name], mode=mode, storage_options=dict(options or {})
        )

    def client(self, uri: str, who: str) -> RestNamespace:
        return RestNamespace(uri=uri, **{"header.x-api-key": self.keys[who]})

    def location(self, name: str) -> str:
        return str(self.own.describe_table(DescribeTableRequest(id=["a", name])).location)

    def rows(self, name: str) -> list[int]:
        found = lance.dataset(self.location(name), storage_options=self.options).to_table()
        return sorted(found["id"].to_pylist())

    def expire(self, options: Mapping[str, str]) -> None:
        """Make the storage refuse these credentials."""
        token = options[self.token]
        self.cloud.expired.add(token if self.token == "google_storage_token" else parse_qs(token)["sig"][0])


@pytest.fixture(params=["gcs", "azure"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    if request.param == "gcs":
        gcs = FakeGcs()
        with serving(gcs) as url:
            (tmp_path / "key.json").write_text(gcs.key_file(url))
            options = {"google_base_url": url, "allow_http": "true", "google_storage_token": gcs.account_token()}
            vending = {"cloud": "gcs", "credentials": str(tmp_path / "key.json"), "endpoint": f"{url}/v1/token"}
            yield Lake(gcs, "gs://bucket/lake", options, vending, "google_storage_token", tmp_path)
        return
    azure, certificate, later = FakeAzure(), self_signed(tmp_path), count()
    ticking = lambda: time.time() + next(later)  # noqa: E731 - two SAS of one second would be the same
    monkeypatch.setitem(AzureVendor.__init__.__kwdefaults__ or {}, "now", ticking)
    with serving(azure, certificate) as url:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificate[0])
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{url}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "header")
        options = {"azure_storage_endpoint": url, "azure_storage_account_name": "lancekeep"}
        options |= {"allow_invalid_certificates": "true", "azure_storage_token": "entra-token"}
        yield Lake(azure, "az://container/lake", options, {"cloud": "azure"}, "azure_storage_sas_token", tmp_path)


def test_a_server_vends_credentials_by_right(lake: Lake) -> None:
    secrets = {value for name, value in lake.options.items() if "token" in name}
    with TestClient(lake.app) as client:

        def asked(who: str, body: dict[str, Any]) -> Any:
            return client.post("/v1/table/a$t/describe", headers={"x-api-key": lake.keys[who]}, json=body)

        for who in ("reader", "writer", "admin"):
            options = asked(who, {}).json()["storage_options"]
            assert int(options["expires_at_millis"]) > 0
            assert not secrets & set(options.values())
            assert asked(who, {"vend_credentials": False}).json().get("storage_options") is None
        assert asked("collector", {}).json().get("storage_options") is None
        assert asked("collector", {"vend_credentials": True}).status_code == 403


def test_vended_credentials_reach_one_table(lake: Lake) -> None:
    neighbour = lake.location("neighbour")
    with running(lake.app) as uri:
        for who in ("reader", "writer"):
            namespace = lake.client(uri, who)
            dataset = lance.dataset(namespace_client=namespace, table_id=["a", "t"])
            assert dataset.to_table()["id"].to_pylist() == [1]
            vended = namespace.describe_table(DescribeTableRequest(id=["a", "t"])).storage_options
            with pytest.raises((OSError, ValueError), match=DENIED):
                lance.dataset(neighbour, version=1, storage_options=vended)
        with pytest.raises((OSError, ValueError), match=DENIED):
            lake.write(lake.client(uri, "reader"), [2], "t", "append")
        assert lake.cloud.refused
        lake.write(lake.client(uri, "writer"), [3], "t", "append")
    assert (lake.rows("t"), lake.rows("neighbour")) == ([1, 3], [9])


def test_a_write_that_outlives_its_credentials_continues_with_new_ones(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage refuses the first credentials while the rows are written."""
    vended: list[Mapping[str, str]] = []
    expired: list[Mapping[str, str]] = []

    def short_lived(_: object, question: object, issue: Callable[[], Issued]) -> dict[str, str]:
        issued = issue()
        vended.append(issued.options)
        return {**issued.options, "expires_at_millis": str(int(issued.expires * 1000)) if expired else "1"}

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(5):
            yield pa.record_batch({"id": [number]})
        expired.extend(vended)
        for options in expired:
            lake.expire(options)

    monkeypatch.setattr("lancekeep.adapters.credential_vendors.remembered.Remembered.vend", short_lived)
    with running(lake.app) as uri:
        rows = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches())
        lake.write(lake.client(uri, "writer"), rows, "t", "append")
    assert len(vended) > len(expired) > 0
    assert lake.rows("t") == [0, 1, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("vending", "message"),
    [
        ({"cloud": "oracle"}, "choose aws, gcs, azure"),
        ({"cloud": ["gcs"]}, "choose aws, gcs, azure"),
        ({"cloud": "gcs", "role_arn": "arn:x"}, "unknown key 'role_arn'"),
        ({"cloud": "gcs", "credentials": 3}, "give text"),
        ({"cloud": "azure", "credentials": "x"}, "unknown key 'credentials'"),
        ({"cloud": "azure"}, "name of a storage account"),
        ({"cloud": "azure", "account": "lancekeep", "duration": "1h"}, "give a number"),
        ({"cloud": "azure", "account": "lancekeep", "duration": 60}, "give 900 to 43200"),
        ({"cloud": "azure", "account": "lancekeep", "endpoint": "http://x"}, "https URL"),
        ({"role_arn": "x"}, "ARN of a role"),
    ],
)
def test_invalid_settings_are_refused_at_the_start(tmp_path: Path, vending: dict[str, Any], message: str) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    keys.create("ada")
    with pytest.raises(InvalidInput, match=message):
        security_of(ServerSettings(keys=str(keys.path), vending=vending), {})
