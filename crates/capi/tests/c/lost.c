// Rank 1 dies in the middle; the other rank gets an error that names it.
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <signal.h>
#include <time.h>

int main(void) {
    anabranch_world *world = NULL;
    anabranch_comm *comm = NULL;
    OK(anabranch_join(NULL, NULL, &world));
    OK(anabranch_comm_create(world, NULL, NULL, &comm));
    // Rank 1 dies after its first call, in the first or the second one of rank 0.
    float number = 1;
    anabranch_work *work = NULL;
    anabranch_status status = ANABRANCH_OK;
    time_t begin = 0;
    while (status == ANABRANCH_OK) {
        anabranch_work_destroy(work);
        begin = time(NULL);
        status = anabranch_all_reduce(comm, &number, &number, 1, ANABRANCH_F32, ANABRANCH_SUM, NULL, &work);
        if (status == ANABRANCH_OK) status = anabranch_work_join(work, -1);
        if (status == ANABRANCH_OK && anabranch_world_rank(world) == 1) raise(SIGKILL);
    }
    EQUAL(status, ANABRANCH_ERROR_PEER);
    // deadline.operation is 10 s.
    EQUAL(time(NULL) - begin <= 10, 1);
    uint32_t ranks[2] = {9, 9};
    EQUAL(anabranch_error_ranks(ranks, 2), 1);
    EQUAL(ranks[0], 1);
    printf("%s\n", anabranch_last_error());
    FAILS(anabranch_world_check(world), ANABRANCH_ERROR_PEER, "rank 0: rank 1");
    FAILS(anabranch_barrier(comm, NULL, NULL), ANABRANCH_ERROR_PEER, "rank 1");
    anabranch_work_destroy(work);
    anabranch_comm_destroy(comm);
    anabranch_world_leave(world);
    anabranch_world_destroy(world);
    return 0;
}
