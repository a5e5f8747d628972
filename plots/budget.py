"""Eq. 6: the budget of a rank term by term, a bar for each model.

Usage: budget.py CSV OUT     (OUT without extension; writes OUT.svg and OUT.png)

The CSV has a line for each model and term: model, term, live_set, bytes, limit_bytes.
"""

from style import GIB, look, plt, read, run, save


def draw(path, out):
    """Draws the CSV file `path` as OUT.svg and OUT.png."""
    lines = read(path)
    models = list(dict.fromkeys(line["model"] for line in lines))
    terms = list(dict.fromkeys((line["term"], line["live_set"]) for line in lines))
    figure, axes = plt.subplots(figsize=(8, 0.8 + 0.7 * len(models)))
    left = [0.0] * len(models)
    for term, live_set in terms:
        sizes = [
            sum(float(a["bytes"]) for a in lines if (a["model"], a["term"]) == (model, term)) / GIB
            for model in models
        ]
        colour, hatch = look(live_set)
        bars = axes.barh(range(len(models)), sizes, 0.6, left, facecolor=colour, hatch=hatch,
                         edgecolor="#222222", linewidth=0.5, linestyle="--", label=term)
        for model, bar in zip(models, bars):
            bar.set_gid(f"mark-{model}-{live_set}")
        left = [low + size for low, size in zip(left, sizes)]
    for row, total in enumerate(left):
        axes.text(total, row, f" {total:.1f} GiB", va="center")
    limit = float(lines[0]["limit_bytes"]) / GIB
    axes.axvline(limit, color="#222222", linewidth=1, linestyle=":")
    axes.text(limit, len(models) - 0.55, f"{limit:.0f} GiB of a GPU ", ha="right", fontsize=8)
    axes.set_yticks(range(len(models)), models)
    axes.set_ylim(len(models) - 0.4, -0.6)
    axes.set_xlim(0, max(left + [limit]) * 1.12)
    axes.set_xlabel("bytes of a rank, GiB (computed from shapes)")
    figure.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, handleheight=1.4)
    save(figure, out)


if __name__ == "__main__":
    run(draw, __doc__)
