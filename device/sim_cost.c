/* What operations need of a machine's engines: the whole of the time model beside the calendars.
 *
 * A kernel takes its FLOPs of the arithmetic and its bytes of the memory, at the same time, after
 * its launch: alone it lasts max(flops / rate, bytes / bandwidth) + launch, and two kernels on two
 * streams share the device as far as one computes while the other moves. */
#include "device/sim_clock.h"

/* The share of its peak at which a product of these sizes runs. */
static double product_efficiency(const struct profile_rate *rate, const struct kernel_cost *cost)
{
    double m = (double)cost->m, n = (double)cost->n, k = (double)cost->k;
    if (!(m > 0 && n > 0 && k > 0))
        return 1;
    return m / (m + rate->half_m) * (n / (n + rate->half_n)) * (k / (k + rate->half_k));
}

/* A rank's share of what the ranks of a node have in common: the node is taken to be full, so that
 * a time does not depend on how many ranks a program runs. */
static double shared(const struct profile *profile, double rate)
{
    return rate / (double)profile->ranks_per_node;
}

static struct sim_work host_kernel_work(
    const struct profile *profile, const struct kernel_cost *cost)
{
    double cores_s = cost->flops / shared(profile, profile->host_flops_per_s);
    double params_s = (double)cost->params / shared(profile, profile->host_adamw_params_per_s);
    struct sim_work work = {.delay_ps = sim_picoseconds(profile->launch_s)};
    work.engine_ps[SIM_HOST_CORES] = sim_picoseconds(cores_s > params_s ? cores_s : params_s);
    work.engine_ps[SIM_HOST_MEMORY] =
        sim_picoseconds(cost->bytes / shared(profile, profile->host_memory_bytes_per_s));
    return work;
}

struct sim_work sim_kernel_work(
    const struct profile *profile, const struct kernel_cost *cost, bool on_host)
{
    if (on_host)
        return host_kernel_work(profile, cost);
    const struct profile_rate *rate = cost->rate == DEV_RATE_BF16 ? &profile->bf16 : &profile->f32;
    double flops_per_s = rate->peak_flops_per_s * rate->efficiency * product_efficiency(rate, cost);
    struct sim_work work = {.delay_ps = sim_picoseconds(profile->launch_s)};
    work.engine_ps[SIM_ARITHMETIC] = sim_picoseconds(cost->flops / flops_per_s);
    work.engine_ps[SIM_MEMORY] = sim_picoseconds(cost->bytes / profile->memory_bytes_per_s);
    return work;
}

/* A copy over the link to the host goes through the host's memory too. What it takes of the
 * device's is little beside it and left out. */
struct sim_work sim_copy_work(const struct profile *profile, enum dev_copy direction, int64_t bytes)
{
    if (direction == DEV_D2D)
        return sim_fill_work(profile, 2 * bytes);
    bool up = direction == DEV_H2D;
    double rate = up ? profile->h2d_bytes_per_s : profile->d2h_bytes_per_s;
    struct sim_work work = {0};
    work.engine_ps[up ? SIM_UP : SIM_DOWN] =
        sim_picoseconds(profile->host_link_latency_s + (double)bytes / rate);
    work.engine_ps[SIM_HOST_MEMORY] =
        sim_picoseconds((double)bytes / shared(profile, profile->host_memory_bytes_per_s));
    return work;
}

struct sim_work sim_fill_work(const struct profile *profile, int64_t bytes)
{
    struct sim_work work = {.delay_ps = sim_picoseconds(profile->launch_s)};
    work.engine_ps[SIM_MEMORY] = sim_picoseconds((double)bytes / profile->memory_bytes_per_s);
    return work;
}

struct sim_work sim_message_work(
    const struct profile *profile, const struct sim_message_bytes *bytes)
{
    struct sim_work work = {0};
    bool near = bytes->link_out || bytes->link_in, far = bytes->network_out || bytes->network_in;
    if (!near && !far && !bytes->own)
        return work;
    double latency_s = near ? profile->link_latency_s : 0;
    if (far && latency_s < profile->network_latency_s)
        latency_s = profile->network_latency_s;
    work.delay_ps = sim_picoseconds(profile->launch_s + latency_s);
    const int64_t each[] = {bytes->link_out, bytes->link_in, bytes->network_out, bytes->network_in};
    for (int i = 0; i < 4; i++) {
        double rate = i < 2 ? profile->link_bytes_per_s : profile->network_bytes_per_s;
        work.engine_ps[SIM_LINK_OUT + i] = sim_picoseconds((double)each[i] / rate);
    }
    work.engine_ps[SIM_MEMORY] =
        sim_picoseconds(2 * (double)bytes->own / profile->memory_bytes_per_s);
    return work;
}

int64_t sim_gather_ps(const struct profile *profile, int ranks, bool far, int64_t bytes)
{
    if (ranks < 2)
        return 0;
    double latency_s = far ? profile->network_latency_s : profile->link_latency_s;
    double rate = far ? profile->network_bytes_per_s : profile->link_bytes_per_s;
    return sim_picoseconds(latency_s + (double)bytes * (double)(ranks - 1) / rate);
}
