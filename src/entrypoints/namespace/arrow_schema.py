"""Arrow schemas as the models of ``lance_namespace`` have them."""

from __future__ import annotations

import pyarrow as pa
from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema

from lancekeep.application.partitions.arrow_json import schema_json


def json_schema(schema: pa.Schema) -> JsonArrowSchema:
    """Return a schema with its fields and metadata as its JSON model.

    The model has no place for units, time zones and the types of keys.
    """
    return JsonArrowSchema.model_validate(schema_json(schema))
