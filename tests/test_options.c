/* The command line: numbers, lists, the product of cases, options of some implementations only, and
 * what each mistake is answered with. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/options.h"
#include "bench/harness/units.h"
#include "tests/tap.h"

struct fields {
    int64_t tokens, hidden, tile, bytes;
    struct option_counts tokens_per_rank;
    struct option_reals link;
    double speed;
    int impl, dtype;
    const char *file;
    bool quiet;
};

static const char *const impl_names[] = {"plain", "tiled", "ring", NULL};
static const char *const impl_summaries[] = {"the baseline", "in tiles", "in a ring", NULL};
static const char *const dtype_names[] = {"f32", "bf16", NULL};

#define AT(field) offsetof(struct fields, field)

static const struct option table[] = {
    {.name = "tokens",
        .kind = OPTION_COUNT,
        .at = AT(tokens),
        .axis = true,
        .fallback = "512",
        .replaced_by = "tokens-per-rank",
        .unit = "tokens per rank",
        .high = INT64_C(1) << 40,
        .help = "tokens"},
    {.name = "tokens-per-rank",
        .kind = OPTION_COUNTS,
        .at = AT(tokens_per_rank),
        .high = 100,
        .most = 4,
        .help = "tokens of each rank"},
    {.name = "hidden",
        .kind = OPTION_COUNT,
        .at = AT(hidden),
        .axis = true,
        .fallback = "64",
        .low = 1,
        .high = 1024,
        .help = "width"},
    {.name = "tile",
        .kind = OPTION_COUNT,
        .at = AT(tile),
        .axis = true,
        .by_impl = true,
        .fallback = "7",
        .low = 1,
        .help = "rows of a tile"},
    {.name = "impl",
        .kind = OPTION_NAME,
        .at = AT(impl),
        .role = OPTION_ELSEWHERE,
        .axis = true,
        .fallback = "all",
        .names = impl_names,
        .help = "implementations"},
    {.name = "dtype",
        .kind = OPTION_NAME,
        .at = AT(dtype),
        .fallback = "f32",
        .names = dtype_names,
        .help = "type"},
    {.name = "bytes", .kind = OPTION_BYTES, .at = AT(bytes), .help = "a size"},
    {.name = "link",
        .kind = OPTION_REALS,
        .at = AT(link),
        .real_low = 0.5,
        .real_high = 100,
        .most = 2,
        .help = "pace"},
    {.name = "speed", .kind = OPTION_REAL, .at = AT(speed), .help = "a number"},
    {.name = "file", .kind = OPTION_TEXT, .at = AT(file), .argument = "FILE", .help = "a file"},
    {.name = "quiet", .kind = OPTION_FLAG, .at = AT(quiet), .help = "say nothing"},
};

static bool takes(int impl, const char *option)
{
    return !strcmp(option, "tile") && impl == 1;
}

/* One parse with its streams kept. */
struct run {
    struct fields fields;
    struct option_group group;
    struct program program;
    struct options *options;
    int status;
    char *out, *err;
    size_t out_size, err_size;
};

/* `out`: where the program prints; NULL = into r->out. */
static void run_into(struct run *r, const char *line, FILE *out)
{
    char *argv[32], *copy = strdup(line), *rest = copy;
    int argc = 0;
    memset(r, 0, sizeof *r);
    argv[argc++] = "prog";
    for (char *word = strtok_r(rest, " ", &rest); word && argc < 32;
         word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    r->group = (struct option_group){"Shape", table, sizeof table / sizeof *table, &r->fields};
    r->program = (struct program){.name = "prog",
        .summary = "A program for tests.",
        .groups = &r->group,
        .group_count = 1,
        .impl_names = impl_names,
        .impl_summaries = impl_summaries,
        .takes = takes};
    r->program.out = out ? out : open_memstream(&r->out, &r->out_size);
    r->program.err = open_memstream(&r->err, &r->err_size);
    r->status = options_parse(&r->options, &r->program, argc, argv);
    fflush(r->program.out);
    fflush(r->program.err);
    free(copy);
}

static void run(struct run *r, const char *line)
{
    run_into(r, line, NULL);
}

static void done(struct run *r)
{
    options_free(r->options);
    fclose(r->program.out);
    fclose(r->program.err);
    free(r->out);
    free(r->err);
}

/* ---- numbers -------------------------------------------------------------------------------- */

static void test_numbers(void)
{
    static const struct {
        const char *text;
        enum units_status status;
        int64_t value;
    } cases[] = {
        {"0", UNITS_OK, 0},
        {"4096", UNITS_OK, 4096},
        {"4K", UNITS_OK, 4096},
        {"2M", UNITS_OK, 2097152},
        {"3G", UNITS_OK, INT64_C(3221225472)},
        {"1.5K", UNITS_OK, 1536},
        {"100e6", UNITS_OK, 100000000},
        {"1e3K", UNITS_OK, 1024000},
        {"1.25e2", UNITS_OK, 125},
        {"-5", UNITS_OK, -5},
        {"9223372036854775807", UNITS_OK, INT64_MAX},
        {"9007199254740993", UNITS_OK, INT64_C(9007199254740993)},
        {"9223372036854775808", UNITS_TOO_LARGE, 0},
        {"99999999999999999999999", UNITS_TOO_LARGE, 0},
        {"8589934592G", UNITS_TOO_LARGE, 0},
        {"8589934591G", UNITS_OK, INT64_C(8589934591) << 30},
        {"1e19", UNITS_TOO_LARGE, 0},
        {"1e999999999", UNITS_TOO_LARGE, 0},
        {"0e999999999", UNITS_OK, 0},
        {"0.1K", UNITS_NOT_WHOLE, 0},
        {"1.5", UNITS_NOT_WHOLE, 0},
        {"1e-1", UNITS_NOT_WHOLE, 0},
        {"10e-1", UNITS_OK, 1},
        {"", UNITS_NOT_A_NUMBER, 0},
        {"K", UNITS_NOT_A_NUMBER, 0},
        {".", UNITS_NOT_A_NUMBER, 0},
        {"1k", UNITS_NOT_A_NUMBER, 0},
        {"1KB", UNITS_NOT_A_NUMBER, 0},
        {"1e", UNITS_NOT_A_NUMBER, 0},
        {"0x10", UNITS_NOT_A_NUMBER, 0},
        {"1 2", UNITS_NOT_A_NUMBER, 0},
        {" 1", UNITS_NOT_A_NUMBER, 0},
        {"nan", UNITS_NOT_A_NUMBER, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t value = 0;
        enum units_status status = units_parse_count(cases[i].text, -1, &value);
        tap_ok(status == cases[i].status && (status != UNITS_OK || value == cases[i].value),
            "count '%s' (status %d, value %lld)", cases[i].text, status, (long long)value);
    }
    double real;
    tap_ok(units_parse_real("2.5e-3", -1, &real) == UNITS_OK && real == 2.5e-3, "real 2.5e-3");
    tap_ok(units_parse_real("1e999", -1, &real) == UNITS_TOO_LARGE, "real 1e999 is too large");
    tap_ok(units_parse_real("inf", -1, &real) == UNITS_NOT_A_NUMBER, "real inf is refused");
    tap_ok(units_parse_real("0x1p3", -1, &real) == UNITS_NOT_A_NUMBER, "real 0x1p3 is refused");
    tap_ok(units_parse_real("3K", -1, &real) == UNITS_NOT_A_NUMBER, "real 3K is refused");
}

static void test_writing(void)
{
    char text[64];
    static const struct {
        int64_t bytes;
        const char *text;
    } sizes[] = {{0, "0 B"}, {1023, "1023 B"}, {1024, "1.000 KiB"}, {1536, "1.500 KiB"},
        {12 * 1048576 + 31457, "12.03 MiB"}, {INT64_C(1048575), "1.000 MiB"},
        {INT64_C(45593226117), "42.46 GiB"}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        units_bytes(sizes[i].bytes, text, sizeof text);
        tap_ok(!strcmp(text, sizes[i].text), "%lld bytes is '%s', want '%s'",
            (long long)sizes[i].bytes, text, sizes[i].text);
    }
    units_seconds(0.012345, text, sizeof text);
    tap_ok(!strcmp(text, "12.35 ms") || !strcmp(text, "12.34 ms"), "12.345 ms is '%s'", text);
    units_seconds(0.0000009999, text, sizeof text);
    tap_ok(!strcmp(text, "1.000 us"), "0.9999 us is '%s'", text);
    units_seconds_range(0.0121, 0.01262, text, sizeof text);
    tap_ok(!strcmp(text, "12.10..12.62 ms"), "a range is '%s'", text);
    units_rate(123.4e9, "FLOP/s", text, sizeof text);
    tap_ok(!strcmp(text, "123.4 GFLOP/s"), "a rate is '%s'", text);
}

/* ---- cases ---------------------------------------------------------------------------------- */

static void test_product(void)
{
    struct run r;
    char seen[512] = "", line[64];
    run(&r,
        "--tokens 1K,2K --hidden=8 --impl tiled,plain --tile 3,5 --speed 1.5 --link 2,3 --quiet");
    tap_ok(r.status == -1, "a good line parses");
    tap_ok(options_cases(r.options) == 6, "6 cases, got %lld", (long long)options_cases(r.options));
    while (options_next(r.options)) {
        snprintf(line, sizeof line, "%lld/%lld/%d/%lld ", (long long)r.fields.tokens,
            (long long)r.fields.hidden, r.fields.impl, (long long)r.fields.tile);
        strcat(seen, line);
    }
    tap_ok(!strcmp(seen, "1024/8/0/7 1024/8/1/3 1024/8/1/5 2048/8/0/7 2048/8/1/3 2048/8/1/5 "),
        "only 'tiled' is multiplied by tile: %s", seen);
    tap_ok(r.fields.quiet && r.fields.speed == 1.5, "a flag and a real");
    tap_ok(r.fields.link.count == 2 && r.fields.link.values[1] == 3, "a list that is one value");
    tap_ok(r.fields.bytes == -1 && !r.fields.file && !r.fields.tokens_per_rank.count,
        "what has no default and was not given is unset");
    options_rewind(r.options);
    tap_ok(options_next(r.options) && r.fields.tokens == 1024, "rewind starts again");
    done(&r);

    run(&r, "");
    tap_ok(r.status == -1 && options_cases(r.options) == 3, "the default of impl is all of them");
    done(&r);
}

static void test_baseline(void)
{
    struct run r;
    int position[16], matches = 0, baselines = 0;
    run(&r, "--tokens 1,2 --impl ring,tiled,plain --tile 3,5");
    tap_ok(options_cases(r.options) == 8, "2 shapes of plain, ring and two tiles");
    while (options_next(r.options)) {
        if (r.fields.tokens == 2 && r.fields.impl == 0) {
            options_position(r.options, position);
            baselines++;
        } else if (r.fields.tokens == 2) {
            bool same = baselines && options_same_shape(r.options, position);
            matches += same;
        } else if (baselines) {
            matches -= options_same_shape(r.options, position);
        }
    }
    tap_ok(baselines == 1 && matches == 3,
        "the baseline comes first and is found by every case of its shape (%d)", matches);
    done(&r);
}

static void test_record(void)
{
    struct run r;
    json_t *record = json_object();
    run(&r, "--tokens-per-rank 5,0,7 --impl plain --bytes 2K");
    options_next(r.options);
    options_record(r.options, record);
    json_t *config = json_object_get(record, "config");
    json_t *counts = json_object_get(config, "tokens_per_rank");
    tap_ok(json_array_size(counts) == 3 && json_integer_value(json_array_get(counts, 2)) == 7,
        "a list of counts is recorded");
    tap_ok(!json_object_get(config, "tokens"), "an option replaced by another is absent");
    tap_ok(!json_object_get(config, "tile"),
        "an option that the implementation does not take is absent");
    tap_ok(!json_object_get(config, "impl"), "impl has its own field");
    tap_ok(json_integer_value(json_object_get(config, "bytes")) == 2048, "a size is a number");
    tap_ok(!strcmp(json_string_value(json_object_get(config, "dtype")), "f32"),
        "a default is recorded");
    tap_ok(r.fields.tokens == -1, "a replaced option is unset");
    json_decref(record);
    done(&r);
}

/* ---- mistakes ------------------------------------------------------------------------------- */

static void refused(const char *line, const char *message)
{
    struct run r;
    char wanted[512];
    run(&r, line);
    snprintf(wanted, sizeof wanted, "prog: %s\n", message);
    bool right =
        tap_ok(r.status == EXIT_BAD_INPUT && !r.options && !strcmp(r.err, wanted) && !*r.out,
            "refused: %s", line);
    if (!right)
        tap_note("status %d, got: %s", r.status, r.err);
    done(&r);
}

static void test_mistakes(void)
{
    refused("--hiden 3", "unknown option --hiden; did you mean --hidden?");
    refused("--tokens-per 3", "unknown option --tokens-per; did you mean --tokens-per-rank?");
    refused("--xyzzyplugh=3", "unknown option --xyzzyplugh; --help lists the options");
    refused("-h", "unknown option -h; options start with --");
    refused("file.npy", "argument 'file.npy' is not expected; options start with --");
    refused("--hidden", "option --hidden: value missing, allowed 1..1024");
    refused("--hidden --quiet", "option --hidden: value missing, allowed 1..1024");
    refused("--hidden 0", "option --hidden: got 0, allowed 1..1024");
    refused("--hidden -3", "option --hidden: got -3, allowed 1..1024");
    refused("--hidden 8,2K", "option --hidden: got 2K, allowed 1..1024");
    refused("--hidden 12x",
        "option --hidden: got '12x', not a whole number (like 4096, 4K, 100e6; K M G are powers of "
        "1024); allowed 1..1024");
    refused("--hidden 1.5", "option --hidden: got '1.5', not a whole number; allowed 1..1024");
    refused("--tokens 99999999999999999999",
        "option --tokens: got '99999999999999999999', too large; allowed 0..1099511627776");
    refused("--hidden 8,,9",
        "option --hidden: got '', not a whole number (like 4096, 4K, 100e6; K M G are powers of "
        "1024); allowed 1..1024");
    refused("--hidden 8,8", "option --hidden: got '8' twice in one list");
    refused("--hidden 8 --hidden 9", "option --hidden: given twice; a list is written with commas");
    refused("--dtype f16", "option --dtype: got 'f16', allowed f32, bf16");
    refused("--dtype all", "option --dtype: got 'all', allowed f32, bf16");
    refused("--impl rings", "option --impl: got 'rings', allowed plain, tiled, ring, or all");
    refused("--quiet=1", "option --quiet: got '1', takes no value");
    refused("--speed fast", "option --speed: got 'fast', not a number; allowed at least 0");
    refused("--link 0.1", "option --link: got 0.1, allowed 0.5..100");
    refused("--link 1,2,3", "option --link: got 3 values, allowed at most 2");
    refused("--tokens-per-rank 5,101", "option --tokens-per-rank: got 101, allowed 0..100");
    refused("--tokens 5 --tokens-per-rank 5,6",
        "option --tokens: has no effect with --tokens-per-rank; give one of them");
    refused("--file=", "option --file: got an empty value");
    refused("--tile 3 --impl plain,ring",
        "option --tile: no chosen implementation takes it; it is taken by tiled");
}

static void test_too_many_cases(void)
{
    struct run r;
    char line[16384] = "--tokens 0";
    for (int i = 1; i < 1024; i++)
        sprintf(line + strlen(line), ",%d", i);
    strcat(line, " --hidden 1");
    for (int i = 2; i <= 1000; i++)
        sprintf(line + strlen(line), ",%d", i);
    run(&r, line);
    tap_ok(r.status == EXIT_BAD_INPUT && strstr(r.err, "more than 1000000 cases"),
        "a product of more than a million cases is refused: %s", r.err);
    done(&r);
}

static void test_help(void)
{
    struct run r;
    run(&r, "--help");
    tap_ok(r.status == EXIT_OK && !r.options && !*r.err, "--help ends with 0");
    tap_ok(strstr(r.out, "--tokens N[,...]") && strstr(r.out, "default 512; unit tokens per rank"),
        "--help has default and unit");
    tap_ok(strstr(r.out, "allowed f32, bf16") && strstr(r.out, "130  interrupted"),
        "--help has sets and exit status");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        tap_ok(strstr(r.out, table[i].help) && strstr(r.out, table[i].name), "--help has --%s",
            table[i].name);
    done(&r);
    run(&r, "--list");
    tap_ok(
        r.status == EXIT_OK && strstr(r.out, "plain  the baseline\n"), "--list has one line each");
    done(&r);
    static const char *const printed[] = {"--help", "--list", "--version"};
    for (size_t i = 0; i < sizeof printed / sizeof *printed; i++) {
        run_into(&r, printed[i], fopen("/dev/full", "w"));
        tap_ok(r.status == EXIT_ENVIRONMENT && strstr(r.err, "could not be written: No space"),
            "%s into a full device is no success: %s", printed[i], r.err);
        done(&r);
    }
}

int main(void)
{
    test_numbers();
    test_writing();
    test_product();
    test_baseline();
    test_record();
    test_mistakes();
    test_too_many_cases();
    test_help();
    return tap_done();
}
