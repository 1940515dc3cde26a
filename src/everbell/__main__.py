"""`python -m everbell` is the command `everbell`."""

from __future__ import annotations

import sys

from everbell.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
