// Wrong arguments: the status, and what the text names. One rank.
#include "check.h"

static void configurations(void) {
    anabranch_config *config = NULL;
    anabranch_config_options options = {.size = sizeof options, .text = "[heap]\nbytes = \"1 MiB\"\n"};
    const char *set[] = {"heap.bytes=2MiB"};
    char value[32];
    size_t length = 0;

    options.ignore_environment = 1;
    OK(anabranch_config_load(&options, &config));
    OK(anabranch_config_get(config, "heap.bytes", value, sizeof value, &length));
    EQUAL(strcmp(value, "1 MiB"), 0);
    OK(anabranch_config_get(config, "heap.bytes", value, 3, &length));
    EQUAL(strcmp(value, "1 "), 0);
    EQUAL(length, 5);
    anabranch_config_destroy(config);

    options.set = set;
    options.set_count = 1;
    OK(anabranch_config_load(&options, &config));
    OK(anabranch_config_get(config, "heap.bytes", value, sizeof value, NULL));
    EQUAL(strcmp(value, "2 MiB"), 0);
    FAILS(anabranch_config_get(config, "heap.byte", value, sizeof value, NULL), ANABRANCH_ERROR_CONFIG, "no setting \"heap.byte\"");
    anabranch_config_destroy(config);

    // An older program: a struct that ends before `set`.
    options.size = offsetof(anabranch_config_options, set);
    OK(anabranch_config_load(&options, &config));
    OK(anabranch_config_get(config, "heap.bytes", value, sizeof value, NULL));
    EQUAL(strcmp(value, "64 MiB"), 0); // of the environment, which it cannot ignore
    anabranch_config_destroy(config);

    // A newer program: only zeros are understood.
    struct { anabranch_config_options known; uint64_t more; } newer = {.known = {.size = sizeof newer}};
    OK(anabranch_config_load(&newer.known, &config));
    anabranch_config_destroy(config);
    newer.more = 1;
    FAILS(anabranch_config_load(&newer.known, &config), ANABRANCH_ERROR_USAGE, "anabranch_config_options of");
    EQUAL(config == NULL, 1);
    options.size = 4;
    FAILS(anabranch_config_load(&options, &config), ANABRANCH_ERROR_USAGE, "size is 4; at least 8 bytes");
    options.size = sizeof options;
    options.reserved = 1;
    FAILS(anabranch_config_load(&options, &config), ANABRANCH_ERROR_USAGE, "anabranch_config_options.reserved is 1");
    options.reserved = 0;

    set[0] = "heap.bites=1";
    FAILS(anabranch_config_load(&options, &config), ANABRANCH_ERROR_CONFIG, "heap.bites");
    options.set_count = 0;
    options.text = "[heap]\nbytes = \"many\"\n";
    FAILS(anabranch_config_load(&options, &config), ANABRANCH_ERROR_CONFIG, "line 2");
    options.text = NULL;
    options.file = "/nowhere/a.toml";
    FAILS(anabranch_config_load(&options, &config), ANABRANCH_ERROR_CONFIG, "/nowhere/a.toml");
    options.file = "\xff";
    FAILS(anabranch_config_load(&options, &config), ANABRANCH_ERROR_USAGE, "file is not UTF-8");
    FAILS(anabranch_config_load(NULL, NULL), ANABRANCH_ERROR_USAGE, "the pointer to the new config is NULL");
}

static anabranch_world *join(void) {
    anabranch_world *world = NULL;
    anabranch_join_options options = {.size = sizeof options, .world_size = 1};
    FAILS(anabranch_join(NULL, NULL, &world), ANABRANCH_ERROR_ENVIRONMENT, "RANK");
    EQUAL(world == NULL, 1);
    FAILS(anabranch_join(NULL, &options, &world), ANABRANCH_ERROR_USAGE, "bootstrap.address");
    options.rank = 3;
    FAILS(anabranch_join(NULL, &options, &world), ANABRANCH_ERROR_USAGE, "rank is 3; world_size 1 allows 0 to 0");
    options.rank = 0;
    anabranch_unique_id id = {{0}};
    options.unique_id = &id;
    FAILS(anabranch_join(NULL, &options, &world), ANABRANCH_ERROR_USAGE, "root is NULL");
    anabranch_root *root = NULL;
    OK(anabranch_root_create(NULL, &id, &root));
    options.root = root;
    id.bytes[5] ^= 1;
    FAILS(anabranch_join(NULL, &options, &world), ANABRANCH_ERROR_USAGE, "unique_id: ");
    id.bytes[5] ^= 1;
    OK(anabranch_join(NULL, &options, &world));
    anabranch_root_destroy(root);
    return world;
}

static void calls(anabranch_world *world) {
    float number = 1;
    anabranch_comm *comm = NULL;
    anabranch_group *group = NULL;
    anabranch_memory *memory = NULL;
    anabranch_work *work = NULL;
    const uint32_t ranks[] = {0, 5};

    // An error leaves no pointer to an older handle, which the program may have destroyed.
    comm = (anabranch_comm *)&number;
    FAILS(anabranch_comm_create(NULL, NULL, NULL, &comm), ANABRANCH_ERROR_USAGE, "world is NULL");
    EQUAL(comm == NULL, 1);
    work = (anabranch_work *)&number;
    FAILS(anabranch_barrier(NULL, NULL, &work), ANABRANCH_ERROR_USAGE, "comm is NULL");
    EQUAL(work == NULL, 1);
    FAILS(anabranch_read(world, &number, &number, SIZE_MAX), ANABRANCH_ERROR_USAGE, "more than memory can hold");
    FAILS(anabranch_write(world, &number, &number, SIZE_MAX), ANABRANCH_ERROR_USAGE, "more than memory can hold");
    FAILS(anabranch_read(world, NULL, &number, 1), ANABRANCH_ERROR_USAGE, "host is NULL");
    FAILS(anabranch_group_create(world, ranks, 2, &group), ANABRANCH_ERROR_USAGE, "rank 5");
    FAILS(anabranch_group_create(world, NULL, 2, &group), ANABRANCH_ERROR_USAGE, "rank 0: ranks is NULL; 2 elements are needed");
    FAILS(anabranch_group_split(world, NULL, INT64_MAX, 0, &group), ANABRANCH_ERROR_USAGE, "color is 9223372036854775807");
    FAILS(anabranch_heap_allocate(world, NULL, 0, 0, NULL, &memory), ANABRANCH_ERROR_USAGE, "bytes is 0");
    FAILS(anabranch_heap_allocate(world, NULL, 1, 3, NULL, &memory), ANABRANCH_ERROR_USAGE, "3");
    FAILS(anabranch_heap_allocate(world, NULL, 1ULL << 40, 0, "huge", &memory), ANABRANCH_ERROR_CONFIG, "huge");

    OK(anabranch_comm_create(world, NULL, NULL, &comm));
    work = (anabranch_work *)&number;
    FAILS(anabranch_all_reduce(comm, NULL, &number, 1, ANABRANCH_F32, ANABRANCH_SUM, NULL, &work), ANABRANCH_ERROR_USAGE, "output is NULL; it has 1 elements of f32");
    EQUAL(work == NULL, 1);
    FAILS(anabranch_all_reduce(comm, &number, &number, 1, 99, ANABRANCH_SUM, NULL, &work), ANABRANCH_ERROR_USAGE, "data_type is 99; the codes are 1");
    FAILS(anabranch_all_reduce(comm, &number, &number, 1, ANABRANCH_F32, 77, NULL, &work), ANABRANCH_ERROR_USAGE, "op: 77");
    FAILS(anabranch_all_reduce(comm, &number, &number, 1, ANABRANCH_F32, 256, NULL, &work), ANABRANCH_ERROR_USAGE, "op is 256, which no anabranch_premul_sum");
    FAILS(anabranch_all_reduce(comm, &number, &number, 1, ANABRANCH_F32, ANABRANCH_BIT_OR, NULL, &work), ANABRANCH_ERROR_USAGE, "bor");
    FAILS(anabranch_all_reduce(comm, &number, &number, UINT64_MAX, ANABRANCH_F32, ANABRANCH_SUM, NULL, &work), ANABRANCH_ERROR_USAGE, "more than memory can hold");
    FAILS(anabranch_all_reduce(comm, (char *)&number + 1, &number, 1, ANABRANCH_F32, ANABRANCH_SUM, NULL, &work), ANABRANCH_ERROR_USAGE, "f32");
    FAILS(anabranch_broadcast(comm, &number, 1, ANABRANCH_F32, 4, NULL, &work), ANABRANCH_ERROR_USAGE, "4");
    FAILS(anabranch_barrier(comm, &number, NULL), ANABRANCH_ERROR_DEVICE, "rank 0: ");
    anabranch_message message = {.size = sizeof message, .tensor = &number, .count = 1, .data_type = ANABRANCH_F32, .is_receive = 2};
    FAILS(anabranch_batch(comm, &message, 1, NULL, NULL), ANABRANCH_ERROR_USAGE, "is_receive is 2");
    EQUAL(work == NULL, 1);
    EQUAL(number, 1);
    OK(anabranch_all_reduce(comm, &number, &number, 1, ANABRANCH_F32, ANABRANCH_AVG, NULL, &work));
    OK(anabranch_work_join(work, 10));
    FAILS(anabranch_work_join(work, 0.0 / 0.0), ANABRANCH_ERROR_USAGE, "no number of seconds");
    anabranch_work_destroy(work);
    anabranch_comm_destroy(comm);
    anabranch_comm_options options = {.size = sizeof options, .symmetric = 7};
    FAILS(anabranch_comm_create(world, NULL, &options, &comm), ANABRANCH_ERROR_USAGE, "symmetric is 7; allowed are 0 and 1");
}

static void plans(anabranch_world *world) {
    anabranch_ep *ep = NULL, *other = NULL;
    anabranch_ep_config config = {.size = sizeof config, .hidden = 7, .experts = 4, .top_k = 2, .max_tokens = 4};
    FAILS(anabranch_ep_create(world, NULL, &config, &ep), ANABRANCH_ERROR_CONFIG, "hidden");
    config.hidden = 16;
    config.mode = "wide";
    FAILS(anabranch_ep_create(world, NULL, &config, &ep), ANABRANCH_ERROR_CONFIG, "mode: ");
    config.mode = NULL;
    config.cast_from = ANABRANCH_F32;
    FAILS(anabranch_ep_create(world, NULL, &config, &ep), ANABRANCH_ERROR_CONFIG, "cast_from needs a dispatch_cast");
    // An older program, without all that follows the four numbers.
    config.size = offsetof(anabranch_ep_config, dispatch_type);
    OK(anabranch_ep_create(world, NULL, &config, &ep));
    OK(anabranch_ep_create(world, NULL, &config, &other));

    uint16_t *rows = aligned_alloc(16, 4 * 16 * 2), *output = aligned_alloc(16, 4 * 16 * 2);
    for (int i = 0; i < 64; i++) rows[i] = 0x3f80;
    const int32_t ids[8] = {0, 1, 2, 3, 0, 2, 1, -1};
    anabranch_tokens tokens = {.size = sizeof tokens, .count = 5, .rows = rows, .ids = ids};
    anabranch_dispatched *dispatched = NULL;
    FAILS(anabranch_dispatch(ep, &tokens, NULL, &dispatched), ANABRANCH_ERROR_USAGE, "max_tokens = 4");
    tokens.count = 4;
    tokens.ids = NULL;
    FAILS(anabranch_dispatch(ep, &tokens, NULL, &dispatched), ANABRANCH_ERROR_USAGE, "tokens.ids is NULL; it has 4 tokens");
    tokens.ids = ids;
    OK(anabranch_dispatch(ep, &tokens, NULL, &dispatched));
    anabranch_dispatched *kept = dispatched;
    FAILS(anabranch_combine(other, &dispatched, NULL, output, NULL, NULL), ANABRANCH_ERROR_USAGE, "dispatched is of another plan");
    FAILS(anabranch_combine(ep, &dispatched, NULL, (char *)output + 2, NULL, NULL), ANABRANCH_ERROR_USAGE, "multiple of 16");
    EQUAL(dispatched == kept, 1);
    OK(anabranch_release(ep, &dispatched, NULL));
    EQUAL(dispatched == NULL, 1);
    FAILS(anabranch_release(ep, &dispatched, NULL), ANABRANCH_ERROR_USAGE, "dispatched is NULL");
    OK(anabranch_synchronize(world, NULL, -1));
    uint32_t experts[4];
    size_t count = 0;
    FAILS(anabranch_ep_experts_on(ep, 1, experts, 4, &count), ANABRANCH_ERROR_USAGE, "group_rank is 1; the group has ranks 0 to 0");
    free(rows);
    free(output);
    anabranch_ep_destroy(ep);
    anabranch_ep_destroy(other);
}

int main(void) {
    EQUAL(strcmp(anabranch_last_error(), ""), 0);
    EQUAL(anabranch_version(), ANABRANCH_VERSION);
    configurations();
    anabranch_world *world = join();
    calls(world);
    plans(world);
    OK(anabranch_world_check(world));
    OK(anabranch_world_leave(world));
    anabranch_world_destroy(world);
    anabranch_world_destroy(NULL);
    EQUAL(anabranch_world_rank(NULL), UINT32_MAX);
    return 0;
}
