/* Devices, errors, launches, and the calls that allocate, copy and fill. */
#include <stdio.h>
#include <map>
#include "tests/cuda_emu/memory.h"

/* Of sm_90: shared memory of a block without asking, and at most. */
#define SHARED_BYTES (48 << 10)
#define SHARED_BYTES_MAX (227 << 10)

static thread_local int device_of_thread;
static thread_local bool in_host_function;
static thread_local cudaError_t last_error;

/* ---- the calling thread ---------------------------------------------------------------------- */

int current_device(void)
{
    return device_of_thread;
}

cudaError_t remember(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

cudaError_t permitted(void)
{
    static const bool able = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (in_host_function)
        return cudaErrorNotPermitted;
    return able && emulator_settings()->devices ? cudaSuccess : cudaErrorNoDevice;
}

void set_in_host_function(bool inside)
{
    in_host_function = inside;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

struct error_text {
    cudaError_t error;
    const char *name, *text;
};

static const struct error_text *find_text(cudaError_t error)
{
    static const struct error_text texts[] = {
        {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
        {cudaSuccess, "cudaSuccess", "no error"},
        {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
        {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
        {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
            "invalid configuration argument"},
        {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
        {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
            "invalid copy direction for memcpy"},
        {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
        {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
        {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
            "invalid resource handle"},
        {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
        {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
        {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    };
    for (const struct error_text &text : texts)
        if (text.error == error)
            return &text;
    return &texts[0];
}

const char *cudaGetErrorName(cudaError_t error)
{
    return find_text(error)->name;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return find_text(error)->text;
}

/* ---- devices --------------------------------------------------------------------------------- */

static bool is_device(int device)
{
    return device >= 0 && device < emulator_settings()->devices;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = permitted() == cudaSuccess ? emulator_settings()->devices : 0;
    return remember(permitted());
}

cudaError_t cudaSetDevice(int device)
{
    if (permitted() != cudaSuccess)
        return remember(permitted());
    if (!is_device(device))
        return remember(cudaErrorInvalidDevice);
    device_of_thread = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = device_of_thread;
    return remember(permitted());
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    if (permitted() != cudaSuccess)
        return remember(permitted());
    if (!is_device(device))
        return remember(cudaErrorInvalidDevice);
    *properties = {};
    snprintf(properties->name, sizeof properties->name, "CUDA emulator on a CPU");
    properties->totalGlobalMem = (size_t)emulator_settings()->memory_bytes;
    properties->sharedMemPerBlock = SHARED_BYTES;
    properties->sharedMemPerBlockOptin = SHARED_BYTES_MAX;
    properties->sharedMemPerMultiprocessor = SHARED_BYTES_MAX + 1024;
    properties->regsPerBlock = 65536;
    properties->warpSize = warpSize;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 0x7fffffff;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->major = 9;
    properties->multiProcessorCount = 4;
    properties->l2CacheSize = 1 << 20;
    properties->memoryBusWidth = 64;
    properties->asyncEngineCount = 2;
    properties->concurrentKernels = properties->unifiedAddressing = 1;
    properties->pciBusID = emulator_settings()->gpus[device];
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    struct cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, device);
    if (error != cudaSuccess)
        return error;
    const std::map<enum cudaDeviceAttr, int> values = {
        {cudaDevAttrMaxThreadsPerBlock, properties.maxThreadsPerBlock},
        {cudaDevAttrMaxSharedMemoryPerBlock, SHARED_BYTES},
        {cudaDevAttrWarpSize, warpSize},
        {cudaDevAttrClockRate, 0},
        {cudaDevAttrMultiProcessorCount, properties.multiProcessorCount},
        {cudaDevAttrMemoryClockRate, 0},
        {cudaDevAttrGlobalMemoryBusWidth, properties.memoryBusWidth},
        {cudaDevAttrComputeCapabilityMajor, properties.major},
        {cudaDevAttrComputeCapabilityMinor, properties.minor},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, SHARED_BYTES_MAX},
        {cudaDevAttrMemoryPoolsSupported, 1},
    };
    auto found = values.find(attribute);
    if (found == values.end())
        return remember(cudaErrorInvalidValue);
    *value = found->second;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    if (!is_device(device))
        return remember(cudaErrorInvalidDevice);
    snprintf(text, (size_t)size, "0000:%02x:00.0", (unsigned)emulator_settings()->gpus[device]);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = is_device(device) && is_device(peer) && device != peer;
    return is_device(device) && is_device(peer) ? cudaSuccess : remember(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    return is_device(peer) && !flags ? cudaSuccess : remember(cudaErrorInvalidDevice);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* ---- allocation ------------------------------------------------------------------------------ */

/* Memory that is freed in some stream's order comes back when that is done: tries again then. */
static cudaError_t allocate_or_drain(std::unique_lock<std::mutex> *held, void **block, size_t bytes,
    bool pinned, int device, struct emulated_pool *pool)
{
    cudaError_t error = allocate(block, bytes, pinned, device, pool);
    if (error == cudaErrorMemoryAllocation && !pool) {
        drain_device(held, device);
        error = allocate(block, bytes, pinned, device, pool);
    }
    return remember(error);
}

cudaError_t cudaMalloc(void **block, size_t bytes)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    return allocate_or_drain(&held, block, bytes, false, current_device(), NULL);
}

cudaError_t cudaHostAlloc(void **block, size_t bytes, unsigned flags)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    if (flags & ~(cudaHostAllocPortable | cudaHostAllocMapped))
        return remember(cudaErrorInvalidValue);
    return allocate_or_drain(&held, block, bytes, true, current_device(), NULL);
}

cudaError_t cudaMallocHost(void **block, size_t bytes, unsigned flags)
{
    return cudaHostAlloc(block, bytes, flags);
}

static cudaError_t take_from_pool(std::unique_lock<std::mutex> *held, void **block, size_t bytes,
    int device, struct emulated_pool *pool)
{
    const cudaError_t error = allocate_or_drain(held, block, bytes, false, device, pool);
    if (error == cudaSuccess && *block)
        note_memory(*block, bytes, device, true, pool_used_bytes(pool), pool_reserved_bytes(pool));
    return error;
}

cudaError_t cudaMallocFromPoolAsync(
    void **block, size_t bytes, cudaMemPool_t pool, cudaStream_t stream)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    int device = device_of(stream);
    if (device < 0)
        return remember(cudaErrorInvalidResourceHandle);
    if (!is_pool(pool) || pool_device(pool) != device)
        return remember(cudaErrorInvalidValue);
    return take_from_pool(&held, block, bytes, device, pool);
}

cudaError_t cudaMallocAsync(void **block, size_t bytes, cudaStream_t stream)
{
    std::unique_lock<std::mutex> held(lock);
    int device = device_of(stream);
    if (device < 0)
        return remember(cudaErrorInvalidResourceHandle);
    return take_from_pool(&held, block, bytes, device, default_pool(device));
}

/* The allocation that begins at the block; NULL, with *error set, when there is none to free. */
static struct allocation *find_block(void *block, bool pinned, cudaError_t *error)
{
    struct allocation *found = find_allocation(block, 0);
    if (found && found->address == block && found->pinned == pinned && !found->freed)
        return found;
    *error = cudaErrorInvalidValue;
    return NULL;
}

cudaError_t cudaFree(void *block)
{
    std::unique_lock<std::mutex> held(lock);
    cudaError_t error = permitted();
    if (error != cudaSuccess || !block)
        return remember(error);
    struct allocation *found = find_block(block, false, &error);
    if (!found)
        return remember(error);
    drain_device(&held, found->device);
    release(found);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *block)
{
    std::unique_lock<std::mutex> held(lock);
    cudaError_t error = permitted();
    if (error != cudaSuccess || !block)
        return remember(error);
    struct allocation *found = find_block(block, true, &error);
    if (!found)
        return remember(error);
    release(found);
    return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *block, cudaStream_t stream)
{
    std::unique_lock<std::mutex> held(lock);
    cudaError_t error = permitted();
    if (error != cudaSuccess || !block)
        return remember(error);
    struct allocation *found = find_block(block, false, &error);
    if (!found)
        return remember(error);
    found->freed = true;
    if (found->pool)
        note_memory(block, found->bytes, found->device, false,
            pool_used_bytes(found->pool) - (int64_t)found->bytes, pool_reserved_bytes(found->pool));
    return remember(enqueue_work(stream, [found] { release(found); }));
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    *total_bytes = (size_t)emulator_settings()->memory_bytes;
    *free_bytes = (size_t)(emulator_settings()->memory_bytes - allocated_bytes(current_device()));
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *at)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    struct allocation *found = find_allocation(at, 1);
    void *pointer = const_cast<void *>(at);
    if (!found)
        *attributes = {cudaMemoryTypeUnregistered, -2, NULL, pointer};
    else if (found->pinned)
        *attributes = {cudaMemoryTypeHost, found->device, pointer, pointer};
    else
        *attributes = {cudaMemoryTypeDevice, found->device, pointer, NULL};
    return cudaSuccess;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Faults unless one side of a copy is what its kind says: of a device, pinned or, where the copy
 * blocks, any memory that is not a device's. */
static void check_side(
    const char *call, const void *side, size_t bytes, bool on_device, bool blocks)
{
    struct allocation *found = find_allocation(side, bytes);
    bool registered = find_allocation(side, 0) != NULL;
    if (on_device && (!found || found->pinned))
        fault("%s: %zu bytes at %p are not in one block of device memory", call, bytes, side);
    if (on_device || (blocks && !registered))
        return;
    if (!found && registered)
        fault("%s: %zu bytes at %p run past the end of their block", call, bytes, side);
    if (!found)
        fault("%s: %zu bytes at %p of the host, which are not pinned", call, bytes, side);
    if (!found->pinned)
        fault("%s: %zu bytes at %p are of a device, not of the host", call, bytes, side);
}

/* At the call: the block must not be freed by an earlier one, even if that has not come to it. */
static void check_not_freed(const char *call, const void *side, size_t bytes)
{
    struct allocation *found = find_allocation(side, bytes);
    if (found && found->freed)
        fault("%s: %zu bytes at %p, which were freed", call, bytes, side);
}

static bool is_on_device(const void *side)
{
    struct allocation *found = find_allocation(side, 0);
    return found && !found->pinned;
}

/* When the copy runs; the blocks may be gone by then. */
static void copy_now(const char *call, void *to, const void *from, size_t bytes, bool to_device,
    bool from_device, bool blocks)
{
    check_side(call, to, bytes, to_device, blocks);
    check_side(call, from, bytes, from_device, blocks);
    if ((char *)to < (const char *)from + bytes && (const char *)from < (char *)to + bytes)
        fault("%s: %zu bytes from %p to %p overlap", call, bytes, from, to);
    memcpy(to, from, bytes);
}

static cudaError_t enqueue_copy(const char *call, void *to, const void *from, size_t bytes,
    enum cudaMemcpyKind kind, cudaStream_t stream, bool blocks)
{
    cudaError_t error = permitted();
    if (error != cudaSuccess || !bytes)
        return error;
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice ||
                     (kind == cudaMemcpyDefault && is_on_device(to));
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice ||
                       (kind == cudaMemcpyDefault && is_on_device(from));
    check_side(call, to, bytes, to_device, blocks);
    check_side(call, from, bytes, from_device, blocks);
    check_not_freed(call, to, bytes);
    check_not_freed(call, from, bytes);
    return enqueue_work(stream, recorded(RECORDED_COPY, [=] {
        copy_now(call, to, from, bytes, to_device, from_device, blocks);
    }));
}

cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    std::unique_lock<std::mutex> held(lock);
    return remember(enqueue_copy("cudaMemcpyAsync", to, from, bytes, kind, stream, false));
}

cudaError_t cudaMemcpyPeerAsync(
    void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream)
{
    std::unique_lock<std::mutex> held(lock);
    if (!is_device(to_device) || !is_device(from_device))
        return remember(cudaErrorInvalidDevice);
    return remember(enqueue_copy(
        "cudaMemcpyPeerAsync", to, from, bytes, cudaMemcpyDeviceToDevice, stream, false));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    std::unique_lock<std::mutex> held(lock);
    cudaError_t error = enqueue_copy("cudaMemcpy", to, from, bytes, kind, NULL, true);
    if (error == cudaSuccess)
        drain_default(&held, current_device());
    return remember(error);
}

static cudaError_t enqueue_fill(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    cudaError_t error = permitted();
    if (error != cudaSuccess || !bytes)
        return error;
    check_side("cudaMemset", to, bytes, true, false);
    check_not_freed("cudaMemset", to, bytes);
    return enqueue_work(stream, recorded(RECORDED_FILL, [=] {
        check_side("cudaMemset", to, bytes, true, false);
        memset(to, byte, bytes);
    }));
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    std::unique_lock<std::mutex> held(lock);
    return remember(enqueue_fill(to, byte, bytes, stream));
}

cudaError_t cudaMemset(void *to, int byte, size_t bytes)
{
    return cudaMemsetAsync(to, byte, bytes, NULL);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* By kernel, the dynamic shared memory that it asked for. */
static std::map<const void *, size_t> shared_bytes_asked;

cudaError_t emulated_set_attribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || value > SHARED_BYTES_MAX)
            return remember(cudaErrorInvalidValue);
        shared_bytes_asked[kernel] = (size_t)value;
    }
    return cudaSuccess;
}

static bool configuration_is_sound(dim3 grid, dim3 block)
{
    return grid.x && grid.y && grid.z && grid.x <= 0x7fffffffu && grid.y <= 65535 &&
           grid.z <= 65535 && block.x && block.y && block.z && block.x <= 1024 && block.y <= 1024 &&
           block.z <= 64 && (int64_t)block.x * block.y * block.z <= 1024;
}

cudaError_t emulated_launch(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
    cudaStream_t stream, std::function<void()> body)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    if (!configuration_is_sound(grid, block))
        return remember(cudaErrorInvalidConfiguration);
    auto asked = shared_bytes_asked.find(kernel);
    if (shared_bytes > (asked == shared_bytes_asked.end() ? SHARED_BYTES : asked->second) &&
        shared_bytes > SHARED_BYTES)
        return remember(cudaErrorInvalidValue);
    struct kernel_launch launch = {kernel, grid, block, shared_bytes, std::move(body)};
    return remember(
        enqueue_work(stream, recorded(RECORDED_KERNEL, [launch] { run_kernel(&launch); })));
}
