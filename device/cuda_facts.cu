/* What GPUs there are, and what drives them: for the provenance of a figure. */
#include "device/cuda_device.h"
#include <stdio.h>
#include <string.h>
#ifdef HAVE_NCCL
#include <nccl.h>
#endif

enum dev_status cuda_count(int *count, char *error, int size)
{
    char text[192];
    int driver = 0;
    *count = 0;
    cudaError_t code = cudaGetDeviceCount(count);
    if (code == cudaSuccess && *count > 0)
        return DEV_OK;
    cudaGetLastError();
    cuda_describe(code, "cudaGetDeviceCount", text, sizeof text);
    if (code == cudaSuccess)
        snprintf(text, sizeof text, "the driver shows none");
    else if (cudaDriverGetVersion(&driver) == cudaSuccess && !driver)
        snprintf(text, sizeof text, "there is no NVIDIA driver");
    snprintf(error, (size_t)size, "no CUDA device here: %s", text);
    return DEV_UNAVAILABLE;
}

/* The driver's version as its kernel module tells it: the last word with a dot in
 * "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun ..." before the date. */
static void read_driver(char *text, size_t size)
{
    char line[256] = "";
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    if (!file)
        return;
    if (fgets(line, sizeof line, file)) {
        for (char *rest = NULL, *word = strtok_r(line, " \n", &rest); word;
             word = strtok_r(NULL, " \n", &rest)) {
            if (word[0] < '0' || word[0] > '9' || !strchr(word, '.'))
                continue;
            snprintf(text, size, "%s", word);
            break;
        }
    }
    fclose(file);
}

/* 13020 is 13.2. */
static void print_version(int version, char *text, size_t size)
{
    snprintf(text, size, "%d.%d", version / 1000, version % 1000 / 10);
}

/* NULL, or the call that failed. */
static const char *fill(struct dev_facts *facts, cudaError_t *code)
{
    struct cudaDeviceProp properties;
    int version = 0;
    if ((*code = cudaGetDeviceProperties(&properties, 0)) != cudaSuccess)
        return "cudaGetDeviceProperties";
    if ((*code = cudaRuntimeGetVersion(&version)) != cudaSuccess)
        return "cudaRuntimeGetVersion";
    print_version(version, facts->runtime, sizeof facts->runtime);
    if ((*code = cudaDriverGetVersion(&version)) != cudaSuccess)
        return "cudaDriverGetVersion";
    print_version(version, facts->driver, sizeof facts->driver);
    read_driver(facts->driver, sizeof facts->driver);
    snprintf(facts->name, sizeof facts->name, "%.*s", (int)sizeof facts->name - 1, properties.name);
    snprintf(
        facts->capability, sizeof facts->capability, "%d.%d", properties.major, properties.minor);
    facts->memory_bytes = (int64_t)properties.totalGlobalMem;
    facts->multiprocessors = properties.multiProcessorCount;
    return NULL;
}

enum dev_status cuda_facts(struct dev_facts *facts, char *error, int size)
{
    enum dev_status status = cuda_count(&facts->count, error, size);
    cudaError_t code = cudaSuccess;
    if (status != DEV_OK)
        return status;
    const char *failed = fill(facts, &code);
    if (failed) {
        cuda_describe(code, failed, error, size);
        return DEV_UNAVAILABLE;
    }
#ifdef HAVE_NCCL
    int version = 0;
    if (ncclGetVersion(&version) == ncclSuccess)
        snprintf(facts->messages, sizeof facts->messages, "NCCL %d.%d.%d", version / 10000,
            version / 100 % 100, version % 100);
#endif
    return DEV_OK;
}

/* A launcher may show each process a GPU of its own, or all of them to each. */
enum dev_status cuda_place(int rank, struct dev_place *place, char *error, int size)
{
    int count = 0;
    enum dev_status status = cuda_count(&count, error, size);
    if (status != DEV_OK)
        return status;
    place->ordinal = launch_local_rank(rank) % count;
    cudaError_t code = cudaDeviceGetPCIBusId(place->bus, sizeof place->bus, place->ordinal);
    if (code == cudaSuccess)
        return DEV_OK;
    cuda_describe(code, "cudaDeviceGetPCIBusId", error, size);
    return DEV_UNAVAILABLE;
}
