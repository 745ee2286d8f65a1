// Packets of copy engines. Rendered from the table of fields in the crate that owns this file: change that.
#pragma once

static constexpr u32 SDMA_NOP = 0x0;
static constexpr u32 SDMA_NOP_WORDS = 1;
static constexpr u32 SDMA_NOP_SKIP_WORD = 0;
static constexpr u32 SDMA_NOP_SKIP_SHIFT = 16;
static constexpr u32 SDMA_NOP_SKIP_MOST = 0x3fff;

static constexpr u32 SDMA_COPY = 0x1;
static constexpr u32 SDMA_COPY_WORDS = 7;
static constexpr u32 SDMA_COPY_COUNT_WORD = 1;
static constexpr u32 SDMA_COPY_COUNT_SHIFT = 0;
static constexpr u32 SDMA_COPY_COUNT_MOST = 0x3fffffff;
static constexpr u32 SDMA_COPY_SOURCE_LOW_WORD = 3;
static constexpr u32 SDMA_COPY_SOURCE_HIGH_WORD = 4;
static constexpr u32 SDMA_COPY_DESTINATION_LOW_WORD = 5;
static constexpr u32 SDMA_COPY_DESTINATION_HIGH_WORD = 6;

static constexpr u32 SDMA_FENCE = 0x5;
static constexpr u32 SDMA_FENCE_WORDS = 4;
static constexpr u32 SDMA_FENCE_MEMORY_TYPE_WORD = 0;
static constexpr u32 SDMA_FENCE_MEMORY_TYPE_SHIFT = 16;
static constexpr u32 SDMA_FENCE_MEMORY_TYPE_MOST = 0x7;
static constexpr u32 SDMA_FENCE_ADDRESS_LOW_WORD = 1;
static constexpr u32 SDMA_FENCE_ADDRESS_HIGH_WORD = 2;
static constexpr u32 SDMA_FENCE_DATA_WORD = 3;

static constexpr u32 SDMA_ATOMIC = 0xa;
static constexpr u32 SDMA_ATOMIC_WORDS = 8;
static constexpr u32 SDMA_ATOMIC_OPERATION_WORD = 0;
static constexpr u32 SDMA_ATOMIC_OPERATION_SHIFT = 25;
static constexpr u32 SDMA_ATOMIC_OPERATION_MOST = 0x7f;
static constexpr u32 SDMA_ATOMIC_ADDRESS_LOW_WORD = 1;
static constexpr u32 SDMA_ATOMIC_ADDRESS_HIGH_WORD = 2;
static constexpr u32 SDMA_ATOMIC_DATA_LOW_WORD = 3;
static constexpr u32 SDMA_ATOMIC_DATA_HIGH_WORD = 4;

static constexpr u32 SDMA_ATOMIC_ADD_64 = 47;
