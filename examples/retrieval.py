"""Search the paragraphs of documents by vectors, and compare the search with brute force.

``python examples/retrieval.py LAKE --revision 1`` writes documents (the topics of Python's own help) to a folder,
splits them into chunks, embeds the chunks by a Python function, indexes the vectors, and searches for the title of
each document. ``--revision 2`` changes, adds and removes documents; only their chunks change. Kill it at any moment and
run it again: the result is the same. It ends with a check of its own result, and with status 1 if the check fails.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from zlib import crc32

import lance
import numpy as np
import pyarrow as pa

import lancekeep
import lancekeep.spark
from lancekeep.jobs import session, ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIMENSION = 128
SHORTEST = 80  # characters of a chunk; shorter paragraphs are titles
NEAREST, PROBED, PARTITIONS = 10, 4, 8


def main() -> int:
    parser = argparse.ArgumentParser(description="documents, chunks, embeddings, an index and its recall")
    parser.add_argument("lake", type=Path, help="the folder of the tables and documents")
    parser.add_argument("--revision", type=int, default=1, choices=(1, 2), help="of the documents")
    chosen = parser.parse_args()
    spark = session("local[2]")
    try:
        run(spark, chosen.lake.resolve(), chosen.revision)
    except Wrong as error:
        print(f"WRONG: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


def run(spark: SparkSession, lake: Path, revision: int) -> None:
    """Write the documents, bring all tables up to them, and check the result."""
    folder = lake / "documents"
    deliver(folder, revision)
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    register_embed(spark)
    with lancekeep.spark.install(spark, "lake", str(lake), commit_store=f"sqlite://{quote(str(lake))}/commits.db") as c:
        spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.docs")
        documents(spark, folder)
        chunks(spark, c)
        index(spark)
        evaluate(spark, c)
        check(folder, {name: c.describe_table(f"docs.{name}").uri for name in ("documents", "chunks", "evaluations")})


def deliver(folder: Path, revision: int) -> None:
    """Write the documents of a revision: in the first, some are missing, some end early, and one is obsolete."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {}
    for at, (name, text) in enumerate(sorted(topics.items())):
        if revision > 1 or at % 10:
            wanted[name] = text if revision > 1 or at % 7 else text[: len(text) // 2]
    if revision == 1:
        wanted["obsolete"] = f"Obsolete topic\n\n{topics['assert']}"
    for file in folder.glob("*.txt"):
        if file.stem not in wanted:
            file.unlink()
    for name, text in wanted.items():
        file = folder / f"{name}.txt"
        arriving = file.with_suffix(".arriving")
        arriving.write_text(text)
        arriving.rename(file)  # whole or not at all


# -- the tables -----------------------------------------------------------------------------------------------------


def documents(spark: SparkSession, folder: Path) -> None:
    """Make the table equal to the folder, as one version; none if nothing has changed."""
    spark.sql("""
        CREATE TABLE IF NOT EXISTS lake.docs.documents (name STRING, text STRING, PRIMARY KEY (name))
        TBLPROPERTIES ('lancekeep.stable_row_ids' = 'true')
    """)
    files = spark.read.text(str(folder / "*.txt"), wholetext=True)
    names = "regexp_extract(_metadata.file_name, '^(.*)[.]txt$', 1) AS name"
    files.selectExpr(names, "value AS text").createOrReplaceTempView("files")
    spark.sql("""
        MERGE INTO lake.docs.documents t USING files s ON t.name = s.name
        WHEN MATCHED AND t.text <> s.text THEN UPDATE SET text = s.text
        WHEN NOT MATCHED THEN INSERT *
        WHEN NOT MATCHED BY SOURCE THEN DELETE
    """)


def chunks(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    """Split the documents that changed since the last run into chunks, and embed the new chunks.

    The table remembers the version of the documents in a property, which is set after its rows. If the process is
    killed in between, the same changes are read again, and find all chunks.
    """
    spark.sql(f"""
        CREATE TABLE IF NOT EXISTS lake.docs.chunks
        (document STRING, n INT, text STRING, embedding ARRAY<FLOAT>, PRIMARY KEY (document, n))
        TBLPROPERTIES ('lancekeep.stable_row_ids' = 'true', 'vector.embedding' = '{DIMENSION}')
    """)
    latest = catalog.describe_table("docs.documents").version or 0
    read = int(catalog.describe_table("docs.chunks").properties.get("read.documents", 1))  # version 1 has no rows
    if read == latest:
        return
    spark.sql(f"""
        SELECT DISTINCT name FROM lake.docs.documents CHANGES FROM VERSION {read + 1} TO VERSION {latest}
    """).createOrReplaceTempView("changed")
    spark.sql(f"""
        SELECT name AS document, n, text
        FROM (SELECT name, posexplode(split(text, '\\n\\n+')) AS (n, text)
              FROM lake.docs.documents VERSION AS OF {latest} LEFT SEMI JOIN changed USING (name))
        WHERE length(text) >= {SHORTEST}
    """).createOrReplaceTempView("wanted")
    spark.sql("""
        SELECT document, n, text, embed(text) AS embedding, false AS gone
        FROM wanted LEFT ANTI JOIN lake.docs.chunks USING (document, n, text)
        UNION ALL
        SELECT document, n, text, embedding, true
        FROM (SELECT t.* FROM lake.docs.chunks t LEFT SEMI JOIN changed ON document = name)
        LEFT ANTI JOIN wanted USING (document, n)
    """).createOrReplaceTempView("replacement")
    spark.sql("""
        MERGE INTO lake.docs.chunks t USING replacement s ON t.document = s.document AND t.n = s.n
        WHEN MATCHED AND s.gone THEN DELETE
        WHEN MATCHED THEN UPDATE SET text = s.text, embedding = s.embedding
        WHEN NOT MATCHED THEN INSERT (document, n, text, embedding) VALUES (s.document, s.n, s.text, s.embedding)
    """)
    spark.sql(f"ALTER TABLE lake.docs.chunks SET TBLPROPERTIES ('read.documents' = '{latest}')")


def index(spark: SparkSession) -> None:
    """Index the vectors. If the index covers all chunks, nothing is done; otherwise it is built again."""
    spark.sql(f"""
        CALL lake.system.create_index(table => 'docs.chunks', column => 'embedding', type => 'IVF_FLAT', name => 'near',
                                      metric => 'cosine', partitions => {PARTITIONS})
    """)


def evaluate(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    """Search for the title of each document, and record the recall and the titles that find their document.

    Recall is the fraction of the rows found that are as near as the nearest rows of all.
    """
    spark.sql("""
        CREATE TABLE IF NOT EXISTS lake.docs.evaluations
        (version BIGINT, questions BIGINT, recall DOUBLE, found BIGINT, PRIMARY KEY (version))
    """)
    spark.sql("""
        SELECT name, embed(substring_index(text, '\\n', 1)) AS question FROM lake.docs.documents
    """).createOrReplaceTempView("questions")
    version = catalog.describe_table("docs.chunks").version
    search = f"""
        vector_search('lake.docs.chunks', 'embedding', question, k => {NEAREST}, columns => array('document'),
                      version => {version}, metric => 'cosine'"""
    spark.sql(f"""
        WITH exact AS (
            SELECT q.name, max(_distance) AS farthest FROM questions q, LATERAL {search}, use_index => false) f
            GROUP BY q.name
        ), searched AS (
            SELECT q.name, f.document, f._distance FROM questions q, LATERAL {search}, nprobes => {PROBED}) f
        )
        SELECT {version}L AS version, count(DISTINCT name) AS questions,
               avg(double(_distance <= farthest + 1e-6)) AS recall,
               count(DISTINCT name) FILTER (WHERE document = name) AS found
        FROM searched JOIN exact USING (name)
    """).createOrReplaceTempView("evaluation")
    spark.sql("""
        MERGE INTO lake.docs.evaluations t USING evaluation s ON t.version = s.version
        WHEN NOT MATCHED THEN INSERT *
    """)


# -- the function that embeds ---------------------------------------------------------------------------------------


def embedded(texts: list[str]) -> list[list[float]]:
    """Return a vector for each text: the counts of its words, hashed. A model would do better."""
    vectors = np.zeros((len(texts), DIMENSION), np.float32)
    for vector, text in zip(vectors, texts, strict=True):
        for word in re.findall("[a-z_]{4,}", text.lower()):
            number = crc32(word.encode())
            vector[number % DIMENSION] += 1 if number & 65536 else -1
        vector /= max(float(np.linalg.norm(vector)), 1e-9)
    return [vector.tolist() for vector in vectors]


def register_embed(spark: SparkSession) -> None:
    """Offer the function to SQL. It runs in the workers, in batches."""
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # PySpark's types lack it

    ship(sys.modules[__name__])  # workers need not import this file

    def embed(texts: pa.Array) -> pa.Array:
        return pa.array(embedded(texts.to_pylist()), pa.list_(pa.float32()))

    spark.udf.register("embed", arrow_udf(embed, "array<float>"))


# -- the check, without Spark and without a catalog -----------------------------------------------------------------


class Wrong(Exception):
    """A table does not have the rows that follow from the documents."""


def check(folder: Path, uris: dict[str, str]) -> None:
    """Compute all tables from the files with Python alone, and compare them with what pylance reads.

    Raises:
        Wrong: A table has other rows, or the search is worse than recorded.
    """
    texts = {file.stem: file.read_text() for file in folder.glob("*.txt")}
    stored = lance.dataset(uris["documents"]).to_table().to_pylist()
    require(sorted(texts.items()) == sorted((row["name"], row["text"]) for row in stored), "documents")
    wanted = sorted(
        (name, n, paragraph)
        for name, text in texts.items()
        for n, paragraph in enumerate(re.split("\n\n+", text))
        if len(paragraph) >= SHORTEST
    )
    dataset = lance.dataset(uris["chunks"])
    rows = sorted(dataset.to_table().to_pylist(), key=lambda row: (row["document"], row["n"]))
    require(wanted == [(row["document"], row["n"], row["text"]) for row in rows], "chunks")
    vectors = np.array([row["embedding"] for row in rows], np.float32)
    require(np.allclose(vectors, np.array(embedded([row["text"] for row in rows])), atol=1e-6), "embeddings")
    near, found = 0, 0
    for name, text in texts.items():
        (question,) = embedded([text.split("\n", 1)[0]])
        farthest = np.sort(1 - vectors @ np.array(question, np.float32))[NEAREST - 1]
        search: dict[str, Any] = {"column": "embedding", "q": question, "k": NEAREST, "nprobes": PROBED}
        result = dataset.to_table(nearest=search | {"metric": "cosine"}, columns=["document", "_distance"]).to_pylist()
        near += sum(row["_distance"] <= farthest + 1e-5 for row in result)
        found += any(row["document"] == name for row in result)
    recall = near / (len(texts) * NEAREST)
    recorded = lance.dataset(uris["evaluations"]).to_table(filter=f"version = {dataset.version}").to_pylist()
    print(f"documents: {len(texts)}, chunks: {len(rows):,} (version {dataset.version}), recall: {recall:.3f}")
    print(f"titles that find their document: {found} of {len(texts)}; recorded: {recorded}", flush=True)
    require(len(recorded) == 1 and recorded[0]["questions"] == len(texts), "the number of questions")
    require(abs(recorded[0]["recall"] - recall) < 0.002 and recorded[0]["found"] == found, "the recorded recall")
    require(recall > 0.8, "the recall, which should exceed 0.8")


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Wrong(f"{what}: the tables differ from the files")


if __name__ == "__main__":
    sys.exit(main())
