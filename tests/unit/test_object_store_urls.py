"""From a root and storage options to an object store, a key in it, and the URI that the native engine opens."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders

import lancekeep
from lancekeep.adapters.object_stores import open_object_store, uri_for_lance
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.adapters.object_stores.s3 import S3ObjectStore
from lancekeep.adapters.object_stores.s3_client import s3_client
from lancekeep.domain.errors import InvalidInput, MissingExtra

SECRET = "hunter2-very-secret"
AWKWARD = ("a b", "a%20b", "50%", "a#b", "a?b", "ä/日本", "a$b", "year=2024", "[x]", "a\\b", "a:b", " x ")


# -- roots ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*AWKWARD, "tab\there"])
def test_path_and_its_uri_open_the_same_store(tmp_path: Path, name: str) -> None:
    store, key = open_object_store(f"{tmp_path}/{name}/", {})
    assert key == f"{tmp_path}/{name}"[1:]
    uri = uri_for_lance(store, key)
    assert uri.startswith("file:///")
    assert open_object_store(uri, {})[1] == key


@pytest.mark.parametrize("name", AWKWARD)
def test_native_engine_opens_the_file_uri(tmp_path: Path, name: str) -> None:
    store, key = open_object_store(f"{tmp_path}/{name}.lance", {})
    lance.write_dataset(pa.table({"x": [1]}), uri_for_lance(store, key))
    assert [info.key for info in store.list(f"{key}/_versions/")][:1] == [
        f"{key}/_versions/18446744073709551614.manifest"
    ]


@pytest.mark.parametrize("name", AWKWARD)
def test_native_engine_opens_the_object_uri(moto_endpoint: str, name: str) -> None:
    options = {"endpoint": moto_endpoint, "allow_http": "true", "region": "us-east-1"}
    s3_client("urls", options).create_bucket(Bucket="urls")
    store, key = open_object_store("s3://urls", options)
    assert key == ""
    lance.write_dataset(
        pa.table({"x": [1]}), uri_for_lance(store, f"{name}.lance"), storage_options=options, mode="overwrite"
    )
    assert open_object_store(uri_for_lance(store, f"{name}.lance"), options)[1] == f"{name}.lance"
    assert any("/_versions/" in info.key for info in store.list(f"{name}.lance/"))


def test_ordinary_key_is_not_escaped_in_a_uri() -> None:
    store, _ = open_object_store("s3://bucket", {})
    assert uri_for_lance(store, "year=2024/ä/1a2b3c4d_ns$t") == "s3://bucket/year=2024/ä/1a2b3c4d_ns$t"


def test_paths_resolve_from_the_working_directory_and_through_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = f"{tmp_path}/real/lake"[1:]
    for root in (
        "real/lake",
        "./link/../link/lake/",
        "~/link/lake",
        f"{tmp_path}/link/lake",
        f"file://{tmp_path}/link/lake",
    ):
        store, key = open_object_store(root, {})
        assert isinstance(store, LocalObjectStore)
        assert key == expected, root
    assert open_object_store("/", {})[1] == ""
    assert open_object_store(f"file://localhost{tmp_path}/link/lake", {})[1] == expected


def test_memory_store_is_shared_within_the_process() -> None:
    store, key = open_object_store("memory:///lake/a/", {})
    again, other = open_object_store("MEMORY://lake/b", {})
    assert isinstance(store, MemoryObjectStore)
    assert store is again
    assert (key, other) == ("lake/a", "lake/b")


def test_file_uri_with_one_slash_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for root in (f"file:{tmp_path}/a%20b", f"FILE:{tmp_path}/a b", f"file:///{tmp_path}/a b"):
        store, key = open_object_store(root, {})
        assert isinstance(store, LocalObjectStore)
        assert key == f"{tmp_path}/a b"[1:], root
    lancekeep.connect(f"file:{tmp_path}/lake").write("t", pa.table({"x": [1]}))
    assert os.listdir(tmp_path) == ["lake"]
    assert lance.dataset(f"{tmp_path}/lake/t.lance").count_rows() == 1


def test_s3_uri_names_a_bucket_and_a_key() -> None:
    for root, key in {
        "s3://bucket": "",
        "S3://bucket/": "",
        "s3://bucket/a/b/": "a/b",
        "s3://bucket/a%20b": "a b",
    }.items():
        store, found = open_object_store(root, {})
        assert isinstance(store, S3ObjectStore)
        assert (store.root_uri, found) == ("s3://bucket/", key)


def test_other_schemes_open_through_fsspec(tmp_path: Path) -> None:
    store, key = open_object_store(f"local://{tmp_path}/lake", {"auto_mkdir": "true"})
    store.put(f"{key}/a", b"a")
    assert (tmp_path / "lake/a").read_bytes() == b"a"
    assert not store.guarantees.atomic_create


@pytest.mark.parametrize(
    ("root", "says"),
    [
        ("", "path"),
        ("a\0b", "path"),
        ("://x", "scheme://"),
        ("simplecache::gs://bucket", "scheme://"),
        ("s3://", "no bucket"),
        ("s3:///a", "no bucket"),
        ("s33://bucket", "did you mean 's3'"),
        ("flie:///lake", "did you mean 'file'"),
        ("nosuch://x", "known are"),
        ("file://elsewhere/lake", "elsewhere"),
        ("s3://bucket/a?b", "%3F"),
        ("file:///a#b", "%23"),
    ],
)
def test_invalid_root_is_refused(root: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        open_object_store(root, {})


@pytest.mark.parametrize("root", [f"s3://me:{SECRET}@bucket/a", f"sftp://me:{SECRET}@host/a"])
def test_password_in_a_uri_is_refused_and_omitted_from_the_error(root: str) -> None:
    with pytest.raises(InvalidInput, match="password") as caught:
        open_object_store(root, {})
    assert SECRET not in str(caught.value)


def test_missing_package_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingExtra, match="pip install gcsfs"):
        open_object_store("gs://bucket/lake", {})
    for name in [name for name in sys.modules if name.startswith("lancekeep.adapters.object_stores.s3")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    monkeypatch.setitem(sys.modules, "boto3.session", None)
    with pytest.raises(MissingExtra, match=r"lancekeep\[s3\]"):
        open_object_store("s3://bucket/lake", {})


# -- options ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("root", "options", "says"),
    [
        ("/lake", {"fsink": "true"}, "did you mean 'fsync'"),
        ("/lake", {"regoin": "x"}, "'regoin' for local files .did you mean 'region'"),
        ("/lake", {"fsync": "perhaps"}, "true or false"),
        ("/lake", {"fsync": True}, "type bool"),
        ("memory:///lake", {"fsync": "true"}, "'fsync' for memory"),
        ("s3://bucket", {"acces_key_id": SECRET}, "did you mean 'access_key_id'"),
        ("s3://bucket", {"aws_regoin": "x"}, "did you mean 'region'"),
        ("s3://bucket", {"zzz": "x"}, "known are"),
        ("s3://bucket", {"region": "a", "aws_region": "b"}, "twice"),
        ("s3://bucket", {"access_key_id": "a"}, "belong together"),
        ("s3://bucket", {"secret_access_key": SECRET}, "belong together"),
        ("s3://bucket", {"allow_http": "maybe"}, "true or false"),
        ("s3://bucket", {"endpoint": "http://server:9000"}, "server:9000 .*allow_http=true"),
        ("s3://bucket", {"endpoint": "http://server:9000", "allow_http": "false"}, "allow_http=true"),
        ("s3://bucket", {"endpoint": "server:9000"}, "https://host:port"),
        ("s3://bucket", {"endpoint": "https://server:port"}, "https://host:port"),
        ("s3://bucket", {"endpoint": f"https://me:{SECRET}@server"}, "without user"),
        ("s3://bucket", {"endpoint": "https://server", "virtual_hosted_style_request": "true"}, r"bucket\.server"),
        ("s3://bucket", {"conditional_put": "dynamo:table"}, "etag"),
        ("s3://bucket", {"server_side_encryption": "sse-c", "sse_customer_key_base64": SECRET}, "32 bytes"),
    ],
)
def test_invalid_options_are_refused(root: str, options: Mapping[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        open_object_store(root, options)
    assert SECRET not in str(caught.value)


def test_fsync_is_on_by_default() -> None:
    for options, durable in (({}, True), ({"fsync": "true"}, True), ({"fsync": "False"}, False)):
        assert open_object_store("/lake", options)[0].guarantees.durable is durable


def test_native_options_are_accepted_in_any_spelling() -> None:
    """The names that the storage options of pylance 14 take beside those that mean something here."""
    names = (
        "aws_s3_express bucket aws_unsigned_payload timeout connect_timeout aws_connect_timeout read_timeout "
        "user_agent proxy_excludes pool_idle_timeout http1_only client_max_retries download_retry_count "
        "client_retry_timeout Use_OpenDAL aws_provider_scheme expires_at_millis refresh_offset_millis block_size "
        "lance_aimd_max_rate dynamodb_endpoint aws_role_arn AWS_WEB_IDENTITY_TOKEN_FILE aws_copy_if_not_exists "
        "headers.x-trace base_1.region aws_checksum_algorithm aws_disable_tagging aws_imdsv1_fallback"
    )
    s3_client("bucket", dict.fromkeys(names.split(), "x"))


@pytest.mark.parametrize("root", ["/lake", "memory:///lake", "local:///lake", "s3://bucket/lake"])
def test_every_root_accepts_the_options_of_all_storages(root: str) -> None:
    names = (
        "aws_region aws_timeout azure_storage_account_name account_key Sas_Token google_service_account "
        "google_storage_token service_account_key headers.x-trace client_max_retries"
    )
    open_object_store(root, {**dict.fromkeys(names.split(), "x"), "aws_endpoint": "https://server"})


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "http://server:9000", "allow_http": "true", "region": "eu-west-1"},
        {"AWS_ENDPOINT_URL": "http://server:9000", "Aws_Allow_Http": "1", "AWS_REGION": "eu-west-1"},
        {"endpoint_url": "http://server:9000", "ALLOW_HTTP": "YES", "default_region": "eu-west-1"},
        {
            "aws_endpoint_url_s3": "http://server:9000",
            "endpoint": "https://not-this",
            "allow_http": "on",
            "region": "eu-west-1",
        },
    ],
)
@pytest.mark.parametrize("where", ["options", "environment"])
def test_options_and_environment_configure_the_same_server(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], where: str
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    if where == "environment":
        for name, value in options.items():
            monkeypatch.setenv(name if "_" in name else f"AWS_{name}".upper(), value)
    client = s3_client("bucket", options if where == "options" else {})
    assert client.meta.endpoint_url == "http://server:9000"
    assert client.meta.region_name == "eu-west-1"


def test_explicit_option_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", "https://not-this")
    monkeypatch.setenv("AWS_REGION", "not-this")
    client = s3_client("bucket", {"endpoint": "https://server", "region": "eu-west-1"})
    assert (client.meta.endpoint_url, client.meta.region_name) == ("https://server", "eu-west-1")


def sent(options: Mapping[str, str]) -> AWSPreparedRequest:
    """What a client with these options sends to write an object."""
    requests: list[AWSPreparedRequest] = []

    def keep(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        requests.append(request)
        response = AWSResponse(request.url, 200, HTTPHeaders(), None)
        response._content = b""  # type: ignore[attr-defined] # what reading the raw reply would set
        return response

    credentials = {"access_key_id": "me", "secret_access_key": SECRET, "region": "eu-west-1"}
    client = s3_client("bucket", {**credentials, **options})
    handler: Callable[..., Any] = keep
    client.meta.events.register("before-send.s3.PutObject", handler)
    S3ObjectStore("bucket", client).put("a", b"content")
    return requests[0]


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, "https://bucket.s3.eu-west-1.amazonaws.com/a"),
        ({"virtual_hosted_style_request": "true"}, "https://bucket.s3.eu-west-1.amazonaws.com/a"),
        ({"endpoint": "https://server:9000"}, "https://server:9000/bucket/a"),
        ({"endpoint": "https://server:9000", "virtual_hosted_style_request": "false"}, "https://server:9000/bucket/a"),
        ({"endpoint": "https://bucket.server", "virtual_hosted_style_request": "true"}, "https://bucket.server/a"),
    ],
)
def test_bucket_is_addressed_as_by_the_native_engine(options: dict[str, str], url: str) -> None:
    assert sent(options).url == url


@pytest.mark.parametrize(
    ("options", "header", "value"),
    [
        ({"session_token": "t"}, "X-Amz-Security-Token", "t"),
        ({"aws_token": "t"}, "X-Amz-Security-Token", "t"),
        ({"request_payer": "true"}, "x-amz-request-payer", "requester"),
        ({"server_side_encryption": "AES256"}, "x-amz-server-side-encryption", "AES256"),
        (
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "k"},
            "x-amz-server-side-encryption-aws-kms-key-id",
            "k",
        ),
        (
            {"server_side_encryption": "aws:kms", "sse_bucket_key_enabled": "true"},
            "x-amz-server-side-encryption-bucket-key-enabled",
            "true",
        ),
        (
            {
                "server_side_encryption": "sse-c",
                "sse_customer_key_base64": "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=",
            },
            "x-amz-server-side-encryption-customer-key",
            "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=",
        ),
        ({"skip_signature": "true"}, "Authorization", None),
        ({}, "x-amz-sdk-checksum-algorithm", None),
    ],
)
def test_options_change_the_request(options: dict[str, str], header: str, value: str | None) -> None:
    found = sent(options).headers.get(header)
    assert (found.decode() if isinstance(found, bytes) else found) == value


def test_opening_a_store_writes_nothing(tmp_path: Path) -> None:
    open_object_store(f"{tmp_path}/lake", {})
    assert os.listdir(tmp_path) == []
