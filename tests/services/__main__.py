"""`make services`: start the servers that the tests use, for manual work. Prints their URLs and runs until stopped."""

from __future__ import annotations

import signal
from contextlib import ExitStack

from tests.services.cassandra import CassandraServer
from tests.services.kafka import KafkaServer
from tests.services.postgres import PostgresServer
from tests.services.process import ServiceMissing
from tests.services.zookeeper import ZookeeperServer


def main() -> None:
    with ExitStack() as running:
        for kind in (PostgresServer, ZookeeperServer, KafkaServer, CassandraServer):
            try:
                server = running.enter_context(kind())
            except ServiceMissing as missing:
                print(f"not here: {missing}", flush=True)
            else:
                print(server.url, flush=True)
        print("running until interrupted; the data goes when they stop", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    # The signals are blocked, not handled: a signal that arrives during the start is taken when all servers run.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    main()
