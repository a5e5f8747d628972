/* Router traces: every layout read as it was written, every fault refused by name, and counts dealt
 * to tokens. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/moe_routing.h"
#include "bench/harness/moe_trace.h"
#include "tests/scratch.h"
#include "tests/tap.h"

#define ERROR_SIZE 600

static struct scratch scratch;

static void write_array(
    const char *name, enum npy_type type, int dims, const int64_t *shape, const void *data)
{
    char error[ERROR_SIZE];
    if (npy_write(
            scratch_path(&scratch, name).text, type, dims, shape, data, error, sizeof error)) {
        tap_note("%s", error);
        abort();
    }
}

/* 0, 1, 2, ... modulo `experts`, as int32 or int64. */
static void write_ascending(
    const char *name, enum npy_type type, int dims, const int64_t *shape, int64_t experts)
{
    int64_t count = 1;
    for (int d = 0; d < dims; d++)
        count *= shape[d];
    int64_t *wide = calloc((size_t)count + 1, sizeof *wide);
    int32_t *narrow = calloc((size_t)count + 1, sizeof *narrow);
    for (int64_t i = 0; wide && narrow && i < count; i++)
        narrow[i] = (int32_t)(wide[i] = i % experts);
    if (!wide || !narrow)
        abort();
    write_array(name, type, dims, shape, type == NPY_I64 ? (void *)wide : (void *)narrow);
    free(wide);
    free(narrow);
}

static int read_trace(struct moe_trace *trace, const char *prefix, const char *name, char *error)
{
    char path[500];
    snprintf(path, sizeof path, "%s%s", prefix, scratch_path(&scratch, name).text);
    *error = 0;
    return moe_trace_read(trace, path, error, ERROR_SIZE);
}

static void must_read(struct moe_trace *trace, const char *prefix, const char *name)
{
    char error[ERROR_SIZE];
    if (read_trace(trace, prefix, name, error)) {
        tap_note("%s", error);
        abort();
    }
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* Each rank's block of each instance holds the numbers that follow one another in the file. */
static bool holds_blocks(
    const struct moe_trace *trace, int ranks, int64_t tokens, int topk, int64_t experts)
{
    int64_t found[8], block = tokens * topk, instances = trace->steps * trace->layers;
    int32_t *idx = calloc((size_t)block + 1, sizeof *idx);
    char error[ERROR_SIZE];
    bool good = idx && !moe_trace_tokens(trace, ranks, topk, found, error, sizeof error) &&
                !moe_trace_check(trace, experts, error, sizeof error);
    for (int r = 0; good && r < ranks; r++)
        good = found[r] == tokens;
    for (int64_t i = 0; good && i < instances; i++)
        for (int r = 0; good && r < ranks; r++) {
            int64_t number = trace->same ? i : i * ranks + r;
            good = !moe_trace_fill(trace, i, r, tokens, topk, idx);
            for (int64_t j = 0; good && j < block; j++)
                good = idx[j] == (number * block + j) % experts;
        }
    free(idx);
    return good;
}

static void test_layouts(void)
{
    static const struct {
        int dims;
        int64_t shape[5];
        int64_t steps, layers;
        int ranks;
    } layouts[] = {{2, {6, 2}, 1, 1, 0}, {3, {3, 6, 2}, 1, 1, 3}, {4, {4, 3, 6, 2}, 4, 1, 3},
        {5, {4, 2, 3, 6, 2}, 4, 2, 3}, {3, {3, 0, 2}, 1, 1, 3}};
    for (int i = 0; i < 5; i++)
        for (int wide = 0; wide < 2; wide++) {
            struct moe_trace trace;
            int dims = layouts[i].dims;
            write_ascending("t.npy", wide ? NPY_I64 : NPY_I32, dims, layouts[i].shape, 7);
            must_read(&trace, "", "t.npy");
            tap_ok(trace.steps == layouts[i].steps && trace.layers == layouts[i].layers &&
                       trace.ranks == layouts[i].ranks && trace.topk == 2 &&
                       trace.same == (dims == 2) &&
                       holds_blocks(&trace, 3, layouts[i].shape[dims - 2], 2, 7),
                "%d dimensions of %s: %" PRId64 " steps, %" PRId64 " layers, %d ranks", dims,
                wide ? "int64" : "int32", trace.steps, trace.layers, trace.ranks);
            moe_trace_free(&trace);
        }
}

static void test_folder(const char *pattern)
{
    struct moe_trace trace;
    struct moe_routing routing;
    int64_t tokens[3], shape[4] = {5, 2, 0, 2};
    char name[64], error[ERROR_SIZE];
    int32_t idx[8];
    mkdir(scratch_path(&scratch, pattern).text, 0777);
    for (int r = 0; r < 3; r++) {
        char file[32];
        snprintf(file, sizeof file, pattern, r);
        snprintf(name, sizeof name, "%s/%s", pattern, file);
        shape[2] = r == 1 ? 0 : r + 2;
        write_ascending(name, NPY_I32, 4, shape, 7);
    }
    snprintf(name, sizeof name, "%s/notes.txt", pattern);
    scratch_text(scratch_path(&scratch, name).text, "not a rank's");
    must_read(&trace, "", pattern);
    bool fine = trace.steps == 5 && trace.layers == 2 && trace.ranks == 3 && trace.topk == 2 &&
                !moe_trace_tokens(&trace, 3, 2, tokens, error, sizeof error) && tokens[0] == 2 &&
                tokens[1] == 0 && tokens[2] == 4 &&
                !moe_trace_check(&trace, 7, error, sizeof error) &&
                !moe_trace_fill(&trace, 9, 2, 4, 2, idx);
    for (int i = 0; fine && i < 8; i++)
        fine = idx[i] == (9 * 8 + i) % 7;
    tap_ok(fine, "a folder of %s: 2, 0 and 4 tokens", pattern);
    moe_trace_free(&trace);
    int status =
        moe_routing_parse(&routing, scratch_path(&scratch, pattern).text, error, sizeof error);
    tap_ok(status == 0 && routing.profile == MOE_TRACE && moe_routing_topk(&routing) == 2 &&
               moe_routing_steps(&routing) == 10 && !moe_routing_is_paper(&routing),
        "and as a routing");
    moe_routing_free(&routing);
}

static void test_empty_slots(void)
{
    static const int64_t shape[2] = {2, 2};
    static const int32_t idx[4] = {-1, 3, 3, -1};
    struct moe_trace trace;
    char error[ERROR_SIZE] = "";
    int32_t got[4];
    write_array("e.npy", NPY_I32, 2, shape, idx);
    must_read(&trace, "", "e.npy");
    tap_ok(!moe_trace_check(&trace, 4, error, sizeof error) &&
               !moe_trace_fill(&trace, 0, 5, 2, 2, got) && !memcmp(got, idx, sizeof idx),
        "-1 is an empty slot %s", error);
    moe_trace_free(&trace);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(const char *error, const char *const *words)
{
    bool all = true;
    for (; *words; words++)
        all &= strstr(error, *words) != NULL;
    tap_ok(all, "refused: %s", *error ? error : "(nothing was)");
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_refused_files(void)
{
    struct moe_trace trace;
    char error[ERROR_SIZE];
    static const int64_t one[1] = {4}, six[6] = {1, 1, 1, 1, 2, 2}, empty[2] = {4, 0};
    static const int64_t crowd[3] = {1025, 1, 1}, endless[4] = {INT64_C(1) << 32, 1, 0, 1};
    static const float f[4] = {0};
    static const int64_t two[2] = {2, 2};

    write_array("float.npy", NPY_F32, 2, two, f);
    read_trace(&trace, "", "float.npy", error);
    refused(error, WORDS("float.npy", "float32", "int32 or int64"));
    moe_trace_free(&trace);

    write_ascending("one.npy", NPY_I32, 1, one, 4);
    read_trace(&trace, "", "one.npy", error);
    refused(error, WORDS("one.npy", "[4]", "[P, N, k]"));
    moe_trace_free(&trace);

    write_ascending("six.npy", NPY_I32, 6, six, 4);
    read_trace(&trace, "", "six.npy", error);
    refused(error, WORDS("six.npy", "[1, 1, 1, 1, 2, 2]", "[step, layer, P, N, k]"));
    moe_trace_free(&trace);

    write_ascending("empty.npy", NPY_I32, 2, empty, 4);
    read_trace(&trace, "", "empty.npy", error);
    refused(error, WORDS("empty.npy", "[4, 0]", "no empty axis"));
    moe_trace_free(&trace);

    write_ascending("crowd.npy", NPY_I32, 3, crowd, 4);
    read_trace(&trace, "", "crowd.npy", error);
    refused(error, WORDS("crowd.npy", "1025 ranks", "1024"));
    moe_trace_free(&trace);

    write_array("endless.npy", NPY_I32, 4, endless, f);
    read_trace(&trace, "", "endless.npy", error);
    refused(error, WORDS("endless.npy", "4294967296 steps"));
    moe_trace_free(&trace);

    read_trace(&trace, "", "missing.npy", error);
    refused(error, WORDS("missing.npy", "No such file"));
    moe_trace_free(&trace);
}

/* The first bad entry of a file with one bad entry, by its coordinates. */
static void refused_entry(const char *prefix, enum npy_type type, int dims, const int64_t *shape,
    int64_t at, int64_t value, const char *const *words)
{
    struct moe_trace trace;
    char error[ERROR_SIZE] = "";
    int64_t wide[64] = {0};
    int32_t narrow[64] = {0};
    wide[at] = value;
    narrow[at] = (int32_t)value;
    write_array("bad.npy", type, dims, shape, type == NPY_I64 ? (void *)wide : (void *)narrow);
    int status = read_trace(&trace, prefix, "bad.npy", error) ||
                 moe_trace_check(&trace, 4, error, sizeof error);
    refused(status ? error : "", words);
    moe_trace_free(&trace);
}

static void test_refused_entries(void)
{
    static const int64_t same[2] = {3, 2}, ranks[3] = {2, 3, 2}, steps[4] = {2, 2, 3, 2};
    static const int64_t layers[5] = {2, 2, 2, 3, 2}, counts[3] = {2, 2, 4};
    refused_entry("", NPY_I32, 2, same, 5, 4, WORDS("[token 2, slot 1] is 4", "0..3 or -1"));
    refused_entry("", NPY_I64, 2, same, 0, -2, WORDS("[token 0, slot 0] is -2", "0..3 or -1"));
    refused_entry("", NPY_I64, 3, ranks, 9, INT64_C(1) << 32,
        WORDS("[rank 1, token 1, slot 1] is 4294967296", "0..3 or -1"));
    refused_entry(
        "", NPY_I32, 4, steps, 23, 4, WORDS("[step 1, rank 1, token 2, slot 1] is 4", "bad.npy"));
    refused_entry("", NPY_I32, 5, layers, 24 + 12 + 6, 99,
        WORDS("[step 1, layer 1, rank 1, token 0, slot 0] is 99", "bad.npy"));
    refused_entry("counts:", NPY_I64, 3, counts, 14, -1,
        WORDS("[step 1, rank 1, expert 2] is -1", "0..2147483647"));
}

static void test_refused_folders(void)
{
    struct moe_trace trace;
    char error[ERROR_SIZE];
    static const int64_t plain[2] = {2, 2}, other[2] = {2, 3}, steps[3] = {1, 2, 2};
    static const int32_t bad[4] = {0, 0, 9, 0};

    mkdir(scratch_path(&scratch, "none").text, 0777);
    read_trace(&trace, "", "none", error);
    refused(error, WORDS("none", "rank_0.npy or 0.npy"));
    moe_trace_free(&trace);

    mkdir(scratch_path(&scratch, "gap").text, 0777);
    write_ascending("gap/rank_0.npy", NPY_I32, 2, plain, 4);
    write_ascending("gap/rank_1.npy", NPY_I32, 2, plain, 4);
    write_ascending("gap/rank_11.npy", NPY_I32, 2, plain, 4);
    read_trace(&trace, "", "gap", error);
    refused(error, WORDS("gap", "rank 11", "rank 2"));
    moe_trace_free(&trace);

    mkdir(scratch_path(&scratch, "unlike").text, 0777);
    write_ascending("unlike/0.npy", NPY_I32, 2, plain, 4);
    write_ascending("unlike/1.npy", NPY_I32, 2, other, 4);
    read_trace(&trace, "", "unlike", error);
    refused(error, WORDS("unlike/1.npy", "[2, 3]", "that of rank 0"));
    moe_trace_free(&trace);
    write_ascending("unlike/1.npy", NPY_I32, 3, steps, 4);
    read_trace(&trace, "", "unlike", error);
    refused(error, WORDS("unlike/1.npy", "[1, 2, 2]", "that of rank 0"));
    moe_trace_free(&trace);

    write_array("unlike/1.npy", NPY_I32, 2, plain, bad);
    must_read(&trace, "", "unlike");
    if (!moe_trace_check(&trace, 4, error, sizeof error))
        *error = 0;
    refused(error, WORDS("unlike/1.npy", "[token 1, slot 0] is 9"));
    int64_t tokens[4];
    if (!moe_trace_tokens(&trace, 4, 2, tokens, error, sizeof error))
        *error = 0;
    refused(error, WORDS("unlike/0.npy", "2 ranks", "--ranks is 4"));
    moe_trace_free(&trace);
}

static void test_refused_topk(void)
{
    struct moe_routing routing;
    char error[ERROR_SIZE] = "";
    int64_t shape[2] = {2, 2}, tokens[1] = {2};
    struct moe_shape problem = {.ranks = 1, .tokens = tokens, .experts = 4, .topk = 3};
    write_ascending("k.npy", NPY_I32, 2, shape, 4);
    int status =
        moe_routing_parse(&routing, scratch_path(&scratch, "k.npy").text, error, sizeof error);
    if (status == 0 && !moe_routing_check(&routing, &problem, error, sizeof error))
        *error = 0;
    refused(error, WORDS("k.npy", "top-k is 2 there and 3 here"));
    moe_routing_free(&routing);
}

/* ---- counts ---------------------------------------------------------------------------------- */

/* Two steps, two ranks, four experts. */
static const int64_t step_counts[2][2][4] = {
    {{5, 0, 3, 1}, {0, 0, 0, 0}}, {{1, 1, 0, 0}, {7, 7, 7, 6}}};

static bool has_counts(const struct moe_trace *trace, int64_t step, int rank, int64_t tokens)
{
    int32_t idx[100];
    int64_t met[4] = {0};
    if (moe_trace_fill(trace, step, rank, tokens, 2, idx))
        return false;
    for (int64_t i = 0; i < tokens * 2; i++) {
        if (idx[i] != MOE_EMPTY)
            met[idx[i]]++;
        if (i % 2 && idx[i] != MOE_EMPTY && idx[i] == idx[i - 1])
            return false; /* no expert has more routes than there are tokens */
    }
    return !memcmp(met, step_counts[step][rank], sizeof met);
}

static void test_counts(void)
{
    static const int64_t shape[3] = {2, 2, 4};
    struct moe_trace trace;
    int64_t tokens[2];
    char error[ERROR_SIZE] = "";
    write_array("counts.npy", NPY_I64, 3, shape, step_counts);
    must_read(&trace, "counts:", "counts.npy");
    tap_ok(trace.kind == MOE_TRACE_COUNTS && trace.steps == 2 && trace.layers == 1 &&
               trace.ranks == 2 && trace.experts == 4 && trace.topk == 0 &&
               !moe_trace_check(&trace, 4, error, sizeof error),
        "counts of 2 steps, 2 ranks, 4 experts %s", error);
    tap_ok(!moe_trace_tokens(&trace, 2, 2, tokens, error, sizeof error) && tokens[0] == 5 &&
               tokens[1] == 14,
        "tokens of the step with most routes: 9 routes are 5 tokens, 27 are 14");
    tap_ok(has_counts(&trace, 0, 0, 5) && has_counts(&trace, 0, 1, 14) &&
               has_counts(&trace, 1, 0, 5) && has_counts(&trace, 1, 1, 14),
        "dealt to tokens, the counts come back, no token naming an expert twice");
    if (!moe_trace_check(&trace, 8, error, sizeof error))
        *error = 0;
    refused(error, WORDS("counts.npy", "4 experts", "allowed 8"));
    moe_trace_free(&trace);
}

/* Contiguous chunks of a rank dealt from counts are alike: neighbours do not share an expert. */
static void test_counts_are_spread(void)
{
    static const int64_t shape[2] = {1, 4}, counts[4] = {2000, 0, 1000, 1000};
    static int32_t idx[4000];
    struct moe_trace trace;
    int64_t first_half = 0;
    write_array("spread.npy", NPY_I64, 2, shape, counts);
    must_read(&trace, "counts:", "spread.npy");
    if (moe_trace_fill(&trace, 0, 0, 4000, 1, idx))
        abort();
    for (int i = 0; i < 2000; i++)
        first_half += idx[i] == 0;
    tap_ok(first_half > 900 && first_half < 1100,
        "of 2000 routes of one expert %" PRId64 " are in the first half of the tokens", first_half);
    moe_trace_free(&trace);
}

static void test_refused_counts(void)
{
    static const int64_t shape[2] = {2, 2};
    static const int64_t many[4] = {1, 1, INT32_MAX, 1};
    struct moe_trace trace;
    char error[ERROR_SIZE];
    write_array("many.npy", NPY_I64, 2, shape, many);
    read_trace(&trace, "counts:", "many.npy", error);
    refused(error, WORDS("many.npy", "rank 1", "2147483648 routes"));
    moe_trace_free(&trace);
}

int main(void)
{
    if (!scratch_create(&scratch))
        return 1;
    test_layouts();
    test_folder("rank_%d.npy");
    test_folder("%d.npy");
    test_empty_slots();
    test_refused_files();
    test_refused_entries();
    test_refused_folders();
    test_refused_topk();
    test_counts();
    test_counts_are_spread();
    test_refused_counts();
    scratch_remove(&scratch);
    return tap_done();
}
