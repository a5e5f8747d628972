# shellcheck shell=bash disable=SC2154 # variables of run_all.sh
# What run_all.sh makes of what was measured: tables of the papers, timelines, plots, the history, claims
# and the page. Read by run_all.sh with '.', never run. Each function is one step.

# ---- tables ------------------------------------------------------------------------------------------

# table_step NAME: the table as text and as CSV, and its records beside the measured ones.
table_step()
{
    local options=(--save "$run/records")
    [ "$device" = cpu ] || options+=(--device "$device")
    BUILDDIR=$build quiet "$1" "bench/tables/$1.sh" "${options[@]}" &&
        cp "$run/logs/$1.log" "$run/tables/$1.txt" &&
        BUILDDIR=$build "bench/tables/$1.sh" --from "$run/records" --csv \
            >"$run/tables/$1.csv" 2>>"$run/logs/$1.log"
}

# Eq. 6 is arithmetic: no records, and its CSV is a plot's.
budget_step()
{
    BUILDDIR=$build quiet eq_06 bench/tables/eq_06.sh &&
        cp "$run/logs/eq_06.log" "$run/tables/eq_06.txt" &&
        BUILDDIR=$build bench/tables/eq_06.sh --csv >"$run/csv/budget.csv"
}

# Tables of a family, with the seconds they take on two cores.
tables_of()
{
    case $1 in
    vocab) echo table_02:1 table_10:1 table_11:1 ;;
    dispatch)
        echo table_08:5 table_09:2 figure_08:3 table_06:6 table_07:15 relay_table_02:1 relay_figure_16:5 \
            relay_figure_17:5 relay_or_llep:20 relay_figure_09:60 relay_figure_10:150
        ;;
    checkpoint) echo table_03_12:1 table_13:1 ;;
    optimizer) echo table_04_14:1 figure_05:1 ;;
    composed) echo figure_06_07:6 ;;
    esac
}

# plan_tables FAMILY (composed: of all of them in one step): the longest are left to the longer modes.
plan_tables()
{
    local table longest=30
    case $mode in
    quick) longest=6 ;;
    full) longest=600 ;;
    esac
    for table in $(tables_of "$1"); do
        [ "${table#*:}" -le "$longest" ] || continue
        plan_step "${table#*:}" "${table%:*}" table_step "${table%:*}"
    done
}

# ---- timelines ---------------------------------------------------------------------------------------

# trace FAMILY IMPLEMENTATION KIND OPTION...
trace()
{
    local name=$1 impl=$2 kind=$3
    shift 3
    "$(program "$name")" --impl "$impl" "$@" --trace "$run/traces/$name.$impl.$kind.json"
}

# The papers' shapes on the simulated device: the standard schedule and the one that replaces it.
trace_all()
{
    local family status=0
    local dispatch=(--device sim:h200-8 --ranks 8 --tokens 64K --hidden 7168 --ffn 2048 --experts 128
        --topk 8 --routing 80/16 --dtype bf16)
    local vocab=(--device sim:h200-8 --ranks 8 --tokens 16K --hidden 7168 --vocab 200000)
    local checkpoint=(--device sim:h200-8 --layers 47 --tokens 69632 --hidden 2880 --ffn 2880
        --dtype bf16)
    local optimizer=(--device sim:h200-8 --model gpt-oss-20b --world 8)
    for family in "${families[@]}"; do
        wanted "$family" || continue
        case $family in
        vocab)
            trace vocab materialized simulated "${vocab[@]}" &&
                trace vocab ring-dtp simulated "${vocab[@]}"
            ;;
        dispatch)
            trace dispatch llep simulated "${dispatch[@]}" &&
                trace dispatch pipelined-llep simulated "${dispatch[@]}" --chunk-budget 6554 \
                    --max-chunks 10
            ;;
        checkpoint)
            trace checkpoint resident simulated "${checkpoint[@]}" &&
                trace checkpoint sco simulated "${checkpoint[@]}" --host-budget 16G
            ;;
        optimizer)
            trace optimizer staged simulated "${optimizer[@]}" --bucket 100e6 &&
                trace optimizer offload-stream simulated "${optimizer[@]}" --bucket 100e6 --slots 2
            ;;
        esac || status=$?
    done
    return "$status"
}

traces_step()
{
    quiet traces trace_all
}

# ---- history, plots, claims, page --------------------------------------------------------------------

# One file a run, written once: runs side by side touch no common file.
history_step()
{
    mkdir -p "$history" && quiet history "$(program archive)" --part history \
        --out "$history/$(basename "$run").jsonl" "$run/records"
}

draw()
{
    "$(program figures)" --out "$run/csv" --traces "$run/traces" --history "$history" "$run/records" &&
        plots/draw.sh "$run/csv" "$run/plots"
}

plots_step()
{
    quiet plots draw
    # What was skipped, once a tool.
    sed -n 's/^plots: skipped: [^:]*: /plots skipped: /p' "$run/logs/plots.log" | sort | uniq -c |
        sed 's/^ *\([0-9]*\) plots skipped: /run_all.sh: \1 plots are skipped: /'
}

claims_step()
{
    "$(program claims)" --tables "$run/tables" "$run/records" >"$run/claims.txt" 2>/dev/null
    shown claims "$(program claims)" --print summary --tables "$run/tables" --save "$run/claims.tsv" \
        "$run/records"
    echo "run_all.sh: every claim with its verdict: $run/claims.txt"
}

report_step()
{
    quiet report "$(program report)" "$run" && echo "run_all.sh: the page of this run: $run/report.html"
}

plan_evidence()
{
    local family
    for family in "${families[@]}"; do
        if wanted "$family"; then
            plan_tables "$family"
        fi
    done
    [ -n "$only" ] || plan_tables composed
    plan_step 1 eq_06 budget_step
    plan_step 4 traces traces_step
    plan_step 1 history history_step
    plan_step 9 plots plots_step
    plan_step 1 claims claims_step
    plan_step 1 report report_step
}
