/* Every implementation of every family on the cpu device and on the simulated one: the same bytes
 * to the byte, live set by live set, the same messages; and simulated times that obey the laws
 * which no model of the machine may break. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/sim_case.h"
#include "tests/tap.h"

#define WHY 512

static bool run(const struct sim_case *c, const struct dev_config *device, bool timed,
    struct case_result *result)
{
    char why[WHY] = "";
    bool good = sim_case_run(c, device, timed, result, why, sizeof why) == 0;
    if (!good)
        tap_note("%s %s, %s: %s", c->family, c->impl, c->what, why);
    return good;
}

/* ---- the same bytes -------------------------------------------------------------------------- */

static bool same_rank(const struct case_rank *cpu, const struct case_rank *sim)
{
    return cpu->resident_bytes == sim->resident_bytes &&
           !memcmp(
               cpu->resident_set_bytes, sim->resident_set_bytes, sizeof cpu->resident_set_bytes) &&
           cpu->host_pinned_peak_bytes == sim->host_pinned_peak_bytes &&
           !memcmp(&cpu->windows[WINDOW_PASS].peak, &sim->windows[WINDOW_PASS].peak,
               sizeof cpu->windows[WINDOW_PASS].peak);
}

/* The simulated node holds all ranks, as this machine does. */
static bool same_bytes(const struct sim_case *c, const struct profile *profile)
{
    struct case_result cpu, sim;
    struct profile one_node = *profile;
    one_node.ranks_per_node = c->ranks;
    struct dev_config on_cpu = {.kind = DEV_CPU, .check_order = true};
    struct dev_config on_sim = {.kind = DEV_SIM, .check_order = true, .profiles = &one_node};
    char fault[WHY] = "";
    bool good = run(c, &on_cpu, false, &cpu);
    good = run(c, &on_sim, false, &sim) && good;
    for (int r = 0; good && r < c->ranks; r++)
        if (!same_rank(&cpu.ranks[r], &sim.ranks[r])) {
            tap_note("%s %s, %s: rank %d's memory differs", c->family, c->impl, c->what, r);
            good = false;
        }
    if (good && (cpu.has_traffic != sim.has_traffic ||
                    memcmp(&cpu.traffic, &sim.traffic, sizeof sim.traffic))) {
        tap_note("%s %s, %s: the traffic differs", c->family, c->impl, c->what);
        good = false;
    }
    if (good && case_memory_fault(&sim, fault, sizeof fault)) {
        tap_note("%s %s, %s: %s", c->family, c->impl, c->what, fault);
        good = false;
    }
    case_result_free(&cpu);
    case_result_free(&sim);
    return good;
}

/* ---- laws of time ---------------------------------------------------------------------------- */

/* The machines of one run: the round one, each of its parts a fifth slower and faster, and each of
 * its parts alone, the others as good as free. */
enum { PLAIN, VARIED, ALONE = VARIED + 2 * PROFILE_PARTS, MACHINES = ALONE + PROFILE_PARTS };
_Static_assert(1 + 2 * PROFILE_PARTS <= DEV_MACHINES_MAX, "varied in one run");

static struct profile alone(const struct profile *profile, int part)
{
    struct profile others = *profile;
    for (int p = 0; p < PROFILE_PARTS; p++)
        if (p != part)
            others = profile_scaled(&others, (enum profile_part)p, 1e6);
    return others;
}

static double time_of(const struct sim_case *c, const struct profile *profiles, int machines,
    bool serial, double *time_s)
{
    struct case_result result;
    struct dev_config device = {
        .kind = DEV_SIM, .profiles = profiles, .machines = machines, .serial_streams = serial};
    bool good = run(c, &device, true, &result) && result.time.count == 1;
    for (int m = 0; m < machines; m++)
        time_s[m] = good && result.machines == machines ? result.machine_s[m] : NAN;
    double median_s = good ? result.time.samples_s[0] : NAN;
    case_result_free(&result);
    return median_s;
}

/* a <= b, but for what the difference of two clocks, as doubles, may be off. */
static bool at_most(double a, double b)
{
    return a <= b * (1 + 1e-9);
}

static bool law(bool holds, const struct sim_case *c, const char *name, double a, double b)
{
    if (!holds)
        tap_note("%s %s, %s: %s: %.9g s, %.9g s", c->family, c->impl, c->what, name, a, b);
    return holds;
}

static bool obeys(const struct sim_case *c, const struct profile *profile)
{
    struct profile varied[1 + 2 * PROFILE_PARTS], parts[PROFILE_PARTS];
    double time_s[1 + 2 * PROFILE_PARTS], alone_s[PROFILE_PARTS], serial_s[1];
    varied[0] = *profile;
    for (int p = 0; p < PROFILE_PARTS; p++) {
        varied[1 + 2 * p] = profile_scaled(profile, (enum profile_part)p, 0.8);
        varied[2 + 2 * p] = profile_scaled(profile, (enum profile_part)p, 1.2);
        parts[p] = alone(profile, p);
    }
    double shown_s = time_of(c, varied, 1 + 2 * PROFILE_PARTS, false, time_s);
    time_of(c, parts, PROFILE_PARTS, false, alone_s);
    time_of(c, profile, 1, true, serial_s);
    bool good = law(shown_s == time_s[0] && shown_s > 0, c, "the first machine's time is shown",
        shown_s, time_s[0]);
    good = law(at_most(time_s[0], serial_s[0]), c, "one stream is never faster", time_s[0],
               serial_s[0]) &&
           good;
    for (int p = 0; p < PROFILE_PARTS; p++) {
        const char *name = profile_part_name((enum profile_part)p);
        good = law(at_most(time_s[0], time_s[1 + 2 * p]), c, name, time_s[1 + 2 * p], time_s[0]) &&
               good;
        good = law(at_most(time_s[2 + 2 * p], time_s[0]), c, name, time_s[2 + 2 * p], time_s[0]) &&
               good;
        good =
            law(at_most(alone_s[p], time_s[0]), c, "a part alone", alone_s[p], time_s[0]) && good;
    }
    return good;
}

/* ---- the runs -------------------------------------------------------------------------------- */

/* Over the cases of one implementation. */
static void each_implementation(const struct sim_case *cases, int count,
    bool (*holds)(const struct sim_case *c, const struct profile *profile), const char *what)
{
    struct profile profile = sim_case_profile();
    for (int i = 0; i < count;) {
        int first = i;
        bool good = true;
        for (; i < count && cases[i].implementation == cases[first].implementation; i++)
            good = holds(&cases[i], &profile) && good;
        tap_ok(
            good, "%s %s, %d cases: %s", cases[first].family, cases[first].impl, i - first, what);
    }
}

int main(void)
{
    int count;
    struct sim_case *cases = sim_cases(&count);
    if (!cases) {
        printf("Bail out! no memory\n");
        return 1;
    }
    each_implementation(cases, count, same_bytes, "cpu and sim count the same");
    each_implementation(cases, count, obeys, "its time obeys the laws");
    free(cases);
    return tap_done();
}
