// The symmetric heap in kernels: `#include "shmem/shmem.h"` gives everything. The unit lists `TeamView` and
// `BarrierWorkspace` among its layouts. Which operation exists at which scope: docs/operations.md.
#pragma once

#include "shmem/atomics.h"
#include "shmem/barrier.h"
#include "shmem/engine.h"
#include "shmem/nic.h"
#include "shmem/nic_atomics.h"
#include "shmem/order.h"
#include "shmem/put_get.h"
#include "shmem/scope.h"
#include "shmem/signal.h"
#include "shmem/types.h"
#include "shmem/wait.h"
