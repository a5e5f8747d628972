/* Messages between ranks that are threads of one process: the receiver copies straight out of the
 * sender's buffer. It runs on the stream's thread and returns when this rank's parts are sent and
 * received, so nothing is buffered and no order of partners can deadlock.
 *
 * Paced, every rank has one link out and one link in. An exchange books its bytes on both when the
 * rank comes to it, and is complete when its own links are through and so are, for every message,
 * the sender's link out and the receiver's link in: messages of one exchange share a link evenly,
 * so each ends with the last. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "device/backend.h"
#include "device/board.h"
#include "device/pool.h"
#include "device/worker.h"
#include "probe/timing.h"

/* A rank's two links, shared by all its communicators. */
struct links {
    pthread_mutex_t lock;
    double bytes_per_s; /* 0: unpaced */
    double out_free_s, in_free_s;
};

struct threads {
    struct board *board; /* but the root's, it belongs to rank 0's communicator */
    struct links *links; /* the root communicator's */
};

/* ---- communicators --------------------------------------------------------------------------- */

static bool threads_open(struct comm *comm, struct board *board)
{
    struct threads *threads = calloc(1, sizeof *threads);
    struct links *links = calloc(1, sizeof *links);
    if (!threads || !links) {
        free(threads);
        free(links);
        return false;
    }
    pthread_mutex_init(&links->lock, NULL);
    links->bytes_per_s = group_message_bytes_per_s(board_group(board));
    threads->board = board;
    threads->links = links;
    comm->size = group_size(board_group(board));
    comm->state = threads;
    return true;
}

static void threads_close(struct comm *comm)
{
    struct threads *threads = comm->state;
    if (comm == comm->root) {
        pthread_mutex_destroy(&threads->links->lock);
        free(threads->links);
    } else if (comm->rank == 0) {
        board_free(threads->board);
    }
    free(threads);
}

static bool threads_duplicate(struct comm *parent, struct comm *child)
{
    struct threads *from = parent->state;
    struct threads *threads = calloc(1, sizeof *threads);
    if (!threads) {
        dev_fail(parent->dev, DEV_FAILED, "no memory for communicator '%s'", child->name);
        return false;
    }
    threads->board = board_of_child(from->board, child);
    threads->links = from->links;
    if (!threads->board) {
        free(threads);
        return false;
    }
    child->state = threads;
    return true;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static int64_t bytes_of_others(const struct comm_part *parts, int count, int rank)
{
    int64_t bytes = 0;
    for (int i = 0; i < count; i++) {
        if (parts[i].peer != rank)
            bytes += parts[i].bytes;
    }
    return bytes;
}

/* Books bytes on a link and returns when they are through. */
static double book(double *free_s, double now_s, double seconds)
{
    double begin_s = *free_s > now_s ? *free_s : now_s;
    if (seconds > 0)
        *free_s = begin_s + seconds;
    return seconds > 0 ? *free_s : 0;
}

static void book_links(struct links *links, const struct exchange *exchange, int rank,
    double *sent_s, double *received_s)
{
    *sent_s = *received_s = 0;
    if (!(links->bytes_per_s > 0))
        return;
    int64_t out_bytes = bytes_of_others(exchange->send, exchange->sends, rank);
    int64_t in_bytes = bytes_of_others(exchange->receive, exchange->receives, rank);
    pthread_mutex_lock(&links->lock);
    double now_s = timing_now_s();
    *sent_s = book(&links->out_free_s, now_s, (double)out_bytes / links->bytes_per_s);
    *received_s = book(&links->in_free_s, now_s, (double)in_bytes / links->bytes_per_s);
    pthread_mutex_unlock(&links->lock);
}

/* Copies what `from` sends to `to`; their parts match. Returns how many parts. */
static int copy_parts(struct device *dev, const struct exchange *sender,
    const struct exchange *receiver, int from, int to)
{
    int send_first, receive_first;
    int count = exchange_parts(sender->send, sender->sends, to, &send_first);
    exchange_parts(receiver->receive, receiver->receives, from, &receive_first);
    pool_begin_work(dev->config.pool);
    for (int i = 0; i < count; i++)
        memcpy(receiver->receive[receive_first + i].data, sender->send[send_first + i].data,
            (size_t)sender->send[send_first + i].bytes);
    pool_end_work(dev->config.pool);
    return count;
}

/* Takes what all partners send. Returns when the links that the messages use are through, or -1
 * when the group has failed. */
static double receive_all(
    struct comm *comm, struct board *board, struct board_page *page, struct exchange *exchange)
{
    double end_s = page->side[comm->rank].sent_s;
    if (end_s < page->side[comm->rank].received_s)
        end_s = page->side[comm->rank].received_s;
    while (exchange->partner_count) {
        int partner = board_next(board, page, comm->rank);
        if (partner < 0)
            return -1;
        const struct board_side *side = &page->side[partner];
        int first;
        int taken = copy_parts(comm->dev, side->exchange, exchange, partner, comm->rank);
        if (taken && end_s < side->sent_s)
            end_s = side->sent_s;
        if (exchange_parts(exchange->send, exchange->sends, partner, &first) &&
            end_s < side->received_s)
            end_s = side->received_s;
        board_take(board, page, partner, taken);
    }
    return end_s;
}

static void threads_exchange(struct comm *comm, struct stream *stream, struct exchange *exchange)
{
    struct threads *threads = comm->state;
    double sent_s, received_s;
    book_links(threads->links, exchange, comm->rank, &sent_s, &received_s);
    struct board_page *page = board_post(threads->board, comm->rank, exchange, sent_s, received_s);
    if (!page)
        return;
    copy_parts(comm->dev, exchange, exchange, comm->rank, comm->rank);
    double end_s = receive_all(comm, threads->board, page, exchange);
    if (end_s < 0 || !board_wait_taken(threads->board, page, comm->rank))
        return;
    board_done(threads->board, page);
    worker_sleep_until(stream, end_s);
}

/* ---- the host's side ------------------------------------------------------------------------- */

static int threads_host_all_gather(
    struct comm *comm, const void *send, void *receive, int64_t bytes)
{
    struct threads *threads = comm->state;
    return board_all_gather(threads->board, comm->rank, send, receive, bytes);
}

static void threads_abort(struct comm *comm, int rank, enum dev_status status, const char *message)
{
    struct threads *threads = comm->state;
    group_abort(board_group(threads->board), rank, status, message);
}

const struct comm_transport transport_threads = {
    .open = threads_open,
    .duplicate = threads_duplicate,
    .close = threads_close,
    .exchange = threads_exchange,
    .host_all_gather = threads_host_all_gather,
    .abort = threads_abort,
};
