# Implementations of a family side by side: time above with its quartiles, increment over resident
# bytes below. Bars of a simulated device are empty but for their pattern.
#
# Set before: csv, out, format, title, kind, groups and bars (lists of names).
bar_count = words(bars)
group_count = words(groups)
width = 900; height = 640
load "plots/style.gp"
step = 0.8 / bar_count
slot(group, bar) = group + (bar - (bar_count - 1) / 2.0) * step
fill(i) = (kind eq "simulated" && pattern[number(i)] == 3) ? 0 : pattern[number(i)]
set multiplot layout 2,1 title title
set boxwidth 0.9 * step
set xrange [-0.5:group_count - 0.5]
set yrange [0:*]
set xtics ("" 0) scale 0
set for [g = 0:group_count - 1] xtics add (name_in(groups, g) g)
set ylabel "time, ms (".kind.")"
plot for [i = 0:bar_count - 1] csv using \
    (column(3) == i ? slot(column(1), i) : NaN):(column(6) * 1000) every ::1 with boxes \
    lc rgb colour[number(i)] fs pattern fill(i) border lc rgb "#222222" title name_in(bars, i), \
    csv using (slot(column(1), column(3))):(column(6) * 1000):(column(7) * 1000):(column(8) * 1000) \
    every ::1 with yerrorbars lc rgb "#222222" pt 7 ps 0 notitle
set ylabel "increment over resident, MiB"
plot for [i = 0:bar_count - 1] csv using \
    (column(3) == i ? slot(column(1), i) : NaN):(column(12) / mib) every ::1 with boxes \
    lc rgb colour[number(i)] fs pattern fill(i) border lc rgb "#222222" title name_in(bars, i)
unset multiplot
