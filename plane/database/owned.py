"""A row that has one owner at a time: its column `epoch` is the fence of the transactions that write for the owner.

Owns the check, which is the first statement of such a transaction and locks the row: two owners never write at the same
time, and an earlier one that comes late changes nothing (I-1).
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from muster_server.plane.ownership.errors import Fenced


class OwnedRow:
    """The row of a table with this key. `name`: what it stands for, for errors."""

    def __init__(self, table: Table, key: Mapping[str, Any], name: str) -> None:
        self._table, self._name = table, name
        self._here = and_(*(table.c[column] == value for column, value in key.items()))

    async def lock(
        self, connection: AsyncConnection, epoch: int, *conditions: ColumnElement[bool], **values: Any
    ) -> None:
        """Lock the row for the owner of this epoch, and set its values. Raises `Fenced` if a later owner has claimed it,
        or if one of the conditions does not hold."""
        mine = update(self._table).where(self._here, self._table.c.epoch <= epoch, *conditions)
        if (await connection.execute(mine.values(epoch=epoch, **values))).rowcount != 1:
            raise Fenced(f"{self._name}: a later owner than that of epoch {epoch} writes to it")
