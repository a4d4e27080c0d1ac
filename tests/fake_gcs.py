"""Google Cloud Storage and its token services, which enforce Credential Access Boundaries on every request.

What they enforce is in these pages of Google's documentation:

- "Credential Access Boundaries" (IAM, downscoping-short-lived-credentials): at most 10 rules; a token reaches only the
  resources of the rules, with the permissions of the roles after ``inRole:``, while the condition is true; the
  condition for listings is ``api.getAttribute('storage.googleapis.com/objectListPrefix', '')``.
- "Method: token" of the Security Token Service: ``grant_type``, ``requested_token_type``, ``subject_token``,
  ``subject_token_type`` and ``options``, a percent-encoded JSON document.
- "IAM permissions for XML requests" (Cloud Storage, iam-xml): the permissions of each method. An object that exists is
  replaced only with ``storage.objects.delete``.
- "IAM roles for Cloud Storage": the permissions of the roles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.etree import ElementTree

import attrs
from fake_storage import DATE, Answer, Asked, Objects, element
from joserfc import jwt
from joserfc.jwk import RSAKey

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_UPLOAD = {f"storage.multipartUploads.{name}" for name in ("create", "abort", "listParts")}
_OBJECT = {name: f"storage.objects.{name}" for name in ("create", "delete", "get", "list", "update")}
ROLES: Mapping[str, set[str]] = {
    "roles/storage.objectViewer": {_OBJECT["get"], _OBJECT["list"]},
    "roles/storage.objectCreator": {_OBJECT["create"], *_UPLOAD},
    "roles/storage.objectUser": {*_OBJECT.values(), *_UPLOAD, "storage.multipartUploads.list"},
}
_STRING = r"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_TERM = re.compile(
    rf"\s*(?:(?P<true>true)|resource\.name\.startsWith\({_STRING}\)"
    rf"|api\.getAttribute\('storage\.googleapis\.com/objectListPrefix', ''\)\.startsWith\({_STRING}\))\s*"
)


@attrs.frozen
class Token:
    """An access token: of the account, or limited by the rules of a boundary."""

    rules: list[Any] | None = None


@attrs.define
class FakeGcs:
    """The storage, the token service of accounts, and the one that limits tokens.

    Attributes:
        lifetime: The seconds that a token of an account lives.
        states_lifetime: Whether the answer to an exchange has ``expires_in``.
        refused: The requests that lacked a permission.
        down: Whether the token services fail.
    """

    key: RSAKey = attrs.field(factory=cache(lambda: RSAKey.generate_key(2048)))
    objects: Objects = attrs.field(factory=Objects)
    tokens: dict[str, Token] = attrs.field(factory=dict)
    expired: set[str] = attrs.field(factory=set)
    refused: list[str] = attrs.field(factory=list)
    parts: dict[str, dict[int, bytes]] = attrs.field(factory=dict)
    lifetime: int = 3600
    states_lifetime: bool = True
    down: bool = False

    def key_file(self, url: str) -> str:
        """Return the content of a service account key."""
        return json.dumps(
            {
                "type": "service_account",
                "client_email": "lancekeep@project.iam.gserviceaccount.com",
                "private_key_id": "k1",
                "private_key": self.key.as_pem(private=True).decode(),
                "token_uri": f"{url}/token",
            }
        )

    def account_token(self) -> str:
        return self._new(Token())

    def answer(self, asked: Asked) -> Answer:
        if asked.headers.get("metadata-flavor") == "Google":
            return self._metadata(asked)
        if asked.path in ("/token", "/v1/token"):
            if self.down:
                return Answer(503, b"<html>")
            form = {name: values[0] for name, values in parse_qs(asked.body.decode()).items()}
            return self._assert(form) if asked.path == "/token" else self._exchange(form)
        token = asked.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.tokens or token in self.expired:
            return Answer(401)
        for permission, bucket, key in self._needed(asked):
            if not permits(self.tokens[token].rules, permission, bucket, key, asked.query.get("prefix", "")):
                self.refused.append(f"{permission} {key or asked.query.get('prefix', '')}")
                return Answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        return self._perform(asked)

    def _new(self, token: Token) -> str:
        name = f"ya29.token-{len(self.tokens)}"
        self.tokens[name] = token
        return name

    def _metadata(self, asked: Asked) -> Answer:
        """Answer as the metadata server of a machine, or of a pod with workload identity, does."""
        name = asked.path.rstrip("/").rpartition("/")[2]
        token = {"access_token": self.account_token(), "expires_in": self.lifetime, "token_type": "Bearer"}
        account = {"email": "default", "scopes": [SCOPE], "aliases": []}
        found = {"token": json.dumps(token), "default": json.dumps(account)}.get(name, "project")
        kind = "application/json" if name in ("token", "default") else "application/text"
        return Answer(200, found.encode(), {"Metadata-Flavor": "Google", "Content-Type": kind})

    def _assert(self, form: Mapping[str, str]) -> Answer:
        claims = jwt.decode(form["assertion"], self.key, algorithms=["RS256"]).claims
        assert claims["scope"] == SCOPE
        found = {"access_token": self.account_token(), "expires_in": self.lifetime, "token_type": "Bearer"}
        return Answer(200, json.dumps(found).encode())

    def _exchange(self, form: Mapping[str, str]) -> Answer:
        subject = self.tokens.get(form["subject_token"])
        kind = "urn:ietf:params:oauth:token-type:access_token"
        assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:token-exchange"
        assert (form["subject_token_type"], form["requested_token_type"]) == (kind, kind)
        if subject is None or subject.rules is not None:
            return Answer(400, b'{"error": "invalid_grant", "error_description": "Invalid subject token."}')
        rules = json.loads(unquote(form["options"]))["accessBoundary"]["accessBoundaryRules"]
        if len(rules) > 10 or not all(is_valid(rule) for rule in rules):
            return Answer(400, b'{"error": "invalid_request", "error_description": "Invalid access boundary."}')
        lifetime = {"expires_in": self.lifetime} if self.states_lifetime else {}
        found = {"access_token": self._new(Token(rules)), "issued_token_type": kind, "token_type": "Bearer", **lifetime}
        return Answer(200, json.dumps(found).encode())

    def _needed(self, asked: Asked) -> list[tuple[str, str, str]]:
        """Return the permissions that a request needs, each with its bucket and object."""
        bucket, key, query = asked.bucket, asked.key, asked.query
        replaced = [(_OBJECT["delete"], bucket, key)] if self.objects.has(asked) else []
        created = (_OBJECT["create"], bucket, key)
        uploaded = ("storage.multipartUploads.create", bucket, key)
        if not key:
            return [(_OBJECT["list"] if asked.method == "GET" else "storage.buckets.other", bucket, "")]
        if asked.method in ("GET", "HEAD"):
            return [("storage.multipartUploads.listParts" if "uploadId" in query else _OBJECT["get"], bucket, key)]
        if asked.method == "DELETE":
            return [("storage.multipartUploads.abort" if "uploadId" in query else _OBJECT["delete"], bucket, key)]
        if asked.method == "POST":
            return [uploaded, created, *(replaced if "uploadId" in query else [])]
        if "partNumber" in query:
            return [uploaded, created]
        source = unquote(asked.headers.get("x-goog-copy-source", "")).lstrip("/")
        copied = [(_OBJECT["get"], *source.split("/", 1))] if source else []
        return [created, *replaced, *[(get, where, name) for get, where, name in copied]]

    def _perform(self, asked: Asked) -> Answer:
        query, more = asked.query, {"x-goog-generation": "1"}
        if not asked.key:
            return self._list(asked)
        if asked.method in ("GET", "HEAD"):
            return self.objects.read(asked, more)
        if asked.method == "DELETE":
            return Answer(204) if self.objects.held.pop((asked.bucket, asked.key), None) else Answer(404)
        if "uploads" in query:
            upload = f"upload-{len(self.parts)}"
            self.parts[upload] = {}
            body = element("Bucket", asked.bucket) + element("Key", asked.key) + element("UploadId", upload)
            return Answer(200, f"<InitiateMultipartUploadResult>{body}</InitiateMultipartUploadResult>".encode())
        if "partNumber" in query:
            self.parts[query["uploadId"]][int(query["partNumber"])] = asked.body
            return Answer(200, b"", {"ETag": f'"{query["partNumber"]}"'})
        if "uploadId" in query:
            order = [
                int(each.text or "") for each in ElementTree.fromstring(asked.body).iter() if "PartNumber" in each.tag
            ]
            parts = self.parts.pop(query["uploadId"])
            found = self.objects.put(asked, b"".join(parts[number] for number in order))
            body = element("ETag", found["ETag"])
            return Answer(200, f"<CompleteMultipartUploadResult>{body}</CompleteMultipartUploadResult>".encode())
        if asked.headers.get("x-goog-if-generation-match") == "0" and self.objects.has(asked):
            return Answer(412)
        source = unquote(asked.headers.get("x-goog-copy-source", "")).lstrip("/")
        content = self.objects.held[(*source.split("/", 1),)][0] if source else asked.body  # type: ignore[index]
        return Answer(200, b"", {**self.objects.put(asked, content), **more})

    def _list(self, asked: Asked) -> Answer:
        found, common = self.objects.listed(
            asked.bucket, asked.query.get("prefix", ""), asked.query.get("delimiter", "")
        )
        contents = "".join(
            f"<Contents>{element('Key', key)}{element('Size', size)}{element('ETag', number)}"
            "<LastModified>2026-11-28T00:00:00.000Z</LastModified></Contents>"
            for key, size, number in found
        )
        prefixes = "".join(f"<CommonPrefixes>{element('Prefix', each)}</CommonPrefixes>" for each in common)
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{prefixes}</ListBucketResult>"
        return Answer(200, body.encode(), {"Date": DATE})


def is_valid(rule: Mapping[str, Any]) -> bool:
    """Return whether the token service accepts a rule: known roles, and a condition that parses."""
    condition = rule["availabilityCondition"]["expression"]
    return (
        re.fullmatch(r"//storage\.googleapis\.com/projects/_/buckets/[a-z0-9._-]+", rule["availableResource"])
        is not None
        and all(role.removeprefix("inRole:") in ROLES for role in rule["availablePermissions"])
        and len(condition) <= 2048
        and terms(condition) is not None
    )


def terms(condition: str) -> list[tuple[str, str]] | None:
    """Return the terms of a disjunction, each with what it is about and a prefix; None if it does not parse."""
    found, position = [], 0
    while True:
        term = _TERM.match(condition, position)
        if term is None:
            return None
        name, listed = term[2], term[3]
        found.append(("true", "") if term["true"] else ("name", text_of(name)) if name else ("list", text_of(listed)))
        position = term.end()
        if position == len(condition):
            return found
        if not condition.startswith("||", position):
            return None
        position += 2


def text_of(literal: str) -> str:
    """Return the text of a string literal of the Common Expression Language."""

    def character(found: re.Match[str]) -> str:
        escape = found[1]
        plain = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
        return chr(int(escape[1:], 16)) if escape[0] in "ux" else plain.get(escape, escape)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", character, literal[1:-1], flags=re.DOTALL)


def permits(rules: list[Any] | None, permission: str, bucket: str, key: str, prefix: str = "") -> bool:
    """Return whether a token has a permission; it has all if no boundary limits it.

    Args:
        rules: The rules of the boundary.
        permission: The permission.
        bucket: The bucket.
        key: The object; empty for the bucket itself.
        prefix: The prefix of a listing.
    """
    if rules is None:
        return True
    name = f"projects/_/buckets/{bucket}" + (f"/objects/{key}" if key else "")
    return any(
        rule["availableResource"] == f"//storage.googleapis.com/projects/_/buckets/{bucket}"
        and any(permission in ROLES[role.removeprefix("inRole:")] for role in rule["availablePermissions"])
        and any(
            about == "true" or (name.startswith(start) if about == "name" else not key and prefix.startswith(start))
            for about, start in terms(rule["availabilityCondition"]["expression"]) or []
        )
        for rule in rules
    )
