/* A program of NCCL that was compiled by others: its declarations are those of nccl.h. Two ranks of one thread sum their numbers. */
#include <stddef.h>
#include <stdio.h>

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct ncclComm *ncclComm_t;

extern int ncclGetUniqueId(ncclUniqueId *id);
extern int ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
extern int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, ncclComm_t comm, void *stream);
extern int ncclGroupStart(void);
extern int ncclGroupEnd(void);
extern int ncclCommDestroy(ncclComm_t comm);
extern const char *ncclGetLastError(ncclComm_t comm);
extern int anabranchHostSetDevice(int device);
extern int anabranchHostStreamCreate(void **stream);
extern int anabranchHostStreamSynchronize(void *stream);

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        if ((call) != 0) {                                                                                             \
            printf("%s: %s\n", #call, ncclGetLastError(NULL));                                                         \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

int main(void) {
    ncclUniqueId id;
    ncclComm_t comms[2];
    void *streams[2];
    float sent[2] = {3, 4}, sums[2] = {0, 0};
    CHECK(ncclGetUniqueId(&id));
    CHECK(ncclGroupStart());
    for (int rank = 0; rank < 2; rank++) {
        CHECK(anabranchHostSetDevice(rank));
        CHECK(anabranchHostStreamCreate(&streams[rank]));
        CHECK(ncclCommInitRank(&comms[rank], 2, id, rank));
    }
    CHECK(ncclGroupEnd());
    CHECK(ncclGroupStart());
    for (int rank = 0; rank < 2; rank++) CHECK(ncclAllReduce(&sent[rank], &sums[rank], 1, 7, 0, comms[rank], streams[rank]));
    CHECK(ncclGroupEnd());
    for (int rank = 0; rank < 2; rank++) CHECK(anabranchHostStreamSynchronize(streams[rank]));
    for (int rank = 0; rank < 2; rank++) CHECK(ncclCommDestroy(comms[rank]));
    printf("sums %g %g\n", sums[0], sums[1]);
    return 0;
}
