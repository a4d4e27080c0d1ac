"""``lancekeep adopt-identity``: give a copied or moved catalog its identity."""

from __future__ import annotations

import attrs
import click

from lancekeep.config import ConnectionConfig, given
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import print_line
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, assume_yes, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode
from lancekeep.homes import adopt_root, adopt_with_store


@command()
@as_json
@assume_yes
@click.option("--original", is_flag=True, help="The catalog was moved, or is older than identities.")
@click.option("--force", is_flag=True, help="The former root is not in use any more, although it may still be there.")
@mode
@stores
@click.pass_obj
def adopt_identity(
    functions: PublicFunctions,
    chosen: Stores,
    mode: str | None,
    original: bool,
    force: bool,
    assume_yes: bool,
    as_json: bool,
) -> None:
    """Give a copied or moved catalog its identity.

    Files that `lancekeep tier` has moved outside of ROOT belong to the catalog with their identity. By default, the
    CATALOG is a copy: it receives a new id, and the original keeps these files. With --original, the catalog
    was moved: it keeps its id and the files. Without --yes, only shows the identity.

    With --commit-store, the copied or moved CATALOG commits through this commit store from now on; the one of
    the former root is not asked. Then run `lancekeep repair --deep`.

    If the entries are in a database, --manifest-store names the catalog. With --original, the catalog of the
    moved root records the new root. Without it, --manifest-store names a new catalog, which receives a copy
    of the entries.
    """
    config = ConnectionConfig.resolve(given(**chosen.given))
    adoption = adopt_root(config, original=original, force=force, dry_run=not assume_yes)
    if adoption is not None and not assume_yes:  # the catalog cannot be opened yet
        if as_json:
            print_report({"adoption": attrs.asdict(adoption), "root": chosen.root, "dry_run": True})
        else:
            what = "receives a copy of the entries of" if adoption.copied else "is no longer the catalog of"
            print_line(f"{adoption.url} {what} {adoption.former}, and belongs to {chosen.root}.")
            print_line("Nothing was changed. Run it again with --yes to apply.")
        return
    if chosen.commit_store is not None and chosen.manifest_store is None:
        config = attrs.evolve(config, mode=mode or config.mode)
        former = adopt_with_store(config, original=original, dry_run=not assume_yes)
        if former is not None and not assume_yes:  # the catalog cannot be opened yet
            if as_json:
                print_report({"former_commit_store": former, "root": chosen.root, "dry_run": True})
            else:
                print_line(f"The versions would be managed by {chosen.commit_store}, and not by {former}.")
                print_line("Nothing was changed. Run it again with --yes to apply.")
            return
        original = original or former is not None  # it has its identity: keep it
    with chosen.catalog(functions, mode=mode) as catalog:
        root = catalog.root_uri
        identity = catalog.upkeep.adopt_identity(original=original) if assume_yes else catalog.upkeep.identity()
    if as_json:
        print_report({"identity": identity and attrs.asdict(identity), "root": root, "dry_run": not assume_yes})
        return
    print_line("The catalog has no identity yet." if identity is None else f"id {identity.id}, used at {identity.root}")
    if not assume_yes:
        print_line(f"The root is {root}. Nothing was changed. Run it again with --yes to apply.")
