// Every collective on local and on symmetric memory, groups, messages and streams: two ranks, values by arithmetic.
#include "check.h"

enum { COUNT = 1000, RANKS = 2 };

static anabranch_world *world;
static unsigned rank;

// Two tensors of [RANKS * COUNT]: local memory of the process, or memory of the heap.
typedef struct {
    float *in, *out;
    anabranch_memory *memory;
} buffers;

static buffers make(int symmetric) {
    buffers made = {0};
    if (symmetric) {
        OK(anabranch_heap_allocate(world, NULL, 2 * RANKS * COUNT * sizeof(float), 0, "buffers", &made.memory));
        made.in = anabranch_memory_address(made.memory);
    } else {
        made.in = malloc(2 * RANKS * COUNT * sizeof(float));
    }
    made.out = made.in + RANKS * COUNT;
    return made;
}

// Element i of part p of rank r.
static float value(unsigned r, unsigned p, unsigned i) { return (float)(1 + r * 4 + p * 2 + i % 7); }

static void fill(const buffers *all) {
    for (unsigned i = 0; i < RANKS * COUNT; i++) {
        all->in[i] = value(rank, i / COUNT, i % COUNT);
        all->out[i] = -1;
    }
}

static void done(anabranch_work **work) {
    OK(anabranch_work_join(*work, -1));
    uint32_t is_done = 0;
    OK(anabranch_work_poll(*work, &is_done));
    EQUAL(is_done, 1);
    anabranch_work_destroy(*work);
    *work = NULL;
}

static void collectives(anabranch_comm *comm, int symmetric) {
    buffers all = make(symmetric);
    float *in = all.in, *out = all.out;
    anabranch_work *work = NULL;
    const unsigned other = 1 - rank;

    fill(&all);
    OK(anabranch_all_reduce(comm, out, in, COUNT, ANABRANCH_F32, ANABRANCH_SUM, NULL, &work));
    if (strstr(anabranch_work_text(work), "all_reduce") == NULL) exit(2);
    done(&work);
    for (unsigned i = 0; i < COUNT; i++) EQUAL(out[i], value(0, 0, i) + value(1, 0, i));
    EQUAL(out[COUNT], -1);

    anabranch_op thrice = 0, same = 0;
    OK(anabranch_premul_sum(comm, 3, &thrice));
    OK(anabranch_premul_sum(comm, 3, &same));
    EQUAL(same, thrice);
    OK(anabranch_all_reduce(comm, out, in, COUNT, ANABRANCH_F32, thrice, NULL, &work));
    done(&work);
    EQUAL(out[5], 3 * (value(0, 0, 5) + value(1, 0, 5)));

    float *half = malloc(sizeof(float));
    *half = 0.5F;
    anabranch_op halved = 0;
    OK(anabranch_premul_sum_device(comm, half, ANABRANCH_F32, &halved));
    OK(anabranch_all_reduce(comm, out, in, COUNT, ANABRANCH_F32, halved, NULL, &work));
    done(&work);
    EQUAL(out[5], 0.5F * (value(0, 0, 5) + value(1, 0, 5)));
    free(half);

    OK(anabranch_reduce_scatter(comm, out, in, COUNT, ANABRANCH_F32, ANABRANCH_MAX, NULL, &work));
    done(&work);
    for (unsigned i = 0; i < COUNT; i++) EQUAL(out[i], value(1, rank, i));

    const uint64_t counts[RANKS] = {300, 500};
    OK(anabranch_reduce_scatter_uneven(comm, out, in, counts, ANABRANCH_F32, ANABRANCH_MIN, NULL, &work));
    done(&work);
    for (unsigned i = 0; i < counts[rank]; i++) EQUAL(out[i], value(0, 0, rank * 300 + i));

    OK(anabranch_all_gather(comm, out, in, COUNT, ANABRANCH_F32, NULL, &work));
    done(&work);
    for (unsigned i = 0; i < RANKS * COUNT; i++) EQUAL(out[i], value(i / COUNT, 0, i % COUNT));

    OK(anabranch_all_gather_uneven(comm, out, in, counts, ANABRANCH_F32, NULL, &work));
    done(&work);
    for (unsigned i = 0; i < 800; i++) EQUAL(out[i], i < 300 ? value(0, 0, i) : value(1, 0, i - 300));

    fill(&all);
    anabranch_gathered two[2] = {{.size = sizeof two[0], .output = out, .input = in, .count = 100, .data_type = ANABRANCH_F32},
                                 {.size = sizeof two[0], .output = out + 1000, .input = in + COUNT, .count = 7, .data_type = ANABRANCH_F32}};
    OK(anabranch_all_gather_many(comm, two, 2, NULL, &work));
    done(&work);
    EQUAL(out[199], value(1, 0, 99));
    EQUAL(out[1013], value(1, 1, 6));
    EQUAL(out[1014], -1);

    OK(anabranch_all_to_all(comm, out, in, COUNT, ANABRANCH_F32, NULL, &work));
    done(&work);
    for (unsigned i = 0; i < RANKS * COUNT; i++) EQUAL(out[i], value(i / COUNT, rank, i % COUNT));

    // Rank 0 sends 10 and 20, rank 1 sends 30 and 40.
    const uint64_t sent[2][2] = {{10, 20}, {30, 40}}, came[2][2] = {{10, 30}, {20, 40}};
    OK(anabranch_all_to_all_uneven(comm, out, in, came[rank], sent[rank], ANABRANCH_F32, NULL, &work));
    done(&work);
    for (unsigned i = 0; i < came[rank][1]; i++) EQUAL(out[came[rank][0] + i], value(1, 0, (unsigned)(rank ? sent[1][0] : 0) + i));

    fill(&all);
    OK(anabranch_broadcast(comm, in, COUNT, ANABRANCH_F32, 1, NULL, &work));
    done(&work);
    EQUAL(in[3], value(1, 0, 3));

    fill(&all);
    OK(anabranch_reduce(comm, rank == 1 || symmetric ? out : NULL, in, COUNT, ANABRANCH_F32, ANABRANCH_SUM, 1, NULL, &work));
    done(&work);
    EQUAL(out[3], rank == 1 ? value(0, 0, 3) + value(1, 0, 3) : -1);

    OK(anabranch_gather(comm, rank == 0 || symmetric ? out : NULL, in, COUNT, ANABRANCH_F32, 0, NULL, &work));
    done(&work);
    if (rank == 0) EQUAL(out[COUNT + 3], value(1, 0, 3));

    OK(anabranch_scatter(comm, out, rank == 1 || symmetric ? in : NULL, COUNT, ANABRANCH_F32, 1, NULL, &work));
    done(&work);
    EQUAL(out[3], value(1, rank, 3));

    if (rank == 0) OK(anabranch_send(comm, in, COUNT, ANABRANCH_F32, 1, NULL, &work));
    else OK(anabranch_recv(comm, out, COUNT, ANABRANCH_F32, 0, NULL, &work));
    done(&work);
    if (rank == 1) EQUAL(out[COUNT - 1], value(0, 0, COUNT - 1));

    anabranch_message both[2] = {{.size = sizeof both[0], .tensor = in, .count = COUNT, .data_type = ANABRANCH_F32, .peer = other},
                                 {.size = sizeof both[0], .tensor = out, .count = COUNT, .data_type = ANABRANCH_F32, .peer = other, .is_receive = 1}};
    OK(anabranch_batch(comm, both, 2, NULL, &work));
    done(&work);
    EQUAL(out[9], value(other, 0, 9));

    OK(anabranch_barrier(comm, NULL, &work));
    done(&work);
    if (symmetric) anabranch_heap_free(all.memory);
    else free(all.in);
}

static void groups(void) {
    anabranch_group *reversed = NULL, *alone = NULL, *none = NULL, *one = NULL;
    OK(anabranch_group_split(world, NULL, 7, -(int64_t)rank, &reversed));
    EQUAL(anabranch_group_size(reversed), 2);
    EQUAL(anabranch_group_rank(reversed), 1 - rank);
    uint32_t members[2] = {9, 9};
    size_t count = 0;
    OK(anabranch_group_members(reversed, members, 2, &count));
    EQUAL(count, 2);
    EQUAL(members[0], 1);
    OK(anabranch_group_split(world, reversed, rank, 0, &alone));
    EQUAL(anabranch_group_size(alone), 1);
    OK(anabranch_group_split(world, NULL, rank == 0 ? 0 : -1, 0, &none));
    EQUAL(none == NULL, rank == 1);
    OK(anabranch_group_create(world, (const uint32_t[]){0}, 1, &one));
    EQUAL(anabranch_group_rank(one), rank == 0 ? 0 : UINT32_MAX);

    // Roots are ranks of the group: 0 is rank 1 of the world.
    anabranch_comm *comm = NULL;
    OK(anabranch_comm_create(world, reversed, NULL, &comm));
    EQUAL(anabranch_comm_rank(comm), 1 - rank);
    int64_t number = 100 + rank;
    OK(anabranch_broadcast(comm, &number, 1, ANABRANCH_I64, 0, NULL, NULL));
    OK(anabranch_synchronize(world, NULL, -1));
    EQUAL(number, 101);
    // Several communicators, one of one rank.
    anabranch_comm *own = NULL;
    OK(anabranch_comm_create(world, alone, NULL, &own));
    EQUAL(anabranch_comm_size(own), 1);
    OK(anabranch_all_reduce(own, &number, &number, 1, ANABRANCH_I64, ANABRANCH_PRODUCT, NULL, NULL));
    OK(anabranch_synchronize(world, NULL, -1));
    EQUAL(number, 101);
    anabranch_comm_destroy(own);
    anabranch_comm_destroy(comm);
    anabranch_group_destroy(reversed);
    anabranch_group_destroy(alone);
    anabranch_group_destroy(none);
    anabranch_group_destroy(one);
}

static void heap(void) {
    anabranch_memory *memory = NULL;
    OK(anabranch_heap_allocate(world, NULL, 4096, 512, "a tag", &memory));
    char *start = anabranch_memory_address(memory);
    EQUAL((uintptr_t)start % 256, 0);
    EQUAL(anabranch_memory_bytes(memory), 4096);
    // An older program: a location without its tag.
    anabranch_location at = {.size = offsetof(anabranch_location, tag), .tag = "left alone"};
    OK(anabranch_heap_locate(world, start + 100, &at));
    EQUAL(at.is_found, 1);
    EQUAL(at.offset, 100);
    EQUAL(strcmp(at.tag, "left alone"), 0);
    at.size = sizeof at;
    OK(anabranch_heap_locate(world, start, &at));
    EQUAL(strcmp(at.tag, "a tag"), 0);
    OK(anabranch_heap_locate(world, &at, &at));
    EQUAL(at.is_found, 0);
    void *peer = NULL;
    OK(anabranch_memory_peer_address(memory, rank, &peer));
    EQUAL(peer == (void *)start, 1);
    OK(anabranch_memory_peer_address(memory, 1 - rank, &peer));
    EQUAL(peer != NULL && peer != (void *)start, 1);
    uint64_t bytes = 0, left = 0;
    OK(anabranch_heap_usage(world, &bytes, &left));
    EQUAL(left < bytes && left > 0, 1);
    anabranch_heap_free(memory);
}

static void streams(anabranch_comm *comm) {
    void *first = NULL, *second = NULL;
    OK(anabranch_stream_create(world, &first));
    OK(anabranch_stream_create(world, &second));
    float number = 2;
    anabranch_work *work = NULL;
    OK(anabranch_all_reduce(comm, &number, &number, 1, ANABRANCH_F32, ANABRANCH_PRODUCT, first, &work));
    OK(anabranch_work_wait_on(work, second));
    OK(anabranch_synchronize(world, second, -1));
    EQUAL(number, 4);
    anabranch_work_destroy(work);
    OK(anabranch_stream_destroy(world, first));
    OK(anabranch_stream_destroy(world, second));
    FAILS(anabranch_stream_destroy(world, second), ANABRANCH_ERROR_USAGE, "is no stream of anabranch_stream_create");
}

// A wait that ends by its own limit: the other rank comes only after it.
static void busy(anabranch_comm *comm) {
    float number = 1;
    anabranch_work *work = NULL;
    if (rank == 1) OK(anabranch_world_barrier(world, NULL, "rank 0 has waited"));
    OK(anabranch_all_reduce(comm, &number, &number, 1, ANABRANCH_F32, ANABRANCH_SUM, NULL, &work));
    if (rank == 0) {
        uint32_t is_done = 1;
        OK(anabranch_work_poll(work, &is_done));
        EQUAL(is_done, 0);
        FAILS(anabranch_work_join(work, 0.02), ANABRANCH_ERROR_BUSY, "rank 0: ");
        FAILS(anabranch_synchronize(world, NULL, 0), ANABRANCH_ERROR_BUSY, "rank 0: ");
        OK(anabranch_world_barrier(world, NULL, "rank 0 has waited"));
    }
    done(&work);
    EQUAL(number, 2);
}

// What ranks have to have alike, and symmetric memory that ends before the tensor does.
static void mismatches(anabranch_comm *direct) {
    anabranch_comm *comm = NULL;
    anabranch_comm_options options = {.size = sizeof options, .symmetric = rank};
    FAILS(anabranch_comm_create(world, NULL, &options, &comm), ANABRANCH_ERROR_CONFIG, "symmetric differs");
    uint32_t ranks[2] = {9, 9};
    EQUAL(anabranch_error_ranks(ranks, 2), 1);
    EQUAL(ranks[0], 1);
    anabranch_memory *memory = NULL;
    FAILS(anabranch_heap_allocate(world, NULL, 256 + rank, 0, NULL, &memory), ANABRANCH_ERROR_CONFIG, "256");
    OK(anabranch_heap_allocate(world, NULL, 256, 0, NULL, &memory));
    char *start = anabranch_memory_address(memory);
    FAILS(anabranch_broadcast(direct, start + 128, 33, ANABRANCH_F32, 0, NULL, NULL), ANABRANCH_ERROR_USAGE, "33");
    OK(anabranch_broadcast(direct, start + 128, 32, ANABRANCH_F32, 0, NULL, NULL));
    OK(anabranch_synchronize(world, NULL, -1));
    anabranch_heap_free(memory);
}

int main(void) {
    OK(anabranch_join(NULL, NULL, &world));
    rank = anabranch_world_rank(world);
    EQUAL(anabranch_world_size(world), RANKS);
    EQUAL(anabranch_world_local_rank(world), rank);
    EQUAL(anabranch_world_device(world), rank);
    EQUAL(strcmp(anabranch_world_runtime(world), "host"), 0);
    OK(anabranch_world_check(world));
    OK(anabranch_world_barrier(world, NULL, "the start"));
    uint32_t squares[RANKS] = {9, 9}, square = rank * rank;
    OK(anabranch_world_exchange(world, NULL, NULL, &square, sizeof square, squares));
    EQUAL(squares[0], 0);
    EQUAL(squares[1], 1);

    anabranch_comm *local = NULL, *direct = NULL;
    anabranch_comm_options options = {.size = sizeof options, .symmetric = 1};
    OK(anabranch_comm_create(world, NULL, NULL, &local));
    OK(anabranch_comm_create(world, NULL, &options, &direct));
    collectives(local, 0);
    collectives(direct, 1);
    heap();
    groups();
    streams(local);
    busy(local);
    mismatches(direct);
    anabranch_comm_destroy(local);
    anabranch_comm_destroy(direct);
    OK(anabranch_world_leave(world));
    OK(anabranch_world_leave(world));
    FAILS(anabranch_world_check(world), ANABRANCH_ERROR_USAGE, "has left the world");
    anabranch_world_destroy(world);
    return 0;
}
