"""``lancekeep serve``: the REST server of the Lance namespace specification."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import click

from lancekeep.config import MAINTENANCE, NATIVE, given, named_catalogs
from lancekeep.config_files import CONFIG_VARIABLE
from lancekeep.config_settings import IMPLEMENTATIONS, MODES
from lancekeep.domain.automatic_maintenance import AUTO
from lancekeep.domain.errors import InvalidInput, MissingExtra
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import print_line
from lancekeep.entrypoints.cli.options import Stores, chosen_name, stores_if_named

STORES = (
    "commit_store",
    "commit_store_option",
    "commit_store_option_file",
    "manifest_store",
    "manifest_store_option",
    "manifest_store_option_file",
    "storage_option",
    "storage_option_file",
)
"""The options about the stores of one catalog."""


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
@stores_if_named
def serve(
    chosen: Stores | None, /, mode: str | None, impl: str | None, maintenance: str | None, **options: Any
) -> None:
    """Serve a catalog by the REST protocol of Lance namespaces.

    Without a CATALOG, and without a root of its own in the configuration, it serves every catalog of [catalogs], each
    below /catalogs/NAME. At / of the server is a page for browsers, which sign in with an API key or a token.
    The server stops on Ctrl-C or SIGTERM, after the requests in progress. With several workers, SIGHUP replaces them
    one by one. Settings that are not given as options come
    from LANCEKEEP_SERVER__NAME and from [server] of lancekeep.toml. Needs the extra [server].
    """
    try:
        from lancekeep.entrypoints.rest.listening import listen, url_of
        from lancekeep.entrypoints.rest.logs import log_everything, log_of, write_to
        from lancekeep.entrypoints.rest.printed import is_captured, printing_to_log
        from lancekeep.entrypoints.rest.settings import ServerSettings
        from lancekeep.entrypoints.rest.task import (
            Served,
            SeveralTasks,
            Task,
            is_sharable,
            prefix_of,
            shared_committers,
        )
        from lancekeep.entrypoints.rest.whole_lines import log_stream
        from lancekeep.entrypoints.rest.workers import Supervisor
    except ModuleNotFoundError as error:
        raise MissingExtra("the server needs its libraries: pip install 'lancekeep[server]'") from error
    if maintenance not in (None, *MAINTENANCE):
        options["maintenance_policy"], maintenance = maintenance, None
    task: Task | SeveralTasks
    if chosen is not None:
        if maintenance == AUTO and impl == NATIVE:
            raise InvalidInput("--maintenance auto needs a catalog of Lancekeep; impl 'native' serves pylance's own")
        named = chosen_name()
        of_catalog = given(**chosen.given, mode=mode, impl=None if impl == NATIVE else impl, maintenance=maintenance)
        settings = ServerSettings.resolve(options, catalog=named)
        task = Task.configured(settings, of_catalog, named, native=impl == NATIVE)
    else:
        _require_no_options_of_one(mode=mode, impl=impl)
        task = SeveralTasks.configured(options, given(maintenance=maintenance))
        settings = task.settings

    def announce(served: Served, url: str) -> None:
        if settings.log_format == "json":
            log = log_of(settings)
            log.info("serving", root=served.root, url=url, workers=settings.workers, page=served.has_page)
            for name, state in served.catalogs.items():
                log.info("catalog", catalog=name, url=f"{url}{prefix_of(name)}", state=state)
            return
        credential = (
            "-H 'x-api-key: KEY' " if settings.keys else "-H 'authorization: Bearer TOKEN' " if settings.tokens else ""
        )
        workers = f" with {settings.workers} workers" if settings.workers > 1 else ""
        print_line(f"Serving {served.root}{workers} at {url}")
        for name, state in served.catalogs.items():
            print_line(f"      {url}{prefix_of(name)}  {state}")
        tried = f"{url}{prefix_of(served.example)}" if served.example else url
        print_line(f"Try:  curl {credential}'{tried}/v1/namespace/$/table/list'")
        print_line("Stop: Ctrl-C or SIGTERM; requests in progress finish first.")
        if served.has_page:
            print_line(f"Page: {url}/")

    if not is_sharable(task):
        from lancekeep.entrypoints.rest.server import Server  # the supervisor of workers starts without these
        from lancekeep.entrypoints.serving_catalogs import served_by

        with printing_to_log(settings), served_by(task) as (app, served, end_background):
            Server(app, settings, end_background).serve_on(partial(announce, served))
        return
    with listen(settings.host, settings.port) as listener, shared_committers(settings.workers) as committers:
        task = task.with_committers(committers)
        url = url_of(listener, settings.scheme)
        captures = is_captured(settings)
        if captures:
            write_to(log_stream(os.dup(sys.stderr.fileno())))
        log_everything(settings)
        supervisor = Supervisor(
            task.of_worker,
            settings.workers,
            listener,
            settings.shutdown_seconds,
            log_of(settings),
            task.longest,
            captures,
        )
        supervisor.run(lambda served: announce(served, url))


def _require_no_options_of_one(**options: str | None) -> None:
    """Refuse options of one catalog, for a server of all configured catalogs.

    Args:
        options: Options that concern one catalog, next to the options about its stores.

    Raises:
        InvalidInput: An option is given, and there are such catalogs.
    """
    parameters = click.get_current_context().params
    for option, value in {**options, **{name: parameters[name] for name in STORES if name in parameters}}.items():
        if value and named_catalogs():
            raise InvalidInput(
                f"--{option.replace('_', '-')} concerns one catalog, and without a CATALOG the server would serve all "
                "of [catalogs]; write it into the table [catalogs.NAME] of each, or name a CATALOG"
            )
