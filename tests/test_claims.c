/* Claims against records: what each kind of evidence allows to be said, and which claims files are
 * refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bench/harness/claims.h"
#include "probe/record.h"
#include "tests/scratch.h"
#include "tests/tap.h"

static char path[] = "/tmp/flatpeak-claims-XXXXXX";

static void write_claims(const char *text)
{
    FILE *file = fopen(path, "w");
    if (file) {
        fputs(text, file);
        fclose(file);
    }
}

static json_t *make_record(const char *impl, int tokens, const char *verdict, int64_t bytes)
{
    json_t *record = rec_create();
    rec_str(record, "op", "vocab");
    rec_str(record, "impl", impl);
    rec_str(record, "device", "cpu");
    rec_str(record, "status", "ok");
    rec_int(record, "config.tokens", tokens);
    rec_str(record, "check.verdict", verdict);
    rec_int(record, "memory.increment_bytes", bytes);
    return record;
}

static const struct table_lines *lines; /* of tables, where a test has some */

/* Evaluates one claim line; true when ours and verdict are these. */
static bool says(
    const char *line, const json_t *records, const char *ours, const char *verdict, bool changed)
{
    char error[256];
    struct claims claims;
    struct claim_outcome outcome = {"", "", false};
    write_claims(line);
    int status = claims_read(path, &claims, error, sizeof error);
    if (!status && claims.count == 1)
        claim_evaluate(&claims.list[0], records, lines, &outcome);
    bool right = !status && claims.count == 1 && !strcmp(outcome.ours, ours) &&
                 !strcmp(outcome.verdict, verdict) && outcome.changed == changed;
    if (!right)
        tap_note("got '%s', '%s', %d %s", outcome.ours, outcome.verdict, outcome.changed,
            status ? error : "");
    claims_free(&claims);
    return right;
}

#define EXACT(printed, accepted)                                                                   \
    "id\tTable 1\tbytes\tGiB\t" printed "\texact\t0.0005\top=vocab impl=ring config.tokens=512\t"  \
    "plan.nothing|memory.increment_bytes\tmake it\ta run\t" accepted "\n"
#define RATIO(limit)                                                                               \
    "id\tTable 1\tratio\t\t0.5\trelation\t" limit "\top=vocab\tring / plain : "                    \
    "memory.increment_bytes\tmake it\ta run\tholds on this machine\n"
#define BITWISE(where)                                                                             \
    "id\ttext\tbits\tcases\tall\tbitwise\t0\t" where "\t-\tmake it\ta run\treproduced\n"

#define SHARE(limit)                                                                               \
    "id\tEq. 1\tbound\t\t<= 1\tratio\t" limit "\top=vocab\tmemory.increment_bytes / "              \
    "memory.bound_bytes\tmake it\ta run\t-\n"

static void test_verdicts(void)
{
    const int64_t gib = INT64_C(1) << 30;
    json_t *records = json_array();
    json_array_append_new(records, make_record("plain", 512, "bitwise", 4 * gib));
    json_array_append_new(records, make_record("ring", 512, "bitwise", 2 * gib));
    json_array_append_new(records, make_record("plain", 1024, "bitwise", 10 * gib));
    json_array_append_new(records, make_record("ring", 1024, "mismatch", 4 * gib));
    tap_ok(says(EXACT("2.0004", "reproduced"), records, "2", "reproduced", false),
        "within the tolerance is reproduced");
    tap_ok(says(EXACT("2.5", "better"), records, "2", "better", false), "fewer bytes is better");
    tap_ok(says(EXACT("1.6", "reproduced"), records, "2", "differs: 25.0 % more", true),
        "more bytes differs, and an accepted verdict that changed is told");
    tap_ok(says(EXACT("1.6", "differs"), records, "2", "differs: 25.0 % more", false),
        "a difference may be the accepted verdict");
    tap_ok(says(RATIO("<0.51"), records, "0.400..0.500", "holds on this machine", false),
        "a relation is taken at each shape");
    tap_ok(says(RATIO("<0.5"), records, "0.400..0.500", "differs: above 0.5", true),
        "at the limit it does not hold");
    tap_ok(says(BITWISE("op=vocab config.tokens=512"), records, "2 of 2", "reproduced", false),
        "all bitwise is reproduced");
    tap_ok(says(BITWISE("op=vocab"), records, "3 of 4", "differs: mismatch", true),
        "one mismatch differs");
    tap_ok(says(BITWISE("op=dispatch"), records, "-", "not run: needs a run", false),
        "without a record it was not run, and nothing changed");
    json_array_append_new(records, make_record("ring", 512, "bitwise", gib));
    tap_ok(says(EXACT("2", "reproduced"), records, "1", "better", true),
        "of several figures the one that is furthest off counts");
    json_decref(records);
}

/* A record that has the figure no more, or under another name, is not a run that was left out. */
static void test_lost_figures(void)
{
    json_t *records = json_array();
    const json_t *none = records;
    tap_ok(says(EXACT("2", "reproduced"), none, "-", "not run: needs a run", false),
        "without any record a figure was not run");
    json_array_append_new(records, make_record("ring", 512, "bitwise", 1));
    json_array_append_new(records, make_record("plain", 512, "bitwise", 1));
    json_t *record;
    size_t i;
    json_array_foreach(records, i, record) json_object_del(record, "memory");
    tap_ok(says(EXACT("2", "reproduced"), records, "-",
               "differs: the figure is in none of 1 records", true),
        "a record without the figure is no run that was left out");
    tap_ok(says(RATIO("<0.5"), records, "-", "differs: the figure is in none of 1 records", true),
        "nor are two of a relation");
    tap_ok(says(SHARE("<1"), records, "-", "differs: the figure is in none of 2 records", false),
        "nor those of a ratio");
    json_decref(records);
}

#define TABLE(name, accepted)                                                                      \
    "id\tTable 6\tpeak\tGiB\t52.660\ttable\t-\tTable 6\t" name "\tmake it\ta run\t" accepted "\n"

#define TIMES(limit)                                                                               \
    "id\tTable 1\ttimes\t\t1\trelation\t" limit "\top=vocab\tring / plain : time.median_s\tmake "  \
    "it\ta run\t-\n"

/* What a figure may be called depends on where it comes from. */
static void test_evidence(void)
{
    json_t *records = json_array();
    json_t *plain = make_record("plain", 512, "bitwise", 400);
    json_t *ring = make_record("ring", 512, "bitwise", 100);
    rec_int(plain, "memory.bound_bytes", 500);
    rec_int(ring, "memory.bound_bytes", 100);
    rec_real(plain, "time.median_s", 2);
    rec_real(ring, "time.median_s", 2.1);
    json_array_append_new(records, plain);
    json_array_append_new(records, ring);
    tap_ok(says(SHARE("<1.001"), records, "0.800..1.000", "holds on this machine", false),
        "a ratio is taken inside each record");
    tap_ok(says(SHARE("<1"), records, "0.800..1.000", "differs: above 1", false),
        "and every one must stay below the limit");
    tap_ok(says(TIMES("<1.1"), records, "1.050", "holds on this machine", false),
        "a relation of measured times holds here");
    rec_str(plain, "device", "sim:x");
    rec_str(ring, "device", "sim:x");
    tap_ok(says(TIMES("<1.1"), records, "1.050", "model agrees", false),
        "of simulated times, the model agrees");
    tap_ok(
        says(TIMES("<1.01"), records, "1.050", "model differs: above 1.01", false), "or differs");
    tap_ok(says(SHARE("<1.001"), records, "0.800..1.000", "reproduced", false),
        "bytes of a simulated device are the schedule's own");
    rec_str(plain, "device", "cuda:NVIDIA H200");
    rec_str(ring, "device", "cuda:NVIDIA H200");
    tap_ok(says(TIMES("<1.1"), records, "-", "not run: products are exact", false),
        "times of exact products on a GPU fill no claim");
    rec_str(plain, "config.gemm", "fast");
    rec_str(ring, "config.gemm", "fast");
    tap_ok(says(TIMES("<1.1"), records, "1.050", "holds on this machine", false),
        "those of fast ones do");
    rec_str(plain, "device", "cuda:NVIDIA H200 shared-gpu");
    rec_str(ring, "device", "cuda:NVIDIA H200 shared-gpu");
    tap_ok(says(TIMES("<1.1"), records, "-", "not run: ranks share a GPU", false),
        "unless ranks share a GPU");
    tap_ok(says(SHARE("<1.001"), records, "0.800..1.000", "holds on this machine", false),
        "whose bytes are those of any");
    rec_str(plain, "device", "cuda:CUDA emulator on a CPU");
    rec_str(ring, "device", "cuda:CUDA emulator on a CPU");
    tap_ok(says(TIMES("<1.1"), records, "-", "not run: the GPU is emulated", false),
        "or it is emulated");
    rec_str(plain, "check.verdict", "off");
    rec_str(ring, "check.verdict", "bitwise");
    tap_ok(says(BITWISE("op=vocab"), records, "1 of 1", "reproduced", false),
        "what was not checked says nothing of its bits");
    json_decref(records);
}

static void test_tables(void)
{
    struct scratch scratch;
    struct table_lines read;
    char error[256] = "";
    json_t *none = json_array();
    if (!tap_ok(scratch_create(&scratch), "a folder for tables"))
        return;
    scratch_text(scratch_path(&scratch, "table_06.csv").text,
        "table,row,figure,unit,paper,ours,low,high,measured,verdict,why\n"
        "\"Table 6: skew, \"\"forward\"\"\",65K balanced,\"EP, "
        "peak\",GiB,52.66,40.6789,,,,better,\n"
        "Table 6: skew,65K 80/16,\"EP, peak\",GiB,,oom,,,,reproduced,\n"
        "Table 6: skew,32K 95/16,\"EP, time\",ms,8,7,6,8,9,model agrees,\n"
        "Table 6: skew,32K 95/16,\"EP, peak\",GiB,8,7,,,9,reproduced,\n"
        "Table 60: other,65K 95/16,\"EP, peak\",GiB,1,2,,,,differs: 1 more,\n");
    scratch_text(scratch_path(&scratch, "other.csv").text, "model,term\na,b\n");
    tap_ok(!table_lines_read(scratch.folder, &read, error, sizeof error) && read.count == 5,
        "tables are read, other CSV files are left alone %s", error);
    lines = &read;
    tap_ok(says(TABLE("65K balanced | EP, peak", "better"), none, "40.679", "better", false),
        "a claim takes figure and verdict of its line");
    tap_ok(says(TABLE("65K balanced | EP, peak", "reproduced"), none, "40.679", "better", true),
        "and its verdict is held against the accepted one");
    tap_ok(says(TABLE("65K 80/16 | EP, peak", "reproduced"), none, "oom", "reproduced", false),
        "out of memory is a figure too");
    tap_ok(says(TABLE("65K 95/16 | EP, peak", "better"), none, "-",
               "differs: Table 6 has no such line", true),
        "a line that a printed table has not is a difference; another table's is not taken");
    tap_ok(says(TABLE("32K 95/16 | EP, time", "model agrees"), none, "7", "model agrees", false),
        "beside a verdict of the model stands the model's figure, not a measured one");
    tap_ok(says(TABLE("32K 95/16 | EP, peak", "reproduced"), none, "9", "reproduced", false),
        "else the measured one");
    table_lines_free(&read);
    lines = NULL;
    tap_ok(says(TABLE("65K 95/16 | EP, peak", "better"), none, "-", "not run: needs a run", false),
        "of a table that was not printed nothing was run");
    scratch_text(scratch_path(&scratch, "cut.csv").text,
        "table,row,figure,unit,paper,ours,low,high,measured,verdict,why\nTable 6,65K\n");
    tap_ok(
        table_lines_read(scratch.folder, &read, error, sizeof error) && strstr(error, "cut.csv:2"),
        "a line that is cut is named: %s", error);
    table_lines_free(&read);
    lines = NULL;
    scratch_remove(&scratch);
    json_decref(none);
}

static void refused(const char *text, const char *words)
{
    char error[256] = "";
    struct claims claims;
    write_claims(text);
    bool right = claims_read(path, &claims, error, sizeof error) && strstr(error, words);
    tap_ok(right, "refused: %s", words);
    if (!right)
        tap_note("got: %s", error);
    claims_free(&claims);
}

static void test_bad_files(void)
{
    refused("# comment\n\nid\tonly three\tcolumns\n", ":3: a claim has 12 columns");
    refused("a\tb\tc\td\t1\tguess\t0\tg=1\th\ti\tj\t-\n", ":1: kind is not one of");
    refused("a\tb\tc\td\tmany\texact\t0\tg=1\th\ti\tj\t-\n", ":1: an exact claim needs");
    refused("a\tb\tc\td\t1\ttable\t0\tg=1\th\ti\tj\t-\n", ":1: a line of a table is named by");
    refused(
        "a\tb\tc\td\t1\trelation\t0.5\tg=1\th\ti\tj\t-\n", ":1: a relation or ratio needs a limit");
    /* What would never be held against anything, and so never fail. */
    refused("a\tb\tc\td\t1\texact\t-1\tg=1\th\ti\tj\t-\n", ":1: an exact claim needs");
    refused("a\tb\tc\td\t1\trelation\t<1\tg=1\th\ti\tj\t-\n", ":1: the figure of a relation");
    refused("a\tb\tc\td\t1\tratio\t<1\tg=1\th/b\ti\tj\t-\n", ":1: the figure of a ratio");
    refused("a\tb\tc\td\t1\tbitwise\t0\top:vocab\th\ti\tj\t-\n", ":1: records are selected by");
    refused(EXACT("1", ""), ":1: the accepted verdict is none");
    refused(EXACT("1", "repro"), ":1: the accepted verdict is none");
    refused(EXACT("1", "verified"), ":1: the accepted verdict is none");
    refused(EXACT("1", "better") EXACT("2", "better"), ":2: another claim has this id");
}

static void test_ours(void)
{
    char error[256];
    struct claims claims;
    tap_ok(!claims_read("results/claims.tsv", &claims, error, sizeof error) && claims.count >= 40,
        "results/claims.tsv is well formed");
    claims_free(&claims);
}

int main(void)
{
    int file = mkstemp(path);
    if (file < 0) {
        tap_ok(false, "a file for the claims of this test");
        return tap_done();
    }
    close(file);
    test_verdicts();
    test_lost_figures();
    test_evidence();
    test_tables();
    test_bad_files();
    test_ours();
    unlink(path);
    return tap_done();
}
