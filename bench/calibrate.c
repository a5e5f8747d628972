/* calibrate - measures this machine and writes its profile
 *
 *   calibrate --out here.conf
 *   dispatch --device sim:here.conf ...
 *
 * What is measured and what of it is fitted stands behind every line of the file. The profile lets
 * the simulated device predict what the cpu device takes here, which bench/tables/calibrated.sh
 * sets beside what it does take. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bench/harness/calibrate.h"
#include "bench/harness/options.h"
#include "bench/harness/units.h"
#include "probe/host.h"

#define PATH_BYTES 1024

struct line {
    const char *out;
    int64_t ranks, threads, rounds;
};

static const struct option table[] = {
    {.name = "out",
        .kind = OPTION_TEXT,
        .at = offsetof(struct line, out),
        .argument = "FILE",
        .default_note = "none, it is needed",
        .help = "the profile, a new file whose name has a '/' or ends in .conf"},
    {.name = "ranks",
        .kind = OPTION_COUNT,
        .at = offsetof(struct line, ranks),
        .default_note = "the cores it may use",
        .low = 1,
        .high = CALIBRATE_RANKS_MAX,
        .help = "ranks that measure at once"},
    {.name = "threads",
        .kind = OPTION_COUNT,
        .at = offsetof(struct line, threads),
        .default_note = "the cores it may use, or --ranks where that is more",
        .low = 1,
        .high = 4096,
        .help = "threads that run kernels, all ranks together"},
    {.name = "rounds",
        .kind = OPTION_COUNT,
        .at = offsetof(struct line, rounds),
        .fallback = "31",
        .low = 1,
        .high = CALIBRATE_ROUNDS_MAX,
        .help = "samples of each figure; the least disturbed counts"},
};

/* -1 to go on, or the exit status after a line on stderr. */
static int check(const struct options *options, const struct line *line)
{
    char folder[PATH_BYTES];
    const char *out = line->out, *slash = out ? strrchr(out, '/') : NULL;
    size_t length = out ? strlen(out) : 0;
    if (!out)
        return options_refuse(options, "out", "not given, allowed a new file");
    if (length >= PATH_BYTES || (!slash && (length < 6 || strcmp(out + length - 5, ".conf"))))
        return options_refuse(
            options, "out", "got '%s', allowed a name with a '/' or ending in .conf", out);
    if (!access(out, F_OK))
        return options_refuse(options, "out", "'%s' exists, allowed a new file", out);
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - out) + 1 : 1, slash ? out : ".");
    if (access(folder, W_OK))
        return options_refuse(options, "out", "%s: %s", folder, strerror(errno));
    if (line->threads < line->ranks)
        return options_refuse(options, "threads", "got %lld, allowed at least %lld (--ranks)",
            (long long)line->threads, (long long)line->ranks);
    return -1;
}

static void print_rate(const char *name, double rate, const char *unit)
{
    char text[32];
    units_rate(rate, unit, text, sizeof text);
    printf("  %-28s %s\n", name, text);
}

static void print_seconds(const char *name, double seconds)
{
    char text[32];
    units_seconds(seconds, text, sizeof text);
    printf("  %-28s %s\n", name, text);
}

static void print(
    const struct line *line, const struct calibrate_figures *figures, const struct profile *profile)
{
    printf("%s: a rank's figures, %lld ranks at once\n", line->out, (long long)line->ranks);
    print_rate("FP32 products, endless", profile->f32.peak_flops_per_s * profile->f32.efficiency,
        "FLOP/s");
    print_rate("BF16 products, endless", profile->bf16.peak_flops_per_s * profile->bf16.efficiency,
        "FLOP/s");
    print_rate("memory", profile->memory_bytes_per_s, "B/s");
    print_rate("copies up, down", profile->h2d_bytes_per_s, "B/s");
    print_rate("messages", profile->link_bytes_per_s, "B/s");
    print_seconds("launch", profile->launch_s);
    print_seconds("hand-off between streams", figures->hand_off_s);
    print_seconds("message", profile->link_latency_s);
    print_rate("AdamW, all ranks", profile->host_adamw_params_per_s, "parameters/s");
    printf("  %-28s %.2f times one alone\n", "products, all ranks", figures->ranks_at_once);
}

static int run(const struct line *line)
{
    struct calibrate_config config = {(int)line->ranks, (int)line->threads, line->rounds};
    struct calibrate_figures figures;
    struct calibrate_error f32, bf16;
    char error[320];
    if (calibrate_measure(&config, &figures, error, sizeof error)) {
        fprintf(stderr, "calibrate: %s\n", error);
        return EXIT_ENVIRONMENT;
    }
    struct profile profile = calibrate_profile(&config, &figures, &f32, &bf16);
    if (calibrate_write(line->out, &config, &figures, &profile, &f32, &bf16)) {
        fprintf(stderr, "calibrate: %s: %s\n", line->out, strerror(errno));
        return EXIT_ENVIRONMENT;
    }
    if (profile_read(line->out, &profile, error, sizeof error)) {
        fprintf(stderr, "calibrate: %s\n", error);
        return EXIT_FAILED_CHECK;
    }
    print(line, &figures, &profile);
    return fflush(stdout) || ferror(stdout) ? EXIT_ENVIRONMENT : EXIT_OK;
}

int main(int argc, char **argv)
{
    static const char examples[] =
        "  calibrate --out here.conf\n"
        "  vocab --device sim:here.conf --impl all --tokens 1K --hidden 512 --vocab 8K\n";
    struct line line;
    struct option_group groups[] = {
        {"Measuring", table, (int)(sizeof table / sizeof *table), &line}};
    struct program program = {.name = "calibrate",
        .summary = "measures this machine and writes its profile for --device sim:FILE",
        .examples = examples,
        .exit_codes = "  0    the profile is written, and can be read\n"
                      "  1    what was measured makes no profile\n"
                      "  2    bad option\n"
                      "  3    out of memory, or the file could not be written\n",
        .groups = groups,
        .group_count = 1};
    struct options *options;
    int status = options_parse(&options, &program, argc, argv);
    if (status >= 0)
        return status;
    options_next(options);
    if (line.ranks < 0)
        line.ranks = host_cpus() < CALIBRATE_RANKS_MAX ? host_cpus() : CALIBRATE_RANKS_MAX;
    if (line.threads < 0)
        line.threads = host_cpus() > line.ranks ? host_cpus() : line.ranks;
    status = check(options, &line);
    if (status < 0)
        status = run(&line);
    options_free(options);
    return status;
}
