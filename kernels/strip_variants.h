/* The functions of strip_isa.c, one table per instruction set. Each does the rows [begin, end) of
 * its kernel on the calling thread; args is the kernel's argument struct. */
#pragma once
#include <stdint.h>

typedef void strip_rows(const void *args, int64_t begin, int64_t end);

struct strip_functions {
    strip_rows *fold, *finish, *log_softmax, *residual;
};
