# shellcheck shell=sh
# What the scripts of this folder share: their options, how they run programs, how records are joined.
# Read by them with '.', never run.
#
# A script runs programs with `run` and `plan`, which leave records, and ends with `tabulate`, whose
# input says which printed figure stands against which of a record (bench/harness/table.h). Scripts
# compute nothing.

table_name=$(basename "$0" .sh)

table_usage()
{
    sed -n '2,/^[^#]/s/^#\( \|$\)//p' "$0"
    cat <<END
Options:
  --device sim[:PROFILE]|cuda   where programs run; default sim:h200-8. cuda: on this machine's GPUs
                                as well, beside the simulated figures
  --csv                         print CSV in place of the aligned table
  --save FOLDER                 leave the records in FOLDER/$table_name.jsonl, which must not exist
  --from FOLDER                 run nothing, take the records of FOLDER/$table_name.jsonl
  --help                        this page

BUILDDIR names the build folder; default build.

Exit status: 0 the table is printed and what shapes alone decide equals the printed digits, 1 it does
not, 2 bad option, 3 a program is missing or failed.
END
}

table_fail()
{
    echo "$table_name.sh: $2" >&2
    exit "$1"
}

# from_caller PATH: as seen from the folder that the script was called in.
from_caller()
{
    case $1 in
    /*) echo "$1" ;;
    *) echo "$table_caller/$1" ;;
    esac
}

# where_to_run DEVICE
where_to_run()
{
    case $1 in
    sim) ;;
    sim:?*) table_profile=${1#sim:} ;;
    cuda) table_cuda=yes ;;
    *) table_fail 2 "option --device: got '$1', allowed sim[:PROFILE], cuda" ;;
    esac
}

table_start()
{
    table_profile=h200-8 table_cuda='' table_csv='' table_save='' table_from=''
    while [ $# -gt 0 ]; do
        case $1 in
        --*=*)
            table_word=$1
            shift
            set -- "${table_word%%=*}" "${table_word#*=}" "$@"
            continue
            ;;
        --csv) table_csv=--csv ;;
        --help) table_usage && exit 0 ;;
        --device | --save | --from)
            [ $# -gt 1 ] || table_fail 2 "option $1: needs a value"
            case $1 in
            --device) where_to_run "$2" ;;
            --save) table_save=$(from_caller "$2") ;;
            --from) table_from=$(from_caller "$2") ;;
            esac
            shift
            ;;
        *) table_fail 2 "option $1: unknown; allowed --device, --csv, --save, --from, --help" ;;
        esac
        shift
    done
    table_programs=${BUILDDIR:-build}/bin
    table_folder=$(mktemp -d) || table_fail 3 "no temporary folder"
    trap 'rm -rf "$table_folder"' EXIT
    trap 'exit 130' INT TERM
    table_records=$table_folder/$table_name.jsonl
    if [ -n "$table_save" ]; then
        table_records=$table_save/$table_name.jsonl
        mkdir -p "$table_save" || table_fail 3 "$table_save cannot be made"
        [ ! -e "$table_records" ] || table_fail 2 "option --save: $table_records exists"
    fi
    [ -z "$table_from" ] || table_records=$table_from/$table_name.jsonl
}

# execute PROGRAM OPTION...: appends its records. A bound that does not hold ends the table too.
execute()
{
    table_program=$1
    shift
    [ -x "$table_programs/$table_program" ] ||
        table_fail 3 "$table_programs/$table_program is missing; run make"
    "$table_programs/$table_program" "$@" --json "$table_records" >"$table_folder/log" 2>&1 && return
    table_status=$?
    [ "$table_status" -lt 128 ] || exit "$table_status"
    return 1
}

# plan PROGRAM OPTION...: arithmetic on shapes, on no device.
plan()
{
    [ -z "$table_from" ] || return 0
    execute "$@" && return
    sed 's/^/  /' "$table_folder/log" >&2
    table_fail 3 "$table_program failed"
}

# run PROGRAM OPTION...: on the simulated machine, and where asked on GPUs. What they cannot run is said
# and stays "not run".
run()
{
    [ -z "$table_from" ] || return 0
    run_on=$1
    shift
    plan "$run_on" --device "sim:$table_profile" --oom record "$@"
    [ -z "$table_cuda" ] || execute "$run_on" --device cuda --oom record "$@" ||
        sed "s/^/$table_name.sh: not run on cuda: /" "$table_folder/log" >&2
}

# tabulate <DESCRIPTION
tabulate()
{
    [ -r "$table_records" ] || table_fail 3 "$table_records cannot be read"
    "$table_programs/tabulate" ${table_csv:+"$table_csv"} - "$table_records"
}

set -u
# Numbers have a point here, whatever the caller's language: awk reads and writes them by the locale.
export LC_ALL=C
table_caller=$PWD
cd "$(dirname "$0")/../.." || exit 3
table_start "$@"
