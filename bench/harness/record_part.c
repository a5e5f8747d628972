/* Copies of records with the members that a gate or a history needs.
 *
 * The exact part is written to a file that people review line by line, so it holds no figure that
 * two runs of one commit could disagree on: no clock, no process size, no machine. */
#include "bench/harness/record_part.h"
#include <string.h>
#include "probe/record.h"

/* Sets to[path] to a copy of from[path], where there is one. */
static void copy_at(json_t *to, const json_t *from, const char *path)
{
    const json_t *value = rec_get(from, path);
    if (value)
        rec_json(to, path, json_deep_copy(value));
}

static json_t *new_part(const json_t *record)
{
    static const char *const identity[] = {"op", "impl", "device", "config", "status", "reason"};
    json_t *part = rec_create();
    for (size_t i = 0; part && i < sizeof identity / sizeof *identity; i++)
        copy_at(part, record, identity[i]);
    return part;
}

/* Members that the machine or the moment decides. */
static void drop_figures_of_the_run(json_t *part)
{
    static const char *const of_memory[] = {"driver_bytes", "rss_peak_bytes"};
    json_t *memory = json_object_get(part, "memory"), *ranks = json_object_get(part, "ranks");
    for (size_t i = 0; i < sizeof of_memory / sizeof *of_memory; i++)
        json_object_del(memory, of_memory[i]);
    for (size_t i = 0; i < json_array_size(ranks); i++)
        json_object_del(json_array_get(ranks, i), "time_s");
}

static bool is_simulated(const json_t *record)
{
    const char *kind = json_string_value(rec_get(record, "time.kind"));
    return kind && !strcmp(kind, "simulated");
}

json_t *record_exact_part(const json_t *record)
{
    static const char *const exact[] = {"check", "memory", "ranks", "traffic", "counts", "plan"};
    static const char *const of_time[] = {"time.kind", "time.median_s", "time.q1_s", "time.q3_s"};
    json_t *part = new_part(record);
    if (!part)
        return NULL;
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        copy_at(part, record, exact[i]);
    drop_figures_of_the_run(part);
    for (size_t i = 0; is_simulated(record) && i < sizeof of_time / sizeof *of_time; i++)
        copy_at(part, record, of_time[i]);
    return part;
}

json_t *record_history_part(const json_t *record)
{
    static const char *const kept[] = {"run.id", "run.time", "run.git", "run.version", "env.cpu",
        "env.cores", "env.isa_used", "check.verdict", "time.kind", "time.median_s", "time.q1_s",
        "time.q3_s", "throughput", "memory.tracked_peak_bytes", "memory.increment_bytes",
        "figures.loss", "figures.bigram_nats", "figures.flops_per_s", "figures.gemm_flops_per_s",
        "figures.executed_flops", "check.outputs.losses.digest", "check.outputs.weights.digest"};
    json_t *part = new_part(record);
    for (size_t i = 0; part && i < sizeof kept / sizeof *kept; i++)
        copy_at(part, record, kept[i]);
    return part;
}
