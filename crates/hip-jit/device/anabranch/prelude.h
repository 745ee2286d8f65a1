// The prelude: the only headers that know the targets apart. A kernel includes this one.
//
// The order matters: plain types; the target's primitives; positions and waves; the structs that Rust declares
// (generated); memory; publishing; waiting; numbers.
#pragma once

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
#include "anabranch/memory.h"
#include "anabranch/publish.h"
#include "anabranch/wait.h"
#include "anabranch/convert.h"
