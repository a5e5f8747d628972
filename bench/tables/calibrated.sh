#!/bin/sh
# How far the simulated device's times are from measured ones, where both can be had: every
# implementation of every family at small shapes on this machine's cores, predicted from a profile of
# calibrate and measured on the cpu device.
#
# Usage: bench/tables/calibrated.sh [OPTION]...
#
#   --profile FILE  of this machine, written by calibrate; default: calibrate measures one first
#   --csv           print CSV in place of the aligned table
#   --save FILE     leave the programs' CSV lines in FILE, which must not exist
#   --from FILE     run nothing, take the lines of FILE
#   --help          this page
#
# A line's ratio is predicted / measured, its error |ratio - 1|. Below the table: the errors' median
# and worst, by family and in all; the median ratio, which is what the whole machine was faster or slower
# than its profile, and the errors without it; and of the pairs of implementations at one shape whose
# measured times are more than 10 % apart, how many the model ranks as they were measured. What else
# runs on the machine is in the measured times: run it on a quiet one.
#
# BUILDDIR names the build folder; default build. all.sh measures nothing and leaves this one out.
#
# Exit status: 0 the table is printed, 2 bad option, 3 a program is missing or failed.
set -u
# Numbers have a point here, whatever the caller's language: awk reads and writes them by the locale.
export LC_ALL=C

fail()
{
    echo "calibrated.sh: $2" >&2
    exit "$1"
}

profile='' csv='' save='' from=''
while [ $# -gt 0 ]; do
    case $1 in
    --*=*)
        word=$1
        shift
        set -- "${word%%=*}" "${word#*=}" "$@"
        continue
        ;;
    --help)
        sed -n '2,/^[^#]/s/^#\( \|$\)//p' "$0"
        exit 0
        ;;
    --csv) csv=yes ;;
    --profile | --save | --from)
        [ $# -gt 1 ] || fail 2 "option $1: needs a value"
        file=$2
        case $file in /*) ;; *) file=$PWD/$file ;; esac
        case $1 in
        --profile) profile=$file ;;
        --save) save=$file ;;
        --from) from=$file ;;
        esac
        shift
        ;;
    *) fail 2 "option $1: unknown; allowed --profile, --csv, --save, --from, --help" ;;
    esac
    shift
done
[ -z "$profile" ] || [ -r "$profile" ] || fail 2 "option --profile: $profile cannot be read"
[ -z "$from" ] || [ -r "$from" ] || fail 2 "option --from: $from cannot be read"
[ -z "$save" ] || [ ! -e "$save" ] || fail 2 "option --save: $save exists"
cd "$(dirname "$0")/../.." || exit 3
programs=${BUILDDIR:-build}/bin
folder=$(mktemp -d) || fail 3 "no temporary folder"
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM

# execute PROGRAM OPTION...: its output goes to the folder's log.
execute()
{
    program=$1
    shift
    "$programs/$program" "$@" >"$folder/log" 2>&1 && return
    sed 's/^/  /' "$folder/log" >&2
    fail 3 "$program failed"
}

# both PROGRAM OPTION...: one shape of all implementations, simulated and measured.
both()
{
    program=$1
    shift
    execute "$program" --device "sim:$profile" --ranks "$ranks" --csv "$@"
    cat "$folder/log" >>"$lines"
    execute "$program" --device cpu --ranks "$ranks" --check off --iters 11 --warmup 2 --csv "$@"
    cat "$folder/log" >>"$lines"
}

measure()
{
    for program in calibrate vocab dispatch checkpoint optimizer; do
        [ -x "$programs/$program" ] || fail 3 "$programs/$program is missing; run make"
    done
    if [ -z "$profile" ]; then
        profile=$folder/here.conf
        execute calibrate --out "$profile"
    fi
    ranks=$(awk '$1 == "ranks" { print $3 }' "$profile")
    for dtype in f32 bf16; do
        both vocab --impl all --tokens 512 --hidden 512 --vocab 8K --dtype $dtype
        both dispatch --impl all --tokens 512 --hidden 512 --ffn 512 --experts 8 --topk 2 --chunk-budget 256 \
            --dtype $dtype
        both checkpoint --impl all --layers 4 --tokens 512 --hidden 512 --ffn 1K --dtype $dtype
    done
    both optimizer --impl all --params 8M --bucket 1M
}

lines=$from
if [ -z "$lines" ]; then
    lines=${save:-$folder/lines}
    measure
fi

awk -F , -v csv="$csv" '
# Sorts value[1..count].
function sort(value, count,    i, j, kept) {
    for (i = 2; i <= count; i++) {
        kept = value[i]
        for (j = i - 1; j > 0 && value[j] > kept; j--)
            value[j + 1] = value[j]
        value[j + 1] = kept
    }
}
function median(value, count) {
    sort(value, count)
    return (value[int((count + 1) / 2)] + value[int(count / 2) + 1]) / 2
}
# Errors of the lines of a family, "" = of all, from ratios of `usual`: median and worst.
function summarise(family, name, usual,    i, count, error, middle) {
    for (i = 1; i <= lines; i++)
        if (family == "" || index(line[i], family ",") == 1)
            error[++count] = ratio[i] > usual ? ratio[i] / usual - 1 : 1 - ratio[i] / usual
    middle = median(error, count)
    printf "%-16s %3d lines: error %5.1f %% in the median, %5.1f %% at worst\n", name, count, 100 * middle,
        100 * error[count]
}
# Commas within quotes separate nothing.
/"/ {
    while (match($0, /"[^"]*"/)) {
        quoted = substr($0, RSTART + 1, RLENGTH - 2)
        gsub(/,/, ";", quoted)
        $0 = substr($0, 1, RSTART - 1) quoted substr($0, RSTART + RLENGTH)
    }
}
$1 == "op" {
    split("", column)
    for (i = 1; i <= NF; i++)
        column[$i] = i
    typed = "dtype" in column
    next
}
{
    key = $1 "," $2 "," (typed && $column["dtype"] != "" ? $column["dtype"] : "f32")
    if ($column["status"] != "ok")
        next
    if ($3 ~ /^sim:/)
        predicted[key] = $column["median_s"]
    else if (key in predicted) {
        line[++lines] = key
        measured[lines] = $column["median_s"]
        spread[lines] = ($column["q3_s"] - $column["q1_s"]) / $column["median_s"]
        ratio[lines] = predicted[key] / $column["median_s"]
    }
}
END {
    if (!lines)
        exit 1
    if (csv)
        print "op,impl,dtype,predicted_s,measured_s,ratio"
    else
        printf "Predicted and measured times\n\n%-11s %-17s %-5s %13s %12s %6s\n", "family",
            "implementation", "dtype", "predicted ms", "measured ms", "ratio"
    for (i = 1; i <= lines; i++) {
        split(line[i], part, ",")
        if (csv)
            printf "%s,%.6g,%.6g,%.4f\n", line[i], predicted[line[i]], measured[i], ratio[i]
        else
            printf "%-11s %-17s %-5s %13.3f %12.3f %6.2f\n", part[1], part[2], part[3],
                1e3 * predicted[line[i]], 1e3 * measured[i], ratio[i]
        for (j = 1; j < i; j++) {
            split(line[j], other, ",")
            if (part[1] != other[1] || part[3] != other[3])
                continue
            far = measured[i] / measured[j]
            if (far > 1.1 || far < 1 / 1.1) {
                pairs++
                alike += (far > 1) == (predicted[line[i]] > predicted[line[j]])
            }
        }
    }
    if (csv)
        exit 0
    print ""
    for (i = 1; i <= lines; i++) {
        split(line[i], part, ",")
        if (!(part[1] in seen))
            summarise(part[1], part[1], 1)
        seen[part[1]] = 1
    }
    summarise("", "all", 1)
    for (i = 1; i <= lines; i++)
        sorted[i] = ratio[i]
    usual = median(sorted, lines)
    summarise("", sprintf("all over %.2f", usual), usual)
    printf "%d of %d pairs ranked as measured; quartiles of the measured samples %.1f %% apart in the median\n",
        alike, pairs, 100 * median(spread, lines)
}' "$lines" || fail 3 "no line was both simulated and measured"
