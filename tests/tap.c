#include "tests/tap.h"
#include <stdarg.h>
#include <stdio.h>

static int count, failed;

static void print_name(const char *format, va_list args)
{
    vprintf(format, args);
    putchar('\n');
    fflush(stdout);
}

bool tap_ok(bool condition, const char *format, ...)
{
    va_list args;
    count++;
    if (!condition)
        failed++;
    printf("%sok %d - ", condition ? "" : "not ", count);
    va_start(args, format);
    print_name(format, args);
    va_end(args);
    return condition;
}

void tap_note(const char *format, ...)
{
    va_list args;
    printf("# ");
    va_start(args, format);
    print_name(format, args);
    va_end(args);
}

void tap_skip(const char *reason, const char *format, ...)
{
    va_list args;
    count++;
    printf("ok %d - ", count);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf(" # SKIP %s\n", reason);
}

int tap_done(void)
{
    printf("1..%d\n", count);
    fflush(stdout);
    return failed || !count;
}
