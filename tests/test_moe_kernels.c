/* The kernels that move and sum rows of expert dispatch against scalar loops, bit by bit: every
 * instruction set, teams of one to three, FP32 and BF16, ragged sizes, and empty slots. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/moe.h"
#include "tests/kernel_run.h"
#include "tests/moe_kernels_case.h"
#include "tests/tap.h"

/* ---- rows --------------------------------------------------------------------------------- */

/* Moves rows by a permutation of more rows than are named. */
static int64_t move_faults(struct dev_pool *pool, int64_t count, int64_t row_bytes, bool scatter)
{
    int64_t rows = count + 3, bytes = rows * row_bytes;
    char *from = malloc((size_t)bytes + 1), *to = malloc((size_t)bytes + 1);
    char *want = malloc((size_t)bytes + 1);
    int32_t *index = array_permutation(rows);
    int64_t faults = 0;
    if (!from || !to || !want)
        abort();
    for (int64_t i = 0; i < bytes; i++)
        from[i] = (char)(i * 131 + (i >> 9));
    memset(want, 0x5a, (size_t)bytes + 1);
    for (int64_t i = 0; i < count; i++)
        memcpy(want + (scatter ? index[i] : i) * row_bytes,
            from + (scatter ? i : index[i]) * row_bytes, (size_t)row_bytes);
    for (int width = 1; width <= MOE_KERNEL_WIDTHS; width++) {
        memset(to, 0x5a, (size_t)bytes + 1);
        struct gather_rows_args gather = {to, from, index, count, rows, row_bytes};
        struct scatter_rows_args put = {to, from, index, count, rows, row_bytes};
        if (scatter)
            kernel_run(pool, width, &kernel_scatter_rows, &put);
        else
            kernel_run(pool, width, &kernel_gather_rows, &gather);
        faults += memcmp(to, want, (size_t)bytes + 1) != 0;
    }
    free(from);
    free(to);
    free(want);
    free(index);
    return faults;
}

static void test_rows(struct dev_pool *pool)
{
    static const int64_t counts[] = {0, 1, 7, 300}, sizes[] = {1, 4, 6, 64, 200, 4096};
    int64_t gather = 0, scatter = 0;
    for (int c = 0; c < 4; c++)
        for (int s = 0; s < 6; s++) {
            gather += move_faults(pool, counts[c], sizes[s], false);
            scatter += move_faults(pool, counts[c], sizes[s], true);
        }
    tap_ok(!gather, "gathered rows");
    tap_ok(!scatter, "scattered rows; those not named stay");
    /* Long enough to be written past the caches; rows that begin and end within a line. */
    tap_ok(!move_faults(pool, 1100, 8190, false), "gathered rows, streamed");
    tap_ok(!move_faults(pool, 1100, 8190, true), "scattered rows, streamed");
}

/* ---- combine ------------------------------------------------------------------------------ */

struct combine_case {
    enum dtype from_type, to_type;
    int64_t count, columns;
    int slots;
    bool weighted, listed, take_first, continued;
};

static int64_t combine_faults(struct dev_pool *pool, const struct combine_case *c)
{
    int64_t positions = c->count * c->slots, to_rows = c->listed ? c->count + 4 : c->count;
    struct array from = array_of(c->from_type, positions * c->columns, 1);
    struct array weight = array_of(DTYPE_F32, to_rows * c->slots, 2);
    struct array to = array_of(c->to_type, to_rows * c->columns, 3), want = array_copy(&to);
    int32_t *position = array_permutation(positions), *token = array_permutation(to_rows);
    for (int64_t i = 0; i < positions; i++) {
        if (array_random_below(4) == 0 || i / c->slots == 1)
            position[i] = -1;
        else if (position[i] % 5 == 0) /* rows of -0, which a chain from +0 turns into +0 */
            for (int64_t h = 0; h < c->columns; h++)
                array_set(&from, position[i] * c->columns + h, -0.0f);
    }
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t h = 0; h < c->columns; h++) {
            int64_t t = c->listed ? token[i] : i;
            float sum = c->continued ? array_get(&want, t * c->columns + h) : 0.0f;
            bool any = false;
            for (int slot = 0; slot < c->slots; slot++) {
                int32_t p = position[i * c->slots + slot];
                if (p < 0)
                    continue;
                float value = array_get(&from, p * c->columns + h);
                if (c->weighted)
                    sum = fmaf(array_get(&weight, t * c->slots + slot), value, sum);
                else
                    sum = c->take_first && !any ? value : sum + value;
                any = true;
            }
            array_set(&want, t * c->columns + h, sum);
        }
    struct combine_rows_args args = {.from = from.values,
        .from_rows = positions,
        .from_type = c->from_type,
        .position = position,
        .weight = c->weighted ? weight.values : NULL,
        .token = c->listed ? token : NULL,
        .count = c->count,
        .columns = c->columns,
        .to_rows = to_rows,
        .slots = c->slots,
        .take_first = c->take_first,
        .continued = c->continued,
        .to_type = c->to_type,
        .to = to.values};
    struct launch launch = {pool, &kernel_combine_rows, &args, {&to}, {&want}};
    int64_t faults = launch_faults(&launch);
    array_release((struct array *[]){&from, &weight, &to, &want}, 4);
    free(position);
    free(token);
    return faults;
}

static void test_combine(struct dev_pool *pool)
{
    static const int64_t sizes[][3] = {
        {0, 5, 2}, {1, 1, 1}, {7, 31, 3}, {60, 700, 4}, {9, 513, 64}};
    int64_t weighted = 0, plain = 0, first = 0, continued = 0;
    for (int s = 0; s < 5; s++)
        for (int way = 0; way < 8; way++) {
            struct combine_case c = {way & 1, (way >> 1) & 1, sizes[s][0], sizes[s][1],
                (int)sizes[s][2], true, way >> 2, false, false};
            weighted += combine_faults(pool, &c);
            c.continued = true;
            continued += c.to_type == DTYPE_F32 ? combine_faults(pool, &c) : 0;
            c.continued = false;
            c.weighted = false;
            plain += combine_faults(pool, &c);
            c.take_first = true;
            first += combine_faults(pool, &c);
            c.take_first = false;
            c.continued = true;
            continued += c.to_type == DTYPE_F32 ? combine_faults(pool, &c) : 0;
        }
    tap_ok(!weighted, "combine: weighted rows, slots ascending, empty slots passed over");
    tap_ok(!plain, "rows added from +0");
    tap_ok(!first, "rows added from the first of them");
    tap_ok(!continued, "both kinds of sums continued from what was there");
}

/* ---- backward at a route ------------------------------------------------------------------ */

static float expect_dot(
    const struct array *a, int64_t a_at, const struct array *b, int64_t b_at, int64_t count)
{
    float lanes[ARITH_LANES] = {0.0f};
    for (int64_t i = 0; i < count; i++)
        lanes[i % ARITH_LANES] =
            fmaf(array_get(a, a_at + i), array_get(b, b_at + i), lanes[i % ARITH_LANES]);
    return arith_add_lanes(lanes);
}

/* Indexed: more tokens and routes than rows, in any order. In place: de is dy. */
static int64_t route_faults(
    struct dev_pool *pool, enum dtype type, int64_t count, int64_t columns, bool indexed)
{
    int64_t dy_rows = indexed ? count / 2 + 1 : count, routes = indexed ? count + 5 : count;
    struct array dy = array_of(type, dy_rows * columns, 1), e = array_of(type, count * columns, 2);
    struct array weight = array_of(DTYPE_F32, routes, 3), dw = array_of(DTYPE_F32, routes, 4);
    struct array apart = array_of(type, count * columns, 5);
    struct array *de = indexed ? &apart : &dy;
    struct array want_de = array_copy(de), want_dw = array_copy(&dw);
    int32_t *dy_row = array_permutation(count), *route = array_permutation(routes);
    for (int64_t i = 0; i < count; i++)
        dy_row[i] %= (int32_t)dy_rows;
    for (int64_t i = 0; i < count; i++) {
        int64_t t = indexed ? dy_row[i] : i, r = indexed ? route[i] : i;
        array_set(&want_dw, r, expect_dot(&e, i * columns, &dy, t * columns, columns));
        for (int64_t h = 0; h < columns; h++)
            array_set(
                &want_de, i * columns + h, array_get(&weight, r) * array_get(&dy, t * columns + h));
    }
    struct route_backward_args args = {.count = count,
        .columns = columns,
        .type = type,
        .dy = dy.values,
        .dy_rows = dy_rows,
        .dy_row = indexed ? dy_row : NULL,
        .route = indexed ? route : NULL,
        .routes = routes,
        .weight = weight.values,
        .e = e.values,
        .de = de->values,
        .dw = dw.values};
    struct launch launch = {pool, &kernel_route_backward, &args, {de, &dw}, {&want_de, &want_dw}};
    int64_t faults = launch_faults(&launch);
    if (indexed) { /* either half alone; what the other would write stays */
        args.de = NULL;
        launch = (struct launch){pool, &kernel_route_backward, &args, {&dw}, {&want_dw}};
        faults += launch_faults(&launch);
        args.dw = NULL;
        args.e = NULL;
        args.de = de->values;
        launch = (struct launch){pool, &kernel_route_backward, &args, {de}, {&want_de}};
        faults += launch_faults(&launch);
    }
    array_release((struct array *[]){&dy, &e, &weight, &dw, &apart, &want_de, &want_dw}, 7);
    free(dy_row);
    free(route);
    return faults;
}

static void test_route(struct dev_pool *pool)
{
    static const int64_t sizes[][2] = {{0, 8}, {1, 1}, {9, 31}, {40, 1000}, {3, 64}};
    int64_t indexed = 0, in_place = 0;
    for (int s = 0; s < 5; s++)
        for (int type = 0; type < 2; type++) {
            indexed += route_faults(pool, type, sizes[s][0], sizes[s][1], true);
            in_place += route_faults(pool, type, sizes[s][0], sizes[s][1], false);
        }
    tap_ok(!indexed, "dw and de found by indices, together and alone");
    tap_ok(!in_place, "dw and de of received rows, de in place of dy");
}

int main(void)
{
    struct dev_pool *pool = dev_pool_create(MOE_KERNEL_WIDTHS);
    if (tap_ok(pool != NULL, "a pool of %d threads", MOE_KERNEL_WIDTHS)) {
        test_rows(pool);
        test_combine(pool);
        test_route(pool);
    }
    dev_pool_free(pool);
    return tap_done();
}
