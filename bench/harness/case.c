/* The common options, as one table that is copied into each program's struct: only the set of
 * implementations differs from program to program. */
#include "bench/harness/case.h"
#include <stdio.h>
#include <string.h>
#include "bench/harness/dump.h"
#include "bench/harness/gpu.h"
#include "bench/harness/interrupt.h"
#include "bench/harness/job.h"
#include "bench/harness/search.h"
#include "bench/harness/simulate.h"
#include "bench/harness/units.h"
#include "bench/harness/writable.h"
#include "device/launch.h"
#include "kernels/isa.h"

static const char *const dtype_names[] = {"f32", "bf16", NULL};
static const char *const pass_names[] = {"forward", "backward", "both", NULL};
static const char *const stream_names[] = {"overlap", "serial", NULL};
static const char *const gemm_names[] = {"exact", "fast", NULL};             /* enum gemm_path */
static const char *const message_names[] = {"auto", "copies", "nccl", NULL}; /* dev_messages */
static const char *const oom_names[] = {"fail", "record", NULL};

#define AT(field) offsetof(struct case_options, field)

static const struct option common_options[] = {
    {.name = "ranks",
        .kind = OPTION_COUNT,
        .at = AT(ranks),
        .axis = true,
        .column = "ranks",
        .argument = "P",
        .fallback = "1",
        .low = 1,
        .high = 1024,
        .help = "ranks, each with its own device and memory: threads, or as a launcher or a "
                "profile says"},
    {.name = "ranks-per-process",
        .kind = OPTION_COUNT,
        .at = AT(ranks_per_process),
        .role = OPTION_PROTOCOL,
        .argument = "N",
        .default_note = "1",
        .low = 1,
        .high = 128,
        .help = "under mpirun or srun: ranks that are threads of each process"},
    {.name = "dtype",
        .kind = OPTION_NAME,
        .at = AT(dtype),
        .axis = true,
        .column = "dtype",
        .argument = "TYPE",
        .fallback = "f32",
        .names = dtype_names,
        .help = "storage type of inputs, weights and outputs; sums are always FP32"},
    {.name = "pass",
        .kind = OPTION_NAME,
        .at = AT(pass),
        .axis = true,
        .column = "pass",
        .argument = "PASS",
        .fallback = "both",
        .names = pass_names,
        .help = "what is timed; forward runs untimed before backward alone"},
    {.name = "impl",
        .kind = OPTION_NAME,
        .at = AT(impl),
        .role = OPTION_ELSEWHERE,
        .axis = true,
        .fallback = "all",
        .help = "implementations, run in the order of --list"},
    {.name = "device",
        .kind = OPTION_TEXT,
        .at = AT(device_text),
        .role = OPTION_ELSEWHERE,
        .argument = "cpu|sim[:PROFILE]|cuda",
        .fallback = "cpu",
        .help = "where the work runs; sim counts and predicts on a machine of profiles/ (h200-8)"},
    {.name = "threads",
        .kind = OPTION_COUNT,
        .at = AT(threads),
        .axis = true,
        .low = 1,
        .high = 4096,
        .help = "threads that run kernels, all ranks of a host; default: the cores they may use"},
    {.name = "seed",
        .kind = OPTION_COUNT,
        .at = AT(seed),
        .fallback = "1",
        .help = "inputs are a function of (seed, tensor, global index)"},
    {.name = "device-memory",
        .kind = OPTION_BYTES,
        .at = AT(device_memory_bytes),
        .key = "device_memory_bytes",
        .default_note = "no limit; on sim the machine's",
        .unit = "bytes per rank",
        .low = 1,
        .help = "limit of each rank's device memory"},
    {.name = "host-memory",
        .kind = OPTION_BYTES,
        .at = AT(host_memory_bytes),
        .key = "host_memory_bytes",
        .by_impl = true,
        .default_note = "no limit; on sim a rank's share of the machine's",
        .unit = "bytes per rank",
        .low = 1,
        .help = "limit of each rank's pinned host memory"},
    {.name = "link-gbps",
        .kind = OPTION_REALS,
        .at = AT(link_gbps),
        .by_impl = true,
        .argument = "UP[,DOWN]",
        .default_note = "as fast as they go",
        .unit = "1e9 bytes/s",
        .real_low = 1e-6,
        .real_high = 1e6,
        .most = 2,
        .help = "pace of copies host to device, device to host"},
    {.name = "message-gbps",
        .kind = OPTION_REAL,
        .at = AT(message_gbps),
        .by_impl = true,
        .argument = "X",
        .default_note = "as fast as they go",
        .unit = "1e9 bytes/s",
        .real_low = 1e-6,
        .real_high = 1e6,
        .help = "pace of messages between ranks"},
    {.name = "streams",
        .kind = OPTION_NAME,
        .at = AT(streams),
        .axis = true,
        .by_impl = true,
        .argument = "HOW",
        .fallback = "overlap",
        .names = stream_names,
        .help = "serial puts every stream's work on one: what overlap gains"},
    {.name = "messages",
        .kind = OPTION_NAME,
        .at = AT(messages),
        .argument = "HOW",
        .fallback = "auto",
        .names = message_names,
        .help = "on cuda: nccl, or copies, by way of the hosts between processes, where ranks may "
                "share a GPU; auto: nccl where none shares"},
    {.name = "gemm",
        .kind = OPTION_NAME,
        .at = AT(gemm),
        .column = "gemm",
        .argument = "HOW",
        .fallback = "exact",
        .names = gemm_names,
        .help = "products of the timed passes; on cuda, in BF16, fast (tensor cores) where it is "
                "proved at the start"},
    {.name = "iters",
        .kind = OPTION_COUNT,
        .at = AT(iters),
        .role = OPTION_PROTOCOL,
        .default_note = "until the median is known well enough",
        .low = 1,
        .high = 1000000,
        .help = "timed repetitions, exactly"},
    {.name = "warmup",
        .kind = OPTION_COUNT,
        .at = AT(warmup),
        .role = OPTION_PROTOCOL,
        .fallback = "1",
        .high = 1000000,
        .help = "repetitions before the first timed one"},
    {.name = "min-time",
        .kind = OPTION_REAL,
        .at = AT(min_time_s),
        .role = OPTION_PROTOCOL,
        .key = "min_time_s",
        .argument = "S",
        .default_note = "the protocol's",
        .unit = "s",
        .real_high = 86400,
        .replaced_by = "iters",
        .help = "repeat at least this long; not with --iters"},
    {.name = "check",
        .kind = OPTION_TEXT,
        .at = AT(check_text),
        .role = OPTION_PROTOCOL,
        .argument = "HOW",
        .default_note = "reference up to 32G multiply-adds, then sample:64",
        .help = "reference, sample:N, baseline or off"},
    {.name = "check-order",
        .kind = OPTION_FLAG,
        .at = AT(check_order),
        .role = OPTION_PROTOCOL,
        .help = "prove that events order all conflicting accesses; slow"},
    {.name = "timeout",
        .kind = OPTION_REAL,
        .at = AT(timeout_s),
        .role = OPTION_PROTOCOL,
        .key = "timeout_s",
        .argument = "S",
        .fallback = "60",
        .unit = "s",
        .real_low = 0.001,
        .real_high = 86400,
        .help = "a rank that waits longer for its peers ends the case"},
    {.name = "oom",
        .kind = OPTION_NAME,
        .at = AT(oom),
        .role = OPTION_PROTOCOL,
        .argument = "HOW",
        .fallback = "fail",
        .names = oom_names,
        .help = "an out-of-memory case fails the run, or is a row like any other"},
    {.name = "search",
        .kind = OPTION_TEXT,
        .at = AT(search),
        .role = OPTION_PROTOCOL,
        .argument = "NAME",
        .help =
            "on sim: the largest value of a count (tokens) that fits, sought from the one given"},
    {.name = "search-step",
        .kind = OPTION_COUNT,
        .at = AT(search_step),
        .role = OPTION_PROTOCOL,
        .argument = "N",
        .default_note = "1024",
        .low = 1,
        .help = "search among multiples of N"},
    {.name = "json",
        .kind = OPTION_TEXT,
        .at = AT(json),
        .role = OPTION_ELSEWHERE,
        .argument = "FILE",
        .help = "append one record per case (JSON lines)"},
    {.name = "csv",
        .kind = OPTION_FLAG,
        .at = AT(csv),
        .role = OPTION_ELSEWHERE,
        .help = "print CSV on stdout in place of the table"},
    {.name = "trace",
        .kind = OPTION_TEXT,
        .at = AT(trace),
        .role = OPTION_ELSEWHERE,
        .argument = "FILE",
        .help = "write a Chrome/Perfetto trace of the one case"},
    {.name = "load",
        .kind = OPTION_TEXT,
        .at = AT(load),
        .by_impl = true,
        .argument = "DIR",
        .help = "take inputs from DIR/NAME.npy in place of seeded ones"},
    {.name = "dump",
        .kind = OPTION_TEXT,
        .at = AT(dump),
        .role = OPTION_ELSEWHERE,
        .by_impl = true,
        .argument = "DIR",
        .help = "write the outputs of the one case to DIR/NAME.npy"},
};

struct option_group case_group(struct case_options *options, const char *const *impl_names)
{
    options->table_count = (int)(sizeof common_options / sizeof *common_options);
    _Static_assert(sizeof common_options / sizeof *common_options <= CASE_OPTIONS_MAX,
        "CASE_OPTIONS_MAX holds every common option");
    memcpy(options->table, common_options, sizeof common_options);
    snprintf(options->threads_default, sizeof options->threads_default, "%d", launch_node_cpus());
    snprintf(options->ranks_default, sizeof options->ranks_default, "%d", launch_ranks());
    for (int i = 0; i < options->table_count; i++) {
        if (!strcmp(options->table[i].name, "impl"))
            options->table[i].names = impl_names;
        else if (!strcmp(options->table[i].name, "threads"))
            options->table[i].fallback = options->threads_default;
        else if (!strcmp(options->table[i].name, "ranks"))
            options->table[i].fallback = options->ranks_default;
    }
    return (struct option_group){"Common", options->table, options->table_count, options};
}

void case_group_drop(
    struct case_options *options, struct option_group *group, const char *const *names)
{
    int kept = 0;
    for (int i = 0; i < options->table_count; i++) {
        bool dropped = false;
        for (int n = 0; names[n]; n++)
            dropped |= !strcmp(options->table[i].name, names[n]);
        if (!dropped)
            options->table[kept++] = options->table[i];
    }
    options->table_count = group->count = kept;
}

/* ---- setup ---------------------------------------------------------------------------------- */

#define DEFAULT_PROFILE "h200-8"

static int setup_device(struct case_options *options, struct options *parsed)
{
    const char *text = options->device_text;
    options->device_kind = DEV_CPU;
    options->machine_count = 0;
    snprintf(options->device_name, sizeof options->device_name, "cpu");
    if (!strcmp(text, "cuda"))
        return gpu_setup(options, parsed);
    if (options_given(parsed, "messages"))
        return options_refuse(parsed, "messages", "has an effect on --device cuda alone");
    options_hide(parsed, "messages");
    if (!strcmp(text, "cpu"))
        return -1;
    if (!strcmp(text, "sim") || !strncmp(text, "sim:", 4)) {
        options->device_kind = DEV_SIM;
        int status = simulate_setup(options, parsed, text[3] ? text + 4 : DEFAULT_PROFILE);
        snprintf(
            options->device_name, sizeof options->device_name, "sim:%s", options->machines[0].name);
        return status;
    }
    return options_refuse(parsed, "device", "got '%.80s', allowed cpu, sim[:PROFILE], cuda", text);
}

/* Where a launcher has started processes, they are the ranks. */
static int setup_launch(struct case_options *options, struct options *parsed)
{
    if (launch_started() && options->device_kind == DEV_SIM)
        return options_refuse(parsed, "device", "got '%.80s', allowed cpu, cuda under a launcher",
            options->device_text);
    if (launch_started() && options_given(parsed, "message-gbps"))
        return options_refuse(
            parsed, "message-gbps", "messages between processes go as fast as they go");
    return job_setup(parsed, &options->ranks, options->ranks_per_process, options->timeout_s);
}

static int setup_check(struct case_options *options, const struct options *parsed)
{
    static const char allowed[] = "reference, sample:N (N at least 1), baseline, off";
    const char *text = options->check_text;
    options->check_samples = 0;
    if (!text) {
        options->check = CASE_CHECK_AUTO;
    } else if (!strcmp(text, "reference")) {
        options->check = CASE_CHECK_REFERENCE;
    } else if (!strcmp(text, "baseline")) {
        options->check = CASE_CHECK_BASELINE;
    } else if (!strcmp(text, "off")) {
        options->check = CASE_CHECK_OFF;
    } else if (!strncmp(text, "sample:", 7)) {
        options->check = CASE_CHECK_SAMPLE;
        if (units_parse_count(text + 7, -1, &options->check_samples) != UNITS_OK ||
            options->check_samples < 1)
            return options_refuse(parsed, "check", "got '%.80s', allowed %s", text, allowed);
    } else {
        return options_refuse(parsed, "check", "got '%.80s', allowed %s", text, allowed);
    }
    return -1;
}

/* A file that each case would overwrite. */
static int setup_single_case(const struct options *parsed, const char *name, const char *value)
{
    int64_t cases = options_cases(parsed);
    if (value && cases > 1)
        return options_refuse(parsed, name, "takes a single case, got %lld", (long long)cases);
    return -1;
}

int case_setup(struct case_options *options, struct options *parsed)
{
    char error[256];
    options_rewind(parsed);
    if (!options_next(parsed))
        return EXIT_BAD_INPUT;
    int status = setup_device(options, parsed);
    if (status < 0)
        status = setup_launch(options, parsed);
    if (status < 0)
        status = setup_check(options, parsed);
    if (status < 0)
        status = gpu_setup_products(options, parsed);
    if (status < 0)
        status = setup_single_case(parsed, "trace", options->trace);
    if (status < 0)
        status = setup_single_case(parsed, "dump", options->dump);
    if (status < 0 && isa_from_environment(error, sizeof error)) {
        fprintf(stderr, "%s\n", error);
        status = EXIT_BAD_INPUT;
    }
    if (status < 0)
        status = writable_check(parsed, "json", options->json);
    if (status < 0)
        status = writable_check(parsed, "trace", options->trace);
    if (status < 0)
        status = dump_check(parsed, "dump", options->dump);
    if (status < 0 && options->json && options->trace && !strcmp(options->json, options->trace))
        status = options_refuse(parsed, "trace", "%s is the file of --json", options->trace);
    if (status < 0)
        status = search_setup(options, parsed);
    options_rewind(parsed);
    if (status < 0)
        interrupt_install();
    return status;
}

/* ---- what follows --------------------------------------------------------------------------- */

enum case_check case_check_level(
    const struct case_options *options, int64_t operations, int64_t *samples)
{
    *samples = options->check_samples;
    if (options->check != CASE_CHECK_AUTO)
        return options->check;
    if (operations <= CASE_REFERENCE_OPERATIONS)
        return CASE_CHECK_REFERENCE;
    *samples = CASE_SAMPLES;
    return CASE_CHECK_SAMPLE;
}

void case_check_text(enum case_check check, int64_t samples, char *text, int size)
{
    static const char *const names[] = {"auto", "reference", "sample", "baseline", "off"};
    if (check == CASE_CHECK_SAMPLE)
        snprintf(text, (size_t)size, "sample:%lld", (long long)samples);
    else
        snprintf(text, (size_t)size, "%s", names[check]);
}

/* Ranks of the current case on this process's host. */
static int64_t ranks_here(const struct case_options *options)
{
    return launch_started() ? launch_node_ranks() : options->ranks;
}

int case_threads(const struct case_options *options)
{
    return job_threads(options->threads);
}

struct ranks_config case_ranks_config(
    const struct case_options *options, struct dev_pool *pool, struct trace *trace)
{
    struct ranks_config config;
    memset(&config, 0, sizeof config);
    config.count = (int)options->ranks;
    config.timeout_s = options->timeout_s;
    if (options->message_gbps > 0)
        config.message_bytes_per_s = options->message_gbps * 1e9;
    struct dev_config *device = &config.device;
    device->kind = options->device_kind;
    if (options->device_memory_bytes > 0)
        device->device_limit_bytes = options->device_memory_bytes;
    if (options->host_memory_bytes > 0)
        device->host_limit_bytes = options->host_memory_bytes;
    device->profiles = case_simulates(options) ? options->machines : NULL;
    device->machines = options->machine_count;
    const struct option_reals *link = &options->link_gbps;
    if (link->count) {
        device->h2d_bytes_per_s = link->values[0] * 1e9;
        device->d2h_bytes_per_s = link->values[link->count - 1] * 1e9;
    }
    device->serial_streams = options->streams == 1;
    device->check_order = options->check_order;
    /* Ranks compute at the same time: each kernel is as wide as its rank's share of the threads. */
    int64_t width = options->threads / ranks_here(options);
    device->kernel_threads = (int)(width > 1 ? width : 1);
    device->pool = pool;
    device->trace = trace;
    device->messages = (enum dev_messages)options->messages;
    return config;
}

enum measure_timed case_timed(const struct case_options *options)
{
    return options->pass == CASE_FORWARD    ? TIME_FORWARD
           : options->pass == CASE_BACKWARD ? TIME_BACKWARD
                                            : TIME_BOTH;
}

struct timing_protocol case_timing_protocol(const struct case_options *options)
{
    struct timing_protocol protocol = timing_default();
    protocol.warmup = (int)options->warmup;
    if (case_simulates(options)) {
        protocol = (struct timing_protocol){.min_samples = 1, .max_samples = 1, .max_time_s = 1e9};
        return protocol;
    }
    if (options->iters > 0) {
        protocol.min_samples = protocol.max_samples = (int)options->iters;
        protocol.min_time_s = 0;
        protocol.max_time_s = 1e9;
        protocol.target_rel = 0;
    } else if (options->min_time_s >= 0) {
        protocol.min_time_s = options->min_time_s;
        if (protocol.max_time_s < options->min_time_s)
            protocol.max_time_s = options->min_time_s;
    }
    return protocol;
}

bool case_oversubscribed(const struct case_options *options)
{
    int cpus = launch_node_cpus();
    if (case_simulates(options))
        return false; /* its clocks do not depend on threads */
    return ranks_here(options) > cpus || options->threads > cpus;
}

bool case_simulates(const struct case_options *options)
{
    return options->device_kind == DEV_SIM;
}

int64_t case_host_limit_bytes(const struct case_options *options)
{
    if (options->host_memory_bytes > 0)
        return options->host_memory_bytes;
    return case_simulates(options) ? profile_host_bytes(&options->machines[0]) : 0;
}

bool case_records_oom(const struct case_options *options)
{
    return options->oom == 1;
}

bool case_shares_gpu(const struct case_options *options)
{
    return options->device_kind == DEV_CUDA && options->ranks > gpu_count(options);
}

const char *case_device_name(const struct case_options *options)
{
    return case_shares_gpu(options) ? options->shared_name : options->device_name;
}
