#!/bin/sh
# The regression gate: the accepted cases run again must give the peaks, counts, traffic and bits that
# results/accepted holds. Then the gate itself: a byte more or less in an accepted peak, and a flipped
# digit of an accepted digest, must be found and must name the case.
set -u
compare=${BUILDDIR:-build}/bin/compare
accepted=results/accepted
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
count=0

ok()
{
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; fi
}

# gate FOLDER: what is not as accepted is in $folder/found.
gate()
{
    "$compare" --fail-on difference --changed --accepted "$1" "$folder/fresh" >"$folder/found" 2>&1
}

bench/accepted_cases.sh "$folder/fresh" >"$folder/said" 2>&1
result=$?
sed 's/^/# /' "$folder/said"
ok "$result" 'the accepted cases run and pass their checks'
gate "$accepted"
result=$?
[ "$result" = 0 ] || sed 's/^/# /' "$folder/found"
ok "$result" "they give what $accepted holds (else: make accept, and look at its diff)"

# planted NAME WORDS SED: results/accepted with its first line of ring-dtp on cpu changed.
planted()
{
    rm -rf "$folder/changed"
    cp -r "$accepted" "$folder/changed"
    line=$(grep -n '"impl":"ring-dtp"' "$accepted/cpu-vocab.jsonl" | sed -n '1s/:.*//p')
    sed -i "${line}$3" "$folder/changed/cpu-vocab.jsonl"
    ! cmp -s "$folder/changed/cpu-vocab.jsonl" "$accepted/cpu-vocab.jsonl" || return 1
    ! gate "$folder/changed" || return 1
    grep -q 'vocab ring-dtp cpu' "$folder/found" && grep -q "$2" "$folder/found"
}

peak='"tracked_peak_bytes":\([0-9]*\)'
planted more 'REGRESSION.*tracked_peak_bytes.*(+' "s/\\(.*\\)$peak/\\1\"tracked_peak_bytes\":1/"
ok $? 'an accepted peak that is lower than the fresh one is a regression that names the case'
planted less 'difference.*tracked_peak_bytes.*(-' "s/\\(.*\\)$peak/\\1\"tracked_peak_bytes\":9\\2/"
ok $? 'one that is higher is a difference, and fails too'
planted byte 'tracked_peak_bytes' "s/\\(\"tracked_peak_bytes\":[0-9]*\\)\\([02468]\\)/\\11/"
ok $? 'the last digit of an accepted peak'
planted bit 'digest' '{s/"digest":"[0-8]/"digest":"9/;t;s/"digest":"./"digest":"0/}'
ok $? 'a digit of an accepted digest'
sed '1d' "$accepted/cpu-vocab.jsonl" >"$folder/less.jsonl"
"$compare" --fail-on regression --changed --accepted "$accepted" "$folder/less.jsonl" \
    >"$folder/found" 2>&1
[ $? = 1 ] && grep -q 'the case vanished' "$folder/found"
ok $? 'a case that is not run any more is a regression'
echo "1..$count"
