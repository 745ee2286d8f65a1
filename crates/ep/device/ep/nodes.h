// Which ranks share this one's node. The others are reached by the device functions of the heap, over whatever route
// they have; their memory need not be mapped here.
#pragma once

#include "anabranch/prelude.h"

static ANABRANCH_DEVICE bool is_near(const Grid& grid, const NodesView& nodes, u32 rank) {
    return private_load(grid, nodes.node_of + rank) == nodes.node;
}
