/* The kernel of rotary positions: what a launch costs and touches, its division over a team, and
 * the angles. The arithmetic is in rotary_isa.c. */
#include "kernels/rotary.h"
#include "kernels/isa_variants.h"
#include "kernels/launch.h"
#include "kernels/rotary_variants.h"

ISA_DECLARE(struct rotary_functions, rotary_functions);
static const struct rotary_functions *const variants[ISA_COUNT] = ISA_TABLE(rotary_functions);

static void run_part(void *context, int index, int parts)
{
    const struct rotary_args *args = context;
    struct item_range range = item_range(args->rows, index, parts);
    variants[isa_selected()]->turn(args, range.begin, range.end);
}

static void rotary_cpu(const void *launched, const struct dev_team *team)
{
    struct rotary_args args = *(const struct rotary_args *)launched;
    if (args.rows > 0)
        team_run(
            team, item_parts(team, args.rows, args.heads * args.head_columns), run_part, &args);
}

static int64_t turns_bytes(const struct rotary_args *args)
{
    return args->run * 2 * (args->head_columns / 2) * (int64_t)sizeof(float);
}

static int64_t x_bytes(const struct rotary_args *args)
{
    return args->rows * args->heads * args->head_columns * dtype_bytes(args->type);
}

static void rotary_cost(const void *launched, struct kernel_cost *cost)
{
    const struct rotary_args *args = launched;
    double pairs = (double)(args->rows * args->heads) * (double)(args->head_columns / 2);
    *cost = (struct kernel_cost){.flops = 6 * pairs,
        .bytes = 2 * (double)x_bytes(args) + (double)turns_bytes(args),
        .rate = DEV_RATE_F32};
}

static int rotary_access(const void *launched, struct dev_access *ranges)
{
    const struct rotary_args *args = launched;
    int count = add_access(ranges, 0, args->turns, turns_bytes(args), false);
    return add_access(ranges, count, args->x, x_bytes(args), true);
}

int rotary_cuda(const void *args, void *cuda_stream) __attribute__((weak));
const struct kernel kernel_rotary = {
    .name = "rotary",
    .cpu = rotary_cpu,
    .cuda = rotary_cuda,
    .cost = rotary_cost,
    .access = rotary_access,
};

void rotary(struct stream *stream, const struct rotary_args *args)
{
    dev_launch(stream, &kernel_rotary, args, sizeof *args);
}

/* ---- angles ---------------------------------------------------------------------------------- */

struct turn {
    double cosine, sine;
};

/* Of an angle in [0, 1], by the series: 20 terms leave less than FP64 can tell. */
static struct turn turn_by(double angle)
{
    struct turn turn = {1, angle};
    double term = angle;
    for (int n = 2; n <= 20; n++) {
        term = term * angle / n;
        double signed_term = n % 4 < 2 ? term : -term;
        if (n % 2)
            turn.sine += signed_term;
        else
            turn.cosine += signed_term;
    }
    return turn;
}

static struct turn both(struct turn a, struct turn b)
{
    return (struct turn){
        a.cosine * b.cosine - a.sine * b.sine, a.sine * b.cosine + a.cosine * b.sine};
}

void rotary_turns(int64_t first, int64_t run, int64_t half, float *turns)
{
    const float log_base = 9.2103404f; /* of 10000 */
    for (int64_t i = 0; i < half; i++) {
        const struct turn step = turn_by(arith_exp(-log_base * ((float)i / (float)half)));
        struct turn at = {1, 0};
        for (int64_t place = 0; place < first; place++)
            at = both(at, step);
        for (int64_t place = 0; place < run; place++, at = both(at, step)) {
            turns[place * 2 * half + i] = (float)at.cosine;
            turns[place * 2 * half + half + i] = (float)at.sine;
        }
    }
}
