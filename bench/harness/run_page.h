/* The page of a run: one HTML file with the verdicts, the measured cases, plots, tables and the
 * environment of a folder that run_all.sh wrote. It names no address but of what it holds itself.
 */
#pragma once

/* Writes `out` from the folder. What the folder lacks is left out and said on the page. 0, or -1
 * with `error` filled: a file that cannot be read or is not what it should be (*bad_input set), or
 * a page that cannot be written. */
int run_page_write(const char *folder, const char *out, int *bad_input, char *error, int size);
