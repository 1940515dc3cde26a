"""The routes of tenants and their policies."""

from __future__ import annotations

from everbell.core.policy import TenantSpec
from everbell.server.route import Answer, Route
from everbell.server.routes import TENANT
from everbell.server.tenants_api import TenantsApi, TenantsView, TenantView

TENANTS = "/v1/tenants"


def tenant_routes(tenants: TenantsApi) -> tuple[Route, ...]:
    """Who may do how much, and how it is done."""
    seen = Answer(200, "the policy in force", (TenantView,), headers=("etag",))
    return (
        Route(
            "GET",
            TENANTS,
            tenants.list,
            "list_tenants",
            "All tenants",
            (Answer(200, "those with a policy of their own, or with events", (TenantsView,)),),
            access="admin",
        ),
        Route("GET", TENANT, tenants.show, "get_tenant", "Look at a tenant's policy", (seen,), (422,), access="read"),
        Route(
            "PUT",
            TENANT,
            tenants.put,
            "put_tenant",
            "Set a tenant's policy",
            (seen,),
            (409, 412, 413, 415, 422),
            body=TenantSpec,
            conditional=True,
            access="operator",
        ),
        Route(
            "DELETE",
            TENANT,
            tenants.delete,
            "delete_tenant",
            "Delete a tenant's policy: what the settings say counts again",
            (seen,),
            (404, 412, 422),
            conditional=True,
            access="operator",
        ),
    )
