/* What a profiler from outside sees beside kernels and copies: the names of streams, a range for
 * each phase of a schedule on the rank's host thread, and the bytes of every live set as counters.
 * Without a profiler each call costs a load and a branch. */
#include "device/cuda_device.h"
#include <stdio.h>
#ifdef HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>
#if __has_include(<nvtx3/nvToolsExtCounters.h>)
#include <nvtx3/nvToolsExtCounters.h>
#define HAVE_NVTX_COUNTERS
#endif
#endif

void cuda_nvtx_name(const struct stream *stream)
{
#ifdef HAVE_NVTX
    char name[64];
    snprintf(name, sizeof name, "rank %d %s", stream->dev->config.rank, stream->name);
    nvtxNameCudaStreamA(cuda_handle(stream), name);
#else
    (void)stream;
#endif
}

void cuda_nvtx_phase(struct device *dev, const char *name)
{
    struct cuda *cuda = cuda_of(dev);
#ifdef HAVE_NVTX
    if (cuda->in_phase)
        nvtxRangePop();
    if (name)
        nvtxRangePushA(name);
#endif
    cuda->in_phase = name != NULL;
}

#ifdef HAVE_NVTX_COUNTERS
static uint64_t register_counter(int rank, enum live_set set)
{
    char name[64];
    nvtxCounterAttr_t counter = {};
    snprintf(name, sizeof name, "rank %d %s", rank, mem_live_set_name(set));
    counter.structSize = sizeof counter;
    counter.schemaId = NVTX_PAYLOAD_ENTRY_TYPE_INT64;
    counter.name = name;
    counter.scopeId = NVTX_SCOPE_NONE;
    return nvtxCounterRegister(NULL, &counter);
}
#endif

void cuda_nvtx_memory(struct device *dev)
{
#ifdef HAVE_NVTX_COUNTERS
    struct cuda *cuda = cuda_of(dev);
    for (int set = 0; set < LIVE_SET_COUNT; set++) {
        int64_t bytes = dev->memory.set_bytes[set];
        if (bytes == cuda->counted_bytes[set])
            continue;
        if (!cuda->counters[set])
            cuda->counters[set] = register_counter(dev->config.rank, (enum live_set)set);
        nvtxCounterSampleInt64(NULL, cuda->counters[set], bytes);
        cuda->counted_bytes[set] = bytes;
    }
#else
    (void)dev;
#endif
}
