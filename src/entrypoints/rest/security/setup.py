"""The security of a server, from its settings."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import attrs
from prometheus_client.registry import Collector
from starlette.middleware import Middleware

from lancekeep.adapters.authentication.api_keys import ApiKeys, KeyFile
from lancekeep.adapters.authentication.tokens import Issuer, Tokens
from lancekeep.adapters.authorization.policy_file import PolicyFile, any_policy
from lancekeep.application.entries.base_paths import BasePaths
from lancekeep.application.upkeep.usage import Usage
from lancekeep.domain.authorization import Policy
from lancekeep.domain.errors import InvalidInput, MissingExtra
from lancekeep.entrypoints.metering import Meter
from lancekeep.entrypoints.rest.app import Around
from lancekeep.entrypoints.rest.quota_metrics import QuotaMetrics
from lancekeep.entrypoints.rest.security.administration import Administration
from lancekeep.entrypoints.rest.security.authentication import (
    Authentication,
    LocalOnly,
    require_authentication,
    without_identity,
)
from lancekeep.entrypoints.rest.security.authorization import Authorization
from lancekeep.entrypoints.rest.security.limits import Concurrency, Rate, Share, Transfer
from lancekeep.entrypoints.rest.security.quotas import Quotas
from lancekeep.entrypoints.rest.security.vending import Vending
from lancekeep.entrypoints.rest.settings import ServerSettings, require_callers
from lancekeep.local_files import Reloaded, not_reported
from lancekeep.ports.authentication import Authenticator
from lancekeep.ports.authorization import Authorizer
from lancekeep.ports.credential_vendor import CredentialVendor

_EXTRAS = {"aws": "s3", "gcs": "gcs", "azure": "azure"}
"""The clouds for which a server can vend credentials, each with the extra that it needs."""


@attrs.frozen
class Security:
    """What protects the operations of a server.

    Attributes:
        around: Wrappers of the call of every operation, the outermost first.
        middleware: ASGI middleware, the outermost first.
        inside: Wrappers of the call inside of idempotency.
        keys: Verifies API keys; None if there are none.
        tokens: Verifies bearer tokens; None if there are none.
        authorizer: Decides what a principal may do; None if every caller may do everything.
        meter: Measures what quotas limit; None if there are none.
        collectors: The metrics of the quotas.
    """

    around: tuple[Around, ...]
    middleware: tuple[Middleware, ...]
    inside: tuple[Around, ...] = ()
    keys: Authenticator | None = None
    tokens: Authenticator | None = None
    authorizer: Authorizer | None = None
    meter: Meter | None = None
    collectors: tuple[Collector, ...] = ()

    @property
    def decisions(self) -> Callable[[], object]:
        """Returns what the wrappers decide by, next to the request and its principal."""
        return (lambda: None) if self.authorizer is None else self.authorizer.state


@attrs.frozen
class Authenticators:
    """What verifies the credentials of callers.

    Attributes:
        keys: Verifies API keys; None if there are none.
        tokens: Verifies bearer tokens; None if there are none.
        policies: The policies of all catalogs in which the credentials are valid, as far as they have one.
    """

    keys: Authenticator | None
    tokens: Authenticator | None
    policies: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        """Return whether callers are authenticated."""
        return self.keys is not None or self.tokens is not None


def authenticators_of(
    settings: ServerSettings, reloaded: Reloaded = not_reported, policies: Collection[str] = ()
) -> Authenticators:
    """Return what verifies the credentials of callers.

    Args:
        settings: The settings.
        reloaded: Called when the file of keys is read again.
        policies: The policies of all catalogs in which the credentials are valid; empty for a catalog without one.

    Raises:
        InvalidInput: A setting or a file is not valid, or the server would be open to other machines.
    """
    keys = ApiKeys(Path(settings.keys), reloaded) if settings.keys else None
    tokens = Tokens(_section(Issuer, settings.tokens, "tokens")) if settings.tokens else None
    found = Authenticators(keys, tokens, tuple(sorted({Path(each) for each in policies if each})))
    require_authentication(settings.host, authenticated=bool(found))
    return found


def guards_of(settings: ServerSettings, authenticators: Authenticators) -> tuple[Middleware, ...]:
    """Return the middleware that limits and authenticates requests.

    The outermost is first.
    """
    limits = [Middleware(Concurrency, most=settings.requests)]
    rate = [Middleware(Rate, per_second=settings.rate, burst=settings.burst, workers=settings.workers)]
    rate = rate if settings.rate else []
    if not authenticators:
        return (*limits, Middleware(LocalOnly), *rate)
    authentication = Middleware(Authentication, keys=authenticators.keys, tokens=authenticators.tokens)
    return (*limits, authentication, Middleware(Share, most=settings.requests), *rate)


def security_of(
    settings: ServerSettings,
    storage_options: Mapping[str, str],
    base_paths: BasePaths | None = None,
    reloaded: Reloaded = not_reported,
    authenticators: Authenticators | None = None,
    usage: Usage | None = None,
) -> Security:
    """Return the security that the settings of a server describe.

    Args:
        settings: The settings.
        storage_options: The storage options of the catalog, from which credentials are vended.
        base_paths: The base paths of the catalog; None if the server cannot check the base paths of the served
            namespace.
        reloaded: Called when the files of keys or grants are read again.
        authenticators: What verifies credentials, if it is shared; None to make it from the settings.
        usage: Measures the bytes of the catalog; None if the server cannot keep quotas in the served namespace.

    Raises:
        InvalidInput: A setting or a file is not valid, or the server would be open to other machines.
    """
    if authenticators is None:
        authenticators = authenticators_of(settings, reloaded)
    require_callers(settings)
    transfer = Middleware(
        Transfer,
        largest=settings.largest_body,
        document=settings.largest_document,
        seconds=settings.body_seconds,
        patience=settings.header_seconds,
        rate=settings.least_rate,
    )
    middleware = (*guards_of(settings, authenticators), transfer)
    if not authenticators:
        return Security((), middleware)
    around: list[Around] = [without_identity]
    keys = KeyFile(Path(settings.keys)) if settings.keys else None
    vendor, found = _vendor(settings, storage_options), (authenticators.keys, authenticators.tokens)
    if not settings.policy:
        around.append(Administration(keys, None))
        return Security((*around, Vending(vendor, None, base_paths)), middleware, (), *found)
    policy = PolicyFile(Path(settings.policy), reloaded, any_policy if usage is not None else _without_quotas)
    elsewhere = tuple(each for each in authenticators.policies if each != policy.path)
    around += [Authorization(policy), Administration(keys, policy, elsewhere), Vending(vendor, policy, base_paths)]
    if usage is None:
        return Security(tuple(around), middleware, (), *found, policy)
    meter = Meter(usage, lambda: policy.policy.quotas, settings.usage_seconds)
    metrics = QuotaMetrics(meter)
    quotas = Quotas(policy, meter, metrics.refused)
    return Security(tuple(around), middleware, (quotas,), *found, policy, meter, (metrics,))


def _without_quotas(policy: Policy) -> None:
    """Refuse quotas that the server of another catalog has to keep."""
    if policy.quotas:
        raise InvalidInput(
            "the policy has [[quotas]], and this server serves a namespace whose changes it does not decide; write "
            "the quotas into the policy of the server that opens the catalog itself, and remove them here"
        )


def tls_of(settings: ServerSettings) -> dict[str, str]:
    """Return the TLS options of uvicorn; none without a certificate.

    Raises:
        InvalidInput: The certificate and its key cannot be used together.
    """
    if not settings.certificate and not settings.private_key:
        return {}
    if not settings.certificate or not settings.private_key:
        raise InvalidInput("server.certificate and server.private_key go together; one of them is missing")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(settings.certificate, settings.private_key)
    except OSError as error:
        raise InvalidInput(
            f"the certificate {settings.certificate} and the key {settings.private_key} cannot be used: "
            f"{error.strerror or type(error).__name__}; both are files in PEM format"
        ) from error
    return {"ssl_certfile": settings.certificate, "ssl_keyfile": settings.private_key}


def _vendor(settings: ServerSettings, storage_options: Mapping[str, str]) -> CredentialVendor | None:
    if not settings.vending:
        return None
    given = dict(settings.vending)
    cloud = given.pop("cloud", "aws")
    extra = _EXTRAS.get(cloud) if isinstance(cloud, str) else None
    if extra is None:
        raise InvalidInput(f"[server.vending]: cloud is {cloud!r}; choose {', '.join(_EXTRAS)}")
    try:
        if cloud == "gcs":
            from lancekeep.adapters.credential_vendors.gcs import Account, GcsVendor

            return GcsVendor(_section(Account, given, "vending"), storage_options)
        if cloud == "azure":
            from lancekeep.adapters.credential_vendors.azure import AzureVendor, StorageAccount

            return AzureVendor(_section(StorageAccount, given, "vending"), storage_options)
        from lancekeep.adapters.credential_vendors.sts import Role, StsVendor

        given = {("arn" if name == "role_arn" else name): value for name, value in given.items()}
        return StsVendor(_section(Role, given, "vending"), storage_options)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"server.vending for {cloud} needs the package {error.name}: pip install 'lancekeep[{extra}]'"
        ) from error


def _section(kind: Any, given: Mapping[str, Any], section: str) -> Any:
    """Return a section of the settings as a value. Raises `InvalidInput` if it does not fit."""
    fields = attrs.fields_dict(kind)
    unknown = sorted(given.keys() - fields.keys())
    if unknown:
        raise InvalidInput(f"[server.{section}] has the unknown key {unknown[0]!r}; known are {', '.join(fields)}")
    required = [name for name, field in fields.items() if field.default is attrs.NOTHING and name not in given]
    if required:
        raise InvalidInput(f"[server.{section}] lacks {', '.join(required)}")
    for name, value in given.items():
        number = str(fields[name].type) in ("int", "float")
        if isinstance(value, bool) or not isinstance(value, int | float if number else str):
            raise InvalidInput(
                f"[server.{section}]: {name} is a {type(value).__name__}; give {'a number' if number else 'text'}"
            )
    return kind(**given)
