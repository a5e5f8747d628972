/* Results of ranks in other processes come home over the ranks' own communicator, outside the clock
 * and after memory and traffic have been noted. */
#include "bench/harness/job.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/report.h"
#include "bench/harness/units.h"
#include "device/launch.h"
#include "probe/host.h"
#include "probe/trace.h"

/* ---- the command line ------------------------------------------------------------------------ */

int job_setup(
    struct options *parsed, const int64_t *ranks, int64_t ranks_per_process, double timeout_s)
{
    int per_process = ranks_per_process > 0 ? (int)ranks_per_process : 1;
    if (!launch_started() && ranks_per_process < 0)
        return -1;
    if (!launch_by_launcher())
        return options_refuse(
            parsed, "ranks-per-process", "has no effect without a launcher: --ranks are threads");
    launch_set_ranks_per_process(per_process);
    launch_set_timeout(timeout_s);
    options_default_count(parsed, "ranks", launch_ranks());
    for (options_rewind(parsed); options_next(parsed);) {
        if (*ranks != launch_ranks())
            return options_refuse(parsed, "ranks", "got %lld, allowed %d (%d process%s of %d)",
                (long long)*ranks, launch_ranks(), launch_processes(),
                launch_processes() > 1 ? "es" : "", per_process);
    }
    options_rewind(parsed);
    return -1;
}

int job_threads(int64_t threads)
{
    if (!launch_started())
        return (int)threads;
    int64_t own = threads * launch_ranks_per_process() / launch_node_ranks();
    return own > 1 ? (int)own : 1;
}

/* ---- on a rank ------------------------------------------------------------------------------- */

int job_collect_written(struct rank *rank, void *array, int64_t at_bytes, int64_t bytes)
{
    return comm_host_collect(rank->comm, array, at_bytes, bytes);
}

int job_collect(struct rank *rank, void *array, int64_t at_bytes, const void *block, int64_t bytes)
{
    dev_read(rank->dev, (char *)array + at_bytes, block, bytes);
    return job_collect_written(rank, array, at_bytes, bytes);
}

/* The first of its process's ranks, which writes for them all. */
static bool is_first_here(const struct rank *rank)
{
    return rank->index % launch_ranks_per_process() == 0;
}

int job_gather_ranks(const struct rank *rank, struct case_result *result)
{
    if (!launch_started())
        return 0;
    struct case_rank *all = malloc((size_t)rank->count * sizeof *all);
    int status =
        all ? comm_host_all_gather(rank->comm, &result->ranks[rank->index], all, sizeof *all) : -1;
    for (int r = 0; status == 0 && is_first_here(rank) && r < rank->count; r++) {
        if (r / launch_ranks_per_process() != launch_process())
            result->ranks[r] = all[r];
    }
    free(all);
    return status;
}

int job_gather_samples(
    const struct rank *rank, const struct timing *own, struct case_result *result)
{
    if (!launch_started())
        return 0;
    size_t bytes = (size_t)own->count * sizeof *own->samples_s;
    double *all = malloc((size_t)rank->count * bytes + 1);
    int status = all ? comm_host_all_gather(rank->comm, own->samples_s, all, (int64_t)bytes) : -1;
    if (status == 0 && rank->index == 0) {
        free(result->rank_samples_s);
        result->rank_samples_s = all;
        result->rank_sample_count = own->count;
        return 0;
    }
    free(all);
    return status;
}

/* ---- between groups -------------------------------------------------------------------------- */

bool job_fits(double total_bytes, const char *hint, struct case_result *result)
{
    char need[32], have[32];
    int64_t limit = host_memory_limit_bytes();
    double share = (double)launch_node_ranks() / (double)launch_ranks();
    double here = launch_started() ? total_bytes * share : total_bytes;
    bool fits = limit <= 0 || here <= (double)limit;
    if (launch_all(fits))
        return true;
    snprintf(need, sizeof need, "%.1f GiB", total_bytes / 0x1p30);
    units_bytes(limit, have, sizeof have);
    result->status = CASE_OOM;
    snprintf(result->reason, sizeof result->reason, "all ranks together need %s, %s has %s%s", need,
        fits ? "a host that holds some of them has less than its share; this one" : "this machine",
        have, hint);
    return false;
}

/* ---- on the main process --------------------------------------------------------------------- */

void job_write_trace(
    const struct case_options *common, const struct trace *trace, struct report *report)
{
    if (!launch_is_main() || !trace || !common->trace)
        return;
    if (trace_write(trace, common->trace))
        report_failure(report, EXIT_ENVIRONMENT, "--trace: cannot write %s", common->trace);
}

static json_t *rank_json(int rank)
{
    const struct dev_place *gpu = launch_gpu(rank);
    json_t *object =
        json_pack("{s:i, s:i}", "node", launch_node(rank), "local_rank", launch_local_rank(rank));
    if (object && gpu)
        json_object_set_new(
            object, "gpu", json_pack("{s:i, s:s}", "ordinal", gpu->ordinal, "bus", gpu->bus));
    return object;
}

json_t *job_json(void)
{
    if (!launch_started())
        return NULL;
    json_t *hosts = json_array(), *ranks = json_array();
    for (int r = 0; r < launch_ranks(); r++) {
        if (launch_node(r) == (int)json_array_size(hosts))
            json_array_append_new(hosts, json_string(launch_host(r)));
        json_array_append_new(ranks, rank_json(r));
    }
    return json_pack("{s:s, s:i, s:i, s:i, s:o, s:o}", "messages", launch_library(), "processes",
        launch_processes(), "ranks_per_process", launch_ranks_per_process(), "nodes",
        launch_node_count(), "hosts", hosts, "ranks", ranks);
}

void job_name_ranks(FILE *out, const struct case_result *result)
{
    int slowest = case_slowest_rank(result), fullest = case_fullest_rank(result, WINDOW_PASS);
    if (!launch_started() || (slowest < 0 && fullest < 0))
        return;
    fputs("    ", out);
    if (slowest >= 0)
        fprintf(out, "slowest: rank %d on %s%s", slowest, launch_host(slowest),
            fullest >= 0 ? "; " : "");
    if (fullest >= 0)
        fprintf(out, "fullest: rank %d on %s", fullest, launch_host(fullest));
    fputc('\n', out);
}
