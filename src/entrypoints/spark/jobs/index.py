"""Build scalar, full-text and vector indexes in the workers, and commit once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import isqrt
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
from lance.indices import IndicesBuilder

from lancekeep.adapters.lance.indexes import is_extendable
from lancekeep.application.catalog import Catalog
from lancekeep.application.upkeep.fsck import Progress
from lancekeep.domain.errors import ConcurrentModification, InvalidInput
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.entrypoints.spark.jobs.tasks import Clock, Summary, quiet, require_classic, run
from lancekeep.entrypoints.spark.reading import Snapshot, stored_fragments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCALAR = ("BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "ZONEMAP", "BLOOMFILTER", "INVERTED")
VECTOR = ("IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ")
METRICS = ("l2", "cosine", "dot")

_ATTEMPTS = 5
_SAMPLE, _LEAST_SAMPLE, _SAMPLE_BYTES = 256, 32, 1 << 30
"""Sampled vectors per centroid: 256, or fewer if the sample would exceed the last number of bytes, but at least 32."""
_MOST_SEGMENTS = 64
"""An index of this many segments is not extended, because each search reads all of them."""
_CODES = 256
"""Centroids of a codebook of product quantization: its codes have 8 bits."""


def index(
    spark: SparkSession,
    catalog: Catalog,
    table: Identifier,
    column: str,
    kind: str,
    *,
    name: str | None = None,
    segments: int | None = None,
    metric: str = "l2",
    partitions: int | None = None,
    sub_vectors: int | None = None,
    replace: bool = False,
    progress: Progress = quiet,
) -> Summary:
    """Build an index of a column over all fragments of a table, as one version.

    A repeated run does nothing if an index of this name and kind covers all fragments. Otherwise it adds segments for
    the missing fragments; it rebuilds vector indexes, indexes of many segments, and indexes that may have entries of
    replaced values. The index excludes fragments that are appended during the run. If a concurrent writer rewrites
    fragments, the job restarts, for at most five attempts.

    Args:
        spark: The session.
        catalog: The catalog of the table.
        table: The table.
        column: The column.
        kind: ``BTREE``, ``BITMAP``, ``LABEL_LIST``, ``NGRAM``, ``ZONEMAP``, ``BLOOMFILTER``, ``INVERTED`` (full-text),
            or for vectors ``IVF_FLAT``, ``IVF_SQ``, ``IVF_PQ``, ``IVF_HNSW_FLAT``, ``IVF_HNSW_SQ``, ``IVF_HNSW_PQ``.
        name: The name; by default ``<column>_idx``.
        segments: The number of segments; by default the number of cores. Each covers adjacent fragments, so that
            a later compaction finds them together.
        metric: The metric of a vector index: ``l2``, ``cosine`` or ``dot``.
        partitions: The partitions of a vector index; by default the square root of the number of rows. The driver
            trains the centroids on a sample.
        sub_vectors: The sub-vectors of product quantization.
        replace: Whether to rebuild an existing index.
        progress: Receives the number of finished tasks.

    Raises:
        InvalidInput: An argument is invalid, or the index cannot be built.
        TableNotFound: The table does not exist.
        Retryable: The Spark job failed; nothing was committed.
        ConcurrentModification: Every attempt met a conflict; nothing was committed.
    """
    require_classic(spark)
    clock = Clock()
    table_id = ObjectId.of(table)
    kind, name = kind.upper(), name or f"{column}_idx"
    _check(kind, metric, segments, partitions, sub_vectors)
    for _ in range(_ATTEMPTS):
        dataset = catalog.open(table_id)
        if column not in dataset.schema.names:
            raise InvalidInput(
                f"{table_id} has no column {column!r}; its columns are {', '.join(dataset.schema.names)}"
            )
        fragments = list(dataset.fragment_ids())
        if not fragments:
            raise InvalidInput(f"{table_id} has no rows yet; write some before you build an index")
        missing = fragments if replace else _missing(dataset, name, kind, column, fragments)
        if not missing:
            return Summary("index", str(table_id), 0, 0, clock.seconds, dataset.version, dataset.version)
        options = {"metric": metric, **_trained(dataset, column, kind, metric, partitions, sub_vectors)}
        build = partial(
            _build, snapshot=Snapshot.of(catalog, dataset), column=column, kind=kind, name=name,
            options=options if kind in VECTOR else {},
        )  # fmt: skip
        groups = contiguous(missing, segments or spark.sparkContext.defaultParallelism)
        built = run(spark, str(table_id), f"index {name}", groups, build, progress)

        def commit(latest: lance.LanceDataset, built: list[Any] = built) -> lance.LanceDataset:
            return latest.commit_existing_index_segments(name, column, built)

        try:
            version = catalog.structure.add_segments(table_id, commit).version
        except ConcurrentModification:
            continue
        if kind not in VECTOR and not _covers(catalog.open(table_id), name, missing):  # values were replaced in between
            version = catalog.structure.merge_indexes(table_id, [name]).version
        counts = {"segments": len(built), "fragments": len(missing)}
        chosen = frozenset(missing)
        rows = sum(fragment.rows for fragment in stored_fragments(dataset) if fragment.id in chosen)
        return Summary("index", str(table_id), rows, 0, clock.seconds, dataset.version, version, counts)
    raise ConcurrentModification(
        f"{table_id}: other writers kept changing the indexed fragments; nothing was committed"
    )


def contiguous(fragments: Sequence[int], parts: int) -> list[list[int]]:
    """Divide fragments into at most ``parts`` adjacent runs of similar length."""
    parts = min(parts, len(fragments))
    ends = [len(fragments) * part // parts for part in range(parts + 1)]
    return [list(fragments[start:end]) for start, end in pairwise(ends)]


def _check(kind: str, metric: str, segments: int | None, partitions: int | None, sub_vectors: int | None) -> None:
    if kind not in SCALAR + VECTOR:
        raise InvalidInput(f"unknown kind of index {kind!r}; choose {', '.join(SCALAR + VECTOR)}")
    if metric not in METRICS:
        raise InvalidInput(f"unknown metric {metric!r}; choose {', '.join(METRICS)}")
    if kind not in VECTOR and (partitions or sub_vectors or metric != "l2"):
        raise InvalidInput(f"metric, partitions and sub_vectors are of vector indexes; {kind} is none")
    if sub_vectors and not kind.endswith("PQ"):
        raise InvalidInput(f"sub_vectors are of indexes with product quantisation; {kind} is none")
    if any(number is not None and number < 1 for number in (segments, partitions, sub_vectors)):
        raise InvalidInput("segments, partitions and sub_vectors are 1 or more")


def _missing(dataset: Any, name: str, kind: str, column: str, fragments: list[int]) -> list[int]:
    """Return the fragments to index; existing segments of other fragments stay.

    A vector index is rebuilt: its segments share trained parameters, which Lance does not report for all kinds.

    Raises:
        InvalidInput: The name belongs to another index.
    """
    found = next((index for index in dataset.describe_indices() if index.name == name), None)
    if found is None:
        return fragments
    if list(found.field_names) != [column] or found.index_type.replace("_", "").upper() != kind.replace("_", ""):
        raise InvalidInput(
            f"the index {name!r} is {found.index_type} of {', '.join(found.field_names)}; choose another name, or set "
            "replace to replace that index"
        )
    covered = {fragment for segment in found.segments for fragment in segment.fragment_ids}
    missing = [fragment for fragment in fragments if fragment not in covered]
    if missing and (
        kind in VECTOR or len(found.segments) >= _MOST_SEGMENTS or not is_extendable(dataset, name, missing)
    ):
        return fragments
    return missing


def _covers(dataset: Any, name: str, fragments: list[int]) -> bool:
    """Return whether an index covers the given fragments, if the table has them."""
    segments = [segment for index in dataset.describe_indices() if index.name == name for segment in index.segments]
    covered = {fragment for segment in segments for fragment in segment.fragment_ids}
    return covered.issuperset(set(fragments).intersection(dataset.fragment_ids()))


def _trained(
    dataset: Any, column: str, kind: str, metric: str, partitions: int | None, sub_vectors: int | None
) -> dict[str, Any]:
    """Train the parameters that the segments of a vector index share; a small table is sampled whole."""
    if kind not in VECTOR:
        return {}
    rows = dataset.count_rows()
    partitions = partitions or max(1, isqrt(rows))
    try:
        builder = IndicesBuilder(dataset, column)
        ivf = builder.train_ivf(
            partitions,
            distance_type=metric,
            sample_rate=min(sample_rate(dataset, column, partitions), rows // partitions),
        )
        options: dict[str, Any] = {"ivf_centroids": ivf.centroids, "num_partitions": len(ivf.centroids)}
        if kind.endswith("PQ"):
            pq = builder.train_pq(ivf, sub_vectors, sample_rate=min(_SAMPLE, rows // _CODES))
            options |= {"pq_codebook": pq.codebook, "num_sub_vectors": pq.num_subvectors}
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"no {kind} index of {column!r} can be trained: {error}") from error
    return options


def sample_rate(dataset: Any, column: str, partitions: int) -> int:
    """Return the most vectors to sample per centroid; the driver holds the sample."""
    vector = dataset.schema.field(column).type
    size = vector.list_size * vector.value_type.bit_width // 8 if pa.types.is_fixed_size_list(vector) else 1
    return max(_LEAST_SAMPLE, min(_SAMPLE, _SAMPLE_BYTES // (partitions * size)))


def _build(
    fragments: list[int], *, snapshot: Snapshot, column: str, kind: str, name: str, options: dict[str, Any]
) -> Any:
    try:
        return snapshot.open().create_index_uncommitted(
            column, kind, name=name, replace=True, fragment_ids=fragments, **options
        )
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"no {kind} index of {column!r} can be built: {error}") from error
