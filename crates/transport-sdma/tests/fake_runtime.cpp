// A runtime in memory with the functions of AMD's that queues on copy engines need. Its structures are declared here a second time,
// after hsa.h, hsa_ext_amd.h and hsakmttypes.h, so that a C++ compiler lays them out. It counts what it gave, and fails where told.
//
// HSA: what every version has. RUNTIME_QUEUES: queues by descriptor. THUNK: the thunk's functions.

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr uint64_t RING = 1 << 12;  // alignment of what it gives

struct Queue {  // hsa_queue_t
    uint32_t type;
    uint32_t features;
    void *base_address;
    struct { uint64_t handle; } doorbell_signal;
    uint32_t size;
    uint32_t reserved1;
    uint64_t id;
};

struct Descriptor {  // hsa_amd_queue_create_desc_t
    uint16_t version;
    uint16_t flags;
    uint8_t engine_type;
    uint8_t reserved_header[3];
    uint32_t queue_size_bytes;
    enum Priority { LOW = 0, NORMAL = 1, HIGH = 2 } priority;
    void (*callback)(int, Queue *, void *);
    void *callback_data;
    Queue *queue;
    union {
        struct { const uint32_t *cu_mask; uint32_t rest[6]; } compute;
        struct { uint32_t sdma_engine_id; uint32_t reserved[7]; } sdma;
        uint8_t reserved[32];
    } engine;
    uint32_t traffic_class;
    uint8_t reserved[20];
};

struct PointerInfo {  // hsa_amd_pointer_info_t
    uint32_t size;
    enum Type { UNKNOWN = 0, LAST = 6 } type;
    void *agentBaseAddress;
    void *hostBaseAddress;
    size_t sizeInBytes;
    void *userData;
    struct { uint64_t handle; } agentOwner;
    uint32_t global_flags;
    bool registered;
    uint32_t alloc_flags;
};

#pragma pack(push, 4)
union MemFlags {  // HsaMemFlags
    struct {
        unsigned NonPaged : 1, CachePolicy : 2, ReadOnly : 1, PageSize : 2, HostAccess : 1, NoSubstitute : 1, GDSMemory : 1,
            Scratch : 1, AtomicAccessFull : 1, AtomicAccessPartial : 1, ExecuteAccess : 1, CoarseGrain : 1, AQLQueueMemory : 1,
            FixedAddress : 1, NoNUMABind : 1, Uncached : 1, Rest : 14;
    } bits;
    uint32_t value;
};

struct QueueResource {  // HsaQueueResource
    uint64_t QueueId;
    uint64_t *DoorBell;
    uint64_t *WritePointer;
    uint64_t *ReadPointer;
    volatile int64_t *ErrorReason;
};

struct ThunkPointerInfo {  // HsaPointerInfo
    enum Type { UNKNOWN = 0, ALLOCATED = 1 } type;
    uint32_t Node;
    MemFlags flags;
    void *CPUAddress;
    uint64_t GPUAddress;
    uint64_t SizeInBytes;
    uint32_t NRegisteredNodes;
    uint32_t NMappedNodes;
    const uint32_t *RegisteredNodes;
    const uint32_t *MappedNodes;
    void *UserData;
};
#pragma pack(pop)

enum QueuePriority { PRIORITY_MINIMUM = -3, PRIORITY_MAXIMUM = 3, PRIORITY_SIZE = 0xFFFFFFFF };  // HSA_QUEUE_PRIORITY

static_assert(sizeof(Descriptor) == 96, "the size that hsa_ext_amd.h gives its version 1");
static_assert(sizeof(QueuePriority) == 8, "an argument of 64 bits");
static_assert(sizeof(QueueResource) == 40 && sizeof(ThunkPointerInfo) == 68, "packed to 4 bytes");

// What is told and asked by name.
int users, opened, memory, mapped, queues, complaints;
int interface_minor = 31, kfd_minor = 17, slots = 8, host_only, wrong_engine, second_thunk, twins;
char failing[64];
int failing_code;

bool fails(const char *name) { return std::strcmp(name, failing) == 0; }

void expect(bool right) { complaints += !right; }

alignas(4096) unsigned char page[4096];  // pointers and doorbell of every queue
alignas(4096) unsigned char rings[16][1 << 16];
bool taken[16];

struct Made {
    Queue queue;
    uint32_t engine;
    bool there;
} made[16];

int ring_of(const void *address) {
    for (int i = 0; i < 16; ++i)
        if (address == rings[i]) return i;
    return -1;
}

}  // namespace

extern "C" {

int *fakeNumber(const char *name) {
    struct { const char *name; int *place; } const numbers[] = {
        {"users", &users}, {"opened", &opened}, {"memory", &memory}, {"mapped", &mapped}, {"queues", &queues},
        {"complaints", &complaints}, {"interface", &interface_minor}, {"kfd", &kfd_minor}, {"slots", &slots},
        {"host_only", &host_only}, {"wrong_engine", &wrong_engine}, {"second_thunk", &second_thunk}, {"twins", &twins},
    };
    for (auto &number : numbers)
        if (std::strcmp(number.name, name) == 0) return number.place;
    return nullptr;
}

void fakeFail(const char *name, int code) {
    std::strncpy(failing, name, sizeof failing - 1);
    failing_code = code;
}

#define FAIL_IF_TOLD if (fails(__func__)) return failing_code

#ifdef HSA
struct Agent { uint64_t handle; };

int hsa_init() { FAIL_IF_TOLD; ++users; return 0; }
int hsa_shut_down() { --users; return 0; }

int hsa_system_get_info(unsigned attribute, void *value) {
    FAIL_IF_TOLD;
    expect(attribute == 0x207 || attribute == 0x208);
    *static_cast<uint16_t *>(value) = attribute == 0x207 ? 1 : uint16_t(interface_minor);
    return 0;
}

int hsa_iterate_agents(int (*callback)(Agent, void *), void *data) {
    FAIL_IF_TOLD;
    for (uint64_t handle = 0x10; handle < 0x13; ++handle)
        if (int code = callback(Agent{handle}, data)) return code;
    return 0;
}

// 0x10 is the host; 0x11 and 0x12 are GPUs that differ in their domain only, and as twins in nothing.
int hsa_agent_get_info(Agent agent, unsigned attribute, void *value) {
    FAIL_IF_TOLD;
    uint32_t gpu = uint32_t(agent.handle - 0x10), out;
    switch (attribute) {
        case 17: out = gpu ? 1 : 0; break;
        case 0xa004: out = gpu; break;
        case 0xa006: out = 0x0c00; break;
        case 0xa00f: out = twins ? 0 : gpu - 1; break;
        default: return 0x1001;
    }
    *static_cast<uint32_t *>(value) = out;
    return 0;
}

int hsa_amd_pointer_info(const void *pointer, PointerInfo *info, void *(*alloc)(size_t), uint32_t *count, Agent **list) {
    FAIL_IF_TOLD;
    expect(info->size >= 40 && info->size <= sizeof(PointerInfo) && !alloc && !count && !list);
    PointerInfo known{};
    known.size = info->size;
    expect(pointer >= page && pointer < page + sizeof page);
    if (!host_only) {
        known.agentBaseAddress = known.hostBaseAddress = page;
        known.sizeInBytes = sizeof page;
    }
    std::memcpy(info, &known, info->size);
    return 0;
}
#endif

#ifdef RUNTIME_QUEUES
int hsa_amd_queue_create(Agent agent, Descriptor *descriptors, uint32_t count) {
    FAIL_IF_TOLD;
    Descriptor &d = *descriptors;
    Descriptor plain{};
    plain.version = 1;
    plain.engine_type = 1;
    plain.queue_size_bytes = d.queue_size_bytes;
    plain.priority = Descriptor::NORMAL;
    plain.engine.sdma.sdma_engine_id = d.engine.sdma.sdma_engine_id;
    expect(count == 1 && agent.handle == 0x11 && std::memcmp(&d, &plain, sizeof d) == 0);
    uint32_t on_engine = 0;
    for (auto &other : made) on_engine += other.there && other.engine == d.engine.sdma.sdma_engine_id;
    if (on_engine >= uint32_t(slots)) return 0x1008;
    for (int i = 0; i < 16; ++i) {
        if (made[i].there) continue;
        made[i] = {{}, d.engine.sdma.sdma_engine_id, true};
        made[i].queue.base_address = rings[i];
        made[i].queue.size = d.queue_size_bytes;
        d.queue = &made[i].queue;
        ++queues;
        return 0;
    }
    return 0x1008;
}

int hsa_amd_queue_get_info(Queue *queue, unsigned attribute, void *value) {
    FAIL_IF_TOLD;
    auto *self = reinterpret_cast<Made *>(queue);
    expect(self->there);
    uint64_t at = uint64_t(page) + uint64_t(self - made) * 64;
    switch (attribute) {
        case 1: *static_cast<uint64_t *>(value) = at; return 0;
        case 14: *static_cast<uint32_t *>(value) = self->engine + uint32_t(wrong_engine); return 0;
        case 15: *static_cast<uint64_t *>(value) = at + 8; return 0;
        case 16: *static_cast<uint64_t *>(value) = at + 16; return 0;
    }
    return 0x1001;
}

int hsa_queue_destroy(Queue *queue) {
    FAIL_IF_TOLD;
    auto *self = reinterpret_cast<Made *>(queue);
    expect(self->there);
    self->there = false;
    --queues;
    return 0;
}
#endif

#ifdef THUNK
// The runtime has opened its thunk, and keeps it open.
int hsaKmtOpenKFD() { FAIL_IF_TOLD; return opened++ || !second_thunk ? 22 : 0; }
int hsaKmtCloseKFD() { --opened; return 0; }

int hsaKmtGetVersion(uint32_t *version) {
    FAIL_IF_TOLD;
    version[0] = 1;
    version[1] = uint32_t(kfd_minor);
    return 0;
}

int hsaKmtAllocMemory(uint32_t node, uint64_t bytes, MemFlags flags, void **address) {
    FAIL_IF_TOLD;
    MemFlags wanted{};
    wanted.bits.NonPaged = wanted.bits.HostAccess = wanted.bits.ExecuteAccess = 1;
    wanted.bits.NoNUMABind = wanted.bits.Uncached = 1;
    expect(node == 1 && flags.value == wanted.value && !*address && bytes % RING == 0);
    for (int i = 0; i < 16; ++i) {
        if (taken[i]) continue;
        taken[i] = true;
        ++memory;
        *address = rings[i];
        return 0;
    }
    return 6;
}

int hsaKmtFreeMemory(void *address, uint64_t bytes) {
    FAIL_IF_TOLD;
    int ring = ring_of(address);
    expect(ring >= 0 && taken[ring] && bytes % RING == 0);
    taken[ring] = false;
    --memory;
    return 0;
}

int hsaKmtMapMemoryToGPU(void *address, uint64_t, uint64_t *alternate) {
    FAIL_IF_TOLD;
    *alternate = 0;
    expect(ring_of(address) >= 0);
    ++mapped;
    return 0;
}

int hsaKmtUnmapMemoryToGPU(void *address) {
    FAIL_IF_TOLD;
    expect(ring_of(address) >= 0);
    --mapped;
    return 0;
}

int hsaKmtQueryPointerInfo(const void *pointer, ThunkPointerInfo *info) {
    FAIL_IF_TOLD;
    if (host_only || pointer < page || pointer >= page + sizeof page) return 1;
    *info = {ThunkPointerInfo::ALLOCATED, 1, {}, page, uint64_t(page), sizeof page, 0, 1, nullptr, nullptr, nullptr};
    return 0;
}

int hsaKmtCreateQueueExt(uint32_t node, uint32_t type, uint32_t percentage, QueuePriority priority, uint32_t engine, void *ring,
                         uint64_t, void *event, QueueResource *resource) {
    FAIL_IF_TOLD;
    expect(node == 1 && type == 6 && percentage == 100 && priority == PRIORITY_MAXIMUM && !event && !resource->ErrorReason);
    int index = ring_of(ring);
    uint32_t on_engine = 0;
    for (auto &other : made) on_engine += other.there && other.engine == engine;
    if (on_engine >= uint32_t(slots)) return 6;
    made[index] = {{}, engine, true};
    ++queues;
    auto *at = reinterpret_cast<uint64_t *>(page + 64 * index);
    *resource = {uint64_t(&made[index]), at, at + 2, at + 1, nullptr};
    return 0;
}

int hsaKmtDestroyQueue(uint64_t id) {
    FAIL_IF_TOLD;
    auto *self = reinterpret_cast<Made *>(id);
    expect(self->there);
    self->there = false;
    --queues;
    return 0;
}
#endif

}  // extern "C"
