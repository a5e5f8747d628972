/* The parts of host_build(). Private to probe/host*.c and its test. */
#pragma once

struct host_build_facts {
    const char *commit; /* "unknown" outside a git checkout */
    int dirty;          /* 1: files differ from the commit; 0: none does; -1: unknown */
    const char *compiler, *flags;
};

struct host_build_facts host_build_facts(void);
