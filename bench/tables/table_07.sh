#!/bin/sh
# Table 7, chunk counts: how many chunks a token budget of 4096, at most 10, makes of a rank's tokens.
# Eq. 1 alone, so it must equal the printed figures; nothing is run and no device is needed. The
# table's speedups and savings are measurements and not here.
#
# Usage: bench/tables/table_07.sh     (BUILDDIR names the build folder; default build)
# Exit status: 0 all figures equal the printed ones, 1 one differs, 3 something is missing.
set -u
cd "$(dirname "$0")/../.." || exit 3
replay=${BUILDDIR:-build}/bin/replay
printed=results/paper/table_07.csv
[ -x "$replay" ] || { echo "table_07.sh: $replay is missing; run make" >&2; exit 3; }
[ -r "$printed" ] || { echo "table_07.sh: $printed is missing" >&2; exit 3; }

tokens=$(awk -F, '/^[0-9]/ { printf "%s%s", comma, $1; comma = "," }' "$printed")
ours=$("$replay" --csv --ranks 8 --tokens "$tokens" --experts 128 --topk 8 --chunk-budget 4096 \
    --max-chunks 10) || exit 3

{
    awk -F, '/^[0-9]/ { print "printed", $1, $2 }' "$printed"
    echo "$ours" | awk -F, '
        NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
        { print "ours", $column["tokens"], $column["chunk_count"], $column["chunk_tokens"] }'
} | awk '
    $1 == "printed" { order[++rows] = $2; printed[$2] = $3 }
    $1 == "ours" { count[$2] = $3; chunk[$2] = $4 }
    END {
        print "Table 7, chunks of a token budget of 4096, at most 10"
        print ""
        print "  tokens per rank   paper   ours     tokens of a chunk"
        for (r = 1; r <= rows; r++) {
            tokens = order[r]
            same = printed[tokens] == count[tokens]
            differing += !same
            printf "  %15d   %5d   %4s %s  %17s\n", tokens, printed[tokens], count[tokens],
                same ? " =" : "!=", chunk[tokens]
        }
        print ""
        if (differing || !rows) {
            printf "%d of %d rows differ from the paper\n", differing, rows
            exit 1
        }
        printf "all %d rows equal the paper\n", rows
    }'
