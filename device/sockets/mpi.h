/* The part of MPI that device/mpi.c and mpi_flight.c call, over TCP: for processes that no MPI
 * launcher has started. To the engine it is one more MPI library, compiled against in its turn
 * (Makefile); how processes find each other is told in meeting.c. All calls come from one thread.
 * Meanings and names are MPI's; what is not here is not needed. */
#pragma once
#include <stdint.h>

typedef int MPI_Comm;
typedef int MPI_Info;
typedef int MPI_Datatype; /* its bytes */
typedef int MPI_Errhandler;
typedef struct sockets_request *MPI_Request;
typedef struct {
    int MPI_SOURCE, MPI_TAG, MPI_ERROR;
    int64_t bytes;
    int cancelled;
} MPI_Status;

#define MPI_COMM_WORLD 0
#define MPI_COMM_SELF 1
#define MPI_INFO_NULL 0
#define MPI_BYTE 1
#define MPI_INT 4
#define MPI_ERRORS_RETURN 0
#define MPI_STATUS_IGNORE ((MPI_Status *)0)
#define MPI_ANY_SOURCE (-1)
#define MPI_ANY_TAG (-1)
#define MPI_UNDEFINED (-32766)
#define MPI_TAG_UB 1
#define MPI_COMM_TYPE_SHARED 1
#define MPI_MAX_ERROR_STRING 256
#define MPI_MAX_LIBRARY_VERSION_STRING 128

enum { MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED };
enum { MPI_SUCCESS, MPI_ERR_TRUNCATE, MPI_ERR_IN_STATUS, MPI_ERR_OTHER };

/* A file that this process was to meet the others by (FLATPEAK_JOB_FILE) is needed. */
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPI_Finalize(void);
int MPI_Abort(MPI_Comm comm, int status);
int MPI_Get_library_version(char *text, int *length);
int MPI_Error_string(int code, char *text, int *length);
int MPI_Error_class(int code, int *class);

int MPI_Comm_size(MPI_Comm comm, int *size);
int MPI_Comm_rank(MPI_Comm comm, int *rank);
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy);
int MPI_Comm_free(MPI_Comm *comm);
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *part);
int MPI_Comm_get_attr(MPI_Comm comm, int key, void *value, int *found);
int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler);

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
    MPI_Request *request);
int MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
    MPI_Request *request);
int MPI_Recv(
    void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status *status);
int MPI_Iprobe(int from, int tag, MPI_Comm comm, int *there, MPI_Status *status);
int MPI_Iallgather(const void *send, int count, MPI_Datatype type, void *receive, int each,
    MPI_Datatype of, MPI_Comm comm, MPI_Request *request);
int MPI_Allgather(const void *send, int count, MPI_Datatype type, void *receive, int each,
    MPI_Datatype of, MPI_Comm comm);
int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm);

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status);
int MPI_Testsome(int count, MPI_Request *requests, int *done, int *indices, MPI_Status *statuses);
int MPI_Wait(MPI_Request *request, MPI_Status *status);
int MPI_Cancel(MPI_Request *request);
int MPI_Test_cancelled(const MPI_Status *status, int *cancelled);
int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count);
