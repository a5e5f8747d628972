#!/usr/bin/env bash
# bin/replay and the tables made with it, from outside: what is printed, what is refused, exit status.
set -u
cd "$(dirname "$0")/.." || exit 3
replay=${BUILDDIR:-build}/bin/replay
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
count=0

ok()
{
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; fi
}

# gives STATUS WORDS NAME OPTION...: the exit status, and the words in what is printed.
gives()
{
    local wanted=$1 words=$2 name=$3 status=0 result
    shift 3
    "$replay" "$@" >"$folder/out" 2>&1 || status=$?
    [ "$status" = "$wanted" ] && grep -qF -- "$words" "$folder/out"
    result=$?
    [ "$result" = 0 ] || sed "s/^/# exit $status: /" "$folder/out"
    ok "$result" "$name"
}

# lines COUNT PATTERN NAME: so many lines of the last output match.
lines()
{
    [ "$(grep -c -- "$2" "$folder/out")" = "$1" ]
    ok $? "$3"
}

# npy FILE TYPE SHAPE BYTES: a .npy file of format 1.0; BYTES in printf's notation.
npy()
{
    local header="{'descr': '$2', 'fortran_order': False, 'shape': ($3), }"
    {
        printf '\223NUMPY\001\000\166\000'
        printf '%-117s\n' "$header"
        printf "$4"
    } >"$1"
}

# ---- results -----------------------------------------------------------------------------------------

small=(--ranks 4 --tokens 64 --experts 16 --topk 2 --min-gemm 4)
gives 0 'received' 'routings, plans and chunks' "${small[@]}" --routing balanced,50/2,burst \
    --plan none,llep --chunks strided,contiguous --chunk-budget 16
lines 12 ' llep \| none ' 'a line for each'
lines 3 'routes of a rank' 'loads once for each routing'
gives 0 'alpha 2' 'settings that vary are on the line' "${small[@]}" --routing 50/2 \
    --plan none,llep --alpha 1,2
lines 1 ' none ' 'and do not repeat what has no plan'
gives 0 'the worst is step' 'many steps' "${small[@]}" --routing moving-hot-spot --steps 5
gives 0 'ragged-sources' 'uneven ranks' "${small[@]/64/7}" --routing ragged-sources
gives 0 '' 'counts per rank' --ranks 3 --tokens-per-rank 5,0,7 --experts 6 --csv
[ "$(awk -F, '{ print NF }' "$folder/out" | sort -u)" = 34 ]
ok $? 'CSV has as many fields as names'

# ---- traces ------------------------------------------------------------------------------------------

npy "$folder/t.npy" '<i4' '2, 2, 2, 1' '\0\0\0\0\2\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\3\0\0\0\377\377\377\377\3\0\0\0'
trace=(--ranks 2 --experts 4 --routing "$folder/t.npy")
gives 0 '2 steps' 'a trace of two steps' "${trace[@]}" --plan none
lines 1 'the worst is step 1' 'whose second step is the worst'
lines 1 'max 3; of an expert: min 0, median 0, p95 3, max 3' 'with its loads'
gives 2 '[step 0, rank 0, token 1, slot 0] is 2, allowed 0..1 or -1 (empty)' 'a bad entry' \
    --ranks 2 --experts 2 --routing "$folder/t.npy"
gives 2 'holds 2 ranks, and --ranks is 4' 'other ranks' --ranks 4 --experts 4 \
    --routing "$folder/t.npy"
gives 2 'top-k is 1 there and 2 here' 'another top-k' "${trace[@]}" --topk 2
gives 2 'brings its own tokens' 'tokens of a trace' "${trace[@]}" --tokens 2
gives 2 'allowed 2' 'more steps than there are' "${trace[@]}" --steps 3
npy "$folder/c.npy" '<i8' '1, 2' '\5\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0'
gives 0 'max 5' 'counts' --ranks 1 --experts 2 --topk 2 --routing "counts:$folder/c.npy"
mkdir "$folder/ranks"
npy "$folder/ranks/rank_0.npy" '<i4' '1, 1' '\0\0\0\0'
npy "$folder/ranks/rank_1.npy" '<i4' '2, 1' '\1\0\0\0\1\0\0\0'
gives 0 'max 2' 'a folder of ragged ranks' --ranks 2 --experts 2 --routing "$folder/ranks"

# ---- refusals ----------------------------------------------------------------------------------------

gives 2 'multiples of 4' 'experts that do not divide' "${small[@]/16/18}"
gives 2 'allowed balanced, uniform' 'an unknown routing' "${small[@]}" --routing skewed
gives 2 'at most 15 hot ones' 'too many hot experts' "${small[@]}" --routing 50/16
gives 2 'No such file' 'a missing trace' --routing "$folder/none.npy"
gives 2 'none/r.jsonl: No such file' 'records in no folder' "${small[@]}" --json "$folder/none/r.jsonl"
gives 2 'Is a directory' 'records in a folder' "${small[@]}" --json "$folder"
gives 2 'got 2 counts' 'counts of other ranks' --ranks 4 --experts 4 --tokens-per-rank 1,2
gives 2 'no effect without --plan llep' 'settings of no plan' --plan none --alpha 2
gives 2 'no effect without --chunk-budget' 'a ceiling of nothing' --max-chunks 4
gives 2 'routes, allowed at most' 'more routes than int32 numbers' --tokens 2G --topk 8

# ---- tables ------------------------------------------------------------------------------------------

bench/tables/table_08.sh --csv >"$folder/out" 2>&1
ok $? 'Table 8: ratios and shares equal the paper'
lines 5 'received, strided.*,12\.5,12\.5.*reproduced' 'received share with strided chunks'
lines 1 '30/16,"received, contiguous".*,,42\.' 'and the case that the paper leaves out'

echo "1..$count"
