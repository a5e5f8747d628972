/* A simulated case runs on several machines at once: a schedule does not look at the clock, so one
 * pass over it gives its time on all of them. Machine 1 has every rate of the profile a fifth
 * lower, machine 2 a fifth higher; two more for each part of the machine alone, since a relation
 * between two implementations is decided by what balances what. */
#include "bench/harness/simulate.h"
#include <stdio.h>
#include <string.h>
#include "device/profile.h"

_Static_assert(1 + 2 * (PROFILE_PARTS + 1) <= DEV_MACHINES_MAX, "a machine for each variation");

int simulate_machines(struct profile machines[DEV_MACHINES_MAX])
{
    int count = 1;
    for (int i = 0; i <= PROFILE_PARTS; i++) {
        enum profile_part part = i ? (enum profile_part)(i - 1) : PROFILE_PARTS;
        for (int up = 0; up < 2; up++)
            machines[count++] =
                profile_scaled(&machines[0], part, up ? 1 + SIMULATE_SHARE : 1 - SIMULATE_SHARE);
    }
    return count;
}

const char *simulate_machine_name(int machine, char *text, int size)
{
    if (machine == 0)
        return "profile";
    int i = (machine - 1) / 2;
    enum profile_part part = i ? (enum profile_part)(i - 1) : PROFILE_PARTS;
    snprintf(
        text, (size_t)size, "%s %s", profile_part_name(part), machine % 2 ? "slower" : "faster");
    return text;
}

void simulate_range(const double *time_s, int machines, double *low_s, double *high_s)
{
    *low_s = *high_s = time_s[0];
    for (int m = 1; m < machines; m++) {
        *low_s = time_s[m] < *low_s ? time_s[m] : *low_s;
        *high_s = time_s[m] > *high_s ? time_s[m] : *high_s;
    }
}

/* Options that time, check, pace or fill what a simulation does not have. */
static int refuse_meaningless(const struct options *parsed)
{
    static const struct {
        const char *name, *why;
    } refused[] = {
        {"link-gbps", "has no effect on sim, which takes its rates from the profile"},
        {"message-gbps", "has no effect on sim, which takes its rates from the profile"},
        {"iters", "has no effect on sim: every repetition takes the same time"},
        {"warmup", "has no effect on sim: every repetition takes the same time"},
        {"min-time", "has no effect on sim: every repetition takes the same time"},
        {"threads", "has no effect on sim, which runs no kernels"},
        {"load", "has no effect on sim, which stores no values"},
        {"dump", "has no effect on sim, which stores no values"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (options_given(parsed, refused[i].name))
            return options_refuse(parsed, refused[i].name, "%s", refused[i].why);
    return -1;
}

int simulate_setup(struct case_options *options, struct options *parsed, const char *profile)
{
    static const char *const meaningless[] = {"threads", "warmup"};
    char error[1024];
    if (profile_read(profile, &options->machines[0], error, sizeof error))
        return options_refuse(parsed, "device", "%s", error);
    int status = refuse_meaningless(parsed);
    if (status >= 0)
        return status;
    if (options->check_text && strcmp(options->check_text, "off"))
        return options_refuse(parsed, "check",
            "got '%.80s', allowed off: sim computes no values that could be checked",
            options->check_text);
    options->machine_count = simulate_machines(options->machines);
    options_default_count(parsed, "ranks", options->machines[0].ranks);
    for (int i = 0; i < 2; i++)
        options_hide(parsed, meaningless[i]);
    return -1;
}
