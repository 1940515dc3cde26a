"""What a failure of Cassandra, or of the way to it, means to whoever asked: try again, mend something, or end."""

from __future__ import annotations

from acsylla import errors

from everbell.errors import StoreError, StoreUnavailable, StoreUnusable

Failure = (errors.CassException, TimeoutError, OSError)
"""Whatever the driver raises that is not a mistake of ours."""

_UNMET = (
    errors.CassErrorServerUnavailable,
    errors.CassErrorServerWriteTimeout,
    errors.CassErrorServerWriteFailure,
    errors.CassErrorServerReadTimeout,
    errors.CassErrorServerReadFailure,
)
_MISSING = (errors.CassErrorServerInvalidQuery, errors.CassErrorLibUnableToSetKeyspace)
_TO_MEND = {
    errors.CassErrorServerBadCredentials: "correct the user and the password in the URL",
    errors.CassErrorServerUnauthorized: "GRANT it to the user, or make the keyspace and let the user modify it",
    errors.CassErrorSslInvalidPeerCert: "name the certificate of whoever signed the server's by ca= in the URL",
    errors.CassErrorSslInvalidCert: "name a file with certificates in PEM by ca= in the URL",
    errors.CassErrorServerConfigError: "check the replication of the keyspace",
}


def store_error(error: BaseException, name: str) -> StoreError:
    """The error for the caller of a store; `name` is that of the store's address."""
    said = _said(error)
    for kind, what in _TO_MEND.items():
        if isinstance(error, kind):
            return StoreUnusable(f"{name}: {said}: {what}")
    if isinstance(error, (*_MISSING, errors.CassErrorServerSyntaxError)):
        return StoreUnusable(f"{name}: {said}: check the keyspace, and that its tables were made by Everbell")
    if isinstance(error, _UNMET):
        return StoreUnavailable(f"{name}: not enough replicas answer: {said}")
    if isinstance(error, (errors.CassErrorLibNoHostsAvailable, errors.CassErrorLibUnableToConnect)):
        if "datacenter is valid" in said:
            return StoreUnusable(f"{name}: no node there is in that datacentre: correct datacenter= in the URL")
        return StoreUnavailable(f"{name} cannot be reached ({said}): check that it runs, and the address")
    reason = "no answer in time" if isinstance(error, TimeoutError) else said
    return StoreUnavailable(f"{name}: {reason}")


def _said(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def is_missing(error: BaseException) -> bool:
    """Whether a keyspace or table is not there."""
    return isinstance(error.__cause__, _MISSING) and "exist" in str(error.__cause__)
