#!/usr/bin/env bash
# The run on record of the small model: 300 steps of the composed and of the standard step, then composed with
# attention and with experts frozen. Twenty minutes on two cores, which nothing else should use meanwhile.
#
# Bars: both compositions have the same losses and weights; the composed step ends below the text's bigram
# entropy, with attention or experts frozen at least 3 % above itself; by definition it runs at half of a GEMM's
# rate or more.
#
# Usage: bench/train_record.sh [--out FILE] [--steps N]
#   --out FILE   new file of records; default results/measured/cpu-CORES-COMMIT/train.jsonl
#   --steps N    of each run; default 300
# Environment: BUILDDIR (build).
#
# Exit status: 0 every bar holds; 1 one does not; 2 bad option; 3 nothing could be run or written.
set -u
cd "$(dirname "$0")/.." || exit 3
bin=${BUILDDIR:-build}/bin
out='' steps=300 failed=0

while [ $# -gt 0 ]; do
    case $1 in
    --out | --steps)
        if [ $# -lt 2 ]; then
            echo "train_record.sh: option $1 needs a value" >&2
            exit 2
        fi
        if [ "$1" = --out ]; then out=$2; else steps=$2; fi
        shift
        ;;
    --help)
        sed -n '2,/^[^#]/s/^#\( \|$\)//p' "$0"
        exit 0
        ;;
    *)
        echo "train_record.sh: unknown option '$1'; --help lists all" >&2
        exit 2
        ;;
    esac
    shift
done
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
out=${out:-results/measured/cpu-$(nproc)-$commit/train.jsonl}
scratch=$(mktemp -d) || exit 3
trap 'rm -rf "$scratch"' EXIT

# bar STATUS NAME
bar()
{
    if [ "$1" -eq 0 ]; then
        echo "  holds: $2"
    else
        echo "  FAILS: $2"
        failed=1
    fi
}

# below A B: whether A < B
below()
{
    awk "BEGIN { exit !($1 < $2) }"
}

# train OPTION...: a run, whose lines are shown and kept
train()
{
    "$bin/train" --steps "$steps" --ranks 4 --json "$scratch/train.jsonl" "$@" | tee -a "$scratch/lines"
    return "${PIPESTATUS[0]}"
}

# loss N: of the Nth case
loss()
{
    sed -n 's/^  loss \([0-9.]*\) nats.*/\1/p' "$scratch/lines" | sed -n "$1p"
}

train
status=$?
[ $status -le 1 ] || exit 3
bar $status 'both compositions have the same losses and weights'
train --composition composed --freeze attention,experts || exit 3

bigram=$(sed -n 's/.*bigram entropy of //p' "$scratch/lines" | head -1)
composed=$(loss 1)
attention=$(loss 3)
experts=$(loss 4)
least=$(awk "BEGIN { print 1.03 * $composed }")
below "$composed" "$bigram"
bar $? "the loss, $composed, is below the bigram entropy of $bigram"
below "$least" "$attention"
bar $? "with attention frozen it is worse: $attention"
below "$least" "$experts"
bar $? "with experts frozen it is worse: $experts"
rate=$(sed -n 's/.*GFLOP\/s, \([0-9]*\) % of a GEMM.*/\1/p' "$scratch/lines" | head -1)
[ "$rate" -ge 50 ]
bar $? "the composed step runs at $rate % of a GEMM's rate, 50 or more"

mkdir -p "$(dirname "$out")" && "$bin/archive" --part history --out "$out" "$scratch/train.jsonl" || exit 3
echo "  records in $out"
exit $failed
