"""Any configured catalog as a namespace, for a server of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import lance_namespace as api

from lancekeep.adapters.rest.settings import RestSettings
from lancekeep.composition import Sharing, open_catalog
from lancekeep.config import ConnectionConfig, public_url
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.namespace.rest import RestNamespace


@contextmanager
def namespace_of(
    config: ConnectionConfig, *, native: bool = False, sharing: Sharing | None = None
) -> Iterator[tuple[api.LanceNamespace, str]]:
    """Open the namespace of a configuration.

    Args:
        config: The configuration.
        native: Open the root with the directory namespace of pylance.
        sharing: As of `open_catalog`.

    Yields:
        The namespace, and its root for messages.

    Raises:
        InvalidInput: A setting does not belong to the implementation.
    """
    root = config.require_root()
    if native:
        from lance.namespace import DirectoryNamespace

        if config.impl != "dir":
            raise InvalidInput(f"impl 'native' serves a directory, and {public_url(root)} is the URI of a server")
        if config.commit_store is not None:
            raise InvalidInput("impl 'native' serves a directory without a commit store; leave commit_store out")
        if config.manifest_store is not None:
            raise InvalidInput("impl 'native' serves the entries in a directory; leave manifest_store out")
        storage = {f"storage.{name}": value for name, value in config.storage_options.items()}
        yield DirectoryNamespace(root=root, **storage), public_url(root)
    elif config.impl == "rest":
        RestSettings.of({**config.rest_options, "uri": root})  # a malformed URI is an error of this package here
        namespace = RestNamespace(uri=root, **config.rest_options)
        with closing(namespace.server):
            namespace.server.honours_keys()  # fail now, not at the first request
            yield namespace, namespace.server.uri
    else:
        with open_catalog(config, sharing) as catalog:
            vend, master = config.vend_input_storage_options, config.spark_master
            yield CatalogNamespace(catalog, vend_storage_options=vend, spark_master=master), catalog.root_uri
