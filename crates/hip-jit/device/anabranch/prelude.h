// The prelude: the only headers that know the targets apart. A kernel includes this one.
//
// The order matters: plain types; the target's primitives; positions and waves; the structs that Rust declares
// (generated); memory; publishing; waiting; numbers.
//
// Parameters that any unit may be compiled with, for tests: HOST_INSTRUMENTED, for the seeded host machine; and with it
// HOST_CUMULATIVE, for that machine's cumulative fences and NVIDIA's form of the prelude.
#pragma once

#if defined(HOST_INSTRUMENTED) && !defined(ANABRANCH_TARGET_HOST)
#error "HOST_INSTRUMENTED is for the host target: the seeded machine is made of CPU threads"
#endif

#if defined(HOST_CUMULATIVE) && !defined(HOST_INSTRUMENTED)
#error "HOST_CUMULATIVE is for the seeded host machine, with HOST_INSTRUMENTED"
#endif

#include "anabranch/types.h"

#if defined(ANABRANCH_TARGET_HOST)
#include "anabranch/target_host.h"
#elif defined(ANABRANCH_TARGET_NVIDIA)
#include "anabranch/target_nvidia.h"
#else
#include "anabranch/target_amd.h"
#endif

#include "anabranch/grid.h"
#include "anabranch/layouts.h"
#if defined(HOST_INSTRUMENTED)
#include "anabranch/memory_instrumented.h"
#else
#include "anabranch/memory.h"
#endif
#include "anabranch/publish.h"
#include "anabranch/wait.h"
#include "anabranch/convert.h"
