"""``lancekeep serve``: the REST server of the Lance namespace specification."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import click

from lancekeep.application.catalog import directory_of
from lancekeep.composition import open_catalog
from lancekeep.config import IMPLEMENTATIONS, MAINTENANCE, MODES, ConnectionConfig, given
from lancekeep.config_files import CONFIG_VARIABLE
from lancekeep.domain.automatic_maintenance import AUTO, OFF
from lancekeep.domain.errors import InvalidInput, MissingExtra
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import print_line
from lancekeep.entrypoints.cli.options import Stores, stores
from lancekeep.entrypoints.maintenance import maintaining, read_plan
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.namespace.implementations import NATIVE, namespace_of
from lancekeep.local_files import not_reported


def _configure(context: click.Context, option: click.Parameter, file: str | None) -> None:
    if file is not None:
        os.environ[CONFIG_VARIABLE] = file


@command()
@click.option("--host", help="The address to listen on; 127.0.0.1 by default.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port; 2333 by default, 0 for a free one.")
@click.option("--threads", type=click.IntRange(1), help="Operations that run at the same time; 64 by default.")
@click.option("--log-format", type=click.Choice(("auto", "console", "json")), help="The format of the log on stderr.")
@click.option("--log-level", type=click.Choice(("debug", "info", "warning", "error")), help="The least severe level.")
@click.option("--tracing", is_flag=True, default=None, help="Export OpenTelemetry spans to OTEL_TRACES_EXPORTER.")
@click.option("--keys", metavar="FILE", help="The API keys of callers, as `lancekeep keys create` writes them.")
@click.option("--policy", metavar="FILE", help="The roles of callers. Default: each authenticated caller has all.")
@click.option("--audit", metavar="FILE", help="Append who did what to a file; see `lancekeep audit`.")
@click.option("--certificate", metavar="FILE", help="The TLS certificate with its chain, in PEM format.")
@click.option("--private-key", metavar="FILE", help="The key of the certificate, in PEM format.")
@click.option(
    "--maintenance",
    metavar="auto|off|FILE",
    help="auto (default): tables to which callers write; off; or by a policy file, see `lancekeep maintain`.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    callback=_configure,
    expose_value=False,
    is_eager=True,
    help="The configuration file to read instead of lancekeep.toml.",
)
@click.option("--mode", type=click.Choice(MODES), help="Where the catalog's entries are; compatible by default.")
@click.option(
    "--impl",
    type=click.Choice((*IMPLEMENTATIONS, NATIVE)),
    help="What ROOT is: a directory, the URI of another server, or a directory for pylance's own namespace.",
)
@stores
def serve(chosen: Stores, /, mode: str | None, impl: str | None, maintenance: str | None, **options: Any) -> None:
    """Serve a catalog by the REST protocol of Lance namespaces.

    At / of the server is a page for browsers, which sign in with an API key or a token.
    The server stops on Ctrl-C or SIGTERM, after the requests in progress. Settings that are not given as options come
    from LANCEKEEP_SERVER__NAME and from [server] of lancekeep.toml. Needs the extra [server].
    """
    try:
        from lancekeep.entrypoints.page.app import SEGMENTS
        from lancekeep.entrypoints.page.serving import page_of
        from lancekeep.entrypoints.rest.app import create_app
        from lancekeep.entrypoints.rest.audit import AuditLog
        from lancekeep.entrypoints.rest.security.setup import security_of
        from lancekeep.entrypoints.rest.server import Server
        from lancekeep.entrypoints.rest.settings import ServerSettings
    except ModuleNotFoundError as error:
        raise MissingExtra("the server needs its libraries: pip install 'lancekeep[server]'") from error
    settings = ServerSettings.resolve(options)
    plan = None if maintenance in (None, *MAINTENANCE) else read_plan(Path(maintenance))
    config = ConnectionConfig.resolve(
        given(
            **chosen.given,
            mode=mode,
            impl=None if impl == NATIVE else impl,
            maintenance=OFF if plan is not None else maintenance,
        )
    )
    if maintenance == AUTO and impl == NATIVE:
        raise InvalidInput("--maintenance auto needs a catalog of Lancekeep; impl 'native' serves pylance's own")
    if config.maintenance is None and config.impl != "rest":  # the server of the catalog maintains it
        config = attrs.evolve(config, maintenance=AUTO)

    credential = (
        "-H 'x-api-key: KEY' " if settings.keys else "-H 'authorization: Bearer TOKEN' " if settings.tokens else ""
    )

    def announce(url: str) -> None:
        print_line(f"Serving {shown} at {url}")
        print_line(f"Try:  curl {credential}'{url}/v1/namespace/$/table/list'")
        print_line("Stop: Ctrl-C or SIGTERM; requests in progress finish first.")
        if page is not None:
            print_line(f"Page: {url}/")

    with ExitStack() as stack:
        namespace, shown = stack.enter_context(namespace_of(config, native=impl == NATIVE))
        base_paths = (
            directory_of(namespace.catalog, "serve").versions.base_paths
            if isinstance(namespace, CatalogNamespace)
            else None
        )
        if isinstance(namespace, CatalogNamespace) and config.impl != "rest":
            namespace.catalog.initialize()
        audit = AuditLog(Path(settings.audit)) if settings.audit else None
        reloaded = not_reported if audit is None else audit.reloaded
        security = security_of(settings, config.storage_options, base_paths, reloaded)
        stack.enter_context(maintaining(namespace, plan, confined=bool(settings.policy)))
        catalog = namespace.catalog if isinstance(namespace, CatalogNamespace) else None
        if config.impl == "rest":
            catalog = stack.enter_context(open_catalog(config))
        page = None if catalog is None else page_of(catalog, settings, security)
        others = {} if page is None else dict.fromkeys(SEGMENTS, page)
        app = create_app(
            namespace, settings, around=security.around, middleware=security.middleware, others=others, audit=audit
        )
        if isinstance(namespace, CatalogNamespace):
            server = Server(app, settings, directory_of(namespace.catalog, "serve").automatic.close)
        else:
            server = Server(app, settings)
        server.serve_on(announce)
