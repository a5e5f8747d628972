#!/bin/sh
# Installs what the build needs with the system's package manager: as root, or through sudo; else
# prints the exact line to run. Does nothing, and needs no network, when all is there.
#
# Usage: make deps, or sh make/deps.sh on a machine without make.
# Beside what is needed (a C compiler, make, prove, jansson, xxhash) it installs MPFR, for the
# exhaustive proofs of `make check-full`, OpenBLAS, for `make bench-peers`, and gnuplot and matplotlib,
# for the plots. CUDA and MPI are used where they are found (`make showconfig`) and never installed.
set -eu

debian='gcc g++ make perl git libjansson-dev libxxhash-dev libmpfr-dev libopenblas-dev gnuplot-nox
    python3-matplotlib'
fedora='gcc gcc-c++ make perl-Test-Harness git jansson-devel xxhash-devel mpfr-devel openblas-devel
    gnuplot-minimal python3-matplotlib'
arch='gcc make perl git jansson xxhash mpfr openblas gnuplot python-matplotlib'

# missing QUERY... -- PACKAGE...: the packages for which QUERY PACKAGE fails.
missing()
{
    query=
    while [ "$1" != -- ]; do
        query="$query $1"
        shift
    done
    shift
    for package; do
        $query "$package" >/dev/null 2>&1 || printf '%s ' "$package"
    done
}

debian_installed()
{
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Package lists are words, hence unquoted.
# shellcheck disable=SC2086
if command -v apt-get >/dev/null 2>&1; then
    packages=$(missing debian_installed -- $debian)
    update='apt-get update -q'
    install='env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends'
elif command -v dnf >/dev/null 2>&1; then
    packages=$(missing rpm -q -- $fedora)
    update=
    install='dnf install -y'
elif command -v pacman >/dev/null 2>&1; then
    packages=$(missing pacman -Q -- $arch)
    update=
    install='pacman -S --needed --noconfirm'
else
    echo "deps: no apt-get, dnf or pacman here. Install with what there is:" \
        "a C compiler, make, perl's prove, jansson and xxhash (with headers); MPFR, OpenBLAS" >&2
    exit 1
fi

if [ -z "$packages" ]; then
    echo 'deps: nothing is missing'
    exit 0
fi
packages=${packages% }

if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    as_root='sudo '
else
    echo 'deps: not root, and sudo is not usable here. Run as root:' >&2
    echo "    ${update:+$update && }$install $packages" >&2
    exit 1
fi

echo "deps: installing $packages"
# shellcheck disable=SC2086
[ -z "$update" ] || $as_root$update
# shellcheck disable=SC2086
$as_root$install $packages
