"""Read the subscribers of events from a configuration file.

For example::

    [[webhooks]]
    name = "billing"
    url = "https://hooks.example.com/lance"
    secrets = ["env:BILLING_SECRET"]          # or "file:PATH"; during a rotation two of them
    types = ["lancekeep.table.committed"]
    below = "ml"

    [[event_files]]
    name = "archive"
    url = "s3://bucket/events"
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from lancekeep.adapters.event_sinks.files import EventFiles
from lancekeep.adapters.event_sinks.webhook import Webhook, parsed_secret, shown
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.config import ConnectionConfig, public_url
from lancekeep.config_files import subscriber_tables
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.event_delivery import FAILURES, STARTS, Subscriber
from lancekeep.domain.events import KINDS, PREFIX
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.toml_values import values_of
from lancekeep.ports.event_sink import EventSink

MOST_SUBSCRIBERS: Final = 64
"""Each of them has a thread."""
_MOST_IN_BATCH: Final = 1000
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PLACE = re.compile(r"https?://[^/?#@\s]+(/[^#\s]*)?(\?[^#\s]*)?", re.IGNORECASE)
_COMMON: Mapping[str, type] = {"name": str, "url": str, "types": list, "batch": int, "start": str, "takeover": float}
OF_WEBHOOKS: Final = {
    **_COMMON,
    "on_failure": str,
    "retry_for": float,
    "timeout": float,
    "ca_file": str,
    "allow_http": bool,
}
_OF_FILES = {**_COMMON, "every": float}


@attrs.frozen
class Secret:
    """Where a secret is, never the secret: a variable of the environment, or a file."""

    origin: str

    def read(self) -> bytes:
        """Return the secret.

        Raises:
            InvalidInput: It cannot be read, or has another form.
        """
        kind, _, name = self.origin.partition(":")
        if kind == "env":
            text = os.environ.get(name)
            if text is None:
                raise InvalidInput(f"the environment variable {name} with the secret of a webhook is not set")
        else:
            try:
                text = Path(name).read_text("ascii")
            except OSError as error:
                raise InvalidInput(
                    f"cannot read the file {name} with the secret of a webhook: {error.strerror}"
                ) from None
            except ValueError:  # its text quotes the content
                raise InvalidInput(f"the file {name} holds no secret of a webhook: it is not ASCII text") from None
        return parsed_secret(text, self.origin)


@attrs.frozen(kw_only=True)
class ConfiguredSubscriber:
    """A subscriber, and how to reach it. Workers receive it from another process.

    Attributes:
        subscriber: The subscriber.
        url: The address of a webhook, or the directory or bucket of files.
        secrets: The secrets of a webhook; empty for files.
        timeout: The most seconds of a request to a webhook.
        ca_file: Certificates that a webhook trusts, in place of the certificates of the system.
    """

    subscriber: Subscriber
    url: str = attrs.field(repr=False)
    secrets: tuple[Secret, ...] = ()
    timeout: float = 10.0
    ca_file: str | None = None

    @property
    def is_webhook(self) -> bool:
        """Whether it is a webhook, and not a directory of files."""
        return bool(self.secrets)

    @property
    def place(self) -> str:
        """The address without what may be a secret."""
        return shown(self.url) if self.is_webhook else public_url(self.url)

    def open(self, config: ConnectionConfig) -> EventSink:
        """Return what takes the events.

        Args:
            config: The connection of the catalog; files in a bucket are written with its storage options.

        Raises:
            InvalidInput: A secret or a file cannot be read.
            UnsafeStore: The storage of files has no create-only write.
        """
        if not self.is_webhook:
            local = "://" not in self.url or self.url.startswith("file:")
            options = {} if local else config.storage_options
            return EventFiles(*open_object_store(self.url, options, probe=True))
        for each in self.secrets:
            each.read()  # fail now, not at the first event
        return Webhook(self.url, lambda: [each.read() for each in self.secrets], self.timeout, self.ca_file)


def configured_subscribers(
    environment: Mapping[str, str] | None = None, catalog: str | None = None
) -> tuple[ConfiguredSubscriber, ...]:
    """Return the subscribers in the configuration file.

    Args:
        environment: The variables to read; by default the variables of the process.
        catalog: The configured catalog whose subscribers are wanted. If it has none, or is None, the subscribers at
            the top level of the file are meant.

    Raises:
        InvalidInput: A setting is unknown or not valid, or two subscribers have one name.
    """
    variables = os.environ if environment is None else environment
    found = None if catalog is None else subscriber_tables(variables, catalog)
    if found is None:
        catalog, found = None, subscriber_tables(variables)
    if found is None:
        return ()
    file, tables = found
    prefix = "" if catalog is None else f"catalogs.{catalog}."
    subscribers = [
        build(each, f"{file} [[{prefix}{kind}]] {number}", file.parent)
        for kind, build in _BUILDERS.items()
        for number, each in enumerate(tables.get(kind, []), 1)
    ]
    if len(subscribers) > MOST_SUBSCRIBERS:
        raise InvalidInput(
            f"{file} has {len(subscribers)} subscribers of events; at most {MOST_SUBSCRIBERS} are possible"
        )
    names = [each.subscriber.name for each in subscribers]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"{file}: two subscribers of events are called {twice!r}; their positions have their names")
    return tuple(subscribers)


def _webhook(given: Mapping[str, Any], place: str, folder: Path) -> ConfiguredSubscriber:
    others = {name: value for name, value in given.items() if name not in ("secrets", "below")}
    values = values_of(others, OF_WEBHOOKS, place)
    url = values.get("url", "")
    if not url.isascii() or not url.isprintable() or not _PLACE.fullmatch(url) or not _has_port(url):
        raise InvalidInput(
            f"{place}: url is not the address of a webhook; give https://HOST/PATH, without a user and a password"
        )
    if url.lower().startswith("http:") and not values.get("allow_http") and not _is_loopback(url):
        raise InvalidInput(
            f"{place}: url has no TLS, so the network can read and change the events. Give https://…, or set "
            "allow_http = true if the way to the subscriber is protected otherwise"
        )
    ca_file = values.get("ca_file")
    return ConfiguredSubscriber(
        subscriber=_subscriber(
            values, given, place, on_failure=values.get("on_failure"), retry_seconds=values.get("retry_for")
        ),
        url=url,
        secrets=tuple(_secrets(given.get("secrets"), place, folder)),
        timeout=values.get("timeout", 10.0),
        ca_file=None if ca_file is None else str(folder / ca_file),
    )


def _files(given: Mapping[str, Any], place: str, folder: Path) -> ConfiguredSubscriber:
    values = values_of({name: value for name, value in given.items() if name != "below"}, _OF_FILES, place)
    url = values.get("url", "")
    if not url:
        raise InvalidInput(f"{place} has no url; give a directory, or the URI of a prefix in a bucket")
    values.setdefault("batch", _MOST_IN_BATCH)
    return ConfiguredSubscriber(
        subscriber=_subscriber(values, given, place, every=values.get("every", 60.0), retry_seconds=float("inf")),
        url=url if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", url) else str(folder / url),
    )


_BUILDERS: Mapping[str, Callable[[Mapping[str, Any], str, Path], ConfiguredSubscriber]] = {
    "webhooks": _webhook,
    "event_files": _files,
}


def _subscriber(values: Mapping[str, Any], given: Mapping[str, Any], place: str, **others: Any) -> Subscriber:
    name = values.get("name", "")
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{place}: name is {name!r}; give 1 to 63 lower-case letters, digits and '-'")
    below = given.get("below", "")
    if not isinstance(below, str | list):
        raise InvalidInput(f"{place}: below is {below!r}; give the identifier of a namespace or table")
    for key, choices in (("start", STARTS), ("on_failure", FAILURES)):
        if key in values and values[key] not in choices:
            raise InvalidInput(f"{place}: {key} is {values[key]!r}; choose {', '.join(choices)}")
    for each in values.get("types", ()):
        if not each.startswith(PREFIX) or each.rpartition(".")[2] not in KINDS:
            raise InvalidInput(f"{place}: there are no events of type {each!r}; docs/events.md lists the types")
    if values.get("batch", 1) > _MOST_IN_BATCH:
        raise InvalidInput(f"{place}: batch is {values['batch']}; give a number from 1 to {_MOST_IN_BATCH}")
    for key in ("takeover", "timeout"):
        if values.get(key) == 0:
            raise InvalidInput(f"{place}: {key} is 0; give a time span such as '10s'")
    chosen = {key: values[key] for key in ("batch", "start", "takeover") if key in values}
    chosen |= {key: value for key, value in others.items() if value is not None}
    return Subscriber(name=name, types=frozenset(values.get("types", ())), below=ObjectId.of(below), **chosen)


def _secrets(given: Any, place: str, folder: Path) -> Iterator[Secret]:
    """Yield where the secrets are; messages never quote them, because a setting may hold a secret by mistake."""
    expected = 'give secrets = ["env:NAME"] or ["file:PATH"], during a rotation two of them'
    if not isinstance(given, list) or not 1 <= len(given) <= 2:
        raise InvalidInput(f"{place}: {expected}")
    for each in given:
        kind, _, name = each.partition(":") if isinstance(each, str) else ("", "", "")
        if kind not in ("env", "file") or not name:
            raise InvalidInput(f"{place}: a secret has neither the form env:NAME nor file:PATH; {expected}")
        yield Secret(f"file:{folder / name}" if kind == "file" else each)


def _is_loopback(url: str) -> bool:
    """Return whether the host of a URL is this machine, without asking a name server."""
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _has_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0 and urlsplit(url).hostname is not None
    except ValueError:
        return False
