"""Temporary credentials for Azure: user delegation SAS for one directory."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Any

import attrs
from azure.core import PipelineClient
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.pipeline.policies import BearerTokenCredentialPolicy, RetryPolicy
from azure.core.rest import HttpRequest
from azure.identity import DefaultAzureCredential
from azure.storage.filedatalake import DataLakeServiceClient, UserDelegationKey, generate_directory_sas

from lancekeep.adapters.credential_vendors.locations import directory
from lancekeep.adapters.credential_vendors.remembered import Issued, Remembered
from lancekeep.domain.authorization import Action
from lancekeep.domain.errors import AccessDenied, InvalidInput, StoreUnavailable

SHORTEST, LONGEST = 900, 43_200
"""The durations in seconds; Azure itself permits seven days."""
SKEW = 900
"""The seconds by which a key is valid before it is asked for, because clocks differ."""

PERMISSIONS: Mapping[Action, str] = {Action.READ: "rl", Action.WRITE: "rcwl", Action.DELETE: "rcwdl"}
"""The permissions of a SAS: read, create, write, delete and list."""

_SCOPE = "https://storage.azure.com/.default"
_VERSION = "2023-11-03"
_PATIENCE: Mapping[str, Any] = {"retry_total": 1, "connection_timeout": 3, "read_timeout": 7}
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")
_ODD = re.compile(r"[\x00-\x1f\x7f\\]")
_NAMES = ("azure_storage_account_name", "account_name")
_PUBLIC = ("allow_invalid_certificates",)
_ENDPOINTS = ("azure_storage_endpoint", "azure_endpoint", "endpoint")


@attrs.frozen(kw_only=True)
class StorageAccount:
    """The storage account to which access is handed out.

    Attributes:
        account: Its name; by default the one in the storage options of the catalog.
        endpoint: The URL of its blob service; by default the one in the storage options, or the public cloud's.
        duration: The time to live of credentials in seconds.
    """

    account: str = ""
    endpoint: str = ""
    duration: int = 3600


class AzureVendor:
    """A `CredentialVendor` that signs a SAS for the directory of a table.

    The Azure identity of the process obtains the user delegation key that signs. A SAS is limited to a directory only
    in a storage account with a hierarchical namespace; in other accounts, no credentials are vended.

    Args:
        account: The storage account. The identity must have the permissions that the credentials are to have.
        storage_options: The storage options of the catalog; of these, the answer has only what clients need.
        now: Returns the time in seconds since 1970.

    Raises:
        InvalidInput: The account has no valid name, endpoint or duration.
    """

    def __init__(
        self, account: StorageAccount, storage_options: Mapping[str, str], *, now: Callable[[], float] = time.time
    ) -> None:
        given = {name.lower(): value for name, value in storage_options.items()}
        name = account.account or next((given[each] for each in _NAMES if each in given), "")
        endpoint = account.endpoint or next((given[each] for each in _ENDPOINTS if each in given), "")
        if not SHORTEST <= account.duration <= LONGEST:
            raise InvalidInput(f"vending: duration is {account.duration}; give {SHORTEST} to {LONGEST} seconds")
        if not _ACCOUNT.fullmatch(name):
            raise InvalidInput(f"vending: account is {name!r}; give the name of a storage account")
        if endpoint and not endpoint.startswith("https://"):
            raise InvalidInput(f"vending: endpoint is {endpoint!r}; give the https URL of a blob service")
        self._name = name
        self._duration = account.duration
        self._now = now
        self._remembered = Remembered(now)
        self._public = {"azure_storage_account_name": name}
        self._public |= {each: given[each] for each in _PUBLIC if each in given}
        if endpoint:
            self._public["azure_storage_endpoint"] = endpoint
        url = (endpoint or f"https://{name}.blob.core.windows.net").replace(".blob.", ".dfs.", 1).rstrip("/")
        identity = DefaultAzureCredential()
        self._keys = DataLakeServiceClient(url, identity, **_PATIENCE)
        policies = [BearerTokenCredentialPolicy(identity, _SCOPE), RetryPolicy(**_PATIENCE)]
        self._files: Any = PipelineClient(url, policies=policies, **_PATIENCE)
        self._renewing = Lock()
        self._hierarchical = False
        self._key: UserDelegationKey | None = None

    def __repr__(self) -> str:
        return f"AzureVendor({self._name!r})"

    def vend(self, location: str, action: Action, principal: str, sources: Sequence[str] = ()) -> Mapping[str, str]:
        question = (location, action, principal, tuple(sources))
        return self._remembered.vend(question, partial(self._issue, location, action, sources))

    def _issue(self, location: str, action: Action, sources: Sequence[str]) -> Issued:
        container, path = scope(location, self._name)
        if sources:
            raise InvalidInput(
                f"credentials cannot be limited to {location} and the {len(sources)} directories that it reads: a SAS "
                "reaches one directory. Set vend_credentials to false, and read the table through the server"
            )
        issued = int(self._now())
        expires = issued + self._duration
        try:
            self._require_directories(container)
            key = self._delegation_key(issued, expires)
            signed = generate_directory_sas(
                self._name,
                container,
                path,
                key,
                PERMISSIONS[action],
                datetime.fromtimestamp(expires, UTC),
                protocol="https",
            )
        except (ServiceRequestError, ServiceResponseError) as error:
            raise StoreUnavailable(f"Azure does not answer: {type(error).__name__}; try again later") from None
        except ClientAuthenticationError as error:
            raise AccessDenied(f"Azure refuses the identity of the server: {type(error).__name__}") from None
        except HttpResponseError as error:
            status = error.status_code or 403
            code = getattr(error, "error_code", None) or type(error).__name__
            if status >= 500 or status == 429:
                raise StoreUnavailable(f"Azure failed with {code}; try again later") from None
            raise AccessDenied(f"Azure refuses a key for the storage account {self._name}: {code}") from None
        except AzureError as error:
            raise StoreUnavailable(f"Azure failed with {type(error).__name__}; try again later") from None
        return Issued({**self._public, "azure_storage_sas_token": signed}, issued, expires)

    def _delegation_key(self, issued: int, expires: int) -> UserDelegationKey:
        """Return a key that lives at least until then; one key signs for many tables."""
        with self._renewing:
            if self._key is None or _end(self._key) < expires:
                self._key = self._keys.get_user_delegation_key(
                    datetime.fromtimestamp(issued - SKEW, UTC), datetime.fromtimestamp(expires + self._duration, UTC)
                )
            return self._key

    def _require_directories(self, container: str) -> None:
        """Refuse an account that has no directories: its SAS reach a blob or a container, no directory."""
        if self._hierarchical:
            return
        url = self._files.format_url(f"/{container}?resource=filesystem")
        answer = self._files.send_request(HttpRequest("HEAD", url, headers={"x-ms-version": _VERSION}))
        answer.raise_for_status()
        if answer.headers.get("x-ms-namespace-enabled") != "true":
            raise InvalidInput(
                f"credentials cannot be limited to a directory: the storage account {self._name} has no hierarchical "
                "namespace. Upgrade it to Data Lake Storage, or remove server.vending"
            )
        self._hierarchical = True


def scope(location: str, account: str) -> tuple[str, str]:
    """Return the container and the directory of a location.

    The directory has no characters that Azure or a signature could read as something else: line breaks separate the
    fields that are signed, and Azure takes a backslash for a slash, and may drop a dot at the end of a segment.

    Raises:
        InvalidInput: The location is not a directory in a container of the account.
    """
    scheme = "abfss" if location.startswith("abfss://") else "az"
    place, path = directory(location, scheme, "an Azure container")
    container, _, host = place.partition("@")
    if not _CONTAINER.fullmatch(container) or (host and host.partition(".")[0] != account):
        raise InvalidInput(
            f"credentials cannot be limited to {location!r}; {place!r} is not a container of the storage account "
            f"{account}"
        )
    segments = path.removesuffix("/").split("/")
    if _ODD.search(path) or any(not segment or segment.endswith(".") for segment in segments):
        raise InvalidInput(f"credentials cannot be limited to {location!r}; Azure could read it as another path")
    return container, "/".join(segments)


def _end(key: Any) -> float:
    return datetime.fromisoformat(str(key.signed_expiry)).timestamp()
