"""A worker whose wall clock is wrong: `celery_ahead SECONDS ARGUMENTS...` is `celery ARGUMENTS...` on such a machine.

Python's wall clock is moved (`time.time`, `time.time_ns`), which is what the runtime and its libraries read; steady
clocks stay, as they do on a real machine whose date is wrong.
"""

from __future__ import annotations

import sys
import time


def celery_ahead() -> None:
    ahead = float(sys.argv.pop(1))
    wall, wall_ns = time.time, time.time_ns
    time.time = lambda: wall() + ahead
    time.time_ns = lambda: wall_ns() + int(ahead * 1_000_000_000)
    from celery.__main__ import main

    print(f"the wall clock is {time.time() - wall():.0f} s ahead", flush=True)
    main()
