/* Allocations of the emulator. The lock is held. */
#pragma once
#include "tests/cuda_emu/emulator.h"

struct emulated_pool;

struct allocation {
    char *address;
    size_t bytes;
    bool pinned; /* host memory */
    int device;
    bool freed;                 /* cudaFreeAsync is enqueued */
    struct emulated_pool *pool; /* NULL: from the device itself */
};

/* 0 bytes are NULL. */
cudaError_t allocate(
    void **block, size_t bytes, bool pinned, int device, struct emulated_pool *pool);
void release(struct allocation *allocation);

/* The live allocation that holds [from, from + bytes), or NULL. */
struct allocation *find_allocation(const void *from, size_t bytes);
int64_t allocated_bytes(int device);

/* Poisoned storage, 256-byte aligned, with zones at both ends; NULL when there is none. */
void *zoned_allocate(size_t bytes);
void zoned_free(void *address);
/* Faults when something wrote before or behind it. */
void check_zones(const void *address, size_t bytes, const char *memory);
/* The same for all allocations. */
void check_all_zones(void);

/* Whether device memory may be touched: by operations it may, by the host it may not. Known to the
 * address sanitizer alone. */
void expose_allocation(const struct allocation *allocation, bool exposed);
void expose_device_memory(bool exposed);

struct emulated_pool *default_pool(int device);
bool is_pool(const struct emulated_pool *pool);
int pool_device(const struct emulated_pool *pool);
int64_t pool_used_bytes(const struct emulated_pool *pool);
int64_t pool_reserved_bytes(const struct emulated_pool *pool);
