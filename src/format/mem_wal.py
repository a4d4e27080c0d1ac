"""The state of LSM writes, as manifests of shards and of tables record it."""

from __future__ import annotations

from lancekeep.domain.errors import Damaged
from lancekeep.domain.indexes import MEM_WAL
from lancekeep.domain.mem_wal import ShardState
from lancekeep.format.manifest import message_span, not_a_manifest, parse_message, parse_section
from lancekeep.format.messages import MESSAGES, IndexSection, ManifestOutline, parse, uuid_text

_NAME = MEM_WAL.encode()


def shard_state(content: bytes, name: str) -> ShardState:
    """Decode a manifest of a shard.

    Args:
        content: the bytes of the file.
        name: the file, for messages.

    Raises:
        Damaged: the bytes are not such a manifest.
    """
    try:
        manifest = parse(MESSAGES["ShardManifest"], content)
    except ValueError as error:
        raise Damaged(f"{name} is not a manifest of LSM writes: {error}") from error
    generations = tuple(int(each.generation) for each in manifest.sstables)
    return ShardState(generations, int(manifest.replay_after_wal_entry_position))


def merged_generations(content: bytes, name: str) -> dict[str, int] | None:
    """Return the last generation of each shard that a version has merged.

    Args:
        content: the bytes of the manifest file of the version.
        name: the file, for messages.

    Returns:
        None if LSM writes are not set up: the version has no MemWAL index.

    Raises:
        Damaged: the content is not a manifest.
    """
    try:
        begin, _ = message_span(content)
        if content.find(_NAME, 0, begin) < 0:  # the index section precedes the message
            return None
        manifest = parse_message(ManifestOutline, content)
        if not manifest.HasField("index_section"):
            return None
        for index in parse_section(IndexSection, content, manifest.index_section).indices:
            if index.name == MEM_WAL:
                details = parse(MESSAGES["MemWalIndexDetails"], index.index_details.value)
                return {uuid_text(each.shard_id.uuid): int(each.generation) for each in details.compacted_sstables}
    except ValueError as error:
        raise not_a_manifest(name, error) from error
    return None
