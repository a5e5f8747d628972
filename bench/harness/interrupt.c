/* A signal handler can reach nothing but a global: this flag is the one piece of global mutable
 * state of the harness, set by the handler, or where another process has seen a signal, and never
 * cleared. */
#include "bench/harness/interrupt.h"
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "device/launch.h"

static volatile sig_atomic_t seen;

static void on_interrupt(int number)
{
    static const char said[] =
        "interrupted: the running pass or step is finished first; again to stop at once\n";
    (void)number;
    seen = 1;
    if (launch_is_main() && write(STDERR_FILENO, said, sizeof said - 1) < 0)
        return; /* nobody to tell */
}

void interrupt_install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    /* The next one meets the default action again. System calls are restarted, so that no read or
     * write has to know about this. */
    action.sa_flags = (int)SA_RESETHAND | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL); /* from a launcher or a queue, before it kills */
    signal(SIGXFSZ, SIG_IGN);          /* a file that grows too large is an error of its write */
}

bool interrupt_seen(void)
{
    return seen != 0;
}

bool interrupt_agreed(void)
{
    if (!launch_all(!seen))
        seen = 1;
    return seen != 0;
}
