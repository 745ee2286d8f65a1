// Which ranks are on this rank's node. The device functions of the heap reach the others over any route; their memory need not be
// mapped here.
#pragma once

#include "anabranch/prelude.h"

static ANABRANCH_DEVICE bool is_near(const Grid& grid, const NodesView& nodes, u32 rank) {
    return private_load(grid, nodes.node_of + rank) == nodes.node;
}
