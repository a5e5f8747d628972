#!/bin/sh
# RelayMoE's rule at the paper's shapes, from outside: dispatch --plan, and the table made with it.
build=${BUILDDIR:-build}
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

# shows PATTERN NAME: the last output holds it, and the command succeeded
shows()
{
    [ "$status" = 0 ] && printf '%s\n' "$out" | grep -q "$1"
    ok $? "$2"
}

out=$("$build/bin/dispatch" --plan --impl alltoall,relay --ranks 8 --tokens 60K --hidden 2048 --ffn 2048 \
    --experts 128 --topk 8 --dtype bf16 --volume printed,true 2>&1)
status=$?
shows 'nothing ran: resident .* bound none$' 'a plan runs nothing, and says what has no bound'
shows 'bound [0-9.]* GiB, tokens travel$' 'H2048 at 40K by the printed rule: tokens'
shows 'bound [0-9.]* GiB, experts travel$' 'and by what travels: experts'

out=$(bench/tables/relay_table_02.sh --csv 2>&1)
status=$?
rows=$(printf '%s\n' "$out" | grep -c 'by the printed rule.*the rules disagree')
[ "$status" = 0 ] && [ "$rows" = 7 ]
ok $? "the two rules disagree at 7 of 52 shapes: $rows"
shows 'E384,"*experts, forward"*,MiB,,432,' 'a partition of E384 has 432 MiB'
shows 'E384-K12,.*20K: tokens over experts, printed.*,0.10' 'at 20K its tokens with K = 12 a tenth of a partition'

echo "1..$count"
exit $failed
