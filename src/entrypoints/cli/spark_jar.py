"""``lancekeep spark-jar``: write the jar for Spark drivers without Python."""

from __future__ import annotations

from pathlib import Path

import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import print_line


@command("spark-jar")
@click.argument("jar", type=click.Path(dir_okay=False, path_type=Path))
def spark_jar(jar: Path) -> None:
    """Write the jar by which spark-sql, Connect and Thrift servers open catalogs.

    It is compiled with the Spark that this interpreter or SPARK_HOME has, and replaces an existing file.
    """
    from lancekeep.spark import write_jar

    catalog_class = write_jar(jar)
    print_line(f"Wrote {jar}. Give Spark these settings:")
    print_line(f"  spark.jars={jar.absolute()}")
    print_line(f"  spark.sql.catalog.lake={catalog_class}")
    print_line("  spark.sql.catalog.lake.root=ROOT")
    print_line("  spark.sql.catalog.lake.commit_store=URL")
