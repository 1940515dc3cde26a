"""Raises at every call of the engine in turn, in an order from the seed:

    python -m tests.simulation.fault_campaign --seed 7 --minutes 10

The tests raise at the first and the last call of each place.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
import warnings
from argparse import ArgumentParser

from everbell.testing import VirtualClock, run_virtual
from tests.simulation.fault_points import FaultPoints, Point
from tests.simulation.faulty_engine import Scene


def play(chosen: Point | None = None) -> tuple[Scene, FaultPoints]:
    """Play the scene with a fault at this point, or with none."""
    points = FaultPoints(chosen)
    scenes: list[Scene] = []

    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        scenes.append(scene)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: scene.wrong.append(f"unhandled: {context}"))
        with points.on():
            await scene.play()

    log = logging.getLogger("everbell")
    log.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            # A call that raises may have got a coroutine, which no task awaits then.
            warnings.simplefilter("ignore", RuntimeWarning)
            run_virtual(main)
    finally:
        log.setLevel(logging.NOTSET)
    return scenes[0], points


def wrong_at(point: Point) -> list[str]:
    """The broken promises after a fault at this point."""
    scene, points = play(point)
    # Some values are cached over scenes, so a later scene may do with fewer calls.
    if not points.is_raised:
        return []
    wrong = scene.wrong
    if point[1].startswith("core/verdict.py:"):
        # A delivered event that cannot be judged is dead, and the scene redrives dead events.
        wrong = [each for each in wrong if not each.startswith("duplicate: ")]
    return [f"{point}: {each}" for each in wrong]


def main() -> None:
    """Raise at every call, until the time is over."""
    parser = ArgumentParser(description="Raise at every call of the engine in turn.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1.0)
    options = parser.parse_args()
    seen = play()[1].seen
    points = [(*place, number) for place in sorted(seen) for number in range(1, seen[place] + 1)]
    random.Random(options.seed).shuffle(points)
    end_s = time.monotonic() + options.minutes * 60
    tried = failed = 0
    for point in points:
        if time.monotonic() > end_s:
            break
        tried += 1
        wrong = wrong_at(point)
        failed += bool(wrong)
        sys.stdout.write("".join(f"{each}\n" for each in wrong))
    calls = f"{tried} of {len(points)} calls"
    sys.stdout.write(f"a fault at each of {calls}, seed {options.seed}: {failed} broke a promise\n")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
