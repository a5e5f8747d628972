/* MPI's names for the processes that have met and for their messages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "device/sockets/messages.h"

/* Communicators are numbers; this one is of the processes of a host. */
#define HOST_COMM 2
#define FIRST_COPY 3

static char meeting_error[256];

/* ---- begin, end, names ----------------------------------------------------------------------- */

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    (void)argc;
    (void)argv;
    *provided = required;
    return sockets_open(meeting_error, sizeof meeting_error) ? MPI_ERR_OTHER : MPI_SUCCESS;
}

int MPI_Finalize(void)
{
    sockets_close();
    return MPI_SUCCESS;
}

int MPI_Abort(MPI_Comm comm, int status)
{
    (void)comm;
    sockets_abort(status);
}

int MPI_Get_library_version(char *text, int *length)
{
    *length = snprintf(text, MPI_MAX_LIBRARY_VERSION_STRING, "sockets");
    return MPI_SUCCESS;
}

int MPI_Error_string(int code, char *text, int *length)
{
    const char *words = code == MPI_ERR_TRUNCATE ? "a message is longer than its receive"
                        : meeting_error[0]       ? meeting_error
                        : code == MPI_ERR_OTHER  ? "its process is gone"
                        : code == MPI_SUCCESS    ? "no error"
                                                 : "an error in a status";
    *length = snprintf(text, MPI_MAX_ERROR_STRING, "%.*s", MPI_MAX_ERROR_STRING - 1, words);
    return MPI_SUCCESS;
}

int MPI_Error_class(int code, int *class)
{
    *class = code;
    return MPI_SUCCESS;
}

/* ---- communicators --------------------------------------------------------------------------- */

int MPI_Comm_size(MPI_Comm comm, int *size)
{
    (void)comm;
    *size = sockets_job()->processes;
    return MPI_SUCCESS;
}

int MPI_Comm_rank(MPI_Comm comm, int *rank)
{
    (void)comm;
    *rank = sockets_job()->process;
    return MPI_SUCCESS;
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy)
{
    static int copies; /* the same on all processes, which copy in one order */
    (void)comm;
    *copy = FIRST_COPY + copies++;
    return MPI_SUCCESS;
}

int MPI_Comm_free(MPI_Comm *comm)
{
    *comm = -1;
    return MPI_SUCCESS;
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *part)
{
    (void)comm;
    (void)type;
    (void)key;
    (void)info;
    *part = HOST_COMM;
    return MPI_SUCCESS;
}

int MPI_Comm_get_attr(MPI_Comm comm, int key, void *value, int *found)
{
    static int most_tag = INT32_MAX - 1;
    (void)comm;
    (void)key;
    *(int **)value = &most_tag;
    *found = 1;
    return MPI_SUCCESS;
}

int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler)
{
    (void)comm;
    (void)handler;
    return MPI_SUCCESS;
}

/* ---- messages -------------------------------------------------------------------------------- */

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
    MPI_Request *request)
{
    *request =
        sockets_request_create(to, tag, comm, (void *)(uintptr_t)data, (int64_t)count * type);
    sockets_send(*request);
    return MPI_SUCCESS;
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
    MPI_Request *request)
{
    *request = sockets_request_create(from, tag, comm, data, (int64_t)count * type);
    sockets_receive(*request);
    return MPI_SUCCESS;
}

int MPI_Recv(
    void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status *status)
{
    MPI_Request request;
    MPI_Irecv(data, count, type, from, tag, comm, &request);
    return MPI_Wait(&request, status);
}

int MPI_Iprobe(int from, int tag, MPI_Comm comm, int *there, MPI_Status *status)
{
    sockets_progress();
    *there = sockets_find(from, tag, comm, status);
    return MPI_SUCCESS;
}

/* Each process sends its part to each other one. */
int MPI_Iallgather(const void *send, int count, MPI_Datatype type, void *receive, int each,
    MPI_Datatype of, MPI_Comm comm, MPI_Request *request)
{
    const struct sockets_job *job = sockets_job();
    int64_t bytes = (int64_t)each * of;
    struct sockets_request *all = sockets_request_create(0, 0, comm, NULL, 0);
    all->parts = calloc(2 * (size_t)job->processes, sizeof *all->parts);
    if (!all->parts)
        sockets_abort(3);
    memmove((char *)receive + job->process * bytes, send, (size_t)((int64_t)count * type));
    for (int p = 0; p < job->processes; p++) {
        if (p == job->process)
            continue;
        MPI_Irecv(
            (char *)receive + p * bytes, each, of, p, 0, comm, &all->parts[all->part_count++]);
        MPI_Isend(send, count, type, p, 0, comm, &all->parts[all->part_count++]);
    }
    *request = all;
    return MPI_SUCCESS;
}

int MPI_Allgather(const void *send, int count, MPI_Datatype type, void *receive, int each,
    MPI_Datatype of, MPI_Comm comm)
{
    MPI_Request request;
    MPI_Iallgather(send, count, type, receive, each, of, comm, &request);
    return MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static bool is_here(int process)
{
    const struct sockets_job *job = sockets_job();
    return !strcmp(job->all[process].host, job->all[job->process].host);
}

/* Of the processes of a host, from its first one. */
int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
    const struct sockets_job *job = sockets_job();
    int first = 0;
    (void)root;
    while (!is_here(first))
        first++;
    if (first != job->process)
        return MPI_Recv(data, count, type, first, 0, comm, MPI_STATUS_IGNORE);
    for (int p = first + 1; p < job->processes; p++) {
        MPI_Request request;
        if (!is_here(p))
            continue;
        MPI_Isend(data, count, type, p, 0, comm, &request);
        int code = MPI_Wait(&request, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            return code;
    }
    return MPI_SUCCESS;
}

/* ---- ends ------------------------------------------------------------------------------------ */

static bool is_done(struct sockets_request *request)
{
    bool done = request->parts || request->done;
    for (int i = 0; i < request->part_count && done; i++)
        done = request->parts[i]->done;
    return done;
}

/* The request is done; what became of it. */
static int take(MPI_Request *request, MPI_Status *status)
{
    struct sockets_request *it = *request;
    int code = it->status.MPI_ERROR;
    for (int i = 0; i < it->part_count; i++) {
        if (it->parts[i]->status.MPI_ERROR)
            code = it->parts[i]->status.MPI_ERROR;
        free(it->parts[i]);
    }
    it->status.MPI_ERROR = code;
    if (status)
        *status = it->status;
    free(it->parts);
    free(it);
    *request = NULL;
    return code;
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    if (!is_done(*request))
        sockets_progress();
    *done = is_done(*request);
    return *done ? take(request, status) : MPI_SUCCESS;
}

int MPI_Testsome(int count, MPI_Request *requests, int *done, int *indices, MPI_Status *statuses)
{
    int code = MPI_SUCCESS;
    *done = 0;
    sockets_progress();
    for (int i = 0; i < count; i++) {
        if (!is_done(requests[i]))
            continue;
        if (take(&requests[i], &statuses[*done]))
            code = MPI_ERR_IN_STATUS;
        indices[(*done)++] = i;
    }
    return code;
}

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
    while (!is_done(*request)) {
        sockets_progress();
        usleep(50);
    }
    return take(request, status);
}

int MPI_Cancel(MPI_Request *request)
{
    sockets_cancel(*request);
    return MPI_SUCCESS;
}

int MPI_Test_cancelled(const MPI_Status *status, int *cancelled)
{
    *cancelled = status->cancelled;
    return MPI_SUCCESS;
}

int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count)
{
    *count = (int)(status->bytes / type);
    return MPI_SUCCESS;
}
