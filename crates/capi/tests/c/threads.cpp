// Threads of a rank: a communicator each, one that they share, and errors that stay with their thread.
#include "check.h"

#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int THREADS = 3, CALLS = 40;

void reduce(anabranch_world *world, anabranch_comm *comm, int thread) {
    void *stream = nullptr;
    OK(anabranch_stream_create(world, &stream));
    for (int call = 0; call < CALLS; call++) {
        int32_t number = thread + call;
        OK(anabranch_all_reduce(comm, &number, &number, 1, ANABRANCH_I32, ANABRANCH_SUM, stream, nullptr));
        OK(anabranch_synchronize(world, stream, -1));
        EQUAL(number, 2 * (thread + call));
        const anabranch_data_type wrong = static_cast<anabranch_data_type>(1000 + thread);
        FAILS(anabranch_broadcast(comm, &number, 1, wrong, 0, stream, nullptr), ANABRANCH_ERROR_USAGE,
              std::to_string(1000 + thread).c_str());
    }
    OK(anabranch_stream_destroy(world, stream));
}

} // namespace

int main() {
    anabranch_world *world = nullptr;
    OK(anabranch_join(nullptr, nullptr, &world));
    std::vector<anabranch_comm *> comms(THREADS);
    for (anabranch_comm *&comm : comms) OK(anabranch_comm_create(world, nullptr, nullptr, &comm));
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; thread++) threads.emplace_back(reduce, world, comms[thread], thread);
    for (std::thread &thread : threads) thread.join();

    // One communicator for all of them: the sum over threads does not depend on which call of a rank meets which.
    std::vector<int64_t> numbers(THREADS);
    int64_t all = 0;
    threads.clear();
    for (int thread = 0; thread < THREADS; thread++)
        threads.emplace_back([&, thread] {
            numbers[thread] = 1 << thread;
            OK(anabranch_all_reduce(comms[0], &numbers[thread], &numbers[thread], 1, ANABRANCH_I64, ANABRANCH_SUM, nullptr, nullptr));
            OK(anabranch_synchronize(world, nullptr, -1));
        });
    for (std::thread &thread : threads) thread.join();
    for (int64_t number : numbers) all += number;
    EQUAL(all, 2 * 7);
    for (anabranch_comm *comm : comms) anabranch_comm_destroy(comm);
    OK(anabranch_world_leave(world));
    anabranch_world_destroy(world);
    return 0;
}
