/* Threads of a block as fibers: a stack each, and a switch that saves what the x86-64 calling
 * convention asks a function to keep. */
#pragma once
#include "tests/cuda_emu/emulator.h"
#ifdef EMULATOR_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

/* Frames are much larger under the address sanitizer. */
#ifdef EMULATOR_ASAN
#define STACK_BYTES (256 << 10)
#else
#define STACK_BYTES (64 << 10)
#endif

#define THREADS_MAX 1024

/* Pushes the callee-saved registers, stores the stack pointer in *save, and returns on the stack
 * whose pointer is `load`, from the call that saved it. */
extern "C" void fiber_switch(void **save, void *load);

/* The lowest address of the stack of fiber `index`; below it lies a page that cannot be touched. */
char *fiber_stack(int index);

/* A stack pointer for fiber_switch that calls `entry`, which never returns. */
void *fiber_begin(int index, void (*entry)(void));

/* Tells the sanitizer that the switch to another stack comes, and that it came. */
static inline void fiber_leave_for(void **state, const void *bottom, size_t bytes)
{
#ifdef EMULATOR_ASAN
    __sanitizer_start_switch_fiber(state, bottom, bytes);
#else
    (void)state, (void)bottom, (void)bytes;
#endif
}

static inline void fiber_leave(void **state, int to)
{
#ifdef EMULATOR_ASAN
    fiber_leave_for(state, fiber_stack(to), STACK_BYTES);
#else
    (void)state, (void)to;
#endif
}

static inline void fiber_arrive(void *state, const void **bottom, size_t *bytes)
{
#ifdef EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(state, bottom, bytes);
#else
    (void)state, (void)bottom, (void)bytes;
#endif
}
