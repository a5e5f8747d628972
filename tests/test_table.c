/* Tables of the papers: the description's language, what a figure comes to, and that one byte of
 * one record changes the cells that read it and no other. */
#include <math.h>
#include "bench/harness/table.h"
#include "probe/record.h"
#include "tests/scratch.h"
#include "tests/tap.h"

static struct scratch scratch;
static char message[512];

/* Two implementations at two shapes, one of them out of memory; a simulated time on two machines,
 * and one measured on a GPU. */
static json_t *records(int64_t ring_bytes)
{
    static const char text[] =
        "[{'op':'vocab','impl':'standard','device':'sim:m','status':'ok','config':{'ranks':4},"
        "'memory':{'peak':1073741824},'time':{'median_s':2.0,'machines_s':{'profile':2.0,'slow':2."
        "5}}},"
        "{'op':'vocab','impl':'ring','device':'sim:m','status':'ok','config':{'ranks':4,'whole':"
        "true},"
        "'memory':{'peak':0},'time':{'median_s':2.1,'machines_s':{'profile':2.1,'slow':2.7}}},"
        "{'op':'vocab','impl':'standard','device':'sim:m','status':'oom','config':{'ranks':8}},"
        "{'op':'vocab','impl':'ring','device':'sim:m','status':'ok','config':{'ranks':8,'whole':"
        "true},"
        "'memory':{'peak':536870912},'time':{'median_s':3.0,'machines_s':{'profile':3.0,'slow':3.1}"
        "}},"
        "{'op':'vocab','impl':'ring','device':'cuda:NVIDIA H200','status':'ok',"
        "'config':{'ranks':8,'whole':true,'gemm':'fast'},'memory':{'peak':536870912},"
        "'time':{'median_s':3.3}}]";
    char json[sizeof text];
    for (size_t i = 0; i < sizeof text; i++)
        json[i] = text[i] == '\'' ? '"' : text[i];
    json_t *all = json_loads(json, 0, NULL);
    json_object_set_new(
        json_object_get(json_array_get(all, 1), "memory"), "peak", json_integer(ring_bytes));
    return all;
}

#define ROWS                                                                                       \
    "title T\nrows -\nranks,printed,ring\n4,1.00,0.500\n8,oom,0.500\nend\nname P={ranks}\n"        \
    "where op=vocab ranks={ranks}\n"

static const char *heading = ""; /* a line before ROWS, where a test wants one */

/* Reads ROWS and one more line, and takes the outcome of its figure at a row. */
static int outcome_of(const char *line, int row, const json_t *all, struct table_outcome *outcome)
{
    struct scratch_path path = scratch_path(&scratch, "table.txt");
    char text[2048];
    struct table table;
    snprintf(text, sizeof text, "%s" ROWS "%s\n", heading, line);
    scratch_text(path.text, text);
    message[0] = 0;
    int status = table_read(&table, path.text, message, sizeof message);
    if (!status && table.parts[0].figure_count)
        status = table_outcome_at(&table.parts[0], &table.parts[0].figures[0], row, all, outcome,
            message, sizeof message);
    outcome->why = NULL; /* it points into the table */
    table_free(&table);
    return status;
}

/* ---- expressions ---------------------------------------------------------------------------- */

static void test_expressions(void)
{
    static const struct {
        const char *expression;
        double value; /* NaN: nothing */
    } cases[] = {{"1 + 2 * 3 - 4 / 2", 5}, {"(1 + 2) * -3", -9}, {"{ranks} * 2", 8},
        {"2 * GiB / MiB", 2048}, {"[standard : time.median_s] / ms", 2000},
        {"[standard:memory.peak]/GiB", 1}, {"[ring whole=true : time.median_s]", 2.1},
        {"[ring whole=false : time.median_s]", NAN}, {"[absent : time.median_s] + 1", NAN},
        {"1 / 0", NAN}, {"low([ring ranks={n} : time.median_s])", 2.1},
        {"high([ring ranks={n} : time.median_s] * 2)", 6}, {"{double} + 1", 9},
        {"[{word} : time.median_s]", 2.1}};
    json_t *all = records(100);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scratch_path path = scratch_path(&scratch, "table.txt");
        struct table table;
        struct table_value value;
        scratch_text(path.text,
            "rows -\nranks\n4\nend\nwhere op=vocab\nover n 4,8\nlet double 2 * {ranks}\n"
            "map word ranks 8=standard,4=ring\n");
        table_read(&table, path.text, message, sizeof message);
        if (!strstr(cases[i].expression, "{n}"))
            table.parts[0].where = "op=vocab ranks={ranks}";
        struct table_view view = {.part = table.parts, .records = all};
        int status = table_evaluate(cases[i].expression, &view, &value, message, sizeof message);
        bool same = isnan(cases[i].value)
                        ? value.state == TABLE_ABSENT
                        : value.state == TABLE_NUMBER && fabs(value.value - cases[i].value) < 1e-12;
        tap_ok(status == 0 && same, "%s", cases[i].expression);
        table_free(&table);
    }
    json_decref(all);
}

#define PARENTHESES                                                                                \
    "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((("

static void test_faults(void)
{
    static const struct {
        const char *line, *says;
    } cases[] = {{"figure f | | 1 | 2", "NAME | UNIT | PAPER | OURS | KIND"},
        {"figure f | | 1 | 2 | guess", "got 'guess', allowed exact"}, {"figur", "got 'figur'"},
        {"why because", "why behind a figure"}, {"keep ranks 16", "values that some row has"},
        {"keep colour 4", "a column of the rows"},
        {"figure f | | 1 | {colour} | exact", "no such cell: 'colour'"},
        {"figure f | | 1 | 2 + | exact", "not an expression"},
        {"figure f | | 1 | (2 | exact", "')' is missing"},
        {"figure f | | 1 | 2 3 | exact", "text behind an expression"},
        {"figure f | | 1 | [ring] | exact", "not [SELECTORS : PATH]"},
        {"figure f | | 1 | [: time.median_s] | exact", "more than one record agrees"},
        {"figure f | | 1 | low(1) | exact", "need an 'over' line"},
        {"figure f | | 1 | 2 | time soon", "not a number of percent"},
        {"figure f | | 1 | 2 | relation about 3", "not <X, >X or A..B"},
        {"map ring ring 1=2\nmap loop loop 1=2\nfigure f | | 1 | {loop} | exact", "made of itself"},
        {"figure f | | 1 | " PARENTHESES "1 | exact", "nested too deeply"}};
    json_t *all = records(100);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct table_outcome outcome;
        int status = outcome_of(cases[i].line, 0, all, &outcome);
        if (status == 0 || !strstr(message, cases[i].says))
            tap_note("%s", message);
        tap_ok(status == -1 && strstr(message, cases[i].says), "refused: %s", cases[i].says);
    }
    json_decref(all);
    struct table table;
    scratch_text(scratch_path(&scratch, "bad.txt").text, "title T\n\nrows nowhere.csv\n");
    tap_ok(table_read(&table, scratch_path(&scratch, "bad.txt").text, message, sizeof message) &&
               strstr(message, "bad.txt:3: got 'nowhere.csv'"),
        "a fault is named by file and line");
    table_free(&table);
}

/* ---- verdicts ------------------------------------------------------------------------------- */

static void test_verdicts(void)
{
    static const struct {
        const char *line;
        int row;
        const char *verdict;
        bool failed;
    } cases[] = {{"figure f | | {printed} | 1.004 | exact", 0, "reproduced", false},
        {"figure f | | {printed} | 1.006 | exact", 0, "differs: +0.6 %", true},
        {"figure f | | {printed} | 1.006 | exact 0.01", 0, "reproduced", false},
        {"figure f | | {printed} | 0.9 | memory", 0, "differs: -10.0 %", false},
        {"figure f | | {printed} | 0.9 | better", 0, "better", false},
        {"figure f | | {printed} | 1.1 | better", 0, "differs: +10.0 %", false},
        {"figure f | | {printed} | [standard : memory.peak] | memory", 1, "reproduced", false},
        {"figure f | | {printed} | [ring : memory.peak] | memory", 1, "differs: fits", false},
        {"figure f | | {printed} | [standard : time.median_s] / 2 | time 1", 0, "model agrees",
            false},
        {"figure f | | {printed} | [standard : time.median_s] | time 25", 0,
            "model differs: +100.0 %", false},
        {"figure f | | 3 | [ring : time.median_s] | time 12", 1, "reproduced", false},
        {"figure f | | 3 | [ring : time.median_s] | time 5", 1, "differs: +10.0 %", false},
        {"figure f | | - | [ring : time.median_s] / [standard : time.median_s] | relation <1.06", 0,
            "model differs: <1.06 over the range", false},
        {"figure f | | - | [ring : time.median_s] / [standard : time.median_s] | relation <1.081",
            0, "model agrees: <1.081 over the range", false},
        {"figure f | | - | [ring : time.median_s] | relation 3..4", 1, "holds on this machine",
            false},
        {"figure f | | - | [ring : memory.peak] / GiB | relation <{printed}", 0, "reproduced",
            false},
        {"figure f | | {printed} | [standard : time.median_s] / 2 | fitted 1", 0, "fitted", false},
        {"figure f | | {printed} | [standard : time.median_s] | fitted 16", 0,
            "model differs: +100.0 %", false},
        {"figure f | | {printed} | [gone : time.median_s] | fitted 16", 0, "no record", false},
        {"figure f | | {ring} | [gone : memory.peak] | inconsistent", 0, "no record", false},
        {"figure f | | {ring} | [gone : memory.peak] | relation <1", 0, "no record", false},
        {"figure f | | - | [gone : memory.peak] | relation <1", 0, "no record", false},
        {"figure f | | {ring} | {ring} * 2 | inconsistent", 0, "inconsistent in the paper", false},
        {"figure f | | {ring} | - | needs a GPU", 0, "not run: needs a GPU", false},
        {"figure f | | {ring} | [gone : time.median_s] | time 5", 0, "no record", false},
        {"figure f | | {ring} | [gone : memory.peak] | exact", 0, "no record", true},
        {"figure f | | - | [ring : time.median_s] | order", -1, "no record", false},
        {"figure f | | {ranks} | [ring : time.median_s] | order", -1, "model agrees", false},
        {"figure f | | 0 - {ranks} | [ring : time.median_s] | order", -1, "model differs", false}};
    json_t *all = records(100);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct table_outcome outcome;
        int status = outcome_of(cases[i].line, cases[i].row, all, &outcome);
        bool same = status == 0 && !strcmp(outcome.verdict, cases[i].verdict) &&
                    outcome.failed == cases[i].failed;
        if (!same)
            tap_note("%s%s", message, status ? "" : outcome.verdict);
        tap_ok(same, "%s: %s", cases[i].verdict, cases[i].line);
    }
    json_decref(all);
}

/* What an H200 measured is no figure of a paper that measured on something else. */
static void test_hardware(void)
{
    static const char line[] = "figure f | | 3 | [ring : time.median_s] | time 12";
    struct table_outcome outcome = {.verdict = ""};
    json_t *all = records(100);
    heading = "gpu H100\n";
    tap_ok(outcome_of(line, 1, all, &outcome) == 0 && !strcmp(outcome.verdict, "model agrees") &&
               outcome.measured.value == 3.3,
        "on other hardware the model is judged: %s", outcome.verdict);
    json_object_set_new(json_array_get(all, 4), "device", json_string("cuda:NVIDIA H100"));
    tap_ok(outcome_of(line, 1, all, &outcome) == 0 && !strcmp(outcome.verdict, "reproduced"),
        "on the paper's own the time: %s", outcome.verdict);
    heading = "";
    json_decref(all);
}

static void test_range(void)
{
    struct table_outcome outcome;
    json_t *all = records(100);
    tap_ok(
        outcome_of("figure f | | - | [standard : time.median_s] | shown", 0, all, &outcome) == 0 &&
            outcome.ours.value == 2 && outcome.low.value == 2 && outcome.high.value == 2.5 &&
            outcome.of_time,
        "a simulated time has the range of the machine's variants");
    tap_ok(outcome_of("figure f | | - | [ring : time.median_s] | shown", 1, all, &outcome) == 0 &&
               outcome.ours.value == 3 && outcome.measured.value == 3.3,
        "a measured time stands beside the simulated one");
    json_t *config = json_object_get(json_array_get(all, 4), "config");
    json_object_del(config, "gemm");
    json_object_set_new(
        json_array_get(all, 4), "device", json_string("cuda:CUDA emulator on a CPU"));
    tap_ok(outcome_of("figure f | | - | [ring : time.median_s] | shown", 1, all, &outcome) == 0 &&
               outcome.measured.state == TABLE_ABSENT,
        "an emulated GPU measures nothing");
    json_object_set_new(
        json_array_get(all, 4), "device", json_string("cuda:NVIDIA H200 shared-gpu"));
    tap_ok(outcome_of("figure f | | - | [ring : time.median_s] | shown", 1, all, &outcome) == 0 &&
               outcome.measured.state == TABLE_ABSENT,
        "nor do ranks that share a GPU");
    tap_ok(outcome_of("figure f | | - | [ring : memory.peak] | shown", 1, all, &outcome) == 0 &&
               outcome.measured.value == 536870912,
        "but for bytes");
    json_object_set_new(json_array_get(all, 4), "device", json_string("cuda:NVIDIA H200"));
    json_object_set_new(config, "gemm", json_string("exact"));
    tap_ok(outcome_of("figure f | | - | [ring : time.median_s] | shown", 1, all, &outcome) == 0 &&
               outcome.measured.state == TABLE_ABSENT,
        "nor do exact products");
    json_object_set_new(config, "gemm", json_string("fast"));
    tap_ok(outcome_of("figure f | | - | [ring : time.median_s] | crossing 2.55 ranks", -1, all,
               &outcome) == 0 &&
               !strcmp(outcome.text, "at 5.657"),
        "where a figure passes a level lies between its rows: %s", outcome.text);
    json_decref(all);
}

/* One byte more in one record: which of the cells change. */
static void test_one_byte(void)
{
    static const struct {
        const char *line;
        bool depends;
    } cases[] = {{"figure f | | - | [ring : memory.peak] / GiB | shown", true},
        {"figure f | | - | 100 * (1 - [ring : memory.peak] / [standard : memory.peak]) | shown",
            true},
        {"figure f | | - | [standard : memory.peak] / GiB | shown", false},
        {"figure f | | - | [ring : time.median_s] | shown", false}};
    json_t *before = records(1 << 29), *after = records((1 << 29) + 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int row = 0; row < 2; row++) {
            struct table_outcome a, b;
            int status = outcome_of(cases[i].line, row, before, &a) ||
                         outcome_of(cases[i].line, row, after, &b);
            bool changed = memcmp(&a.ours, &b.ours, sizeof a.ours) != 0;
            tap_ok(!status && changed == (cases[i].depends && row == 0),
                "one byte in the record of P=4 %s row %d of: %s", changed ? "changes" : "leaves",
                row, cases[i].line);
        }
    json_decref(before);
    json_decref(after);
}

int main(void)
{
    if (!scratch_create(&scratch)) {
        tap_ok(false, "a scratch folder is made");
        return tap_done();
    }
    test_expressions();
    test_faults();
    test_verdicts();
    test_hardware();
    test_range();
    test_one_byte();
    scratch_remove(&scratch);
    return tap_done();
}
