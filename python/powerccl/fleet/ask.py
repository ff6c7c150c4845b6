# SPDX-License-Identifier: Apache-2.0
"""An index asked in SQL by DuckDB. The files in queries/ name views that `views` makes; other engines do the same."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerccl.errors import PowercclError
from powerccl.fleet.schema import TABLES

if TYPE_CHECKING:
    import duckdb

QUERIES = Path(__file__).parent / "queries"
# Of a login node. A million runs need a quarter; DuckDB writes to the disk what does not fit.
MEMORY = "4GB"


@dataclass
class Answer:
    """Rows of a question, by columns. Columns that end in `kwh` are energies, which a tariff can price."""

    question: str
    columns: list[str]
    rows: list[tuple[Any, ...]]

    def dicts(self) -> list[dict[str, Any]]:
        """The rows by the columns' names."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def questions() -> list[str]:
    """Names of the questions whose SQL is shipped."""
    return sorted(path.stem for path in QUERIES.glob("*.sql"))


def query_of(question: str) -> str:
    """The SQL of a question."""
    return (QUERIES / f"{question}.sql").read_text()


def views(source: str, since: datetime.date | None = None, modelled: bool = False) -> list[str]:
    """Statements that make the tables' names and the chosen rows known. `source`: FROM what, with {} for the table.

    Real and modelled runs are never in one sum. A run that could not be read has no figures.
    """
    made = [f"CREATE VIEW {table} AS SELECT * FROM {source.format(table)}" for table in TABLES]
    wanted = [f"modelled {'<>' if modelled else '='} ''"]
    if since:
        wanted.append(f"day >= CAST('{since.isoformat()}' AS DATE)")
    for table in TABLES:
        name = "chosen" if table == "runs" else f"chosen_{table}"
        only = [*wanted, "(error = '' OR summarised)"] if table == "runs" else wanted
        made.append(f"CREATE VIEW {name} AS SELECT * FROM {table} WHERE {' AND '.join(only)}")
    return made


def duckdb_source(index: Path) -> str:
    """What DuckDB reads a table from."""
    folder = str(index.resolve()).replace("'", "''").replace("{", "{{").replace("}", "}}")
    return f"read_parquet('{folder}/{{}}/day=*/part.parquet', hive_partitioning = false)"


def connect(index: Path, since: datetime.date | None = None, modelled: bool = False) -> duckdb.DuckDBPyConnection:
    """A database in memory that has the index as views.

    Raises:
        PowercclError: the index has no run yet, or is being written for the first time.
    """
    import duckdb

    connection = duckdb.connect(config={"memory_limit": MEMORY, "autoinstall_known_extensions": "false"})
    try:
        for statement in views(duckdb_source(index), since, modelled):
            connection.execute(statement)
    except duckdb.IOException as error:
        raise PowercclError(f"{index} has no run yet", "powerccl index ROOT, where ROOT has run folders") from error
    return connection


def ask(connection: duckdb.DuckDBPyConnection, question: str, sql: str = "") -> Answer:
    """The answer to a shipped question, or to SQL of the user's own.

    Raises:
        PowercclError: the SQL is wrong, or a file of the index cannot be read.
    """
    import duckdb

    try:
        made = connection.execute(sql or query_of(question))
        return Answer(question, [column[0] for column in made.description or []], made.fetchall())
    except duckdb.Error as error:
        said = str(error).splitlines()[0]
        raise PowercclError(f"DuckDB: {said}", "docs/guides/fleet.md lists tables and columns") from error
