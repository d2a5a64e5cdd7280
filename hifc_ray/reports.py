"""Reports on the wire: one Arrow record batch, a row a report. A batch of another shape is refused, not guessed at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import pyarrow as pa

from hifc_ray.errors import ConfigError
from hifc_ray.messages import PROTOCOL_VERSION, Report

SCHEMA = pa.schema(
    [pa.field(f.name, pa.string() if f.name == "node" else pa.int64(), nullable=False) for f in fields(Report)],
    metadata={"hifc.protocol": str(PROTOCOL_VERSION)},
)


def reports_to_arrow(reports: Sequence[Report]) -> pa.RecordBatch:
    """The reports as a record batch of `SCHEMA`, in their order."""
    columns = {name: [getattr(report, name) for report in reports] for name in SCHEMA.names}
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def reports_from_arrow(batch: pa.RecordBatch) -> list[Report]:
    """The reports in a record batch, in their order. Raises `ConfigError` if its schema or protocol is another."""
    if not batch.schema.equals(SCHEMA, check_metadata=True):
        raise ConfigError(f"reports have the schema [{_describe(batch.schema)}]; expected: [{_describe(SCHEMA)}]")
    return [Report(**row) for row in batch.to_pylist()]


def _describe(schema: pa.Schema) -> str:
    columns = [f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema]
    protocol = (schema.metadata or {}).get(b"hifc.protocol", b"none").decode()
    return ", ".join([f"protocol {protocol}", *columns])
