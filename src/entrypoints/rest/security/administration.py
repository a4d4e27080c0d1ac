"""Operations of administrators: the keys and the policy of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs
from lance_namespace import errors as api_errors
from lance_namespace.errors import ErrorCode
from pydantic_core import to_json
from starlette.datastructures import Headers

from lancekeep.adapters.authentication.api_keys import LONGEST, ApiKey, KeyFile, key_id_of
from lancekeep.adapters.authorization.policy_edits import Changed, Permit, PolicyEdits
from lancekeep.adapters.authorization.policy_file import PolicyFile, read_policy, text_of
from lancekeep.adapters.rest.routes import READS
from lancekeep.domain.authorization import Policy, Principal
from lancekeep.domain.errors import InvalidInput, NotFound, StoreUnavailable
from lancekeep.domain.rights import OF_ADMINS
from lancekeep.entrypoints.explanation import explained, grant_document, grant_title, quota_document
from lancekeep.entrypoints.namespace.operations import id_of
from lancekeep.entrypoints.rest.conditional import matches, tag_of
from lancekeep.entrypoints.rest.errors import HttpError
from lancekeep.entrypoints.rest.idempotency import HEADER as IDEMPOTENCY_KEY
from lancekeep.entrypoints.rest.requests import Call

OVERLAP: Final = timedelta(days=7)
"""How long an old key stays valid, unless the request says so."""

_OWN_OVERLAP: Final = timedelta(minutes=1)
"""The least overlap of the key that sends the request: its answer may be lost."""
_KEY_FIELDS = ("role", "rights", "on", "principals", "groups", "columns", "rows")
_MOST_NAMES: Final = 10_000
"""The most names in one list of a grant."""


@attrs.frozen
class Administration:
    """Performs the operations of administrators, and passes on all others.

    It is inside of `Authorization`, which requires every right on the whole catalog, and outside of idempotency, which
    would store answers with secrets. A change decides under the lock of its file, so a caller whose rights another
    administrator has just removed changes nothing.

    Attributes:
        keys: The file of keys; None if the server has none.
        policy: The policy; None if every authenticated caller may do everything. Then no caller is an administrator.
        elsewhere: The policies of the other catalogs in which the keys are valid.
    """

    keys: KeyFile | None
    policy: PolicyFile | None
    elsewhere: Sequence[Path] = ()

    def __call__(self, call: Call, proceed: Callable[[Call], Any]) -> Any:
        act = _ACTS.get(call.operation)
        if act is None:
            return proceed(call)
        if self.policy is None:
            raise api_errors.PermissionDeniedError(
                "Without a policy, the server has no administrators: every caller may do everything with the catalog, "
                "and none may give rights. Set server.policy, or use `lancekeep keys` where the server runs."
            )
        if call.operation not in READS and IDEMPOTENCY_KEY in call.headers:
            raise InvalidInput(
                f"{call.route.operation_id} takes no Idempotency-Key, because the server keeps no answer with a "
                "secret. Send the request without it; after a failure, read the keys or the policy before you repeat it"
            )
        return act(self, self.policy, call)

    def list_keys(self, policy: PolicyFile, call: Call) -> Any:
        keys = self._keys()
        self._require_everywhere(call)
        return {"keys": [_key(each) for each in keys.present().values()]}

    def create_key(self, policy: PolicyFile, call: Call) -> Any:
        request: Any = call.request
        expires = _span(request.expires_in_seconds, "expires_in_seconds", 1)
        now = datetime.now(UTC)
        end = None if expires is None else now + expires
        key, whole = self._keys().create(
            request.name, request.groups or (), end, now, permit=self._permit_keys(policy, call)
        )
        call.progress.record(f"created {_title(key)}")
        return _secret({**_key(key), "key": whole})

    def rotate_key(self, policy: PolicyFile, call: Call) -> Any:
        request: Any = call.request
        overlap = _span(request.overlap_seconds, "overlap_seconds", 0)
        overlap = OVERLAP if overlap is None else overlap
        if request.key_id == _own_key(call.headers) and overlap < _OWN_OVERLAP:
            raise InvalidInput(
                f"the request uses the key {request.key_id} itself, and its answer with the new key may be lost; give "
                f"an overlap of at least {_OWN_OVERLAP.seconds} seconds"
            )
        try:
            old, key, whole = self._keys().rotate(request.key_id, overlap, permit=self._permit_keys(policy, call))
        except NotFound:
            _no_key(request.key_id)
        call.progress.record(f"created {_title(key)}, in place of {_title(old)}")
        return _secret({**_key(key), "key": whole, "replaces": _key(old)})

    def expire_key(self, policy: PolicyFile, call: Call) -> Any:
        request: Any = call.request
        span = _span(request.expires_in_seconds, "expires_in_seconds", 1)
        assert span is not None
        self._require_other(call)
        now = datetime.now(UTC)
        try:
            key = self._keys().expire(request.key_id, now + span, now, permit=self._permit_keys(policy, call))
        except NotFound:
            _no_key(request.key_id)
        call.progress.record(f"ends {_title(key)}")
        return _key(key)

    def revoke_key(self, policy: PolicyFile, call: Call) -> Any:
        request: Any = call.request
        self._require_other(call)
        try:
            key = self._keys().revoke(request.key_id, permit=self._permit_keys(policy, call))
        except NotFound:
            _no_key(request.key_id)
        call.progress.record(f"revoked {_title(key)}")
        return _key(key)

    def describe_policy(self, policy: PolicyFile, call: Call) -> Any:
        return _described(policy)

    def explain_decision(self, policy: PolicyFile, call: Call) -> Any:
        request: Any = call.request
        who = Principal(request.principal, frozenset(request.groups or ()))
        found = explained(policy.policy, who, request.operation, id_of(request))
        return {**found.document(), "explanation": found.sentence}

    def add_grant(self, policy: PolicyFile, call: Call) -> Any:
        request: Any = call.request
        fields = {name: getattr(request, name) for name in _KEY_FIELDS}
        for name, value in fields.items():
            if isinstance(value, list) and len(value) > _MOST_NAMES:
                raise InvalidInput(f"{name} has {len(value)} names; give at most {_MOST_NAMES}")
        changed = _edits(policy).add(fields, self._permit_policy(policy, call))
        assert changed.grant is not None
        call.progress.record(f"added {grant_title(changed.grant)}")
        return _tagged({"grant": grant_document(changed.grant)}, policy, changed)

    def remove_grant(self, policy: PolicyFile, call: Call) -> Any:
        request: Any = call.request
        _require_condition(call)
        changed = _edits(policy).remove(request.grant, self._permit_policy(policy, call))
        assert changed.grant is not None
        call.progress.record(f"removed {grant_title(changed.grant)}")
        answer = {"grant": grant_document(changed.grant), "removed": changed.removed}
        return _tagged(answer, policy, changed)

    def replace_policy(self, policy: PolicyFile, call: Call) -> Any:
        request: Any = call.request
        _require_condition(call)
        changed = _edits(policy).replace(request.toml, self._permit_policy(policy, call))
        counts = len(changed.policy.grants), len(changed.policy.quotas)
        tag = _tag(policy, changed.text)
        call.progress.record("replaced the policy: {} grants, {} quotas, tag {}".format(*counts, tag))
        return _tagged(_rules(changed.policy), policy, changed)

    def _keys(self) -> KeyFile:
        if self.keys is None:
            raise api_errors.UnsupportedOperationError(
                "The server has no file of keys: its callers have tokens of an issuer. Set server.keys to have both."
            )
        try:
            self.keys.present()
        except InvalidInput as error:
            raise StoreUnavailable(f"{error}; nothing was changed. Repair the file where the server runs") from error
        return self.keys

    def _permit_keys(self, policy: PolicyFile, call: Call) -> Callable[[Mapping[str, ApiKey]], None]:
        def permit(keys: Mapping[str, ApiKey]) -> None:
            _require_waiting(call)
            own = _own_key(call.headers)
            key = None if own is None else keys.get(own)
            if own is not None and (key is None or key.is_expired(datetime.now(UTC))):
                raise api_errors.PermissionDeniedError("The key of the request was revoked. Nothing was changed.")
            _require_admin(policy.policy, call)
            self._require_everywhere(call)

        return permit

    def _require_everywhere(self, call: Call) -> None:
        """Refuse a caller that does not administer each catalog in which the keys are valid."""
        for path in self.elsewhere:
            try:
                found = read_policy(path)
            except InvalidInput as error:
                raise StoreUnavailable(
                    f"the keys are valid in several catalogs, and the policy {path} of one of them cannot be read, so "
                    "the server cannot tell whether you administer it; nothing was changed. Repair the file"
                ) from error
            if not found.is_admin(_principal(call)):
                raise api_errors.PermissionDeniedError(
                    "The keys are valid in all catalogs of the server, so only a principal with the role admin on the "
                    "whole of each manages them. Use `lancekeep keys` where the server runs. Nothing was changed."
                )

    def _require_other(self, call: Call) -> None:
        """Refuse to end the key that sends the request."""
        request: Any = call.request
        if request.key_id == _own_key(call.headers):
            raise InvalidInput(
                f"the request uses the key {request.key_id} itself, and would lock you out; rotate the key, and send "
                "the request with the new one"
            )

    def _permit_policy(self, policy: PolicyFile, call: Call) -> Permit:
        request: Any = call.request
        name = _principal(call).name

        def found(before: str) -> None:
            _require_waiting(call)
            _require_admin(policy.policy, call)
            tag = _tag(policy, before)
            if request.if_match is not None and not matches(request.if_match, tag):
                raise HttpError(
                    412,
                    "The policy has changed since you read it; nothing was changed. Read it again, and send its ETag.",
                    ErrorCode.CONCURRENT_MODIFICATION,
                    {"etag": tag},
                )

        def left(after: Policy) -> None:
            if not after.is_admin(_principal(call)):
                raise InvalidInput(
                    f"the change would take the role admin on the whole catalog from {name}, and might lock out every "
                    "administrator; nothing was changed. Let another administrator make it, or use `lancekeep policy` "
                    "where the server runs"
                )

        return Permit(found, left)


_ACTS: Final[Mapping[str, Callable[[Administration, PolicyFile, Call], Any]]] = {
    name: getattr(Administration, name) for name in OF_ADMINS
}


def _principal(call: Call) -> Principal:
    assert isinstance(call.principal, Principal)
    return call.principal


def _require_waiting(call: Call) -> None:
    """Change nothing for a caller that had its answer 504 while the change waited for its lock."""
    if call.progress.over:
        raise HttpError(504, "The caller no longer waits; nothing was changed.", ErrorCode.SERVICE_UNAVAILABLE)


def _require_admin(policy: Policy, call: Call) -> None:
    """Refuse a caller whose rights ended after `Authorization` had decided."""
    if not policy.is_admin(_principal(call)):
        raise api_errors.PermissionDeniedError(
            f"{_principal(call).name} no longer has the role admin on the whole catalog. Nothing was changed."
        )


def _own_key(headers: Headers) -> str | None:
    """Return the id of the key that sends a request; None if it has a token."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return key_id_of(headers.get("x-api-key", bearer.strip() if scheme.lower() == "bearer" else ""))


def _no_key(key_id: str) -> NoReturn:
    raise HttpError(404, f"There is no key {key_id[:16]!r}; ListKeys has the keys.") from None


def _span(seconds: int | None, name: str, least: int) -> timedelta | None:
    if seconds is None:
        return None
    most = int(LONGEST.total_seconds())
    if not least <= seconds <= most:
        raise InvalidInput(f"{name} is {str(seconds)[:20]}; give a number of seconds from {least} to {most}")
    return timedelta(seconds=seconds)


def _key(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "principal": key.principal.name,
        "groups": list(key.groups),
        "created": key.created.isoformat(timespec="seconds"),
        **({} if key.expires is None else {"expires": key.expires.isoformat(timespec="seconds")}),
    }


def _title(key: ApiKey) -> str:
    """Return what the audit log says of a key."""
    groups = f" in {', '.join(key.groups)}" if key.groups else ""
    end = "" if key.expires is None else f" until {key.expires.isoformat(timespec='seconds')}"
    return f"key {key.id} of {key.principal.name}{groups}{end}"


def _secret(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "context": {"header.cache-control": "no-store"}}


def _edits(policy: PolicyFile) -> PolicyEdits:
    return PolicyEdits(policy.path, policy.parsed)


def _rules(policy: Policy) -> dict[str, Any]:
    return {
        "grants": [grant_document(each) for each in policy.grants],
        "quotas": [quota_document(each) for each in policy.quotas],
    }


def _described(policy: PolicyFile, text: str | None = None) -> dict[str, Any]:
    """Return the answer of ``DescribePolicy`` for a text; by default for the file."""
    try:
        text = text_of(policy.path) if text is None else text
        return {"toml": text, **_rules(policy.parsed(text, "the policy"))}
    except InvalidInput as error:
        return {"toml": text or "", **_rules(policy.policy), "problem": str(error)}


def _tag(policy: PolicyFile, text: str) -> str:
    """Return the entity tag of ``DescribePolicy`` for a text of the file."""
    return tag_of(to_json(_described(policy, text)))


def _tagged(answer: dict[str, Any], policy: PolicyFile, changed: Changed) -> dict[str, Any]:
    return {**answer, "context": {"header.etag": _tag(policy, changed.text)}}


def _require_condition(call: Call) -> None:
    request: Any = call.request
    if request.if_match is None:
        raise HttpError(
            428,
            f"{call.route.operation_id} needs the header If-Match with the ETag of the policy, so that it undoes no "
            "change that you have not seen. GET /lancekeep/v1/policy answers with it.",
        )
