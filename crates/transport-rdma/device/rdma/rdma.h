// Queues of NICs in kernels. A unit that includes this has RdmaQueue among its layouts (and PostedRequest where the host posts), and
// is compiled with RDMA_PROVIDER and RDMA_ATOMICS.
#pragma once

#include "rdma/operation.h"
#include "rdma/provider.h"
#include "rdma/queue.h"
