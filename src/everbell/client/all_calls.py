"""All operations of a client, and the settings that both clients share."""

from __future__ import annotations

from everbell.client.address import DEFAULT_URL, ServerAddress
from everbell.client.batches import BatchCalls
from everbell.client.bulk_calls import BulkCalls
from everbell.client.call import ATTEMPTS_MAX, Persistence, RetryPause, doubling
from everbell.client.cluster_calls import ClusterCalls
from everbell.client.event_calls import EventCalls
from everbell.client.export_calls import ExportCalls
from everbell.client.key_calls import KeyCalls
from everbell.client.kill_calls import KillCalls
from everbell.client.pause_calls import PauseCalls
from everbell.client.queue_calls import QueueCalls
from everbell.client.recurrence_calls import RecurrenceCalls
from everbell.client.tenant_calls import TenantCalls
from everbell.client.tls import client_tls
from everbell.client.view_calls import ViewCalls
from everbell.entropy import SystemEntropy


class AllCalls(
    EventCalls,
    BatchCalls,
    BulkCalls,
    ExportCalls,
    RecurrenceCalls,
    QueueCalls,
    PauseCalls,
    KillCalls,
    TenantCalls,
    KeyCalls,
    ClusterCalls,
    ViewCalls,
):
    """The methods of a client. How it sends a call is up to the client."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        tenant: str = "default",
        token: str | None = None,
        timeout_s: float = 10.0,
        *,
        ca: str | None = None,
        certificate: str | None = None,
        attempts_max: int = ATTEMPTS_MAX,
        backoff: RetryPause | None = None,
    ) -> None:
        """`attempts_max` bounds the attempts of a call that may be repeated. `timeout_s` bounds each request of an
        `AsyncClient`, and each wait for the server of a `Client`.

        For https, `ca` is a file of authorities to trust instead of the system's, and `certificate` a file with this
        client's certificate and private key, for servers that require one.
        """
        self.tenant = tenant
        self._address = ServerAddress(url, token)
        self._tls = client_tls(ca, certificate)
        self._timeout_s = timeout_s
        self._persistence = Persistence(backoff or doubling(0.1, 2.0, SystemEntropy().jitter), attempts_max)
        self._prepare()

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._address.url

    def _prepare(self) -> None:
        """Set up the connections of the client."""
        raise NotImplementedError
