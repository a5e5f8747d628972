#!/bin/sh
# Draws every plot whose CSV file is there, as SVG and PNG: tables, sweeps and trends with gnuplot,
# timelines and stacked areas with matplotlib. build/bin/figures writes the CSV files
# (live_sets-*.csv, operators-*.csv, ...), bench/tables/eq_06.sh writes budget.csv.
#
# A tool that is absent: its plots are skipped, which is said, and that is no failure.
#
# Usage: plots/draw.sh CSV_DIR OUT_DIR
# Environment: GNUPLOT (gnuplot), PYTHON (the first of python3 and /usr/bin/python3 that has matplotlib).
# Exit status: 0 drawn or skipped, 1 a plot failed, 2 bad arguments, 3 OUT_DIR cannot be made.
set -u
# Numbers have a point here, whatever the caller's language: awk reads and writes them by the locale.
export LC_ALL=C
[ $# = 2 ] || { echo 'usage: plots/draw.sh CSV_DIR OUT_DIR' >&2; exit 2; }
[ -d "$1" ] || { echo "draw.sh: $1: no such folder" >&2; exit 2; }
mkdir -p "$2" || exit 3
csv=$(cd "$1" && pwd) || exit 2
out=$(cd "$2" && pwd) || exit 3
cd "$(dirname "$0")/.." || exit 3
work=$(mktemp -d) || exit 3
trap 'rm -rf "$work"' EXIT
# matplotlib keeps its font list there; a home that cannot be written would make it complain.
export MPLCONFIGDIR="${MPLCONFIGDIR:-$work}" PYTHONDONTWRITEBYTECODE=1
status=0

# ---- the tools ---------------------------------------------------------------------------------------

gnuplot=${GNUPLOT:-gnuplot}
no_gnuplot=
command -v "$gnuplot" >/dev/null 2>&1 || no_gnuplot="$gnuplot not found (Debian: gnuplot-nox)"

python=
no_python='matplotlib not found (Debian: python3-matplotlib)'
for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
    if "$candidate" -c 'import matplotlib' >/dev/null 2>&1; then
        python=$candidate
        no_python=
        break
    fi
done

# told NAME STATUS: what became of a plot. Both files are there, or neither.
told()
{
    if [ "$2" = 0 ] && [ -s "$out/$1.svg" ] && [ -s "$out/$1.png" ]; then
        echo "plots: $1.svg, $1.png"
    else
        rm -f "$out/$1.svg" "$out/$1.png"
        echo "plots: FAILED: $1" >&2
        sed 's/^/    /' "$work/said" >&2
        status=1
    fi
}

# ---- matplotlib --------------------------------------------------------------------------------------

# "KIND:NAME" of each; names hold no spaces.
jobs=
for kind in live_sets streams; do
    for file in "$csv/$kind"-*.csv; do
        [ ! -s "$file" ] || jobs="$jobs $kind:$(basename "$file" .csv)"
    done
done
[ ! -s "$csv/budget.csv" ] || jobs="$jobs budget:budget"
for job in $jobs; do
    [ -z "$no_python" ] || echo "plots: skipped: ${job#*:}: $no_python"
    rm -f "$out/${job#*:}.svg" "$out/${job#*:}.png"
done
# It draws while gnuplot does; what became of it is told at the end.
drawing=
if [ -z "$no_python" ] && [ -n "$jobs" ]; then
    # Jobs are words, hence unquoted.
    # shellcheck disable=SC2086
    "$python" plots/draw_all.py "$csv" "$out" $jobs >"$work/drawn" 2>&1 &
    drawing=$!
fi

# ---- gnuplot -----------------------------------------------------------------------------------------

# quoted TEXT: a gnuplot string.
quoted()
{
    printf "'%s'" "$(printf '%s' "$1" | sed "s/'/''/g")"
}

# draw NAME SCRIPT [VARIABLE=VALUE]...: VALUE is a number or a gnuplot string.
draw()
{
    name=$1 script=$2
    shift 2
    [ -z "$no_gnuplot" ] || { echo "plots: skipped: $name: $no_gnuplot"; return; }
    result=0
    for format in svg png; do
        {
            echo "csv = $(quoted "$csv/$name.csv")"
            echo "out = $(quoted "$out/$name")"
            echo "format = '$format'"
            for setting; do
                echo "$setting"
            done
            echo "load 'plots/$script.gp'"
        } >"$work/plot"
        "$gnuplot" "$work/plot" >"$work/said" 2>&1 || result=1
    done
    told "$name" "$result"
}

# names FILE INDEX NAME: column NAME of FILE in the order of its column INDEX, once each, as a gnuplot
# string of words with "~" for spaces. Fields hold no commas: labels are options of one value each.
names()
{
    quoted "$(awk -F, -v index_name="$2" -v name="$3" '
        NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
        { gsub(/"/, ""); text = $column[name]; gsub(/ /, "~", text)
          if (text == "") text = "all"
          at = $column[index_name] + 0; if (at > last) last = at; label[at] = text }
        END { for (i = 0; i <= last; i++) printf "%s%s", i ? " " : "", label[i] }' "$csv/$1.csv")"
}

# largest FILE: the highest increment in it.
largest()
{
    awk -F, 'NR > 1 && $9 > most { most = $9 } END { printf "%.0f.0", most }' "$csv/$1.csv"
}

timed()
{
    awk -F, 'NR > 1 && $5 != "" { found = 1 } END { print found + 0 }' "$csv/$1.csv"
}

# sweep NAME TITLE X_LABEL X_SCALE: of each kind of figure for which there is a file.
sweep()
{
    for kind in measured simulated computed; do
        [ -s "$csv/$1-$kind.csv" ] || continue
        draw "$1-$kind" sweep "title = $(quoted "$2 ($kind)")" "x_label = $(quoted "$3")" \
            "x_scale = $4" "series = $(names "$1-$kind" line series)" "kind = '$kind'" \
            "timed = $(timed "$1-$kind")" "largest = $(largest "$1-$kind")"
    done
}

for file in "$csv"/operators-*.csv; do
    [ -s "$file" ] || continue
    name=$(basename "$file" .csv)
    family=${name#operators-}
    draw "$name" operators "title = $(quoted "Implementations of ${family%-*} (${family##*-})")" \
        "kind = '${family##*-}'" "groups = $(names "$name" group_index group)" \
        "bars = $(names "$name" bar_index bar)"
done
sweep chunks 'Chunks of a dispatch' chunks 1.0
sweep sco 'Boundaries on the host' 'pinned host memory of a rank, MiB' 1048576.0
sweep optimizer 'Buckets of the offloaded optimizer' 'parameters of a bucket, 1e6' 1e6
[ ! -s "$csv/history.csv" ] || draw history history "series = $(names history line series)" \
    "commits = $(names history number commit)"

if [ -n "$drawing" ]; then
    wait "$drawing"
    mv "$work/drawn" "$work/said"
    for job in $jobs; do
        told "${job#*:}" 0
    done
fi
exit "$status"
