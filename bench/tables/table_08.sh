#!/bin/sh
# Table 8, send ratios of strided and contiguous chunks: 65536 tokens per rank, 8 ranks, 128 experts,
# top-8, budget 6554, at most 10 chunks. The plan and the partition are replayed on the paper's routing
# profiles; nothing is moved and no device is needed, so the ratios must equal the printed digits.
#
# Beside them, how much of the bound of Eq. 1 the fullest receiver of any chunk fills. The paper's text
# says 12.5 % with strided chunks on every profile of the table and 17.1 % with contiguous chunks on
# 50/4. The last row, 30/16, is not in the paper: it is the worst contiguous case that we know.
#
# Usage: bench/tables/table_08.sh     (BUILDDIR names the build folder; default build)
# Exit status: 0 all figures equal the printed ones, 1 one differs, 3 something is missing.
set -u
cd "$(dirname "$0")/../.." || exit 3
replay=${BUILDDIR:-build}/bin/replay
printed=results/paper/table_08.csv
[ -x "$replay" ] || { echo "table_08.sh: $replay is missing; run make" >&2; exit 3; }
[ -r "$printed" ] || { echo "table_08.sh: $printed is missing" >&2; exit 3; }

profiles=$(awk -F, '!/^#/ && $1 != "routing" { printf "%s,", $1 }' "$printed")
ours=$("$replay" --csv --ranks 8 --tokens 65536 --experts 128 --topk 8 --routing "${profiles}30/16" \
    --chunks strided,contiguous --chunk-budget 6554 --max-chunks 10 \
    --alpha 1.0 --min-gemm 1024 --lambda 1.3) || exit 3

{
    awk -F, '!/^#/ && $1 != "routing" { print "printed", $1, $6, $7 }' "$printed"
    # what the text says, in percent of the bound
    awk -F, '!/^#/ && $1 != "routing" { print "text", $1, "strided", 12.5 }' "$printed"
    echo "text 50/4 contiguous 17.1"
    echo "$ours" | awk -F, '
        NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
        { print "ours", $column["routing"], $column["chunks"], $column["send_ratio"],
            $column["received_share"], $column["chunk_count"] }'
} | awk '
    # compare PRINTED OURS: "=" or "!=", or nothing where the paper prints nothing.
    function compare(printed, ours) {
        if (printed == "")
            return "  "
        compared++
        if (printed == ours)
            return " ="
        differing++
        return "!="
    }
    $1 == "printed" { in_paper[$2] = 1; send[$2, "strided"] = $3; send[$2, "contiguous"] = $4 }
    $1 == "text" { share[$2, $3] = sprintf("%.1f", $4) }
    $1 == "ours" {
        if (!(($2) in met))
            order[++rows] = $2
        met[$2] = 1
        our_send[$2, $3] = sprintf("%.2f", $4)
        our_share[$2, $3] = sprintf("%.1f", 100 * $5)
        chunks = $6
    }
    END {
        printf "Table 8, 65536 tokens per rank in %d chunks, 8 ranks, 128 experts, top-8\n\n", chunks
        print "            send ratio                                received, % of the bound of Eq. 1"
        print "            strided            contiguous             strided              contiguous"
        print "  routing   paper  ours        paper  ours            paper  ours          paper  ours"
        for (r = 1; r <= rows; r++) {
            p = order[r]
            s = p SUBSEP "strided"
            c = p SUBSEP "contiguous"
            printf "  %-8s  %5s  %4s %s     %5s  %4s %s         %5s  %4s %s       %5s  %4s %s%s\n", p,
                send[s], our_send[s], compare(send[s], our_send[s]),
                send[c], our_send[c], compare(send[c], our_send[c]),
                share[s], our_share[s], compare(share[s], our_share[s]),
                share[c], our_share[c], compare(share[c], our_share[c]),
                (p in in_paper) ? "" : "  not in the paper"
        }
        print ""
        if (differing || compared != 13) {
            printf "%d of %d figures differ from the paper\n", differing, compared
            exit 1
        }
        printf "all %d figures equal the paper to the printed digits\n", compared
    }'
