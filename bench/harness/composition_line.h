/* The options of a composed step that bin/plan and bin/train both have: how ranks share the work,
 * and its budgets. One table says what each holds, allows and means, so that what is planned is
 * what can be trained. */
#pragma once
#include <stddef.h>
#include "bench/harness/options.h"

/* A group of a program's options, which write into *fields. A row whose name is in the shared table
 * says where its value goes, its default and whether it is an axis; the rest is filled in here. */
struct option_group composition_group(
    const char *title, struct option *options, size_t count, void *fields);
