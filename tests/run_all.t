#!/usr/bin/env bash
# run_all.sh around programs that only pretend: options, folders, failing steps, Ctrl-C. The tree is
# the real one; `make` and the programs are stand-ins that this test writes.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/bin" "$folder/build/bin"
export RUNS=$folder/runs BUILDDIR=$folder/build PATH=$folder/bin:$PATH
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
*' --help '*) echo '--plan' && exit 0 ;;
*' --plan '*) VOCAB_WAITS= ;;
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

for name in optimizer dispatch checkpoint replay; do
    program "$folder/build/bin/$name" <<'END'
while [ $# -gt 0 ]; do
    [ "$1" != --json ] || echo '{"schema":1}' >>"$2"
    shift
done
echo 'a line of the table'
END
done
program "$folder/build/bin/tabulate" <<'END'
echo 'a table of the paper'
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
[ -s "$run/run.txt" ] && [ -s "$run/records/vocab.jsonl" ] && [ -s "$run/claims.txt" ] &&
    grep -q '^tier: tiny' "$run/run.txt"
ok $? 'its folder holds the run, the records and the claims'

VOCAB_STATUS=1 gives 1 'FAILED: vocab, launch 1' 'a failing program is told, exit 1' \
    ./run_all.sh --quick --gates none
grep -q 'the table of claims' "$folder/out"
ok $? 'and the steps after it run'
VOCAB_STATUS=3 gives 3 'FAILED' 'something missing is exit 3' ./run_all.sh --quick --gates none
MAKE_STATUS=2 gives 3 'FAILED: build' 'a build that fails ends the run' ./run_all.sh --quick

rm -rf "$RUNS"
./run_all.sh --quick >"$folder/first" 2>&1 &
first=$!
./run_all.sh --quick >"$folder/second" 2>&1
status=$?
wait "$first" && [ "$status" = 0 ] && [ "$(find "$RUNS" -mindepth 1 -maxdepth 1 | wc -l)" = 2 ]
ok $? 'two runs side by side have a folder each'

# A job in the background ignores Ctrl-C, so the run is started by a shell that does not.
rm -rf "$RUNS"
VOCAB_WAITS=$folder/waits perl -e '
    $SIG{INT} = "DEFAULT";
    setpgrp(0, 0);
    exec "./run_all.sh", "--quick", "--gates", "none";' >"$folder/out" 2>&1 &
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
    [ -s "$(echo "$RUNS"/*)/records/vocab.jsonl" ] && grep -q interrupted "$folder/out"
ok $? 'and keeps the line that was being made'
echo "1..$count"
