// A mixture-of-experts layer: every rank routes tokens to the experts of all ranks. Two ranks on the `host` runtime, without a GPU:
//
//   c++ -std=c++17 expert_parallel.cpp $(pkg-config --cflags --libs anabranch) -o expert_parallel
//   anabranch run -n 2 -- ./expert_parallel
//
// The experts run on the host here; in a program for GPUs they are kernels on the stream, between dispatch and combine.
#include <anabranch.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr uint32_t HIDDEN = 256, EXPERTS = 8, TOP_K = 2, TOKENS = 64;

void check(anabranch_status status) {
    if (status != ANABRANCH_OK) throw std::runtime_error(anabranch_last_error());
}

// Handles that destroy themselves.
template <auto Destroy> struct Deleter {
    template <class T> void operator()(T *handle) const { Destroy(handle); }
};
using World = std::unique_ptr<anabranch_world, Deleter<anabranch_world_destroy>>;
using Experts = std::unique_ptr<anabranch_ep, Deleter<anabranch_ep_destroy>>;
using Memory = std::unique_ptr<anabranch_memory, Deleter<anabranch_heap_free>>;

// A copy of device memory.
template <class T> std::vector<T> read(const World &world, const void *device, size_t count) {
    std::vector<T> values(count);
    check(anabranch_read(world.get(), values.data(), device, count * sizeof(T)));
    return values;
}

// A copy in device memory.
template <class T> Memory write(const World &world, const std::vector<T> &values, const char *tag) {
    anabranch_memory *memory = nullptr;
    check(anabranch_heap_allocate(world.get(), nullptr, values.size() * sizeof(T), 0, tag, &memory));
    Memory owned(memory);
    check(anabranch_write(world.get(), anabranch_memory_address(memory), values.data(), values.size() * sizeof(T)));
    return owned;
}

template <class T> T *address(const Memory &memory) { return static_cast<T *>(anabranch_memory_address(memory.get())); }

// Expert e multiplies by e + 1; each row gets the weighted sum of its experts of this rank.
void run_experts(const World &world, const Experts &ep, anabranch_dispatched *dispatched) {
    anabranch_ep_info info{};
    info.size = sizeof info;
    check(anabranch_ep_get_info(ep.get(), &info));
    std::vector<uint32_t> own(info.local_experts);
    size_t number = 0;
    check(anabranch_ep_experts_on(ep.get(), info.rank, own.data(), own.size(), &number));
    anabranch_windows windows{};
    windows.size = sizeof windows;
    check(anabranch_dispatched_get_windows(dispatched, &windows));

    auto rows = read<float>(world, windows.rows, info.rows * HIDDEN);
    const auto meta = read<unsigned char>(world, windows.meta, info.rows * info.meta_bytes);
    const auto counts = read<uint32_t>(world, windows.counts, info.ranks);
    const auto offsets = read<uint32_t>(world, windows.offsets, info.ranks);
    for (uint32_t source = 0; source < info.ranks; source++) {
        const size_t first = info.row_stride != 0 ? size_t{info.row_stride} * source : offsets[source];
        for (size_t row = first; row < first + counts[source]; row++) {
            const unsigned char *record = &meta[row * info.meta_bytes];
            int32_t ids[TOP_K];
            float weights[TOP_K];
            std::memcpy(ids, record + 8, sizeof ids);
            std::memcpy(weights, record + 8 + sizeof ids, sizeof weights);
            float factor = 0;
            for (uint32_t k = 0; k < TOP_K; k++)
                for (uint32_t expert : own)
                    if (ids[k] == static_cast<int32_t>(expert)) factor += static_cast<float>(expert + 1) * weights[k];
            for (uint32_t i = 0; i < HIDDEN; i++) rows[row * HIDDEN + i] *= factor;
        }
    }
    check(anabranch_write(world.get(), windows.combine_rows, rows.data(), rows.size() * sizeof(float)));
}

void layer(const World &world, const Experts &ep) {
    const uint32_t rank = anabranch_world_rank(world.get());
    std::mt19937 random(rank);
    std::vector<float> tokens(size_t{TOKENS} * HIDDEN), weights(TOKENS * TOP_K, 1.0F / TOP_K);
    std::vector<int32_t> ids(TOKENS * TOP_K);
    for (float &value : tokens) value = static_cast<float>(random() % 1000) / 1000;
    for (uint32_t token = 0; token < TOKENS; token++) {
        ids[token * TOP_K] = static_cast<int32_t>(random() % EXPERTS);
        ids[token * TOP_K + 1] = (ids[token * TOP_K] + 1 + static_cast<int32_t>(random() % (EXPERTS - 1))) % int32_t{EXPERTS};
    }
    const Memory device_tokens = write(world, tokens, "tokens"), device_ids = write(world, ids, "ids");
    const Memory device_weights = write(world, weights, "weights"), output = write(world, tokens, "output");

    // Each token goes once to every rank that owns one of its experts.
    anabranch_tokens given{};
    given.size = sizeof given;
    given.count = TOKENS;
    given.rows = address<float>(device_tokens);
    given.ids = address<int32_t>(device_ids);
    given.weights = address<float>(device_weights);
    anabranch_dispatched *dispatched = nullptr;
    check(anabranch_dispatch(ep.get(), &given, nullptr, &dispatched));
    check(anabranch_synchronize(world.get(), nullptr, -1));
    run_experts(world, ep, dispatched);

    // The outputs of each token come back as one sum.
    check(anabranch_combine(ep.get(), &dispatched, nullptr, address<float>(output), nullptr, nullptr));
    check(anabranch_synchronize(world.get(), nullptr, -1));
    const auto result = read<float>(world, address<float>(output), tokens.size());
    float error = 0;
    for (uint32_t token = 0; token < TOKENS; token++) {
        const float factor = static_cast<float>(ids[token * TOP_K] + ids[token * TOP_K + 1] + 2) / TOP_K;
        for (size_t i = size_t{token} * HIDDEN; i < (size_t{token} + 1) * HIDDEN; i++)
            error = std::fmax(error, std::fabs(result[i] - tokens[i] * factor));
    }
    std::printf("rank %u: %u tokens, largest error %g\n", rank, TOKENS, static_cast<double>(error));
    if (!(error < 1e-5F)) throw std::runtime_error("the sums are wrong");
}

} // namespace

int main() {
    try {
        anabranch_world *joined = nullptr;
        check(anabranch_join(nullptr, nullptr, &joined)); // collective; the launcher says who this rank is
        const World world(joined);
        anabranch_ep_config config{};
        config.size = sizeof config;
        config.hidden = HIDDEN;
        config.experts = EXPERTS;
        config.top_k = TOP_K;
        config.max_tokens = TOKENS;
        config.dispatch_type = config.combine_type = ANABRANCH_F32;
        {
            anabranch_ep *made = nullptr;
            check(anabranch_ep_create(world.get(), nullptr, &config, &made)); // collective
            layer(world, Experts(made));
        }
        check(anabranch_world_leave(world.get())); // collective
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
