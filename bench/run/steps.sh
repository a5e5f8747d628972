# shellcheck shell=bash disable=SC2154 # variables of run_all.sh
# The steps of run_all.sh: what is done is written down, so that a run can be looked at, told about and
# taken up again. Read by run_all.sh with '.', never run.
#
# A run is a folder. steps.tsv has one line for every step that ended: name, exit status, seconds, log.
# A step leaves all that it makes under names of its own, and none of them before it ran: what an
# interrupted step left behind is put aside when it runs again.

declare -A done_before=()
failures=()
worst=0
interrupted=0
step_number=0
step_count=0
seconds_left=0
seconds_done=0

# ---- the run's folder --------------------------------------------------------------------------------

missing_here()
{
    echo "run_all.sh: $*" >&2
    exit 3
}

# mkdir fails when the folder is there: whoever makes it owns it.
make_folder()
{
    mkdir -p "$runs" || missing_here "$runs: cannot be made"
    run=$runs/$(date -u +%Y%m%dT%H%M%SZ)-$$
    while ! mkdir "$run" 2>/dev/null; do
        [ -e "$run" ] || missing_here "$run: cannot be made"
        run=$run-again
    done
    mkdir "$run/records" "$run/tables" "$run/logs" "$run/traces" "$run/csv" "$run/plots" ||
        missing_here "$run: has no room"
    printf 'step\tstatus\tseconds\tlog\n' >"$run/steps.tsv" || missing_here "$run: has no room"
}

# One at a time works in a folder. Without flock nobody is kept out.
lock_folder()
{
    exec 9>"$run/lock" || missing_here "$run/lock: cannot be written"
    command -v flock >/dev/null 2>&1 || return 0
    flock -n 9 || refuse "option --resume: $run is being written by another run_all.sh"
}

# Takes up $run: steps that ended well are not run again.
take_up()
{
    local name status rest
    if [ ! -r "$run/run.txt" ] || [ ! -r "$run/steps.tsv" ]; then
        refuse "option --resume: got '$run', allowed a folder that run_all.sh wrote"
    fi
    while IFS=$'\t' read -r name status rest; do
        [ "$status" != 0 ] || done_before[$name]=$name$'\t'$status$'\t'$rest
    done <"$run/steps.tsv" || missing_here "$run/steps.tsv: cannot be read"
}

# Of a run that is taken up: what is made of all steps before it is made again when one of them runs
# again, and only what stays done keeps its line. Called when the folder is locked and all is planned.
forget_stale()
{
    local name stale=0 lines=$'step\tstatus\tseconds\tlog'
    for name in "${step_names[@]}"; do
        case $name in
        history | plots | claims | report) [ "$stale" = 0 ] || unset "done_before[$name]" ;;
        esac
        if [ -n "${done_before[$name]:-}" ]; then
            lines+=$'\n'${done_before[$name]}
        else
            stale=1
        fi
    done
    { echo "$lines" >"$run/steps.tsv.new" && mv "$run/steps.tsv.new" "$run/steps.tsv"; } ||
        missing_here "$run/steps.tsv: cannot be written"
}

# from_run KEY: what run.txt says of it.
from_run()
{
    sed -n "s/^$1: //p" "$run/run.txt" | head -n 1
}

# ---- failures ----------------------------------------------------------------------------------------

# 1 (something failed) outranks 3 (something is missing). A command of ours that exits 2 or dies is a
# failure.
note_failure()
{
    failures+=("$1 (exit $2, $3)")
    echo "run_all.sh: FAILED: $1 (exit $2)" >&2
    if [ "$2" = 3 ]; then
        [ "$worst" = 1 ] || worst=3
    else
        worst=1
    fi
}

finish()
{
    local failure
    echo
    if [ "$interrupted" = 1 ]; then
        echo "run_all.sh: interrupted; what was finished is in $run" >&2
        echo "run_all.sh: ./run_all.sh --resume $run takes it up again" >&2
        exit 130
    fi
    for failure in "${failures[@]}"; do
        echo "run_all.sh: FAILED: $failure" >&2
    done
    [ ${#failures[@]} = 0 ] || echo "run_all.sh: ./run_all.sh --resume $run runs what failed again" >&2
    echo "run_all.sh: $SECONDS s, everything is in $run"
    exit "$worst"
}

# ---- one step ----------------------------------------------------------------------------------------

# Steps are listed first, so that it is known how many there are and how long they take on the machine
# that the numbers are from: two cores, nothing built.
#
# plan_step SECONDS NAME FUNCTION...
step_names=() step_seconds=() step_commands=()
plan_step()
{
    step_seconds+=("$1")
    step_names+=("$2")
    shift 2
    step_commands+=("$*")
}

duration()
{
    if [ "$1" -ge 90 ]; then echo "$((($1 + 30) / 60)) min"; else echo "$1 s"; fi
}

# "[ 3/20]", and on a terminal how long the rest takes, by how this machine did until here.
heading()
{
    local left=''
    if [ -t 1 ] && [ -z "${CI:-}" ]; then
        left=$seconds_left
        [ "$seconds_done" -lt 10 ] || left=$((seconds_left * (SECONDS + 1) / seconds_done))
        left=", about $(duration "$left") left"
    fi
    printf '[%2d/%d%s] %s' "$step_number" "$step_count" "$left" "$1"
}

# A step that is run a second time must not add to what it left the first time.
put_aside()
{
    local file
    for file in "$run/records/$1.jsonl" "$run/tables/$1.txt"; do
        [ ! -e "$file" ] || mv "$file" "$file.interrupted"
    done
}

# ended NAME STATUS SECONDS LOG
ended()
{
    printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$run/steps.tsv" ||
        note_failure "$1: $run/steps.tsv has no room" 3 "$run/steps.tsv"
    [ "$2" = 0 ] || note_failure "$1" "$2" "$run/$4"
}

# quiet NAME COMMAND...: output to logs/NAME.log, its end on the terminal when it fails.
quiet()
{
    local name=$1 log=logs/$1.log status=0 start=$SECONDS
    shift
    heading "$name"
    "$@" >"$run/$log" 2>&1 || status=$?
    if [ "$interrupted" = 1 ]; then
        finish
    elif [ "$status" = 0 ]; then
        echo ": ok, $((SECONDS - start)) s"
    else
        echo ": FAILED, $((SECONDS - start)) s"
        tail -n 40 "$run/$log"
    fi
    ended "$name" "$status" "$((SECONDS - start))" "$log"
    return "$status"
}

# shown NAME COMMAND...: output to the terminal and to tables/NAME.txt.
shown()
{
    local name=$1 file=tables/$1.txt start=$SECONDS results
    shift
    echo
    heading "$name"
    echo
    # tee outlives Ctrl-C, so that the program can finish its line.
    "$@" | tee -i "$run/$file"
    results=("${PIPESTATUS[@]}")
    [ "${results[0]}" != 130 ] || interrupted=1
    [ "$interrupted" = 0 ] || finish
    if [ "${results[0]}" = 0 ] && [ "${results[1]}" != 0 ]; then
        results[0]=3
    fi
    ended "$name" "${results[0]}" "$((SECONDS - start))" "$file"
    return "${results[0]}"
}

# Runs what was planned, leaving out what was done before.
run_steps()
{
    local i words
    step_count=${#step_names[@]}
    for i in "${!step_names[@]}"; do
        seconds_left=$((seconds_left + step_seconds[i]))
    done
    for i in "${!step_names[@]}"; do
        step_number=$((i + 1))
        if [ -n "${done_before[${step_names[i]}]:-}" ]; then
            echo "[$step_number/$step_count] ${step_names[i]}: done before"
        else
            put_aside "${step_names[i]}"
            read -r -a words <<<"${step_commands[i]}"
            "${words[@]}"
            # Nothing can be run that was not built.
            [ "${step_names[i]}" != build ] || [ "$worst" = 0 ] || { worst=3 && finish; }
            seconds_done=$((seconds_done + step_seconds[i]))
        fi
        seconds_left=$((seconds_left - step_seconds[i]))
    done
}
