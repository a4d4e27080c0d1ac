"""Build a boto3 client from the storage options of the native engine."""

from __future__ import annotations

import difflib
import os
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from boto3.session import Session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from lancekeep.adapters.object_stores.native_options import NATIVE_OPTIONS, is_native_option
from lancekeep.domain.errors import InvalidInput

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

_CREDENTIALS = frozenset(("access_key_id", "secret_access_key", "session_token"))
_SWITCHES = frozenset(
    (
        "allow_http",
        "allow_invalid_certificates",
        "request_payer",
        "skip_signature",
        "sse_bucket_key_enabled",
        "virtual_hosted_style_request",
    )
)
_HONOURED = (
    _CREDENTIALS
    | _SWITCHES
    | {
        "region",
        "default_region",
        "endpoint",
        "endpoint_url_s3",
        "proxy_url",
        "conditional_put",
        "server_side_encryption",
        "sse_kms_key_id",
        "sse_customer_key_base64",
    }
)
_SYNONYMS = {"token": "session_token", "endpoint_url": "endpoint"}

_TRUTH = {
    **dict.fromkeys(("1", "true", "on", "yes", "y"), True),
    **dict.fromkeys(("0", "false", "off", "no", "n"), False),
}


def s3_client(bucket: str, storage_options: Mapping[str, str]) -> S3Client:
    """Build a client that reaches the same server as the native engine.

    The storage options have the engine's names, in any case, with or without ``aws_``. Options that only concern the
    engine are accepted. As in the engine, an environment variable replaces a missing option (``AWS_ENDPOINT``,
    ``AWS_REGION``, ``ALLOW_HTTP`` …). boto3 finds credentials in its usual places.

    The client gives up on a connection after 3 s and on a silent server after 7 s, and never retries. It sends no
    checksums beyond those that S3 requires, because other servers refuse them.

    Raises:
        InvalidInput: An option is unknown, contradicts another, or has an invalid value; or the endpoint is plain HTTP
            without ``allow_http=true``.
    """
    options = _understood(storage_options)
    endpoint, style = _endpoint(bucket, options)
    if ("access_key_id" in options) != ("secret_access_key" in options):
        raise InvalidInput("storage options access_key_id and secret_access_key belong together; one is missing")
    try:
        client: S3Client = Session().client(
            "s3",
            aws_access_key_id=options.get("access_key_id"),
            aws_secret_access_key=options.get("secret_access_key"),
            aws_session_token=options.get("session_token"),
            region_name=options.get("region") or options.get("default_region"),
            endpoint_url=endpoint,
            verify=False if _on(options, "allow_invalid_certificates") else None,
            config=Config(
                connect_timeout=3,
                read_timeout=7,
                retries={"total_max_attempts": 1},
                max_pool_connections=32,
                tcp_keepalive=True,
                signature_version=UNSIGNED if _on(options, "skip_signature") else None,
                s3={"addressing_style": style},
                proxies=dict.fromkeys(("http", "https"), options["proxy_url"]) if "proxy_url" in options else None,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise InvalidInput(
            f"boto3 cannot make an S3 client of the storage options {sorted(storage_options)} and its own "
            f"configuration ({type(error).__name__})"
        ) from error
    for operation, parameters in _parameters(options).items():
        client.meta.events.register(f"provide-client-params.s3.{operation}", _adding(parameters))
    return client


def has_condition(storage_options: Mapping[str, str]) -> bool:
    """Return whether the server has a create-only write: ``conditional_put``.

    Raises:
        InvalidInput: The option is neither ``etag``, the default, nor ``disabled``.
    """
    condition = _understood(storage_options).get("conditional_put", "etag").lower()
    if condition not in ("etag", "disabled"):
        raise InvalidInput(f"storage option conditional_put is {condition!r}; expected etag or disabled")
    return condition == "etag"


def _understood(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Return the effective options, each by one name; given options override the environment."""
    options: dict[str, str] = {}
    for name, value in storage_options.items():
        meaning = _meaning(name)
        if meaning is None:
            raise InvalidInput(f"unknown storage option {name!r} for S3{_nearest(name)}")
        if meaning in _HONOURED and options.setdefault(meaning, value) != value:
            raise InvalidInput(f"storage option {name!r} is given twice, in two spellings and with two values")
    for name in sorted(os.environ, key=lambda name: not name.lower().startswith("aws_")):
        meaning = _meaning(name)
        if meaning in _HONOURED - _CREDENTIALS:
            options.setdefault(meaning, os.environ[name])
    for name in _SWITCHES:
        if options.get(name, "false").lower() not in _TRUTH:
            raise InvalidInput(f"storage option {name}: expected true or false")
    return options


def _meaning(name: str) -> str | None:
    """Return the canonical name of an option; None if the native engine does not know it."""
    short = name.lower().removeprefix("aws_")
    short = _SYNONYMS.get(short, short)
    if short in _HONOURED:
        return short
    return name.lower() if is_native_option(name) else None


def _nearest(name: str) -> str:
    known = (*_HONOURED, *_SYNONYMS, *NATIVE_OPTIONS)
    matches = difflib.get_close_matches(name.lower().removeprefix("aws_"), known, 1)
    return f"; did you mean {matches[0]!r}?" if matches else f"; known are {', '.join(sorted(_HONOURED))}"


def _on(options: Mapping[str, str], switch: str) -> bool:
    return _TRUTH[options.get(switch, "false").lower()]


def _endpoint(bucket: str, options: Mapping[str, str]) -> tuple[str | None, Literal["auto", "path", "virtual"]]:
    """Return the server's URL without the bucket, and where the bucket belongs: path or host."""
    virtual = _on(options, "virtual_hosted_style_request")
    endpoint = options.get("endpoint_url_s3") or options.get("endpoint")
    if not endpoint:
        return None, "virtual" if virtual else "auto"
    try:
        url = urlsplit(endpoint)
        valid = url.scheme in ("http", "https") and url.hostname and url.port != 0 and not url.query
    except ValueError:
        valid = False
    if not valid or url.username is not None:
        raise InvalidInput("storage option endpoint: expected https://host:port, without user, password and query")
    if url.scheme == "http" and not _on(options, "allow_http"):
        raise InvalidInput(
            f"storage option endpoint: {url.netloc} is asked for over plain HTTP, which the native engine refuses too. "
            "Use https://, or allow_http=true where the network is trusted"
        )
    if not virtual:
        return endpoint, "path"
    if not url.netloc.startswith(f"{bucket}."):
        raise InvalidInput(
            f"storage option endpoint: with virtual_hosted_style_request=true it names the bucket, as in "
            f"{url.scheme}://{bucket}.{url.netloc}"
        )
    return urlunsplit(url._replace(netloc=url.netloc.removeprefix(f"{bucket}."))), "virtual"


_READING = ("GetObject", "HeadObject")
_WRITING = ("PutObject", "CreateMultipartUpload")
_OTHERS = ("ListObjectsV2", "DeleteObject", "CompleteMultipartUpload", "AbortMultipartUpload")


def _parameters(options: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the parameters of each operation that set the payer and the encryption."""
    parameters: dict[str, dict[str, Any]] = {name: {} for name in (*_READING, *_WRITING, "UploadPart", *_OTHERS)}
    if _on(options, "request_payer"):
        for more in parameters.values():
            more["RequestPayer"] = "requester"
    algorithm = options.get("server_side_encryption")
    if algorithm == "sse-c":
        try:
            key = b64decode(options.get("sse_customer_key_base64", ""), validate=True)
        except ValueError:
            key = b""
        if len(key) != 32:
            raise InvalidInput("storage option sse_customer_key_base64: expected 32 bytes in base64, for sse-c")
        for name in (*_READING, *_WRITING, "UploadPart"):
            parameters[name] |= {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}
    elif algorithm is not None:
        encryption: dict[str, Any] = {"ServerSideEncryption": algorithm}
        if "sse_kms_key_id" in options:
            encryption["SSEKMSKeyId"] = options["sse_kms_key_id"]
        if "sse_bucket_key_enabled" in options:
            encryption["BucketKeyEnabled"] = _on(options, "sse_bucket_key_enabled")
        for name in _WRITING:
            parameters[name] |= encryption
    return {name: more for name, more in parameters.items() if more}


def _adding(more: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a handler of botocore's event that adds parameters to a call."""
    return lambda params, **_: {**params, **more}
