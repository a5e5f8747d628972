/* The measured figures as a profile, and as its file. */
#include <stdarg.h>
#include <string.h>
#include <jansson.h>
#include "bench/harness/calibrate.h"
#include "kernels/isa.h"
#include "probe/host.h"
#include "probe/new_file.h"

/* Two directions share an engine when both at once take this much longer than one. */
#define SHARED_FROM 1.5

struct profile calibrate_profile(const struct calibrate_config *config,
    const struct calibrate_figures *figures, struct calibrate_error *f32,
    struct calibrate_error *bf16)
{
    int64_t half_bytes = host_memory_limit_bytes() / 2;
    double ranks = config->ranks;
    struct profile p = {.memory_bytes = half_bytes / config->ranks,
        .memory_bytes_per_s = figures->memory_bytes_per_s,
        .launch_s = figures->launch_s,
        .ranks = config->ranks,
        .ranks_per_node = config->ranks,
        .link_bytes_per_s = figures->link_bytes_per_s,
        .link_latency_s = figures->link_latency_s,
        .link_duplex = figures->link_both < SHARED_FROM,
        .h2d_bytes_per_s = figures->h2d_bytes_per_s,
        .d2h_bytes_per_s = figures->d2h_bytes_per_s,
        .host_link_latency_s = figures->host_link_latency_s,
        .host_link_duplex = figures->host_link_both < SHARED_FROM,
        .host_memory_bytes = half_bytes,
        .host_memory_bytes_per_s = figures->memory_bytes_per_s * ranks,
        .host_adamw_params_per_s = figures->adamw_params_per_s};
    if (!p.link_duplex) /* one link carries what a rank sends and what it receives */
        p.link_bytes_per_s *= 2;
    if (config->ranks < 2) /* as a copy, since nothing else is known */
        p.link_bytes_per_s = figures->copy_bytes_per_s / 2;
    p.network_bytes_per_s = p.link_bytes_per_s;
    p.network_latency_s = p.link_latency_s;
    *f32 = calibrate_fit(figures->f32, CALIBRATE_PRODUCTS, &p.f32);
    *bf16 = calibrate_fit(figures->bf16, CALIBRATE_PRODUCTS, &p.bf16);
    p.host_flops_per_s = p.f32.peak_flops_per_s * p.f32.efficiency * ranks;
    return p;
}

/* ---- the file -------------------------------------------------------------------------------- */

static void put(struct new_file *file, const char *key, const char *value, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* One line; the rest tells how the value came about. */
static void put(struct new_file *file, const char *key, const char *value, const char *format, ...)
{
    char comment[256];
    va_list list;
    va_start(list, format);
    vsnprintf(comment, sizeof comment, format, list);
    va_end(list);
    new_file_print(file, "%-26s = %-11s # %s\n", key, value, comment);
}

struct value {
    char text[32];
};

static struct value number(double value)
{
    struct value v;
    snprintf(v.text, sizeof v.text, "%.4g", value);
    return v;
}

static struct value whole(int64_t value)
{
    struct value v;
    snprintf(v.text, sizeof v.text, "%lld", (long long)value);
    return v;
}

static const char *yes(bool is)
{
    return is ? "yes" : "no";
}

/* The environment's text of that key, "" where it does not tell. */
static const char *told(const json_t *facts, const char *key)
{
    const char *text = json_string_value(json_object_get(facts, key));
    return text ? text : "";
}

static void put_head(struct new_file *file, const struct calibrate_config *config,
    const struct calibrate_figures *figures, const json_t *environment, const json_t *run)
{
    const char *cpu = told(environment, "cpu");
    json_t *load = json_array_get(json_object_get(environment, "load"), 0);
    char description[128];
    new_file_print(file, "# This machine, measured by calibrate on %s.\n#\n", told(run, "time"));
    new_file_print(file, "# %s, %d cores, %s; load of the minute before: %.1f.\n", cpu, host_cpus(),
        told(environment, "isa_used"), json_number_value(load));
    new_file_print(file,
        "# %d ranks with %d threads in all measured at once, through the cpu device; of %lld "
        "samples\n"
        "# of 4 ms or one repetition, each the slowest rank's, the least counts. All ranks\n"
        "# together do %.2f times the matrix products of one alone. What a key means is told in\n"
        "# docs/SIMULATION.md.\n\n",
        config->ranks, config->threads, (long long)config->rounds, figures->ranks_at_once);
    snprintf(description, sizeof description, "%d x %d of %d cores of %.60s, calibrated",
        config->ranks, config->threads / config->ranks, host_cpus(), cpu);
    for (char *c = description; *c; c++)
        *c = *c == '#' ? ' ' : *c;
    new_file_print(file, "%-26s = %s\n", "description", description);
}

/* The five keys of one type's rate. */
static void put_rate(struct new_file *file, const char *type, const struct profile_rate *rate,
    const struct calibrate_error *error)
{
    const char *const sides[] = {"half_m", "half_n", "half_k"};
    const double halves[] = {rate->half_m, rate->half_n, rate->half_k};
    char key[32];
    snprintf(key, sizeof key, "%s_flops_per_s", type);
    put(file, key, number(rate->peak_flops_per_s).text,
        "the fastest of %d products, or the fit's endless ones", CALIBRATE_PRODUCTS);
    snprintf(key, sizeof key, "%s_efficiency", type);
    put(file, key, number(rate->efficiency).text,
        "fitted to products of 8 to 512 a side; off by %.0f %%, at worst %.0f %%",
        100 * error->median, 100 * error->worst);
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "%s_%s", type, sides[i]);
        put(file, key, number(halves[i]).text, "fitted, likewise");
    }
}

static void put_device(struct new_file *file, const struct calibrate_figures *figures,
    const struct profile *p, const struct calibrate_error *f32, const struct calibrate_error *bf16)
{
    put(file, "memory_bytes", whole(p->memory_bytes).text,
        "a rank's share of half of the machine's memory");
    put(file, "reserved_memory_bytes", "0", "nothing is kept by libraries");
    put_rate(file, "f32", &p->f32, f32);
    put_rate(file, "bf16", &p->bf16, bf16);
    put(file, "memory_bytes_per_s", number(p->memory_bytes_per_s).text,
        "a += b of 32 MiB arrays; of 256 KiB %.3g, a copy of 32 MiB %.3g",
        figures->cached_bytes_per_s, figures->copy_bytes_per_s);
    put(file, "launch_s", number(p->launch_s).text,
        "a += b of 16 elements, queued; one that waits for another stream's: %.2g",
        figures->hand_off_s);
}

static void put_links(
    struct new_file *file, const struct calibrate_figures *figures, const struct profile *p)
{
    bool alone = p->ranks < 2;
    put(file, "ranks", whole(p->ranks).text, "as many as measured");
    put(file, "ranks_per_node", whole(p->ranks_per_node).text, "one machine");
    put(file, "link_bytes_per_s", number(p->link_bytes_per_s).text, "%s",
        alone ? "not measured, one rank: as a copy" : "a ring step of 2 MiB less one of 64 bytes");
    put(file, "link_latency_s", number(p->link_latency_s).text, "%s",
        alone ? "not measured, one rank" : "a ring step of 64 bytes less a launch");
    if (alone)
        put(file, "link_duplex", yes(p->link_duplex), "not measured, one rank");
    else
        put(file, "link_duplex", yes(p->link_duplex),
            "sending and receiving takes %.2f times as long as either", figures->link_both);
    put(file, "network_bytes_per_s", number(p->network_bytes_per_s).text,
        "there is no network: as the links");
    put(file, "network_latency_s", number(p->network_latency_s).text, "likewise");
}

static void put_host(
    struct new_file *file, const struct calibrate_figures *figures, const struct profile *p)
{
    put(file, "h2d_bytes_per_s", number(p->h2d_bytes_per_s).text, "a copy of 32 MiB");
    put(file, "d2h_bytes_per_s", number(p->d2h_bytes_per_s).text, "likewise");
    put(file, "host_link_latency_s", number(p->host_link_latency_s).text, "a copy of 64 bytes");
    put(file, "host_link_duplex", yes(p->host_link_duplex),
        "both directions at once take %.2f times as long as the slower", figures->host_link_both);
    put(file, "host_memory_bytes", whole(p->host_memory_bytes).text,
        "the other half of the machine's memory");
    put(file, "host_memory_bytes_per_s", number(p->host_memory_bytes_per_s).text,
        "it is the same memory: all ranks' memory_bytes_per_s");
    put(file, "host_flops_per_s", number(p->host_flops_per_s).text,
        "they are the same cores: all ranks' f32 rate");
    put(file, "host_adamw_params_per_s", number(p->host_adamw_params_per_s).text,
        "AdamW on pinned memory, 2M parameters a rank, all ranks together");
}

int calibrate_write(const char *path, const struct calibrate_config *config,
    const struct calibrate_figures *figures, const struct profile *profile,
    const struct calibrate_error *f32, const struct calibrate_error *bf16)
{
    char *none[] = {NULL};
    struct new_file file;
    if (new_file_open(&file, path))
        return -1;
    json_t *environment = host_environment(isa_name(isa_selected())), *run = host_run(0, none);
    put_head(&file, config, figures, environment, run);
    json_decref(environment);
    json_decref(run);
    new_file_print(&file, "\n# ---- the device of one rank\n");
    put_device(&file, figures, profile, f32, bf16);
    new_file_print(&file, "\n# ---- its ranks\n");
    put_links(&file, figures, profile);
    new_file_print(&file, "\n# ---- the host\n");
    put_host(&file, figures, profile);
    return new_file_commit(&file);
}
