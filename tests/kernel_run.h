/* Runs a kernel's CPU function now, on a team of a pool, with the selected instruction set. */
#pragma once
#include "device/device.h"

struct kernel_run {
    const struct kernel *kernel;
    const void *args;
};

static void kernel_run_body(void *context, const struct dev_team *team)
{
    const struct kernel_run *run = context;
    run->kernel->cpu(run->args, team);
}

static void kernel_run(
    struct dev_pool *pool, int width, const struct kernel *kernel, const void *args)
{
    struct kernel_run run = {kernel, args};
    dev_pool_run(pool, width, kernel_run_body, &run);
}
