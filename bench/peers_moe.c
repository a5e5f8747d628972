/* The kernels of expert dispatch: the experts' products in one launch beside one product of the
 * same operations, and the movement of rows beside a plain copy of as many bytes.
 *
 * The groups are ragged, as routing makes them, and each has a matrix of its own; the one product
 * has a single matrix for all rows. What is compared was checked against scalar loops
 * (tests/test_moe_kernels.c, tests/test_expert_kernels.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/peers.h"
#include "kernels/gemm.h"
#include "kernels/launch.h"
#include "kernels/moe.h"
#include "probe/seed.h"

enum { GROUPS = 8, ROWS = 4096, HIDDEN = 1024, FFN = 1024, SLOTS = 4 };
static const int64_t group_rows[GROUPS] = {1200, 0, 1000, 800, 506, 400, 142, 48};

enum { ROW_BYTES = 8192, MOVED_ROWS = 8192, MOVED_BYTES = ROW_BYTES * MOVED_ROWS };

/* ---- what runs ---------------------------------------------------------------------------- */

/* A launch of a kernel, on one thread or a team. */
struct launch {
    const struct kernel *kernel;
    const void *args;
    int threads;
    struct dev_pool *pool;
};

static void launch_on_team(void *context, const struct dev_team *team)
{
    const struct launch *launch = context;
    launch->kernel->cpu(launch->args, team);
}

static void run_launch(void *context)
{
    struct launch *launch = context;
    dev_pool_run(launch->pool, launch->threads, launch_on_team, launch);
}

struct copy_args {
    char *to;
    const char *from;
};

static void copy_part(void *context, int index, int parts)
{
    const struct copy_args *copy = context;
    struct item_range range = item_range(MOVED_BYTES, index, parts);
    memcpy(copy->to + range.begin, copy->from + range.begin, (size_t)(range.end - range.begin));
}

static void copy_cpu(const void *args, const struct dev_team *team)
{
    struct copy_args copy = *(const struct copy_args *)args;
    team_run(team, team_size(team), copy_part, &copy);
}

static const struct kernel kernel_copy = {.name = "copy", .cpu = copy_cpu};

/* ---- bars --------------------------------------------------------------------------------- */

/* Both on one thread and on two. */
static void bar(struct peers *peers, const char *what, const struct kernel *kernel,
    const void *args, const char *other_name, const struct kernel *other, const void *other_args,
    double work, const char *unit, double least)
{
    for (int threads = 1; threads <= 2; threads++) {
        char name[80];
        snprintf(name, sizeof name, "%s: %d thread%s", what, threads, threads > 1 ? "s" : "");
        struct launch ours = {kernel, args, threads, peers->pool};
        struct launch theirs = {other, other_args, threads, peers->pool};
        if (!peers_wants(peers, name))
            continue;
        if (threads > peers->cpu_count) {
            peers_skip(peers, name, "one CPU");
            continue;
        }
        peers_bar(peers, name,
            &(struct peers_contestant){
                .name = "ours", .run = run_launch, .context = &ours, .threads = threads},
            &(struct peers_contestant){
                .name = other_name, .run = run_launch, .context = &theirs, .threads = threads},
            work, unit, least);
    }
}

/* Operands of the products: rows [ROWS, FFN or HIDDEN], GROUPS matrices, room for a result. */
struct operands {
    void *a, *b, *weights;
    float *out;
    struct expert_group groups[GROUPS];
};

static void operands_free(struct operands *o)
{
    free(o->a);
    free(o->b);
    free(o->weights);
    free(o->out);
}

static void *seeded(enum dtype type, uint32_t tensor, int64_t count)
{
    void *values = aligned_alloc(4096, (size_t)(count * 4 + 4095) / 4096 * 4096);
    if (values && type == DTYPE_BF16)
        seed_fill_bf16(values, 1, tensor, 0, count, 1.0f);
    else if (values)
        seed_fill_f32(values, 1, tensor, 0, count, 1.0f);
    return values;
}

static int operands_create(struct operands *o, enum dtype type)
{
    const int64_t matrices = (int64_t)GROUPS * HIDDEN * FFN;
    *o = (struct operands){.a = seeded(type, 1, (int64_t)ROWS * HIDDEN),
        .b = seeded(type, 2, (int64_t)ROWS * FFN),
        .weights = seeded(type, 3, matrices),
        .out = seeded(DTYPE_F32, 4, matrices)};
    int64_t first = 0;
    for (int i = 0; i < GROUPS; i++) {
        o->groups[i] = (struct expert_group){first, group_rows[i], i, GEMM_FRESH};
        first += group_rows[i];
    }
    if (o->a && o->b && o->weights && o->out)
        return 0;
    fprintf(stderr, "peers: no memory for the experts' operands\n");
    operands_free(o);
    return -1;
}

static void product_bars(struct peers *peers, const struct operands *o, enum dtype type)
{
    const double work = 2.0 * ROWS * HIDDEN * FFN;
    for (int turned = 0; turned < 2; turned++) {
        struct expert_matmul_args grouped = {.groups = o->groups,
            .group_count = GROUPS,
            .rows = ROWS,
            .n = FFN,
            .k = HIDDEN,
            .layout = turned ? GEMM_NT : GEMM_NN,
            .type = type,
            .out_type = type,
            .a = o->a,
            .weights = {o->weights, NULL, GROUPS, 0},
            .out = o->out};
        struct gemm_args one = {.layout = grouped.layout,
            .a_type = type,
            .b_type = type,
            .m = ROWS,
            .n = FFN,
            .k = HIDDEN,
            .a = o->a,
            .lda = HIDDEN,
            .b = o->weights,
            .ldb = turned ? HIDDEN : FFN,
            .c = o->out,
            .ldc = FFN};
        char name[64];
        snprintf(name, sizeof name, "experts %s %s", turned ? "NT" : "NN",
            type == DTYPE_BF16 ? "BF16" : "FP32");
        bar(peers, name, &kernel_expert_matmul, &grouped, "one GEMM", &kernel_gemm, &one, work,
            "GF", 0.95);
    }
    struct expert_gradient_args gradient = {.groups = o->groups,
        .group_count = GROUPS,
        .rows = ROWS,
        .m = HIDDEN,
        .n = FFN,
        .type = type,
        .a = o->a,
        .b = o->b,
        .owned = o->out,
        .owned_count = GROUPS};
    struct gemm_args one = {.layout = GEMM_TN,
        .a_type = type,
        .b_type = type,
        .m = HIDDEN,
        .n = FFN,
        .k = ROWS,
        .a = o->a,
        .lda = HIDDEN,
        .b = o->b,
        .ldb = FFN,
        .c = o->out,
        .ldc = FFN};
    bar(peers, type == DTYPE_BF16 ? "experts' gradients BF16" : "experts' gradients FP32",
        &kernel_expert_gradient, &gradient, "one GEMM", &kernel_gemm, &one, work, "GF", 0.90);
}

/* The numbers below `count`, shuffled. */
static int32_t *shuffled(int64_t count)
{
    int32_t *list = malloc((size_t)count * sizeof *list);
    for (int64_t i = 0; list && i < count; i++)
        list[i] = (int32_t)i;
    for (int64_t i = count - 1; list && i > 0; i--) {
        int64_t j = seed_index(1, 5, i, i + 1);
        int32_t held = list[i];
        list[i] = list[j];
        list[j] = held;
    }
    return list;
}

/* Bytes moved count once read and once written. A combine reads SLOTS rows for each it writes. */
static int row_bars(struct peers *peers)
{
    char *from = seeded(DTYPE_F32, 6, MOVED_BYTES / 4), *to = seeded(DTYPE_F32, 7, MOVED_BYTES / 4);
    float *weight = seeded(DTYPE_F32, 8, MOVED_ROWS);
    int32_t *index = shuffled(MOVED_ROWS);
    if (!from || !to || !weight || !index) {
        fprintf(stderr, "peers: no memory for %d bytes of rows\n", 2 * MOVED_BYTES);
        free(from);
        free(to);
        free(weight);
        free(index);
        return -1;
    }
    struct copy_args copy = {to, from};
    struct gather_rows_args gather = {to, from, index, MOVED_ROWS, MOVED_ROWS, ROW_BYTES};
    struct scatter_rows_args scatter = {to, from, index, MOVED_ROWS, MOVED_ROWS, ROW_BYTES};
    struct combine_rows_args combine = {.from = from,
        .from_rows = MOVED_ROWS,
        .position = index,
        .weight = weight,
        .count = MOVED_ROWS / SLOTS,
        .columns = ROW_BYTES / 4,
        .to_rows = MOVED_ROWS / SLOTS,
        .slots = SLOTS,
        .to = to};
    bar(peers, "gather of 8 KiB rows", &kernel_gather_rows, &gather, "a plain copy", &kernel_copy,
        &copy, 2.0 * MOVED_BYTES, "GB", 0.9);
    bar(peers, "scatter of 8 KiB rows", &kernel_scatter_rows, &scatter, "a plain copy",
        &kernel_copy, &copy, 2.0 * MOVED_BYTES, "GB", 0.9);
    /* It moves (SLOTS + 1) / (2 SLOTS) of the copy's bytes: 5/8. */
    bar(peers, "combine of 4 slots", &kernel_combine_rows, &combine, "a plain copy", &kernel_copy,
        &copy, (1.0 + 1.0 / SLOTS) * MOVED_BYTES, "GB", 0.75 * 8.0 / 5.0);
    free(from);
    free(to);
    free(weight);
    free(index);
    return 0;
}

int peers_moe(struct peers *peers)
{
    printf("# %d experts, %d rows, H = F = %d; rates of a copy count its bytes, not ours\n", GROUPS,
        ROWS, HIDDEN);
    for (int type = 0; type < 2; type++) {
        struct operands operands;
        if (operands_create(&operands, (enum dtype)type))
            return -1;
        product_bars(peers, &operands, (enum dtype)type);
        operands_free(&operands);
    }
    return row_bars(peers);
}
