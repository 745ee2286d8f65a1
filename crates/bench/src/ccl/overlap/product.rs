//! The matrix product that runs concurrently with collectives.
#![expect(unsafe_code, reason = "launching a kernel is the caller's promise")]

use std::path::Path;

use anabranch::{Environment, Error, RuntimeKind, World};
use anabranch_hip::{DeviceBuffer, LaunchShape, Stream};
use anabranch_hip_jit::{DevicePointer, KernelSpec, LoadedKernel, PRELUDE, device_struct, kernel_unit};
use anyhow::bail;

use super::cublas::Cublas;

device_struct! {
    /// Arguments of the plain product.
    pub(crate) struct ProductArgs {
        /// `[size, size]` of bf16, row-major, as are the others.
        pub(crate) a: DevicePointer<u16>,
        pub(crate) b: DevicePointer<u16>,
        /// `[size, size]` of f32.
        pub(crate) c: DevicePointer<f32>,
        /// Rows and columns, a multiple of 16.
        pub(crate) size: u64,
    }
}

kernel_unit! {
    static PRODUCT_UNIT: "bench_product", include_str!("../../../kernels/product.hip"), &[PRELUDE];
    const PRODUCT: Kernel<ProductArgs> = "anabranch_bench_product";
}
/// Local memory of a block: three tiles of 16 by 16 f32.
const LOCAL_BYTES: u32 = 3 * TILE * TILE * 4;
const TILE: u32 = 16;
/// Sums of products of the inputs are exact in f32 up to here: each is at most 16.
const MOST_SIZE: u32 = 1 << 17;
/// Elements that are compared, spread over the result.
const COMPARED: u64 = 61;

/// The plain product's kernel.
pub(crate) fn kernels() -> [KernelSpec; 1] {
    [KernelSpec::new(&PRODUCT_UNIT)]
}

/// Refuses a size before there are ranks.
///
/// # Errors
/// One that is no multiple of 16, or whose sums would be rounded.
pub(super) fn check_size(size: u32) -> anyhow::Result<()> {
    if size == 0 || !size.is_multiple_of(TILE) || size > MOST_SIZE {
        bail!("--product {size}: allowed are multiples of {TILE} up to {MOST_SIZE}");
    }
    Ok(())
}

#[derive(Debug)]
enum Engine {
    Cublas(Cublas),
    Plain { kernel: LoadedKernel<ProductArgs>, shape: LaunchShape },
}

/// `C = A * B^T` of square matrices in this rank's own memory: bf16 in, f32 out.
#[derive(Debug)]
pub(super) struct Product {
    engine: Engine,
    size: u32,
    a: DeviceBuffer,
    b: DeviceBuffer,
    c: DeviceBuffer,
}

impl Product {
    /// By cuBLAS on NVIDIA GPUs, by a plain kernel elsewhere. Not collective.
    ///
    /// # Errors
    /// No cuBLAS; a device that is too small; compiler errors.
    pub(super) fn new(world: &World, size: u32, library: Option<&Path>) -> anyhow::Result<Self> {
        let device = world.device();
        let engine = if device.runtime().kind() == RuntimeKind::Nvidia {
            Engine::Cublas(Cublas::open(device, library, &Environment::of_process())?)
        } else {
            let unit = world.jit().load(device, &KernelSpec::new(&PRODUCT_UNIT)).map_err(Error::from)?;
            let wave = device.wave_size();
            let is_large = device.multiprocessors() >= 32;
            let threads = if is_large { 256_u32.next_multiple_of(wave) } else { wave };
            let tiles = (size / TILE).saturating_mul(size / TILE);
            let shape = LaunchShape {
                grid_blocks: tiles.min(4 * device.multiprocessors()),
                block_threads: threads,
                local_bytes: LOCAL_BYTES,
            };
            Engine::Plain { kernel: unit.get(PRODUCT).map_err(Error::from)?, shape }
        };
        let elements = size as usize * size as usize;
        let upload = |of: fn(u64, u64) -> i32| -> anyhow::Result<DeviceBuffer> {
            let mut bytes = Vec::with_capacity(2 * elements);
            for row in 0..u64::from(size) {
                bytes.extend((0..u64::from(size)).flat_map(|column| bf16(of(row, column)).to_le_bytes()));
            }
            let mut buffer = device.allocate(bytes.len()).map_err(Error::from)?;
            buffer.copy_from_host(0, &bytes).map_err(Error::from)?;
            Ok(buffer)
        };
        let (a, b) = (upload(of_a)?, upload(of_b)?);
        let mut c = device.allocate(4 * elements).map_err(Error::from)?;
        c.fill(0xff).map_err(Error::from)?;
        Ok(Self { engine, size, a, b, c })
    }

    /// The library or kernel that computes it.
    pub(super) fn describe(&self) -> String {
        let by = match &self.engine {
            Engine::Cublas(library) => library.describe(),
            Engine::Plain { .. } => "a plain kernel".to_owned(),
        };
        format!("{0} x {0} x {0} bf16 by {by}", self.size)
    }

    /// Puts one product on the stream. May be captured.
    ///
    /// # Errors
    /// The library's or the runtime's.
    pub(super) fn enqueue(&self, stream: &Stream) -> anyhow::Result<()> {
        match &self.engine {
            Engine::Cublas(library) => library.enqueue(stream, self.size, (&self.a, &self.b, &self.c)),
            Engine::Plain { kernel, shape } => {
                let arguments = ProductArgs {
                    a: DevicePointer::new(self.a.address()),
                    b: DevicePointer::new(self.b.address()),
                    c: DevicePointer::new(self.c.address()),
                    size: self.size.into(),
                };
                // SAFETY: the matrices have `size` rows and columns, and are kept until the stream was
                // waited for (`Beside::sample`).
                unsafe { kernel.launch(*shape, stream, &arguments) }.map_err(Error::from)?;
                Ok(())
            }
        }
    }

    /// Whether elements all over the result are what they must be. The stream must be idle.
    ///
    /// # Errors
    /// The runtime's.
    pub(super) fn is_right(&self) -> anyhow::Result<bool> {
        let all = u64::from(self.size) * u64::from(self.size);
        for sample in 0..COMPARED {
            let index = sample * (all - 1) / (COMPARED - 1);
            let (row, column) = (index / u64::from(self.size), index % u64::from(self.size));
            let mut found = [0; 4];
            self.c.copy_to_host(index as usize * 4, &mut found).map_err(Error::from)?;
            let expected: i64 = (0..u64::from(self.size))
                .map(|inner| i64::from(of_a(row, inner)) * i64::from(of_b(column, inner)))
                .sum();
            // The sum is far below 2^24.
            if f32::from_le_bytes(found).to_bits() != (expected as f32).to_bits() {
                tracing::error!(
                    row,
                    column,
                    expected,
                    found = f32::from_le_bytes(found),
                    "the product is wrong"
                );
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Inputs: whole numbers from -4 to 4, so that sums are exact in any order.
fn of_a(row: u64, column: u64) -> i32 {
    ((row * 7 + column * 5 + row * column % 11) % 9) as i32 - 4
}
fn of_b(row: u64, column: u64) -> i32 {
    ((row * 3 + column * 8 + row * column % 13) % 9) as i32 - 4
}

/// A small whole number, which bf16 has exactly.
fn bf16(value: i32) -> u16 {
    ((value as f32).to_bits() >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_passes_the_lints_and_inputs_are_exact() {
        let found = anabranch_testkit::lint::lint_source("product.hip", PRODUCT_UNIT.source);
        assert!(found.is_empty(), "{found:#?}");
        for (row, column) in (0..40).flat_map(|row| (0..40).map(move |column| (row, column))) {
            for value in [of_a(row, column), of_b(row, column)] {
                assert!((-4..=4).contains(&value));
                assert_eq!(u32::from(bf16(value)) << 16, (value as f32).to_bits());
            }
        }
        assert!(check_size(0).is_err() && check_size(24).is_err() && check_size(1 << 18).is_err());
        assert!(check_size(4096).is_ok());
    }
}
