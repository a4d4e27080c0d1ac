"""``lancekeep serve``: the REST server of the Lance namespace specification."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click

from lancekeep.config import IMPLEMENTATIONS, MAINTENANCE, MODES, NATIVE, ConnectionConfig, given
from lancekeep.config_files import CONFIG_VARIABLE
from lancekeep.domain.automatic_maintenance import AUTO, OFF
from lancekeep.domain.errors import InvalidInput, MissingExtra
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import print_line
from lancekeep.entrypoints.cli.options import Stores, stores


def _configure(context: click.Context, option: click.Parameter, file: str | None) -> None:
    if file is not None:
        os.environ[CONFIG_VARIABLE] = file


@command()
@click.option("--host", help="The address to listen on; 127.0.0.1 by default.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port; 2333 by default, 0 for a free one.")
@click.option("--workers", type=click.IntRange(1), help="Processes that serve, such as one per core; 1 by default.")
@click.option("--threads", type=click.IntRange(1), help="Operations that run at the same time; 64 by default.")
@click.option("--log-format", type=click.Choice(("auto", "console", "json")), help="The format of the log on stderr.")
@click.option("--log-level", type=click.Choice(("debug", "info", "warning", "error")), help="The least severe level.")
@click.option("--tracing", is_flag=True, default=None, help="Export OpenTelemetry spans to OTEL_TRACES_EXPORTER.")
@click.option("--keys", metavar="FILE", help="The API keys of callers, as `lancekeep keys create` writes them.")
@click.option("--policy", metavar="FILE", help="The roles of callers. Default: each authenticated caller has all.")
@click.option("--audit", metavar="FILE", help="Append who did what to a file; see `lancekeep audit`.")
@click.option("--events", is_flag=True, default=None, help="Record events, for GET /v1/events; see `lancekeep events`.")
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
    The server stops on Ctrl-C or SIGTERM, after the requests in progress. With several workers, SIGHUP replaces them
    one by one. Settings that are not given as options come
    from LANCEKEEP_SERVER__NAME and from [server] of lancekeep.toml. Needs the extra [server].
    """
    try:
        from lancekeep.entrypoints.rest.listening import listen, url_of
        from lancekeep.entrypoints.rest.logs import log_everything, log_of
        from lancekeep.entrypoints.rest.settings import ServerSettings
        from lancekeep.entrypoints.rest.task import Served, Task, require_sharable, shared_committers
        from lancekeep.entrypoints.rest.workers import Supervisor
        from lancekeep.entrypoints.subscribers import configured_subscribers
    except ModuleNotFoundError as error:
        raise MissingExtra("the server needs its libraries: pip install 'lancekeep[server]'") from error
    settings = ServerSettings.resolve(options)
    plan = None if maintenance in (None, *MAINTENANCE) else Path(maintenance)
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
    log = log_of(settings)
    task = Task(config, settings, impl == NATIVE, plan, subscribers=configured_subscribers())

    def announce(served: Served, url: str) -> None:
        if settings.log_format == "json":
            log.info("serving", root=served.root, url=url, workers=settings.workers, page=served.has_page)
            return
        credential = (
            "-H 'x-api-key: KEY' " if settings.keys else "-H 'authorization: Bearer TOKEN' " if settings.tokens else ""
        )
        workers = f" with {settings.workers} workers" if settings.workers > 1 else ""
        print_line(f"Serving {served.root}{workers} at {url}")
        print_line(f"Try:  curl {credential}'{url}/v1/namespace/$/table/list'")
        print_line("Stop: Ctrl-C or SIGTERM; requests in progress finish first.")
        if served.has_page:
            print_line(f"Page: {url}/")

    if settings.workers == 1:
        from lancekeep.entrypoints.rest.server import Server  # the supervisor of workers starts without these
        from lancekeep.entrypoints.serving import application

        with application(task) as (app, served, end_background):
            Server(app, settings, end_background).serve_on(partial(announce, served))
        return
    require_sharable(config)
    with listen(settings.host, settings.port) as listener, shared_committers() as committers:
        task = attrs.evolve(task, committers=committers)
        url = url_of(listener, settings.scheme)
        log_everything(settings)
        supervisor = Supervisor(task.of_worker, settings.workers, listener, settings.shutdown_seconds, log)
        supervisor.run(lambda served: announce(served, url))
