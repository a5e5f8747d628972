/* Pages are few: a rank can be ahead of another only by exchanges that do not involve it. They are
 * kept on a list in order of their sequence numbers and used again. After a failure pages are left
 * as they are until the board goes, since others may still read them. */
#include "device/board.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A gather of the host. Two buffers in turn: nobody can be two rounds ahead of anybody. */
struct gather {
    int64_t *rounds; /* by rank: how many it has entered; owned */
    int64_t complete;
    int arrived;
    int first;        /* the rank that entered the round first */
    const char *what; /* as that rank gave it; NULL = a gather of the host */
    int64_t bytes;    /* likewise */
    char *buffers[2];
    int64_t capacities[2];
    pthread_cond_t wake;
};

struct board {
    struct group *group;
    int size;
    int *members; /* the group's rank of each; owned */
    struct board_page *pages, *spare;
    struct gather gather;
};

struct board *board_create_over(struct group *group, const int *members, int size)
{
    struct board *board = calloc(1, sizeof *board);
    if (!board)
        return NULL;
    board->group = group;
    board->size = size;
    board->members = malloc((size_t)size * sizeof *board->members);
    board->gather.rounds = calloc((size_t)size, sizeof *board->gather.rounds);
    if (!board->members || !board->gather.rounds) {
        free(board->members);
        free(board->gather.rounds);
        free(board);
        return NULL;
    }
    for (int rank = 0; rank < size; rank++)
        board->members[rank] = members ? members[rank] : rank;
    group_cond_init(&board->gather.wake);
    return board;
}

struct board *board_create(struct group *group)
{
    return board_create_over(group, NULL, group_size(group));
}

static void free_pages(struct board *board, struct board_page *page)
{
    while (page) {
        struct board_page *next = page->next;
        for (int rank = 0; rank < board->size; rank++) {
            exchange_free(page->side[rank].exchange);
            pthread_cond_destroy(&page->side[rank].wake);
        }
        free(page);
        page = next;
    }
}

void board_free(struct board *board)
{
    if (!board)
        return;
    free_pages(board, board->pages);
    free_pages(board, board->spare);
    pthread_cond_destroy(&board->gather.wake);
    free(board->members);
    free(board->gather.rounds);
    free(board->gather.buffers[0]);
    free(board->gather.buffers[1]);
    free(board);
}

struct group *board_group(const struct board *board)
{
    return board->group;
}

/* ---- pages; the helpers here run under the lock
 * -------------------------------------------------- */

static struct board_page *new_page(struct board *board)
{
    struct board_page *page = board->spare;
    if (page) {
        board->spare = page->next;
        return page;
    }
    size_t sides = (size_t)board->size;
    page = calloc(1, sizeof *page + sides * sizeof *page->side);
    for (int rank = 0; page && rank < board->size; rank++)
        group_cond_init(&page->side[rank].wake);
    return page;
}

/* The page of a sequence number, opened by the first rank that asks for it. */
static struct board_page *find_page(struct board *board, int64_t sequence, int rank)
{
    struct board_page **link = &board->pages;
    while (*link && (*link)->sequence < sequence)
        link = &(*link)->next;
    if (*link && (*link)->sequence == sequence)
        return *link;
    struct board_page *page = new_page(board);
    if (!page)
        return NULL;
    page->sequence = sequence;
    page->done = 0;
    page->first = rank;
    page->next = *link;
    *link = page;
    return page;
}

static int parts_to_others(const struct exchange *exchange, int rank)
{
    int first;
    return exchange->sends - exchange_parts(exchange->send, exchange->sends, rank, &first);
}

static bool involves(const struct exchange *exchange, int peer)
{
    int first;
    return exchange_parts(exchange->send, exchange->sends, peer, &first) ||
           exchange_parts(exchange->receive, exchange->receives, peer, &first);
}

/* Wakes who waits for `rank`: by their lists, since this rank's may not know of them. */
static void wake_partners(struct board *board, struct board_page *page, int rank)
{
    for (int peer = 0; peer < board->size; peer++) {
        struct board_side *side = &page->side[peer];
        if (side->waiting && involves(side->exchange, rank))
            pthread_cond_signal(&side->wake);
    }
}

/* `rank` and `other_rank` are the group's. */
static void fail_labels(
    struct board *board, const struct exchange *mine, int rank, const char *other, int other_rank)
{
    char message[192];
    bool lower = rank < other_rank;
    snprintf(message, sizeof message,
        "exchange %lld of a communicator is '%s' on rank %d and '%s' on rank %d",
        (long long)mine->sequence, lower ? mine->label : other, lower ? rank : other_rank,
        lower ? other : mine->label, lower ? other_rank : rank);
    group_abort(board->group, rank, DEV_FAILED, message);
}

struct board_page *board_post(
    struct board *board, int rank, struct exchange *exchange, double sent_s, double received_s)
{
    group_lock(board->group);
    struct board_page *page = find_page(board, exchange->sequence, rank);
    if (!page) {
        group_unlock(board->group);
        group_abort(board->group, board->members[rank], DEV_FAILED, "no memory for an exchange");
        exchange_free(exchange);
        return NULL;
    }
    struct board_side *side = &page->side[rank];
    side->exchange = exchange;
    side->unread = parts_to_others(exchange, rank);
    side->sent_s = sent_s;
    side->received_s = received_s;
    int first = page->first;
    const char *label = page->side[first].exchange->label;
    wake_partners(board, page, rank);
    group_unlock(board->group);
    if (!strcmp(label, exchange->label))
        return page;
    fail_labels(board, exchange, board->members[rank], label, board->members[first]);
    return NULL;
}

bool board_match(struct board *board, const struct exchange *sender,
    const struct exchange *receiver, int from, int to, int finder)
{
    int send_first, receive_first;
    int sends = exchange_parts(sender->send, sender->sends, to, &send_first);
    int receives = exchange_parts(receiver->receive, receiver->receives, from, &receive_first);
    for (int i = 0; i < sends || i < receives; i++) {
        int64_t sent = i < sends ? sender->send[send_first + i].bytes : 0;
        int64_t received = i < receives ? receiver->receive[receive_first + i].bytes : 0;
        if (sent == received)
            continue;
        char message[192];
        snprintf(message, sizeof message,
            "exchange '%s': rank %d sends rank %d %lld bytes in part %d, rank %d expects %lld",
            sender->label, board->members[from], board->members[to], (long long)sent, i,
            board->members[to], (long long)received);
        group_abort(board->group, board->members[finder], DEV_FAILED, message);
        return false;
    }
    return true;
}

static bool match(struct board *board, const struct board_page *page, int from, int to, int finder)
{
    return board_match(board, page->side[from].exchange, page->side[to].exchange, from, to, finder);
}

/* The place of a partner that has posted in the list; -1 while there is none: then *missing is the
 * group's rank of one that has not, if possible of one that never will. */
static int find_posted(struct board *board, const struct board_page *page,
    const struct exchange *exchange, int *missing)
{
    *missing = board->members[exchange->partners[0]];
    for (int i = 0; i < exchange->partner_count; i++) {
        int partner = exchange->partners[i];
        if (page->side[partner].exchange)
            return i;
        if (group_has_left(board->group, board->members[partner]))
            *missing = board->members[partner];
    }
    return -1;
}

int board_next(struct board *board, struct board_page *page, int rank)
{
    struct exchange *exchange = page->side[rank].exchange;
    struct group_wait wait = {.rank = board->members[rank],
        .what = exchange->label,
        .deadline_s = group_deadline_s(board->group)};
    struct board_side *side = &page->side[rank];
    bool sound = true;
    int found = -1;
    group_lock(board->group);
    side->waiting = true;
    while (sound && (found = find_posted(board, page, exchange, &wait.missing)) < 0)
        sound = group_wait(board->group, &side->wake, &wait);
    side->waiting = false;
    group_unlock(board->group);
    if (!sound)
        return -1;
    int partner = exchange->partners[found];
    exchange->partners[found] = exchange->partners[--exchange->partner_count];
    sound = match(board, page, partner, rank, rank) && match(board, page, rank, partner, rank);
    return sound ? partner : -1;
}

void board_take(struct board *board, struct board_page *page, int from, int parts)
{
    if (!parts)
        return;
    group_lock(board->group);
    page->side[from].unread -= parts;
    if (!page->side[from].unread)
        pthread_cond_signal(&page->side[from].wake);
    group_unlock(board->group);
}

bool board_wait_taken(struct board *board, struct board_page *page, int rank)
{
    struct board_side *side = &page->side[rank];
    int self = board->members[rank];
    struct group_wait wait = {self, self, side->exchange->label, group_deadline_s(board->group)};
    bool sound = true;
    group_lock(board->group);
    while (sound && side->unread)
        sound = group_wait(board->group, &side->wake, &wait);
    group_unlock(board->group);
    return sound;
}

void board_done(struct board *board, struct board_page *page)
{
    group_lock(board->group);
    if (++page->done == board->size) {
        struct board_page **link = &board->pages;
        while (*link != page)
            link = &(*link)->next;
        *link = page->next;
        for (int rank = 0; rank < board->size; rank++) {
            exchange_free(page->side[rank].exchange);
            page->side[rank].exchange = NULL;
        }
        page->next = board->spare;
        board->spare = page;
    }
    group_unlock(board->group);
}

/* ---- gathers of the host; the helpers here run under the lock
 * ------------------------------------ */

static const char *name_of(const char *what, int64_t bytes)
{
    return what ? what : bytes ? "host all-gather" : "barrier";
}

static bool same(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

/* Says that a rank is in something else than the one that came first. */
static void tell_apart(const struct board *board, int rank, const char *mine, const char *theirs,
    char *message, size_t room)
{
    int self = board->members[rank], other = board->members[board->gather.first];
    bool lower = self < other;
    snprintf(message, room, "ranks that should meet are in '%s' on rank %d and '%s' on rank %d",
        lower ? mine : theirs, lower ? self : other, lower ? theirs : mine, lower ? other : self);
}

/* Enters the rank's next round. False when it cannot: `message` says why. */
static bool enter_round(
    struct board *board, int rank, const char *what, int64_t bytes, char *message, size_t room)
{
    struct gather *gather = &board->gather;
    int size = board->size;
    int turn = gather->complete % 2;
    if (!gather->arrived) {
        gather->first = rank;
        gather->what = what;
        gather->bytes = bytes;
        if (gather->capacities[turn] < bytes * size) {
            free(gather->buffers[turn]);
            gather->buffers[turn] = malloc((size_t)(bytes * size));
            gather->capacities[turn] = gather->buffers[turn] ? bytes * size : 0;
        }
    }
    if (!same(what, gather->what)) {
        tell_apart(
            board, rank, name_of(what, bytes), name_of(gather->what, gather->bytes), message, room);
        return false;
    }
    if (bytes != gather->bytes) {
        snprintf(message, room, "rank %d gathers %lld bytes on the host, rank %d %lld",
            board->members[gather->first], (long long)gather->bytes, board->members[rank],
            (long long)bytes);
        return false;
    }
    if (gather->capacities[turn] < bytes * size) {
        snprintf(
            message, room, "no memory for a gather of %lld bytes on the host", (long long)bytes);
        return false;
    }
    gather->rounds[rank]++;
    gather->arrived++;
    return true;
}

/* The group's rank of one that has not entered `round`, if possible of one that never will. */
static int find_missing(const struct board *board, int64_t round)
{
    int missing = -1;
    for (int rank = 0; rank < board->size; rank++) {
        if (board->gather.rounds[rank] > round)
            continue;
        if (missing < 0 || group_has_left(board->group, board->members[rank]))
            missing = board->members[rank];
    }
    return missing;
}

/* Waits until all have entered `round`. A round that is complete has succeeded for all of its
 * ranks, even for one that wakes after the group has failed since: what was gathered, such as the
 * board of a new communicator, is in use by the others. */
static bool wait_round(struct board *board, int rank, int64_t round, const char *what)
{
    struct gather *gather = &board->gather;
    struct group_wait wait = {board->members[rank], 0, what, group_deadline_s(board->group)};
    bool sound = true;
    while (sound && gather->complete == round) {
        wait.missing = find_missing(board, round);
        sound = group_wait(board->group, &gather->wake, &wait);
    }
    return gather->complete != round;
}

int board_gather(
    struct board *board, int rank, const char *what, const void *send, void *receive, int64_t bytes)
{
    struct gather *gather = &board->gather;
    char message[192];
    if (group_failed(board->group, NULL)) {
        group_give_up(board->group, board->members[rank]);
        return -1;
    }
    group_lock(board->group);
    int64_t round = gather->complete;
    if (!enter_round(board, rank, what, bytes, message, sizeof message)) {
        group_unlock(board->group);
        group_abort(board->group, board->members[rank], DEV_FAILED, message);
        return -1;
    }
    char *buffer = gather->buffers[round % 2];
    if (bytes)
        memcpy(buffer + rank * bytes, send, (size_t)bytes);
    bool sound = true;
    if (gather->arrived == board->size) {
        gather->arrived = 0;
        gather->complete++;
        pthread_cond_broadcast(&gather->wake);
    } else {
        sound = wait_round(board, rank, round, name_of(what, bytes));
    }
    if (sound && bytes)
        memcpy(receive, buffer, (size_t)(bytes * board->size));
    group_unlock(board->group);
    return sound ? 0 : -1;
}

int board_all_gather(struct board *board, int rank, const void *send, void *receive, int64_t bytes)
{
    return board_gather(board, rank, NULL, send, receive, bytes);
}

/* ---- the boards of communicators that are made from another -----------------------------------
 */

struct board *board_of_child(struct board *board, const struct comm *child)
{
    struct board **boards = calloc((size_t)board->size, sizeof *boards);
    struct board *mine = NULL, *found = NULL;
    int rank = child->parent->rank;
    if (child->rank == 0)
        mine = board_create_over(board->group, child->members, child->size);
    if (!boards || (child->rank == 0 && !mine))
        group_abort(board->group, board->members[rank], DEV_FAILED, "no memory for a communicator");
    else if (!board_all_gather(board, rank, &mine, boards, sizeof mine))
        found = boards[child->leader];
    if (!found)
        board_free(mine);
    free(boards);
    return found;
}
