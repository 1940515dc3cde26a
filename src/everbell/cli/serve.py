"""`everbell serve`: start a server."""

from __future__ import annotations

import argparse
import os

from everbell.cli.parser import Parser, argument, command
from everbell.log_lines import set_up_logging
from everbell.node.settings import SETTINGS, load

EXAMPLES = """\
examples:
  everbell serve                                    on 127.0.0.1:8420, events in ./everbell-data
  everbell serve --store memory: --listen 127.0.0.1:0
  everbell serve --gateways 2 --config everbell.toml

Every option can also be set by a variable (--in-flight by EVERBELL_IN_FLIGHT) or in the file given by --config
(in_flight = 4096); flags win over variables, and variables over the file. The file may also have a table
[tenants.NAME] for each tenant with a policy of its own, and [defaults] for all others.

Stop it with Ctrl-C or SIGTERM: no new attempts start, those under way may end, nothing is lost.
"""


def _add_settings(parser: Parser) -> None:
    for setting in SETTINGS:
        text = setting.help + (f" (default: {setting.default})" if setting.default not in ("", "false") else "")
        if setting.metavar is None:
            parser.add_argument(setting.flag, dest=setting.name, action="store_const", const="true", help=text)
        else:
            action = "append" if setting.separator == " " else "store"
            parser.add_argument(setting.flag, dest=setting.name, metavar=setting.metavar, action=action, help=text)


@command(
    "serve",
    "start a server",
    "Start a server: it accepts events over HTTP, keeps them in the store, and delivers them at their time.",
    EXAMPLES,
    argument("--config", metavar="FILE", help="read settings from this TOML file"),
    _add_settings,
)
def run(args: argparse.Namespace) -> int:
    given = {setting.name: getattr(args, setting.name) for setting in SETTINGS}
    flags = {
        name: value if isinstance(value, str) else " ".join(value) for name, value in given.items() if value is not None
    }
    settings = load(flags, os.environ, args.config)
    set_up_logging(settings.log_level, layout=settings.log_format, node=settings.cluster.name)
    # Imported late: `everbell serve --help` needs none of it.
    from everbell.node.serve import serve

    return serve(settings)
