/* The parent of a rank's process, which outlives it to say what became of it.
 *
 * Launchers end a job within milliseconds of the death of one of its processes, and some without a
 * word about which. So what a launcher has started becomes the guard, and the program goes on as
 * its child: the guard waits, passes on signals, and when the child ends before its time says its
 * rank, host and phase. When the guard is killed, so is the child; when the launcher is, both end.
 */
#pragma once

/* In the child it returns; in the guard it never does. Without a second process (no memory, no
 * numbers left) the program goes on unguarded. Before any thread is started. */
void guard_start(const char *program);

/* What the guard says of this process. */
void guard_set_rank(int rank, const char *host);
void guard_set_phase(const char *phase);

/* The end of this process needs no word from here on: it ends in order, or has said why not. */
void guard_dismiss(void);
