// Dispatch and combine in halves, rows grouped by expert, a saved routing, ids of 64 bits: two ranks, four experts, values by arithmetic.
#include "check.h"

enum { RANKS = 2, HIDDEN = 16, EXPERTS = 4, TOP_K = 2, TOKENS = 6 };

static anabranch_world *world;
static anabranch_ep *ep;
static unsigned rank;
static anabranch_ep_info info = {.size = sizeof info};

static float *rows, *output;
static int64_t ids[TOKENS * TOP_K];
static float weights[TOKENS * TOP_K];

static float value(unsigned token, unsigned i) { return (float)(1 + 100 * rank + 10 * token + i); }

// Expert e multiplies by e + 1, in place; returns the rows.
static unsigned run_experts(const anabranch_expert_windows *layout) {
    uint32_t own[EXPERTS];
    size_t count = 0;
    unsigned all = 0;
    OK(anabranch_ep_experts_on(ep, rank, own, EXPERTS, &count));
    EQUAL(count, EXPERTS / RANKS);
    EQUAL(layout->local_experts, count);
    for (unsigned e = 0; e < count; e++) {
        EQUAL(own[e], rank * 2 + e);
        EQUAL(layout->counts[e], layout->pairs[e]);
        EQUAL(layout->source_offsets[e * (RANKS + 1) + RANKS], layout->counts[e]);
        for (unsigned row = 0; row < layout->counts[e]; row++) {
            const anabranch_expert_row *source = &layout->sources[e * layout->capacity + row];
            EQUAL(source->weight, source->k + 1);
            float *values = (float *)layout->rows + (size_t)(e * layout->capacity + row) * HIDDEN;
            EQUAL(values[1], 2 + 100 * source->source_rank + 10 * source->source_token);
            for (unsigned i = 0; i < HIDDEN; i++) values[i] *= (float)(own[e] + 1);
        }
        all += layout->counts[e];
    }
    return all;
}

static void grouped(const anabranch_tokens *tokens, int by_window) {
    anabranch_dispatch_sent *sent = NULL;
    anabranch_dispatched *dispatched = NULL;
    anabranch_combine_sent *combined = NULL;
    anabranch_expert_major *major = NULL;
    anabranch_expert_windows layout = {.size = sizeof layout};
    OK(anabranch_expert_major_create(ep, 0, 1, &major));
    OK(anabranch_dispatch_send(ep, tokens, NULL, &sent));
    OK(anabranch_dispatch_recv(ep, &sent, NULL, &dispatched));
    EQUAL(sent == NULL, 1);
    OK(anabranch_expand(major, dispatched, NULL));
    OK(anabranch_synchronize(world, NULL, -1));
    OK(anabranch_expert_major_get_windows(major, &layout));
    unsigned pairs = run_experts(&layout);
    uint32_t all[RANKS];
    OK(anabranch_world_exchange(world, NULL, "pairs", &pairs, sizeof pairs, all));
    EQUAL(all[0] + all[1], RANKS * TOKENS * TOP_K);

    float *sums = by_window ? NULL : aligned_alloc(16, info.rows * HIDDEN * sizeof(float));
    OK(anabranch_contract(major, dispatched, layout.rows, sums, NULL));
    OK(anabranch_combine_send(ep, &dispatched, sums, NULL, &combined));
    EQUAL(dispatched == NULL, 1);
    OK(anabranch_combine_recv(ep, &combined, output, NULL, NULL));
    OK(anabranch_synchronize(world, NULL, -1));
    for (unsigned token = 0; token < TOKENS; token++) {
        const int64_t *own = &ids[token * TOP_K];
        EQUAL(output[token * HIDDEN + 3], value(token, 3) * (float)((own[0] + 1) + 2 * (own[1] + 1)));
    }
    free(sums);
    anabranch_expert_major_destroy(major);
}

static void replayed(const anabranch_tokens *tokens) {
    anabranch_dispatched *dispatched = NULL;
    anabranch_routing *routing = NULL;
    anabranch_windows windows = {.size = sizeof windows};
    OK(anabranch_dispatch(ep, tokens, NULL, &dispatched));
    OK(anabranch_routing_save(ep, dispatched, NULL, &routing));
    OK(anabranch_release(ep, &dispatched, NULL));

    anabranch_tokens other = *tokens;
    other.count = TOKENS - 1;
    FAILS(anabranch_dispatch_with(ep, routing, &other, NULL, &dispatched), ANABRANCH_ERROR_USAGE, "tokens.count is 5; the saved dispatch had 6 tokens");
    other.count = TOKENS;
    OK(anabranch_dispatch_with(ep, routing, &other, NULL, &dispatched));
    OK(anabranch_synchronize(world, NULL, -1));
    OK(anabranch_dispatched_get_windows(dispatched, &windows));
    EQUAL(windows.tokens, TOKENS);
    memcpy(windows.combine_rows, windows.rows, info.rows * info.row_bytes);
    OK(anabranch_combine(ep, &dispatched, NULL, output, NULL, NULL));
    OK(anabranch_synchronize(world, NULL, -1));
    for (unsigned token = 0; token < TOKENS; token++) {
        unsigned copies = ids[token * TOP_K] / 2 == ids[token * TOP_K + 1] / 2 ? 1 : 2;
        EQUAL(output[token * HIDDEN + 5], value(token, 5) * (float)copies);
    }
    anabranch_routing_destroy(routing);
}

int main(void) {
    OK(anabranch_join(NULL, NULL, &world));
    rank = anabranch_world_rank(world);
    anabranch_ep_config config = {.size = sizeof config, .hidden = HIDDEN, .experts = EXPERTS, .top_k = TOP_K, .max_tokens = TOKENS,
                                  .dispatch_type = ANABRANCH_F32, .combine_type = ANABRANCH_F32, .id_type = ANABRANCH_I64};
    OK(anabranch_ep_create(world, NULL, &config, &ep));
    OK(anabranch_ep_get_info(ep, &info));
    EQUAL(info.rank, rank);
    EQUAL(info.ranks, RANKS);
    EQUAL(info.row_bytes, HIDDEN * sizeof(float));

    rows = aligned_alloc(16, TOKENS * HIDDEN * sizeof(float));
    output = aligned_alloc(16, TOKENS * HIDDEN * sizeof(float));
    for (unsigned token = 0; token < TOKENS; token++) {
        for (unsigned i = 0; i < HIDDEN; i++) rows[token * HIDDEN + i] = value(token, i);
        for (unsigned k = 0; k < TOP_K; k++) {
            ids[token * TOP_K + k] = (int64_t)((token + k + rank) % EXPERTS);
            weights[token * TOP_K + k] = (float)(k + 1);
        }
    }
    anabranch_tokens tokens = {.size = sizeof tokens, .count = TOKENS, .rows = rows, .ids = ids, .weights = weights};
    grouped(&tokens, 1);
    grouped(&tokens, 0);
    replayed(&tokens);
    OK(anabranch_ep_check_ids(ep, NULL));
    ids[0] = EXPERTS;
    anabranch_dispatched *dispatched = NULL;
    OK(anabranch_dispatch(ep, &tokens, NULL, &dispatched));
    FAILS(anabranch_ep_check_ids(ep, NULL), ANABRANCH_ERROR_USAGE, "4");
    OK(anabranch_release(ep, &dispatched, NULL));
    uint32_t masked[RANKS];
    size_t count = 0;
    FAILS(anabranch_ep_masked(ep, NULL, masked, RANKS, &count), ANABRANCH_ERROR_USAGE, "");
    OK(anabranch_synchronize(world, NULL, -1));
    anabranch_ep_destroy(ep);
    OK(anabranch_world_leave(world));
    anabranch_world_destroy(world);
    free(rows);
    free(output);
    return 0;
}
