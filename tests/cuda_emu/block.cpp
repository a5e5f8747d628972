/* Runs a kernel: its blocks one after the other, the threads of a block as fibers that take turns
 * round a ring. A thread runs until it waits, at a barrier or for the lanes of its warp; so a
 * thread that does not wait where it should runs ahead of the others, and what it reads is not
 * written yet.
 *
 * A wait is a number that changes when all have come. Whoever comes last changes it and goes on;
 * the others find it changed when their turn comes. */
#include <stdio.h>
#include <algorithm>
#include <utility>
#include <vector>
#include "tests/cuda_emu/fiber.h"
#include "tests/cuda_emu/memory.h"

struct uint3 threadIdx, blockIdx;
struct dim3 blockDim, gridDim;

/* What a switch touches is one cache line. */
struct alignas(64) fiber {
    void *stack_pointer;
    struct fiber *next, *previous; /* in the ring of threads that have not ended */
    struct uint3 index;
    int number; /* in the block; x counts fastest */
    bool ended;
    const char *operation; /* that it waits in */
    int line;
};

/* Lanes of one warp that meet: those of one mask. */
struct group {
    unsigned mask, arrived;
    unsigned meetings;
    int line;
    uint64_t values[2][warpSize]; /* alternating, since a lane may be on its way to the next meeting
                                     while another still reads the values of the last */
};

struct warp {
    unsigned lanes;                /* that have not ended */
    struct group groups[warpSize]; /* by the lowest lane of their masks, which are disjoint */
};

/* A declaration of shared memory that the launch has met. */
struct shared {
    const void *site;
    void *storage;
    size_t bytes;
    int64_t block; /* the number of the block that it was filled for */
};

/* The block that runs. Global, as threadIdx is: one kernel runs at a time. */
static struct {
    const struct kernel_launch *launch; /* NULL: no kernel runs */
    int64_t number;                     /* of the block, in the order of execution */
    struct fiber *current;              /* NULL between blocks */
    void *host_stack_pointer;
    const void *host_stack;
    size_t host_stack_bytes;
    bool from_host; /* the switch under way comes from the host's stack */
    int count, live, arrived;
    unsigned barriers; /* passed so far */
    int conditions[2]; /* of __syncthreads_count, alternating like a group's values */
    int line;          /* of the barrier that some have reached */
    int idle;          /* turns in a row in which nobody got on */
    void *dynamic_shared;
    std::vector<struct shared> shared;
    struct fiber fibers[THREADS_MAX];
    struct warp warps[THREADS_MAX / warpSize];
} block;

/* ---- faults ---------------------------------------------------------------------------------- */

void describe_place(char *text, int size)
{
    char name[256];
    text[0] = 0;
    if (!block.launch)
        return;
    symbol_name(block.launch->kernel, name, sizeof name);
    int length = snprintf(text, (size_t)size, " in kernel %s", name);
    if (block.current && length < size)
        snprintf(text + length, (size_t)(size - length),
            ", block (%u, %u, %u), thread (%u, %u, %u)", blockIdx.x, blockIdx.y, blockIdx.z,
            threadIdx.x, threadIdx.y, threadIdx.z);
}

/* No thread can get on. */
[[noreturn]] static void deadlock(void)
{
    const int shown_at_most = 8;
    int shown = 0, ended = 0;
    for (int i = 0; i < block.count; i++) {
        const struct fiber *fiber = &block.fibers[i];
        ended += fiber->ended;
        if (!fiber->ended && shown < shown_at_most) {
            fprintf(stderr, "cuda emulator: thread (%u, %u, %u) waits in %s, line %d\n",
                fiber->index.x, fiber->index.y, fiber->index.z, fiber->operation, fiber->line);
            shown++;
        }
    }
    fault("%d threads wait for ever, %d have ended", block.live, ended);
}

/* ---- turns ----------------------------------------------------------------------------------- */

static inline void resume(struct fiber *fiber)
{
    block.current = fiber;
    threadIdx = fiber->index;
}

static inline void switch_fiber(struct fiber *from, struct fiber *to)
{
    void *state = NULL;
    block.current = to;
    fiber_leave(&state, to->number);
    fiber_switch(&from->stack_pointer, to->stack_pointer);
    fiber_arrive(state, NULL, NULL);
    threadIdx = from->index;
}

/* Gives the others their turns until *number is no longer `seen`. */
static inline void wait_for_change(
    const unsigned *number, unsigned seen, const char *operation, int line)
{
    struct fiber *self = block.current;
    self->operation = operation;
    self->line = line;
    do {
        if (self->next != self)
            switch_fiber(self, self->next);
        if (*number != seen)
            return;
    } while (block.idle++ <= block.live);
    deadlock();
}

/* ---- barriers -------------------------------------------------------------------------------- */

static inline void pass_barrier(void)
{
    block.arrived = 0;
    block.barriers++;
    block.conditions[block.barriers & 1] = 0;
}

static inline void reach_barrier(const char *operation, int line)
{
    block.idle = 0;
    if (!block.arrived++)
        block.line = line;
    else if (block.line != line)
        fault("the barrier of line %d is reached while others wait at line %d's", line, block.line);
    if (block.arrived == block.live)
        pass_barrier();
    else
        wait_for_change(&block.barriers, block.barriers, operation, line);
}

void __syncthreads(int line)
{
    reach_barrier("__syncthreads", line);
}

int __syncthreads_count(int condition, int line)
{
    int *conditions = &block.conditions[block.barriers & 1];
    *conditions += condition != 0;
    reach_barrier("__syncthreads_count", line);
    return *conditions;
}

/* ---- warps ----------------------------------------------------------------------------------- */

int emulated_lane(void)
{
    return block.current->number % warpSize;
}

const uint64_t *emulated_warp_meet(unsigned mask, uint64_t value, const char *operation, int line)
{
    int lane = emulated_lane();
    struct warp *warp = &block.warps[block.current->number / warpSize];
    if (!(mask >> lane & 1))
        fault("%s, line %d: lane %d is not in its mask %08x", operation, line, lane, mask);
    if (mask & ~warp->lanes)
        fault("%s, line %d: of the lanes %08x in the mask only %08x are there", operation, line,
            mask, mask & warp->lanes);
    struct group *group = &warp->groups[__builtin_ctz(mask)];
    if (!group->arrived) {
        group->mask = mask;
        group->line = line;
    } else if (group->mask != mask || group->line != line) {
        fault("%s, line %d with mask %08x meets line %d with mask %08x", operation, line, mask,
            group->line, group->mask);
    }
    uint64_t *values = group->values[group->meetings & 1];
    values[lane] = value;
    block.idle = 0;
    group->arrived |= 1u << lane;
    if (group->arrived == mask) {
        group->arrived = 0;
        group->meetings++;
    } else {
        wait_for_change(&group->meetings, group->meetings, operation, line);
    }
    return values;
}

uint64_t emulated_warp_take(
    const uint64_t *values, unsigned mask, int lane, const char *operation, int line)
{
    if (!(mask >> (lane & (warpSize - 1)) & 1) || lane < 0 || lane >= warpSize)
        fault("%s, line %d: takes from lane %d, which is not in the mask %08x", operation, line,
            lane, mask);
    return values[lane];
}

/* ---- shared memory --------------------------------------------------------------------------- */

static void *allocate_shared(size_t bytes)
{
    void *storage = zoned_allocate(bytes);
    if (!storage)
        fault("no memory for %zu bytes of shared memory", bytes);
    return storage;
}

/* At a block's end. */
static void check_shared(void)
{
    if (block.dynamic_shared)
        check_zones(block.dynamic_shared, block.launch->shared_bytes, "shared");
    for (const struct shared &shared : block.shared)
        check_zones(shared.storage, shared.bytes, "shared");
}

void *emulated_shared(const void *site, size_t bytes)
{
    struct shared *found = NULL;
    for (struct shared &shared : block.shared)
        if (shared.site == site)
            found = &shared;
    if (!found) {
        block.shared.push_back({site, allocate_shared(bytes), bytes, -1});
        found = &block.shared.back();
    }
    if (found->block != block.number) {
        found->block = block.number;
        memset(found->storage, POISON, bytes);
    }
    return found->storage;
}

void *emulated_dynamic_shared(void)
{
    if (!block.dynamic_shared)
        fault("dynamic shared memory in a launch with 0 bytes of it");
    return block.dynamic_shared;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* The frames of a function that is left for good would stay poisoned for the next block. */
#define NEVER_RETURNS __attribute__((no_sanitize_address))

/* Takes the thread that has ended from the ring and goes on with the next, or with the host. */
NEVER_RETURNS static void fiber_end(struct fiber *self)
{
    void *none = NULL;
    self->ended = true;
    self->previous->next = self->next;
    self->next->previous = self->previous;
    block.warps[self->number / warpSize].lanes &= ~(1u << self->number % warpSize);
    block.live--;
    block.idle = 0;
    if (block.live && block.arrived == block.live)
        pass_barrier();
    if (block.live) {
        block.current = self->next;
        fiber_leave(NULL, self->next->number);
        fiber_switch(&none, self->next->stack_pointer);
    } else {
        fiber_leave_for(NULL, block.host_stack, block.host_stack_bytes);
        fiber_switch(&none, block.host_stack_pointer);
    }
    __builtin_unreachable();
}

NEVER_RETURNS static void fiber_main(void)
{
    const void *stack = NULL;
    size_t bytes = 0;
    fiber_arrive(NULL, &stack, &bytes);
    if (block.from_host) {
        block.host_stack = stack;
        block.host_stack_bytes = bytes;
        block.from_host = false;
    }
    struct fiber *self = block.current;
    resume(self);
    block.launch->body();
    fiber_end(self);
}

/* order[i] = which of `count` comes i-th. */
static void choose_order(std::vector<int64_t> *order, int64_t count, uint64_t salt)
{
    order->resize((size_t)count);
    for (int64_t i = 0; i < count; i++)
        (*order)[(size_t)i] = emulator_settings()->order == ORDER_REVERSE ? count - 1 - i : i;
    if (emulator_settings()->order != ORDER_RANDOM)
        return;
    uint64_t state = emulator_settings()->order_seed * 0x9e3779b97f4a7c15u + salt;
    for (int64_t i = count - 1; i > 0; i--)
        std::swap((*order)[(size_t)i], (*order)[random_below(&state, (uint64_t)i + 1)]);
}

static void prepare_fiber(struct fiber *fiber, int number)
{
    unsigned row = (unsigned)number / blockDim.x;
    fiber->stack_pointer = fiber_begin(number, fiber_main);
    fiber->index = {(unsigned)number % blockDim.x, row % blockDim.y, row / blockDim.y};
    fiber->number = number;
    fiber->ended = false;
}

static void prepare_block(const std::vector<int64_t> *order)
{
    int count = (int)order->size();
    block.count = block.live = count;
    block.arrived = block.idle = 0;
    block.conditions[0] = block.conditions[1] = 0;
    struct fiber *previous = &block.fibers[order->back()];
    for (int64_t number : *order) {
        struct fiber *fiber = &block.fibers[number];
        prepare_fiber(fiber, (int)number);
        fiber->previous = previous;
        previous->next = fiber;
        previous = fiber;
    }
    for (int i = 0; i * warpSize < count; i++) {
        int lanes = std::min(count - i * warpSize, warpSize);
        block.warps[i].lanes = lanes == warpSize ? 0xffffffffu : (1u << lanes) - 1;
        for (struct group &group : block.warps[i].groups)
            group.arrived = 0;
    }
    if (block.dynamic_shared)
        memset(block.dynamic_shared, POISON, block.launch->shared_bytes);
}

static void run_block(const std::vector<int64_t> *order)
{
    prepare_block(order);
    void *state = NULL;
    struct fiber *first = &block.fibers[order->front()];
    block.current = first;
    block.from_host = true;
    fiber_leave(&state, first->number);
    fiber_switch(&block.host_stack_pointer, first->stack_pointer);
    fiber_arrive(state, NULL, NULL);
    block.current = NULL;
    check_shared();
}

void run_kernel(const struct kernel_launch *launch)
{
    const struct dim3 grid = launch->grid;
    std::vector<int64_t> blocks, threads;
    note_execution(launch->kernel);
    blockDim = launch->block;
    gridDim = grid;
    block.launch = launch;
    block.dynamic_shared = launch->shared_bytes ? allocate_shared(launch->shared_bytes) : NULL;
    choose_order(&blocks, (int64_t)grid.x * grid.y * grid.z, 1);
    int64_t count = (int64_t)blockDim.x * blockDim.y * blockDim.z;
    choose_order(&threads, count, 2);
    for (int64_t number : blocks) {
        int64_t row = number / grid.x;
        blockIdx = {
            (unsigned)(number % grid.x), (unsigned)(row % grid.y), (unsigned)(row / grid.y)};
        block.number = number;
        if (emulator_settings()->order == ORDER_RANDOM)
            choose_order(&threads, count, (uint64_t)number + 3);
        run_block(&threads);
    }
    check_all_zones();
    zoned_free(block.dynamic_shared);
    for (const struct shared &shared : block.shared)
        zoned_free(shared.storage);
    block.shared.clear();
    block.launch = NULL;
}
