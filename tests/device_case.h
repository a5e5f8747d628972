/* Devices and kernels for the tests of device/. */
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "device/comm.h"
#include "probe/timing.h"
#include "tests/draw.h"
#include "tests/tap.h"

/* A device of one test, with a pool of its own. */
struct device_case {
    struct dev_pool *pool;
    struct device *dev;
};

/* Opens a device; config->pool is filled in. Without a device there is no test: the program ends.
 */
static inline struct device_case open_case(struct dev_config config, int threads)
{
    struct device_case it = {0};
    char error[256] = "no pool";
    it.pool = config.pool = dev_pool_create(threads);
    if (!it.pool || dev_open(&config, &it.dev, error, sizeof error) != DEV_OK) {
        printf("Bail out! no device: %s\n", error);
        exit(1);
    }
    return it;
}

static inline void close_case(struct device_case *it)
{
    dev_close(it->dev);
    dev_pool_free(it->pool);
}

/* Whether the device failed in this way, with this in its message. */
static inline bool failed_with(const struct device *dev, enum dev_status status, const char *words)
{
    bool found = dev_status(dev) == status && strstr(dev_message(dev), words);
    if (!found)
        tap_note("status %d, message '%s'; expected status %d, '%s'", dev_status(dev),
            dev_message(dev), status, words);
    return found;
}

static inline void sleep_s(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* to[i] = from[i] + amount, after a sleep. */
struct shift_args {
    const int32_t *from;
    int32_t *to;
    int64_t count;
    int32_t amount;
    double sleep_s;
};

static inline void shift_cpu(const void *args, const struct dev_team *team)
{
    const struct shift_args *shift = args;
    (void)team;
    if (shift->sleep_s > 0)
        sleep_s(shift->sleep_s);
    for (int64_t i = 0; i < shift->count; i++)
        shift->to[i] = shift->from[i] + shift->amount;
}

static inline int shift_access(const void *args, struct dev_access *ranges)
{
    const struct shift_args *shift = args;
    ranges[0] = (struct dev_access){shift->from, shift->count * 4, false};
    ranges[1] = (struct dev_access){shift->to, shift->count * 4, true};
    return 2;
}

static inline void launch_shift(struct stream *stream, struct shift_args args)
{
    static const struct kernel kernel = {.name = "shift", .cpu = shift_cpu, .access = shift_access};
    dev_launch(stream, &kernel, &args, sizeof args);
}
