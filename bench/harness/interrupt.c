/* A signal handler can reach nothing but a global: this flag is the one piece of global mutable
 * state of the harness, set by the handler and never cleared. */
#include "bench/harness/interrupt.h"
#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t seen;

static void on_interrupt(int number)
{
    static const char said[] = "interrupted: this case is finished first; again to stop at once\n";
    (void)number;
    seen = 1;
    if (write(STDERR_FILENO, said, sizeof said - 1) < 0)
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
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error of its write */
}

bool interrupt_seen(void)
{
    return seen != 0;
}
