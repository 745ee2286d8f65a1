//! Structs that grow: each begins with its size, as the caller was compiled with it.

use std::mem::MaybeUninit;

use crate::status::{Failure, Result};

/// A struct of the interface whose first field is `size`, in bytes.
///
/// # Safety
/// `#[repr(C)]`, begins with a `usize`, and has pointers and numbers alone, for which zero is a value.
pub(crate) unsafe trait Versioned: Copy {
    /// Its name.
    const NAME: &'static str;
    /// The bytes that every caller has.
    const LEAST: usize;

    /// The field in place of padding at the end, which must be 0: a later version may use it.
    fn reserved(&self) -> u32 {
        0
    }
}

const WORD: usize = size_of::<usize>();

fn size_of_given<T: Versioned>(given: *const T) -> Result<usize> {
    if given.is_null() {
        return Err(Failure::usage(format!("{} is NULL", T::NAME)));
    }
    // SAFETY: every struct of the interface begins with its size.
    // Not always aligned: the caller gives the distance of structs in an array.
    let size = unsafe { given.cast::<usize>().read_unaligned() };
    if size < T::LEAST {
        let text =
            format!("{}.size is {size}; at least {} bytes are needed: set it to sizeof", T::NAME, T::LEAST);
        return Err(Failure::usage(text));
    }
    Ok(size)
}

/// Reads a struct of an older, the same or a newer version. What an older one lacks is zero; what a newer one has besides must be zero.
pub(crate) fn read<T: Versioned>(given: *const T) -> Result<T> {
    let size = size_of_given(given)?;
    let known = size_of::<T>();
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller's struct has `size` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(given.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), size.min(known));
    }
    for offset in known..size {
        // SAFETY: within the `size` bytes.
        if unsafe { given.cast::<u8>().add(offset).read() } != 0 {
            let text = format!(
                "{} of {size} bytes sets what this library, which knows {known} of them, does not have: byte {offset} is not 0",
                T::NAME
            );
            return Err(Failure::usage(text));
        }
    }
    // SAFETY: zeros and the caller's bytes are a value of every `Versioned`.
    let value = unsafe { value.assume_init() };
    match value.reserved() {
        0 => Ok(value),
        other => Err(Failure::usage(format!("{}.reserved is {other}; it must be 0", T::NAME))),
    }
}

/// Reads an optional struct; NULL is all zeros.
pub(crate) fn read_or_zero<T: Versioned>(given: *const T) -> Result<T> {
    if given.is_null() {
        // SAFETY: zeros are a value of every `Versioned`.
        return Ok(unsafe { MaybeUninit::zeroed().assume_init() });
    }
    read(given)
}

/// Reads an array of structs. All have the size that the first one states.
pub(crate) fn read_all<T: Versioned>(given: *const T, count: usize) -> Result<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let size = size_of_given(given)?;
    let one = |index: usize| {
        // SAFETY: the caller's array has `count` structs of `size` bytes each.
        let element = unsafe { given.cast::<u8>().add(index * size).cast::<T>() };
        let own = size_of_given(element)?;
        if own != size {
            let text = format!("{}[{index}].size is {own}, and that of the first is {size}", T::NAME);
            return Err(Failure::usage(text));
        }
        read(element)
    };
    (0..count).map(one).collect()
}

/// Writes the fields that the caller's version has, all but the size.
pub(crate) fn write<T: Versioned>(target: *mut T, value: &T) -> Result {
    let size = size_of_given(target.cast_const())?.min(size_of::<T>());
    // SAFETY: the caller's struct has `size` bytes, of which the first word stays.
    unsafe {
        let (from, to) = (std::ptr::from_ref(value).cast::<u8>(), target.cast::<u8>());
        std::ptr::copy_nonoverlapping(from.add(WORD), to.add(WORD), size - WORD);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Pair {
        size: usize,
        first: u32,
        second: u32,
    }

    // SAFETY: numbers, the size first.
    unsafe impl Versioned for Pair {
        const NAME: &'static str = "pair";
        const LEAST: usize = WORD + 4;
    }

    #[test]
    fn older_struct_is_filled_with_zeros() {
        let old = Pair { size: WORD + 4, first: 1, second: 7 };
        assert_eq!(read(&raw const old).unwrap(), Pair { size: WORD + 4, first: 1, second: 0 });
        let mut target = old;
        write(&raw mut target, &Pair { size: 0, first: 3, second: 4 }).unwrap();
        assert_eq!(target, Pair { size: WORD + 4, first: 3, second: 7 });
    }

    #[test]
    fn newer_struct_is_refused_only_where_it_sets_more() {
        let mut new = [(Pair { size: 2 * WORD + 8, first: 1, second: 2 }, 0u64)];
        let pair = (&raw const new).cast::<Pair>();
        assert_eq!(read(pair).unwrap().second, 2);
        new[0].1 = 1;
        let text = read((&raw const new).cast::<Pair>()).unwrap_err().text;
        assert!(text.contains("pair of 24 bytes") && text.contains("byte 16"), "{text}");
    }

    #[test]
    fn missing_size_is_refused() {
        let pair = Pair { size: 0, first: 1, second: 2 };
        let text = read(&raw const pair).unwrap_err().text;
        assert_eq!(text, "pair.size is 0; at least 12 bytes are needed: set it to sizeof");
        assert_eq!(read::<Pair>(std::ptr::null()).unwrap_err().text, "pair is NULL");
        assert_eq!(read_or_zero::<Pair>(std::ptr::null()).unwrap().first, 0);
        let two = [Pair { size: 16, first: 1, second: 2 }, Pair { size: 12, first: 1, second: 2 }];
        assert!(read_all(two.as_ptr(), 2).unwrap_err().text.contains("pair[1].size is 12"));
    }
}
