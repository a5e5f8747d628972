/* The reservation is made without access, which no system counts as memory, and opened up step by
 * step as the arena first reaches into it: so it works under strict overcommit too. Where the
 * address space itself is limited (ulimit -v), an arena takes a small share of it, since there may
 * be many. */
#include "device/host_arena.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include "probe/host.h"

#if defined(__SANITIZE_ADDRESS__)
#define POISONS true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISONS true
#endif
#endif
#ifdef POISONS
#include <sanitizer/asan_interface.h>
#define GUARD_BYTES ARENA_ALIGNMENT
#else
#define POISONS false
#define GUARD_BYTES 0
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

#define HUGE_PAGE_BYTES ((int64_t)2 << 20)
#define STEP_BYTES ((int64_t)64 << 20)
#define LEAST_BYTES ((int64_t)16 << 20)
#define SHARE_OF_LIMITED_SPACE 32

bool host_arena_poisons(void)
{
    return POISONS;
}

static int64_t round_up(int64_t bytes, int64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Four times what the limit, or the machine, allows. */
static int64_t wanted_bytes(int64_t limit_bytes)
{
    struct rlimit space;
    int64_t machine_bytes = host_memory_limit_bytes();
    int64_t bytes = limit_bytes > machine_bytes ? limit_bytes : machine_bytes;
    if (!getrlimit(RLIMIT_AS, &space) && space.rlim_cur != RLIM_INFINITY) {
        int64_t share = (int64_t)(space.rlim_cur / SHARE_OF_LIMITED_SPACE);
        bytes = limit_bytes > share / 4 ? limit_bytes : share / 4;
    }
    int64_t most = INT64_MAX / 16;
    return 4 * (bytes < most ? bytes : most);
}

static bool reserve(struct host_arena *memory, int64_t limit_bytes)
{
    for (int64_t bytes = wanted_bytes(limit_bytes); bytes >= LEAST_BYTES; bytes /= 2) {
        int64_t rounded = round_up(bytes, HUGE_PAGE_BYTES);
        void *mapping = mmap(
            NULL, (size_t)rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapping == MAP_FAILED)
            continue;
        memory->mapping = mapping;
        memory->mapped_bytes = rounded;
        madvise(mapping, (size_t)rounded, MADV_HUGEPAGE); /* not offered: small pages */
        return true;
    }
    return false;
}

bool host_arena_open(struct host_arena *memory, int64_t limit_bytes)
{
    if (!reserve(memory, limit_bytes))
        return false;
    uintptr_t begin = (uintptr_t)round_up((intptr_t)memory->mapping, HUGE_PAGE_BYTES);
    int64_t bytes = memory->mapped_bytes - (int64_t)(begin - (uintptr_t)memory->mapping);
    memory->usable_end = begin;
    if (arena_init(&memory->arena, begin, bytes, GUARD_BYTES))
        return true;
    munmap(memory->mapping, (size_t)memory->mapped_bytes);
    memory->mapping = NULL;
    return false;
}

void host_arena_small_pages(struct host_arena *memory)
{
    madvise(memory->mapping, (size_t)memory->mapped_bytes, MADV_NOHUGEPAGE); /* not offered: fine */
}

void host_arena_close(struct host_arena *memory)
{
    if (!memory->mapping)
        return;
    ASAN_UNPOISON_MEMORY_REGION(
        memory->mapping, memory->arena.reached - (uintptr_t)memory->mapping);
    arena_destroy(&memory->arena);
    munmap(memory->mapping, (size_t)memory->mapped_bytes);
    memory->mapping = NULL;
}

/* Makes everything below `end` usable. */
static bool open_up(struct host_arena *memory, uintptr_t end)
{
    if (end <= memory->usable_end)
        return true;
    uintptr_t new_end = (uintptr_t)round_up((intptr_t)end, STEP_BYTES);
    if (new_end > memory->arena.end)
        new_end = memory->arena.end;
    if (mprotect((void *)memory->usable_end, new_end - memory->usable_end, PROT_READ | PROT_WRITE))
        return false;
    memory->usable_end = new_end;
    return true;
}

void *host_arena_take(struct host_arena *memory, int64_t bytes)
{
    uintptr_t address = arena_take(&memory->arena, bytes);
    if (!address)
        return NULL;
    uintptr_t span = (uintptr_t)arena_span(&memory->arena, bytes);
    if (!open_up(memory, address + span)) {
        arena_give(&memory->arena, address, bytes);
        return NULL;
    }
    ASAN_POISON_MEMORY_REGION((void *)address, span);
    ASAN_UNPOISON_MEMORY_REGION((void *)address, (size_t)bytes);
    return (void *)address;
}

/* When memory for the books is short the addresses are lost to the arena, which has plenty. */
void host_arena_give(struct host_arena *memory, void *block, int64_t bytes)
{
    ASAN_POISON_MEMORY_REGION(block, (size_t)arena_span(&memory->arena, bytes));
    arena_give(&memory->arena, (uintptr_t)block, bytes);
}
