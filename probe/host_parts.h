/* The pieces of host.h, each over a `root` that stands before every path: "" for this machine, a
 * folder of prepared files for a test. Private to probe/host*.c and its test. */
#pragma once
#include <stdint.h>
#include <jansson.h>

/* The first 64 KiB of a small file as text, to be freed; NULL when it cannot be read. */
char *host_read(const char *root, const char *path);

/* The decimal number at the start of a file, or -1. */
int64_t host_read_int(const char *root, const char *path);

/* The value of "name : value", up to the line's end, in the text of /proc/cpuinfo, /proc/meminfo or
 * /proc/PID/status, to be freed; NULL when no line has that name. */
char *host_field(const char *text, const char *name);

/* What the control groups of this process allow, INT64_MAX when nothing limits it: thousandths of a
 * core, bytes. Version 1 and 2 hierarchies, the least over all levels. */
int64_t host_group_cpu_thousandths(const char *root);
int64_t host_group_memory_bytes(const char *root);

/* The cores to use, at least 1. A quota of one and a half cores counts as one: a second thread
 * would be throttled for half of the time, and a throttled thread is noise in every figure. */
int host_allowed_cores(int64_t cores, int64_t quota_thousandths);

/* "AMD EPYC 9654", "Neoverse-N1"; to be freed; NULL when memory is short. */
char *host_cpu_model(const char *root);

/* The widest set of kernels this CPU can run, by FLATPEAK_ISA's names: "avx512", "avx2", "scalar",
 * "generic". */
const char *host_isa(const char *root);

/* [{"level": 1, "type": "data", "size_bytes": n, "shared_by": cores}, ...] of the first core. */
json_t *host_caches(const char *root);

/* The arguments as one line that a shell reads back; to be freed; NULL when memory is short. */
char *host_command(int argc, char *const *argv);

/* The allow-listed variables of `environment` (as environ) as an object. */
json_t *host_variables(char *const *environment);
