"""Two servers of one catalog, whose policy has quotas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pyarrow as pa
from rest_server import running

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.application.catalog import directory_of
from lancekeep.domain.authorization import Quota
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.quotas import Held
from lancekeep.entrypoints.metering import Meter
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.audit import AuditLog
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings

ARROW = "application/vnd.apache.arrow.stream"
ROWS = pa.table({"id": [1, 2]})
FAST = {"fsync": "false"}
GRANTS = """
[[grants]]
role = "admin"
on = ""
principals = ["key:root"]

[[grants]]
role = "write"
on = "ml"
principals = ["key:team"]

[[grants]]
rights = ["drop"]
on = "ml"
principals = ["key:team"]

[[grants]]
role = "write"
on = "ml.a"
principals = ["key:guest"]
"""


def stream(table: pa.Table = ROWS) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


@attrs.frozen
class Site:
    """Two servers of one catalog.

    Attributes:
        folder: The folder of the catalog, its policy and its audit log.
        catalog: The catalog, as an operator without limits opens it.
        keys: The API keys by name.
        uris: The addresses of the servers.
        meters: What measures bytes in each server.
    """

    folder: Path
    catalog: lancekeep.Catalog
    keys: dict[str, str]
    uris: list[str]
    meters: list[Meter]
    client: httpx.Client

    def limit(self, *quotas: str, more: str = "") -> None:
        (self.folder / "policy.toml").write_text(GRANTS + "".join(f"\n[[quotas]]\n{each}\n" for each in quotas) + more)

    def ask(self, path: str, body: Any = None, who: str = "team", server: int = 0, key: str = "") -> httpx.Response:
        headers = {"x-api-key": self.keys[who], **({"idempotency-key": key} if key else {})}
        if isinstance(body, bytes):
            headers["content-type"] = ARROW
            return self.client.post(self.uris[server] + path, content=body, headers=headers)
        return self.client.post(self.uris[server] + path, json={} if body is None else body, headers=headers)

    def held(self, name: str) -> Held:
        """Return what a subtree holds."""
        return directory_of(self.catalog).usage.measure([Quota(ObjectId.of(name), bytes=1)])[ObjectId.of(name)]

    def measure(self) -> None:
        for meter in self.meters:
            meter.measure()

    def tables(self) -> list[str]:
        return sorted(map(str, self.catalog.list_all_tables()))

    def stored(self) -> dict[str, tuple[int, int]]:
        """Return what is stored: each file with its size and its time."""
        files = (path for path in (self.folder / "lake").rglob("*") if path.is_file())
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}

    def audited(self) -> dict[str, Any]:
        line: dict[str, Any] = json.loads((self.folder / "audit.jsonl").read_text().splitlines()[-1])
        return line


@contextmanager
def site_of(connect: Callable[[], lancekeep.Catalog], tmp_path: Path, namespaces: Sequence[str]) -> Iterator[Site]:
    file = KeyFile(tmp_path / "keys.json")
    keys = {name: file.create(name)[1] for name in ("root", "team", "guest")}
    (tmp_path / "policy.toml").write_text(GRANTS)
    settings = ServerSettings(log_level="error", keys=str(file.path), policy=str(tmp_path / "policy.toml"))
    audit = AuditLog(tmp_path / "audit.jsonl")
    with ExitStack() as stack:
        uris: list[str] = []
        meters: list[Meter] = []
        for _ in range(2):
            catalog = stack.enter_context(connect())
            if not uris:
                catalog.initialize()
                for name in namespaces:
                    catalog.create_namespace(name)
                catalog.write("ml.t", ROWS)
                catalog.write("other.t", ROWS)
            own = directory_of(catalog)
            security = security_of(settings, {}, own.versions.base_paths, audit.reloaded, usage=own.usage)
            app = create_app(
                CatalogNamespace(catalog),
                settings,
                around=security.around,
                inside=security.inside,
                middleware=security.middleware,
                audit=audit,
                decisions=security.decisions,
                collectors=security.collectors,
            )
            uris.append(stack.enter_context(running(app)))
            assert security.meter is not None
            meters.append(security.meter)
        yield Site(tmp_path, catalog, keys, uris, meters, stack.enter_context(httpx.Client(timeout=60)))


def refused(answer: httpx.Response, *parts: str) -> str:
    """Return the message of a refusal by a quota."""
    assert (answer.status_code, answer.json()["code"]) == (403, 15), answer.text
    message: str = answer.json()["error"]
    for each in ("no room in quota 1: ", "ask an administrator for a higher quota", *parts):
        assert each in message, message
    return message
