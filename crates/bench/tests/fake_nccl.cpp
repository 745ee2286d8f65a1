// NCCL's C interface over the memory of one process, for tests of who calls it: ranks are threads, "device" memory is theirs, and
// streams are not looked at. What ncclMemAlloc gives is offered to it before (fakeNcclOffer), as the machine has to know it. Reductions are sums of float. Every call checks what it is given as far as it can.
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace {
struct Id { char internal[128]; };
enum { SUCCESS = 0, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, FLOAT32 = 7, UINT8 = 1, SUM = 0 };

struct Clique {
    std::mutex lock;
    std::condition_variable came;
    int ranks = 0, waiting = 0, left = 0;
    unsigned long round = 0;
    std::vector<const char *> sent;
    std::vector<size_t> sizes;

    void meet() {
        std::unique_lock<std::mutex> held(lock);
        unsigned long mine = round;
        if (++waiting == ranks) {
            waiting = 0;
            ++round;
            came.notify_all();
        } else {
            came.wait(held, [&] { return round != mine; });
        }
    }
};

struct Communicator { Clique *clique; int rank; };
struct Message { bool sends; const char *from; char *to; size_t bytes; int peer; Communicator *communicator; };

std::mutex cliques_lock;
std::map<int, Clique *> cliques;
int next_clique = 1;
thread_local std::vector<Message> messages;
thread_local bool in_group = false;
thread_local const char *last_error = "";
thread_local void *offered = nullptr;
thread_local size_t offered_bytes = 0;

size_t bytes_of(int type) { return type == FLOAT32 ? 4 : type == UINT8 ? 1 : 0; }

int fail(const char *why) {
    last_error = why;
    return INVALID_ARGUMENT;
}

// Gives everybody's input to everybody while `work` runs.
template <class Work> int together(void *handle, const void *input, size_t bytes, Work work) {
    auto *communicator = static_cast<Communicator *>(handle);
    Clique &clique = *communicator->clique;
    clique.sent[communicator->rank] = static_cast<const char *>(input);
    clique.sizes[communicator->rank] = bytes;
    clique.meet();
    bool equal = true;
    for (size_t other : clique.sizes) equal = equal && other == bytes;
    std::vector<char> result;
    if (equal) result = work(clique, communicator->rank);
    clique.meet();
    return equal ? SUCCESS : fail("counts differ");
}

std::vector<char> sum(const Clique &clique, size_t first, size_t count) {
    std::vector<char> bytes(count * 4);
    for (size_t i = 0; i < count; ++i) {
        float total = 0;
        for (const char *from : clique.sent) {
            float one;
            std::memcpy(&one, from + (first + i) * 4, 4);
            total += one;
        }
        std::memcpy(&bytes[i * 4], &total, 4);
    }
    return bytes;
}
}  // namespace

extern "C" {
int ncclGetVersion(int *version) { *version = 22703; return SUCCESS; }
const char *ncclGetErrorString(int code) { return code == INVALID_ARGUMENT ? "invalid argument" : "other"; }
const char *ncclGetLastError(void *) { return last_error; }

int ncclGetUniqueId(Id *id) {
    std::lock_guard<std::mutex> held(cliques_lock);
    std::memset(id, 0x5a, sizeof *id);
    std::memcpy(id, &next_clique, sizeof next_clique);
    cliques[next_clique++] = new Clique;
    return SUCCESS;
}

int ncclCommInitRank(void **out, int ranks, Id id, int rank) {
    for (size_t i = sizeof(int); i < sizeof id; ++i)
        if (id.internal[i] != 0x5a) return fail("the id was not passed whole");
    if (rank < 0 || rank >= ranks) return fail("the rank is not below the number of ranks");
    int number;
    std::memcpy(&number, &id, sizeof number);
    Clique *clique;
    {
        std::lock_guard<std::mutex> held(cliques_lock);
        if (!cliques.count(number)) return fail("no such id");
        clique = cliques[number];
        clique->ranks = ranks;
        clique->sent.resize(ranks);
        clique->sizes.resize(ranks);
    }
    clique->meet();
    *out = new Communicator{clique, rank};
    return SUCCESS;
}

int ncclCommDestroy(void *handle) {
    auto *communicator = static_cast<Communicator *>(handle);
    communicator->clique->meet();
    delete communicator;
    return SUCCESS;
}

int ncclCommAbort(void *) { return SUCCESS; }

int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, void *handle, void *) {
    if (type != FLOAT32 || op != SUM) return fail("not a sum of float");
    return together(handle, in, count * 4, [&](Clique &clique, int) {
        auto result = sum(clique, 0, count);
        clique.meet();
        std::memcpy(out, result.data(), result.size());
        return result;
    });
}

int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op, void *handle, void *) {
    if (type != FLOAT32 || op != SUM) return fail("not a sum of float");
    return together(handle, in, count * 4, [&](Clique &clique, int rank) {
        auto result = sum(clique, rank * count, count);
        clique.meet();
        std::memcpy(out, result.data(), result.size());
        return result;
    });
}

int ncclReduce(const void *in, void *out, size_t count, int type, int op, int root, void *handle, void *) {
    if (type != FLOAT32 || op != SUM) return fail("not a sum of float");
    return together(handle, in, count * 4, [&](Clique &clique, int rank) {
        auto result = sum(clique, 0, count);
        clique.meet();
        if (rank == root) std::memcpy(out, result.data(), result.size());
        return result;
    });
}

int ncclAllGather(const void *in, void *out, size_t count, int type, void *handle, void *) {
    size_t bytes = count * bytes_of(type);
    return together(handle, in, bytes, [&](Clique &clique, int) {
        for (size_t rank = 0; rank < clique.sent.size(); ++rank)
            std::memmove(static_cast<char *>(out) + rank * bytes, clique.sent[rank], bytes);
        return std::vector<char>();
    });
}

int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, void *handle, void *) {
    size_t bytes = count * bytes_of(type);
    return together(handle, in, bytes, [&](Clique &clique, int) {
        std::memmove(out, clique.sent[root], bytes);
        return std::vector<char>();
    });
}

int ncclGroupStart() {
    in_group = true;
    return SUCCESS;
}

int ncclSend(const void *from, size_t count, int type, int peer, void *handle, void *) {
    if (!in_group) return fail("a message outside a group");
    messages.push_back({true, static_cast<const char *>(from), nullptr, count * bytes_of(type), peer,
                        static_cast<Communicator *>(handle)});
    return SUCCESS;
}

int ncclRecv(void *to, size_t count, int type, int peer, void *handle, void *) {
    if (!in_group) return fail("a message outside a group");
    messages.push_back({false, nullptr, static_cast<char *>(to), count * bytes_of(type), peer,
                        static_cast<Communicator *>(handle)});
    return SUCCESS;
}

// All members end their groups together: each shows where its message for each peer lies, then everybody takes its own.
int ncclGroupEnd() {
    in_group = false;
    std::vector<Message> mine;
    mine.swap(messages);
    if (mine.empty()) return INVALID_USAGE;
    Communicator *communicator = mine.front().communicator;
    Clique &clique = *communicator->clique;
    std::vector<Message> out(clique.ranks, Message{true, nullptr, nullptr, 0, 0, nullptr});
    for (const Message &message : mine)
        if (message.sends) out[message.peer] = message;
    clique.sent[communicator->rank] = reinterpret_cast<const char *>(out.data());
    clique.meet();
    int result = SUCCESS;
    for (const Message &message : mine) {
        if (message.sends) continue;
        const Message &other = reinterpret_cast<const Message *>(clique.sent[message.peer])[communicator->rank];
        if (!other.from || other.bytes != message.bytes) result = fail("nobody sends what is received");
        else std::memcpy(message.to, other.from, message.bytes);
    }
    clique.meet();
    return result;
}

void fakeNcclOffer(void *memory, size_t bytes) {
    offered = memory;
    offered_bytes = bytes;
}

int ncclMemAlloc(void **out, size_t bytes) {
    if (!offered || bytes > offered_bytes) return fail("no memory was offered");
    *out = offered;
    return SUCCESS;
}

int ncclMemFree(void *memory) {
    if (!memory || memory != offered) return fail("not what was allocated");
    offered = nullptr;
    return SUCCESS;
}

int ncclCommWindowRegister(void *handle, void *, size_t bytes, void **window, int flags) {
    if (flags != 1) return fail("not a symmetric window");
    *window = handle;
    return together(handle, nullptr, bytes, [](Clique &, int) { return std::vector<char>(); });
}

int ncclCommWindowDeregister(void *handle, void *window) { return window == handle ? SUCCESS : fail("no such window"); }
}
