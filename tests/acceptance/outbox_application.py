"""An application with an outbox, as a process that tests kill: orders in its table, events in the same transactions.

    python -m tests.acceptance.outbox_application DATABASE_URL TARGET_URL

Order 0 modulo 4 has an event that is due at once, in the line of its key. Order 1 has one that is due in an hour; a
second transaction moves it to now. Order 2 has one that is due in an hour, and is cancelled. Order 3 is rolled back.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import psycopg

from everbell import Outbox

TABLES = """
    CREATE TABLE orders (number int PRIMARY KEY, state text NOT NULL);
    CREATE TABLE effects (position serial, number int NOT NULL);
    CREATE SEQUENCE order_numbers MINVALUE 0
"""
KEYS = 5


class RolledBack(Exception):
    """Ends the transaction of an order that must leave no trace."""


def place(connection: psycopg.Connection[tuple[int]], target: str) -> None:
    """Place one order."""
    (number,) = connection.execute("SELECT nextval('order_numbers')::int").fetchone() or (0,)
    id, outbox = f"order-{number}", Outbox(connection, "shop")
    kind = number % 4
    with suppress(RolledBack), connection.transaction():
        connection.execute("INSERT INTO orders VALUES (%s, 'placed')", (number,))
        if kind == 0:
            outbox.schedule(number, to=target, in_=0, id=id, key=f"customer-{number // 4 % KEYS}")
        else:
            outbox.schedule(number, to=target, in_="1h", id=id)
        if kind == 3:
            raise RolledBack
    with connection.transaction():
        if kind == 1:
            connection.execute("UPDATE orders SET state = 'moved' WHERE number = %s", (number,))
            outbox.reschedule(id, in_=0)
        elif kind == 2:
            connection.execute("UPDATE orders SET state = 'cancelled' WHERE number = %s", (number,))
            outbox.cancel(id)


def main(database: str, target: str) -> None:
    """Place orders until the process is killed or the database is gone."""
    with psycopg.connect(database, autocommit=True) as connection:
        while True:
            place(connection, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
