#!/usr/bin/env bash
# The Python package as users get it: a wheel built in release mode, installed into an empty environment, its stubs compared with the module,
# and its tests run there, those that need torch with that of another release of Debian (dev/torch.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

tools="$PWD/target/ci/python-tools"
user="$PWD/target/ci/python-user"
wheels="$PWD/target/ci/wheels"
[ -x "$tools/bin/maturin" ] || { python3 -m venv "$tools" && "$tools/bin/pip" install --quiet 'maturin>=1.9,<2'; }
rm -rf "$wheels" "$user"
"$tools/bin/maturin" build --release --quiet --manifest-path crates/python/Cargo.toml --out "$wheels"
ls -l "$wheels"/anabranch-*-cp310-abi3-manylinux_*_x86_64.whl

python3 -m venv "$user"
"$user/bin/pip" install --quiet "$wheels"/*.whl numpy pytest mypy ml_dtypes jax
cd "$(mktemp -d)"
"$user/bin/python" -m anabranch doctor --set device.runtime=host
"$user/bin/python" -m mypy.stubtest anabranch._native
"$user/bin/python" -m mypy -p anabranch.jax
"$user/bin/python" -m pytest -q -rs --durations=10 "$OLDPWD/crates/python/tests"
XLA_FLAGS=--xla_force_host_platform_device_count=4 JAX_PLATFORMS=cpu "$user/bin/python" "$OLDPWD/examples/python/jax_training.py"
XLA_FLAGS=--xla_force_host_platform_device_count=2 JAX_PLATFORMS=cpu "$user/bin/python" "$OLDPWD/examples/python/jax_moe_layer.py"
XLA_FLAGS=--xla_force_host_platform_device_count=4 JAX_PLATFORMS=cpu "$user/bin/python" "$OLDPWD/examples/python/jax_moe_layer.py"
"$user/bin/python" -m anabranch run -n 4 -- "$user/bin/python" "$OLDPWD/examples/python/expert_parallel.py"

torch="$OLDPWD/target/ci/torch"
"$OLDPWD/dev/torch.sh" "$torch"
if [ -x "$torch/bin/python" ]; then
    "$torch/bin/python" -m pip install --quiet --no-deps --force-reinstall "$wheels"/*.whl
    tests="$OLDPWD/crates/python/tests"
    "$torch/bin/python" -m pytest -q -rs --durations=10 "$tests"/test_torch_*.py "$tests/distributed" "$tests/test_deep_ep.py" \
        "$tests/test_mori.py" "$tests/test_tutorial.py"
    for example in tp_mlp moe_layer; do
        ANABRANCH__DEVICE__RUNTIME=host "$torch/bin/python" -m torch.distributed.run --nproc-per-node 4 "$OLDPWD/examples/python/$example.py"
    done
fi
