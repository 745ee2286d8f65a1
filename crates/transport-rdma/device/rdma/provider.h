// The provider that a unit is compiled for, never a guess.
#pragma once

#if !defined(RDMA_PROVIDER)
#error "the unit is compiled with RDMA_PROVIDER: 1 mlx5, 2 bnxt_re, 3 ionic, 4 posted by the host"
#elif RDMA_PROVIDER == 1
#include "rdma/mlx5.h"
namespace rdma {
typedef Mlx5 Provider;
}
#elif RDMA_PROVIDER == 2
#include "rdma/bnxt.h"
namespace rdma {
typedef Bnxt Provider;
}
#elif RDMA_PROVIDER == 3
#include "rdma/ionic.h"
namespace rdma {
typedef Ionic Provider;
}
#elif RDMA_PROVIDER == 4
#include "rdma/posted.h"
namespace rdma {
typedef Posted Provider;
}
#else
#error "RDMA_PROVIDER names no provider"
#endif
