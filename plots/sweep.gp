# Memory and time over one launch setting, a line for each series. Measured: solid, filled points;
# simulated: dashed, hollow points; computed from shapes alone: dotted, hollow points.
#
# Set before: csv, out, format, title, x_label, x_scale, series (list of names), kind, timed (1 when
# some sample has a time), largest (bytes).
lines = words(series)
width = 900; height = timed ? 640 : 380
load "plots/style.gp"
dashes = kind eq "measured" ? 1 : kind eq "simulated" ? 2 : 3
shape(i) = kind eq "measured" ? filled[number(i)] : hollow[number(i)]
unit = largest > 4 * gib ? gib : mib
set xlabel x_label
set yrange [0:*]
if (timed) { set multiplot layout 2,1 title title } else { set title title }
set ylabel "increment, ".(unit == gib ? "GiB" : "MiB").(kind eq "computed" ? " (computed)" : "")
plot for [i = 0:lines - 1] csv using \
    (column(1) == i ? column(4) / x_scale : NaN):(column(9) / unit) every ::1 with linespoints \
    lc rgb colour[number(i)] lw 2 dt dashes pt shape(i) ps 1.2 title name_in(series, i)
if (timed) {
    set ylabel "time, ms (".kind.")"
    plot for [i = 0:lines - 1] csv using (column(1) == i ? column(4) / x_scale : NaN):\
        (column(5) * 1000):(column(6) * 1000):(column(7) * 1000) every ::1 with yerrorlines \
        lc rgb colour[number(i)] lw 2 dt dashes pt shape(i) ps 1.2 title name_in(series, i)
    unset multiplot
}
