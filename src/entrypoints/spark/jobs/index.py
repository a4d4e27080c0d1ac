"""Scalar, full-text and vector indexes: a segment for each run of fragments, built by the workers, committed once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import isqrt
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
from lance.indices import IndicesBuilder

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
"""Vectors of the sample for each centroid: 256, or fewer where all would take more bytes than this, 32 at least."""
_MOST_SEGMENTS = 64
"""An index of so many is not extended: each of them is asked in a search."""
_CODES = 256
"""Centroids of a codebook of product quantisation: its codes have 8 bits."""


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

    kind: ``BTREE``, ``BITMAP``, ``LABEL_LIST``, ``NGRAM``, ``ZONEMAP``, ``BLOOMFILTER``, ``INVERTED`` (full-text), or
    for vectors ``IVF_FLAT``, ``IVF_SQ``, ``IVF_PQ``, ``IVF_HNSW_FLAT``, ``IVF_HNSW_SQ``, ``IVF_HNSW_PQ``.
    name: ``<column>_idx`` when left out. segments: how many parts it has, each over neighbouring fragments, so that
    later compaction finds them together; as many as there are cores when left out. metric (``l2``, ``cosine``,
    ``dot``), partitions (the square root of the rows when left out), sub_vectors: of vector indexes; the centroids are
    trained on the driver, from a sample. replace: build it although it is there.

    Again, it finds an index of that name and kind over all fragments, and does nothing; one that lacks fragments gets
    segments for those, but a vector index, and one of many segments, is built anew. What is appended meanwhile is not
    in it; where others rewrote fragments, it starts again, five times.
    Raises `InvalidInput`, `TableNotFound`, `Retryable`, `ConcurrentModification`; then nothing was committed.
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
            committed = catalog.commit_change(table_id, commit)
        except ConcurrentModification:
            continue
        counts = {"segments": len(built), "fragments": len(missing)}
        chosen = frozenset(missing)
        rows = sum(fragment.rows for fragment in stored_fragments(dataset) if fragment.id in chosen)
        return Summary("index", str(table_id), rows, 0, clock.seconds, dataset.version, committed.version, counts)
    raise ConcurrentModification(f"{table_id}: others kept changing what was indexed; nothing was committed")


def contiguous(fragments: Sequence[int], parts: int) -> list[list[int]]:
    """Runs of neighbouring fragments, as even as can be, at most ``parts``."""
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
    """The fragments to index; segments of others stay. Raises `InvalidInput` where the name is that of another index.

    A vector index is built anew: its segments share what was trained, which is not told for all kinds.
    """
    found = next((index for index in dataset.describe_indices() if index.name == name), None)
    if found is None:
        return fragments
    if list(found.field_names) != [column] or found.index_type.replace("_", "").upper() != kind.replace("_", ""):
        raise InvalidInput(
            f"the index {name!r} is {found.index_type} of {', '.join(found.field_names)}; choose another name, or say "
            "replace to have this one in its place"
        )
    covered = {fragment for segment in found.segments for fragment in segment.fragment_ids}
    missing = [fragment for fragment in fragments if fragment not in covered]
    return fragments if missing and (kind in VECTOR or len(found.segments) >= _MOST_SEGMENTS) else missing


def _trained(
    dataset: Any, column: str, kind: str, metric: str, partitions: int | None, sub_vectors: int | None
) -> dict[str, Any]:
    """What all segments of a vector index share, trained on a sample: of a small table that is all of it."""
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
    """How many vectors are sampled for each centroid, if there are as many: they are held on the driver."""
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
