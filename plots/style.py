"""What all matplotlib plots share.

Readable in black and white and to the colour-blind: the colours are Okabe and Ito's, and no two things
are told apart by colour alone (hatches of areas and bars). Every mark has a name in the SVG (its gid),
so that a test can count them.
"""

import csv
import re
import sys

try:
    import matplotlib
except ImportError as error:
    print(f"plots: matplotlib cannot be imported: {error}", file=sys.stderr)
    sys.exit(3)

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

MIB = 1024.0**2
GIB = 1024.0**3

# One look for each live set, whatever the picture: colour and hatch.
LIVE_SETS = {
    "weights": ("#999999", ""),
    "gradients": ("#BBBBBB", "//"),
    "optimizer": ("#666666", "\\\\"),
    "input": ("#F0E442", ""),
    "output": ("#F0E442", "xx"),
    "dispatch": ("#0072B2", "//"),
    "expert": ("#E69F00", ""),
    "combine": ("#56B4E9", "\\\\"),
    "logits": ("#D55E00", ""),
    "boundary": ("#CC79A7", "//"),
    "staging": ("#009E73", "xx"),
    "ring": ("#0072B2", ".."),
    "attention": ("#CC79A7", ".."),
    "workspace": ("#FFFFFF", ".."),
}

matplotlib.rcParams.update(
    {
        "font.size": 9,
        "svg.fonttype": "none",
        "svg.hashsalt": "flatpeak",
        "hatch.linewidth": 0.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)


def read(path):
    """The lines of a CSV file as dictionaries."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def look(live_set):
    """Colour and hatch of a live set; one that is not known is white."""
    return LIVE_SETS.get(live_set, ("#FFFFFF", "oo"))


def in_order(live_sets):
    """Live sets in the order of the table above, unknown ones last."""
    known = list(LIVE_SETS)
    return sorted(live_sets, key=lambda s: (known.index(s) if s in known else len(known), s))


def unit_of(largest_bytes):
    """What to divide bytes by, and what that is called."""
    return (GIB, "GiB") if largest_bytes >= 4 * GIB else (MIB, "MiB")


def second_unit(longest_s):
    """What to multiply seconds by, and what that is called."""
    return (1.0, "s") if longest_s >= 1 else (1000.0, "ms")


def save(figure, out):
    """OUT.svg and OUT.png; the same bytes from the same data."""
    figure.savefig(out + ".svg", bbox_inches="tight", metadata={"Date": None})
    with open(out + ".svg", encoding="utf-8") as file:
        text = file.read()
    # A hundredth of a point is finer than any screen; six decimals make the file twice as large.
    text = re.sub(r"\d+\.\d{4,}", lambda number: f"{float(number[0]):.2f}", text)
    with open(out + ".svg", "w", encoding="utf-8") as file:
        file.write(text)
    figure.savefig(out + ".png", bbox_inches="tight", dpi=160, metadata={"Software": None})
    plt.close(figure)


def run(draw, usage):
    """The main program of a plot: CSV OUT."""
    if len(sys.argv) != 3:
        sys.exit(usage)
    draw(sys.argv[1], sys.argv[2])
