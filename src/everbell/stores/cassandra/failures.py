"""Errors of Cassandra, its driver and the network, translated for callers of a store."""

from __future__ import annotations

from acsylla import errors

from everbell.errors import StoreError, StoreUnavailable, StoreUnusable

CassandraFailure = (
    errors.CassException,
    TimeoutError,
    OSError,
)  # All errors of the driver that are not programming errors.

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
    errors.CassErrorServerUnauthorized: "GRANT it to the user, or create the keyspace and let the user modify it",
    errors.CassErrorSslInvalidPeerCert: "name the certificate that signed the server's certificate by ca= in the URL",
    errors.CassErrorSslInvalidCert: "name a file with certificates in PEM format by ca= in the URL",
    errors.CassErrorServerConfigError: "check the replication of the keyspace",
}


def store_error(error: BaseException, name: str) -> StoreError:
    """The error for the caller of a store at the address called `name`."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    for kind, remedy in _TO_MEND.items():
        if isinstance(error, kind):
            return StoreUnusable(f"{name}: {said}: {remedy}")
    if isinstance(error, (*_MISSING, errors.CassErrorServerSyntaxError)):
        return StoreUnusable(f"{name}: {said}: check the keyspace, and that Everbell created its tables")
    if isinstance(error, _UNMET):
        return StoreUnavailable(f"{name}: not enough replicas answer: {said}")
    if isinstance(error, (errors.CassErrorLibNoHostsAvailable, errors.CassErrorLibUnableToConnect)):
        if "datacenter is valid" in said:
            return StoreUnusable(f"{name}: no server is in that datacentre: correct datacenter= in the URL")
        return StoreUnavailable(f"{name} cannot be reached ({said}): check that it runs, and the address")
    reason = "no answer in time" if isinstance(error, TimeoutError) else said
    return StoreUnavailable(f"{name}: {reason}")


def is_missing(error: BaseException) -> bool:
    """Whether a keyspace or table does not exist."""
    return isinstance(error.__cause__, _MISSING) and "exist" in str(error.__cause__)
