/* The CPU as /proc/cpuinfo and /sys describe it: its name, what of our kernels it can run, its
 * caches. Read independently of kernels/, so that a record can show when the two disagree. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "probe/host_parts.h"

/* Arm cores tell two numbers and no name. */
static const struct {
    int implementer, part;
    const char *name;
} arm_cores[] = {
    {0x41, 0xd03, "Cortex-A53"},
    {0x41, 0xd08, "Cortex-A72"},
    {0x41, 0xd0b, "Cortex-A76"},
    {0x41, 0xd0c, "Neoverse-N1"},
    {0x41, 0xd40, "Neoverse-V1"},
    {0x41, 0xd49, "Neoverse-N2"},
    {0x41, 0xd4f, "Neoverse-V2"},
    {0x41, 0xd84, "Neoverse-V3"},
    {0x41, 0xd8e, "Neoverse-N3"},
    {0x46, 0x001, "A64FX"},
    {0x48, 0xd01, "Kunpeng-920"},
    {0xc0, 0xac3, "Ampere-1"},
};

static char *arm_model(const char *implementer, const char *part)
{
    char text[100];
    long implementer_number = strtol(implementer, NULL, 0), part_number = strtol(part, NULL, 0);
    for (size_t i = 0; i < sizeof arm_cores / sizeof *arm_cores; i++)
        if (arm_cores[i].implementer == implementer_number && arm_cores[i].part == part_number)
            return strdup(arm_cores[i].name);
    snprintf(text, sizeof text, "implementer %.20s part %.20s", implementer, part);
    return strdup(text);
}

char *host_cpu_model(const char *root)
{
    char *info = host_read(root, "/proc/cpuinfo"), *model = NULL;
    if (info) {
        char *implementer = host_field(info, "CPU implementer"),
             *part = host_field(info, "CPU part");
        model = host_field(info, "model name");
        if (!model && implementer && part)
            model = arm_model(implementer, part);
        free(implementer);
        free(part);
    }
    free(info);
    return model ? model : strdup("unknown");
}

/* True when the blank-separated `words` hold every one of `wanted`, which ends with NULL. */
static bool holds_all(const char *words, const char *const *wanted)
{
    for (; *wanted; wanted++) {
        size_t length = strlen(*wanted);
        const char *at = strstr(words, *wanted);
        while (at && ((at > words && at[-1] != ' ') || (at[length] && at[length] != ' ')))
            at = strstr(at + 1, *wanted);
        if (!at)
            return false;
    }
    return true;
}

const char *host_isa(const char *root)
{
    /* The compiler's x86-64-v3 and v4. */
    static const char *const scalar[] = {"fma", NULL};
    static const char *const avx2[] = {
        "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", NULL};
    static const char *const avx512[] = {
        "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", NULL};
    char *info = host_read(root, "/proc/cpuinfo");
    char *flags = info ? host_field(info, "flags") : NULL;
    const char *isa = "generic";
    if (flags && holds_all(flags, avx2))
        isa = holds_all(flags, avx512) ? "avx512" : "avx2";
    else if (flags && holds_all(flags, scalar))
        isa = "scalar";
    free(info);
    free(flags);
    return isa;
}

/* The number of cores in a list like "0-3,8-11". */
static int64_t cores_in_list(const char *list)
{
    int64_t count = 0;
    for (const char *at = list; at && *at; at = strchr(at, ',')) {
        at += *at == ',';
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (end == at)
            break;
        if (*end == '-')
            last = strtol(end + 1, NULL, 10);
        count += last - first + 1;
    }
    return count;
}

/* "32K", "1M", "33554432". */
static int64_t size_bytes(const char *text)
{
    char *unit;
    int64_t size = strtoll(text, &unit, 10);
    return *unit == 'K' ? size << 10 : *unit == 'M' ? size << 20 : *unit == 'G' ? size << 30 : size;
}

static char *cache_file(const char *root, int index, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
    return host_read(root, path);
}

/* The cache of that index; *there tells a missing one from a want of memory. */
static json_t *cache(const char *root, int index, bool *there)
{
    char *level = cache_file(root, index, "level"), *type = cache_file(root, index, "type");
    char *size = cache_file(root, index, "size");
    char *shared = cache_file(root, index, "shared_cpu_list");
    json_t *entry = NULL;
    *there = level && type && size;
    if (*there) {
        type[strcspn(type, "\n")] = 0;
        for (char *c = type; *c; c++)
            *c = (char)tolower((unsigned char)*c);
        entry = json_pack("{s:I, s:s, s:I}", "level", (json_int_t)strtoll(level, NULL, 10), "type",
            type, "size_bytes", (json_int_t)size_bytes(size));
        int64_t sharers = shared ? cores_in_list(shared) : 0;
        if (entry && sharers && json_object_set_new(entry, "shared_by", json_integer(sharers))) {
            json_decref(entry);
            entry = NULL;
        }
    }
    free(level);
    free(type);
    free(size);
    free(shared);
    return entry;
}

json_t *host_caches(const char *root)
{
    json_t *caches = json_array();
    bool there = caches != NULL;
    for (int i = 0; there; i++) {
        json_t *entry = cache(root, i, &there);
        if (there && json_array_append_new(caches, entry)) { /* refuses a NULL entry too */
            json_decref(caches);
            return NULL;
        }
    }
    return caches;
}
