#!/bin/sh
# Eq. 6: the budget of a rank, term by term, for the three models that the paper trains end to end, at
# 65536 tokens a rank (a context of 1M over 16 ranks). Arithmetic on shapes: nothing is run.
#
# The paper gives orders of growth; the factors here are those of its other equations: dispatch holds
# two chunks (Eq. 1), boundaries two tensors (Eq. 4), a strip is one tile of FP32 logits (Eq. 2). Of
# attention it says O(NHb): queries, keys, values and outputs are taken, four tensors. A rank's share of
# the parameters and the staging slots are the optimizer's own closed forms (optimizer --plan).
#
# Usage: bench/tables/eq_06.sh [--csv]     (BUILDDIR names the build folder; default build)
# Exit status: 0 printed, 2 bad option, 3 something is missing.
set -u
# Numbers have a point here, whatever the caller's language: awk reads and writes them by the locale.
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 3
optimizer=${BUILDDIR:-build}/bin/optimizer
csv=0
case ${1-} in
'') ;;
--csv) csv=1 ;;
*) echo "eq_06.sh: got '$1', allowed --csv" >&2; exit 2 ;;
esac
[ -x "$optimizer" ] || { echo "eq_06.sh: $optimizer is missing; run make" >&2; exit 3; }
work=$(mktemp -d) || exit 3
trap 'rm -rf "$work"' EXIT

# number NAME: of the one record.
number()
{
    sed -n "s/.*\"$1\": *\([0-9][0-9]*\).*/\1/p" "$work/record" | head -n 1
}

for model in e2e-120b:16 e2e-241b:32 e2e-667b:64; do
    rm -f "$work/record"
    "$optimizer" --plan --impl offload-stream --model "${model%:*}" --world "${model#*:}" \
        --bucket 100e6 --slots 2 --json "$work/record" >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; exit 3; }
    echo "${model%:*} ${model#*:} $(number params_per_rank) $(number increment_bytes)"
done >"$work/models" || exit 3

awk -v csv="$csv" '
    function term(name, live_set, formula, bytes)
    {
        if (csv) {
            printf "%s,%s,%s,%.0f,%.0f\n", model, name, live_set, bytes, limit
        } else {
            printf "    %-26s %-34s %9.3f GiB\n", name, formula, bytes / 1073741824
        }
        total += bytes
    }
    BEGIN {
        tokens = 65536; hidden = 7168; vocab = 200000; topk = 8; vocab_ranks = 8; chunk = 4096; width = 2
        limit = 141e9
        if (csv)
            print "model,term,live_set,bytes,limit_bytes"
        else
            print "Eq. 6 at N = 65536, H = 7168, V = 200000, k = 8, P = 8, c = 4096, b = 2, E_p = W\n"
    }
    {
        model = $1; world = $2; total = 0
        if (!csv)
            printf "%s on %d ranks\n", model, world
        term("weights and gradients", "weights", "4 Theta / W", 4 * $3)
        term("optimizer staging", "staging", "16 s beta, s = 2, beta = 100e6", $4)
        term("attention", "attention", "4 N H b", 4 * tokens * hidden * width)
        term("dispatch", "dispatch", "2 E_p k c H b", 2 * world * topk * chunk * hidden * width)
        term("logit strips", "logits", "4 N V / P", 4 * tokens * vocab / vocab_ranks)
        term("boundaries", "boundary", "2 N H b", 2 * tokens * hidden * width)
        if (!csv)
            printf "    %-61s %9.3f GiB, %s 141e9 bytes\n\n", "in all", total / 1073741824,
                total <= limit ? "within" : "beyond"
    }' "$work/models" || exit 3
