/* The bars of whole operators, from records whose figures are set by hand: met, missed and not
 * judged, and the ceilings' file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/bars.h"
#include "probe/record.h"
#include "tests/scratch.h"
#include "tests/tap.h"

static json_t *make_record(const char *op, const char *impl, const char *device, double median_s)
{
    json_t *record = rec_create();
    rec_str(record, "op", op);
    rec_str(record, "impl", impl);
    rec_str(record, "device", device);
    rec_str(record, "status", "ok");
    rec_int(record, "config.ranks", 8);
    rec_int(record, "env.gpu.count", strstr(device, "shared") ? 1 : 8);
    rec_str(record, "time.kind", "measured");
    rec_real(record, "time.median_s", median_s);
    return record;
}

static json_t *make_dispatch(
    const char *impl, const char *device, const char *gemm, const char *routing, double median_s)
{
    json_t *record = make_record("dispatch", impl, device, median_s);
    rec_str(record, "config.gemm", gemm);
    rec_str(record, "config.routing", routing);
    if (!strcmp(impl, "pipelined-llep"))
        rec_int(record, "config.chunk_budget", 8192);
    rec_real(record, "throughput.value", 4e14 / median_s);
    rec_str(record, "throughput.unit", "FLOP/s");
    return record;
}

static json_t *make_optimizer(const char *device, int64_t slots, double median_s, double floor_s)
{
    json_t *record = make_record("optimizer", "offload-stream", device, median_s);
    rec_str(record, "config.gradients", "host-f32");
    rec_int(record, "config.params", 400000000);
    rec_int(record, "config.slots", slots);
    rec_real(record, "figures.floor_s", floor_s);
    return record;
}

/* Prints the bars of the records, which it takes over; true when the counts are these and the text
 * holds `line`. */
static bool says(
    json_t *records, const struct bar_ceilings *ceilings, struct bar_counts want, const char *line)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    struct bar_counts got = bars_print(records, ceilings, out);
    fclose(out);
    bool right = got.met == want.met && got.missed == want.missed &&
                 got.not_judged == want.not_judged && strstr(text, line);
    if (!right)
        tap_note("%d met, %d missed, %d not judged; no '%s' in:\n%s", got.met, got.missed,
            got.not_judged, line, text);
    free(text);
    json_decref(records);
    return right;
}

#define GPU "cuda:NVIDIA H200"
static const struct bar_ceilings none;
static const struct bar_ceilings ceilings = {
    .both_bytes_per_s = 50e9, .f32_flops_per_s = 5e13, .bf16_flops_per_s = 7e14};

static json_t *two(json_t *a, json_t *b)
{
    json_t *records = json_array();
    json_array_append_new(records, a);
    json_array_append_new(records, b);
    return records;
}

static json_t *dispatches(const char *device, const char *gemm, double llep_s, double pipelined_s)
{
    return two(make_dispatch("llep", device, gemm, "80/4", llep_s),
        make_dispatch("pipelined-llep", device, gemm, "80/4", pipelined_s));
}

static void test_pipelined(void)
{
    tap_ok(says(dispatches(GPU, "fast", 0.2, 0.19), &none, (struct bar_counts){1, 0, 1},
               "bar pipelined-llep over llep: routing=80/4 chunk_budget=8192: 1.053 times its "
               "throughput, bar 1.00: met\n"),
        "faster than llep meets the bar");
    tap_ok(says(dispatches(GPU, "fast", 0.2, 0.21), &none, (struct bar_counts){0, 1, 1},
               "0.952 times its throughput, bar 1.00: MISSED\n"),
        "slower misses it");
    tap_ok(says(dispatches(GPU " shared-gpu", "fast", 0.2, 0.2), &none,
               (struct bar_counts){1, 0, 1}, "8192, shared-gpu: 1.000 times"),
        "ranks that share a GPU are named");
    tap_ok(says(dispatches(GPU, "exact", 0.2, 0.19), &none, (struct bar_counts){0, 0, 2},
               "bar pipelined-llep over llep: not judged"),
        "exact products are not judged");
    tap_ok(says(dispatches("cuda:CUDA emulator on a CPU", "fast", 0.2, 0.19), &none,
               (struct bar_counts){0, 0, 2}, "not judged"),
        "nor is an emulated GPU");
    json_t *other = two(make_dispatch("llep", GPU, "fast", "balanced", 0.2),
        make_dispatch("pipelined-llep", GPU, "fast", "80/4", 0.1));
    tap_ok(says(other, &none, (struct bar_counts){0, 0, 2}, "not judged"),
        "nor are records of two shapes");
}

static void test_offload(void)
{
    json_t *records = two(make_optimizer(GPU, 1, 0.2, 0.1), make_optimizer(GPU, 3, 0.110, 0.1));
    tap_ok(says(records, &none, (struct bar_counts){1, 0, 1},
               "bar offload-stream over its floor: params=400000000 slots=3: 1.100 times the floor "
               "of its own copies, bar 1.10: met\n"),
        "the fastest count of slots is judged; without ceilings by its own copies");
    /* 400e6 parameters of 16 bytes at 50 GB/s: 128 ms. */
    records = two(make_optimizer(GPU, 2, 0.1281, 0.2), make_optimizer("cpu", 2, 0.01, 0.2));
    tap_ok(says(records, &ceilings, (struct bar_counts){1, 0, 1},
               "1.001 times the floor of the link's ceiling, bar 1.10: met\n"),
        "with ceilings by the link; another device is not judged");
    records = two(make_optimizer(GPU, 2, 0.1409, 0.2), make_optimizer(GPU, 1, 0.1410, 0.2));
    tap_ok(says(records, &ceilings, (struct bar_counts){0, 1, 1},
               "1.101 times the floor of the link's ceiling, bar 1.10: MISSED\n"),
        "more than a tenth above it is missed");
    /* Eight ranks over one link take eight times as long. */
    records = two(make_optimizer(GPU " shared-gpu", 2, 1.03, 0.2),
        make_optimizer(GPU " shared-gpu", 1, 1.2, 0.2));
    tap_ok(says(records, &ceilings, (struct bar_counts){1, 0, 1}, "shared-gpu: 1.006 times"),
        "ranks that share a GPU share its link");
}

static void test_shares(void)
{
    /* 2e15 FLOP/s of 8 x 7e14. */
    tap_ok(says(dispatches(GPU, "fast", 0.2, 0.2), &ceilings, (struct bar_counts){1, 0, 1},
               "dispatch pipelined-llep: 2.000 PFLOP/s, 35.7 % of the BF16 rate\n"),
        "each timed record stands beside the ceiling of its work");
    tap_ok(says(dispatches(GPU, "exact", 2, 2), &ceilings, (struct bar_counts){0, 0, 2},
               "dispatch llep: 200.0 TFLOP/s, 50.0 % of the FP32 rate\n"),
        "exact products beside the FP32 rate");
}

static void test_ceilings(void)
{
    struct scratch scratch;
    struct bar_ceilings read;
    char path[512], error[256];
    if (!tap_ok(!!scratch_create(&scratch), "a folder"))
        return;
    snprintf(path, sizeof path, "%s/ceilings.json", scratch.folder);
    FILE *file = fopen(path, "w");
    fputs("{\"both_bytes_per_s\": 5e10, \"bf16_flops_per_s\": 7e14}", file);
    fclose(file);
    tap_ok(!bars_read_ceilings(path, &read, error, sizeof error) && read.both_bytes_per_s == 5e10 &&
               read.bf16_flops_per_s == 7e14 && read.f32_flops_per_s == 0,
        "ceilings are read, what is not there is 0");
    file = fopen(path, "w");
    fputs("{\"both", file);
    fclose(file);
    tap_ok(bars_read_ceilings(path, &read, error, sizeof error) && strstr(error, path),
        "a file that is cut is refused: %s", error);
    scratch_remove(&scratch);
}

int main(void)
{
    test_pipelined();
    test_offload();
    test_shares();
    test_ceilings();
    return tap_done();
}
