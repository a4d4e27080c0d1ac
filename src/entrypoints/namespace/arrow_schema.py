"""Arrow schemas as the models of ``lance_namespace`` have them."""

from __future__ import annotations

import pyarrow as pa
from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema

from lancekeep.application.partitions.arrow_json import schema_json


def json_schema(schema: pa.Schema) -> JsonArrowSchema:
    """A schema with its fields and metadata. Units, time zones and the types of keys have no place in the model."""
    return JsonArrowSchema.model_validate(schema_json(schema))
