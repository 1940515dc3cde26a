"""`everbell demo`: a minute's tour, with its own server, a receiver on loopback, and a short scene for each thing."""

from __future__ import annotations

import argparse

from everbell.cli.demo_receiver import running_receiver
from everbell.cli.demo_scenes import SCENES
from everbell.cli.demo_server import running_server
from everbell.cli.demo_stage import DemoStage
from everbell.cli.options import add_json_option
from everbell.cli.parser import OK, argument, command
from everbell.client.blocking import Client
from everbell.clock import SystemClock

_READING_S = 1.2

_NOTES = """\
examples:
  everbell demo
  everbell demo --fast                           without pauses for reading

It starts a server of its own, in memory and on a free loopback port, and removes everything at the end."""


@command(
    "demo",
    "see it at work, in a minute",
    "A live tour of Everbell.",
    _NOTES,
    argument("--fast", action="store_true", help="without pauses for reading"),
    add_json_option,
)
def _demo(args: argparse.Namespace) -> int:
    clock = SystemClock()
    with running_server() as url, running_receiver(clock) as receiver, Client(url) as client:
        pause_s = 0.0 if args.fast or args.json else _READING_S
        stage = DemoStage(client, receiver, clock, server=url, pause_s=pause_s, as_json=args.json)
        stage.title("Everbell, in a minute")
        stage.explain(f"A server is running at {url}, in memory, and a receiver at {receiver.url}.")
        for scene in SCENES:
            scene(stage)
        stage.title("That was it.")
        stage.explain("Now start a server of your own with everbell serve, and talk to it: everbell schedule --help")
    return OK
