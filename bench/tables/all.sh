#!/bin/sh
# Every table and figure of Paper A beside our figures of it, and where each schedule stops paying.
#
# Usage: bench/tables/all.sh [--relay] [--device sim[:PROFILE]|cuda] [--csv] [--save FOLDER]
#                            [--from FOLDER]
#
# --relay adds RelayMoE's, which run on a profile of their own and take minutes. The other options are
# those of the scripts, which run as many at a time as there are cores (one at a time with --device
# cuda). Figure 2 plots Table 6 and has no lines of its own.
#
# Exit status: 0 all tables are printed and what shapes alone decide equals the printed digits; else the
# highest of the scripts'.
set -u
here=$(dirname "$0")
tables='table_02 table_03_12 table_04_14 table_06 table_07 table_08 table_09 table_10 table_11 table_13
    figure_05 figure_06_07 figure_08 links'
jobs=$(nproc 2>/dev/null || echo 1)
csv='' count=$#
while [ "$count" -gt 0 ]; do
    word=$1 count=$((count - 1))
    shift
    case $word in
    --relay)
        for table in "$here"/relay_*.sh; do
            table=${table##*/}
            tables="$tables ${table%.sh}"
        done
        continue
        ;;
    --help)
        sed -n '2,/^[^#]/s/^#\( \|$\)//p' "$0"
        exit 0
        ;;
    --csv) csv=yes ;;
    cuda | --device=cuda) jobs=1 ;;
    esac
    set -- "$@" "$word"
done
folder=$(mktemp -d) || exit 3
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM

for table in $tables; do
    echo "$table"
done | xargs -P "$jobs" -I TABLE sh -c '
    folder=$1 here=$2 table=$3
    shift 3
    "$here/$table.sh" "$@" >"$folder/$table.txt" 2>"$folder/$table.err"
    echo $? >"$folder/$table.status"' sh "$folder" "$here" TABLE "$@"

highest=0 first=1
for table in $tables; do
    [ -n "$csv" ] || [ "$first" = 1 ] || printf '\n\n'
    status=$(cat "$folder/$table.status" 2>/dev/null)
    if [ -z "$status" ]; then
        echo "all.sh: no room for $table in $folder" >&2
        highest=3
        continue
    fi
    if [ -n "$csv" ] && [ "$first" = 0 ]; then
        sed 1d "$folder/$table.txt"
    else
        cat "$folder/$table.txt"
    fi || status=3
    cat "$folder/$table.err" >&2
    first=0
    [ "$status" -le "$highest" ] || highest=$status
done
exit "$highest"
