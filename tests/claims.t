#!/bin/sh
# results/claims.tsv against the tables that its lines name: those that take a second or two are printed
# as CSV, and every claim of theirs must find its line there and have the accepted verdict.
set -u
claims=${BUILDDIR:-build}/bin/claims
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
count=0

ok()
{
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; fi
}

mkdir "$folder/tables"
for table in table_02 table_03_12 table_04_14 table_09 table_10 table_11 table_13 figure_05; do
    "bench/tables/$table.sh" --csv >"$folder/tables/$table.csv" 2>"$folder/said"
    result=$?
    sed 's/^/# /' "$folder/said"
    ok "$result" "$table is printed"
done
"$claims" --tables "$folder/tables" --save "$folder/outcomes" >"$folder/lines"
result=$?
grep CHANGED "$folder/lines" | sed 's/^/# /'
ok "$result" 'no verdict is another than the accepted one'
for table in table_02 table_03_12 table_04_14 table_09 table_10 table_11 table_13 figure_05; do
    grep "bench/tables/$table.sh\$" "$folder/outcomes" | grep '	table	' >"$folder/of_table"
    grep "not run: needs bench/tables/$table.sh" "$folder/of_table" | sed 's/^/# no such line: /' \
        >"$folder/lost"
    cat "$folder/lost"
    [ -s "$folder/of_table" ] && [ ! -s "$folder/lost" ]
    ok $? "every claim of $table finds its line"
done

# A table that says otherwise is found.
sed 's/,reproduced,/,differs: 1 %,/' "$folder/tables/table_10.csv" >"$folder/changed"
mv "$folder/changed" "$folder/tables/table_10.csv"
"$claims" --tables "$folder/tables" --print summary >"$folder/lines"
[ $? = 1 ] && grep -q '^CHANGED: Table 10' "$folder/lines"
ok $? 'a verdict that changed is exit 1 and named'
"$claims" --tables "$folder/nowhere" >"$folder/lines" 2>&1
[ $? = 2 ] && grep -q nowhere "$folder/lines"
ok $? 'a folder that is not there is exit 2'

# An installed program brings the claims along, and one without any says what to do.
mkdir -p "$folder/root/bin" "$folder/root/share/flatpeak/profiles" "$folder/root/share/flatpeak/results" "$folder/empty"
cp "$claims" "$folder/root/bin/flatpeak-claims"
(cd "$folder/empty" && ../root/bin/flatpeak-claims) >"$folder/lines" 2>&1
[ $? = 2 ] && grep -q 'name a file with --claims' "$folder/lines"
ok $? 'without claims: exit 2, and the option to give'
cp results/claims.tsv "$folder/root/share/flatpeak/results"
(cd "$folder/empty" && ../root/bin/flatpeak-claims) >"$folder/lines" 2>&1
grep -q "^Table 10 .*not run" "$folder/lines"
ok $? 'installed claims are found from any folder'
echo "1..$count"
