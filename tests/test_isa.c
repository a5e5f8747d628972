/* The choice of CPU variant: names, FLATPEAK_ISA, and the message when it cannot be met. */
#include "kernels/isa.h"
#include "tests/tap.h"
#include <stdlib.h>
#include <string.h>

static void test_every_available_name(void)
{
    char error[256];
    for (int i = 0; i < ISA_COUNT; i++) {
        enum isa isa = (enum isa)i;
        if (!isa_available(isa)) {
            setenv("FLATPEAK_ISA", isa_name(isa), 1);
            tap_ok(isa_force(isa) && isa_from_environment(error, sizeof error) &&
                       strstr(error, isa_name(isa)) && strstr(error, "cannot run"),
                "%s is not available here and is refused by name", isa_name(isa));
            continue;
        }
        setenv("FLATPEAK_ISA", isa_name(isa), 1);
        tap_ok(!isa_from_environment(error, sizeof error) && isa_selected() == isa,
            "FLATPEAK_ISA=%s selects it", isa_name(isa));
    }
}

static void test_refusals(void)
{
    char error[256] = "";
    tap_ok(!isa_force(ISA_GENERIC), "generic can be forced on any CPU");
    setenv("FLATPEAK_ISA", "avx1024", 1);
    tap_ok(isa_from_environment(error, sizeof error) == -1, "an unknown name is refused");
    tap_ok(strstr(error, "'avx1024'") && strstr(error, "generic"),
        "the message names what was given and what is allowed: %s", error);
    tap_ok(isa_selected() == ISA_GENERIC, "a refused name changes nothing");
}

static void test_widest(void)
{
    char error[256];
    setenv("FLATPEAK_ISA", "", 1);
    int status = isa_from_environment(error, sizeof error);
    int wider = 0;
    for (int i = isa_selected() + 1; i < ISA_COUNT; i++)
        wider += isa_available((enum isa)i);
    tap_ok(!status && isa_available(isa_selected()) && !wider,
        "an empty FLATPEAK_ISA selects the widest available: %s", isa_name(isa_selected()));
}

int main(void)
{
    /* Before any call has decided: the environment alone does. */
    setenv("FLATPEAK_ISA", "generic", 1);
    tap_ok(isa_selected() == ISA_GENERIC, "the first isa_selected() reads FLATPEAK_ISA");
    test_every_available_name();
    test_refusals();
    test_widest();
    return tap_done();
}
