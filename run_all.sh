#!/usr/bin/env bash
# The main job: builds, runs the gates, measures every family at a named tier of fixed shapes, reproduces
# the papers' tables at full shape on the simulated device, draws the plots, holds the claims against all
# of it and makes one page. Everything goes to a folder of its own under results/runs; nothing there is
# ever overwritten, and two runs side by side touch no common file.
# shellcheck disable=SC2317,SC2034 # steps are called by their names, and use what is set here
set -uo pipefail
cd "$(dirname "$0")" || exit 3

usage()
{
    cat <<'END'
Usage: ./run_all.sh [--quick | --full] [OPTION]...
       ./run_all.sh --resume RUN
Builds, runs the gates, measures, and sets the papers' claims beside our figures.

  --quick          smoke tests, the smallest shapes: under 2 minutes with the build on 2 cores
  (neither)        all tests, shapes chosen by the machine: about 10 minutes on 2 cores
  --full           also BF16, more ranks, and 5 launches of every case (for bin/compare)
  --tier NAME      tiny, small, medium or large, whatever the machine is
  --gates NAME     none, smoke or all; default smoke with --quick, else all
  --only FAMILY    one family alone: vocab, dispatch, checkpoint or optimizer
  --device NAME    cpu or cuda; default cpu. The papers' tables are simulated either way, and with cuda
                   measured beside that
  --resume RUN     take a run up that was interrupted or failed: what ended well is not run again
  --help           this page

Tiers (chosen by cores and by the memory that the cgroup allows):
  tiny             with --quick, or below 2 cores or 4 GiB
  small            from 2 cores and 4 GiB
  medium           from 16 cores and 32 GiB
  large            from 64 cores and 128 GiB

Environment: BUILDDIR (build), RUNS (results/runs), HISTORY (results/history), GNUPLOT, PYTHON.
Output: RUNS/ID/ with report.html, run.txt (machine, tier, commit), steps.tsv, records/*.jsonl,
tables/*.txt and *.csv, plots/*.svg and *.png, traces/*.json, logs/*.log, claims.txt and claims.tsv.
Ctrl-C finishes the line that is being measured, keeps what is there and exits 130.

Exit status: 0 all fine; 1 a gate, check, bound or verdict failed; 2 bad option; 3 something is missing
here; 130 interrupted.
END
}

refuse()
{
    echo "run_all.sh: $*" >&2
    exit 2
}

# shellcheck source=bench/run/steps.sh
. bench/run/steps.sh
# shellcheck source=bench/run/families.sh
. bench/run/families.sh
# shellcheck source=bench/run/evidence.sh
. bench/run/evidence.sh

# ---- options -----------------------------------------------------------------------------------------

command_line=("$0" "$@")
mode=default tier='' gates='' only='' device=cpu resume=''
families=(vocab dispatch checkpoint optimizer)

# take_value OPTION VALUE...: sets `value`.
take_value()
{
    [ "$#" -ge 2 ] || refuse "option $1: value missing"
    value=$2
}

# one_of OPTION VALUE ALLOWED...
one_of()
{
    local option=$1 given=$2 allowed
    shift 2
    for allowed; do
        [ "$given" != "$allowed" ] || return 0
    done
    refuse "option $option: got '$given', allowed $(printf '%s, ' "$@" | sed 's/, $//')"
}

set_mode()
{
    [ "$mode" = default ] || refuse "option --$1: --$mode was given too; give one of them"
    mode=$1
}

while [ "$#" -gt 0 ]; do
    case $1 in
    --*=*)
        argument=$1
        shift
        set -- "${argument%%=*}" "${argument#*=}" "$@"
        continue
        ;;
    --quick) set_mode quick ;;
    --full) set_mode full ;;
    --tier | --gates | --only | --device | --resume)
        take_value "$@"
        case $1 in
        --tier) one_of "$1" "$value" tiny small medium large && tier=$value ;;
        --gates) one_of "$1" "$value" none smoke all && gates=$value ;;
        --only) one_of "$1" "$value" "${families[@]}" && only=$value ;;
        --device) one_of "$1" "$value" cpu cuda && device=$value ;;
        --resume) resume=$value ;;
        esac
        shift
        ;;
    --help)
        usage
        exit 0
        ;;
    *) refuse "unknown option $1; --help lists the options" ;;
    esac
    shift
done
[ -z "$resume" ] || [ "${#command_line[@]}" -le 3 ] ||
    refuse 'option --resume: a run is taken up with the options that it was started with; give no other'

# ---- the machine -------------------------------------------------------------------------------------

# Cores this process may use: affinity, and the cgroup's quota.
cores()
{
    local allowed quota period
    allowed=$(nproc)
    if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [ "$quota" != max ]; then
        quota=$(((quota + period - 1) / period))
        [ "$quota" -ge "$allowed" ] || allowed=$quota
    fi
    echo "$allowed"
}

memory_gib()
{
    local bytes limit file
    bytes=$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) * 1024))
    for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
        limit=$(cat "$file" 2>/dev/null) || continue
        # The old interface says "no limit" with a number of 19 digits.
        case $limit in
        max | ???????????????????*) ;;
        *) [ "$limit" -ge "$bytes" ] || bytes=$limit ;;
        esac
    done
    echo $((bytes / 1024 / 1024 / 1024))
}

machine_cores=$(cores)
machine_gib=$(memory_gib)

choose_tier()
{
    if [ "$mode" = quick ]; then
        echo tiny
    elif [ "$machine_cores" -ge 64 ] && [ "$machine_gib" -ge 128 ]; then
        echo large
    elif [ "$machine_cores" -ge 16 ] && [ "$machine_gib" -ge 32 ]; then
        echo medium
    elif [ "$machine_cores" -ge 2 ] && [ "$machine_gib" -ge 4 ]; then
        echo small
    else
        echo tiny
    fi
}

runs=${RUNS:-results/runs}
history=${HISTORY:-results/history}
build=${BUILDDIR:-build}
if [ -n "$resume" ]; then
    run=${resume%/}
    take_up
    lock_folder
    mode=$(from_run mode) tier=$(from_run tier) gates=$(from_run gates)
    only=$(from_run only) device=$(from_run device)
else
    [ -n "$tier" ] || tier=$(choose_tier)
    [ -n "$gates" ] || { [ "$mode" = quick ] && gates=smoke || gates=all; }
    make_folder
    lock_folder
fi
launches=1
[ "$mode" != full ] || launches=5
# How much longer than with --quick the families take.
measure_seconds=1
[ "$mode" = quick ] || measure_seconds=5
# Recorded in every record's environment.
export FLATPEAK_TIER=$tier

describe_run()
{
    echo "command: ${command_line[*]}"
    echo "mode: $mode"
    echo "tier: $tier"
    echo "gates: $gates"
    echo "only: $only"
    echo "device: $device"
    echo "cores: $machine_cores"
    echo "memory_gib: $machine_gib"
    echo "started: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    echo "commit: $(git rev-parse HEAD 2>/dev/null || echo none)"
    echo "uncommitted: $(git status --porcelain 2>/dev/null | wc -l) files"
}

# ---- build and gates ---------------------------------------------------------------------------------

# One test of each room, and the accepted peaks, counts and bits: minutes less than all of them.
smoke=(memory timing record device comm options compare vocab_order moe_route adamw)

build_step()
{
    quiet build make BUILDDIR="$build" programs
}

smoke_gates()
{
    local name present=()
    for name in "${smoke[@]}"; do
        [ ! -e "tests/test_$name.c" ] || present+=("$name")
    done
    make BUILDDIR="$build" check ONLY="${present[*]}" &&
        BUILDDIR="$build" prove tests/accepted.t
}

gates_step()
{
    case $gates in
    smoke) quiet gates smoke_gates ;;
    all) quiet gates make BUILDDIR="$build" check ;;
    esac
}

# ---- all of it ---------------------------------------------------------------------------------------

wanted()
{
    [ -z "$only" ] || [ "$only" = "$1" ]
}

trap 'interrupted=1' INT TERM
if [ -n "$resume" ]; then
    # What runs from here on may be of another state of the tree.
    describe_run | sed -n 's/^started: /resumed: /p; s/^commit: /resumed_at: /p' >>"$run/run.txt"
else
    describe_run >"$run/run.txt"
fi || missing_here "$run/run.txt: cannot be written"
echo "run_all.sh: $mode, tier $tier ($machine_cores cores, $machine_gib GiB), $run"

plan_step 40 build build_step
case $gates in
smoke) plan_step 20 gates gates_step ;;
all) plan_step 240 gates gates_step ;;
esac
for family in "${families[@]}"; do
    if wanted "$family"; then
        "plan_$family"
    fi
done
plan_evidence
[ -z "$resume" ] || forget_stale
run_steps
finish
