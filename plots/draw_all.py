"""Draws several plots in one process, since matplotlib takes long to start.

Usage: draw_all.py CSV_DIR OUT_DIR KIND:NAME...     (KIND: live_sets, streams or budget)

One that fails leaves its traceback on stderr and does not keep the others from being drawn; plots/draw.sh
looks which files are there. Exit status 1 when one failed.
"""

import sys
import traceback

import budget
import live_sets
import streams

KINDS = {"live_sets": live_sets.draw, "streams": streams.draw, "budget": budget.draw}


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    csv, out, jobs = sys.argv[1], sys.argv[2], sys.argv[3:]
    failed = False
    for job in jobs:
        kind, name = job.split(":", 1)
        try:
            KINDS[kind](f"{csv}/{name}.csv", f"{out}/{name}")
        except Exception:  # whatever is wrong with one file is that plot's alone
            print(f"{name}:", file=sys.stderr)
            traceback.print_exc()
            failed = True
    sys.exit(failed)


main()
