/* exp and log over arrays against the C library's expf and logf, one thread.
 *
 * The C library rounds most results correctly and has no promise to give the same bits elsewhere;
 * ours are correct for every input and the same everywhere. The bars say that this is no reason to
 * be slow: a loop over expf is what a kernel would contain otherwise. The arrays stay in the
 * first-level cache. Before anything is timed, ours are checked against arith_exp and arith_log. */
#include <math.h>
#include <stdbool.h>
#include "bench/peers.h"
#include "kernels/arith.h"
#include "kernels/exp_log.h"
#include "probe/seed.h"

enum { COUNT = 4096 };

struct arrays {
    float values[COUNT], results[COUNT];
};

static void run_exp(void *context)
{
    struct arrays *arrays = context;
    exp_cpu(arrays->values, arrays->results, COUNT);
}

static void run_log(void *context)
{
    struct arrays *arrays = context;
    log_cpu(arrays->values, arrays->results, COUNT);
}

static void run_expf(void *context)
{
    struct arrays *arrays = context;
    for (int i = 0; i < COUNT; i++)
        arrays->results[i] = expf(arrays->values[i]);
}

static void run_logf(void *context)
{
    struct arrays *arrays = context;
    for (int i = 0; i < COUNT; i++)
        arrays->results[i] = logf(arrays->values[i]);
}

static bool is_right(const struct arrays *arrays, bool is_log)
{
    for (int i = 0; i < COUNT; i++) {
        float right = is_log ? arith_log(arrays->values[i]) : arith_exp(arrays->values[i]);
        if (f32_bits(right) != f32_bits(arrays->results[i]))
            return false;
    }
    return true;
}

static void bar(struct peers *peers, const char *name, bool is_log, double least)
{
    struct arrays arrays;
    struct peers_contestant ours = {.name = is_log ? "log" : "exp",
        .run = is_log ? run_log : run_exp,
        .context = &arrays,
        .threads = 1};
    struct peers_contestant other = {.name = is_log ? "logf" : "expf",
        .run = is_log ? run_logf : run_expf,
        .context = &arrays,
        .threads = 1};
    if (!peers_wants(peers, name))
        return;
    /* exp over [-10, 10), log over (0, 100]: ordinary arguments, no special case on either side. */
    for (int i = 0; i < COUNT; i++) {
        float value = seed_f32(1, 0, i, is_log ? 50.0f : 10.0f);
        arrays.values[i] = is_log ? 50.0f - value : value;
    }
    ours.run(&arrays);
    if (!is_right(&arrays, is_log))
        peers_fault(peers, name, "a result differs from kernels/arith.h");
    else
        peers_bar(peers, name, &ours, &other, COUNT, "G", least);
}

int peers_math_avx512(struct peers *peers)
{
    bar(peers, "exp, AVX-512", false, 2.0);
    bar(peers, "log, AVX-512", true, 2.0);
    return 0;
}

int peers_math_avx2(struct peers *peers)
{
    bar(peers, "exp, AVX2", false, 1.1);
    bar(peers, "log, AVX2", true, 1.1);
    return 0;
}
