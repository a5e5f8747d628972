/* The host: prepared /proc and /sys trees of machines unlike this one, then this one. */
#include <limits.h>
#include <sched.h>
#include <sys/mman.h>
#include "probe/host.h"
#include "probe/host_build.h"
#include "probe/host_parts.h"
#include "tests/scratch.h"
#include "tests/tap.h"

static struct scratch scratch;

/* Writes `text` as the file `path` of the prepared machine `root`. */
static void prepare(const char *root, const char *path, const char *text)
{
    char full[600];
    snprintf(full, sizeof full, "%s%s", root, path);
    if (!scratch_text(full, text))
        tap_ok(false, "preparing %s", full);
}

static void test_group_v1(void)
{
    struct scratch_path root = scratch_path(&scratch, "v1");
    prepare(root.text, "/proc/self/cgroup",
        "5:cpuset:/\n4:memory:/a/b\n3:cpuacct,cpu:/a/b\n1:name=systemd:/\n");
    tap_ok(host_group_memory_bytes(root.text) == INT64_MAX &&
               host_group_cpu_thousandths(root.text) == INT64_MAX,
        "v1: no files, no limit");
    prepare(root.text, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    prepare(root.text, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000000\n");
    prepare(root.text, "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "2000000\n");
    tap_ok(host_group_memory_bytes(root.text) == 1000000, "v1: the least memory of all levels");
    prepare(root.text, "/sys/fs/cgroup/cpuacct,cpu/a/cpu.cfs_quota_us", "-1\n");
    prepare(root.text, "/sys/fs/cgroup/cpuacct,cpu/a/cpu.cfs_period_us", "100000\n");
    tap_ok(host_group_cpu_thousandths(root.text) == INT64_MAX, "v1: quota -1 is none");
    prepare(root.text, "/sys/fs/cgroup/cpuacct,cpu/a/b/cpu.cfs_quota_us", "250000\n");
    prepare(root.text, "/sys/fs/cgroup/cpuacct,cpu/a/b/cpu.cfs_period_us", "100000\n");
    tap_ok(host_group_cpu_thousandths(root.text) == 2500, "v1: two and a half cores");
    prepare(root.text, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
    prepare(root.text, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    tap_ok(host_group_cpu_thousandths(root.text) == 500, "v1: the link named for one controller");
}

static void test_group_v2(void)
{
    struct scratch_path root = scratch_path(&scratch, "v2");
    prepare(root.text, "/proc/self/cgroup", "0::/user.slice/x\n");
    prepare(root.text, "/sys/fs/cgroup/user.slice/x/memory.max", "max\n");
    prepare(root.text, "/sys/fs/cgroup/user.slice/x/cpu.max", "max 100000\n");
    tap_ok(host_group_memory_bytes(root.text) == INT64_MAX &&
               host_group_cpu_thousandths(root.text) == INT64_MAX,
        "v2: max is no limit");
    prepare(root.text, "/sys/fs/cgroup/user.slice/memory.max", "4096\n");
    prepare(root.text, "/sys/fs/cgroup/user.slice/x/cpu.max", "150000 100000\n");
    tap_ok(host_group_memory_bytes(root.text) == 4096, "v2: memory of the level above");
    tap_ok(host_group_cpu_thousandths(root.text) == 1500, "v2: one and a half cores");
    prepare(root.text, "/sys/fs/cgroup/user.slice/x/cpu.max", "nonsense");
    tap_ok(host_group_cpu_thousandths(root.text) == INT64_MAX, "v2: nonsense is no limit");

    struct scratch_path container = scratch_path(&scratch, "container");
    prepare(container.text, "/proc/self/cgroup", "0::/../../elsewhere\n");
    prepare(container.text, "/sys/fs/cgroup/memory.max", "8192\n");
    tap_ok(host_group_memory_bytes(container.text) == 8192,
        "in a container whose path cannot be seen the mount's root counts");

    struct scratch_path hybrid = scratch_path(&scratch, "hybrid");
    prepare(hybrid.text, "/proc/self/cgroup", "4:memory:/m\n0::/u\n");
    prepare(hybrid.text, "/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "300\n");
    prepare(hybrid.text, "/sys/fs/cgroup/unified/u/cpu.max", "200000 100000\n");
    tap_ok(host_group_memory_bytes(hybrid.text) == 300 &&
               host_group_cpu_thousandths(hybrid.text) == 2000,
        "both hierarchies side by side");

    struct scratch_path broken = scratch_path(&scratch, "broken");
    tap_ok(host_group_memory_bytes(broken.text) == INT64_MAX, "no control groups, no limit");
    prepare(broken.text, "/proc/self/cgroup", "nonsense\n::\n7:memory\n:\n");
    tap_ok(host_group_memory_bytes(broken.text) == INT64_MAX, "broken lines, no limit");
}

static void test_read(void)
{
    struct scratch_path root = scratch_path(&scratch, "read");
    char path[5000];
    prepare(root.text, "/number", "42 apples");
    prepare(root.text, "/word", "apples");
    prepare(root.text, "/large", "99999999999999999999");
    tap_ok(host_read_int(root.text, "/number") == 42 && host_read_int(root.text, "/word") == -1 &&
               host_read_int(root.text, "/large") == -1 && host_read_int(root.text, "/none") == -1,
        "a number, or -1");
    memset(path, 'a', sizeof path - 1);
    path[0] = '/';
    path[sizeof path - 1] = 0;
    tap_ok(!host_read("", path) && !host_read(root.text, ""), "no such path, no text");
}

static void test_cpu_x86(void)
{
    struct scratch_path root = scratch_path(&scratch, "x86");
    static const char format[] = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654 \n"
                                 "flags\t\t: %s\n\nprocessor\t: 1\nmodel name\t: other\n";
    static const struct {
        const char *flags, *isa;
    } machines[] = {
        {"fpu sse2", "generic"},
        {"fpu sse2 fma", "scalar"},
        {"fpu sse2 avxfma fmax", "generic"},
        {"avx avx2 bmi1 bmi2 f16c fma abm movbe", "avx2"},
        {"avx avx2 bmi1 bmi2 f16c fma abm", "scalar"},
        {"movbe abm fma f16c bmi2 bmi1 avx2 avx avx512f avx512bw avx512cd avx512dq avx512vl",
            "avx512"},
        {"avx avx2 bmi1 bmi2 f16c fma abm movbe avx512f avx512bw avx512cd avx512dq", "avx2"},
        {"avx512f avx512bw avx512cd avx512dq avx512vl", "generic"},
    };
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        char text[1000];
        snprintf(text, sizeof text, format, machines[i].flags);
        prepare(root.text, "/proc/cpuinfo", text);
        const char *isa = host_isa(root.text);
        tap_ok(!strcmp(isa, machines[i].isa), "\"%s\" can run %s", machines[i].flags, isa);
    }
    char *model = host_cpu_model(root.text);
    tap_ok(model && !strcmp(model, "AMD EPYC 9654"), "the model is \"%s\"", model ? model : "");
    free(model);
}

static void test_cpu_arm(void)
{
    struct scratch_path root = scratch_path(&scratch, "arm");
    static const struct {
        const char *text, *model;
    } machines[] = {
        {"processor\t: 0\nBogoMIPS\t: 50\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n"
         "CPU architecture: 8\nCPU part\t: 0xd0c\n",
            "Neoverse-N1"},
        {"CPU implementer\t: 0x99\nCPU part\t: 0x123\n", "implementer 0x99 part 0x123"},
        {"CPU implementer\t: 0x99\n", "unknown"},
        {"", "unknown"},
    };
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        prepare(root.text, "/proc/cpuinfo", machines[i].text);
        char *model = host_cpu_model(root.text);
        tap_ok(
            model && !strcmp(model, machines[i].model), "the model is \"%s\"", model ? model : "");
        tap_ok(!strcmp(host_isa(root.text), "generic"), "and runs the generic kernels");
        free(model);
    }
}

static void test_caches(void)
{
    struct scratch_path root = scratch_path(&scratch, "caches");
    static const char folder[] = "/sys/devices/system/cpu/cpu0/cache/index";
    static const char *const contents[3][4] = {
        {"1\n", "Data\n", "48K\n", "0,64\n"},
        {"2\n", "Unified\n", "2M\n", "0-1,64-65\n"},
        {"3\n", "Unified\n", "1G\n", "\n"},
    };
    static const char *const names[] = {"level", "type", "size", "shared_cpu_list"};
    json_t *none = host_caches(root.text);
    tap_ok(json_is_array(none) && !json_array_size(none), "no files, no caches");
    json_decref(none);
    for (int index = 0; index < 3; index++)
        for (int file = 0; file < 4; file++) {
            char path[200];
            snprintf(path, sizeof path, "%s%d/%s", folder, index, names[file]);
            prepare(root.text, path, contents[index][file]);
        }
    json_t *caches = host_caches(root.text);
    char *text = json_dumps(caches, JSON_COMPACT);
    static const char want[] =
        "[{\"level\":1,\"type\":\"data\",\"size_bytes\":49152,\"shared_by\":2},"
        "{\"level\":2,\"type\":\"unified\",\"size_bytes\":2097152,\"shared_by\":4},"
        "{\"level\":3,\"type\":\"unified\",\"size_bytes\":1073741824}]";
    tap_ok(text && !strcmp(text, want), "%s", text);
    free(text);
    json_decref(caches);
}

static void test_variables(void)
{
    char *environment[] = {"FLATPEAK_ISA=avx2", "FLATPEAK_=x", "AWS_SECRET_ACCESS_KEY=hunter2",
        "OMP_NUM_THREADS=4", "OMP_NUM_THREADS_EXTRA=1", "OMP=2", "HOME=/root", "PATH=/bin",
        "MYFLATPEAK_X=1", "nonsense", "NCCL_ALGO=Ring=1", "FLATPEAK_NOTE=caf\xe9", NULL};
    json_t *variables = host_variables(environment);
    char *text = json_dumps(variables, JSON_COMPACT);
    tap_ok(
        text && !strcmp(text,
                    "{\"FLATPEAK_ISA\":\"avx2\",\"OMP_NUM_THREADS\":\"4\",\"NCCL_ALGO\":\"Ring=1\","
                    "\"FLATPEAK_NOTE\":\"caf?\"}"),
        "only the variables on the list: %s", text);
    free(text);
    json_decref(variables);
}

/* A shell must read the line back as the arguments. */
static void test_command(void)
{
    char *argv[] = {"build/bin/vocab", "--tokens=4K,8K", "", "two words", "it's", "$HOME `x` \"q\"",
        "back\\slash", "'", "a\tb", "*", NULL};
    int argc = 10;
    char *command = host_command(argc, argv);
    tap_ok(command && !strncmp(command, "build/bin/vocab --tokens=4K,8K '' 'two words' ", 46),
        "plain arguments stay plain: %s", command);
    char line[1000], got[1000] = "", want[1000] = "";
    snprintf(line, sizeof line, "printf '<%%s>' %s", command);
    for (int i = 0; i < argc; i++)
        snprintf(want + strlen(want), sizeof want - strlen(want), "<%s>", argv[i]);
    FILE *shell = popen(line, "r");
    if (shell) {
        got[fread(got, 1, sizeof got - 1, shell)] = 0;
        pclose(shell);
    }
    tap_ok(!strcmp(got, want), "a shell reads them back: %s", got);
    free(command);
    command = host_command(0, argv);
    tap_ok(command && !*command, "no arguments, an empty line");
    free(command);
}

static void test_cores(void)
{
    cpu_set_t all, one;
    int cores = host_cpus();
    tap_ok(host_allowed_cores(8, INT64_MAX) == 8 && host_allowed_cores(8, 3000) == 3 &&
               host_allowed_cores(8, 2999) == 2 && host_allowed_cores(2, 64000) == 2 &&
               host_allowed_cores(8, 1500) == 1 && host_allowed_cores(8, 500) == 1,
        "cores are the lesser of affinity and quota, rounded down, at least one");
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all)) {
        tap_skip("more cores than this test's set holds", "affinity");
        return;
    }
    tap_ok(cores >= 1 && cores <= CPU_COUNT(&all), "%d cores of %d", cores, CPU_COUNT(&all));
    int first = 0;
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_SET(first, &one);
    if (sched_setaffinity(0, sizeof one, &one)) {
        tap_skip("affinity cannot be set here", "affinity");
        return;
    }
    tap_ok(host_cpus() == 1, "bound to one core there is one");
    sched_setaffinity(0, sizeof all, &all);
    tap_ok(host_cpus() == cores, "and unbound as many as before");
}

static void test_memory(void)
{
    enum { BYTES = 96 << 20, SLACK = 16 << 20 };
    int64_t limit = host_memory_limit_bytes(), before = host_rss_peak_bytes();
    tap_ok(limit > before && before > 0, "limit %lld, peak %lld bytes", (long long)limit,
        (long long)before);
    /* Mapped, not allocated: a sanitizer's allocator would keep it. */
    char *block = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!tap_ok(block != MAP_FAILED, "memory for the test"))
        return;
    for (int i = 0; i < BYTES; i += 4096)
        block[i] = 1;
    int64_t touched = host_rss_peak_bytes();
    munmap(block, BYTES);
    int64_t after = host_rss_peak_bytes();
    tap_ok(touched >= before + BYTES - SLACK, "touched pages raise the peak by %lld",
        (long long)(touched - before));
    /* The kernel counts pages per core and sums them only roughly. */
    tap_ok(after >= touched - (1 << 20), "a peak stays when the pages go (%lld)",
        (long long)(after - touched));
    if (access("/proc/self/clear_refs", W_OK)) {
        tap_skip("no /proc/self/clear_refs here", "a reset lowers the peak");
        return;
    }
    host_rss_peak_reset();
    tap_ok(host_rss_peak_bytes() <= after - BYTES + SLACK, "a reset lowers the peak to %lld",
        (long long)host_rss_peak_bytes());
}

static bool is_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && *text;
}

static void test_environment(void)
{
    setenv("FLATPEAK_TEST", "yes", 1);
    setenv("SECRET_OF_TEST", "no", 1);
    json_t *env = host_environment("scalar");
    static const char *const texts[] = {
        "cpu", "isa_detected", "isa_used", "compiler", "flags", "libc", "kernel"};
    bool all = true;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        all &= is_text(env, texts[i]);
    const json_t *memory = json_object_get(env, "memory");
    tap_ok(all && json_array_size(json_object_get(env, "load")) == 3 &&
               json_is_array(json_object_get(env, "caches")) &&
               json_integer_value(json_object_get(env, "cores")) == host_cpus() &&
               json_integer_value(json_object_get(memory, "limit_bytes")) ==
                   host_memory_limit_bytes() &&
               json_integer_value(json_object_get(memory, "physical_bytes")) > 0,
        "the environment has every part");
    tap_ok(!strcmp(json_string_value(json_object_get(env, "isa_used")), "scalar"),
        "with the ISA that was used");
    char *text = json_dumps(env, JSON_COMPACT);
    tap_ok(text && strstr(text, "FLATPEAK_TEST") && !strstr(text, "SECRET_OF_TEST"),
        "and no variable that is not on the list");
    tap_note("%s", text);
    free(text);
    json_decref(env);
}

static void test_run(void)
{
    char *argv[] = {"vocab", "--ranks", "2"};
    json_t *a = host_run(3, argv), *b = host_run(3, argv);
    const char *time = json_string_value(json_object_get(a, "time"));
    int year, month, day, hour, minute, second, read = -1;
    tap_ok(time &&
               sscanf(time, "%4d-%2d-%2dT%2d:%2d:%2dZ%n", &year, &month, &day, &hour, &minute,
                   &second, &read) == 6 &&
               read == 20 && year >= 2024 && hour < 24,
        "the time is ISO 8601: %s", time);
    tap_ok(is_text(a, "id") && is_text(b, "id") &&
               strcmp(json_string_value(json_object_get(a, "id")),
                   json_string_value(json_object_get(b, "id"))),
        "two runs have two ids: %s", json_string_value(json_object_get(a, "id")));
    tap_ok(!strcmp(json_string_value(json_object_get(a, "command")), "vocab --ranks 2") &&
               !strcmp(json_string_value(json_object_get(a, "version")), host_version()),
        "the command and the version");
    const json_t *git = json_object_get(a, "git");
    struct host_build_facts build = host_build_facts();
    bool known = strcmp(build.commit, "unknown") != 0;
    tap_ok(!strcmp(json_string_value(json_object_get(git, "commit")), build.commit) &&
               known == (json_object_get(git, "dirty") != NULL),
        "the commit, and whether the tree was dirty where one is known");
    tap_ok(!known || strlen(build.commit) >= 40, "a commit is whole");
    json_decref(a);
    json_decref(b);
}

static void test_build(void)
{
    struct host_build_facts build = host_build_facts();
    tap_ok(!strcmp(host_version(), "0.1.0"), "version %s", host_version());
    tap_ok(strstr(host_build(), build.commit) && strstr(host_build(), build.compiler) &&
               strstr(host_build(), build.flags) && !strchr(host_build(), '\n') &&
               !strncmp(host_build(), host_version(), strlen(host_version())) &&
               !strstr(host_build(), "dirty") == (build.dirty != 1),
        "%s", host_build());
    tap_ok(strstr(build.flags, "-ffp-contract=off") != NULL, "the flags that make bits are there");
}

/* Memory that runs out after so many allocations of jansson. */
static int allocations_left;

static void *scarce(size_t bytes)
{
    return allocations_left-- > 0 ? malloc(bytes) : NULL;
}

static void test_short_memory(void)
{
    char *argv[] = {"vocab"};
    int failed = 0, made = 0;
    bool whole = true;
    size_t env_size = 0, run_size = 0;
    for (int limit = 400; limit >= 0; limit--) {
        json_set_alloc_funcs(scarce, free);
        allocations_left = limit;
        json_t *env = host_environment("generic");
        allocations_left = limit;
        json_t *run = host_run(1, argv);
        env_size = limit == 400 ? json_object_size(env) : env_size;
        run_size = limit == 400 ? json_object_size(run) : run_size;
        whole &= (!env || json_object_size(env) == env_size) &&
                 (!run || json_object_size(run) == run_size);
        failed += !env + !run;
        made += (env != NULL) + (run != NULL);
        json_decref(env);
        json_decref(run);
        json_set_alloc_funcs(malloc, free);
    }
    tap_ok(failed && made && whole && env_size == 13 && run_size == 5,
        "short memory: whole (%d times) or nothing (%d)", made, failed);
}

int main(void)
{
    if (tap_ok(scratch_create(&scratch), "a folder for the test")) {
        test_group_v1();
        test_group_v2();
        test_read();
        test_cpu_x86();
        test_cpu_arm();
        test_caches();
        test_variables();
        test_command();
        test_cores();
        test_memory();
        test_environment();
        test_run();
        test_build();
        test_short_memory();
        scratch_remove(&scratch);
    }
    return tap_done();
}
