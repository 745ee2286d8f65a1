// Runs a list of copies, each by one group of the scope. The oracle compares whole heaps afterwards, so that every byte
// that no case names is a canary.
#include "anabranch/prelude.h"
#include "shmem/shmem.h"
#include "conformance/shmem.h"

enum CopyOperation : u32 {
    COPY_PUT = 0,
    COPY_PUT_NBI = 1,
    COPY_GET = 2,
    COPY_GET_NBI = 3,
    COPY_PUT_SIGNAL = 4,
    COPY_PUT_SIGNAL_NBI = 5,
    COPY_P = 6,
    COPY_G = 7,
};

template <class Scope>
static ANABRANCH_DEVICE shmem::Status run_bulk(const Grid& grid, const shmem::Context& context, const CopyArgs& args,
                                               const CopyCase* one) {
    shmem::GroupRank peer = {private_load(grid, &one->peer)};
    shmem::Symmetric<u8> remote = {private_load(grid, &one->remote)};
    shmem::Symmetric<u8> local = {private_load(grid, &one->local)};
    u8* own = shmem::own_pointer(grid, context, local);
    u64 bytes = private_load(grid, &one->bytes);
    if (args.kind == COPY_PUT) return shmem::put<Scope>(grid, context, remote, own, bytes, peer);
    if (args.kind == COPY_PUT_NBI) return shmem::put_nbi<Scope>(grid, context, remote, own, bytes, peer);
    if (args.kind == COPY_GET) return shmem::get<Scope>(grid, context, own, remote, bytes, peer);
    if (args.kind == COPY_GET_NBI) return shmem::get_nbi<Scope>(grid, context, own, remote, bytes, peer);
    shmem::Symmetric<u64> word = {private_load(grid, &one->signal)};
    u64 value = private_load(grid, &one->value);
    shmem::SignalOp op = static_cast<shmem::SignalOp>(private_load(grid, &one->signal_op));
    if (args.kind == COPY_PUT_SIGNAL) {
        return shmem::put_signal<Scope>(grid, context, remote, own, bytes, word, value, op, peer);
    }
    return shmem::put_signal_nbi<Scope>(grid, context, remote, own, bytes, word, value, op, peer);
}

// One value of type T, put to the peer or got from it into the own heap.
template <class T>
static ANABRANCH_DEVICE shmem::Status run_value(const Grid& grid, const shmem::Context& context, const CopyArgs& args,
                                                const CopyCase* one) {
    shmem::GroupRank peer = {private_load(grid, &one->peer)};
    shmem::Symmetric<T> remote = {private_load(grid, &one->remote)};
    shmem::Symmetric<T> local = {private_load(grid, &one->local)};
    if (args.kind == COPY_P) {
        return shmem::p(grid, context, remote, static_cast<T>(private_load(grid, &one->value)), peer);
    }
    T value = shmem::g(grid, context, remote, peer);
    return shmem::p(grid, context, local, value, context.rank());
}

template <class Scope>
static ANABRANCH_DEVICE void run_cases(const Grid& grid, const shmem::Context& context, const CopyArgs& args) {
    for (u32 index = Groups<Scope>::index(grid); index < args.case_count; index += Groups<Scope>::count(grid)) {
        shmem::Status status = run_bulk<Scope>(grid, context, args, args.cases + index);
        if (Scope::lane(grid) == 0) private_store(grid, args.statuses + index, static_cast<u32>(status));
    }
    shmem::quiet<Scope>(grid, context);
}

static ANABRANCH_DEVICE void run_values(const Grid& grid, const shmem::Context& context, const CopyArgs& args) {
    u32 step = Groups<shmem::Thread>::count(grid);
    for (u32 index = Groups<shmem::Thread>::index(grid); index < args.case_count; index += step) {
        const CopyCase* one = args.cases + index;
        u64 bytes = private_load(grid, &one->bytes);
        shmem::Status status;
        if (bytes == 1) {
            status = run_value<u8>(grid, context, args, one);
        } else if (bytes == 2) {
            status = run_value<u16>(grid, context, args, one);
        } else if (bytes == 4) {
            status = run_value<u32>(grid, context, args, one);
        } else {
            status = run_value<u64>(grid, context, args, one);
        }
        private_store(grid, args.statuses + index, static_cast<u32>(status));
    }
    shmem::quiet<shmem::Thread>(grid, context);
}

ANABRANCH_KERNEL(anabranch_shmem_conformance_copy, CopyArgs, 256) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 1);
    if (args.kind >= COPY_P) {
        run_values(grid, context, args);
    } else if (args.scope == SCOPE_THREAD) {
        run_cases<shmem::Thread>(grid, context, args);
    } else if (args.scope == SCOPE_WAVE) {
        run_cases<shmem::Wave>(grid, context, args);
    } else {
        run_cases<shmem::Block>(grid, context, args);
    }
}
