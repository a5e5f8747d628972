/* The MoP layout: conditions and their messages, blocks and replicas as sets for every W up to 24
 * and every divisor, and the communicators: who is in them, in what order, on every rank. */
#include "ops/layout.h"
#include <stdio.h>
#include <string.h>
#include "tests/tap.h"

static struct layout_shape shape_of(int ranks, int sequence, int experts, int vocab)
{
    return (struct layout_shape){.ranks = ranks,
        .degree = {sequence, experts, vocab},
        .heads = INT64_C(2) * 3 * 5 * 7 * 8 * 11 * 13 * 17 * 19 * 23 * 6,
        .experts = INT64_C(2) * 3 * 5 * 7 * 8 * 11 * 13 * 17 * 19 * 23 * 6};
}

static void expect_refused(struct layout_shape shape, const char *message)
{
    char error[128] = "";
    int status = layout_check(&shape, error, sizeof error);
    tap_ok(status == -1 && !strcmp(error, message), "refused: %s", message);
    if (strcmp(error, message))
        tap_note("status %d, '%s'", status, error);
}

static void test_conditions(void)
{
    struct layout_shape shape = shape_of(8, 3, 8, 4);
    expect_refused(shape, "the sequence degree 3 does not divide the 8 ranks");
    expect_refused(shape_of(8, 2, 6, 4), "the experts degree 6 does not divide the 8 ranks");
    expect_refused(shape_of(8, 2, 8, 5), "the vocabulary degree 5 does not divide the 8 ranks");
    expect_refused(shape_of(8, 0, 8, 4), "the sequence degree is 0; allowed: 1 to the 8 ranks");
    expect_refused(shape_of(8, 2, 8, 16), "the vocabulary degree is 16; allowed: 1 to the 8 ranks");
    expect_refused(shape_of(0, 1, 1, 1), "0 ranks; allowed: 1 to 1024");
    expect_refused(shape_of(2000, 1, 1, 1), "2000 ranks; allowed: 1 to 1024");
    shape = shape_of(8, 4, 8, 4);
    shape.heads = 6;
    expect_refused(shape, "the sequence degree 4 does not divide the 6 attention heads");
    shape.heads = 8;
    shape.experts = 12;
    expect_refused(shape, "the experts degree 8 does not divide the 12 experts");
    shape.experts = 16;
    char error[128];
    tap_ok(layout_check(&shape, error, sizeof error) == 0, "a layout whose conditions hold");
}

static bool has(struct layout_group group, int rank)
{
    for (int i = 0; i < group.size; i++) {
        if (group.first + i * group.stride == rank)
            return true;
    }
    return false;
}

/* A rank is at its place in both groups, the two meet in it alone, and both are the same seen from
 * any member: they cut the ranks into disjoint sets. */
static int faults_of(const struct layout_shape *shape, enum layout_degree degree)
{
    int faults = 0;
    for (int rank = 0; rank < shape->ranks; rank++) {
        struct layout_group block = layout_block(shape, degree, rank);
        struct layout_group replicas = layout_replicas(shape, degree, rank);
        faults += block.size != shape->degree[degree];
        faults += block.size * replicas.size != shape->ranks;
        faults += block.first + block.place * block.stride != rank;
        faults += replicas.first + replicas.place * replicas.stride != rank;
        for (int other = 0; other < shape->ranks; other++) {
            bool in_block = has(block, other), in_replicas = has(replicas, other);
            faults += in_block && in_replicas && other != rank;
            faults += in_block && layout_block(shape, degree, other).first != block.first;
            faults += in_replicas && layout_replicas(shape, degree, other).first != replicas.first;
            faults += in_replicas && layout_block(shape, degree, other).place != block.place;
        }
    }
    return faults;
}

static void test_groups(void)
{
    int faults = 0, layouts = 0;
    for (int ranks = 1; ranks <= 24; ranks++) {
        for (int degree = 1; degree <= ranks; degree++) {
            if (ranks % degree)
                continue;
            struct layout_shape shape = shape_of(ranks, degree, degree, degree);
            layouts++;
            for (int i = 0; i < LAYOUT_DEGREES; i++)
                faults += faults_of(&shape, i);
        }
    }
    tap_ok(layouts > 80 && faults == 0, "blocks and replicas of %d layouts cut the ranks", layouts);
}

struct seen {
    struct layout_shape shape;
    int faults[16];
};

/* The world ranks that a communicator gathers are its group's, in order. */
static int comm_faults(struct comm *comm, struct layout_group group, int rank)
{
    int members[16] = {0}, faults = 0;
    if (!comm || comm_size(comm) != group.size || comm_rank(comm) != group.place)
        return 1;
    if (comm_host_all_gather(comm, &rank, members, sizeof rank))
        return 1;
    for (int i = 0; i < group.size; i++)
        faults += members[i] != group.first + i * group.stride;
    return faults;
}

static int open_layout(struct rank *rank, void *context)
{
    struct seen *seen = context;
    struct layout layout;
    if (layout_open(&layout, &seen->shape, rank->dev, rank->comm) != DEV_OK)
        return -1;
    int *faults = &seen->faults[rank->index];
    *faults = 0;
    for (int i = 0; i < LAYOUT_DEGREES; i++) {
        *faults += comm_faults(layout.block_comm[i], layout.block[i], rank->index);
        *faults += comm_faults(layout.replicas_comm[i], layout.replicas[i], rank->index);
    }
    return 0;
}

static void test_communicators(void)
{
    static const int degrees[][4] = {
        {1, 1, 1, 1}, {2, 1, 2, 2}, {4, 2, 4, 2}, {6, 3, 2, 6}, {8, 2, 8, 4}, {12, 4, 6, 3}};
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
        const int *d = degrees[i];
        struct seen seen = {.shape = shape_of(d[0], d[1], d[2], d[3])};
        struct ranks_config config = {.count = d[0], .device = {.kind = DEV_CPU}};
        struct ranks_failure failure;
        int result = ranks_run(&config, open_layout, &seen, &failure), faults = 0;
        for (int rank = 0; rank < d[0]; rank++)
            faults += seen.faults[rank];
        tap_ok(result == 0 && faults == 0, "communicators of W=%d, D=%d, E_p=%d, P=%d", d[0], d[1],
            d[2], d[3]);
        if (result)
            tap_note("rank %d: %s", failure.rank, failure.message);
    }
    struct seen seen = {.shape = shape_of(4, 2, 2, 2)};
    struct ranks_config config = {.count = 2, .device = {.kind = DEV_CPU}};
    struct ranks_failure failure;
    tap_ok(ranks_run(&config, open_layout, &seen, &failure) == -1 &&
               strstr(failure.message, "a layout of 4 ranks over a communicator of 2"),
        "a world of another size fails the group");
}

int main(void)
{
    test_conditions();
    test_groups();
    test_communicators();
    return tap_done();
}
