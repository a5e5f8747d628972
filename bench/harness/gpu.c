/* The GPUs as the harness sees them. Ranks that share a GPU run all the same, each with memory and
 * streams of its own, but their times are no figures of a machine with a GPU a rank: the device's
 * name says so, in the table and in the record, and `compare` and the claims keep them apart. */
#include "bench/harness/gpu.h"
#include <stdio.h>
#include <stdlib.h>
#include "device/launch.h"
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

/* Some case has products that tensor cores could make. */
static bool has_bf16(const struct case_options *options, struct options *parsed)
{
    bool found = false;
    for (options_rewind(parsed); options_next(parsed);)
        found |= options->dtype == DTYPE_BF16 || options->load; /* whose files say it */
    options_rewind(parsed);
    options_next(parsed);
    return found;
}

int gpu_setup_products(struct case_options *options, struct options *parsed)
{
    char error[256] = "this build has no CUDA";
    bool given = options_given(parsed, "gemm");
    if (options->device_kind != DEV_CUDA) {
        if (given)
            return options_refuse(parsed, "gemm", "has an effect on --device cuda alone");
        options_hide(parsed, "gemm");
        return -1;
    }
    if (given ? options->gemm == GEMM_PATH_EXACT : !has_bf16(options, parsed))
        return -1;
    if (gemm_fast_open && !gemm_fast_open(error, sizeof error)) {
        options_default_name(parsed, "gemm", GEMM_PATH_FAST);
        return -1;
    }
    if (given || launch_started()) { /* processes on several machines must not differ in it */
        options_refuse(parsed, "gemm", "fast is not to be had here: %s", error);
        return EXIT_ENVIRONMENT;
    }
    fprintf(stderr, "products are exact: tensor cores are not to be had here: %s\n", error);
    return -1;
}

void gpu_case(const struct case_options *options, struct options *parsed)
{
    if (options->device_kind == DEV_CUDA && options->dtype != DTYPE_BF16 && !options->load)
        options_absent(parsed, "gemm");
}

bool gpu_place_ranks(const struct case_options *options)
{
    int ranks = launch_ranks_per_process(), first = launch_process() * ranks;
    char error[256];
    if (options->device_kind != DEV_CUDA || !launch_started())
        return true;
    struct dev_place *places = calloc((size_t)ranks, sizeof *places);
    bool sound = places != NULL;
    for (int r = 0; sound && r < ranks; r++)
        sound = dev_place(DEV_CUDA, first + r, &places[r], error, sizeof error) == DEV_OK;
    sound = launch_all(sound) && launch_set_gpus(places);
    free(places);
    return sound;
}

int gpu_count(const struct case_options *options)
{
    return launch_started() ? launch_gpus() : options->gpu.count;
}

int gpu_describe(const struct case_options *options, json_t *env)
{
    const struct dev_facts *gpu = &options->gpu;
    json_t *object = json_pack("{s:s, s:i, s:I, s:i, s:s, s:s, s:s}", "name", gpu->name, "count",
        gpu_count(options), "memory_bytes", (json_int_t)gpu->memory_bytes, "multiprocessors",
        gpu->multiprocessors, "capability", gpu->capability, "driver", gpu->driver, "cuda_runtime",
        gpu->runtime);
    if (object && gpu->messages[0])
        json_object_set_new(object, "messages", json_string(gpu->messages));
    return json_object_set_new(env, "gpu", object);
}
