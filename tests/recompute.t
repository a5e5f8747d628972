#!/bin/sh
# bin/recompute from outside: the choice it prints, and what it refuses.
bin=${BUILDDIR:-build}/bin/recompute
count=0 failed=0

# ok STATUS NAME: STATUS 0 = good
ok()
{
    count=$((count + 1))
    if [ "$1" = 0 ]; then echo "ok $count - $2"; else
        failed=1
        echo "not ok $count - $2"
        printf '%s\n' "$out" | sed 's/^/# /'
    fi
}

# says PATTERN NAME: the last output holds it, and the program succeeded
says()
{
    [ "$status" = 0 ] && printf '%s\n' "$out" | grep -q "$1"
    ok $? "$2"
}

run()
{
    out=$("$bin" "$@" 2>&1)
    status=$?
}

refuses()
{
    pattern=$1
    shift
    run "$@"
    [ "$status" = 2 ] && printf '%s\n' "$out" | grep -q "$pattern"
    ok $? "$*: exit 2, says $pattern"
}

run --budget 8G
says '^layers 0 to 1: all$' 'what is left of the budget goes to the first layers'
says '^layers 3 to 11: context$' 'the best saving per byte is taken in every layer first'
says '^kept 7.939 GiB of a budget of 8.000 GiB; freed 7.617 GiB against keeping all$' \
    'bytes kept and freed'
run --capacity 62e9 --peak 61e9 --layers 3
says 'budget of 953.7 MiB' 'capacity less peak is the budget'
run --capacity 61e9 --peak 62e9
says '^layers 0 to 11: nothing kept$' 'no budget, nothing kept'
if [ -c /dev/full ]; then
    out=$("$bin" --budget 8G 2>&1 >/dev/full)
    [ $? = 3 ] && printf '%s\n' "$out" | grep -q 'could not be written'
    ok $? 'no room for the output is exit 3, and said'
fi
refuses 'budget: not given' --layers 3
refuses 'peak: has no effect' --budget 1G --peak 1G
refuses 'kv-heads: got 8, allowed at most 4' --budget 1G --heads 4 --kv-heads 8
refuses 'layers' --budget 1G --layers 0

echo "1..$count"
exit $failed
