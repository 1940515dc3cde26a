"""The targets of a tenant over HTTP: hosts, Kafka clusters, queues and handlers that its events go to."""

from __future__ import annotations

from everbell.api.route import TENANT, Resource, ResponseKind, Route
from everbell.api.views import json_response
from everbell.core.request import Ask
from everbell.core.target_view import TargetsView
from everbell.engine.view_requests import GetTargets
from everbell.http.message import HttpRequest, HttpResponse


class TargetsApi(Resource, tag="targets"):
    """Hosts, Kafka clusters, queues and handlers that events go to."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    @Route(
        "GET",
        TENANT + "/targets",
        "List the targets of a tenant",
        (ResponseKind(200, "the targets as they are now", TargetsView),),
        access="read",
        shared=True,
    )
    async def list_targets(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """All nodes are asked. Targets appear when an event is due soon. Caps, rates and breakers are per node."""
        return json_response(await self._ask(GetTargets(tenant)))
