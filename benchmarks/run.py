"""`make bench`: measures what the project promises about cost, and says which limits are met.

Ours and the floor run alternately in one process, figures are medians, and a busy machine makes all of them larger:
the limits are meant for a quiet core. `--quick` does everything once and small, to see that it runs; its figures mean
nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks import cluster, cycles, memory, processes, search
from benchmarks.figures import Figure, show, write

Measure = Callable[[], list[Figure]]


def measures(*, quick: bool, postgres: str | None) -> dict[str, Measure]:
    """What is measured, by the name of its results file."""
    n, rounds = (20, 1) if quick else (300, 9)
    long, long_rounds = (50, 1) if quick else (1000, 5)
    planned: dict[str, Measure] = {
        "inline": lambda: cycles.inline_overhead(n, rounds),
        "store": lambda: _both(lambda form: cycles.store_cost(n, rounds, form)),
        "large_file": cycles.large_file,
        "growth": lambda: _both(lambda form: cycles.growth(long, long_rounds, form)),
        "memory": lambda: memory.measure(60 if quick else 500),
        "imports": lambda: processes.imports(1 if quick else 9),
        "workers": lambda: processes.workers(4 if quick else 100),
        "latency": lambda: processes.latency(2 if quick else 30),
    }
    if search.ripgrep():
        planned["search"] = lambda: search.measure((100,), 1) if quick else search.measure(search.SIZES, 7)
    if cluster.available():
        planned["redis"] = lambda: cluster.store_cost(n, 1 if quick else 5)
        planned["celery"] = lambda: cluster.hop(20, 5, 1) if quick else cluster.hop(300, 100, 5)
        planned["celery_http"] = lambda: cluster.http(5, 5, 0.0) if quick else cluster.http(600, 200, 60.0)
        planned["celery_latency"] = lambda: cluster.latency(1 if quick else 10)
    if postgres:
        planned["postgres"] = lambda: cycles.postgres_cost(postgres, n, 1 if quick else 3)
    return planned


def _both(measure: Callable[[str], list[Figure]]) -> list[Figure]:
    with cycles.one_core():
        return [figure for form in cycles.FORMS for figure in measure(form)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("only", nargs="*", help="measures to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="small and once, to see that it runs; nothing is kept")
    parser.add_argument("--no-fail", action="store_true", help="exit 0 also when a limit is missed")
    parser.add_argument("--postgres", help="URL of a PostgreSQL database, to measure it too")
    options = parser.parse_args()
    planned = measures(quick=options.quick, postgres=options.postgres)
    if unknown := set(options.only) - set(planned):
        parser.error(f"no measure is called {', '.join(sorted(unknown))}; there are {', '.join(planned)}")
    missed = []
    for name in options.only or planned:
        figures = planned[name]()
        show(figures)
        if not options.quick:
            write(name, figures)
        missed += [figure.name for figure in figures if not figure.met]
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed and not (options.no_fail or options.quick) else 0


if __name__ == "__main__":
    sys.exit(main())
