#include "tests/cuda_emu/fiber.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define GUARD_BYTES 4096

__asm__(".text\n"
        ".globl fiber_switch\n"
        ".type fiber_switch, @function\n"
        "fiber_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size fiber_switch, . - fiber_switch\n");

#define SAVED_REGISTERS 6

/* Mapped once, for the whole life of the process; pages that no block reaches cost nothing. */
static char *map_stacks(void)
{
    const size_t stride = STACK_BYTES + GUARD_BYTES;
    void *mapped = mmap(NULL, THREADS_MAX * stride, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        perror("cuda emulator: no address space for the stacks of a block");
        abort();
    }
    for (int i = 0; i < THREADS_MAX; i++) {
        if (mprotect((char *)mapped + (size_t)i * stride, GUARD_BYTES, PROT_NONE)) {
            perror("cuda emulator: no guard page for a stack");
            abort();
        }
    }
    return (char *)mapped;
}

char *fiber_stack(int index)
{
    static char *const stacks = map_stacks();
    return stacks + (size_t)index * (STACK_BYTES + GUARD_BYTES) + GUARD_BYTES;
}

void *fiber_begin(int index, void (*entry)(void))
{
    /* Tops lie on different cache lines modulo a page: else all threads' frames would compete for
     * the same few sets of the cache. */
    char *top = fiber_stack(index) + STACK_BYTES - 64 - index % 64 * 64;
    void **pointer = (void **)top;
    *--pointer = NULL; /* where entry would return to; also aligns the stack as a call does */
    *--pointer = (void *)entry;
    for (int i = 0; i < SAVED_REGISTERS; i++)
        *--pointer = NULL;
    return pointer;
}
