//! The local memory of a block.

use core::ffi::c_void;
use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

/// Alignment of a block's local memory, bytes.
const ALIGNMENT: usize = 128;

/// What local memory holds before the kernel writes it: a pattern that is a wrong number of every type, as
/// contents are undefined on a GPU and a kernel that relies on zeros must not pass here.
const POISON: u8 = 0xCB;

/// Aligned bytes, freed when dropped.
#[derive(Debug)]
pub(crate) struct LocalMemory {
    memory: NonNull<u8>,
    layout: Layout,
}

impl LocalMemory {
    /// `bytes` poisoned bytes; at least one cache line, so that the address is always valid.
    pub(crate) fn new(bytes: usize) -> Self {
        let size = bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let Ok(layout) = Layout::from_size_align(size, ALIGNMENT) else {
            // `bytes` is at most 64 KiB, checked at the launch.
            return Self { memory: NonNull::dangling(), layout: Layout::new::<()>() };
        };
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc(layout) };
        let Some(memory) = NonNull::new(memory) else { std::alloc::handle_alloc_error(layout) };
        // SAFETY: `size` bytes were just allocated there.
        unsafe { memory.write_bytes(POISON, size) };
        Self { memory, layout }
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.memory.as_ptr().cast()
    }
}

impl Drop for LocalMemory {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: allocated with this layout in `new`.
            unsafe { dealloc(self.memory.as_ptr(), self.layout) };
        }
    }
}
