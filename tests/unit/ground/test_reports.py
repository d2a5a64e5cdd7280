from __future__ import annotations

import pyarrow as pa
import pytest

from hifc_ray.errors import ConfigError
from hifc_ray.messages import Report
from hifc_ray.reports import SCHEMA, reports_from_arrow, reports_to_arrow

REPORTS = [
    Report("node-a", incarnation=2**63 - 1, sequence=1, accesses=100, hits=40, evictions=3, weights_version=0),
    Report("node-b", incarnation=5, sequence=9, accesses=0, hits=0, evictions=0, weights_version=7),
]


@pytest.mark.parametrize("reports", [[], REPORTS])
def test_reports_come_back_as_they_were(reports: list[Report]) -> None:
    sink = pa.BufferOutputStream()
    batch = reports_to_arrow(reports)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    received = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
    assert reports_from_arrow(received) == reports


def test_a_missing_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected: .*weights_version int64"):
        reports_from_arrow(reports_to_arrow(REPORTS).drop_columns(["weights_version"]))


def test_a_column_of_another_type_is_refused() -> None:
    batch = reports_to_arrow(REPORTS)
    hits = SCHEMA.get_field_index("hits")
    schema = SCHEMA.set(hits, pa.field("hits", pa.float64(), nullable=False))
    with pytest.raises(ConfigError, match="hits double"):
        reports_from_arrow(batch.cast(schema))


def test_another_protocol_is_refused() -> None:
    batch = reports_to_arrow(REPORTS).replace_schema_metadata({"hifc.protocol": "99"})
    with pytest.raises(ConfigError, match="protocol 99"):
        reports_from_arrow(batch)
