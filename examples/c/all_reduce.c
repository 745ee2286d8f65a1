/* Sums a tensor over all ranks. Two ranks on the `host` runtime, without a GPU:
 *
 *   cc -std=c11 all_reduce.c $(pkg-config --cflags --libs anabranch) -o all_reduce
 *   anabranch run -n 2 -- ./all_reduce
 *
 * The first argument is a configuration file: config/h200-4.toml for GPUs. */
#include <anabranch.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1 << 16 };

static void check(anabranch_status status, const char *call) {
    if (status != ANABRANCH_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, anabranch_status_text(status), anabranch_last_error());
        exit((int)status); /* the other ranks notice, and get an error that names this one */
    }
}
#define CHECK(call) check(call, #call)

int main(int argc, char **argv) {
    anabranch_config_options options = {.size = sizeof options, .file = argc > 1 ? argv[1] : NULL};
    anabranch_config *config;
    anabranch_world *world;
    anabranch_comm *comm;
    anabranch_memory *memory;
    CHECK(anabranch_config_load(&options, &config));
    CHECK(anabranch_join(config, NULL, &world)); /* collective; the launcher says who this rank is */
    anabranch_comm_options direct = {.size = sizeof direct, .symmetric = 1};
    CHECK(anabranch_comm_create(world, NULL, &direct, &comm)); /* collective */
    CHECK(anabranch_heap_allocate(world, NULL, COUNT * sizeof(float), 0, "tensor", &memory)); /* collective */

    unsigned rank = anabranch_world_rank(world), size = anabranch_world_size(world);
    float *values = malloc(COUNT * sizeof *values);
    for (int i = 0; i < COUNT; i++) values[i] = (float)(rank + 1);
    void *tensor = anabranch_memory_address(memory);
    CHECK(anabranch_write(world, tensor, values, COUNT * sizeof *values));

    CHECK(anabranch_all_reduce(comm, tensor, tensor, COUNT, ANABRANCH_F32, ANABRANCH_SUM, NULL, NULL));
    CHECK(anabranch_synchronize(world, NULL, -1)); /* has a deadline; the error names the rank that failed */

    CHECK(anabranch_read(world, values, tensor, COUNT * sizeof *values));
    float expected = (float)(size * (size + 1) / 2);
    for (int i = 0; i < COUNT; i++) {
        if (values[i] != expected) {
            fprintf(stderr, "rank %u: element %d is %g, not %g\n", rank, i, (double)values[i], (double)expected);
            return 1;
        }
    }
    printf("rank %u: %d sums of %g\n", rank, COUNT, (double)expected);

    free(values);
    anabranch_heap_free(memory);
    anabranch_comm_destroy(comm);
    CHECK(anabranch_world_leave(world)); /* collective */
    anabranch_world_destroy(world);
    anabranch_config_destroy(config);
    return 0;
}
