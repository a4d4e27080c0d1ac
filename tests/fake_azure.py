"""A storage account of Azure, and the endpoint of its managed identity, which enforce a SAS on every request.

What they enforce is in these pages of Microsoft's documentation:

- "Create a user delegation SAS": the string to sign of each version, ``sr=d`` with ``sdd`` only with a hierarchical
  namespace, and the permissions of operations.
- "Get User Delegation Key": Microsoft Entra authorization alone; the key ends within seven days.
- "Filesystem - Get Properties": the header ``x-ms-namespace-enabled``.

A listing is within a directory if its prefix is: without one, Azure answers "Signed Directory Depth Invalid"
(EnterpriseDB/barman, pull request 1093).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import attrs
from fake_storage import DATE, Answer, Asked, Objects, element

OID, TENANT = "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"
RESOURCE = "https://storage.azure.com"


@attrs.define
class FakeAzure:
    """The account, with one principal that may do everything.

    Attributes:
        account: The name of the account.
        hierarchical: Whether it has a hierarchical namespace.
        secret: The secret that its user delegation keys are derived from.
        now: The time of the account in seconds since 1970; None for the clock.
        asked: How many keys and tokens were asked for.
        down: Whether the account fails.
        refuses: Whether the principal may do nothing.
    """

    account: str = "lancekeep"
    hierarchical: bool = True
    secret: bytes = b"secret"
    objects: Objects = attrs.field(factory=Objects)
    blocks: dict[tuple[str, str], dict[str, bytes]] = attrs.field(factory=dict)
    refused: list[str] = attrs.field(factory=list)
    expired: set[str] = attrs.field(factory=set)
    asked: dict[str, int] = attrs.field(factory=lambda: {"key": 0, "token": 0})
    now: float | None = None
    down: bool = False
    refuses: bool = False

    def answer(self, asked: Asked) -> Answer:
        if asked.path == "/msi/token":
            return self._token(asked)
        if self.down:
            return Answer(503)
        bearer = asked.headers.get("authorization", "")
        if bearer:
            known = bearer == "Bearer entra-token" and not self.refuses
            return self._as_identity(asked) if known else Answer(403, b"", {"x-ms-error-code": "NotPermitted"})
        fault = self._fault(asked)
        if fault is not None:
            self.refused.append(f"{asked.method} {asked.key or asked.query.get('prefix', '')}: {fault}")
            return Answer(403, f"<Error><Code>{fault}</Code></Error>".encode(), {"x-ms-error-code": fault})
        return self._perform(asked)

    def _token(self, asked: Asked) -> Answer:
        """Answer as the endpoint of managed identities in App Service does."""
        if asked.headers.get("x-identity-header") != "header" or asked.query["resource"].strip("/") != RESOURCE:
            return Answer(400)
        self.asked["token"] += 1
        expires = str(int(time.time()) + 86_400)
        found = {"access_token": "entra-token", "expires_on": expires, "resource": RESOURCE, "token_type": "Bearer"}
        return Answer(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def _as_identity(self, asked: Asked) -> Answer:
        if asked.query.get("resource") == "filesystem":
            return Answer(200, b"", {"x-ms-namespace-enabled": str(self.hierarchical).lower()})
        if asked.query.get("comp") != "userdelegationkey":
            return self._perform(asked)
        self.asked["key"] += 1
        wanted = ElementTree.fromstring(asked.body)
        start, end = wanted.findtext("Start") or "", wanted.findtext("Expiry") or ""
        assert seconds(end) <= self._time() + 7 * 86_400
        fields = {
            "SignedOid": OID,
            "SignedTid": TENANT,
            "SignedStart": start,
            "SignedExpiry": end,
            "SignedService": "b",
            "SignedVersion": asked.headers["x-ms-version"],
        }
        value = base64.b64encode(self.key(list(fields.values()))).decode()
        body = "".join(element(name, text) for name, text in {**fields, "Value": value}.items())
        document = f'<?xml version="1.0" encoding="utf-8"?><UserDelegationKey>{body}</UserDelegationKey>'
        return Answer(200, document.encode(), {"Content-Type": "application/xml"})

    def key(self, fields: list[str]) -> bytes:
        return hmac.digest(self.secret, "\n".join(fields).encode(), "sha256")

    def _time(self) -> float:
        return time.time() if self.now is None else self.now

    def _fault(self, asked: Asked) -> str | None:
        """Return why a request with a SAS is refused."""
        sas, version = asked.query, asked.query.get("sv", "")
        if not sas.get("sig") or sas["sig"] in self.expired:
            return "AuthenticationFailed"
        if not seconds(sas["skt"]) <= self._time() < min(seconds(sas["se"]), seconds(sas["ske"])):
            return "AuthenticationFailed"
        if sas["sr"] != "d" or not self.hierarchical or sas["spr"] != "https":
            return "AuthenticationFailed"
        path = asked.key or sas.get("prefix", "")
        segments, depth = path.split("/"), int(sas["sdd"])
        if len(segments) <= depth or (not asked.key and not is_listing(asked)):
            return "AuthenticationFailed"  # Signed Directory Depth Invalid
        source = source_of(asked)
        if source and source.split("/")[:depth] != segments[:depth]:
            return "AuthenticationFailed"
        resource = f"/blob/{self.account}/{asked.bucket}/{'/'.join(segments[:depth])}"
        names = ("skoid", "sktid", "skt", "ske", "sks", "skv")
        fields = [sas["sp"], sas.get("st", ""), sas["se"], resource, *(sas[name] for name in names)]
        fields += [sas.get(name, "") for name in ("saoid", "suoid", "scid")]
        fields += [sas.get(name, "") for name in ("skdutid", "sduoid")] if version >= "2025-07-05" else []
        fields += [sas.get("sip", ""), sas["spr"], version, sas["sr"], "", sas.get("ses", "")]
        fields += ["", ""] if version >= "2026-04-06" else []  # the headers and the query that must be sent
        fields += [sas.get(name, "") for name in ("rscc", "rscd", "rsce", "rscl", "rsct")]
        key = self.key([sas[name] for name in names])
        signed = base64.b64encode(hmac.new(key, "\n".join(fields).encode(), hashlib.sha256).digest()).decode()
        if not hmac.compare_digest(signed, sas["sig"]):
            return "AuthenticationFailed"
        return None if needed(asked, self.objects.has(asked)) & set(sas["sp"]) else "AuthorizationPermissionMismatch"

    def _perform(self, asked: Asked) -> Answer:
        query = asked.query
        more = {"x-ms-blob-type": "BlockBlob", "Content-Type": "application/octet-stream"}
        if is_listing(asked):
            return self._list(asked)
        if asked.method in ("GET", "HEAD"):
            return self.objects.read(asked, more)
        if query.get("comp") == "batch":
            return self._batch(asked)
        if asked.method == "DELETE":
            return Answer(202) if self.objects.held.pop((asked.bucket, asked.key), None) else Answer(404)
        if query.get("comp") == "block":
            self.blocks.setdefault((asked.bucket, asked.key), {})[query["blockid"]] = asked.body
            return Answer(201)
        if asked.headers.get("if-none-match") == "*" and self.objects.has(asked):
            return Answer(409, b"", {"x-ms-error-code": "BlobAlreadyExists"})
        body = asked.body
        if query.get("comp") == "blocklist":
            blocks = self.blocks.pop((asked.bucket, asked.key))
            body = b"".join(blocks[each.text or ""] for each in ElementTree.fromstring(asked.body))
        elif asked.method != "PUT":
            return Answer(501)
        elif "x-ms-copy-source" in asked.headers:
            body = self.objects.held[asked.bucket, source_of(asked)][0]
        return Answer(201, b"", self.objects.put(asked, body))

    def _batch(self, asked: Asked) -> Answer:
        """Remove blobs in one request, to the URL of their container."""
        parts = []
        for number, target in enumerate(re.findall(rb"DELETE (\S+)", asked.body)):
            key = unquote(urlsplit(target.decode()).path).strip("/").partition("/")[2]
            found = self.objects.held.pop((asked.bucket, key), None)
            status = "202 Accepted" if found else "404 Not Found"
            head = f"Content-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 {status}\r\n"
            parts.append(f"--batch\r\n{head}Content-Length: 0\r\n\r\n\r\n")
        return Answer(
            202, f"{''.join(parts)}--batch--\r\n".encode(), {"Content-Type": "multipart/mixed; boundary=batch"}
        )

    def _list(self, asked: Asked) -> Answer:
        found, common = self.objects.listed(
            asked.bucket, asked.query.get("prefix", ""), asked.query.get("delimiter", "")
        )
        blobs = "".join(
            f"<Blob>{element('Name', key)}<Properties>{element('Last-Modified', DATE)}{element('Etag', number)}"
            f"{element('Content-Length', size)}{element('Content-Type', 'text/plain')}</Properties></Blob>"
            for key, size, number in found
        )
        prefixes = "".join(f"<BlobPrefix>{element('Name', each)}</BlobPrefix>" for each in common)
        body = f"<EnumerationResults><Blobs>{blobs}{prefixes}</Blobs><NextMarker/></EnumerationResults>"
        return Answer(200, body.encode(), {"Content-Type": "application/xml"})


def is_listing(asked: Asked) -> bool:
    return asked.method == "GET" and asked.query.get("comp") == "list"


def source_of(asked: Asked) -> str:
    """Return the name of the blob that a request copies; empty if it copies none."""
    return unquote(urlsplit(asked.headers.get("x-ms-copy-source", "")).path).lstrip("/").partition("/")[2]


def needed(asked: Asked, exists: bool) -> set[str]:
    """Return the permissions of which a request needs one."""
    if is_listing(asked):
        return {"l"}
    writes = {"w"} if exists or asked.query.get("comp") else {"c", "w"}
    wanted: Mapping[str, set[str]] = {"GET": {"r"}, "HEAD": {"r"}, "DELETE": {"d"}, "PUT": writes}
    return wanted.get(asked.method, set())


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
