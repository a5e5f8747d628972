/* Where a figure comes from: the machine, the compiler and the state of the tree. */
#pragma once
#include <stdint.h>
#include <jansson.h>

/* CPU time-slice facts that other modules need. */
int host_cpus(void); /* cores this process may run on (affinity and cgroup quota) */
int64_t host_memory_limit_bytes(void); /* the lesser of physical memory and the cgroup's limit */
int64_t host_rss_peak_bytes(void);     /* VmHWM */
void host_rss_peak_reset(void);        /* best effort: /proc/self/clear_refs */

/* Fills `env` with cpu, cores, caches, isa_detected, isa_used, compiler, flags, libc, kernel, load,
 * memory, and the allow-listed environment variables (FLATPEAK_*, OMP_NUM_THREADS, ...). */
json_t *host_environment(const char *isa_used);

/* Fills `run` with id (unique), time (UTC, ISO 8601), git commit and dirty flag, version, command.
 */
json_t *host_run(int argc, char *const *argv);

const char *host_version(void); /* "0.1.0" */
const char *host_build(void);   /* one line: version, commit, dirty, compiler, flags */
