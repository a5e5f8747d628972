#!/bin/sh
# Probes this machine for what the build can use and prints a makefile fragment: variables for the
# Makefile, and comment lines for `make showconfig`. Called by the Makefile, which exports the
# settings read here (CC, CXX, NVCC, MPICC, CUDA, MPI, the prefixes and the flags made of them).
#
# Missing and needed: a message on stderr and exit 1, so that nothing is cached and the next make
# probes again. Missing and optional: "no" with the reason.
set -u

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

fail()
{
    printf 'configure: %s\n' "$*" >&2
    exit 1
}

variable()
{
    printf '%s := %s\n' "$1" "$2"
}

report()
{
    printf '# %s: %s\n' "$1" "$2"
}

have()
{
    command -v "$1" >/dev/null 2>&1
}

# compiles HEADER [FLAG...]; links HEADER STATEMENT [FLAG...]. Flags are words, hence unquoted.
# shellcheck disable=SC2086
compiles()
{
    printf '#include <%s>\n' "$1" >"$work/probe.c"
    shift
    $CC ${CPPFLAGS-} "$@" -c "$work/probe.c" -o "$work/probe.o" >"$work/log" 2>&1
}

# shellcheck disable=SC2086
links()
{
    printf '#include <stdio.h>\n#include <%s>\nint main(void)\n{\n%s;\nreturn 0;\n}\n' "$1" "$2" \
        >"$work/probe.c"
    shift 2
    $CC ${CPPFLAGS-} "$work/probe.c" ${LDFLAGS-} "$@" -o "$work/probe" >"$work/log" 2>&1
}

# The first number that COMMAND --version prints in its first line.
version_of()
{
    "$1" --version 2>/dev/null | sed -n '1s/[^0-9]*\([0-9][0-9.]*[0-9]\).*/\1/p'
}

# ---- needed ------------------------------------------------------------------------------------------

# shellcheck disable=SC2086
machine=$($CC -dumpmachine 2>/dev/null) ||
    fail "no C compiler: '$CC' does not run (Debian: gcc). Run 'make deps', or give CC=..."
arch=${machine%%-*}
# shellcheck disable=SC2086
compiler=$($CC --version 2>/dev/null | sed -n 1p)
case $arch in
x86_64 | aarch64) ;;
*) compiler="$compiler; not a tested architecture" ;;
esac

# library NAME HEADER STATEMENT FLAGS DEBIAN FEDORA PREFIX_VARIABLE
# Sets `found` to yes or, where only the header is there (a cross compiler), to header.
library()
{
    found=yes
    links "$2" "$3" "$4" && return
    found=header
    compiles "$2" && return
    fail "$1 not found: no $2, or it does not compile (Debian: $5, Fedora: $6)." \
        "Run 'make deps', or give $7=DIR with DIR/include/$2 and DIR/lib/lib$1.so"
}

library jansson jansson.h 'json_t *o = json_object(); json_decref(o)' -ljansson \
    libjansson-dev jansson-devel JANSSON_PREFIX
jansson=$found
library xxhash xxhash.h 'printf("%x", (unsigned)XXH3_128bits("", 0).low64)' -lxxhash \
    libxxhash-dev xxhash-devel XXHASH_PREFIX
xxhash=$found

variable ARCH "$arch"
variable JANSSON "$jansson"
variable XXHASH "$xxhash"
report compiler "$compiler"
report arch "$arch"
report jansson "$jansson${JANSSON_PREFIX:+ ($JANSSON_PREFIX)}"
report xxhash "$xxhash${XXHASH_PREFIX:+ ($XXHASH_PREFIX)}"

# ---- optional ----------------------------------------------------------------------------------------

# tool VARIABLE LABEL COMMAND WHAT-FOR
tool()
{
    if have "$3"; then
        variable "$1" "$3"
        report "$2" "yes ($3 $(version_of "$3"))"
    else
        variable "$1" ""
        report "$2" "no ($3 not found; needed for $4)"
    fi
}

# The CUDA emulator: C++17, and a switch between stacks that is written for x86-64.
emulator_lacks=
if ! have "$CXX"; then
    emulator_lacks="$CXX not found; Debian: g++"
elif [ "$arch" != x86_64 ]; then
    emulator_lacks="for x86_64, not $arch"
elif ! printf '#include <tuple>\nint main() { return 0; }\n' >"$work/probe.cpp" ||
    ! "$CXX" -std=c++17 -ftrivial-auto-var-init=pattern "$work/probe.cpp" -o "$work/probe" \
        >"$work/log" 2>&1; then
    emulator_lacks="$CXX does not compile C++17 with -ftrivial-auto-var-init"
fi
if [ -n "$emulator_lacks" ]; then
    variable EMULATOR ""
    variable EMULATOR_LACKS "$emulator_lacks"
    report 'CUDA emulator' "no ($emulator_lacks)"
else
    variable EMULATOR yes
    report 'CUDA emulator' "yes ($CXX $(version_of "$CXX"))"
fi
tool PROVE prove prove 'make check; Debian: perl'
tool CLANG_FORMAT clang-format clang-format 'make format'
tool GNUPLOT gnuplot gnuplot plots

# The first python3 may be one of the user's without matplotlib, the system's another (plots/draw.sh
# looks in the same places).
matplotlib=
for python in ${PYTHON:-python3 /usr/bin/python3}; do
    if matplotlib=$("$python" -c 'import matplotlib; print(matplotlib.__version__)' 2>/dev/null); then
        break
    fi
done
if [ -n "$matplotlib" ]; then
    variable MATPLOTLIB yes
    report matplotlib "yes ($matplotlib, $python)"
else
    variable MATPLOTLIB ""
    report matplotlib 'no (no python3 can import it; needed for plots; Debian: python3-matplotlib)'
fi

if links mpfr.h 'mpfr_t x; mpfr_init2(x, 60); mpfr_clear(x)' -lmpfr -lgmp; then
    variable MPFR_LIBS '-lmpfr -lgmp'
    report mpfr yes
else
    variable MPFR_LIBS ""
    report mpfr 'no (needed for exhaustive proofs in make check-full; Debian: libmpfr-dev)'
fi

blas_cflags=$(pkg-config --cflags openblas 2>/dev/null) || blas_cflags=
blas_libs=$(pkg-config --libs openblas 2>/dev/null) || blas_libs=-lopenblas
# shellcheck disable=SC2086
if links cblas.h 'printf("%s", openblas_get_config())' $blas_cflags $blas_libs; then
    variable OPENBLAS_CFLAGS "$blas_cflags"
    variable OPENBLAS_LIBS "$blas_libs"
    report openblas yes
else
    variable OPENBLAS_LIBS ""
    report openblas 'no (needed for make bench-peers; Debian: libopenblas-dev)'
fi

# ---- CUDA and MPI: 0, 1 or auto ----------------------------------------------------------------------

find_nvcc()
{
    if [ -n "${NVCC-}" ]; then
        command -v "$NVCC"
    elif have nvcc; then
        command -v nvcc
    elif [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
        echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"
    else
        return 1
    fi
}

case $CUDA in 0 | 1 | auto) ;; *) fail "CUDA=$CUDA: allowed are 0, 1, auto" ;; esac
case $NCCL in 0 | auto) ;; *) fail "NCCL=$NCCL: allowed are 0, auto" ;; esac
case $CUPTI in 0 | auto) ;; *) fail "CUPTI=$CUPTI: allowed are 0, auto" ;; esac
case $MPI in 0 | 1 | auto) ;; *) fail "MPI=$MPI: allowed are 0, 1, auto" ;; esac

# cuda_part VARIABLE LABEL SETTING HEADER STATEMENT FLAG...: a library beside the CUDA runtime.
# Adds what is found to cuda_defines and cuda_libs; missing, it is an error under CUDA=1.
cuda_part()
{
    part_variable=$1 part_label=$2 part_setting=$3 part_header=$4 part_statement=$5
    shift 5
    if [ "$part_setting" = 0 ]; then
        report "$part_label" "no ($part_variable=0)"
    elif links "$part_header" "$part_statement" "-I$cuda_root/include" "-L$cuda_library" \
        "-I$cuda_root/extras/CUPTI/include" "-L$cuda_root/extras/CUPTI/lib64" "$@"; then
        cuda_defines="$cuda_defines -DHAVE_$part_variable"
        cuda_libs="$cuda_libs $*"
        report "$part_label" yes
    elif [ "$CUDA" = 1 ]; then
        fail "CUDA=1, but $part_header and its library were not found beside $nvcc"
    else
        report "$part_label" "no ($part_header or its library not found)"
    fi
}

cuda_library_folder()
{
    for folder in "$cuda_root/lib64" "$cuda_root/lib" "$cuda_root/targets/$arch-linux/lib"; do
        if [ -e "$folder/libcudart_static.a" ] || [ -e "$folder/libcudart.so" ]; then
            echo "$folder"
            return
        fi
    done
    return 1
}

find_cuda()
{
    known=$("$nvcc" --list-gpu-arch 2>/dev/null)
    architectures=
    for number in 80 90 100; do
        case $known in *compute_"$number"*) architectures="$architectures $number" ;; esac
    done
    [ -n "$architectures" ] || fail "CUDA: $nvcc knows none of sm_80, sm_90, sm_100"
    variable NVCC_FOUND "$nvcc"
    variable CUDA_ARCHITECTURES "${architectures# }"
    release=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    cuda_title="$release,$(printf '%s\n' "$architectures" | sed 's/ / sm_/g')"
}

# What the programs are linked with. With CUDA=auto they get the cuda device only where there is a
# GPU to run it on.
find_cuda_libraries()
{
    cuda_root=$(dirname "$(dirname "$(readlink -f "$(command -v "$nvcc")")")")
    cuda_defines='' cuda_libs=''
    if [ "$CUDA" = auto ] && [ ! -e /dev/nvidiactl ]; then
        variable CUDA_FOUND ""
        report cuda "no ($cuda_title is here, but no GPU; CUDA=1 builds it all the same)"
        return
    fi
    if ! cuda_library=$(cuda_library_folder); then
        [ "$CUDA" = auto ] || fail "CUDA=1, but no libcudart was found under $cuda_root"
        variable CUDA_FOUND ""
        report cuda "no ($cuda_title has no libcudart under $cuda_root)"
        return
    fi
    report cuda "yes ($cuda_title)"
    cuda_part CUBLASLT cublaslt auto cublasLt.h 'printf("%zu", cublasLtGetVersion())' -lcublasLt
    cuda_part NCCL nccl "$NCCL" nccl.h 'int version; ncclGetVersion(&version)' -lnccl
    ! compiles nvtx3/nvToolsExtCudaRt.h "-I$cuda_root/include" || cuda_defines="$cuda_defines -DHAVE_NVTX"
    # Loaded when a run is traced: only its header is needed here.
    cuda_part CUPTI cupti "$CUPTI" cupti.h 'uint32_t version; cuptiGetVersion(&version)' -lcupti
    runtime=-lcudart
    [ ! -e "$cuda_library/libcudart_static.a" ] || runtime='-lcudart_static -ldl -lrt'
    variable CUDA_FOUND yes
    variable CUDA_DEFINES "$cuda_defines -I$cuda_root/extras/CUPTI/include"
    variable CUDA_LIBS "-L$cuda_library -Wl,-rpath,$cuda_library${cuda_libs% -lcupti} $runtime -lstdc++"
}

if [ "$CUDA" = 0 ]; then
    variable NVCC_FOUND ""
    variable CUDA_FOUND ""
    report cuda 'no (CUDA=0)'
elif nvcc=$(find_nvcc); then
    find_cuda
    find_cuda_libraries
elif [ "$CUDA" = 1 ]; then
    fail "CUDA=1, but nvcc was not found in PATH or in \${CUDA_HOME:-/usr/local/cuda}/bin"
else
    variable NVCC_FOUND ""
    variable CUDA_FOUND ""
    report cuda 'no (nvcc not found)'
fi

# mpi_library WRAPPER: true when a program can be built with it. Sets name, which tells libraries
# apart, its flags, and the launcher that goes with it.
mpi_library()
{
    have "$1" || return 1
    # Open MPI's wrapper, then MPICH's and its relatives' (whose first word is the compiler).
    mpi_cflags=$("$1" --showme:compile 2>/dev/null) ||
        mpi_cflags=$("$1" -compile_info 2>/dev/null | sed 's/^[^ ]* //')
    mpi_libs=$("$1" --showme:link 2>/dev/null) ||
        mpi_libs=$("$1" -link_info 2>/dev/null | sed 's/^[^ ]* //')
    # What compiling needs; warnings of its headers are not ours.
    mpi_cflags=$(printf '%s\n' "$mpi_cflags" | tr ' ' '\n' |
        sed -n 's/^-I/-isystem /p; /^-D/p; /^-pthread$/p' | tr '\n' ' ')
    mpi_libs=$(printf '%s\n' "$mpi_libs" | tr ' ' '\n' | sed '/^-I/d' | tr '\n' ' ')
    # shellcheck disable=SC2086
    links mpi.h 'MPI_Request r; MPI_Iallgather(0, 0, MPI_BYTE, 0, 0, MPI_BYTE, MPI_COMM_WORLD, &r)' \
        $mpi_cflags $mpi_libs || return 1
    printf '#include <mpi.h>\n#ifdef OPEN_MPI\nname openmpi\n#elif defined MPICH_VERSION\n' \
        >"$work/name.c"
    printf 'name mpich\n#else\nname other\n#endif\n' >>"$work/name.c"
    # shellcheck disable=SC2086
    name=$($CC $mpi_cflags -E "$work/name.c" 2>/dev/null | sed -n 's/^name //p')
    mpi_run=$(dirname "$(command -v "$1")")/$(basename "$1" | sed 's/cc/run/')
    have "$mpi_run" || mpi_run=
    [ -n "$name" ]
}

mpi_names=
if [ "$MPI" != 0 ]; then
    for wrapper in "${MPICC:-mpicc}" mpicc mpicc.openmpi mpicc.mpich; do
        mpi_library "$wrapper" || continue
        case " $mpi_names " in *" $name "*) continue ;; esac
        mpi_names="$mpi_names $name"
        variable "MPI_CFLAGS_$name" "$mpi_cflags"
        variable "MPI_LIBS_$name" "$mpi_libs"
        variable "MPI_RUN_$name" "$mpi_run"
        report "mpi, $name" "yes ($wrapper${mpi_run:+, $mpi_run})"
    done
fi
# The first is linked into the programs; tests run them with all.
variable MPI_NAMES "${mpi_names# }"
if [ "$MPI" = 0 ]; then
    report mpi 'no (MPI=0)'
elif [ -n "$mpi_names" ]; then
    report mpi "yes ($(echo "$mpi_names" | sed 's/^ //; s/ .*//') in the programs)"
elif [ "$MPI" = 1 ]; then
    fail "MPI=1, but ${MPICC:-mpicc} builds no program (Debian: libopenmpi-dev openmpi-bin)"
else
    report mpi "no (${MPICC:-mpicc} not found, or it builds no program)"
fi
