"""A catalog on S3 whose server vends credentials, and an S3 endpoint that enforces them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pytest
from deployments import bucket, s3_options
from s3_front import Answer, Asked

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.adapters.credential_vendors.sts import StsVendor
from lancekeep.application.catalog import directory_of
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings

ROLE = "arn:aws:iam::123456789012:role/lancekeep"
POLICY = """
[[grants]]
role = "read"
on = "a"
principals = ["key:reader"]

[[grants]]
role = "write"
on = "a"
principals = ["key:writer"]

[[grants]]
role = "read"
on = ""
principals = ["key:auditor"]

[[grants]]
rights = ["describe", "append", "create"]
on = "a"
principals = ["key:collector", "key:changer"]

[[grants]]
rights = ["read", "change", "schema", "index", "tag", "branch", "restore"]
on = "a"
principals = ["key:changer"]
"""


class Lake:
    """A catalog on S3 whose server vends credentials."""

    def __init__(self, moto_endpoint: str, folder: Path, *, through: str | None = None) -> None:
        self.options = s3_options(through or moto_endpoint)
        root = f"s3://{bucket(moto_endpoint)}/lake"
        self.catalog = lancekeep.connect(root, storage_options=self.options, commit_store=f"sqlite:///{folder}/c.db")
        self.catalog.create_namespace("a")
        self.catalog.write("a.t", pa.table({"id": [1]}))
        keys = KeyFile(folder / "keys.json")
        self.keys = {name: keys.create(name)[1] for name in ("reader", "writer", "auditor", "collector", "changer")}
        (folder / "policy.toml").write_text(POLICY)
        settings = ServerSettings(
            log_level="error",
            keys=str(keys.path),
            policy=str(folder / "policy.toml"),
            vending={"role_arn": ROLE, "duration": 900, "endpoint": moto_endpoint},
        )
        security = security_of(settings, self.options, directory_of(self.catalog).versions.base_paths)
        namespace = CatalogNamespace(self.catalog)
        self.app = create_app(namespace, settings, around=security.around, middleware=security.middleware)


def permits(policy: Mapping[str, Any], action: str, resource: str, prefix: str | None = None) -> bool:
    """Evaluate a policy as IAM does, as far as session policies of Lancekeep need it."""
    for statement in policy["Statement"]:
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        wanted = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
        resources = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
        if (
            action in actions
            and any(matches(each, resource) for each in resources)
            and (wanted is None or (prefix is not None and any(matches(each, prefix) for each in wanted)))
        ):
            return True
    return False


def matches(pattern: str, text: str) -> bool:
    parts = re.findall(r"\$\{[*?$]\}|.", pattern, re.DOTALL)
    wildcards = {"*": ".*", "?": "."}
    regex = "".join(wildcards.get(part) or re.escape(part[2] if len(part) > 1 else part) for part in parts)
    return re.fullmatch(regex, text, re.DOTALL) is not None


def unremembered(vendor: StsVendor, *arguments: Any) -> dict[str, str]:
    """Return new credentials, also if some are remembered."""
    return {**vendor._issue(*arguments).options, "expires_at_millis": "4000000000000"}


class Enforcing:
    """An S3 endpoint that permits what the session policy of the credentials permits, and refuses expired ones.

    moto itself ignores session policies, also with authorization enabled.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.policies: dict[str, Mapping[str, Any]] = {}
        self.expired: set[str] = set()
        self.refused: list[str] = []
        assume = StsVendor._assume

        def noted(vendor: StsVendor, policy: str, principal: str) -> Any:
            found = assume(vendor, policy, principal)
            self.policies[found["AccessKeyId"]] = json.loads(policy)
            return found

        monkeypatch.setattr(StsVendor, "_assume", noted)

    def answer(self, asked: Asked) -> Answer:
        key = re.search(
            "Credential=([^/]+)/", asked.headers.get("Authorization", asked.headers.get("authorization", ""))
        )
        policy = self.policies.get(key[1]) if key else None
        if policy is None:  # the credentials of the catalog
            return asked.forward()
        allowed = (
            key is not None
            and key[1] not in self.expired
            and all(permits(policy, *needed) for needed in needed_for(asked))
        )
        if allowed:
            return asked.forward()
        self.refused.append(f"{asked.method} {asked.path}")
        return Answer(403, {"Content-Type": "application/xml"}, b"<Error><Code>AccessDenied</Code></Error>")


def needed_for(asked: Asked) -> list[tuple[str, str, str | None]]:
    """Return the actions that a request needs, each with its resource and, for a listing, its prefix."""
    url = urlsplit(asked.path)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    path = f"arn:aws:s3:::{unquote(url.path).lstrip('/')}"
    if "/" not in path:
        return [("s3:ListBucket" if asked.method in ("GET", "HEAD") else "s3:Other", path, query.get("prefix"))]
    upload = "uploadId" in query
    actions = {
        "GET": "s3:ListMultipartUploadParts" if upload else "s3:GetObject",
        "HEAD": "s3:GetObject",
        "PUT": "s3:PutObject",
        "POST": "s3:PutObject",
        "DELETE": "s3:AbortMultipartUpload" if upload else "s3:DeleteObject",
    }
    found: list[tuple[str, str, str | None]] = [(actions[asked.method], path, None)]
    source = {name.lower(): value for name, value in asked.headers.items()}.get("x-amz-copy-source")
    return found if source is None else [*found, ("s3:GetObject", f"arn:aws:s3:::{unquote(source).lstrip('/')}", None)]
