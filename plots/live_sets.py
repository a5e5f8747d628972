"""Bytes by live set over one pass, a panel for each implementation on common axes.

Usage: live_sets.py CSV OUT     (OUT without extension; writes OUT.svg and OUT.png)
"""

from style import in_order, look, plt, read, run, save, second_unit, unit_of
from matplotlib.collections import PolyCollection  # after style, which says what is missing


def steps_of(lines):
    """Times, and for each live set its bytes from each time on. A set named again at the same time is the
    next sample: of a peak that lasts no time the picture has the line."""
    times, sets, named = [], {}, set()
    for line in lines:
        time, name = float(line["time_s"]), line["live_set"]
        if not times or time > times[-1] or name in named:
            times.append(time)
            named.clear()
            for values in sets.values():
                values.append(values[-1])
        named.add(name)
        values = sets.setdefault(name, [0.0] * len(times))
        values[-1] = float(line["bytes"])
    return times, {name: values for name, values in sets.items() if any(values)}


def thinned(times, sets, bins=600):
    """At most two samples for every 1/bins of the time: the fullest, and the last. No peak is lost."""
    if len(times) <= 2 * bins:
        return times, sets
    totals = [sum(values) for values in zip(*sets.values())]
    kept, width = {}, (times[-1] - times[0]) / bins
    for i, time in enumerate(times):
        at = int((time - times[0]) / width)
        fullest = kept.get(at, (i, i))[0]
        kept[at] = (i if totals[i] > totals[fullest] else fullest, i)
    chosen = sorted({i for pair in kept.values() for i in pair})
    return [times[i] for i in chosen], {
        name: [values[i] for i in chosen] for name, values in sets.items()
    }


def outlines(x, base, top):
    """Polygons around what lies between two lines of steps, without those where it is nothing."""
    polygons, upper, lower = [], [], []
    for i in range(len(base)):
        if top[i] > base[i]:
            for line, height in ((upper, top[i]), (lower, base[i])):
                if line and line[-1][1] == height:
                    line.pop()
                else:
                    line.append((x[i], height))
                line.append((x[i + 1], height))
        if upper and (top[i] == base[i] or i + 1 == len(base)):
            polygons.append(upper + lower[::-1])
            upper, lower = [], []
    return polygons


def draw_panel(axes, impl, kind, times, sets, end_s, units):
    """One implementation: a stack of steps, and its peak."""
    (bytes_unit, _), (seconds_unit, _) = units
    x = [time * seconds_unit for time in times] + [end_s * seconds_unit]
    base = [0.0] * len(times)
    for name in in_order(sets):
        top = [low + value / bytes_unit for low, value in zip(base, sets[name])]
        colour, hatch = look(name)
        axes.add_collection(PolyCollection(
            outlines(x, base, top), facecolor=colour, hatch=hatch, edgecolor="#222222",
            linewidth=0.4, linestyle="-" if kind == "measured" else "--", label=name,
            gid=f"mark-{impl}-{name}",
        ))
        base = top
    peak = max(base)
    axes.axhline(peak, color="#222222", linewidth=0.8, linestyle=":")
    axes.set_title(f"{impl} ({kind} time), peak {peak:.4g} {units[0][1]}", fontsize=9, loc="left")


def draw(path, out):
    """Draws the CSV file `path` as OUT.svg and OUT.png."""
    lines = read(path)
    impls = list(dict.fromkeys((line["impl"], line["kind"]) for line in lines))
    panels = [
        (*of, *thinned(*steps_of([line for line in lines if (line["impl"], line["kind"]) == of])))
        for of in impls
    ]
    most = max(sum(values) for *_, sets in panels for values in zip(*sets.values()))
    longest_s = max(times[-1] for *_, times, _ in panels)
    units = unit_of(most), second_unit(longest_s)
    figure, all_axes = plt.subplots(
        len(panels), 1, figsize=(8, 0.6 + 2.1 * len(panels)), sharex=True, sharey=True,
        squeeze=False,
    )
    handles = {}
    for axes, (impl, kind, times, sets) in zip(all_axes[:, 0], panels):
        draw_panel(axes, impl, kind, times, sets, times[-1], units)
        axes.set_ylabel(f"live bytes, {units[0][1]}")
        handles.update(zip(*reversed(axes.get_legend_handles_labels())))
    all_axes[0, 0].set_ylim(0, most / units[0][0] * 1.05)
    all_axes[0, 0].set_xlim(0, longest_s * units[1][0])
    all_axes[-1, 0].set_xlabel(f"time, {units[1][1]}")
    figure.tight_layout()
    names = in_order(handles)[::-1]
    figure.legend([handles[name] for name in names], names, loc="center left",
                  bbox_to_anchor=(1.0, 0.5), frameon=False, handleheight=1.4)
    save(figure, out)


if __name__ == "__main__":
    run(draw, __doc__)
