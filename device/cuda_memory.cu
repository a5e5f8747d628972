/* Memory of a CUDA device. Device blocks come from a memory pool of the rank's own, on the main
 * stream: a freed block may be the answer to the next request at once, since whoever gets it
 * enqueues behind whoever had it, which is the rule of dev_alloc. The pool keeps what it has, so
 * that a schedule in its steady state asks the driver for nothing, and so that the driver's figure
 * only grows. Pinned blocks are cached by size: pinning stops the whole device. */
#include "device/cuda_device.h"
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 256

static size_t span_of(int64_t bytes)
{
    int64_t least = bytes > 0 ? bytes : 1;
    return (size_t)((least + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static bool free_bytes(struct device *dev, int64_t *bytes)
{
    size_t free = 0, total = 0;
    if (!CUDA_DO(dev, cudaMemGetInfo(&free, &total)))
        return false;
    *bytes = (int64_t)free;
    return true;
}

bool cuda_memory_open(struct device *dev)
{
    struct cuda *cuda = cuda_of(dev);
    cudaMemPoolProps properties;
    uint64_t keep_bytes = UINT64_MAX;
    memset(&properties, 0, sizeof properties);
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = cuda->ordinal;
    return CUDA_DO(dev, cudaHostAlloc(&cuda->bounce, DEV_FETCH_MAX, cudaHostAllocDefault)) &&
           free_bytes(dev, &cuda->free_at_open_bytes) &&
           CUDA_DO(dev, cudaMemPoolCreate(&cuda->pool, &properties)) &&
           CUDA_DO(dev,
               cudaMemPoolSetAttribute(cuda->pool, cudaMemPoolAttrReleaseThreshold, &keep_bytes));
}

static void free_pinned(struct device *dev)
{
    struct cuda *cuda = cuda_of(dev);
    while (cuda->pinned) {
        struct cuda_pinned *first = cuda->pinned;
        cuda->pinned = first->next;
        CUDA_DO(dev, cudaFreeHost(first->block));
        free(first);
    }
}

void cuda_memory_close(struct device *dev)
{
    struct cuda *cuda = cuda_of(dev);
    for (int i = 0; i < dev->blocks.count; i++) /* what the program left */
        CUDA_DO(dev, cudaFree(dev->blocks.blocks[i]->address));
    for (int i = 0; i < dev->host_blocks.count; i++)
        CUDA_DO(dev, cudaFreeHost(dev->host_blocks.blocks[i]->address));
    free_pinned(dev);
    if (cuda->pool)
        CUDA_DO(dev, cudaMemPoolDestroy(cuda->pool));
    if (cuda->bounce)
        CUDA_DO(dev, cudaFreeHost(cuda->bounce));
}

/* ---- device memory ----------------------------------------------------------------------------
 */

static cudaError_t take(struct device *dev, int64_t bytes, void **block)
{
    cuda_trace_begin_memory(dev);
    cudaError_t error = cudaMallocFromPoolAsync(
        block, bytes > 0 ? (size_t)bytes : 1, cuda_of(dev)->pool, cuda_handle(dev->streams[0]));
    cuda_trace_end_memory(dev);
    if (error == cudaErrorMemoryAllocation)
        cudaGetLastError(); /* it is the caller's to tell */
    return error;
}

void *cuda_take(struct device *dev, int64_t bytes)
{
    void *block = NULL;
    if (!cuda_use(dev))
        return NULL;
    cudaError_t error = take(dev, bytes, &block);
    if (error == cudaErrorMemoryAllocation) {
        /* What was freed but is still in use cannot be given to a larger block before it is done.
         */
        if (!cuda_poll(dev->streams[0], NULL) ||
            !CUDA_DO(dev, cudaMemPoolTrimTo(cuda_of(dev)->pool, 0)))
            return NULL;
        error = take(dev, bytes, &block);
        if (error == cudaErrorMemoryAllocation)
            return NULL;
    }
    cuda_nvtx_memory(dev);
    return cuda_check(dev, error, "cudaMallocFromPoolAsync", __FILE__, __LINE__) ? block : NULL;
}

void cuda_give(struct device *dev, void *block, int64_t bytes)
{
    (void)bytes;
    if (cuda_use(dev)) {
        cuda_trace_begin_memory(dev);
        CUDA_DO(dev, cudaFreeAsync(block, cuda_handle(dev->streams[0])));
        cuda_trace_end_memory(dev);
    }
    cuda_nvtx_memory(dev);
}

int64_t cuda_driver_bytes(struct device *dev)
{
    int64_t now_bytes = 0;
    if (!cuda_use(dev) || !free_bytes(dev, &now_bytes))
        return -1;
    int64_t bytes = cuda_of(dev)->free_at_open_bytes - now_bytes;
    return bytes > 0 ? bytes : 0;
}

/* ---- pinned memory ----------------------------------------------------------------------------
 */

/* A free block of exactly that size. */
static void *take_cached(struct cuda *cuda, int64_t bytes)
{
    for (struct cuda_pinned **link = &cuda->pinned; *link; link = &(*link)->next) {
        struct cuda_pinned *pinned = *link;
        if (pinned->bytes != bytes)
            continue;
        void *block = pinned->block;
        *link = pinned->next;
        free(pinned);
        return block;
    }
    return NULL;
}

/* An asynchronous copy from memory that is not pinned would not be asynchronous. */
static bool is_pinned(struct device *dev, const void *block)
{
    cudaPointerAttributes attributes;
    if (!CUDA_DO(dev, cudaPointerGetAttributes(&attributes, block)))
        return false;
    if (attributes.type == cudaMemoryTypeHost)
        return true;
    dev_fail(dev, DEV_FAILED, "cudaHostAlloc gave memory of type %d, which is not pinned",
        (int)attributes.type);
    return false;
}

static void *take_pinned(struct device *dev, size_t bytes)
{
    void *block = NULL;
    cudaError_t error = cudaHostAlloc(&block, bytes, cudaHostAllocDefault);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        free_pinned(dev);
        error = cudaHostAlloc(&block, bytes, cudaHostAllocDefault);
        if (error == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            return NULL;
        }
    }
    return cuda_check(dev, error, "cudaHostAlloc", __FILE__, __LINE__) && is_pinned(dev, block)
               ? block
               : NULL;
}

void *cuda_host_take(struct device *dev, int64_t bytes)
{
    if (!cuda_use(dev))
        return NULL;
    void *block = take_cached(cuda_of(dev), bytes);
    if (!block)
        block = take_pinned(dev, span_of(bytes));
    if (block && dev->config.check_order)
        memset(block, 0xff, (size_t)bytes);
    return block;
}

void cuda_host_give(struct device *dev, void *block, int64_t bytes)
{
    struct cuda *cuda = cuda_of(dev);
    struct cuda_pinned *pinned = (struct cuda_pinned *)malloc(sizeof *pinned);
    if (!pinned) {
        if (cuda_use(dev))
            CUDA_DO(dev, cudaFreeHost(block));
        return;
    }
    pinned->next = cuda->pinned;
    pinned->block = block;
    pinned->bytes = bytes;
    cuda->pinned = pinned;
}
