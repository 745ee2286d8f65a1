// Ranks without a launcher: rank 0 makes an id and brings it to the other by a file. Arguments: rank, file.
#include "check.h"

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    anabranch_join_options options = {.size = sizeof options, .rank = (uint32_t)atoi(argv[1]), .world_size = 2};
    anabranch_unique_id id;
    anabranch_root *root = NULL;
    char partial[4096];
    snprintf(partial, sizeof partial, "%s.partial", argv[2]);
    if (options.rank == 0) {
        OK(anabranch_root_create(NULL, &id, &root));
        FILE *file = fopen(partial, "wb");
        if (!file || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) || rename(partial, argv[2])) return 3;
    } else {
        FILE *file;
        while (!(file = fopen(argv[2], "rb"))) {}
        if (fread(&id, sizeof id, 1, file) != 1 || fclose(file)) return 3;
    }
    options.unique_id = &id;
    options.root = root;
    anabranch_world *world = NULL;
    OK(anabranch_join(NULL, &options, &world));
    EQUAL(anabranch_world_rank(world), options.rank);
    EQUAL(anabranch_world_local_rank(world), options.rank);
    EQUAL(anabranch_world_size(world), 2);
    if (root) FAILS(anabranch_join(NULL, &options, &(anabranch_world *){NULL}), ANABRANCH_ERROR_USAGE, "a rank has joined with this root before");
    anabranch_root_destroy(root);
    OK(anabranch_world_leave(world));
    anabranch_world_destroy(world);
    return 0;
}
