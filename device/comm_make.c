/* A rank's communicators: the first, which its group opens, and those that are made from it. They
 * are kept by the first and freed with it. */
#include <stdlib.h>
#include <string.h>
#include "device/backend.h"
#include "device/transport.h"

/* ---- the first of a group -------------------------------------------------------------------- */

static void abort_group(void *context)
{
    struct comm *comm = context;
    comm->transport->abort(comm, comm->rank, dev_status(comm->dev), dev_message(comm->dev));
}

struct comm *comm_open(
    const struct comm_transport *transport, struct board *board, int rank, struct device *dev)
{
    struct comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return NULL;
    comm->transport = transport;
    comm->dev = dev;
    comm->rank = rank;
    comm->name = "world";
    comm->root = comm;
    if (!transport->open(comm, board)) {
        free(comm);
        return NULL;
    }
    dev_on_failure(dev, abort_group, comm);
    return comm;
}

static void free_child(struct comm *child)
{
    free(child->members);
    free(child);
}

void comm_close(struct comm *comm)
{
    if (!comm)
        return;
    dev_on_failure(comm->dev, NULL, NULL);
    while (comm->duplicates) {
        struct comm *first = comm->duplicates;
        comm->duplicates = first->next;
        first->transport->close(first);
        free_child(first);
    }
    comm->transport->close(comm);
    free(comm);
}

/* ---- those made from it ---------------------------------------------------------------------- */

/* What was made from `comm` under this name before. */
static struct comm *find_child(const struct comm *comm, const char *name)
{
    for (struct comm *known = comm->root->duplicates; known; known = known->next) {
        if (known->parent == comm && !strcmp(known->name, name))
            return known;
    }
    return NULL;
}

/* A child over the same ranks; NULL, and the device failed, when memory is short. */
static struct comm *make_child(struct comm *comm, const char *name)
{
    struct comm *child = calloc(1, sizeof *child);
    size_t members_bytes = (size_t)comm->size * sizeof *child->members;
    if (child && comm->members) {
        child->members = malloc(members_bytes);
        if (!child->members) {
            free(child);
            child = NULL;
        }
    }
    if (!child) {
        dev_fail(comm->dev, DEV_FAILED, "no memory for communicator '%s'", name);
        return NULL;
    }
    if (comm->members)
        memcpy(child->members, comm->members, members_bytes);
    child->transport = comm->transport;
    child->dev = comm->dev;
    child->rank = comm->rank;
    child->size = comm->size;
    child->name = name;
    child->root = comm->root;
    child->parent = comm;
    return child;
}

/* Has the transport make it, and keeps it. */
static struct comm *keep_child(struct comm *child)
{
    struct comm *root = child->root;
    if (!child->transport->duplicate(child->parent, child)) {
        free_child(child);
        return NULL;
    }
    child->next = root->duplicates;
    root->duplicates = child;
    return child;
}

struct comm *comm_dup(struct comm *comm, const char *name)
{
    if (!comm_usable(comm))
        return NULL;
    struct comm *child = find_child(comm, name);
    if (child)
        return child;
    child = make_child(comm, name);
    return child ? keep_child(child) : NULL;
}

/* ---- subsets --------------------------------------------------------------------------------- */

/* What a rank says when a communicator is split. */
struct split_entry {
    int color, key, rank;
};

static int by_key(const void *a, const void *b)
{
    const struct split_entry *left = a, *right = b;
    if (left->key != right->key)
        return left->key < right->key ? -1 : 1;
    return left->rank - right->rank;
}

/* Makes the child one over the ranks of this rank's color; all [comm->size] is every rank's entry.
 */
static bool restrict_child(struct comm *comm, struct comm *child, struct split_entry *all)
{
    int *members = malloc((size_t)comm->size * sizeof *members);
    if (!members) {
        dev_fail(comm->dev, DEV_FAILED, "no memory for communicator '%s'", child->name);
        return false;
    }
    int color = all[comm->rank].color;
    qsort(all, (size_t)comm->size, sizeof *all, by_key);
    child->size = 0;
    for (int i = 0; i < comm->size; i++) {
        if (all[i].color != color)
            continue;
        if (!child->size)
            child->leader = all[i].rank;
        if (all[i].rank == comm->rank)
            child->rank = child->size;
        members[child->size++] = comm_member(comm, all[i].rank);
    }
    free(child->members);
    child->members = members;
    return true;
}

struct comm *comm_split(struct comm *comm, int color, int key, const char *name)
{
    if (!comm_usable(comm))
        return NULL;
    struct comm *child = find_child(comm, name);
    if (child)
        return child;
    struct split_entry mine = {color, key, comm->rank};
    struct split_entry *all = malloc((size_t)comm->size * sizeof *all);
    child = make_child(comm, name);
    if (!all && child)
        dev_fail(comm->dev, DEV_FAILED, "no memory for communicator '%s'", name);
    bool sound = all && child && !comm_host_all_gather(comm, &mine, all, sizeof mine) &&
                 restrict_child(comm, child, all);
    free(all);
    if (sound)
        return keep_child(child);
    if (child)
        free_child(child);
    return NULL;
}

/* Makes the child one over `ranks`; this rank is one of them. */
static bool restrict_to(struct comm *comm, struct comm *child, const int *ranks, int count)
{
    int *members = malloc((size_t)count * sizeof *members);
    if (!members) {
        dev_fail(comm->dev, DEV_FAILED, "no memory for communicator '%s'", child->name);
        return false;
    }
    child->leader = ranks[0];
    child->size = count;
    for (int i = 0; i < count; i++) {
        members[i] = comm_member(comm, ranks[i]);
        if (ranks[i] == comm->rank)
            child->rank = i;
    }
    free(child->members);
    child->members = members;
    return true;
}

struct comm *comm_subset(struct comm *comm, const int *ranks, int count, const char *name)
{
    if (!comm_usable(comm))
        return NULL;
    struct comm *child = find_child(comm, name);
    if (child)
        return child;
    child = make_child(comm, name);
    if (child && restrict_to(comm, child, ranks, count))
        return keep_child(child);
    if (child)
        free_child(child);
    return NULL;
}
