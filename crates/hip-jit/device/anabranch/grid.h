// Where a lane stands, and what it does together with the others of its wave and block. A kernel gets its `Grid`
// as a value; nothing here is global.
#pragma once

static constexpr u32 WAVE_SIZE = ANABRANCH_WAVE_SIZE;

// The first bytes of local memory belong to the prelude (block_broadcast); the launcher adds them.
static constexpr u32 LOCAL_RESERVED_BYTES = 64;

struct LaunchHeader {
    u32 grid_blocks;
    u32 block_threads;
    u32 local_bytes;
    u32 reserved;
};
static_assert(sizeof(LaunchHeader) == 16, "the launcher packs 16 bytes");

#if defined(ANABRANCH_TARGET_HOST)
#define ANABRANCH_SITE u32 site = __builtin_LINE()
#define ANABRANCH_PASS_SITE , site
#else
#define ANABRANCH_SITE
#define ANABRANCH_PASS_SITE
#endif

struct Grid {
    u32 block;
    u32 thread;
    u32 block_threads;
    u32 grid_blocks;
#if defined(ANABRANCH_TARGET_HOST)
    AnabranchHostLane* host;
#endif

    ANABRANCH_DEVICE u32 lane() const { return thread % WAVE_SIZE; }
    ANABRANCH_DEVICE u32 wave() const { return thread / WAVE_SIZE; }
    ANABRANCH_DEVICE u32 waves_per_block() const { return block_threads / WAVE_SIZE; }
    // Waves counted through the whole grid.
    ANABRANCH_DEVICE u32 grid_wave() const { return block * waves_per_block() + wave(); }
    ANABRANCH_DEVICE u32 grid_waves() const { return grid_blocks * waves_per_block(); }

    // Nanoseconds of a clock that only grows; comparable within one device only.
    ANABRANCH_DEVICE u64 clock_ns() const {
#if defined(ANABRANCH_TARGET_HOST)
        return host->calls->clock_ns(host);
#else
        return target::clock_ns();
#endif
    }

    // In a loop that polls, after failed look number `looks` (from 1): lets the agent that has to change the word run.
    ANABRANCH_DEVICE void relax([[maybe_unused]] u32 looks) const {
#if defined(ANABRANCH_TARGET_HOST)
        host->calls->yield(host, looks == 1 ? 2 : 1);
#endif
    }

    // Every thread of the block. Orders local memory, and global memory within the block only: it releases
    // nothing to peers (see publish.h).
#if defined(ANABRANCH_TARGET_HOST)
    ANABRANCH_DEVICE void block_barrier(ANABRANCH_SITE) const { host->calls->block_barrier(host, site); }
    ANABRANCH_DEVICE void wave_barrier(ANABRANCH_SITE) const {
#if defined(HOST_INSTRUMENTED)
        if (WAVE_SIZE > 1) reinterpret_cast<const AnabranchHostInstrumentedCalls*>(host->calls)->wave_barrier(host, site);
#else
        if (WAVE_SIZE > 1) host->calls->wave_exchange(host, 0, site);
#endif
    }
    ANABRANCH_DEVICE u64 ballot(bool predicate, ANABRANCH_SITE) const {
        if (WAVE_SIZE == 1) return predicate ? 1 : 0;
        const unsigned long long* values = host->calls->wave_exchange(host, predicate ? 1 : 0, site);
        u64 mask = 0;
        for (u32 i = 0; i < WAVE_SIZE; ++i) mask |= values[i] << i;
        return mask;
    }
    // The value of `lane`; every lane of the wave calls, each with a lane of its own choice.
    ANABRANCH_DEVICE u32 shuffle(u32 value, u32 lane, ANABRANCH_SITE) const {
        if (WAVE_SIZE == 1) return value;
        return static_cast<u32>(host->calls->wave_exchange(host, value, site)[lane]);
    }
#else
    ANABRANCH_DEVICE void block_barrier() const { target::block_barrier(); }
    ANABRANCH_DEVICE void wave_barrier() const { target::wave_barrier(); }
    ANABRANCH_DEVICE u64 ballot(bool predicate) const { return target::ballot(predicate); }
    ANABRANCH_DEVICE u32 shuffle(u32 value, u32 lane) const { return target::shuffle(value, lane); }
#endif

    // Lanes of the wave that call at once do `body` one behind the other, each in instructions of its own. What several lanes store to one
    // address in one instruction is otherwise one store: of memory nobody could tell, of a device's register the others are lost.
    template <class Body>
    ANABRANCH_DEVICE void one_by_one(Body body) const {
#if defined(ANABRANCH_TARGET_HOST)
        body();  // no two lanes of CPU threads share an instruction
#else
        target::one_by_one(thread, body);
#endif
    }

    ANABRANCH_DEVICE bool wave_any(bool predicate) const { return ballot(predicate) != 0; }
    ANABRANCH_DEVICE u32 wave_broadcast(u32 value, u32 lane) const { return shuffle(value, lane); }
    ANABRANCH_DEVICE u64 wave_broadcast64(u64 value, u32 lane) const {
        u64 low = shuffle(static_cast<u32>(value), lane);
        u64 high = shuffle(static_cast<u32>(value >> 32), lane);
        return low | (high << 32);
    }
    // The sum over the wave, in every lane.
    ANABRANCH_DEVICE u32 wave_sum(u32 value) const {
        for (u32 step = 1; step < WAVE_SIZE; step *= 2) value += shuffle(value, lane() ^ step);
        return value;
    }
    // Lanes before this one in the wave, as a mask for `ballot`.
    ANABRANCH_DEVICE u64 lanes_before() const { return (u64(1) << lane()) - 1; }

    // ---- local memory: offsets in bytes behind the prelude's own part ---------------------------------------
    template <class T>
    ANABRANCH_DEVICE T local_load(u32 byte) const {
        return local_load_at<T>(byte + LOCAL_RESERVED_BYTES);
    }
    template <class T>
    ANABRANCH_DEVICE void local_store(u32 byte, T value) const {
        local_store_at<T>(byte + LOCAL_RESERVED_BYTES, value);
    }
    ANABRANCH_DEVICE u32 local_fetch_add(u32 byte, u32 value) const {
#if defined(ANABRANCH_TARGET_HOST)
        u8* p = local_at(byte + LOCAL_RESERVED_BYTES, 4, ANABRANCH_LOCAL_ATOMIC);
        return __atomic_fetch_add(reinterpret_cast<u32*>(p), value, __ATOMIC_RELAXED);
#else
        return target::local_fetch_add(byte + LOCAL_RESERVED_BYTES, value);
#endif
    }

    // Thread 0's value, in every thread of the block. Every thread calls; it is also a block barrier.
    ANABRANCH_DEVICE u64 block_broadcast(u64 value) const {
        if (thread == 0) local_store_at<u64>(0, value);
        block_barrier();
        u64 result = local_load_at<u64>(0);
        block_barrier();
        return result;
    }

private:
#if defined(ANABRANCH_TARGET_HOST)
    // A seeded machine learns of each access, to find those that nothing orders. One outside local memory becomes one that it
    // refuses and reports.
    ANABRANCH_DEVICE u8* local_at([[maybe_unused]] u32 byte, [[maybe_unused]] u32 bytes, [[maybe_unused]] unsigned access) const {
#if defined(HOST_INSTRUMENTED)
        const AnabranchHostInstrumentedCalls* calls = reinterpret_cast<const AnabranchHostInstrumentedCalls*>(host->calls);
        if (u64(byte) + bytes > host->local_bytes) calls->load(host, reinterpret_cast<void*>(u64(byte)), 4, 0);
        calls->local(host, byte, bytes, access);
#endif
        return static_cast<u8*>(host->local_memory) + byte;
    }
#endif
    template <class T>
    ANABRANCH_DEVICE T local_load_at(u32 byte) const {
#if defined(ANABRANCH_TARGET_HOST)
        T value;
        __builtin_memcpy(&value, local_at(byte, sizeof(T), ANABRANCH_LOCAL_LOAD), sizeof(T));
        return value;
#else
        return target::local_load<T>(byte);
#endif
    }
    template <class T>
    ANABRANCH_DEVICE void local_store_at(u32 byte, T value) const {
#if defined(ANABRANCH_TARGET_HOST)
        __builtin_memcpy(local_at(byte, sizeof(T), ANABRANCH_LOCAL_STORE), &value, sizeof(T));
#else
        target::local_store<T>(byte, value);
#endif
    }
};

// A typed part of local memory. `LocalArray<u32> counts{grid, 0}` starts at byte 0 of the kernel's own part.
template <class T>
struct LocalArray {
    u32 byte;
    ANABRANCH_DEVICE T get(const Grid& grid, u32 index) const {
        return grid.local_load<T>(byte + index * static_cast<u32>(sizeof(T)));
    }
    ANABRANCH_DEVICE void set(const Grid& grid, u32 index, T value) const {
        grid.local_store<T>(byte + index * static_cast<u32>(sizeof(T)), value);
    }
    ANABRANCH_DEVICE u32 fetch_add(const Grid& grid, u32 index, u32 value) const {
        static_assert(sizeof(T) == 4, "local atomics are 32 bits wide");
        return grid.local_fetch_add(byte + index * 4, value);
    }
};

// ---- entry points -------------------------------------------------------------------------------------------
// ANABRANCH_KERNEL(name, Arguments, max_block_threads) { ... uses `grid` and `args` ... }
//
// A kernel that is compiled for one plan has constants: fields of its arguments whose values the compiler knows. Launches have the same
// values (`LoadedKernel::launch` checks it). A kernel without constants reads all fields.
#if defined(ANABRANCH_CONSTANTS)
#define ANABRANCH_KNOWN(ARGUMENTS, GIVEN) ANABRANCH_KNOWN_##ARGUMENTS(ARGUMENTS, GIVEN)
#else
#define ANABRANCH_KNOWN(ARGUMENTS, GIVEN) const ARGUMENTS& known = GIVEN;
#endif

#if defined(ANABRANCH_TARGET_HOST)
#define ANABRANCH_KERNEL(NAME, ARGUMENTS, MAX_THREADS)                                                           \
    struct NAME##_parameter {                                                                                    \
        LaunchHeader launch;                                                                                     \
        ARGUMENTS arguments;                                                                                     \
    };                                                                                                           \
    static void NAME##_body(const Grid& grid, const ARGUMENTS& args);                                            \
    extern "C" __attribute__((visibility("default"))) void NAME(AnabranchHostLane* lane, const void* pointer) {  \
        const NAME##_parameter* parameter = static_cast<const NAME##_parameter*>(pointer);                       \
        Grid grid = {lane->block, lane->thread, lane->block_threads, lane->grid_blocks, lane};                   \
        ANABRANCH_KNOWN(ARGUMENTS, parameter->arguments)                                                         \
        NAME##_body(grid, known);                                                                                \
    }                                                                                                            \
    extern "C" __attribute__((visibility("default"))) const AnabranchHostKernel NAME##_host_kernel;              \
    const AnabranchHostKernel NAME##_host_kernel = {ANABRANCH_HOST_KERNEL_ABI, WAVE_SIZE,                        \
                                                    sizeof(NAME##_parameter), MAX_THREADS, NAME};                \
    static void NAME##_body(const Grid& grid, const ARGUMENTS& args)
#elif defined(ANABRANCH_TARGET_NVIDIA)
#define ANABRANCH_KERNEL(NAME, ARGUMENTS, MAX_THREADS)                                                           \
    struct NAME##_parameter {                                                                                    \
        LaunchHeader launch;                                                                                     \
        ARGUMENTS arguments;                                                                                     \
    };                                                                                                           \
    static ANABRANCH_DEVICE void NAME##_body(const Grid& grid, const ARGUMENTS& args);                           \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS)                                                    \
        NAME(const __grid_constant__ NAME##_parameter parameter) {                                               \
        Grid grid = {target::block_index(), target::thread_index(), parameter.launch.block_threads,              \
                     parameter.launch.grid_blocks};                                                              \
        ANABRANCH_KNOWN(ARGUMENTS, parameter.arguments)                                                          \
        NAME##_body(grid, known);                                                                                \
    }                                                                                                            \
    static ANABRANCH_DEVICE void NAME##_body(const Grid& grid, const ARGUMENTS& args)
#else
#define ANABRANCH_KERNEL(NAME, ARGUMENTS, MAX_THREADS)                                                           \
    struct NAME##_parameter {                                                                                    \
        LaunchHeader launch;                                                                                     \
        ARGUMENTS arguments;                                                                                     \
    };                                                                                                           \
    static ANABRANCH_DEVICE void NAME##_body(const Grid& grid, const ARGUMENTS& args);                           \
    extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(1, MAX_THREADS)))              \
    __attribute__((visibility("protected"))) void NAME(const NAME##_parameter parameter) {                       \
        Grid grid = {target::block_index(), target::thread_index(), parameter.launch.block_threads,              \
                     parameter.launch.grid_blocks};                                                              \
        ANABRANCH_KNOWN(ARGUMENTS, parameter.arguments)                                                          \
        NAME##_body(grid, known);                                                                                \
    }                                                                                                            \
    static ANABRANCH_DEVICE void NAME##_body(const Grid& grid, const ARGUMENTS& args)
#endif
