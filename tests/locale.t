#!/bin/sh
# Scripts say the same under a language that writes 3,14: awk reads and writes numbers by the locale, so a
# script that does not set it would take 4.5e11 bytes/s for 4 and print what no program said.
set -u
bin=${BUILDDIR:-build}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
count=0

if ! localedef -i de_DE -f UTF-8 "$folder/de_DE.UTF-8" >/dev/null 2>&1; then
    echo '1..0 # SKIP localedef cannot make a locale with a decimal comma here'
    exit 0
fi

# same NAME COMMAND...: its output in both languages.
same()
{
    name=$1
    shift
    count=$((count + 1))
    LC_ALL=C "$@" >"$folder/point" 2>&1
    LOCPATH=$folder LC_ALL=de_DE.UTF-8 LC_NUMERIC=de_DE.UTF-8 "$@" >"$folder/comma" 2>&1
    if [ -s "$folder/point" ] && cmp -s "$folder/point" "$folder/comma"; then
        echo "ok $count - $name"
    else
        diff "$folder/point" "$folder/comma" | sed 's/^/# /;9q'
        echo "not ok $count - $name"
    fi
}

{
    echo op,impl,device,dtype,status,reason,median_s,q1_s,q3_s
    echo vocab,a,sim:here,f32,ok,,0.010,,
    echo vocab,b,sim:here,f32,ok,,0.016,,
    echo op,impl,device,dtype,status,reason,median_s,q1_s,q3_s
    echo vocab,a,cpu,f32,ok,,0.020,0.019,0.021
    echo vocab,b,cpu,f32,ok,,0.040,0.038,0.042
} >"$folder/lines"
same 'the budget of a rank' bench/tables/eq_06.sh
same 'predicted and measured times' bench/tables/calibrated.sh --from "$folder/lines"
same 'a table of simulated figures' bench/tables/table_11.sh
same 'a program' "$bin/bin/vocab" --device sim --tokens 64 --hidden 64 --vocab 512 --impl ring-dtp
same 'claims' "$bin/bin/claims"
echo "1..$count"
