"""The forms in which `muster fleet results` writes."""

from enum import StrEnum


class Format(StrEnum):
    """How results are written."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"
