"""What each stream of the fullest rank did, a panel for each implementation: a Gantt chart.

Usage: streams.py CSV OUT     (OUT without extension; writes OUT.svg and OUT.png)
"""

from style import plt, read, run, save, second_unit
from matplotlib.patches import Patch  # after style, which says what is missing

# What a span is: colour and hatch.
KINDS = {
    "kernel": ("#E69F00", ""),
    "copy": ("#009E73", "xxx"),
    "message": ("#56B4E9", "///"),
}


def draw_panel(axes, impl, kind, spans, unit):
    """One implementation: a row for each stream."""
    streams = list(dict.fromkeys(span["stream"] for span in spans))
    streams.sort(key=lambda name: (name != "main", name))
    for row, stream in enumerate(streams):
        for what, (colour, hatch) in KINDS.items():
            bars = [
                (float(s["begin_s"]) * unit, (float(s["end_s"]) - float(s["begin_s"])) * unit)
                for s in spans
                if s["stream"] == stream and s["what"] == what
            ]
            if bars:
                axes.broken_barh(
                    bars, (row - 0.35, 0.7), facecolor=colour, hatch=hatch, edgecolor="#222222",
                    linewidth=0.3, linestyle="-" if kind == "measured" else "--",
                    gid=f"mark-{impl}-{stream}-{what}",
                )
    axes.set_yticks(range(len(streams)), streams)
    axes.set_ylim(len(streams) - 0.5, -0.5)
    axes.set_title(f"{impl} ({kind}), rank {spans[0]['rank']}", fontsize=9, loc="left")


def draw(path, out):
    """Draws the CSV file `path` as OUT.svg and OUT.png."""
    spans = read(path)
    impls = list(dict.fromkeys((span["impl"], span["kind"]) for span in spans))
    panels = [[s for s in spans if (s["impl"], s["kind"]) == key] for key in impls]
    rows = [len({s["stream"] for s in panel}) for panel in panels]
    longest_s = max(float(span["end_s"]) for span in spans)
    unit, name = second_unit(longest_s)
    figure, all_axes = plt.subplots(
        len(panels), 1, figsize=(8, 0.8 * len(panels) + 0.45 * sum(rows)), sharex=True,
        squeeze=False,
        gridspec_kw={"height_ratios": rows},
    )
    for axes, (impl, kind), panel in zip(all_axes[:, 0], impls, panels):
        draw_panel(axes, impl, kind, panel, unit)
    all_axes[0, 0].set_xlim(0, longest_s * unit)
    all_axes[-1, 0].set_xlabel(f"time, {name}")
    figure.tight_layout()
    figure.legend(
        [Patch(facecolor=c, hatch=h, edgecolor="#222222") for c, h in KINDS.values()], list(KINDS),
        loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False,
    )
    save(figure, out)


if __name__ == "__main__":
    run(draw, __doc__)
