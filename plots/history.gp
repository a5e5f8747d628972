# Tracked peak and throughput of the streaming schedules over the commits that were measured. Peaks are
# the same on every machine; a throughput is one machine's.
#
# Set before: csv, out, format, series and commits (lists of names).
lines = words(series)
width = 900; height = 640
load "plots/style.gp"
set multiplot layout 2,1 title "Over commits (measured)"
set xrange [-0.3:words(commits) - 0.7]
set yrange [0:*]
set xtics ("" 0) rotate by -30
set for [i = 1:words(commits)] xtics add (word(commits, i) i - 1)
set ylabel "tracked peak, MiB"
plot for [i = 0:lines - 1] csv using (column(1) == i ? column(4) : NaN):(column(7) / mib) every ::1 \
    with linespoints lc rgb colour[number(i)] lw 2 dt number(i) pt filled[number(i)] ps 1.2 \
    title name_in(series, i)
set ylabel "throughput, 1e9/s"
set xlabel "commit"
plot for [i = 0:lines - 1] csv using (column(1) == i ? column(4) : NaN):(column(8) / 1e9) every ::1 \
    with linespoints lc rgb colour[number(i)] lw 2 dt number(i) pt filled[number(i)] ps 1.2 \
    title name_in(series, i)
unset multiplot
