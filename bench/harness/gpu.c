/* The GPUs as the harness sees them. Ranks that share a GPU run all the same, each with memory and
 * streams of its own, but their times are no figures of a machine with a GPU a rank: the device's
 * name says so, in the table and in the record, and `compare` and the claims keep them apart. */
#include "bench/harness/gpu.h"
#include <stdio.h>
#include "kernels/gemm_fast.h"

static int refuse_meaningless(const struct options *parsed)
{
    static const char *const refused[] = {"link-gbps", "message-gbps"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (options_given(parsed, refused[i]))
            return options_refuse(
                parsed, refused[i], "has no effect on cuda: a GPU's links cannot be slowed");
    return -1;
}

int gpu_setup(struct case_options *options, struct options *parsed)
{
    char error[256];
    if (dev_facts(DEV_CUDA, &options->gpu, error, sizeof error) != DEV_OK) {
        options_refuse(parsed, "device", "%s", error);
        return EXIT_ENVIRONMENT;
    }
    int status = refuse_meaningless(parsed);
    if (status >= 0)
        return status;
    options->device_kind = DEV_CUDA;
    snprintf(options->device_name, sizeof options->device_name, "cuda:%s", options->gpu.name);
    snprintf(
        options->shared_name, sizeof options->shared_name, "cuda:%s shared-gpu", options->gpu.name);
    return -1;
}

int gemm_fast_open(char *error, int size) __attribute__((weak)); /* NULL without CUDA */

int gpu_setup_products(struct case_options *options, struct options *parsed)
{
    char error[256] = "this build has no CUDA";
    if (options->device_kind != DEV_CUDA) {
        if (options_given(parsed, "gemm"))
            return options_refuse(parsed, "gemm", "has an effect on --device cuda alone");
        options_hide(parsed, "gemm");
        return -1;
    }
    if (options->gemm == GEMM_PATH_EXACT)
        return -1;
    if (options->check != CASE_CHECK_OFF)
        return options_refuse(parsed, "gemm",
            "got 'fast', whose bits are not the reference's; allowed: exact, or "
            "fast with --check off");
    if (gemm_fast_open && !gemm_fast_open(error, sizeof error))
        return -1;
    options_refuse(parsed, "gemm", "fast is not to be had here: %s", error);
    return EXIT_ENVIRONMENT;
}

int gpu_describe(const struct case_options *options, json_t *env)
{
    const struct dev_facts *gpu = &options->gpu;
    json_t *object =
        json_pack("{s:s, s:i, s:I, s:i, s:s, s:s, s:s}", "name", gpu->name, "count", gpu->count,
            "memory_bytes", (json_int_t)gpu->memory_bytes, "multiprocessors", gpu->multiprocessors,
            "capability", gpu->capability, "driver", gpu->driver, "cuda_runtime", gpu->runtime);
    if (object && gpu->messages[0])
        json_object_set_new(object, "messages", json_string(gpu->messages));
    return json_object_set_new(env, "gpu", object);
}
