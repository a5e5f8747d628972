/* Provenance of a figure. Of the process's variables only those on a list are kept: an environment
 * holds names, paths and keys that belong in no record. */
#include "probe/host.h"
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif
#include "probe/host_build.h"
#include "probe/host_parts.h"
#include "probe/text.h"

/* Sets and takes over `value`. False when there is none or memory is short. */
static bool put(json_t *object, const char *key, json_t *value)
{
    return !json_object_set_new(object, key, value);
}

static bool put_text(json_t *object, const char *key, const char *text)
{
    return put(object, key, text_json(text));
}

/* The same, and frees the text. */
static bool put_owned(json_t *object, const char *key, char *text)
{
    bool done = text && put_text(object, key, text);
    free(text);
    return done;
}

static bool put_bytes(json_t *object, const char *key, int64_t bytes)
{
    return put(object, key, json_integer(bytes));
}

/* ---- variables ----------------------------------------------------------------------------------
 */

static bool is_allowed(const char *name, size_t length)
{
    static const char prefix[] = "FLATPEAK_";
    static const char *const allowed[] = {
        "OMP_NUM_THREADS",
        "OMP_PROC_BIND",
        "OMP_PLACES",
        "OPENBLAS_NUM_THREADS",
        "OPENBLAS_CORETYPE",
        "MALLOC_ARENA_MAX",
        "GLIBC_TUNABLES",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_P2P_DISABLE",
        "NCCL_SHM_DISABLE",
    };
    if (length > sizeof prefix - 1 && !strncmp(name, prefix, sizeof prefix - 1))
        return true;
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        if (length == strlen(allowed[i]) && !strncmp(name, allowed[i], length))
            return true;
    return false;
}

json_t *host_variables(char *const *environment)
{
    json_t *variables = json_object();
    for (; variables && *environment; environment++) {
        const char *equals = strchr(*environment, '=');
        if (!equals || !is_allowed(*environment, (size_t)(equals - *environment)))
            continue;
        char *name = strndup(*environment, (size_t)(equals - *environment));
        bool done = name && put_text(variables, name, equals + 1);
        free(name);
        if (!done) {
            json_decref(variables);
            variables = NULL;
        }
    }
    return variables;
}

/* ---- environment --------------------------------------------------------------------------------
 */

static const char *libc_version(char *text, size_t size)
{
#ifdef __GLIBC__
    snprintf(text, size, "glibc %s", gnu_get_libc_version());
#else
    snprintf(text, size, "unknown");
#endif
    return text;
}

static bool put_kernel(json_t *env)
{
    struct utsname name;
    char text[sizeof name.sysname + sizeof name.release + sizeof name.machine];
    if (uname(&name))
        return put_text(env, "kernel", "unknown");
    snprintf(text, sizeof text, "%s %s %s", name.sysname, name.release, name.machine);
    return put_text(env, "kernel", text);
}

/* Absent where the system does not tell. */
static bool put_load(json_t *env)
{
    double load[3];
    if (getloadavg(load, 3) != 3)
        return true;
    return put(env, "load", json_pack("[f, f, f]", load[0], load[1], load[2]));
}

static bool put_memory(json_t *env)
{
    char *info = host_read("", "/proc/meminfo");
    char *available = info ? host_field(info, "MemAvailable") : NULL;
    json_t *memory = json_object();
    bool done =
        put_bytes(
            memory, "physical_bytes", (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)) &&
        put_bytes(memory, "limit_bytes", host_memory_limit_bytes()) &&
        (!available || put_bytes(memory, "available_bytes", strtoll(available, NULL, 10) * 1024));
    free(info);
    free(available);
    if (!done) {
        json_decref(memory);
        return false;
    }
    return put(env, "memory", memory);
}

static bool fill_environment(json_t *env, const char *isa_used)
{
    struct host_build_facts build = host_build_facts();
    char libc[64];
    return put_owned(env, "cpu", host_cpu_model("")) && put_bytes(env, "cores", host_cpus()) &&
           put_bytes(env, "cores_online", sysconf(_SC_NPROCESSORS_ONLN)) &&
           put(env, "caches", host_caches("")) && put_text(env, "isa_detected", host_isa("")) &&
           put_text(env, "isa_used", isa_used) && put_text(env, "compiler", build.compiler) &&
           put_text(env, "flags", build.flags) &&
           put_text(env, "libc", libc_version(libc, sizeof libc)) && put_kernel(env) &&
           put_load(env) && put_memory(env) && put(env, "variables", host_variables(environ));
}

json_t *host_environment(const char *isa_used)
{
    json_t *env = json_object();
    if (env && !fill_environment(env, isa_used)) {
        json_decref(env);
        env = NULL;
    }
    return env;
}

/* ---- run ----------------------------------------------------------------------------------------
 */

static bool is_plain(char c)
{
    return isalnum((unsigned char)c) || (c && strchr("_@%+=:,./-", c));
}

static size_t quote_argument(char *to, const char *argument)
{
    char *at = to;
    const char *c = argument;
    while (is_plain(*c))
        c++;
    if (!*c && *argument)
        return (size_t)(stpcpy(to, argument) - to);
    *at++ = '\'';
    for (c = argument; *c; c++)
        if (*c == '\'')
            at = stpcpy(at, "'\\''");
        else
            *at++ = *c;
    *at++ = '\'';
    *at = 0;
    return (size_t)(at - to);
}

char *host_command(int argc, char *const *argv)
{
    size_t room = 1, length = 0;
    for (int i = 0; i < argc; i++)
        room += 4 * strlen(argv[i]) + 3; /* each byte as '\'' at worst, two quotes, a blank */
    char *text = malloc(room);
    if (!text)
        return NULL;
    text[0] = 0;
    for (int i = 0; i < argc; i++) {
        if (i)
            text[length++] = ' ';
        length += quote_argument(text + length, argv[i]);
    }
    return text;
}

/* Time, process and 64 random bits: unique over machines that share a file. */
static bool put_id(json_t *run, const struct tm *utc)
{
    uint64_t random = 0;
    char stamp[32], id[96];
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        random = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
    }
    strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", utc);
    snprintf(id, sizeof id, "%s-%ld-%016llx", stamp, (long)getpid(), (unsigned long long)random);
    return put_text(run, "id", id);
}

static bool put_time(json_t *run, const struct tm *utc)
{
    char text[32];
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", utc);
    return put_text(run, "time", text);
}

static bool put_git(json_t *run)
{
    struct host_build_facts build = host_build_facts();
    json_t *git = json_object();
    bool done = put_text(git, "commit", build.commit) &&
                (build.dirty < 0 || put(git, "dirty", json_boolean(build.dirty)));
    if (!done) {
        json_decref(git);
        return false;
    }
    return put(run, "git", git);
}

json_t *host_run(int argc, char *const *argv)
{
    time_t now = time(NULL);
    struct tm utc;
    json_t *run = json_object();
    bool done = run && gmtime_r(&now, &utc) && put_id(run, &utc) && put_time(run, &utc) &&
                put_git(run) && put_text(run, "version", host_version()) &&
                put_owned(run, "command", host_command(argc, argv));
    if (!done) {
        json_decref(run);
        run = NULL;
    }
    return run;
}
