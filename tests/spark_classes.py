"""Write an archive of the classes that Spark loads: ``python tests/spark_classes.py ARCHIVE``.

A Java process that maps the archive starts in half of the CPU time, because it neither parses nor verifies these
classes. Java ignores an archive that does not exist, or that belongs to another version of Java or Spark.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession


def main(archive: Path) -> None:
    made = archive.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f'-XX:ArchiveClassesAtExit="{made}" -XX:TieredStopAtLevel=1 -Xlog:disable'
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with TemporaryDirectory() as place:
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.sql.catalogImplementation", "in-memory")
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", f"{place}/warehouse")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        session.range(100).selectExpr("id", "id % 3 AS k").write.parquet(f"{place}/rows")
        session.read.parquet(f"{place}/rows").where("id > 2").createOrReplaceTempView("t")
        session.sql("SELECT k, count(*) FROM t JOIN t u USING (id, k) GROUP BY k ORDER BY k").collect()
        java = session.sparkContext._gateway.proc  # type: ignore[union-attr] # a classic session has one
        session.stop()
        java.stdin.close()  # Java ends, and writes the archive
        java.wait()
    made.rename(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
