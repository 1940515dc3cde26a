"""The routes of access keys."""

from __future__ import annotations

from everbell.server.keys_api import KeysApi, KeySpec, KeysView, KeyView, NewKeyView
from everbell.server.route import Answer, Route

KEYS = "/v1/keys"


def key_routes(keys: KeysApi) -> tuple[Route, ...]:
    """Who may do what."""
    return (
        Route(
            "GET", KEYS, keys.list, "list_keys", "All access keys", (Answer(200, "all", (KeysView,)),), access="admin"
        ),
        Route(
            "POST",
            KEYS,
            keys.create,
            "create_key",
            "Make an access key",
            (Answer(201, "it counts; its text is shown this once", (NewKeyView,)),),
            (409, 413, 415, 422),
            body=KeySpec,
            access="admin",
        ),
        Route(
            "DELETE",
            KEYS + "/{key}",
            keys.revoke,
            "revoke_key",
            "Revoke an access key, for good",
            (Answer(200, "it opens nothing any more", (KeyView,)),),
            (404, 409),
            access="admin",
        ),
    )
