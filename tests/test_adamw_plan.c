/* What follows from counts and times alone: shards, the flat order, buckets, model lists, Eq. 5. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/adamw_time.h"
#include "bench/harness/model_list.h"
#include "tests/adamw_case.h"
#include "tests/scratch.h"
#include "tests/tap.h"

/* ---- shards -------------------------------------------------------------------------------- */

static void test_shards(void)
{
    bool tiles = true, order = true;
    for (int world = 1; world <= 9; world++) {
        int64_t next[ADAMW_CASE_TENSORS] = {0}, total = 0;
        for (int rank = 0; rank < world; rank++) {
            struct adamw_shape shape;
            if (adamw_shape_init(&shape, adamw_case_tensors, ADAMW_CASE_TENSORS, world, rank))
                abort();
            int64_t at[ADAMW_GROUPS] = {shape.group_first[0], shape.group_first[1]};
            for (int64_t i = 0; i < shape.tensors; i++) {
                const struct adamw_part *part = &shape.part[i];
                tiles &= part->global_first == next[i];
                order &= part->first == at[part->group];
                at[part->group] += part->count;
                next[i] += part->count;
            }
            order &= at[0] == shape.group_first[1] && at[1] == shape.params;
            total += shape.params;
            adamw_shape_free(&shape);
        }
        for (int i = 0; i < ADAMW_CASE_TENSORS; i++)
            tiles &= next[i] == adamw_case_tensors[i].count;
        tiles &= total == ADAMW_CASE_PARAMS;
    }
    tap_ok(tiles, "shards of 1 to 9 ranks tile every tensor");
    tap_ok(order, "the flat order is decay first, then no decay, each in the model's order");
}

/* ---- buckets ------------------------------------------------------------------------------- */

/* Buckets follow one another without a gap, each within one group. */
static bool tiles_groups(const struct adamw_plan *plan, const struct adamw_shape *shape)
{
    int64_t next = 0, largest = 0;
    for (int64_t b = 0; b < plan->buckets; b++) {
        const struct adamw_bucket *bucket = &plan->bucket[b];
        if (bucket->first != next || bucket->count < 1 ||
            bucket->first < shape->group_first[bucket->group] ||
            bucket->first + bucket->count > shape->group_first[bucket->group + 1])
            return false;
        next += bucket->count;
        largest = bucket->count > largest ? bucket->count : largest;
    }
    return next == shape->params && largest == plan->largest;
}

/* Every end of a bucket is an end of a tensor, and all but a group's last hold what was asked for.
 */
static bool holds_whole_tensors(
    const struct adamw_plan *plan, const struct adamw_shape *shape, int64_t least)
{
    for (int64_t b = 0; b < plan->buckets; b++) {
        int64_t end = plan->bucket[b].first + plan->bucket[b].count, last = 0;
        bool ends = false;
        for (int64_t i = 0; i < shape->tensors; i++)
            if (shape->part[i].first + shape->part[i].count == end && shape->part[i].count) {
                ends = true;
                last = shape->part[i].count;
            }
        bool group_ends = end == shape->group_first[plan->bucket[b].group + 1];
        if (!ends || (plan->bucket[b].count < least && !group_ends) ||
            plan->bucket[b].count - last >= least)
            return false;
    }
    return true;
}

static void test_buckets(void)
{
    bool cut = true, whole = true;
    struct adamw_shape shape;
    if (adamw_shape_init(&shape, adamw_case_tensors, ADAMW_CASE_TENSORS, 1, 0))
        abort();
    for (int64_t size = 1; size < ADAMW_CASE_PARAMS + 3; size += 1 + size / 9) {
        struct adamw_plan plan;
        if (adamw_plan_cut(&plan, &shape, size))
            abort();
        cut &= tiles_groups(&plan, &shape) && plan.largest <= size;
        adamw_plan_free(&plan);
        if (adamw_plan_whole_tensors(&plan, &shape, size))
            abort();
        whole &= tiles_groups(&plan, &shape) && holds_whole_tensors(&plan, &shape, size);
        adamw_plan_free(&plan);
    }
    adamw_shape_free(&shape);
    tap_ok(cut, "cut buckets tile the groups and none is larger than asked for");
    tap_ok(whole, "whole-tensor buckets are closed at the first tensor that fills them");
}

/* ---- model lists --------------------------------------------------------------------------- */

/* Parameters of an end-to-end model of so many layers: attention, router, experts, two norms each;
 * one embedding and a last norm. */
static int64_t end_to_end(int64_t layers)
{
    const int64_t hidden = 7168, experts = 384, width = 2048, vocab = 200000;
    int64_t layer =
        4 * hidden * hidden + experts * hidden + experts * 3 * hidden * width + 2 * hidden;
    return layers * layer + vocab * hidden + hidden;
}

static void test_models(void)
{
    const struct {
        const char *name;
        int64_t tensors, params;
        double named;
    } models[] = {{"gpt-oss-20b", 3 + 24 * 17, 20914757184, 21e9},
        {"e2e-120b", 2 + 7 * 9, end_to_end(7), 120e9},
        {"e2e-241b", 2 + 14 * 9, end_to_end(14), 241e9},
        {"e2e-667b", 2 + 39 * 9, end_to_end(39), 667e9}};
    char error[512];
    for (int i = 0; i < 4; i++) {
        struct model_list list;
        if (model_list_read(&list, models[i].name, error, sizeof error)) {
            tap_ok(false, "%s: %s", models[i].name, error);
            continue;
        }
        tap_ok(list.tensors == models[i].tensors && list.params == models[i].params &&
                   fabs((double)list.params / models[i].named - 1) < 0.02,
            "%s: %lld tensors, %lld parameters, within 2 %% of its name", models[i].name,
            (long long)list.tensors, (long long)list.params);
        model_list_free(&list);
    }
}

/* The printed rows of Table 14. */
static void test_gpt_oss_buckets(void)
{
    static const struct {
        int64_t least, buckets;
        double largest_millions;
    } rows[] = {{100000000, 26, 142.076}, {150000000, 14, 208.431}, {200000000, 14, 244.938},
        {250000000, 10, 308.586}};
    struct model_list list;
    struct adamw_shape shape;
    char error[512];
    if (model_list_read(&list, "gpt-oss-20b", error, sizeof error) ||
        adamw_shape_init(&shape, list.tensor, list.tensors, 8, 0))
        abort();
    for (int i = 0; i < 4; i++) {
        struct adamw_plan plan;
        if (adamw_plan_whole_tensors(&plan, &shape, rows[i].least))
            abort();
        tap_ok(plan.buckets == rows[i].buckets &&
                   fabs((double)plan.largest / 1e6 - rows[i].largest_millions) < 0.0005,
            "gpt-oss-20b on 8 ranks, %lldM: %lld buckets, the largest of %lld",
            (long long)rows[i].least / 1000000, (long long)plan.buckets, (long long)plan.largest);
        adamw_plan_free(&plan);
    }
    adamw_shape_free(&shape);
    model_list_free(&list);
}

static void test_refused_lists(void)
{
    static const struct {
        const char *text, *word;
    } faults[] = {{"", "at least one tensor"}, {"a 3x decay\n", "'3x'"}, {"a 3x0 decay\n", "'3x0'"},
        {"a 3\n", "NAME SHAPE"}, {"a 3 decay extra\n", "'extra'"},
        {"a 3 maybe\n", "decay or no-decay"}, {"end\n", "end after repeat"},
        {"repeat 2 b\na 3 decay\n", "end after repeat"}, {"repeat 0 b\n", "1 to 100000"},
        {"repeat 2 b\nrepeat 2 c\n", "within a block"},
        {"ok 1 decay\na 9223372036854775807 decay\n", "2^63"},
        {"repeat 100000 b\na 100000000000000 decay\nend\n", "2^63"},
        {"a 3000000000x3000000000x3 decay\n", "3000000000x"}};
    struct scratch scratch;
    char error[512];
    if (!scratch_create(&scratch))
        abort();
    for (int i = 0; i < 13; i++) {
        struct scratch_path path = scratch_path(&scratch, "model.txt");
        struct model_list list;
        if (!scratch_write(path.text, faults[i].text, strlen(faults[i].text)))
            abort();
        int status = model_list_read(&list, path.text, error, sizeof error);
        tap_ok(status == -1 && strstr(error, faults[i].word), "refused: %s", error);
    }
    struct model_list list;
    int status = model_list_read(&list, "no-such-model", error, sizeof error);
    tap_ok(status == -1 && strstr(error, "no-such-model") && strstr(error, "gpt-oss-20b"),
        "refused: %s", error);
    scratch_remove(&scratch);
}

static void test_accepted_list(void)
{
    static const char text[] = "# a model\na 2x3 decay # trailing\n\nrepeat 3 layer\n  w 5 decay\n"
                               "\tb 7 no-decay\nend\nz 1 no-decay";
    struct scratch scratch;
    struct model_list list;
    char error[512] = "";
    if (!scratch_create(&scratch))
        abort();
    struct scratch_path path = scratch_path(&scratch, "model.txt");
    if (!scratch_write(path.text, text, strlen(text)))
        abort();
    bool fine = model_list_read(&list, path.text, error, sizeof error) == 0;
    tap_ok(fine && list.tensors == 8 && list.params == 6 + 3 * 12 + 1 &&
               !strcmp(list.tensor[5].name, "layer.2.w") && list.tensor[6].count == 7 &&
               list.tensor[6].group == ADAMW_NO_DECAY && list.tensor[7].count == 1,
        "comments, blank lines, a repeated block and a last line without its end are read %s",
        error);
    model_list_free(&list);
    scratch_remove(&scratch);
}

/* ---- times --------------------------------------------------------------------------------- */

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * (fabs(a) + fabs(b));
}

static void test_stream_time(void)
{
    struct adamw_stages s = {.up_s = 4, .update_s = 1, .down_s = 3, .buckets = 10, .slots = 1};
    tap_ok(near(adamw_stream_s(&s), 80), "one slot: the plain sum");
    s.slots = 2;
    tap_ok(near(adamw_stream_s(&s), 9 * 4 + 8), "two slots: Eq. 5");
    s.slots = 4;
    tap_ok(near(adamw_stream_s(&s), 9 * 4 + 8), "more slots: nothing more");
    s = (struct adamw_stages){2, 2, 2, 10, 2};
    tap_ok(near(adamw_stream_s(&s), 9 * 3 + 6), "two slots, equal stages: the slot's round trip");
    s.slots = 3;
    tap_ok(near(adamw_stream_s(&s), 9 * 2 + 6), "three slots, equal stages: Eq. 5");
    s.buckets = 0.5;
    tap_ok(near(adamw_stream_s(&s), 3), "half a bucket");
}

static void add(struct trace *trace, int rank, enum trace_kind kind, const char *name,
    double begin_s, double end_s)
{
    trace_add_span(trace, &(struct trace_span){.rank = rank,
                              .kind = kind,
                              .stream = "s",
                              .name = name,
                              .begin_s = begin_s,
                              .end_s = end_s});
}

static void test_overlap(void)
{
    struct overlap o;
    struct trace *trace = trace_create();
    tap_ok(!overlap_measure(trace, 0, NULL, &o) && isnan(o.fraction) && o.elapsed_s == 0,
        "nothing traced: no fraction");
    add(trace, 0, TRACE_COPY, "h2d", 0, 2);
    add(trace, 0, TRACE_KERNEL, "adamw", 2, 3);
    add(trace, 0, TRACE_COPY, "d2h", 3, 4);
    add(trace, 1, TRACE_COPY, "d2h", 0, 100); /* another rank's */
    add(trace, 0, TRACE_WAIT, "main", 0, 50);
    tap_ok(!overlap_measure(trace, 0, NULL, &o) && near(o.elapsed_s, 4) && o.fraction == 0,
        "stages that take turns: 0");
    trace_clear(trace);
    add(trace, 0, TRACE_COPY, "h2d", 0, 4);
    add(trace, 0, TRACE_COPY, "h2d", 3, 5); /* overlapping itself counts once */
    add(trace, 0, TRACE_KERNEL, "adamw", 1, 3);
    add(trace, 0, TRACE_KERNEL, "other", 5, 9);
    add(trace, 0, TRACE_COPY, "d2h", 2, 4);
    tap_ok(!overlap_measure(trace, 0, "adamw", &o) && near(o.busy_s[OVERLAP_UP], 5) &&
               near(o.busy_s[OVERLAP_COMPUTE], 2) && near(o.union_s, 5) && near(o.fraction, 1),
        "all hidden behind the longest: 1");
    tap_ok(!overlap_measure(trace, 0, NULL, &o) && near(o.union_s, 9) &&
               near(o.fraction, (5 + 6 + 2 - 9) / (13.0 - 6)),
        "every kernel counts where none is named");
    struct copy_time copies = overlap_copies(trace, 0);
    tap_ok(near(copies.busy_s, 5) && near(copies.hidden_s, 2) && near(copies.exposed_s, 3),
        "exposed: copies' union without what kernels ran beside");
    copies = overlap_copies(trace, 1);
    tap_ok(copies.busy_s == 0 && copies.exposed_s == 0, "a rank without copies has none exposed");
    trace_add_lost(trace, 1);
    copies = overlap_copies(trace, 0);
    tap_ok(!overlap_measure(trace, 0, NULL, &o) && isnan(o.fraction) && isnan(copies.busy_s) &&
               isnan(copies.exposed_s),
        "a record was dropped: neither is known");
    trace_free(trace);
}

int main(void)
{
    test_shards();
    test_buckets();
    test_models();
    test_gpt_oss_buckets();
    test_accepted_list();
    test_refused_lists();
    test_stream_time();
    test_overlap();
    return tap_done();
}
