/* Reading a machine's profile. One table names every key with its kind and its place; what is said
 * about a wrong line follows from it. */
#include "device/profile.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/profiles_folder.h"

#define LINE_BYTES 512
#define PATH_BYTES 1024

enum kind {
    TEXT,
    BYTES, /* a whole number of at least 0 that fits in int64_t */
    COUNT, /* of at least 1 */
    RATE,  /* above 0, finite */
    SHARE, /* above 0, at most 1 */
    SIZE,  /* at least 0, finite: half lengths, times */
    FLAG
};

static const char *const allowed[] = {
    [TEXT] = "text of at most 127 characters",
    [BYTES] = "a whole number of bytes of at least 0",
    [COUNT] = "a whole number of at least 1",
    [RATE] = "a number above 0",
    [SHARE] = "a number above 0, at most 1",
    [SIZE] = "a number of at least 0",
    [FLAG] = "yes or no",
};

struct key {
    const char *name;
    enum kind kind;
    size_t at;
};

#define KEY(name, kind)                                                                            \
    {                                                                                              \
#name, kind, offsetof(struct profile, name)                                                \
    }
#define RATE_KEYS(type)                                                                            \
    {#type "_flops_per_s", RATE, offsetof(struct profile, type.peak_flops_per_s)},                 \
        {#type "_efficiency", SHARE, offsetof(struct profile, type.efficiency)},                   \
        {#type "_half_m", SIZE, offsetof(struct profile, type.half_m)},                            \
        {#type "_half_n", SIZE, offsetof(struct profile, type.half_n)},                            \
    {                                                                                              \
#type "_half_k", SIZE, offsetof(struct profile, type.half_k)                               \
    }

static const struct key keys[] = {
    KEY(description, TEXT),
    KEY(memory_bytes, BYTES),
    KEY(reserved_memory_bytes, BYTES),
    RATE_KEYS(f32),
    RATE_KEYS(bf16),
    KEY(memory_bytes_per_s, RATE),
    KEY(launch_s, SIZE),
    KEY(ranks, COUNT),
    KEY(ranks_per_node, COUNT),
    KEY(link_bytes_per_s, RATE),
    KEY(link_latency_s, SIZE),
    KEY(network_bytes_per_s, RATE),
    KEY(network_latency_s, SIZE),
    KEY(link_duplex, FLAG),
    KEY(h2d_bytes_per_s, RATE),
    KEY(d2h_bytes_per_s, RATE),
    KEY(host_link_latency_s, SIZE),
    KEY(host_link_duplex, FLAG),
    KEY(host_memory_bytes, BYTES),
    KEY(host_memory_bytes_per_s, RATE),
    KEY(host_flops_per_s, RATE),
    KEY(host_adamw_params_per_s, RATE),
};
#define KEYS (int)(sizeof keys / sizeof keys[0])

struct reader {
    struct profile *out;
    const char *path;
    int line;
    int line_of[KEYS]; /* where a key stands; 0: not yet */
    char *error;
    int size;
};

static int fail(struct reader *r, int line, const char *key, const char *found, const char *may)
{
    snprintf(r->error, (size_t)r->size, "%s:%d: %s%sgot '%s', allowed %s", r->path, line, key,
        *key ? ": " : "", found, may);
    return -1;
}

/* A finite decimal number and nothing behind it. */
static bool parse_number(const char *text, double *value)
{
    char *end;
    if (!isdigit((unsigned char)text[strspn(text, "+-.")]) || strpbrk(text, "xX"))
        return false;
    *value = strtod(text, &end);
    return !*end && isfinite(*value);
}

static bool set_whole(void *place, const char *text, double least)
{
    double value;
    if (!parse_number(text, &value) || value < least || value != floor(value) || value >= 0x1p53)
        return false;
    *(int64_t *)place = (int64_t)value;
    return true;
}

static bool set_real(void *place, const char *text, enum kind kind)
{
    double value;
    if (!parse_number(text, &value) || value < 0 || (kind != SIZE && value == 0) ||
        (kind == SHARE && value > 1))
        return false;
    *(double *)place = value;
    return true;
}

/* False when `text` is not of that kind. */
static bool set(struct profile *out, const struct key *key, const char *text)
{
    void *place = (char *)out + key->at;
    switch (key->kind) {
    case TEXT:
        return *text && (size_t)snprintf(place, sizeof out->description, "%s", text) <
                            sizeof out->description;
    case BYTES:
        return set_whole(place, text, 0);
    case COUNT:
        return set_whole(place, text, 1);
    case FLAG:
        *(bool *)place = !strcmp(text, "yes");
        return *(bool *)place || !strcmp(text, "no");
    default:
        return set_real(place, text, key->kind);
    }
}

static char *trimmed(char *text)
{
    size_t length;
    text += strspn(text, " \t");
    length = strlen(text);
    while (length && isspace((unsigned char)text[length - 1]))
        text[--length] = 0;
    return text;
}

static int unknown_key(struct reader *r, const char *found)
{
    char names[1024] = "one of";
    for (int k = 0; k < KEYS; k++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s %s", k ? "," : "", keys[k].name);
    }
    return fail(r, r->line, "", found, names);
}

static int read_line(struct reader *r, char *line)
{
    line[strcspn(line, "#\r\n")] = 0;
    char *key = trimmed(line), *value = strchr(key, '=');
    int k = 0;
    if (!*key)
        return 0;
    if (!value)
        return fail(r, r->line, "", key, "key = value");
    *value++ = 0;
    key = trimmed(key);
    value = trimmed(value);
    while (k < KEYS && strcmp(key, keys[k].name))
        k++;
    if (k == KEYS)
        return unknown_key(r, key);
    if (r->line_of[k])
        return fail(r, r->line, key, "the key a second time", "each key once");
    if (!set(r->out, &keys[k], value))
        return fail(r, r->line, key, value, allowed[keys[k].kind]);
    r->line_of[k] = r->line;
    return 0;
}

/* What no single line can show. */
static int check_whole(struct reader *r)
{
    for (int k = 0; k < KEYS; k++)
        if (!r->line_of[k])
            return fail(r, r->line + 1, keys[k].name, "end of file", "no key left out");
    for (int k = 0; k < KEYS; k++)
        if (keys[k].at == offsetof(struct profile, reserved_memory_bytes) &&
            r->out->reserved_memory_bytes >= r->out->memory_bytes) {
            char found[32];
            snprintf(found, sizeof found, "%lld", (long long)r->out->reserved_memory_bytes);
            return fail(r, r->line_of[k], keys[k].name, found, "less than memory_bytes");
        }
    return 0;
}

static int read_file(struct reader *r, FILE *file)
{
    char line[LINE_BYTES];
    while (fgets(line, sizeof line, file)) {
        r->line++;
        if (!strchr(line, '\n') && !feof(file)) {
            line[20] = 0;
            return fail(r, r->line, "", line, "lines of at most 510 characters");
        }
        if (read_line(r, line))
            return -1;
    }
    if (ferror(file)) {
        snprintf(r->error, (size_t)r->size, "%s: cannot be read", r->path);
        return -1;
    }
    return check_whole(r);
}

/* "h200-8" of "profiles/h200-8.conf" */
static void name_of(const char *path, char *name, int size)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t length = strlen(base);
    if (length > 5 && !strcmp(base + length - 5, ".conf"))
        length -= 5;
    snprintf(name, (size_t)size, "%.*s", (int)length, base);
}

static bool is_file_name(const char *name)
{
    size_t length = strlen(name);
    return strchr(name, '/') || (length >= 5 && !strcmp(name + length - 5, ".conf"));
}

int profile_read(const char *name_or_file, struct profile *out, char *error, int size)
{
    char path[PATH_BYTES], file_name[PATH_BYTES];
    FILE *file;
    *out = (struct profile){0};
    if (is_file_name(name_or_file)) {
        snprintf(path, sizeof path, "%s", name_or_file);
        file = fopen(path, "r");
        if (!file)
            snprintf(
                error, (size_t)size, "%s: %s; allowed a readable profile", path, strerror(errno));
    } else {
        char names[512];
        snprintf(file_name, sizeof file_name, "%s.conf", name_or_file);
        file = profiles_open(file_name, path, sizeof path);
        profiles_names("", ".conf", names, sizeof names);
        if (!file)
            snprintf(error, (size_t)size,
                "profiles/%s: got no such profile, allowed a file (with a '/') or one of %s",
                file_name, names);
    }
    if (!file)
        return -1;
    struct reader reader = {.out = out, .path = path, .error = error, .size = size};
    int status = read_file(&reader, file);
    fclose(file);
    name_of(path, out->name, sizeof out->name);
    if (status)
        *out = (struct profile){0};
    return status;
}

int64_t profile_device_bytes(const struct profile *profile)
{
    return profile->memory_bytes - profile->reserved_memory_bytes;
}

int64_t profile_host_bytes(const struct profile *profile)
{
    return profile->host_memory_bytes / profile->ranks_per_node;
}

/* ---- a range ------------------------------------------------------------------------------- */

const char *profile_part_name(enum profile_part part)
{
    static const char *const names[] = {"arithmetic", "memory", "links", "host", "all"};
    return names[part];
}

static void scale(double *const *value, double factor)
{
    for (; *value; value++)
        **value *= factor;
}

struct profile profile_scaled(const struct profile *profile, enum profile_part part, double factor)
{
    struct profile s = *profile;
    double *const rates[PROFILE_PARTS][6] = {
        [PROFILE_ARITHMETIC] = {&s.f32.peak_flops_per_s, &s.bf16.peak_flops_per_s,
            &s.host_flops_per_s, &s.host_adamw_params_per_s},
        [PROFILE_MEMORY] = {&s.memory_bytes_per_s},
        [PROFILE_LINKS] = {&s.link_bytes_per_s, &s.network_bytes_per_s},
        [PROFILE_HOST] = {&s.h2d_bytes_per_s, &s.d2h_bytes_per_s, &s.host_memory_bytes_per_s},
    };
    double *const times[PROFILE_PARTS][3] = {
        [PROFILE_ARITHMETIC] = {&s.launch_s},
        [PROFILE_LINKS] = {&s.link_latency_s, &s.network_latency_s},
        [PROFILE_HOST] = {&s.host_link_latency_s},
    };
    for (int p = 0; p < PROFILE_PARTS; p++) {
        if (part != PROFILE_PARTS && (int)part != p)
            continue;
        scale(rates[p], factor);
        scale(times[p], 1 / factor);
    }
    return s;
}
