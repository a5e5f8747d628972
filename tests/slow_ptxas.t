#!/bin/sh
# No CUDA kernel spills a register, on any architecture. Reads the reports that ptxas left beside the
# objects (`make cuda`), and first proves that it would see a spill. A stack without a spill is an array
# of the source, such as the router's list of chosen experts.
set -u
: "${BUILDDIR:=build}"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

count=0
failed=0
ok() # ok STATUS NAME
{
    count=$((count + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $count - $2"
    else
        echo "not ok $count - $2"
        failed=$((failed + 1))
    fi
}

# Prints every kernel of the report that spills; fails when one does, and when the report leaves one
# out.
unspilled()
{
    awk '
        /Compiling entry function/ {
            name = $0
            sub(/^[^\047]*\047/, "", name)
            gsub(/\047/, "", name)
            kernels++
        }
        /bytes stack frame/ {
            told++
            if ($0 !~ /, 0 bytes spill stores, 0 bytes spill loads/) {
                print "# " name ":" $0
                wrong = 1
            }
        }
        END {
            if (told < kernels) {
                print "# " kernels + 0 " kernels, " told + 0 " reports"
                wrong = 1
            }
            exit wrong
        }' "$1"
}

report() # report FILE FRAME
{
    printf '%s\n' "ptxas info    : Compiling entry function 'k' for 'sm_90'" \
        "ptxas info    : Function properties for k" "$2" "ptxas info    : Used 9 registers" >"$1"
}
report "$work/good" '    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads'
unspilled "$work/good"
ok $? 'a kernel without a spill passes'
report "$work/spill" '    8 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads'
! unspilled "$work/spill" >"$work/said" && [ -s "$work/said" ]
ok $? 'a spill is seen'
report "$work/untold" ''
! unspilled "$work/untold" >/dev/null
ok $? 'a kernel without a report is seen'

for source in kernels/*.cu; do
    reported=$BUILDDIR/cuda/${source%.cu}.ptxas
    if [ ! -f "$reported" ]; then
        count=$((count + 1))
        echo "ok $count - $source # SKIP not compiled here (make cuda)"
        continue
    fi
    unspilled "$reported"
    ok $? "$source: no spill in $(grep -c 'Compiling entry' "$reported") kernels"
done

echo "1..$count"
[ "$failed" -eq 0 ]
