/* Indices beyond 2^31 elements, in the inputs and in the logits, checked on a sample. Needs 14 GiB.
 */
#include <stdio.h>
#include "bench/harness/vocab_check.h"
#include "device/device.h"
#include "probe/host.h"
#include "tests/tap.h"

#define NEEDED_BYTES (INT64_C(14) << 30)

static void large(const char *name, const struct vocab_impl *impl, int64_t tokens, int64_t hidden,
    int64_t vocab, struct vocab_options options)
{
    struct vocab_shape shape = {1, &tokens, hidden, vocab, DTYPE_BF16};
    struct vocab_inputs inputs = {.seed = 0};
    struct case_result result = {.ranks = NULL};
    struct dev_pool *pool = dev_pool_create(host_cpus());
    struct vocab_checker *checker = vocab_checker_create();
    struct ranks_config ranks = {.count = 1, .device = {.kind = DEV_CPU, .pool = pool}};
    struct vocab_run run = {
        .impl = impl, .options = &options, .inputs = &inputs, .ranks = &ranks, .collect = true};
    char error[256] = "memory";
    bool good = pool && checker && !vocab_inputs_seeded(&inputs, &shape, 3, 0.1) &&
                !case_result_init(&result, 1);
    if (good && vocab_run(&run, &result)) {
        snprintf(error, sizeof error, "%s", run.failure.message);
        good = false;
    }
    good = good && !vocab_check(
                       checker, &run, &inputs, CASE_CHECK_SAMPLE, 64, &result, error, sizeof error);
    if (!good)
        tap_note("%s", error);
    for (int i = 0; good && i < result.tensor_count; i++)
        if (result.tensors[i].verdict != VERDICT_BITWISE)
            tap_note("%s", result.tensors[i].fault);
    tap_ok(good && case_verdict(&result) == VERDICT_BITWISE, "%s: N=%lld H=%lld V=%lld", name,
        (long long)tokens, (long long)hidden, (long long)vocab);
    vocab_outputs_free(&run.outputs);
    case_result_free(&result);
    vocab_inputs_free(&inputs);
    vocab_checker_free(checker);
    dev_pool_free(pool);
}

int main(void)
{
    if (host_memory_limit_bytes() < NEEDED_BYTES) {
        tap_skip("needs 14 GiB", "inputs and logits of more than 2^31 elements");
        return tap_done();
    }
    large("2^31 input elements", &vocab_ring_dtp, (1 << 20) + 3, 2048, 5,
        (struct vocab_options){.tile = 4096});
    large("2^31 logits in one chunk", &vocab_chunked_tokens, 46349, 2, 46351,
        (struct vocab_options){.chunk = 46349});
    return tap_done();
}
