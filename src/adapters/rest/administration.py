"""The requests and responses of the administration of keys and the policy."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lance_namespace_urllib3_client.models.identity import Identity
from pydantic import BaseModel, StrictInt


class AdministrationRequest(BaseModel):
    """The fields of every request."""

    identity: Identity | None = None
    context: dict[str, str] | None = None


class ListKeysRequest(AdministrationRequest):
    """The request of ``ListKeys``."""


class CreateKeyRequest(AdministrationRequest):
    """The request of ``CreateKey``.

    Without ``expires_in_seconds``, the key is valid until it is revoked.
    """

    name: str
    groups: list[str] | None = None
    expires_in_seconds: StrictInt | None = None


class RotateKeyRequest(AdministrationRequest):
    """The request of ``RotateKey``.

    The old key stays valid for ``overlap_seconds``, by default for 7 days.
    """

    key_id: str
    overlap_seconds: StrictInt | None = None


class ExpireKeyRequest(AdministrationRequest):
    """The request of ``ExpireKey``, with the time from now on."""

    key_id: str
    expires_in_seconds: StrictInt


class RevokeKeyRequest(AdministrationRequest):
    """The request of ``RevokeKey``."""

    key_id: str


class DescribePolicyRequest(AdministrationRequest):
    """The request of ``DescribePolicy``."""


class ExplainDecisionRequest(AdministrationRequest):
    """The request of ``ExplainDecision``.

    The fields are as the arguments of ``lancekeep policy test``; without an id, the question is about the catalog.
    """

    principal: str
    operation: str
    id: list[str] | None = None
    groups: list[str] | None = None


class AddGrantRequest(AdministrationRequest):
    """The request of ``AddGrant``: the keys of a grant, as in the file.

    ``if_match`` is the header ``If-Match``.
    """

    on: str | list[str]
    role: str | None = None
    rights: list[str] | None = None
    principals: list[str] | None = None
    groups: list[str] | None = None
    columns: list[str] | None = None
    rows: str | None = None
    if_match: str | None = None


class RemoveGrantRequest(AdministrationRequest):
    """The request of ``RemoveGrant``: the position of the grant from 1."""

    grant: StrictInt
    if_match: str | None = None


class ReplacePolicyRequest(AdministrationRequest):
    """The request of ``ReplacePolicy``: the whole text of the file."""

    toml: str
    if_match: str | None = None


class KeyFields(BaseModel):
    """A key without its secret."""

    id: str
    principal: str
    groups: list[str]
    created: datetime
    expires: datetime | None = None


class ListKeysResponse(BaseModel):
    """The response of ``ListKeys``."""

    keys: list[KeyFields]


class CreateKeyResponse(KeyFields):
    """The response of ``CreateKey``. No other answer has ``key``, the whole key."""

    key: str


class RotateKeyResponse(CreateKeyResponse):
    """The response of ``RotateKey``: the new key, and the old one with its new end."""

    replaces: KeyFields


class ExpireKeyResponse(KeyFields):
    """The response of ``ExpireKey``."""


class RevokeKeyResponse(KeyFields):
    """The response of ``RevokeKey``: the key that is valid no longer."""


class DescribePolicyResponse(BaseModel):
    """The response of ``DescribePolicy``.

    ``problem`` says why the file is not valid; the grants and quotas are then as in the last valid file.
    """

    toml: str
    grants: list[dict[str, Any]]
    quotas: list[dict[str, Any]]
    problem: str | None = None


class ExplainDecisionResponse(BaseModel):
    """The response of ``ExplainDecision``."""

    decision: str
    explanation: str
    needs: str
    on: str
    rights: list[dict[str, Any]]
    grants: list[dict[str, Any]]
    quotas: list[dict[str, Any]]
    restriction: str | None = None
    reason: str | None = None


class AddGrantResponse(BaseModel):
    """The response of ``AddGrant``: the new grant."""

    grant: dict[str, Any]


class RemoveGrantResponse(BaseModel):
    """The response of ``RemoveGrant``: the grant, and its lines in the file.

    The lines have their comments.
    """

    grant: dict[str, Any]
    removed: str


class ReplacePolicyResponse(BaseModel):
    """The response of ``ReplacePolicy``."""

    grants: list[dict[str, Any]]
    quotas: list[dict[str, Any]]


REQUESTS = {
    model.__name__: model
    for model in (
        ListKeysRequest,
        CreateKeyRequest,
        RotateKeyRequest,
        ExpireKeyRequest,
        RevokeKeyRequest,
        DescribePolicyRequest,
        ExplainDecisionRequest,
        AddGrantRequest,
        RemoveGrantRequest,
        ReplacePolicyRequest,
    )
}
RESPONSES = {
    model.__name__: model
    for model in (
        ListKeysResponse,
        CreateKeyResponse,
        RotateKeyResponse,
        ExpireKeyResponse,
        RevokeKeyResponse,
        DescribePolicyResponse,
        ExplainDecisionResponse,
        AddGrantResponse,
        RemoveGrantResponse,
        ReplacePolicyResponse,
    )
}
"""The models by their names."""
