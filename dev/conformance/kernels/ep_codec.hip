// A codec put to the test: each wave encodes rows of its own into wire rows, and decodes them again.
#include "anabranch/prelude.h"
#include "ep/codec.h"

#if !defined(EP_ELEMENT) || !defined(EP_CODEC)
#error "the kernel is compiled for an element type: Bf16, F16 or F32; and for a codec of ep/codec.h that is not None"
#endif
typedef EP_ELEMENT Element;
typedef EP_CODEC<Element> Codec;

ANABRANCH_KERNEL(anabranch_ep_conformance_codec, ConformanceCodecArgs, 256) {
    u32 blocks = args.hidden / (Codec::ELEMENTS * Codec::UNITS);
    for (u32 row = grid.grid_wave(); row < args.row_count; row += grid.grid_waves()) {
        u64 from = reinterpret_cast<u64>(args.rows) + static_cast<u64>(row) * args.hidden * Element::BYTES;
        u64 to = reinterpret_cast<u64>(args.wire) + static_cast<u64>(row) * args.wire_bytes;
        encode_blocks<Codec, Element>(grid, from, to, to + scales_offset<Codec>(args.hidden), 0, blocks);
    }
}
