/* A machine's profile: the shipped ones are read whole, and a wrong line is named by file and line.
 * Each fault is planted in a copy of a shipped file, in one line. */
#include "device/profile.h"
#include "tests/scratch.h"
#include "tests/tap.h"

#define SHIPPED "profiles/h200-8.conf"

static struct scratch scratch;
static char message[2048];

static void test_shipped(void)
{
    static const struct {
        const char *name;
        int64_t ranks, per_node;
    } shipped[] = {{"h200-8", 8, 8}, {"h200-16", 16, 8}, {"h200-32", 32, 8}, {"h200-64", 64, 8},
        {"h100-64gb-4", 8, 4}};
    for (size_t i = 0; i < sizeof shipped / sizeof shipped[0]; i++) {
        struct profile p;
        tap_ok(profile_read(shipped[i].name, &p, message, sizeof message) == 0 &&
                   !strcmp(p.name, shipped[i].name) && p.ranks == shipped[i].ranks &&
                   p.ranks_per_node == shipped[i].per_node,
            "%s is read: its ranks and its nodes", shipped[i].name);
    }
}

static void test_values(void)
{
    struct profile p;
    tap_ok(profile_read(SHIPPED, &p, message, sizeof message) == 0 && !strcmp(p.name, "h200-8") &&
               p.memory_bytes == 141000000000 && p.f32.peak_flops_per_s == 67e12 &&
               p.bf16.peak_flops_per_s == 989.5e12 && p.link_duplex && p.ranks == 8,
        "a file is read by its path; comments and exponents are understood");
}

static void test_scaled(void)
{
    struct profile p, s;
    int status = profile_read(SHIPPED, &p, message, sizeof message);
    s = profile_scaled(&p, PROFILE_PARTS, 2);
    tap_ok(status == 0 && s.link_bytes_per_s == 2 * p.link_bytes_per_s &&
               s.f32.peak_flops_per_s == 2 * p.f32.peak_flops_per_s &&
               s.host_adamw_params_per_s == 2 * p.host_adamw_params_per_s &&
               s.launch_s == p.launch_s / 2 && s.host_link_latency_s == p.host_link_latency_s / 2,
        "twice the machine has twice the rates and half the latencies");
    tap_ok(s.memory_bytes == p.memory_bytes && s.host_memory_bytes == p.host_memory_bytes &&
               s.bf16.efficiency == p.bf16.efficiency && s.bf16.half_k == p.bf16.half_k &&
               s.ranks == p.ranks,
        "and the same memory, efficiency and ranks");
    for (int part = 0; part < PROFILE_PARTS; part++)
        p = profile_scaled(&p, part, 2);
    tap_ok(memcmp(&s, &p, sizeof s) == 0, "all parts one after the other are all of it");
    s = profile_scaled(&p, PROFILE_LINKS, 0.5);
    tap_ok(s.link_bytes_per_s == p.link_bytes_per_s / 2 &&
               s.network_latency_s == 2 * p.network_latency_s &&
               s.memory_bytes_per_s == p.memory_bytes_per_s && s.launch_s == p.launch_s &&
               s.h2d_bytes_per_s == p.h2d_bytes_per_s,
        "the %s alone leave the rest as it is", profile_part_name(PROFILE_LINKS));
    s = profile_scaled(&p, PROFILE_PARTS, 1);
    tap_ok(memcmp(&s, &p, sizeof s) == 0, "scaled by 1 it is the same");
}

/* The shipped file with the line of `key` replaced (NULL: left out) in `path`; the number of that
 * line, or of the one behind the last. */
static int plant(const char *path, const char *key, const char *replacement)
{
    FILE *in = fopen(SHIPPED, "r"), *out = fopen(path, "w");
    char line[512];
    int at = 0, found = 0;
    while (in && out && fgets(line, sizeof line, in)) {
        bool is_key = !strncmp(line, key, strlen(key)) && line[strlen(key)] == ' ';
        at += !is_key || replacement;
        if (!is_key)
            fputs(line, out);
        else if (replacement)
            fprintf(out, "%s\n", replacement);
        if (is_key)
            found = at;
    }
    if (in)
        fclose(in);
    if (out)
        fclose(out);
    return replacement ? found : at + 1;
}

static bool refused(const char *path, int line, const char *says)
{
    struct profile p;
    char where[500];
    snprintf(where, sizeof where, "%s:%d: ", path, line);
    int status = profile_read(path, &p, message, sizeof message);
    bool named = !strncmp(message, where, strlen(where)) && strstr(message, says);
    if (status == 0 || !named)
        tap_note("%s", message);
    return status == -1 && named && p.memory_bytes == 0 && p.name[0] == 0;
}

static void test_faults(void)
{
    static const struct {
        const char *what, *key, *line, *says;
    } fault[] = {
        {"a missing key", "link_bytes_per_s", NULL, "link_bytes_per_s: got 'end of file'"},
        {"a negative bandwidth", "link_bytes_per_s", "link_bytes_per_s = -450e9",
            "link_bytes_per_s: got '-450e9', allowed a number above 0"},
        {"a bandwidth of nothing", "h2d_bytes_per_s", "h2d_bytes_per_s = 0", "got '0'"},
        {"an infinite rate", "f32_flops_per_s", "f32_flops_per_s = inf", "got 'inf'"},
        {"a rate beyond any double", "f32_flops_per_s", "f32_flops_per_s = 1e999", "got '1e999'"},
        {"a hexadecimal rate", "f32_flops_per_s", "f32_flops_per_s = 0x10", "got '0x10'"},
        {"text behind a number", "launch_s", "launch_s = 4us", "got '4us'"},
        {"a negative time", "launch_s", "launch_s = -1e-6", "at least 0"},
        {"an efficiency above 1", "bf16_efficiency", "bf16_efficiency = 1.5", "at most 1"},
        {"a share of a rank", "ranks_per_node", "ranks_per_node = 7.5", "a whole number"},
        {"no ranks", "ranks", "ranks = 0", "at least 1"},
        {"a flag that is neither", "link_duplex", "link_duplex = maybe", "yes or no"},
        {"an unknown key", "link_duplex", "link_duplexity = yes", "got 'link_duplexity'"},
        {"a line without =", "launch_s", "launch_s 4e-6", "key = value"},
        {"an empty value", "launch_s", "launch_s = # 4e-6", "got ''"},
        {"a key given twice", "launch_s", "memory_bytes = 141e9", "each key once"},
        {"more reserved than there is", "reserved_memory_bytes", "reserved_memory_bytes = 141e9",
            "got '141000000000', allowed less than memory_bytes"},
    };
    struct scratch_path path = scratch_path(&scratch, "planted.conf");
    for (size_t i = 0; i < sizeof fault / sizeof fault[0]; i++) {
        int line = plant(path.text, fault[i].key, fault[i].line);
        tap_ok(refused(path.text, line, fault[i].says), "%s is refused, by file and line",
            fault[i].what);
    }
    scratch_text(path.text, "");
    tap_ok(refused(path.text, 1, "description: got 'end of file'"), "so is an empty file");
}

static void test_names(void)
{
    struct profile p;
    tap_ok(profile_read("h300-8", &p, message, sizeof message) == -1 &&
               strstr(message, "profiles/h300-8.conf") &&
               strstr(message, "h100-64gb-4, h200-16, h200-32, h200-64, h200-8"),
        "an unknown name is refused; those that there are are listed");
    tap_ok(profile_read("no/such.conf", &p, message, sizeof message) == -1 &&
               strstr(message, "no/such.conf"),
        "so is a file that is not there");
    plant(scratch_path(&scratch, "mine.conf").text, "ranks", "ranks = 4");
    setenv("FLATPEAK_PROFILES", scratch.folder, 1);
    tap_ok(profile_read("mine", &p, message, sizeof message) == 0 && p.ranks == 4 &&
               !strcmp(p.name, "mine"),
        "FLATPEAK_PROFILES names one's own folder");
    unsetenv("FLATPEAK_PROFILES");
    tap_ok(chdir("/") == 0 && profile_read("h200-8", &p, message, sizeof message) == 0,
        "a program finds the shipped ones from any folder");
}

int main(void)
{
    if (!scratch_create(&scratch)) {
        tap_ok(false, "a scratch folder is made");
        return tap_done();
    }
    test_shipped();
    test_values();
    test_scaled();
    test_faults();
    test_names();
    scratch_remove(&scratch);
    return tap_done();
}
