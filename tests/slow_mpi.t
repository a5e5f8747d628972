#!/usr/bin/env bash
# A message of more than 2 GiB between two processes, under every MPI library of the build. Needs 8
# GiB.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${BUILDDIR:-build}
count=0 failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
available=$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
for library in ${MPI_LAUNCHERS:-}; do
    name=${library%%=*} launcher=${library#*=}
    programs=$build/$name
    [ "$count" -gt 0 ] || programs=$build/tests # the programs' own library comes first
    count=$((count + 1))
    if [ -z "$launcher" ] || [ "$available" -lt 8 ]; then
        echo "ok $count - $name: a message of more than 2 GiB # SKIP no launcher, or less than 8 GiB"
    elif text=$(timeout 300 "$launcher" -np 2 "$programs/mpi_faults" large 2>&1) &&
        grep -q 'a large message: fine' <<<"$text"; then
        echo "ok $count - $name: a message of more than 2 GiB"
    else
        failed=1
        echo "not ok $count - $name: a message of more than 2 GiB"
        sed 's/^/# /' <<<"$text"
    fi
done
if [ "$count" -eq 0 ]; then
    count=1
    echo 'ok 1 - a message of more than 2 GiB # SKIP no MPI in this build'
fi
echo "1..$count"
exit "$failed"
