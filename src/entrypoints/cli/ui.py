"""``lancekeep ui``: a catalog in a browser of this machine."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from threading import Thread

import click

from lancekeep.domain.errors import MissingExtra
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import print_line
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores
from lancekeep.entrypoints.cli.upkeep import mode


@command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port. Default: a free one.")
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
@mode
@stores
@click.pass_obj
def ui(functions: PublicFunctions, chosen: Stores, /, mode: str | None, port: int, no_browser: bool) -> None:
    """Show a catalog in a browser.

    Prints a URL and opens it. The URL is valid once, and the page answers only the browser that opened it. The page
    changes nothing. Needs the extra [server].
    """
    try:
        from lancekeep.entrypoints.page.serving import serve_locally
    except ModuleNotFoundError as error:
        raise MissingExtra("the page needs its libraries: pip install 'lancekeep[server]'") from error

    def announce(url: str) -> None:
        print_line(f"Page: {url}")
        print_line("Stop: Ctrl-C")
        if not no_browser:  # in a thread, since a browser in the terminal waits for the page
            Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    with chosen.catalog(functions, mode=mode) as catalog, suppress(KeyboardInterrupt):
        serve_locally(catalog, port, announce)
