/* Ctrl-C: the case that is running is finished with what it has, its line is kept, nothing more is
 * started. A second Ctrl-C ends the program at once. */
#pragma once
#include <stdbool.h>

void interrupt_install(void);
bool interrupt_seen(void);
