"""The command line, ``lancekeep``.

Each command has a module of its own, which is imported when the command runs. The table below gives the name, the
module and the summary of every command, so ``lancekeep --help`` imports no command and none of its dependencies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import click

from lancekeep.entrypoints.cli.commands import Commands, Entry

if TYPE_CHECKING:
    from lancekeep.entrypoints.cli.options import PublicFunctions

AGAIN = "Every version is complete or not there. Run the command again to complete the work."
FILE = "The file may be incomplete. Run the command again."
JUDGED = "The namespaces of the judge were removed."
MEASURED = "What the measurement wrote was removed."
WHOLE = "The change was made completely or not at all."

SECTIONS = {
    "Catalog": (
        Entry("adopt-identity", "adopt_identity", "Give a copied or moved catalog its identity.", WHOLE),
        Entry("apply", "apply", "Make a catalog like a file, after showing the plan.", AGAIN),
        Entry("clone", "clone", "Clone a version of a table, without copying its files unless asked to.", AGAIN),
        Entry("copy-catalog", "copy_catalog", "Move a catalog to another home of its entries.", AGAIN),
        Entry("create", "entries", "Create a namespace, or a table without rows.", WHOLE),
        Entry("deregister", "drop", "Remove a table from the catalog and keep its files.", WHOLE),
        Entry("describe", "describe", "Describe a catalog, a namespace or a table."),
        Entry("drop", "drop", "Remove a table from the catalog together with its files.", AGAIN),
        Entry("export-catalog", "apply", "Print a catalog as a file: namespaces, tables and properties."),
        Entry("init", "dropped", "Create a catalog.", WHOLE),
        Entry("ls", "ls", "List namespaces and tables."),
        Entry("materialize", "clone", "Copy the files that a clone reads from other tables into its directory.", AGAIN),
        Entry("migrate", "migrate", "Register the V1 tables of a directory in its manifest table.", AGAIN),
        Entry("migrate-names", "migrate_names", "Rename the manifests of a table from V1 to V2.", AGAIN),
        Entry("protect", "dropped", "Protect a table or a namespace against removal and loss.", WHOLE),
        Entry("purge", "dropped", "Remove the files and versions of a dropped table.", AGAIN),
        Entry("register", "entries", "Add an existing Lance table below the root to the catalog.", WHOLE),
        Entry("relocate", "relocate", "Move a table with its history to another directory.", AGAIN),
        Entry("rename", "entries", "Rename a table, also into another namespace.", AGAIN),
        Entry("set", "entries", "Set properties of a table or a namespace.", WHOLE),
        Entry("tree", "ls", "Show namespaces and tables as a tree."),
        Entry("undrop", "dropped", "Bring a dropped table back.", WHOLE),
        Entry("unprotect", "dropped", "End the protection of a table or a namespace.", WHOLE),
        Entry("unset", "entries", "Remove properties of a table or a namespace.", WHOLE),
    ),
    "Data": (
        Entry("backfill", "backfill", "Add or recompute columns with a Python function, as one version.", AGAIN),
        Entry("count", "rows", "Count the rows of a table."),
        Entry("diff", "diff", "Compare two versions of a table."),
        Entry("export", "transfer", "Write the rows of a table to a file."),
        Entry("head", "rows", "Show the first rows of a table."),
        Entry("import", "transfer", "Write the rows of files into a table, as one version.", WHOLE),
        Entry("index", "index", "Build an index on a column, as one version.", AGAIN),
        Entry("ingest", "ingest", "Load files into a table, each file exactly once, as one version.", AGAIN),
        Entry("query", "query", "Run a SELECT on tables of a catalog."),
        Entry("sample", "rows", "Show random rows of a table."),
        Entry("schema", "describe", "Show the columns of a table."),
        Entry("search", "search", "Find the rows of a table that are nearest to a vector, or match a text."),
        Entry("stats", "stats", "Show what the columns of a table hold."),
        Entry("tail", "rows", "Show the last rows of a table."),
        Entry("take", "rows", "Show the rows of a table at positions."),
        Entry("upsert", "upsert", "Update or insert rows by key from files, as one version.", AGAIN),
    ),
    "Versions": (
        Entry("branch", "references", "List, create and delete the branches of a table.", WHOLE),
        Entry("history", "history", "List the versions of a table, newest first."),
        Entry("log", "history", "Show the versions of a table and its branches as a graph."),
        Entry("restore", "restore", "Commit a new version of a table with the contents of an earlier one.", WHOLE),
        Entry("show", "history", "Show a version of a table and what it changed."),
        Entry("tag", "references", "List, create, move and delete the tags of a table.", WHOLE),
    ),
    "Upkeep": (
        Entry("backup", "backup", "Copy a catalog to another place while its writers continue.", AGAIN),
        Entry("cleanup", "cleanup", "Remove old versions of tables and the files that only they need.", AGAIN),
        Entry("compact", "compact", "Merge small fragments of tables and remove deleted rows.", AGAIN),
        Entry("cost", "cost", "Show the bytes of tables, what needs them, and what frees them."),
        Entry("digest", "digest", "Record the digests of the files of tables.", AGAIN),
        Entry(
            "direct-commits",
            "direct_commits",
            "Adopt or discard versions that were committed to storage without the catalog.",
            AGAIN,
        ),
        Entry("fsck", "fsck", "Check the catalog for inconsistencies; change nothing."),
        Entry("inspect", "inspect", "Show the stored metadata of a table."),
        Entry("maintain", "maintain", "Compact, index and clean up tables by a policy, once.", AGAIN),
        Entry("export-manifest", "export_manifest", "Write the entries of a database for native readers.", AGAIN),
        Entry("optimize", "optimize", "Remove old versions of the manifest table and build its indexes.", AGAIN),
        Entry("repair", "repair", "Repair the inconsistencies that fsck finds, without losing data.", AGAIN),
        Entry("resolve", "resolve", "Settle a commit whose outcome was unknown.", AGAIN),
        Entry("tier", "tier", "Move old data files of a table to another prefix or bucket.", AGAIN),
        Entry("verify", "verify", "Check that the files and rows of tables are complete."),
    ),
    "Servers": (
        Entry("audit", "audit", "Show who asked a server for what, and what it decided."),
        Entry("events", "events", "Show the changes of a catalog and the commits of its tables, in order."),
        Entry("keys", "keys", "Create, list, rotate and revoke the API keys of a server.", WHOLE),
        Entry("policy", "policy", "Explain what a policy decides, and change its grants."),
        Entry("quotas", "quotas", "Show how much of the quotas of a policy is used."),
        Entry("serve", "serve", "Serve a catalog by the REST protocol of Lance namespaces."),
        Entry(
            "spark-jar",
            "spark_jar",
            "Write the jar by which spark-sql, Connect and Thrift servers open catalogs.",
            FILE,
        ),
        Entry("ui", "ui", "Show a catalog in a browser."),
        Entry("webhooks", "webhooks", "Show how far subscribers of events are, test them, and replay dead letters."),
    ),
    "Set-up": (
        Entry("bench", "bench", "Measure commits, opens and lists per second.", MEASURED),
        Entry("completion", "completion", "Print the program that completes commands, options and names in a shell."),
        Entry("config", "config", "Show and write the configuration of this machine."),
        Entry("doctor", "setup", "Check the versions, extras and stores of this machine."),
    ),
    "Stores": (
        Entry(
            "certify",
            "certify",
            "Measure whether the stores are safe for commits.",
            MEASURED,
        ),
        Entry("conformance", "conformance", "Judge a server of the REST protocol by its specification.", JUDGED),
        Entry("migrate-schema", "migrate_schema", "Create or update the tables of a PostgreSQL store.", WHOLE),
    ),
}


@click.group(
    cls=Commands,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="lancekeep", prog_name="lancekeep", message="%(prog)s %(version)s")
def lancekeep() -> None:
    """The catalog and commit layer for Lance tables.

    Exit codes: 0 success, and no problem found; 1 a problem was found, or the catalog refused the change; 2 invalid
    usage; 3 a store did not answer, or the object does not exist; 130 stopped by Ctrl-C.
    """


def main(functions: PublicFunctions) -> NoReturn:
    """Run the command that this process was started with, and exit.

    Args:
        functions: The public functions of `lancekeep` that the commands call.
    """
    lancekeep.main(prog_name="lancekeep", obj=functions)
    raise SystemExit(0)  # never reached: click exits in standalone mode
