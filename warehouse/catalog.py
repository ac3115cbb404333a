"""DuckDB views over the Parquet files: what `understudy sql` and the reports query.

Each stage is a schema (`emulation.events`, `merging.events`); unqualified names are the tables
that exist once (`predicted_kernels`) and, for those of the trace, merging's. The folders' keys
`device` and `job` come first in every view. A table that nobody has written is an empty view with
the right columns. The connection is in memory: nothing is locked, and a materialization may
replace files while a query runs (see warehouse/store.py).
"""

from __future__ import annotations

import duckdb
import pyarrow as pa

from understudy.home import warehouse_dir
from warehouse import schemas
from warehouse.store import folder_of


def connect() -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB connection with the views, for one thread."""
    connection = duckdb.connect(":memory:")
    connection.execute(catalog_sql())
    return connection


def catalog_sql() -> str:
    """The SQL that makes the views, for any DuckDB shell. It holds absolute paths."""
    statements = []
    for stage in schemas.STAGES:
        statements.append(f"CREATE SCHEMA {stage};")
        for table in schemas.stage_tables(stage):
            statements.append(_view(stage, table))
            # The last writer of a trace table is merging: its view takes the plain name.
            if stage == table.stages[-1]:
                statements.append(f"CREATE VIEW main.{table.name} AS FROM {stage}.{table.name};")
    return "\n".join(statements) + "\n"


def _view(stage: schemas.Stage, table: schemas.Table) -> str:
    keys = ["device"] if table.partition == "device" else ["device", "job"]
    types = dict.fromkeys(keys, "VARCHAR")
    types |= {c.name: _duckdb_type(c.type) for c in table.columns}
    # The typed empty half names every column, also those that older files lack.
    empty = ", ".join(f"NULL::{kind} AS {_quoted(name)}" for name, kind in types.items())
    query = f"SELECT {empty} WHERE false"
    folder = warehouse_dir() / folder_of(stage, table.name)
    pattern = "/".join([*(f"{key}=*" for key in keys), f"{table.name}.parquet"])
    if any(folder.glob(pattern)):
        hive = ", ".join(f"{_quoted(key)}: VARCHAR" for key in keys)
        path = f"{_glob_escaped(str(folder))}/{pattern}".replace("'", "''")
        query += (
            f" UNION ALL BY NAME SELECT * FROM read_parquet('{path}', union_by_name = true, "
            f"hive_partitioning = true, hive_types = {{{hive}}})"
        )
    columns = ", ".join(map(_quoted, types))
    return f"CREATE VIEW {stage}.{table.name} AS SELECT {columns} FROM ({query});"


def _quoted(name: str) -> str:
    return f'"{name}"'


def _glob_escaped(path: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)


_DUCKDB_TYPES = {
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
}


def _duckdb_type(kind: pa.DataType) -> str:
    """DuckDB's name of an Arrow type; raises KeyError for a type that no table has."""
    if isinstance(kind, pa.MapType):
        return f"MAP({_duckdb_type(kind.key_type)}, {_duckdb_type(kind.item_type)})"
    if isinstance(kind, pa.ListType | pa.FixedSizeListType):
        return f"{_duckdb_type(kind.value_type)}[]"
    if isinstance(kind, pa.StructType):
        fields = ", ".join(f"{_quoted(f.name)} {_duckdb_type(f.type)}" for f in kind)
        return f"STRUCT({fields})"
    return _DUCKDB_TYPES[kind]
