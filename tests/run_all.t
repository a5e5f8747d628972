#!/usr/bin/env bash
# run_all.sh around programs that only pretend: options, folders, failing steps, Ctrl-C. The tree is
# the real one; `make` and the programs are stand-ins that this test writes.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/bin" "$folder/build/bin"
export RUNS=$folder/runs HISTORY=$folder/history BUILDDIR=$folder/build PATH=$folder/bin:$PATH
count=0

ok()
{
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; fi
}

# program FILE: an executable script from standard input.
program()
{
    { echo '#!/bin/sh' && cat; } >"$1"
    chmod +x "$1"
}

program "$folder/bin/make" <<'END'
exit "${MAKE_STATUS:-0}"
END
program "$folder/build/bin/claims" <<'END'
echo 'the table of claims'
END
# Appends a record to the file after --json; waits when told to, and finishes its line on Ctrl-C.
program "$folder/build/bin/vocab" <<'END'
case " $* " in
*' --plan '*) VOCAB_WAITS= VOCAB_STATUS= ;;
*' sim:'*) VOCAB_WAITS= VOCAB_STATUS= ;;
esac
trap 'interrupted=1' INT
while [ $# -gt 0 ]; do
    [ "$1" != --json ] || echo '{"schema":1}' >>"$2"
    shift
done
if [ -n "${VOCAB_WAITS:-}" ]; then
    touch "$VOCAB_WAITS"
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -n "${interrupted:-}" ] || sleep 0.3
    done
fi
echo 'a line of the table'
[ -z "${interrupted:-}" ] || exit 130
exit "${VOCAB_STATUS:-0}"
END
for name in optimizer dispatch checkpoint replay plan; do
    program "$folder/build/bin/$name" <<'END'
while [ $# -gt 0 ]; do
    [ "$1" != --json ] || echo '{"schema":1}' >>"$2"
    shift
done
echo 'a line of the table'
END
done
for name in archive figures report tabulate; do
    program "$folder/build/bin/$name" <<'END'
echo 'done'
END
done
program "$folder/bin/prove" <<'END'
exit 0
END

# gives STATUS WORDS NAME COMMAND...
gives()
{
    local wanted=$1 words=$2 name=$3 status=0 result
    shift 3
    "$@" >"$folder/out" 2>&1 || status=$?
    [ "$status" = "$wanted" ] && grep -qF -- "$words" "$folder/out"
    result=$?
    [ "$result" = 0 ] || sed "s/^/# exit $status: /" "$folder/out"
    ok "$result" "$name"
}

gives 2 "got 'huge', allowed tiny, small, medium, large" 'a tier that is not there' \
    ./run_all.sh --tier huge
gives 2 "got 'x', allowed vocab, dispatch, checkpoint, optimizer" 'a family that is not there' ./run_all.sh --only=x
gives 2 'unknown option --fast' 'an unknown option' ./run_all.sh --fast
gives 2 'value missing' 'a value that is missing' ./run_all.sh --gates
gives 2 'give one of them' 'two modes' ./run_all.sh --quick --full
gives 0 'Usage' '--help' ./run_all.sh --help
[ ! -e "$RUNS" ]
ok $? 'none of them made a folder'

gives 0 'the table of claims' 'a run ends with the claims, exit 0' ./run_all.sh --quick
run=$(echo "$RUNS"/*)
[ -s "$run/run.txt" ] && [ -s "$run/records/vocab-1.jsonl" ] && [ -s "$run/claims.txt" ] &&
    grep -q '^tier: tiny' "$run/run.txt"
ok $? 'its folder holds the run, the records and the claims'
grep -q 'report: ok' "$folder/out" && grep -q "the page of this run: $run/report.html" "$folder/out"
ok $? 'it made a page and says where'
[ "$(grep -c '^\[' "$folder/out")" = "$(sed 1d "$run/steps.tsv" | wc -l)" ]
ok $? 'every step has a plain line and stands in steps.tsv'

VOCAB_STATUS=1 gives 1 'FAILED: vocab-1' 'a failing program is told, exit 1' \
    ./run_all.sh --quick --gates none --only vocab
grep -q 'the table of claims' "$folder/out"
ok $? 'and the steps after it run'
VOCAB_STATUS=3 gives 3 'FAILED' 'something missing is exit 3' ./run_all.sh --quick --gates none --only vocab
MAKE_STATUS=2 gives 3 'FAILED: build' 'a build that fails ends the run' ./run_all.sh --quick

# ---- a run that failed is taken up -------------------------------------------------------------------

rm -rf "$RUNS"
VOCAB_STATUS=1 ./run_all.sh --quick --gates none --only vocab >"$folder/out" 2>&1
run=$(echo "$RUNS"/*)
grep -qF -- "--resume $run" "$folder/out"
ok $? 'a failed run says how to take it up'
gives 0 'build: done before' '--resume leaves out what ended well' ./run_all.sh --resume "$run"
grep -q '^\[.*vocab-1$' "$folder/out" && ! grep -q 'dispatch' "$folder/out" &&
    [ -e "$run/records/vocab-1.jsonl.interrupted" ] && [ "$(wc -l <"$run/records/vocab-1.jsonl")" = 1 ]
ok $? 'and runs what failed, of the same families, into fresh files'
[ "$(cut -f 1 "$run/steps.tsv" | sort | uniq -d)" = '' ] &&
    [ "$(awk -F '\t' 'NR > 1 && $2 != 0' "$run/steps.tsv")" = '' ]
ok $? 'after which every step stands there once, and well'
grep -q 'the table of claims' "$folder/out" && ! grep -q '\(claims\|report\|plots\|history\): done before' "$folder/out"
ok $? 'and what is made of all of it is made again'
grep -q '^resumed_at: ' "$run/run.txt"
ok $? 'and run.txt says at which commit'
gives 0 'claims: done before' 'a run that ended well stays as it is' ./run_all.sh --resume "$run"
gives 2 'allowed a folder that run_all.sh wrote' '--resume of another folder' ./run_all.sh \
    --resume "$folder/bin"
gives 2 'give no other' '--resume with other options' ./run_all.sh --resume "$run" --tier tiny
if command -v flock >/dev/null; then
    exec 8>"$run/lock"
    flock 8
    gives 2 'is being written by another' 'two in one folder' ./run_all.sh --resume "$run"
    exec 8>&-
else
    count=$((count + 1))
    echo "ok $count - two in one folder # SKIP no flock here"
fi

# ---- places that cannot be written -------------------------------------------------------------------

touch "$folder/file"
RUNS=$folder/file/runs gives 3 'cannot be made' 'a folder of runs that cannot be made' ./run_all.sh --quick
mkdir "$folder/full"
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=64k tmpfs "$folder/full" 2>/dev/null; then
    trap 'umount "$folder/full"; rm -rf "$folder"' EXIT
    head -c 1M /dev/zero >"$folder/full/zeros" 2>/dev/null
    RUNS=$folder/full/runs gives 3 'run_all.sh: ' 'a full disk' ./run_all.sh --quick --gates none --only vocab
    truncate -s 40k "$folder/full/zeros"
    RUNS=$folder/full/runs ./run_all.sh --quick --gates none --only vocab >"$folder/out" 2>&1
    status=$?
    [ "$status" = 1 ] || [ "$status" = 3 ]
    ok $? "a disk that fills up in the middle ends the run with a failure (exit $status)"
else
    for name in 'a full disk' 'a disk that fills up in the middle'; do
        count=$((count + 1))
        echo "ok $count - $name # SKIP nothing can be mounted here"
    done
fi

# ---- side by side, and Ctrl-C ------------------------------------------------------------------------

rm -rf "$RUNS"
./run_all.sh --quick --only vocab >"$folder/first" 2>&1 &
first=$!
./run_all.sh --quick --only vocab >"$folder/second" 2>&1
status=$?
wait "$first" && [ "$status" = 0 ] && [ "$(find "$RUNS" -mindepth 1 -maxdepth 1 | wc -l)" = 2 ]
ok $? 'two runs side by side have a folder each'

# A job in the background ignores Ctrl-C, so the run is started by a shell that does not.
rm -rf "$RUNS"
VOCAB_WAITS=$folder/waits perl -e '
    $SIG{INT} = "DEFAULT";
    setpgrp(0, 0);
    exec "./run_all.sh", "--quick", "--gates", "none", "--only", "vocab";' >"$folder/out" 2>&1 &
group=$!
for _ in $(seq 100); do
    [ -e "$folder/waits" ] || sleep 0.1
done
kill -INT -- "-$group"
wait "$group"
status=$?
[ "$status" = 130 ]
ok $? "Ctrl-C exits 130 (got $status)"
grep -q 'a line of the table' "$(echo "$RUNS"/*)"/tables/vocab-1.txt &&
    [ -s "$(echo "$RUNS"/*)/records/vocab-1.jsonl" ] && grep -q interrupted "$folder/out"
ok $? 'and keeps the line that was being made'
gives 0 'vocab-plan: done before' 'an interrupted run is taken up' ./run_all.sh --resume "$(echo "$RUNS"/*)"
echo "1..$count"
