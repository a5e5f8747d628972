/* exp and log of every FP32, proved against MPFR, and the same on every instruction set.
 *
 * The proof needs no bound of any other library. Over ascending bit patterns of one sign the inputs
 * are monotone, so are exp and log, and so is rounding: where our results are equal at the ends of
 * a run of inputs and correct at both, the correct result is the same in between. So MPFR is asked
 * at both ends of every run of equal results, and every single input's result is ours to compare
 * within its run. Where a run's result is NaN the inputs are NaN throughout, or negative under log.
 *
 * Then the hash of all results must be the expected one, on every variant that this CPU runs: they
 * all equal the one that was proved. */
#include "tests/arith_hash_cpu.h"
#include <stdatomic.h>
#include <unistd.h>
#include "kernels/exp_log.h"
#include "kernels/isa.h"
#include "tests/tap.h"

#ifdef HAVE_MPFR
#include <mpfr.h>

#define FAULTS_KEPT 8

struct proof {
    void (*function)(const float *values, float *results, int64_t count);
    int (*exact)(mpfr_t result, const mpfr_t value, mpfr_rnd_t rounding);
    atomic_llong runs, faults;
    _Atomic uint32_t fault_inputs[FAULTS_KEPT];
};

/* MPFR numbers set up as FP32: 24 bits and FP32's exponents, denormals by mpfr_subnormalize. */
struct oracle {
    int (*exact)(mpfr_t result, const mpfr_t value, mpfr_rnd_t rounding);
    mpfr_t value, result;
};

static void oracle_open(
    struct oracle *oracle, int (*exact)(mpfr_t result, const mpfr_t value, mpfr_rnd_t rounding))
{
    oracle->exact = exact;
    mpfr_set_emin(-148);
    mpfr_set_emax(128);
    mpfr_init2(oracle->value, 24);
    mpfr_init2(oracle->result, 24);
}

static void oracle_close(struct oracle *oracle)
{
    mpfr_clear(oracle->value);
    mpfr_clear(oracle->result);
    mpfr_free_cache();
}

static float oracle_answer(struct oracle *oracle, float value)
{
    mpfr_set_flt(oracle->value, value, MPFR_RNDN);
    int inexact = oracle->exact(oracle->result, oracle->value, MPFR_RNDN);
    mpfr_subnormalize(oracle->result, inexact, MPFR_RNDN);
    return mpfr_get_flt(oracle->result, MPFR_RNDN);
}

static void check_one(struct proof *proof, struct oracle *oracle, const float *inputs,
    const float *results, int64_t i)
{
    float exact = oracle_answer(oracle, inputs[i]);
    if (f32_bits(exact) == f32_bits(results[i]) || (exact != exact && results[i] != results[i]))
        return;
    long long fault = atomic_fetch_add(&proof->faults, 1);
    if (fault < FAULTS_KEPT)
        atomic_store(&proof->fault_inputs[fault], f32_bits(inputs[i]));
}

/* A block lies on one side of zero and of infinity's end of the numbers: its inputs are monotone.
 */
static void prove_block(
    struct proof *proof, struct oracle *oracle, const float *inputs, const float *results)
{
    int64_t runs = 0;
    for (int64_t begin = 0, end; begin < ARITH_BLOCK; begin = end, runs++) {
        end = begin + 1;
        while (end < ARITH_BLOCK && f32_bits(results[end]) == f32_bits(results[begin]))
            end++;
        check_one(proof, oracle, inputs, results, begin);
        if (end - begin > 1)
            check_one(proof, oracle, inputs, results, end - 1);
    }
    atomic_fetch_add(&proof->runs, runs);
}

static void prove_part(void *context, int index, int parts)
{
    struct proof *proof = context;
    static _Thread_local float inputs[ARITH_BLOCK], results[ARITH_BLOCK];
    struct oracle oracle;
    oracle_open(&oracle, proof->exact);
    for (int64_t block = index; block < ARITH_BLOCKS; block += parts) {
        arith_block_inputs(block, inputs);
        proof->function(inputs, results, ARITH_BLOCK);
        arith_block_canonical(results);
        prove_block(proof, &oracle, inputs, results);
    }
    oracle_close(&oracle);
}

static void prove_body(void *context, const struct dev_team *team)
{
    team_run(team, team_size(team), prove_part, context);
}

static void prove(struct dev_pool *pool, struct proof *proof, const char *name)
{
    dev_pool_run(pool, dev_pool_threads(pool), prove_body, proof);
    long long faults = atomic_load(&proof->faults);
    tap_ok(!faults, "%s of all 2^32 inputs is MPFR's (%lld runs of equal results)", name,
        (long long)atomic_load(&proof->runs));
    for (long long i = 0; i < faults && i < FAULTS_KEPT; i++)
        tap_note("%s is wrong for the input with bits %08x", name,
            (unsigned)atomic_load(&proof->fault_inputs[i]));
}

static void prove_both(struct dev_pool *pool)
{
    struct proof of_exp = {.function = exp_cpu, .exact = mpfr_exp};
    struct proof of_log = {.function = log_cpu, .exact = mpfr_log};
    prove(pool, &of_exp, "exp");
    prove(pool, &of_log, "log");
}
#else
static void prove_both(struct dev_pool *pool)
{
    (void)pool;
    tap_skip("MPFR was not found when this was built", "exp of all 2^32 inputs is MPFR's");
    tap_skip("MPFR was not found when this was built", "log of all 2^32 inputs is MPFR's");
}
#endif

static void hash_on_every_isa(struct dev_pool *pool)
{
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        const char *name = isa_name((enum isa)isa);
        if (isa_force((enum isa)isa)) {
            tap_skip("this CPU does not run it", "hashes of exp and log on %s", name);
            continue;
        }
        uint64_t of_exp = arith_hash_cpu(pool, exp_cpu);
        uint64_t of_log = arith_hash_cpu(pool, log_cpu);
        tap_ok(of_exp == ARITH_EXP_HASH, "all 2^32 results of exp on %s: %016llx", name,
            (unsigned long long)of_exp);
        tap_ok(of_log == ARITH_LOG_HASH, "all 2^32 results of log on %s: %016llx", name,
            (unsigned long long)of_log);
    }
}

int main(void)
{
    int threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    struct dev_pool *pool = dev_pool_create(threads > 1 ? threads : 1);
    if (!tap_ok(pool != NULL, "a pool of %d threads", threads))
        return tap_done();
    prove_both(pool);
    hash_on_every_isa(pool);
    dev_pool_free(pool);
    return tap_done();
}
