#!/bin/sh
# The arithmetic contract asks for -ffp-contract=off and forbids fast-math (docs/ARITHMETIC.md,
# rule 2). Every object records the flags that it was compiled with; this test reads them back from
# the library and from every program, and first proves that it would see a wrong one.
set -u
: "${BUILDDIR:=build}" "${CC:=cc}"
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

# Prints what is wrong with the recorded flags of FILE; fails when something is, or none are recorded.
# Only C compilations count: the C library's own start files may be in there too.
exact()
{
    readelf -p .GCC.command.line "$1" 2>/dev/null | grep -e '-std=c11' >"$work/recorded"
    awk -v file="$1" '
        {
            contract = ""
            for (i = 1; i <= NF; i++) {
                if ($i ~ /^-ffp-contract=/)
                    contract = $i
                if ($i ~ /^-Ofast$|^-ffast-math$|^-funsafe-math|^-fassociative-math$|^-freciprocal-math$|^-ffinite-math|^-fno-signed-zeros$|^-ffp-model=fast/)
                    wrong = wrong " " $i
            }
            if (contract != "-ffp-contract=off")
                wrong = wrong " " (contract == "" ? "no -ffp-contract" : contract)
        }
        END {
            if (NR == 0)
                wrong = " no recorded flags"
            if (wrong != "")
                print "# " file ":" wrong
            exit wrong != ""
        }' "$work/recorded"
}

# compile NAME FLAG...: an object built with these flags.
compile()
{
    name=$1
    shift
    echo 'float product(float a, float b); float product(float a, float b) { return a * b; }' \
        >"$work/$name.c"
    # CC may be a command with arguments.
    # shellcheck disable=SC2086
    $CC -std=c11 "$@" -frecord-gcc-switches -c "$work/$name.c" -o "$work/$name.o"
}

compile good -O3 -ffp-contract=off
exact "$work/good.o"
ok $? 'an exact object passes'

# refused NAME FLAG...: an object with these flags is seen as wrong.
refused()
{
    compile "$@" || return 1
    ! exact "$work/$1.o" >"$work/said" && [ -s "$work/said" ]
}
refused missing -O3
ok $? 'an object without -ffp-contract=off is refused'
refused contract -O3 -ffp-contract=off -ffp-contract=fast
ok $? 'the last -ffp-contract counts'
refused fast -O3 -ffp-contract=off -ffast-math
ok $? '-ffast-math is refused'
refused ofast -Ofast -ffp-contract=off
ok $? '-Ofast is refused'

for file in "$BUILDDIR"/libflatpeak.a "$BUILDDIR"/bin/*; do
    [ -f "$file" ] || continue
    exact "$file"
    ok $? "$(basename "$file") was built under the contract"
done

# A pragma or an attribute would pass by the flags.
grep -rnE 'FP_CONTRACT|float_control|pragma GCC optimize|optimize *\(|reassociate' \
    --include='*.[ch]' --exclude-dir=tests . >"$work/found"
sed 's/^/# /' "$work/found"
[ ! -s "$work/found" ]
ok $? 'no source changes floating-point semantics by pragma or attribute'

echo "1..$count"
[ "$failed" -eq 0 ]
