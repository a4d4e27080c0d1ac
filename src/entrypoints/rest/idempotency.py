"""Idempotency keys of HTTP requests: a wrapper of the call of every operation.

The header ``Idempotency-Key`` holds a UUID. Requests of one client, operation and object with the same key have one
effect and one answer. The response repeats the header; that is how a client learns that the server keeps keys.

The answer is stored, so it has no storage options: they can hold credentials, and vended ones expire before a repeated
request. A client asks `describe_table` for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, BinaryIO

import lance_namespace as api
from lance_namespace import errors as api_errors
from lance_namespace.errors import ErrorCode
from pydantic import BaseModel

from lancekeep.adapters.lance.namespace_errors import namespace_error
from lancekeep.adapters.rest.routes import READS
from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.application.rows.idempotency import Answer, Attempt
from lancekeep.domain.commit import Committed, Upserted
from lancekeep.domain.commit_token import CommitUnknown
from lancekeep.domain.errors import Damaged, EngineFailed, InvalidInput, LancekeepError, Retryable
from lancekeep.domain.idempotency import RequestKey
from lancekeep.domain.transaction import AllCommitted
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.namespace.operations import branch_of
from lancekeep.entrypoints.rest.errors import HttpError
from lancekeep.entrypoints.rest.requests import Call

HEADER = "idempotency-key"
_WITHOUT_EFFECT = {"identity", "context", "e_tag", "naming_scheme"}
"""Fields that say who asks, or repeat what the name of a staged manifest says. A resolved token has no such field."""
_BATCH = "batch_commit_tables"
_CONDITIONS = (
    "when_matched_update_all_filt",
    "when_not_matched_by_source_delete",
    "when_not_matched_by_source_delete_filt",
)


class Idempotency:
    """Performs keyed requests once.

    It is the innermost wrapper, so refusals of outer wrappers leave no record.

    Args:
        namespace: The namespace. Keys are kept for a namespace over a catalog.
    """

    def __init__(self, namespace: api.LanceNamespace) -> None:
        self._catalog = namespace.catalog if isinstance(namespace, CatalogNamespace) else None

    def __call__(self, call: Call, proceed: Callable[[Call], Any]) -> Any:
        keys = call.headers.getlist(HEADER)
        if not keys:
            return proceed(call)
        if len(keys) > 1:
            raise InvalidInput("the header Idempotency-Key is given several times; give it once")
        [key] = keys
        RequestKey.of("", call.operation, call.object_id, key)  # refuse a malformed key
        if call.operation in READS:
            return proceed(call) if self._catalog is None else _echoing(proceed(call), key)
        if self._catalog is None:
            raise InvalidInput(
                "the served namespace keeps no idempotency keys; send the request without Idempotency-Key, and after a "
                "failure check the state before you repeat it"
            )
        catalog = self._catalog
        principal = "" if call.principal is None else str(getattr(call.principal, "name", call.principal))
        request = RequestKey.of(principal, _operation(call), call.object_id, key)
        attempt = Attempt(
            fingerprint=_fingerprint(call),
            act=lambda: _act(call, proceed),
            committed=lambda outcome: Answer(_encode(_committed(catalog, call, outcome))),
            body=partial(_digest, call.body) if call.body is not None else str,
            shares=_appends(call) or _upserts(call),
            upserts=_upserts(call),
        )
        return _echoing(_decode(directory_of(catalog, "idempotency keys").requests.perform(request, attempt)), key)


def _appends(call: Call) -> bool:
    """Return whether a request appends rows to the main history of a table."""
    if call.operation != "insert_into_table":
        return False
    mode = getattr(call.request, "mode", None) or "append"
    return str(mode).lower() == "append" and not branch_of(call.request)


def _upserts(call: Call) -> bool:
    """Return whether a request updates or inserts each of its rows in the main history of a table."""
    if call.operation != "merge_insert_into_table" or branch_of(call.request):
        return False
    request = call.request
    is_plain = getattr(request, "when_matched_update_all", None) is True
    is_plain = is_plain and getattr(request, "when_not_matched_insert_all", None) is True
    return is_plain and not any(getattr(request, name, None) for name in _CONDITIONS)


def _digest(body: BinaryIO) -> str:
    body.seek(0)
    digest = hashlib.sha256()
    while part := body.read(1 << 20):
        digest.update(part)
    return digest.hexdigest()


def _operation(call: Call) -> str:
    """Return the operation whose proof applies: a batch of new versions counts as its own operation."""
    operations = getattr(call.request, "operations", None) or []
    only_versions = operations and all(each.create_table_version is not None for each in operations)
    return "batch_create_table_versions" if call.operation == _BATCH and only_versions else call.operation


def _fingerprint(call: Call) -> str:
    """Return a digest of the fields of a request that change its effect."""
    fields = call.request.model_dump(mode="json", by_alias=True, exclude=_WITHOUT_EFFECT)
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _act(call: Call, proceed: Callable[[Call], Any]) -> Answer:
    """Perform an operation; answer success and definite refusals.

    Raises:
        LancekeepError: The outcome is not definite, or the request may succeed later.
    """
    try:
        if call.body is not None:
            call.body.seek(0)
        return Answer(_encode(proceed(call)))
    except InvalidInput as error:  # of the body, before the operation
        return _refusal(namespace_error(error))
    except HttpError as error:
        if error.status != _TOO_LARGE:
            raise
        refused = {"refused": int(error.code), "status": _TOO_LARGE, "message": str(error)}
        return Answer(json.dumps(refused), refused=True)
    except api_errors.LanceNamespaceError as error:
        cause = error.__cause__
        if isinstance(cause, Retryable | CommitUnknown | Damaged | EngineFailed):
            raise cause from cause.__cause__
        if not isinstance(cause, LancekeepError) and ErrorCode(error.code) in _INDEFINITE:
            raise
        return _refusal(error)


def _refusal(error: api_errors.LanceNamespaceError) -> Answer:
    return Answer(json.dumps({"refused": int(error.code), "message": str(error)}), refused=True)


_TOO_LARGE = int(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_INDEFINITE = (
    ErrorCode.CONCURRENT_MODIFICATION,
    ErrorCode.SERVICE_UNAVAILABLE,
    ErrorCode.INTERNAL,
    ErrorCode.THROTTLING,
)


def _committed(catalog: Catalog, call: Call, outcome: Committed | AllCommitted) -> Any:
    """Return the response to a request whose commit an earlier attempt has made.

    That attempt has left no response. Counts of rows are left out if only that attempt knew them.
    """
    versions = outcome.versions if isinstance(outcome, AllCommitted) else (outcome,)
    tables = [
        api.TableVersion(version=each.version, manifest_path=each.path, manifest_size=each.size) for each in versions
    ]
    if call.operation == "create_table_version":
        return api.CreateTableVersionResponse(version=tables[0])
    if call.operation == "batch_create_table_versions":
        return api.BatchCreateTableVersionsResponse(versions=tables)
    if call.operation == _BATCH:
        created = [api.CreateTableVersionResponse(version=each) for each in tables]
        results = [api.CommitTableResult(create_table_version=each) for each in created]
        return api.BatchCommitTablesResponse(results=results)
    model: type[BaseModel] = getattr(api, f"{call.route.operation_id}Response")
    fields: dict[str, Any] = {"version": versions[0].version} if "version" in model.model_fields else {}
    if call.operation == "update_table":
        fields["updated_rows"] = _updated_rows(catalog, call, versions[0].version)
    if isinstance(outcome, Upserted):
        fields["transaction_id"] = outcome.transaction.partition("-")[2].removesuffix(".txn")
        fields |= {"num_inserted_rows": outcome.inserted, "num_updated_rows": outcome.updated, "num_deleted_rows": 0}
    return model.model_validate(fields)


def _updated_rows(catalog: Catalog, call: Call, version: int) -> int:
    """Return how many rows an update wrote: it moves them to new fragments."""
    branch = getattr(call.request, "branch", None)
    dataset = catalog.open(list(call.object_id), version, branch=branch)
    update = dataset.read_transaction(version).operation
    return sum(fragment.physical_rows for fragment in update.new_fragments)


def _encode(response: Any) -> str:
    if not isinstance(response, BaseModel):
        return json.dumps({"response": response})
    fields = response.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"storage_options"})
    return json.dumps({"model": type(response).__name__, "response": fields}, separators=(",", ":"))


def _decode(text: str) -> Any:
    """Return a stored response, or raise the stored error.

    Raises:
        Damaged: What is stored is neither.
    """
    try:
        stored = json.loads(text)
        if stored.get("status") == _TOO_LARGE:
            raise HttpError(_TOO_LARGE, str(stored["message"]))
        if "refused" in stored:
            raise api_errors.from_error_code(int(stored["refused"]), str(stored["message"]))
        model = getattr(api, str(stored.get("model")), None)
        if model is None:
            return stored["response"]
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise TypeError(f"{stored['model']!r:.80} is no response")
        return model.model_validate(stored["response"])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(
            "the answer in the log of this key is damaged. The request was carried out or refused before: look at what "
            "it was to change, and send another request with a new key"
        ) from error


def _echoing(response: Any, key: str) -> Any:
    """Return a response with the key in a header."""
    header = {f"header.{HEADER}": key}
    if isinstance(response, dict):
        return {**response, "context": {**(response.get("context") or {}), **header}}
    if isinstance(response, BaseModel) and "context" in type(response).model_fields:
        return response.model_copy(update={"context": {**(getattr(response, "context", None) or {}), **header}})
    return response
