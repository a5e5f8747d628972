/* What this process may use: cores by affinity and quota, memory by the machine and its control
 * groups, and what it has used. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "probe/host.h"
#include "probe/host_parts.h"

enum { READ_BYTES = 65536, PATH_BYTES = 4096 };

char *host_read(const char *root, const char *path)
{
    char full[PATH_BYTES];
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full)
        return NULL;
    FILE *file = fopen(full, "re");
    if (!file)
        return NULL;
    char *text = malloc(READ_BYTES + 1);
    if (text) {
        size_t count = fread(text, 1, READ_BYTES, file);
        text[count] = 0;
    }
    if (ferror(file)) { /* a folder opens, too */
        free(text);
        text = NULL;
    }
    fclose(file);
    return text;
}

int64_t host_read_int(const char *root, const char *path)
{
    char *text = host_read(root, path), *end = text;
    int64_t value = -1;
    if (text) {
        errno = 0;
        value = strtoll(text, &end, 10);
        if (end == text || errno)
            value = -1;
    }
    free(text);
    return value;
}

char *host_field(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, length))
            continue;
        const char *at = line + length;
        at += strspn(at, " \t");
        if (*at++ != ':')
            continue;
        at += strspn(at, " \t");
        size_t end = strcspn(at, "\n");
        while (end && isspace((unsigned char)at[end - 1]))
            end--;
        return strndup(at, end);
    }
    return NULL;
}

/* ---- control groups -----------------------------------------------------------------------------
 */

/* The limit that one group's folder states, INT64_MAX when none. */
typedef int64_t group_limit(const char *root, const char *folder);

static int64_t memory_v1(const char *root, const char *folder)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/memory.limit_in_bytes", folder);
    int64_t bytes = host_read_int(root, path);
    return bytes >= 0 ? bytes : INT64_MAX;
}

static int64_t memory_v2(const char *root, const char *folder)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/memory.max", folder);
    int64_t bytes = host_read_int(root, path); /* "max" is no number */
    return bytes >= 0 ? bytes : INT64_MAX;
}

static int64_t thousandths(int64_t quota, int64_t period)
{
    if (quota <= 0 || period <= 0 || quota > INT64_MAX / 1000)
        return INT64_MAX;
    return quota * 1000 / period;
}

static int64_t cpu_v1(const char *root, const char *folder)
{
    char quota[PATH_BYTES + 64], period[PATH_BYTES + 64];
    snprintf(quota, sizeof quota, "%s/cpu.cfs_quota_us", folder);
    snprintf(period, sizeof period, "%s/cpu.cfs_period_us", folder);
    return thousandths(host_read_int(root, quota), host_read_int(root, period));
}

static int64_t cpu_v2(const char *root, const char *folder)
{
    char path[PATH_BYTES + 64];
    long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    char *text = host_read(root, path);
    int64_t limit = INT64_MAX;
    if (text && sscanf(text, "%lld %lld", &quota, &period) == 2) /* "max PERIOD" is none */
        limit = thousandths(quota, period);
    free(text);
    return limit;
}

/* The least limit over a group and all that contain it. Inside a container the path may name groups
 * that cannot be seen from there; what can be seen is what counts, the mount's own root last. */
static int64_t least_over_levels(
    const char *root, const char *mount, const char *group, group_limit *limit)
{
    char folder[PATH_BYTES];
    int64_t least = INT64_MAX;
    size_t mount_length = strlen(mount);
    if (snprintf(folder, sizeof folder, "%s%s", mount, group) >= (int)sizeof folder)
        return INT64_MAX;
    for (;;) {
        int64_t here = limit(root, folder);
        least = here < least ? here : least;
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < mount_length)
            return least;
        *slash = 0;
    }
}

/* True when the comma-separated `list` holds `word`. */
static int lists(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (!strncmp(at, word, length) && (at[length] == ',' || !at[length]))
            return 1;
    }
    return 0;
}

/* One line of /proc/self/cgroup, "number:controllers:path"; version 2 has number 0 and no names. */
static int64_t limit_of_line(
    const char *root, char *line, const char *controller, group_limit *v1, group_limit *v2)
{
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return INT64_MAX;
    *controllers++ = 0;
    *group++ = 0;
    if (!*controllers) {
        int64_t alone = least_over_levels(root, "/sys/fs/cgroup", group, v2);
        int64_t beside = least_over_levels(root, "/sys/fs/cgroup/unified", group, v2);
        return alone < beside ? alone : beside;
    }
    if (!lists(controllers, controller))
        return INT64_MAX;
    char mount[PATH_BYTES];
    snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", controller);
    int64_t single = least_over_levels(root, mount, group, v1);
    snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", controllers); /* "cpu,cpuacct" */
    int64_t joint = least_over_levels(root, mount, group, v1);
    return single < joint ? single : joint;
}

static int64_t group_limit_of(
    const char *root, const char *controller, group_limit *v1, group_limit *v2)
{
    char *text = host_read(root, "/proc/self/cgroup"), *rest = NULL;
    int64_t least = INT64_MAX;
    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest)) {
        int64_t limit = limit_of_line(root, line, controller, v1, v2);
        least = limit < least ? limit : least;
    }
    free(text);
    return least;
}

int64_t host_group_cpu_thousandths(const char *root)
{
    return group_limit_of(root, "cpu", cpu_v1, cpu_v2);
}

int64_t host_group_memory_bytes(const char *root)
{
    return group_limit_of(root, "memory", memory_v1, memory_v2);
}

/* ---- this process -------------------------------------------------------------------------------
 */

/* The kernel refuses a set smaller than its own, whose size it does not tell. */
static int cores_by_affinity(void)
{
    for (int cores = 1024; cores <= 1 << 20; cores *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)cores);
        size_t bytes = CPU_ALLOC_SIZE((size_t)cores);
        if (!set)
            break;
        int status = sched_getaffinity(0, bytes, set), reason = errno;
        int count = status ? 0 : CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (!status)
            return count;
        if (reason != EINVAL)
            break;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

int host_allowed_cores(int64_t cores, int64_t quota_thousandths)
{
    int64_t quota = quota_thousandths / 1000;
    int64_t allowed = quota < cores ? quota : cores;
    return allowed > 1 ? (int)allowed : 1;
}

int host_cpus(void)
{
    return host_allowed_cores(cores_by_affinity(), host_group_cpu_thousandths(""));
}

int64_t host_memory_limit_bytes(void)
{
    int64_t physical = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    int64_t group = host_group_memory_bytes("");
    return group < physical ? group : physical;
}

int64_t host_rss_peak_bytes(void)
{
    char *status = host_read("", "/proc/self/status");
    char *peak = status ? host_field(status, "VmHWM") : NULL;
    int64_t kilobytes = peak ? strtoll(peak, NULL, 10) : 0;
    free(status);
    free(peak);
    if (kilobytes <= 0) {
        struct rusage usage;
        kilobytes = getrusage(RUSAGE_SELF, &usage) ? 0 : usage.ru_maxrss;
    }
    return kilobytes * 1024;
}

void host_rss_peak_reset(void)
{
    int descriptor = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (descriptor < 0)
        return;
    /* Where a kernel or a sandbox refuses, the peak stays that of the whole process. */
    ssize_t written = write(descriptor, "5", 1);
    (void)written;
    close(descriptor);
}
