/* The bars of whole operators, from records. */
#include "bench/harness/bars.h"
#include <math.h>
#include <string.h>
#include "bench/harness/evidence.h"
#include "bench/harness/units.h"
#include "ops/adamw.h"
#include "probe/record.h"

#define PIPELINED_BAR 1.00 /* of llep's throughput, at least */
#define FLOOR_BAR 1.10     /* times the floor, at most */

static double number(const json_t *record, const char *path)
{
    const json_t *value = rec_get(record, path);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static bool is_of(const json_t *record, const char *op, const char *impl)
{
    return !strcmp(evidence_text(record, "op"), op) && !strcmp(evidence_text(record, "impl"), impl);
}

/* A GPU's own time. */
static bool is_timed(const json_t *record)
{
    return evidence_is_gpu(record) && !strstr(evidence_text(record, "device"), "emulator") &&
           !strcmp(evidence_text(record, "time.kind"), "measured") &&
           number(record, "time.median_s") > 0;
}

static const char *shared_note(const json_t *record)
{
    return strstr(evidence_text(record, "device"), "shared-gpu") ? ", shared-gpu" : "";
}

/* ---- beside the ceilings --------------------------------------------------------------------- */

int bars_read_ceilings(const char *path, struct bar_ceilings *ceilings, char *error, int size)
{
    json_error_t at;
    json_t *read = json_load_file(path, 0, &at);
    if (!json_is_object(read)) {
        snprintf(error, (size_t)size, "%s: %s", path, read ? "not an object" : at.text);
        json_decref(read);
        return -1;
    }
    const struct {
        const char *name;
        double *to;
    } members[] = {{"h2d_bytes_per_s", &ceilings->h2d_bytes_per_s},
        {"d2h_bytes_per_s", &ceilings->d2h_bytes_per_s},
        {"both_bytes_per_s", &ceilings->both_bytes_per_s},
        {"f32_flops_per_s", &ceilings->f32_flops_per_s},
        {"bf16_flops_per_s", &ceilings->bf16_flops_per_s}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const json_t *value = json_object_get(read, members[i].name);
        *members[i].to = json_is_number(value) ? json_number_value(value) : 0;
    }
    json_decref(read);
    return 0;
}

/* GPUs that the record's ranks had. */
static double gpus_of(const json_t *record)
{
    double ranks = number(record, "config.ranks"), gpus = number(record, "env.gpu.count");
    return isfinite(gpus) && gpus < ranks ? gpus : ranks;
}

static void print_share(const json_t *record, const struct bar_ceilings *ceilings, FILE *out)
{
    char rate[32], unit[16];
    bool fast = !strcmp(evidence_text(record, "config.gemm"), "fast");
    double ceiling = fast ? ceilings->bf16_flops_per_s : ceilings->f32_flops_per_s;
    double value = number(record, "throughput.value");
    snprintf(unit, sizeof unit, "%s", evidence_text(record, "throughput.unit"));
    if (!isfinite(value) || strcmp(unit, "FLOP/s") != 0)
        return;
    units_rate(value, "FLOP/s", rate, sizeof rate);
    fprintf(out, "%s %s%s: %s", evidence_text(record, "op"), evidence_text(record, "impl"),
        shared_note(record), rate);
    if (ceiling > 0 && gpus_of(record) > 0)
        fprintf(out, ", %.1f %% of the %s rate", 100 * value / (ceiling * gpus_of(record)),
            fast ? "BF16" : "FP32");
    fputc('\n', out);
}

/* ---- the bars -------------------------------------------------------------------------------- */

static void count_bar(struct bar_counts *counts, bool met, FILE *out)
{
    counts->met += met;
    counts->missed += !met;
    fprintf(out, ": %s\n", met ? "met" : "MISSED");
}

/* What of a record's configuration tells its shape apart from the others'. */
static void print_shape(const json_t *record, FILE *out)
{
    static const char *const keys[] = {"routing", "chunk_budget", "tokens", "params", "slots"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = json_object_get(json_object_get(record, "config"), keys[i]);
        if (json_is_string(value))
            fprintf(out, " %s=%s", keys[i], json_string_value(value));
        else if (json_is_number(value))
            fprintf(out, " %s=%.0f", keys[i], json_number_value(value));
    }
}

static void judge_pipelined(const json_t *records, FILE *out, struct bar_counts *counts)
{
    int pairs = 0;
    for (size_t i = 0; i < json_array_size(records); i++) {
        const json_t *pipelined = json_array_get(records, i);
        for (size_t j = 0; j < json_array_size(records); j++) {
            const json_t *llep = json_array_get(records, j);
            if (!is_of(pipelined, "dispatch", "pipelined-llep") ||
                !is_of(llep, "dispatch", "llep") || !is_timed(pipelined) || !is_timed(llep) ||
                strcmp(evidence_text(pipelined, "config.gemm"), "fast") != 0 ||
                !evidence_same_shape(pipelined, llep))
                continue;
            double share = number(llep, "time.median_s") / number(pipelined, "time.median_s");
            pairs++;
            fprintf(out, "bar pipelined-llep over llep:");
            print_shape(pipelined, out);
            fprintf(out, "%s: %.3f times its throughput, bar %.2f", shared_note(pipelined), share,
                PIPELINED_BAR);
            count_bar(counts, share >= PIPELINED_BAR, out);
        }
    }
    if (!pairs) {
        counts->not_judged++;
        fprintf(
            out, "bar pipelined-llep over llep: not judged: no two records on a GPU's fast path\n");
    }
}

/* The larger direction over the link, of all ranks that share it; `from` says whose pace it has.
 * What comes down is the state alone, so never more than goes up. */
static double link_floor_s(
    const json_t *record, const struct bar_ceilings *ceilings, const char **from)
{
    bool on_host = !strcmp(evidence_text(record, "config.gradients"), "host-f32");
    double bytes = (double)ADAMW_STATE_BYTES + (on_host ? sizeof(float) : 0);
    double sharers = number(record, "config.ranks") / gpus_of(record);
    *from = "the link's ceiling";
    if (ceilings->both_bytes_per_s > 0)
        return sharers * number(record, "config.params") * bytes / ceilings->both_bytes_per_s;
    *from = "its own copies";
    return number(record, "figures.floor_s");
}

/* Of one shape the fastest count of slots is judged: with one slot nothing can overlap. */
static bool is_beaten(const json_t *records, const json_t *record)
{
    static const char *const shape[] = {
        "device", "config.params", "config.ranks", "config.bucket", "config.gradients"};
    for (size_t i = 0; i < json_array_size(records); i++) {
        const json_t *other = json_array_get(records, i);
        bool same = is_of(other, "optimizer", "offload-stream") && is_timed(other);
        for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
            const json_t *a = rec_get(record, shape[k]), *b = rec_get(other, shape[k]);
            same = same && ((!a && !b) || json_equal(a, b));
        }
        if (same && number(other, "time.median_s") < number(record, "time.median_s"))
            return true;
    }
    return false;
}

static void judge_offload(const json_t *records, const struct bar_ceilings *ceilings, FILE *out,
    struct bar_counts *counts)
{
    int judged = 0;
    for (size_t i = 0; i < json_array_size(records); i++) {
        const json_t *record = json_array_get(records, i);
        const char *from;
        if (!is_of(record, "optimizer", "offload-stream") || !is_timed(record) ||
            is_beaten(records, record))
            continue;
        double times = number(record, "time.median_s") / link_floor_s(record, ceilings, &from);
        if (!isfinite(times))
            continue;
        judged++;
        fprintf(out, "bar offload-stream over its floor:");
        print_shape(record, out);
        fprintf(out, "%s: %.3f times the floor of %s, bar %.2f", shared_note(record), times, from,
            FLOOR_BAR);
        count_bar(counts, times <= FLOOR_BAR, out);
    }
    if (!judged) {
        counts->not_judged++;
        fprintf(out, "bar offload-stream over its floor: not judged: no record on a GPU\n");
    }
}

struct bar_counts bars_print(const json_t *records, const struct bar_ceilings *ceilings, FILE *out)
{
    struct bar_counts counts = {0, 0, 0};
    for (size_t i = 0; i < json_array_size(records); i++)
        if (is_timed(json_array_get(records, i)))
            print_share(json_array_get(records, i), ceilings, out);
    judge_pipelined(records, out, &counts);
    judge_offload(records, ceilings, out, &counts);
    return counts;
}
