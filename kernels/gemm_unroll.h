/* Loops that must be unrolled whole: a variable index into an array of vectors would put the array
 * in memory. Each compiler has its own word for it. */
#pragma once

#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 64")
#endif
