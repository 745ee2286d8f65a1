// How the waves of a dispatch divide the rows of tokens.
#pragma once

#include "ep/dispatch_local.h"

// The work of one wave at a time: a run of a token's 16-byte units, or its meta record.
struct Piece {
    u32 index;  // of the token in its tile
    u32 begin, end;
    bool is_meta;
};

// Units of a row that one wave must process together: with a cast, the units of a block with one scale.
#ifdef EP_CAST
static constexpr u32 UNITS_TOGETHER = 8;
#else
static constexpr u32 UNITS_TOGETHER = 1;
#endif

// One piece per segment, and, for the first part, one for the meta record.
static ANABRANCH_DEVICE u32 pieces_of_token(const DispatchArgs& args, u32 part) { return args.segments + (part == 0 ? 1 : 0); }

// Piece `item` of a tile whose tokens have `pieces` each.
static ANABRANCH_DEVICE Piece piece_of(const DispatchArgs& args, u32 part, u32 pieces, u32 item) {
    u32 units = args.row_bytes / 16 / UNITS_TOGETHER;
    u32 segments = args.parts * args.segments;
    u32 segment = part * args.segments + item % pieces;
    Piece piece;
    piece.index = item / pieces;
    piece.is_meta = item % pieces == args.segments;
    piece.begin = static_cast<u32>(static_cast<u64>(units) * segment / segments) * UNITS_TOGETHER;
    piece.end = static_cast<u32>(static_cast<u64>(units) * (segment + 1) / segments) * UNITS_TOGETHER;
    return piece;
}
