/* Memory. Every allocation is a heap block of its own and exactly as long as asked for, so that the
 * address sanitizer sees what runs over its ends, what uses it after its free, and what the host
 * touches of a device's memory. In other builds zones before and behind it are looked at after
 * every kernel. New memory is poison. */
#include "tests/cuda_emu/memory.h"
#include <stdlib.h>
#include <deque>
#include <map>
#include <set>
#ifdef EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#endif

#define ALIGNMENT 256
#ifdef EMULATOR_ASAN
#define ZONE_BYTES 0
#else
#define ZONE_BYTES 256
#endif
#define ZONE_BYTE 0xfd /* as FP32 or BF16 a large negative number, not the poison */

/* A pool only counts: what it has handed out, and how much it would hold back from the device. */
struct emulated_pool {
    int device;
    int64_t used_bytes, reserved_bytes;
    uint64_t threshold_bytes;
};

static std::map<const char *, struct allocation> allocations; /* by address */
static std::set<struct emulated_pool *> pools;

/* ---- storage with zones ---------------------------------------------------------------------- */

void *zoned_allocate(size_t bytes)
{
    void *storage = NULL;
    if (posix_memalign(&storage, ALIGNMENT, bytes + 2 * ZONE_BYTES))
        return NULL;
    char *address = (char *)storage + ZONE_BYTES;
    memset(storage, ZONE_BYTE, bytes + 2 * ZONE_BYTES);
    memset(address, POISON, bytes);
    return address;
}

void zoned_free(void *address)
{
    if (address)
        free((char *)address - ZONE_BYTES);
}

static bool zone_is_whole(const char *zone)
{
    for (int i = 0; i < ZONE_BYTES; i++)
        if (zone[i] != (char)ZONE_BYTE)
            return false;
    return true;
}

void check_zones(const void *address, size_t bytes, const char *memory)
{
    const char *begin = (const char *)address;
    bool before = zone_is_whole(begin - ZONE_BYTES);
    if (!before || !zone_is_whole(begin + bytes))
        fault("something wrote %s a block of %zu bytes of %s memory",
            before ? "past the end of" : "before", bytes, memory);
}

/* ---- books ----------------------------------------------------------------------------------- */

struct allocation *find_allocation(const void *from, size_t bytes)
{
    const char *begin = (const char *)from;
    auto after = allocations.upper_bound(begin);
    if (after == allocations.begin())
        return NULL;
    struct allocation *found = &std::prev(after)->second;
    size_t offset = (size_t)(begin - found->address);
    return offset <= found->bytes && bytes <= found->bytes - offset ? found : NULL;
}

int64_t allocated_bytes(int device)
{
    int64_t bytes = 0;
    for (const auto &entry : allocations)
        if (!entry.second.pinned && !entry.second.pool && entry.second.device == device)
            bytes += (int64_t)entry.second.bytes;
    for (const struct emulated_pool *pool : pools)
        if (pool->device == device)
            bytes += pool->reserved_bytes;
    return bytes;
}

/* What the pool takes from its device for so many bytes in use: whole pages of 2 MiB. */
static int64_t pool_pages(int64_t used_bytes)
{
    const int64_t page_bytes = 2 << 20;
    return (used_bytes + page_bytes - 1) / page_bytes * page_bytes;
}

static void pool_settle(struct emulated_pool *pool, uint64_t keep_bytes)
{
    int64_t needed = pool_pages(pool->used_bytes);
    if (pool->reserved_bytes < needed || (uint64_t)pool->reserved_bytes > keep_bytes)
        pool->reserved_bytes = needed;
}

/* ---- allocations ----------------------------------------------------------------------------- */

/* Bytes that the device must still have for an allocation. */
static int64_t wanted_bytes(const struct emulated_pool *pool, size_t bytes)
{
    if (!pool)
        return (int64_t)bytes;
    int64_t more = pool_pages(pool->used_bytes + (int64_t)bytes) - pool->reserved_bytes;
    return more > 0 ? more : 0;
}

cudaError_t allocate(
    void **block, size_t bytes, bool pinned, int device, struct emulated_pool *pool)
{
    *block = NULL;
    if (!bytes)
        return cudaSuccess;
    if (!pinned &&
        wanted_bytes(pool, bytes) > emulator_settings()->memory_bytes - allocated_bytes(device))
        return cudaErrorMemoryAllocation;
    char *address = (char *)zoned_allocate(bytes);
    if (!address)
        return cudaErrorMemoryAllocation;
    allocations[address] = {address, bytes, pinned, device, false, pool};
    if (pool) {
        pool->used_bytes += (int64_t)bytes;
        pool_settle(pool, UINT64_MAX);
    }
    if (!pinned)
        expose_allocation(&allocations[address], false);
    *block = address;
    return cudaSuccess;
}

static void check_allocation(const struct allocation *allocation)
{
    check_zones(allocation->address, allocation->bytes, allocation->pinned ? "pinned" : "device");
}

void check_all_zones(void)
{
    if (ZONE_BYTES)
        for (const auto &entry : allocations)
            check_allocation(&entry.second);
}

/* ---- what was freed
 * --------------------------------------------------------------------------------- It is kept for
 * a while, poisoned, so that what still reads it reads poison and what writes to it is found. The
 * sanitizer does that by itself. */

struct grave {
    char *address;
    size_t bytes;
};

static std::deque<struct grave> graves;
static size_t grave_bytes;
#define GRAVE_BYTES_MAX (16u << 20)

static void bury(char *address, size_t bytes)
{
    memset(address, POISON, bytes);
    graves.push_back({address, bytes});
    grave_bytes += bytes;
    while (grave_bytes > (ZONE_BYTES ? GRAVE_BYTES_MAX : 0)) {
        struct grave first = graves.front();
        for (size_t i = 0; i < first.bytes; i++)
            if (first.address[i] != (char)POISON)
                fault("something wrote to a block of %zu bytes after it was freed", first.bytes);
        zoned_free(first.address);
        grave_bytes -= first.bytes;
        graves.pop_front();
    }
}

void release(struct allocation *allocation)
{
    struct emulated_pool *pool = allocation->pool;
    check_allocation(allocation);
    if (pool) {
        pool->used_bytes -= (int64_t)allocation->bytes;
        pool_settle(pool, pool->threshold_bytes);
    }
    expose_allocation(allocation, true);
    char *address = allocation->address;
    size_t bytes = allocation->bytes;
    allocations.erase(address);
    bury(address, bytes);
}

/* ---- what the host must not touch ------------------------------------------------------------ */

void expose_allocation(const struct allocation *allocation, bool exposed)
{
#ifdef EMULATOR_ASAN
    if (exposed)
        __asan_unpoison_memory_region(allocation->address, allocation->bytes);
    else
        __asan_poison_memory_region(allocation->address, allocation->bytes);
#else
    (void)allocation, (void)exposed;
#endif
}

void expose_device_memory(bool exposed)
{
#ifdef EMULATOR_ASAN
    for (const auto &entry : allocations)
        if (!entry.second.pinned)
            expose_allocation(&entry.second, exposed);
#else
    (void)exposed;
#endif
}

/* ---- pools ----------------------------------------------------------------------------------- */

struct emulated_pool *default_pool(int device)
{
    static std::map<int, struct emulated_pool> defaults;
    auto found = defaults.find(device);
    if (found == defaults.end()) {
        found = defaults.emplace(device, emulated_pool{device, 0, 0, 0}).first;
        pools.insert(&found->second);
    }
    return &found->second;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    std::unique_lock<std::mutex> held(lock);
    if (device < 0 || device >= emulator_settings()->devices)
        return remember(cudaErrorInvalidDevice);
    *pool = default_pool(device);
    return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties)
{
    std::unique_lock<std::mutex> held(lock);
    if (permitted() != cudaSuccess)
        return remember(permitted());
    if (properties->allocType != cudaMemAllocationTypePinned ||
        properties->location.type != cudaMemLocationTypeDevice || properties->location.id < 0 ||
        properties->location.id >= emulator_settings()->devices)
        return remember(cudaErrorInvalidValue);
    *pool = new emulated_pool{properties->location.id, 0, 0, 0};
    pools.insert(*pool);
    return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    std::unique_lock<std::mutex> held(lock);
    if (!pools.count(pool) || pool == default_pool(pool->device))
        return remember(cudaErrorInvalidValue);
    drain_device(&held, pool->device);
    if (pool->used_bytes)
        fault(
            "a pool is destroyed while %lld of its bytes are in use", (long long)pool->used_bytes);
    pools.erase(pool);
    delete pool;
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    std::unique_lock<std::mutex> held(lock);
    if (!pools.count(pool))
        return remember(cudaErrorInvalidValue);
    if (attribute == cudaMemPoolAttrReleaseThreshold)
        pool->threshold_bytes = *(const uint64_t *)value;
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    std::unique_lock<std::mutex> held(lock);
    if (!pools.count(pool))
        return remember(cudaErrorInvalidValue);
    switch (attribute) {
    case cudaMemPoolAttrReleaseThreshold:
        *(uint64_t *)value = pool->threshold_bytes;
        return cudaSuccess;
    case cudaMemPoolAttrReservedMemCurrent:
        *(uint64_t *)value = (uint64_t)pool->reserved_bytes;
        return cudaSuccess;
    case cudaMemPoolAttrUsedMemCurrent:
        *(uint64_t *)value = (uint64_t)pool->used_bytes;
        return cudaSuccess;
    default:
        return remember(cudaErrorNotSupported);
    }
}

/* Every device reaches every other's memory here. */
cudaError_t cudaMemPoolSetAccess(
    cudaMemPool_t pool, const struct cudaMemAccessDesc *accesses, size_t count)
{
    std::unique_lock<std::mutex> held(lock);
    bool sound = pools.count(pool) != 0;
    for (size_t i = 0; sound && i < count; i++)
        sound = accesses[i].location.type == cudaMemLocationTypeDevice &&
                accesses[i].location.id >= 0 &&
                accesses[i].location.id < emulator_settings()->devices;
    return sound ? cudaSuccess : remember(cudaErrorInvalidValue);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes)
{
    std::unique_lock<std::mutex> held(lock);
    if (!pools.count(pool))
        return remember(cudaErrorInvalidValue);
    pool_settle(pool, keep_bytes);
    return cudaSuccess;
}

bool is_pool(const struct emulated_pool *pool)
{
    return pools.count(const_cast<struct emulated_pool *>(pool)) != 0;
}

int64_t pool_used_bytes(const struct emulated_pool *pool)
{
    return pool->used_bytes;
}

int64_t pool_reserved_bytes(const struct emulated_pool *pool)
{
    return pool->reserved_bytes;
}

int pool_device(const struct emulated_pool *pool)
{
    return pool->device;
}
