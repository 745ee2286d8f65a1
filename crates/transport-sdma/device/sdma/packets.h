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

static constexpr u32 SDMA_BROADCAST_COPY = 0x1;
static constexpr u32 SDMA_BROADCAST_COPY_WORDS = 9;
static constexpr u32 SDMA_BROADCAST_COPY_BROADCAST_WORD = 0;
static constexpr u32 SDMA_BROADCAST_COPY_BROADCAST_SHIFT = 27;
static constexpr u32 SDMA_BROADCAST_COPY_BROADCAST_MOST = 0x1;
static constexpr u32 SDMA_BROADCAST_COPY_COUNT_WORD = 1;
static constexpr u32 SDMA_BROADCAST_COPY_COUNT_SHIFT = 0;
static constexpr u32 SDMA_BROADCAST_COPY_COUNT_MOST = 0x3fffffff;
static constexpr u32 SDMA_BROADCAST_COPY_SOURCE_LOW_WORD = 3;
static constexpr u32 SDMA_BROADCAST_COPY_SOURCE_HIGH_WORD = 4;
static constexpr u32 SDMA_BROADCAST_COPY_DESTINATION_LOW_WORD = 5;
static constexpr u32 SDMA_BROADCAST_COPY_DESTINATION_HIGH_WORD = 6;
static constexpr u32 SDMA_BROADCAST_COPY_SECOND_LOW_WORD = 7;
static constexpr u32 SDMA_BROADCAST_COPY_SECOND_HIGH_WORD = 8;

static constexpr u32 SDMA_WRITE = 0x2;
static constexpr u32 SDMA_WRITE_WORDS = 4;
static constexpr u32 SDMA_WRITE_DESTINATION_LOW_WORD = 1;
static constexpr u32 SDMA_WRITE_DESTINATION_HIGH_WORD = 2;
static constexpr u32 SDMA_WRITE_COUNT_WORD = 3;
static constexpr u32 SDMA_WRITE_COUNT_SHIFT = 0;
static constexpr u32 SDMA_WRITE_COUNT_MOST = 0x3fffff;

static constexpr u32 SDMA_FENCE = 0x5;
static constexpr u32 SDMA_FENCE_WORDS = 4;
static constexpr u32 SDMA_FENCE_MEMORY_TYPE_WORD = 0;
static constexpr u32 SDMA_FENCE_MEMORY_TYPE_SHIFT = 16;
static constexpr u32 SDMA_FENCE_MEMORY_TYPE_MOST = 0x7;
static constexpr u32 SDMA_FENCE_ADDRESS_LOW_WORD = 1;
static constexpr u32 SDMA_FENCE_ADDRESS_HIGH_WORD = 2;
static constexpr u32 SDMA_FENCE_DATA_WORD = 3;

static constexpr u32 SDMA_TRAP = 0x6;
static constexpr u32 SDMA_TRAP_WORDS = 2;
static constexpr u32 SDMA_TRAP_CONTEXT_WORD = 1;
static constexpr u32 SDMA_TRAP_CONTEXT_SHIFT = 0;
static constexpr u32 SDMA_TRAP_CONTEXT_MOST = 0xfffffff;

static constexpr u32 SDMA_POLL = 0x8;
static constexpr u32 SDMA_POLL_WORDS = 6;
static constexpr u32 SDMA_POLL_FUNCTION_WORD = 0;
static constexpr u32 SDMA_POLL_FUNCTION_SHIFT = 28;
static constexpr u32 SDMA_POLL_FUNCTION_MOST = 0x7;
static constexpr u32 SDMA_POLL_MEMORY_WORD = 0;
static constexpr u32 SDMA_POLL_MEMORY_SHIFT = 31;
static constexpr u32 SDMA_POLL_MEMORY_MOST = 0x1;
static constexpr u32 SDMA_POLL_ADDRESS_LOW_WORD = 1;
static constexpr u32 SDMA_POLL_ADDRESS_HIGH_WORD = 2;
static constexpr u32 SDMA_POLL_REFERENCE_WORD = 3;
static constexpr u32 SDMA_POLL_MASK_WORD = 4;
static constexpr u32 SDMA_POLL_INTERVAL_WORD = 5;
static constexpr u32 SDMA_POLL_INTERVAL_SHIFT = 0;
static constexpr u32 SDMA_POLL_INTERVAL_MOST = 0xffff;
static constexpr u32 SDMA_POLL_RETRIES_WORD = 5;
static constexpr u32 SDMA_POLL_RETRIES_SHIFT = 16;
static constexpr u32 SDMA_POLL_RETRIES_MOST = 0xfff;

static constexpr u32 SDMA_ATOMIC = 0xa;
static constexpr u32 SDMA_ATOMIC_WORDS = 8;
static constexpr u32 SDMA_ATOMIC_OPERATION_WORD = 0;
static constexpr u32 SDMA_ATOMIC_OPERATION_SHIFT = 25;
static constexpr u32 SDMA_ATOMIC_OPERATION_MOST = 0x7f;
static constexpr u32 SDMA_ATOMIC_ADDRESS_LOW_WORD = 1;
static constexpr u32 SDMA_ATOMIC_ADDRESS_HIGH_WORD = 2;
static constexpr u32 SDMA_ATOMIC_DATA_LOW_WORD = 3;
static constexpr u32 SDMA_ATOMIC_DATA_HIGH_WORD = 4;

static constexpr u32 SDMA_FILL = 0xb;
static constexpr u32 SDMA_FILL_WORDS = 5;
static constexpr u32 SDMA_FILL_SIZE_WORD = 0;
static constexpr u32 SDMA_FILL_SIZE_SHIFT = 30;
static constexpr u32 SDMA_FILL_SIZE_MOST = 0x3;
static constexpr u32 SDMA_FILL_DESTINATION_LOW_WORD = 1;
static constexpr u32 SDMA_FILL_DESTINATION_HIGH_WORD = 2;
static constexpr u32 SDMA_FILL_DATA_WORD = 3;
static constexpr u32 SDMA_FILL_COUNT_WORD = 4;
static constexpr u32 SDMA_FILL_COUNT_SHIFT = 0;
static constexpr u32 SDMA_FILL_COUNT_MOST = 0x3fffff;

static constexpr u32 SDMA_TIMESTAMP = 0x20d;
static constexpr u32 SDMA_TIMESTAMP_WORDS = 3;
static constexpr u32 SDMA_TIMESTAMP_ADDRESS_LOW_WORD = 1;
static constexpr u32 SDMA_TIMESTAMP_ADDRESS_HIGH_WORD = 2;

static constexpr u32 SDMA_ATOMIC_ADD_64 = 47;
static constexpr u32 SDMA_FILL_BY_WORDS = 2;
