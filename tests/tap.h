/* TAP for C tests: tap_ok(condition, "what should hold"); return tap_done(). */
#pragma once
#include <stdbool.h>

/* Prints "ok N - name" or "not ok N - name"; returns the condition. */
bool tap_ok(bool condition, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tap_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void tap_skip(const char *reason, const char *format, ...) __attribute__((format(printf, 2, 3)));
int tap_done(void); /* prints the plan; 0 when all held, else 1 */
