"""Valid inputs, from which the search begins."""

from __future__ import annotations

from everbell.core.cluster.commands import Drain, FoundCluster, PutDocument, encode_command
from everbell.core.event import Event, Record
from everbell.stores.rows import event_row, record_row

_EVENT = Event("e", "shop", 3, 4, 5, 6, "https://shop.example/", b'{"a":1}', 7, "k", tags=("a",))
_RECORD = Record("e", "shop", "delivered", 1, 2, "queue:a", 3)
_SPEC = (
    b'{"at":"2030-01-01T00:00:00Z","to":"https://shop.example/","payload":{"a":[1,2]},"id":"a","key":"k",'
    b'"headers":{"x":"1"},"tags":["t"],"retry":{"max_attempts":3},"repeat":{"cron":"0 9 * * MON-FRI","tz":"UTC"}}'
)
_LINE = b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","payload":1}'

SEEDS: dict[str, tuple[bytes, ...]] = {
    "http_reader": (
        b"\x03GET /a?x=1 HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"\x01POST /b HTTP/1.1\r\nhost: h\r\nContent-Length: 5\r\n\r\nhello",
        b"\x02POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;e=1\r\nabc\r\n0\r\nX: y\r\n\r\n",
        b"\x04POST /u HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nxyz",
        b"\x05PUT /e HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok",
        b"\x06GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ),
    "spec": (_SPEC, b'{"in":"1h30m","to":"kafka://orders","payload_base64":"AAEC","content_type":"a/b"}'),
    "batch": (_LINE + b"\n" + _LINE + b"\n", b"[" + _SPEC + b"," + _LINE + b"]", b'{"mode":"cancel","id":"a"}'),
    "cron": (b"*/5 9-17 * * MON-FRI", b"0 0 L * *", b"30 2 1,15 * *", b"0 8 * * MON#2", b"@daily", b"* * * * * *"),
    "link": (b"\x00\x00\x00\x05\x93\x01\xa1a\x90", b"\x93\x01\xa3get\x92\xa4shop\xa1e"),
    "log": (
        encode_command(FoundCluster("c", 8)),
        encode_command(Drain("n1")),
        encode_command(PutDocument("shop", b"{}")),
    ),
    "log_file": (b"",),
    "rows": (event_row(_EVENT), record_row(_RECORD, 9)),
    "addresses": (b"10.0.0.1", b"::ffff:127.0.0.1", b"64:ff9b::a9fe:a9fe", b"2002:a9fe:a9fe::", b"8.8.8.8"),
}
