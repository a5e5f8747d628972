/* Messages over the sockets of a job, one to each other process. What is sent lies in its sender's
 * memory until the socket has taken it; what comes goes straight to where it is received, or, when
 * nothing waits for it, into memory of its own. Everything moves when the one thread looks: in
 * MPI_Test and its like. */
#include "device/sockets/messages.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include "probe/timing.h"

/* A process that is gone ends the job; all but one wait so long for it to say so. */
#define GRACE_S 1.0

/* Before each message on a socket. */
struct frame {
    int32_t comm, tag;
    int64_t bytes;
};

#define TAG_ABORT (-2) /* the job ends; comm is the status */
#define TAG_END (-3)   /* nothing more comes */

/* A message that has begun to come. */
struct arrival {
    struct arrival *next;
    struct frame frame;
    int from;
    struct sockets_request *taker; /* NULL: nobody has asked for it so far */
    char *own;  /* owned: where it lies until then, or what is too long for the taker */
    int64_t at; /* of its bytes that have come */
};

/* What connects this process to another. */
struct link {
    struct sockets_request *first, **end; /* sends that the socket has not taken, in order */
    struct frame incoming;
    size_t incoming_at;       /* bytes of the frame that have come */
    struct arrival *arriving; /* the message behind it, while it comes */
    bool ended, lost;
    double lost_s;
};

static struct {
    struct sockets_job job;
    struct link *links;                     /* [processes] */
    struct sockets_request *posted, **end;  /* receives that have met nothing, in order */
    struct arrival *arrived, **arrived_end; /* messages that nobody has asked for, in order */
} net;

static void demand_memory(const void *memory)
{
    if (memory)
        return;
    fprintf(stderr, "no memory for a message\n");
    sockets_abort(3);
}

/* ---- ends of requests ------------------------------------------------------------------------ */

static void end_request(struct sockets_request *request, int error)
{
    request->status.MPI_ERROR = error;
    request->done = true;
}

/* The message is whole. */
static void end_arrival(struct arrival *arrival)
{
    struct sockets_request *taker = arrival->taker;
    taker->status.MPI_SOURCE = arrival->from;
    taker->status.MPI_TAG = arrival->frame.tag;
    taker->status.bytes = arrival->frame.bytes < taker->bytes ? arrival->frame.bytes : taker->bytes;
    if (arrival->own)
        memcpy(taker->data, arrival->own, (size_t)taker->status.bytes);
    end_request(taker, arrival->frame.bytes > taker->bytes ? MPI_ERR_TRUNCATE : MPI_SUCCESS);
    free(arrival->own);
    free(arrival);
}

static bool fits(const struct sockets_request *request, const struct frame *frame, int from)
{
    return request->comm == frame->comm &&
           (request->peer == MPI_ANY_SOURCE || request->peer == from) &&
           (request->tag == MPI_ANY_TAG || request->tag == frame->tag);
}

/* The first receive that waits for such a message, taken from the list; NULL: none. */
static struct sockets_request *take_posted(const struct frame *frame, int from)
{
    for (struct sockets_request **link = &net.posted; *link; link = &(*link)->next) {
        struct sockets_request *request = *link;
        if (!fits(request, frame, from))
            continue;
        *link = request->next;
        if (!request->next)
            net.end = link;
        request->matched = true;
        return request;
    }
    return NULL;
}

static struct arrival **find_arrived(const struct sockets_request *request)
{
    struct arrival **link = &net.arrived;
    while (*link && !fits(request, &(*link)->frame, (*link)->from))
        link = &(*link)->next;
    return link;
}

static void unlink_arrived(struct arrival **link)
{
    if (!(*link)->next)
        net.arrived_end = link;
    *link = (*link)->next;
}

/* A message begins. */
static struct arrival *begin_arrival(const struct frame *frame, int from)
{
    struct arrival *arrival = calloc(1, sizeof *arrival);
    demand_memory(arrival);
    arrival->frame = *frame;
    arrival->from = from;
    arrival->taker = take_posted(frame, from);
    if (!arrival->taker || frame->bytes > arrival->taker->bytes) {
        arrival->own = malloc((size_t)frame->bytes + 1);
        demand_memory(arrival->own);
    }
    if (!arrival->taker) {
        *net.arrived_end = arrival;
        net.arrived_end = &arrival->next;
    }
    return arrival;
}

/* ---- sockets --------------------------------------------------------------------------------- */

static void lose(struct link *link)
{
    if (link->lost)
        return;
    link->lost = true;
    link->lost_s = timing_now_s();
}

/* Fails what needs a process that is gone: at once where it is process 0, or this is; else when
 * process 0 has had time to end the job. */
static void fail_lost(int process)
{
    struct link *link = &net.links[process];
    bool first = process == 0 || net.job.process == 0;
    if (!link->lost || link->ended || (!first && timing_now_s() < link->lost_s + GRACE_S))
        return;
    for (struct sockets_request *send = link->first; send; send = link->first) {
        link->first = send->next;
        end_request(send, MPI_ERR_OTHER);
    }
    link->end = &link->first;
    if (link->arriving && link->arriving->taker)
        end_request(link->arriving->taker, MPI_ERR_OTHER);
    link->arriving = NULL;
    for (struct sockets_request **at = &net.posted; *at;) {
        struct sockets_request *request = *at;
        if (request->peer != process) {
            at = &request->next;
            continue;
        }
        *at = request->next;
        end_request(request, MPI_ERR_OTHER);
    }
    net.end = &net.posted;
    while (*net.end)
        net.end = &(*net.end)->next;
}

/* Whether `got` bytes moved, or the process is gone. */
static bool moved(struct link *link, ssize_t got)
{
    if (got > 0)
        return true;
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        lose(link);
    return false;
}

static void take_frame(struct link *link, int from)
{
    link->incoming_at = 0;
    if (link->incoming.tag == TAG_END) {
        link->ended = true;
    } else if (link->incoming.tag == TAG_ABORT) {
        link->ended = true; /* and so is the job */
        raise(SIGTERM);
    } else {
        link->arriving = begin_arrival(&link->incoming, from);
    }
}

/* Receives what is there. */
static void receive_from(int process)
{
    struct link *link = &net.links[process];
    int socket = net.job.all[process].socket;
    while (!link->lost && !link->ended) {
        struct arrival *arrival = link->arriving;
        if (arrival && arrival->at == arrival->frame.bytes) {
            link->arriving = NULL;
            if (arrival->taker)
                end_arrival(arrival);
            continue;
        }
        char *to = (char *)&link->incoming + link->incoming_at;
        size_t room = sizeof link->incoming - link->incoming_at;
        if (arrival) {
            to = (arrival->own ? arrival->own : (char *)arrival->taker->data) + arrival->at;
            room = (size_t)(arrival->frame.bytes - arrival->at);
        }
        ssize_t got = recv(socket, to, room, 0);
        if (!moved(link, got))
            return;
        if (arrival)
            arrival->at += got;
        else if ((link->incoming_at += (size_t)got) == sizeof link->incoming)
            take_frame(link, process);
    }
}

/* Sends what the socket takes. */
static void send_to(int process)
{
    struct link *link = &net.links[process];
    int socket = net.job.all[process].socket;
    while (link->first && !link->lost) {
        struct sockets_request *send = link->first;
        struct frame frame = {send->comm, send->tag, send->bytes};
        struct iovec parts[2] = {{&frame, sizeof frame}, {send->data, (size_t)send->bytes}};
        int64_t at = send->at, part = at >= (int64_t)sizeof frame;
        int64_t into = part ? at - (int64_t)sizeof frame : at;
        parts[part].iov_base = (char *)parts[part].iov_base + into;
        parts[part].iov_len -= (size_t)into;
        struct msghdr message = {.msg_iov = parts + part, .msg_iovlen = (size_t)(2 - part)};
        ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
        if (!moved(link, sent))
            return;
        send->at += sent;
        if (send->at < (int64_t)sizeof frame + send->bytes)
            continue;
        link->first = send->next;
        if (!link->first)
            link->end = &link->first;
        end_request(send, MPI_SUCCESS);
    }
}

void sockets_progress(void)
{
    for (int p = 0; p < net.job.processes; p++) {
        if (p == net.job.process)
            continue;
        send_to(p);
        receive_from(p);
        fail_lost(p);
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

struct sockets_request *sockets_request_create(
    int peer, int tag, int comm, void *data, int64_t bytes)
{
    struct sockets_request *request = calloc(1, sizeof *request);
    demand_memory(request);
    request->peer = peer;
    request->tag = tag;
    request->comm = comm;
    request->data = data;
    request->bytes = bytes;
    return request;
}

/* A message of this process to itself. */
static void send_to_self(struct sockets_request *send)
{
    struct frame frame = {send->comm, send->tag, send->bytes};
    struct arrival *arrival = begin_arrival(&frame, net.job.process);
    char *to = arrival->own ? arrival->own : arrival->taker->data;
    memcpy(to, send->data, (size_t)send->bytes);
    arrival->at = send->bytes;
    if (arrival->taker)
        end_arrival(arrival);
    end_request(send, MPI_SUCCESS);
}

void sockets_send(struct sockets_request *send)
{
    struct link *link = &net.links[send->peer];
    if (send->peer == net.job.process) {
        send_to_self(send);
        return;
    }
    if (link->lost || link->ended) {
        end_request(send, link->ended ? MPI_SUCCESS : MPI_ERR_OTHER);
        return;
    }
    *link->end = send;
    link->end = &send->next;
    send_to(send->peer);
}

void sockets_receive(struct sockets_request *receive)
{
    struct arrival **link = find_arrived(receive), *arrival = *link;
    receive->receives = true;
    if (!arrival) {
        *net.end = receive;
        net.end = &receive->next;
        return;
    }
    unlink_arrived(link);
    receive->matched = true;
    arrival->taker = receive;
    if (arrival->at == arrival->frame.bytes && arrival != net.links[arrival->from].arriving)
        end_arrival(arrival);
}

bool sockets_find(int from, int tag, int comm, MPI_Status *status)
{
    const struct sockets_request wanted = {.peer = from, .tag = tag, .comm = comm};
    const struct arrival *arrival = *find_arrived(&wanted);
    if (!arrival)
        return false;
    *status = (MPI_Status){
        .MPI_SOURCE = arrival->from, .MPI_TAG = arrival->frame.tag, .bytes = arrival->frame.bytes};
    return true;
}

void sockets_cancel(struct sockets_request *request)
{
    struct sockets_request **link = &net.posted;
    if (!request->receives || request->matched || request->done)
        return;
    while (*link != request)
        link = &(*link)->next;
    *link = request->next;
    if (!request->next)
        net.end = link;
    request->status.cancelled = 1;
    end_request(request, MPI_SUCCESS);
}

/* ---- begin and end --------------------------------------------------------------------------- */

int sockets_open(char *error, size_t size)
{
    if (sockets_meet(&net.job, error, size))
        return -1;
    net.links = calloc((size_t)net.job.processes, sizeof *net.links);
    demand_memory(net.links);
    for (int p = 0; p < net.job.processes; p++)
        net.links[p].end = &net.links[p].first;
    net.end = &net.posted;
    net.arrived_end = &net.arrived;
    return 0;
}

const struct sockets_job *sockets_job(void)
{
    return &net.job;
}

/* A frame without bytes to every other process, behind what is under way; -1 when some process has
 * not taken it. */
static void tell_all(int32_t tag, int32_t word)
{
    const struct frame frame = {word, tag, 0};
    for (int p = 0; p < net.job.processes; p++) {
        if (p != net.job.process && !net.links[p].lost && !net.links[p].first)
            (void)send(net.job.all[p].socket, &frame, sizeof frame, MSG_NOSIGNAL);
    }
}

static bool all_have(bool (*holds)(const struct link *link))
{
    for (int p = 0; p < net.job.processes; p++) {
        if (p != net.job.process && !net.links[p].lost && !holds(&net.links[p]))
            return false;
    }
    return true;
}

static bool is_empty(const struct link *link)
{
    return !link->first;
}

static bool has_ended(const struct link *link)
{
    return link->ended;
}

static void progress_until(bool (*holds)(const struct link *link))
{
    while (!all_have(holds)) {
        sockets_progress();
        usleep(100);
    }
}

void sockets_close(void)
{
    progress_until(is_empty);
    tell_all(TAG_END, 0);
    progress_until(has_ended);
    for (int p = 0; p < net.job.processes; p++) {
        if (net.job.all[p].socket >= 0)
            close(net.job.all[p].socket);
    }
    while (net.arrived) {
        struct arrival *first = net.arrived;
        net.arrived = first->next;
        free(first->own);
        free(first);
    }
    free(net.links);
    free(net.job.all);
}

void sockets_abort(int status)
{
    if (net.links)
        tell_all(TAG_ABORT, status);
    _exit(status);
}
