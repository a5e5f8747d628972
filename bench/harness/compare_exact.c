/* What differs between two records of one case, time apart. Tracked bytes, counts, traffic and
 * digests are the same on every machine and in every run, so they are compared exactly and any
 * difference is named; figures of the driver and the kernel are compared within a tolerance. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/harness/compare.h"
#include "probe/record.h"

#define PATH_MAX_LENGTH 160

void findings_add(struct findings *findings, enum finding_level level, const char *format, ...)
{
    va_list args;
    if (findings->count == findings->capacity) {
        int capacity = findings->capacity ? 2 * findings->capacity : 8;
        struct finding *grown = realloc(findings->list, (size_t)capacity * sizeof *findings->list);
        if (!grown) {
            findings->short_of_memory = true;
            return;
        }
        findings->list = grown;
        findings->capacity = capacity;
    }
    struct finding *finding = &findings->list[findings->count++];
    finding->level = level;
    va_start(args, format);
    vsnprintf(finding->text, sizeof finding->text, format, args);
    va_end(args);
}

void findings_free(struct findings *findings)
{
    free(findings->list);
    memset(findings, 0, sizeof *findings);
}

static const char *text_at(const json_t *record, const char *path)
{
    const char *text = json_string_value(rec_get(record, path));
    return text ? text : "";
}

/* ---- status and check ----------------------------------------------------------------------- */

/* From the best; a name that is not listed is the worst. */
static int rank_of(const char *const *names, const char *name)
{
    int rank = 0;
    while (names[rank] && strcmp(names[rank], name))
        rank++;
    return rank;
}

static void compare_ranked(struct findings *findings, const char *what, const char *const *names,
    const char *old, const char *new)
{
    int old_rank = rank_of(names, old), new_rank = rank_of(names, new);
    if (!strcmp(old, new))
        return;
    findings_add(findings, new_rank >= old_rank ? FINDING_REGRESSION : FINDING_DIFFERENCE,
        "%s: %.60s, was %.60s", what, *new ? new : "absent", *old ? old : "absent");
}

/* How much a check covers: everything, then more or fewer samples, then the baseline, then nothing.
 */
static long long coverage(const char *against)
{
    if (!strcmp(against, "reference"))
        return INT64_MAX;
    if (!strncmp(against, "sample:", 7))
        return 1 + strtoll(against + 7, NULL, 10);
    return !strcmp(against, "baseline") ? 1 : 0;
}

static void compare_check(const json_t *old, const json_t *new, struct findings *findings)
{
    static const char *const verdicts[] = {
        "bitwise", "exact-input", "bounded", "off", "mismatch", NULL};
    const char *old_against = text_at(old, "check.against");
    const char *new_against = text_at(new, "check.against");
    compare_ranked(findings, "check verdict", verdicts, text_at(old, "check.verdict"),
        text_at(new, "check.verdict"));
    if (coverage(new_against) < coverage(old_against))
        findings_add(findings, FINDING_REGRESSION,
            "checked more weakly: against %.60s, was against %.60s",
            *new_against ? new_against : "nothing", old_against);
    else if (coverage(new_against) > coverage(old_against))
        findings_add(findings, FINDING_DIFFERENCE,
            "checked more strongly: against %.60s, was against %.60s", new_against,
            *old_against ? old_against : "nothing");
}

static void compare_tensor(
    const char *name, const json_t *old, const json_t *new, struct findings *findings)
{
    static const char *const orders[] = {"default", "declared", NULL};
    char what[PATH_MAX_LENGTH];
    const char *old_digest = text_at(old, "digest"), *new_digest = text_at(new, "digest");
    if (*old_digest && !*new_digest)
        findings_add(findings, FINDING_REGRESSION, "tensor %.60s: has no digest any more", name);
    else if (*old_digest && strcmp(old_digest, new_digest))
        findings_add(findings, FINDING_REGRESSION, "tensor %.60s: digest %.40s, was %.40s", name,
            new_digest, old_digest);
    snprintf(what, sizeof what, "tensor %.60s: order", name);
    compare_ranked(findings, what, orders, text_at(old, "order"), text_at(new, "order"));
    const json_t *old_ulp = json_object_get(old, "ulp_from_default");
    const json_t *new_ulp = json_object_get(new, "ulp_from_default");
    if (old_ulp && !json_equal(old_ulp, new_ulp))
        findings_add(findings, FINDING_DIFFERENCE,
            "tensor %.60s: another distance in ulp from the default order", name);
}

static void compare_outputs(const json_t *old, const json_t *new, struct findings *findings)
{
    const char *name;
    json_t *old_tensor, *new_tensor;
    json_t *old_outputs = (json_t *)rec_get(old, "check.outputs");
    json_t *new_outputs = (json_t *)rec_get(new, "check.outputs");
    json_object_foreach(old_outputs, name, old_tensor)
    {
        new_tensor = json_object_get(new_outputs, name);
        if (new_tensor)
            compare_tensor(name, old_tensor, new_tensor, findings);
        else
            findings_add(
                findings, FINDING_REGRESSION, "tensor %.60s: is not checked any more", name);
    }
    json_object_foreach(new_outputs, name, new_tensor)
    {
        if (!json_object_get(old_outputs, name))
            findings_add(
                findings, FINDING_DIFFERENCE, "tensor %.60s: was not checked before", name);
    }
}

/* ---- numbers -------------------------------------------------------------------------------- */

/* How the numbers below one member of the record are judged. */
struct number_rule {
    const char *member;
    bool more_is_worse;
    double tolerance;
};

/* Figures that say something about the machine or about another case, not about this one. */
static bool is_approximate(const char *name)
{
    return !strcmp(name, "driver_bytes") || !strcmp(name, "rss_peak_bytes");
}

static bool is_derived(const char *name)
{
    return !strcmp(name, "saved_against_baseline") || !strcmp(name, "fault") ||
           !strcmp(name, "time_s");
}

/* "memory.by_live_set.logits.peak_bytes" is "live set logits: peak_bytes" to a reader. */
static void readable_path(const char *path, char *text, int size)
{
    const char *set = strstr(path, "by_live_set.");
    const char *member = set ? strchr(set + 12, '.') : NULL;
    if (!member) {
        snprintf(text, (size_t)size, "%s", path);
        return;
    }
    snprintf(text, (size_t)size, "%.*slive set %.*s: %s", (int)(set - path), path,
        (int)(member - set - 12), set + 12, member + 1);
}

static void compare_integers(const char *path, const char *name, long long old, long long new,
    const struct number_rule *rule, struct findings *findings)
{
    char text[PATH_MAX_LENGTH];
    if (old == new)
        return;
    readable_path(path, text, sizeof text);
    if (is_approximate(name)) {
        double growth = old > 0 ? (double)(new - old) / (double)old : 1;
        if (growth > rule->tolerance)
            findings_add(findings, FINDING_REGRESSION,
                "%s: %lld, was %lld (%+.1f %%, tolerated %.0f %%)", text, new, old, 100 * growth,
                100 * rule->tolerance);
        return;
    }
    findings_add(findings,
        rule->more_is_worse && new > old ? FINDING_REGRESSION : FINDING_DIFFERENCE,
        "%s: %lld, was %lld (%+lld)", text, new, old, new - old);
}

static void compare_value(const char *path, const char *name, const json_t *old, const json_t *new,
    const struct number_rule *rule, struct findings *findings);

static void compare_members(const char *path, const json_t *old, const json_t *new,
    const struct number_rule *rule, struct findings *findings)
{
    const char *name;
    json_t *value;
    char below[PATH_MAX_LENGTH];
    json_object_foreach((json_t *)old, name, value)
    {
        snprintf(below, sizeof below, "%.100s.%.50s", path, name);
        if (!is_derived(name))
            compare_value(below, name, value, json_object_get(new, name), rule, findings);
    }
    json_object_foreach((json_t *)new, name, value)
    {
        if (!json_object_get(old, name) && !is_derived(name))
            findings_add(findings, FINDING_DIFFERENCE, "%.100s.%.50s: is new", path, name);
    }
}

static void compare_value(const char *path, const char *name, const json_t *old, const json_t *new,
    const struct number_rule *rule, struct findings *findings)
{
    char below[PATH_MAX_LENGTH], text[PATH_MAX_LENGTH];
    if (!new) {
        readable_path(path, text, sizeof text);
        findings_add(findings, FINDING_REGRESSION, "%s: is not recorded any more", text);
    } else if (json_is_object(old) && json_is_object(new)) {
        compare_members(path, old, new, rule, findings);
    } else if (json_is_array(old) && json_is_array(new) &&
               json_array_size(old) == json_array_size(new)) {
        for (size_t i = 0; i < json_array_size(old); i++) {
            snprintf(below, sizeof below, "%.100s[%zu]", path, i);
            compare_value(
                below, name, json_array_get(old, i), json_array_get(new, i), rule, findings);
        }
    } else if (json_is_integer(old) && json_is_integer(new)) {
        compare_integers(
            path, name, json_integer_value(old), json_integer_value(new), rule, findings);
    } else if (!json_equal(old, new)) {
        findings_add(findings, FINDING_DIFFERENCE, "%.100s: differs", path);
    }
}

static void compare_numbers(
    const json_t *old, const json_t *new, double tolerance, struct findings *findings)
{
    const struct number_rule rules[] = {
        {"memory", true, tolerance},
        {"ranks", true, tolerance},
        {"traffic", true, tolerance},
        {"counts", false, tolerance},
        {"plan", false, tolerance},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const json_t *old_value = json_object_get(old, rules[i].member);
        const json_t *new_value = json_object_get(new, rules[i].member);
        if (old_value)
            compare_value(
                rules[i].member, rules[i].member, old_value, new_value, &rules[i], findings);
        else if (new_value)
            findings_add(findings, FINDING_DIFFERENCE, "%s: is new", rules[i].member);
    }
}

void compare_exact(
    const json_t *old, const json_t *new, double tolerance, struct findings *findings)
{
    static const char *const statuses[] = {"ok", "skipped", "oom", "error", NULL};
    const char *old_status = text_at(old, "status"), *new_status = text_at(new, "status");
    compare_ranked(findings, "status", statuses, old_status, new_status);
    if (strcmp(old_status, new_status))
        return;
    if (!strcmp(new_status, "ok")) {
        compare_check(old, new, findings);
        compare_outputs(old, new, findings);
    }
    compare_numbers(old, new, tolerance, findings);
}
