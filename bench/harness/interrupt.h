/* Ctrl-C (SIGINT) and SIGTERM: the case that is running ends after the pass or step that is under
 * way, its line and its record are kept, nothing more is started. The second of a kind ends the
 * program at once. */
#pragma once
#include <stdbool.h>

void interrupt_install(void);

/* Whether this process has seen one. Ranks that are to leave together tell each other. */
bool interrupt_seen(void);

/* Whether any process has (device/launch.h); collective over them. All have, from then on. */
bool interrupt_agreed(void);
