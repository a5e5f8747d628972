/* The kernels of expert dispatch on CUDA against the CPU, byte by byte: empty and ragged groups,
 * both tile sizes, lent matrices, empty slots, all types, in place and apart, aligned and not. */
#include "tests/cuda_case.cuh"
extern "C" {
#include "kernels/gemm_fast.h"
#include "kernels/moe.h"
}

static const int64_t counts[] = {0, 1, 7, 8, 2048, 2055, 5003};
enum { COUNTS = sizeof counts / sizeof *counts };

/* ---- rows ------------------------------------------------------------------------------------ */

static int add_permutation(struct cuda_case *c, int64_t count, uint32_t seed)
{
    const int array = add_array(c, CONTENT_BYTES, count * (int64_t)sizeof(int32_t), 0, 0);
    permute((int32_t *)c->arrays[array].host, count, seed);
    return array;
}

static int add_row_bytes(struct cuda_case *c, int64_t bytes, uint32_t seed)
{
    const int array = add_array(c, CONTENT_BYTES, bytes, 0, 0);
    for (int64_t i = 0; i < bytes; i++)
        c->arrays[array].host[i] = (char)mixed(seed + (uint32_t)i);
    return array;
}

/* shift: bytes by which both matrices begin later than their blocks. */
template <typename Args>
static int64_t move_faults(
    const struct kernel *kernel, Args args, int64_t count, int64_t row_bytes, int64_t shift)
{
    struct cuda_case c = begin_case(kernel, &args, 0);
    const int64_t rows = count + 5;
    args.count = count;
    args.row_bytes = row_bytes;
    point_at(&c, &args.to, add_row_bytes(&c, rows * row_bytes + shift, 1), shift);
    point_at(&c, &args.from, add_row_bytes(&c, rows * row_bytes + shift, 2), shift);
    point(&c, &args.index, add_permutation(&c, rows, 3));
    return run_case(&c);
}

static void test_rows(void)
{
    static const int64_t lengths[] = {0, 1, 2, 4, 6, 16, 20, 48, 513, 8192};
    struct gather_rows_args gather = {};
    struct scatter_rows_args scatter = {};
    int64_t gathered = 0, scattered = 0;
    for (int l = 0; l < 10; l++)
        for (int64_t count = 0; count <= 70; count += 35)
            for (int64_t shift = 0; shift <= 4; shift += 2) {
                gathered += move_faults(&kernel_gather_rows, gather, count, lengths[l], shift);
                scattered += move_faults(&kernel_scatter_rows, scatter, count, lengths[l], shift);
            }
    tap_ok(!gathered, "gathered rows");
    tap_ok(!scattered, "scattered rows; those not named stay");
}

/* ---- expert products ------------------------------------------------------------------------- */

enum { GROUPS_MOST = 8, OWNED = 5, MATRICES = 9 };

/* Groups of so many rows with gaps before some, matrices in any order; returns the rows. */
static int64_t make_groups(struct expert_group *groups, const int64_t *rows, int count)
{
    int32_t weight[MATRICES];
    int64_t at = 0;
    permute(weight, MATRICES, 5);
    for (int i = 0; i < count; i++) {
        at += i % 3 == 1 ? 2 : 0;
        groups[i].first = at;
        groups[i].rows = rows[i];
        groups[i].weight = weight[i];
        groups[i].init = GEMM_FRESH;
        at += rows[i];
    }
    return at + 1;
}

static void add_matrices(struct cuda_case *c, struct expert_matrices *m, enum dtype type,
    int64_t elements, uint32_t seed)
{
    const int array = add_typed(c, type, MATRICES * elements, seed, 0);
    point(c, &m->owned, array);
    point_at(c, &m->lent, array, OWNED * elements);
    m->owned_count = OWNED;
    m->lent_count = MATRICES - OWNED;
}

/* The kernels of the fast path stand beside the CPU's exact ones: with small whole numbers no sum
 * is rounded, and every order gives the same bits. */
static struct kernel beside(const struct kernel *exact, int (*fast)(const void *, void *))
{
    struct kernel kernel = *exact;
    kernel.cuda = fast;
    return kernel;
}

static void make_whole(struct cuda_case *c)
{
    for (int i = 0; i < c->array_count; i++) {
        const struct case_array *array = &c->arrays[i];
        for (int64_t at = 0; at < array->bytes / element_bytes_of(array->content); at++) {
            const float value = (float)(mixed((uint32_t)(i * 1000003 + at)) % 7) - 3.0f;
            if (array->content == CONTENT_F32)
                ((float *)array->host)[at] = value;
            else if (array->content == CONTENT_BF16)
                ((uint16_t *)array->host)[at] = f32_to_bf16(value);
        }
    }
}

struct matmul_way {
    enum gemm_layout layout;
    enum dtype type, out_type;
    bool then, fast;
    int skew;
};

static int64_t matmul_faults(
    const int64_t *group_rows, int groups, int64_t n, int64_t k, const struct matmul_way &w)
{
    struct expert_group list[GROUPS_MOST];
    struct expert_matmul_args args;
    const struct kernel fast = beside(&kernel_expert_matmul, expert_matmul_fast_cuda);
    struct cuda_case c = begin_case(w.fast ? &fast : &kernel_expert_matmul, &args, w.skew);
    args.group_count = groups;
    args.rows = make_groups(list, group_rows, groups);
    args.n = n;
    args.k = k;
    args.layout = w.layout;
    args.type = w.type;
    args.out_type = w.out_type;
    point(&c, &args.groups, add_bytes(&c, list, groups * (int64_t)sizeof *list));
    point(&c, &args.a, add_typed(&c, w.type, args.rows * k, 1, 70));
    add_matrices(&c, &args.weights, w.type, n * k, 2);
    if (w.then)
        point(&c, &args.a_then, add_typed(&c, w.type, args.rows * k, 3, 0));
    add_matrices(&c, &args.weights_then, w.type, n * k, 4);
    point(&c, &args.out, add_typed(&c, w.out_type, args.rows * n, 5, 0));
    if (w.fast)
        make_whole(&c);
    return run_case(&c);
}

static struct matmul_way numbered(int number)
{
    struct matmul_way w;
    w.layout = number & 1 ? GEMM_NT : GEMM_NN;
    w.type = (enum dtype)(number >> 1 & 1);
    w.out_type = (enum dtype)(number >> 2 & 1);
    w.then = number >> 3 & 1;
    w.fast = false;
    w.skew = number % 5 == 4;
    return w;
}

static const int64_t few_rows[GROUPS_MOST] = {0, 1, 5, 0, 66, 17, 2, 0};
static const int64_t many_rows[2] = {700, 900};

static void test_matmul(void)
{
    static const int64_t sizes[][2] = {{1, 7}, {33, 70}, {72, 0}, {200, 1}, {136, 64}};
    int64_t faults = 0, large = 0;
    for (int s = 0; s < 5; s++)
        for (int number = 0; number < 16; number++)
            faults +=
                matmul_faults(few_rows, GROUPS_MOST, sizes[s][0], sizes[s][1], numbered(number));
    tap_ok(!faults, "expert products: all types and layouts, one chain and two");
    for (int number = 3; number < 16; number += 5)
        large += matmul_faults(many_rows, 2, 1410, 20, numbered(number));
    tap_ok(!large, "expert products in large tiles");
}

static int64_t gradient_faults(const int64_t *group_rows, int groups, int64_t m, int64_t n,
    enum dtype type, int turn, bool fast = false)
{
    struct expert_group list[GROUPS_MOST];
    struct expert_gradient_args args;
    const struct kernel quick = beside(&kernel_expert_gradient, expert_gradient_fast_cuda);
    struct cuda_case c = begin_case(fast ? &quick : &kernel_expert_gradient, &args, turn == 2);
    args.group_count = groups;
    args.rows = make_groups(list, group_rows, groups);
    for (int i = 0; i < groups; i++) /* all three starts in one launch; an empty group is fresh */
        list[i].init = list[i].rows ? (turn + i) % 3 : GEMM_FRESH;
    args.m = m;
    args.n = n;
    args.type = type;
    args.owned_count = OWNED;
    args.lent_count = MATRICES - OWNED;
    point(&c, &args.groups, add_bytes(&c, list, groups * (int64_t)sizeof *list));
    point(&c, &args.a, add_typed(&c, type, args.rows * m, 1, 0));
    point(&c, &args.b, add_typed(&c, type, args.rows * n, 2, 90));
    const int gradients = add_typed(&c, DTYPE_F32, MATRICES * m * n, 3, 50);
    point(&c, &args.owned, gradients);
    point_at(&c, &args.lent, gradients, OWNED * m * n);
    if (fast)
        make_whole(&c);
    return run_case(&c);
}

static void test_gradient(void)
{
    static const int64_t sizes[][2] = {{1, 9}, {33, 50}, {64, 64}, {70, 131}};
    static const int64_t rows[3] = {17, 0, 40};
    int64_t faults = 0;
    for (int s = 0; s < 4; s++)
        for (int way = 0; way < 6; way++)
            faults += gradient_faults(
                few_rows, GROUPS_MOST, sizes[s][0], sizes[s][1], (enum dtype)(way & 1), way / 2);
    tap_ok(!faults, "weight gradients: fresh, chained and added");
    tap_ok(!gradient_faults(rows, 3, 400, 1400, DTYPE_BF16, 0), "weight gradients in large tiles");
}

static void test_fast(void)
{
    static const int64_t sizes[][2] = {{1, 7}, {33, 70}, {136, 64}, {264, 0}};
    static const int64_t rows[3] = {130, 0, 40};
    int64_t products = 0, gradients = 0;
    for (int s = 0; s < 4; s++)
        for (int number = 0; number < 4; number++) {
            struct matmul_way w = numbered(number * 5 + s);
            w.type = DTYPE_BF16;
            w.fast = true;
            products += matmul_faults(few_rows, GROUPS_MOST, sizes[s][0], sizes[s][1], w);
        }
    for (int turn = 0; turn < 3; turn++) {
        gradients += gradient_faults(few_rows, GROUPS_MOST, 33, 50, DTYPE_BF16, turn, true);
        gradients += gradient_faults(rows, 3, 136, 128, DTYPE_BF16, turn, true);
    }
    tap_ok(!products, "expert products on tensor cores, of whole numbers");
    tap_ok(!gradients, "weight gradients on tensor cores, of whole numbers");
}

/* ---- activation ------------------------------------------------------------------------------ */

/* kind: 0 SwiGLU, 1 silu, 2 ReLU. place: which input the output is; 0 = none. */
static int64_t activation_faults(int64_t count, enum dtype type, int kind, int place, int turn)
{
    struct expert_activation_args args;
    struct cuda_case c = begin_case(&kernel_expert_activation, &args, turn == 1);
    const int every = turn == 2 ? 4 : 0;
    const int g = add_typed(&c, type, count + 1, 1, every);
    const int u = add_typed(&c, type, count + 1, 2, every);
    const int a = add_typed(&c, type, count + 1, 3, 0);
    args.count = count;
    args.type = type;
    if (kind != 2)
        point(&c, &args.g, g);
    if (kind != 1)
        point(&c, &args.u, u);
    point(&c, &args.a, !place ? a : kind == 1 ? g : u);
    return run_case(&c);
}

static int64_t backward_faults(int64_t count, enum dtype type, bool relu, bool in_place, int turn)
{
    struct expert_activation_backward_args args;
    struct cuda_case c = begin_case(&kernel_expert_activation_backward, &args, turn == 1);
    const int every = turn == 2 ? 4 : 0;
    const int g = add_typed(&c, type, count + 1, 1, every);
    const int u = add_typed(&c, type, count + 1, 2, every);
    const int dh = add_typed(&c, type, count + 1, 3, every);
    args.count = count;
    args.type = type;
    if (!relu)
        point(&c, &args.g, g);
    point(&c, &args.u, u);
    point(&c, &args.dh, dh);
    if (!relu)
        point(&c, &args.dg, in_place ? dh : add_typed(&c, type, count + 1, 4, 0));
    point(&c, &args.du, in_place ? u : add_typed(&c, type, count + 1, 5, 0));
    return run_case(&c);
}

static void test_activation(void)
{
    int64_t forward = 0, backward = 0;
    for (int i = 0; i < COUNTS; i++)
        for (int way = 0; way < 12; way++) {
            const enum dtype type = (enum dtype)(way & 1);
            const int turn = way / 4;
            for (int kind = 0; kind < 3; kind++)
                forward += activation_faults(counts[i], type, kind, way >> 1 & 1, turn);
            backward += backward_faults(counts[i], type, false, way >> 1 & 1, turn);
            backward += backward_faults(counts[i], type, true, way >> 1 & 1, turn);
        }
    tap_ok(!forward, "SwiGLU, silu and ReLU, apart and in place");
    tap_ok(!backward, "their gradients, apart and in place");
}

/* ---- combine --------------------------------------------------------------------------------- */

struct combine_way {
    enum dtype from_type, to_type;
    bool weighted, listed, take_first, continued;
    int skew;
};

static int64_t combine_faults(int64_t count, int64_t columns, int slots, const combine_way &w)
{
    struct combine_rows_args args;
    struct cuda_case c = begin_case(&kernel_combine_rows, &args, w.skew);
    const int64_t positions = count * slots;
    args.from_rows = positions;
    args.from_type = w.from_type;
    args.count = count;
    args.columns = columns;
    args.to_rows = w.listed ? count + 4 : count;
    args.slots = slots;
    args.take_first = w.take_first;
    args.continued = w.continued;
    args.to_type = w.to_type;
    point(&c, &args.from, add_typed(&c, w.from_type, positions * columns, 1, 6));
    const int position = add_permutation(&c, positions, 2);
    for (int64_t i = 0; i < positions; i++)
        if (mixed((uint32_t)i) % 4 == 0 || i / slots == 1)
            ((int32_t *)c.arrays[position].host)[i] = -1;
    point(&c, &args.position, position);
    if (w.weighted)
        point(&c, &args.weight, add_typed(&c, DTYPE_F32, args.to_rows * slots, 3, 0));
    if (w.listed)
        point(&c, &args.token, add_permutation(&c, args.to_rows, 4));
    point(&c, &args.to, add_typed(&c, w.to_type, args.to_rows * columns, 5, 6));
    return run_case(&c);
}

static void test_combine(void)
{
    static const int64_t sizes[][3] = {
        {0, 5, 2}, {1, 1, 1}, {7, 31, 3}, {30, 704, 4}, {9, 512, 9}, {3, 2057, 5}};
    int64_t faults = 0;
    for (int s = 0; s < 6; s++)
        for (int number = 0; number < 24; number++) {
            struct combine_way w;
            w.from_type = (enum dtype)(number & 1);
            w.to_type = (enum dtype)(number >> 1 & 1);
            w.listed = number >> 2 & 1;
            w.weighted = number / 8 == 0;
            w.take_first = number / 8 == 1;
            w.continued = w.to_type == DTYPE_F32 && !w.take_first && number % 3 == 1;
            w.skew = number % 5 == 2;
            faults += combine_faults(sizes[s][0], sizes[s][1], (int)sizes[s][2], w);
        }
    tap_ok(!faults, "sums over slots: weighted, plain, from the first row, continued");
}

/* ---- backward at a route --------------------------------------------------------------------- */

/* way: 1 with dw, 2 with de, 4 by indices, 8 de in place of dy (without indices). */
static int64_t route_faults(int64_t count, int64_t columns, enum dtype type, int way, int skew)
{
    struct route_backward_args args;
    struct cuda_case c = begin_case(&kernel_route_backward, &args, skew);
    const bool listed = way & 4;
    args.count = count;
    args.columns = columns;
    args.type = type;
    args.dy_rows = count + 2;
    args.routes = listed ? count + 3 : count;
    const int dy = add_typed(&c, type, args.dy_rows * columns, 1, 200);
    point(&c, &args.dy, dy);
    if (listed) {
        point(&c, &args.dy_row, add_permutation(&c, args.dy_rows, 2));
        point(&c, &args.route, add_permutation(&c, args.routes, 3));
    }
    if (way & 1) {
        point(&c, &args.e, add_typed(&c, type, count * columns, 4, 0));
        point(&c, &args.dw, add_typed(&c, DTYPE_F32, args.routes, 5, 0));
    }
    if (way & 2) {
        point(&c, &args.weight, add_typed(&c, DTYPE_F32, args.routes, 6, 9));
        const int de = way & 8 ? dy : add_typed(&c, type, count * columns, 7, 0);
        point(&c, &args.de, de);
    }
    return run_case(&c);
}

static void test_route_backward(void)
{
    static const int64_t columns[] = {1, 31, 64, 520, 4099, 13000};
    static const int ways[] = {1, 2, 3, 5, 6, 7, 10, 11};
    int64_t faults = 0;
    for (int i = 0; i < 6; i++)
        for (int way = 0; way < 8; way++)
            for (int turn = 0; turn < 3; turn++)
                faults += route_faults(i < 4 ? 4 * i + turn : turn, columns[i],
                    (enum dtype)((way + turn) & 1), ways[way], turn == 2);
    tap_ok(!faults, "backward at a route: dw, de, both; by indices and in place");
}

int main(void)
{
    if (!device_found())
        return 0;
    test_rows();
    test_matmul();
    test_gradient();
    test_fast();
    test_activation();
    test_combine();
    test_route_backward();
    return tap_done();
}
