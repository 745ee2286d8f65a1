// Access to global memory. Memory that a peer may read or write, one's own heap included, is touched only through
// the `heap_`, `remote_` and `flag_` functions; memory of this rank alone through the `private_` and `stream_` ones.
// The grid comes first in every call: an instrumented host build finds its scheduler through it.
#pragma once

template <u32 BYTES>
struct Width;
template <>
struct Width<1> {
    typedef u8 Raw;
    static ANABRANCH_DEVICE u8 load(const void* p) { return target::load1(p); }
    static ANABRANCH_DEVICE void store(void* p, u8 v) { target::store1(p, v); }
};
template <>
struct Width<2> {
    typedef u16 Raw;
    static ANABRANCH_DEVICE u16 load(const void* p) { return target::load2(p); }
    static ANABRANCH_DEVICE void store(void* p, u16 v) { target::store2(p, v); }
};
template <>
struct Width<4> {
    typedef u32 Raw;
    static ANABRANCH_DEVICE u32 load(const void* p) { return target::load4(p); }
    static ANABRANCH_DEVICE void store(void* p, u32 v) { target::store4(p, v); }
};
template <>
struct Width<8> {
    typedef u64 Raw;
    static ANABRANCH_DEVICE u64 load(const void* p) { return target::load8(p); }
    static ANABRANCH_DEVICE void store(void* p, u64 v) { target::store8(p, v); }
};
template <>
struct Width<16> {
    typedef Vec16 Raw;
    static ANABRANCH_DEVICE Vec16 load(const void* p) { return target::load16(p); }
    static ANABRANCH_DEVICE void store(void* p, Vec16 v) { target::store16(p, v); }
};

// One element of 1, 2, 4, 8 or 16 bytes, naturally aligned, in memory that a peer may touch. Single pieces up to
// 8 bytes on all hardware known, though PTX does not promise it for weak accesses. Unordered: `publish` and `wait` order them.
template <class T>
ANABRANCH_DEVICE T remote_load(const Grid&, const T* p) {
    return bit_cast<T>(Width<sizeof(T)>::load(p));
}
template <class T>
ANABRANCH_DEVICE void remote_store(const Grid&, T* p, T v) {
    Width<sizeof(T)>::store(p, bit_cast<typename Width<sizeof(T)>::Raw>(v));
}
template <class T>
ANABRANCH_DEVICE T heap_load(const Grid& grid, const T* p) {
    return remote_load(grid, p);
}
template <class T>
ANABRANCH_DEVICE void heap_store(const Grid& grid, T* p, T v) {
    remote_store(grid, p, v);
}

// Memory of this rank alone, which other blocks of this kernel may also write.
template <class T>
ANABRANCH_DEVICE T private_load(const Grid&, const T* p) {
    return bit_cast<T>(Width<sizeof(T)>::load(p));
}
template <class T>
ANABRANCH_DEVICE void private_store(const Grid&, T* p, T v) {
    Width<sizeof(T)>::store(p, bit_cast<typename Width<sizeof(T)>::Raw>(v));
}

// Memory of this rank alone that is not written while the kernel runs, read once.
ANABRANCH_DEVICE Vec16 stream_load(const Grid&, const Vec16* p) { return target::stream_load16(p); }
ANABRANCH_DEVICE void stream_store(const Grid&, Vec16* p, Vec16 v) { target::stream_store16(p, v); }

// Flags: relaxed at system scope. Use `publish` and `wait`; these are their parts.
ANABRANCH_DEVICE u64 flag_load(const Grid&, const u64* p) { return target::flag_load(p); }
ANABRANCH_DEVICE u64 flag_load_for_wait(const Grid&, const u64* p) { return target::flag_load_for_wait(p); }
ANABRANCH_DEVICE void flag_store(const Grid&, u64* p, u64 v) { target::flag_store(p, v); }

// Packets: their halves are flags, relaxed at system scope. What a half carries needs no acquire: it is the flag.
ANABRANCH_DEVICE Packet packet_load(const Grid&, const Packet* p) { return target::packet_load(p); }
ANABRANCH_DEVICE void packet_store(const Grid&, Packet* p, Packet v) { target::packet_store(p, v); }

ANABRANCH_DEVICE void fence_release_system(const Grid&) { target::fence_release_system(); }
ANABRANCH_DEVICE void fence_acquire_system(const Grid&) { target::fence_acquire_system(); }
ANABRANCH_DEVICE void fence_release_device(const Grid&) { target::fence_release_device(); }
ANABRANCH_DEVICE void fence_acquire_device(const Grid&) { target::fence_acquire_device(); }
// Tells a seeded machine that the flags of this thread publish earlier work of its stream. No GPU does anything.
ANABRANCH_DEVICE void name_earlier_work(const Grid&) {}

// Relaxed read-modify-writes; they return the old value. `_device`: among the blocks of this GPU. `_system`: also
// with peers.
template <class T>
ANABRANCH_DEVICE T fetch_add_device(const Grid&, T* p, T v) { return target::fetch_add_device(p, v); }
template <class T>
ANABRANCH_DEVICE T fetch_min_device(const Grid&, T* p, T v) { return target::fetch_min_device(p, v); }
template <class T>
ANABRANCH_DEVICE T fetch_add_system(const Grid&, T* p, T v) { return target::fetch_add_system(p, v); }
template <class T>
ANABRANCH_DEVICE T fetch_and_system(const Grid&, T* p, T v) { return target::fetch_and_system(p, v); }
template <class T>
ANABRANCH_DEVICE T fetch_or_system(const Grid&, T* p, T v) { return target::fetch_or_system(p, v); }
template <class T>
ANABRANCH_DEVICE T fetch_xor_system(const Grid&, T* p, T v) { return target::fetch_xor_system(p, v); }
template <class T>
ANABRANCH_DEVICE T swap_system(const Grid&, T* p, T v) { return target::swap_system(p, v); }
template <class T>
ANABRANCH_DEVICE T compare_swap_system(const Grid&, T* p, T expected, T desired) {
    return target::compare_swap_system(p, expected, desired);
}
