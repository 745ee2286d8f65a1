//! Methods that libmlx5 calls by `ioctl`: doorbell pages and DEVX. For others libibverbs writes a command where it is told
//! that there is no such method.

use super::abi::{
    Attribute, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT,
    MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE,
    MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT,
    MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT,
    MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE, MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT,
    MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN, MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE,
    MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR, MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE, MLX5_IB_ATTR_DEVX_UMEM_REG_LEN,
    MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE,
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET,
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, MLX5_IB_METHOD_DEVX_OBJ_CREATE, MLX5_IB_METHOD_DEVX_OBJ_DESTROY,
    MLX5_IB_METHOD_DEVX_OBJ_MODIFY, MLX5_IB_METHOD_DEVX_OBJ_QUERY, MLX5_IB_METHOD_DEVX_OTHER,
    MLX5_IB_METHOD_DEVX_QUERY_EQN, MLX5_IB_METHOD_DEVX_UMEM_DEREG, MLX5_IB_METHOD_DEVX_UMEM_REG,
    MLX5_IB_METHOD_UAR_OBJ_ALLOC, MLX5_IB_METHOD_UAR_OBJ_DESTROY, MLX5_IB_OBJECT_DEVX,
    MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_OBJECT_UAR, MethodHead,
};
use super::read;
use crate::Errno;
use crate::devx::{self, EVENT_QUEUE};
use crate::driver::{Driver, Object};

/// Bytes of a doorbell page.
pub(crate) const PAGE: usize = 1 << LOG_PAGE;
const LOG_PAGE: u32 = 12;
/// Offsets for `mmap` begin at this page, so that they are no others'.
const FIRST_MAPPED: u64 = 0x10000;

/// The number of the doorbell page that an offset of `mmap` means.
pub(crate) fn page_of(offset: i64) -> Option<u32> {
    let page = (u64::try_from(offset).ok()? >> LOG_PAGE).checked_sub(FIRST_MAPPED)?;
    u32::try_from(page).ok()
}

/// The attributes of a call.
struct Attributes<'a>(&'a mut [Attribute]);

impl Attributes<'_> {
    fn find(&mut self, number: u16) -> Result<&mut Attribute, Errno> {
        self.0.iter_mut().find(|attribute| attribute.attr_id == number).ok_or(Errno(libc::EINVAL))
    }

    /// What the program gives: a few bytes stand in the attribute itself.
    fn input(&mut self, number: u16) -> Result<Vec<u8>, Errno> {
        let attribute = self.find(number)?;
        let (value, bytes) = (attribute.data, usize::from(attribute.len));
        let own = value.to_ne_bytes();
        if let Some(own) = own.get(..bytes) {
            return Ok(own.to_vec());
        }
        // SAFETY: the program says that so many bytes are there, as it does to the kernel.
        Ok(unsafe { std::slice::from_raw_parts(value as *const u8, bytes) }.to_vec())
    }

    /// Room for so many bytes of an answer.
    fn room(&mut self, number: u16) -> Result<usize, Errno> {
        self.find(number).map(|attribute| attribute.len.into())
    }

    /// Puts an answer down, as much of it as there is room for.
    fn output(&mut self, number: u16, bytes: &[u8]) -> Result<(), Errno> {
        let attribute = self.find(number)?;
        let count = bytes.len().min(attribute.len.into());
        // SAFETY: the program says that there is room for so many bytes, as it does to the kernel.
        unsafe { (attribute.data as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), count) };
        Ok(())
    }

    fn handle(&mut self, number: u16) -> Result<u64, Errno> {
        self.find(number).map(|attribute| attribute.data)
    }

    fn set_handle(&mut self, number: u16, handle: u64) -> Result<(), Errno> {
        self.find(number).map(|attribute| attribute.data = handle)
    }

    /// Executes the command of one attribute, whose answer goes to another. What the device refuses is `EREMOTEIO`, as from the kernel.
    fn command(&mut self, driver: &mut Driver, input: u16, output: u16) -> Result<Option<Object>, Errno> {
        let command = self.input(input)?;
        let mut answer = vec![0; self.room(output)?];
        let done = devx::execute(driver, &command, &mut answer);
        let code = command.first_chunk().map_or(0, |code| u16::from_be_bytes(*code));
        driver.trace(format_args!("DEVX command {code:#x}, status {:#x}", done.err().unwrap_or(0)));
        self.output(output, &answer)?;
        done.map_err(|_| Errno(libc::EREMOTEIO))
    }
}

fn allocate_page(driver: &mut Driver, attributes: &mut Attributes<'_>) -> Result<(), Errno> {
    let number = driver.new_page()?;
    let offset = (FIRST_MAPPED + u64::from(number)) << LOG_PAGE;
    attributes.set_handle(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, number.into())?;
    attributes.output(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, &offset.to_ne_bytes())?;
    attributes.output(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, &(PAGE as u64).to_ne_bytes())?;
    attributes.output(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, &number.to_ne_bytes())
}

fn register_memory(driver: &mut Driver, attributes: &mut Attributes<'_>) -> Result<(), Errno> {
    let address = read(&attributes.input(MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR)?);
    let bytes = read(&attributes.input(MLX5_IB_ATTR_DEVX_UMEM_REG_LEN)?);
    let number = driver.add_umem(address, bytes);
    attributes.set_handle(MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE, number.into())?;
    attributes.output(MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, &number.to_ne_bytes())
}

fn devx(driver: &mut Driver, method: u16, attributes: &mut Attributes<'_>) -> Result<(), Errno> {
    match method {
        MLX5_IB_METHOD_DEVX_OTHER => attributes
            .command(driver, MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT)
            .map(drop),
        MLX5_IB_METHOD_DEVX_QUERY_EQN => {
            attributes.output(MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN, &EVENT_QUEUE.to_ne_bytes())
        }
        _ => Err(Errno(libc::EPROTONOSUPPORT)),
    }
}

fn devx_object(driver: &mut Driver, method: u16, attributes: &mut Attributes<'_>) -> Result<(), Errno> {
    match method {
        MLX5_IB_METHOD_DEVX_OBJ_CREATE => {
            let (input, output) = (MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT);
            let object = attributes.command(driver, input, output)?.ok_or(Errno(libc::EINVAL))?;
            attributes.set_handle(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, driver.add_object(object))
        }
        MLX5_IB_METHOD_DEVX_OBJ_MODIFY => attributes
            .command(driver, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT)
            .map(drop),
        MLX5_IB_METHOD_DEVX_OBJ_QUERY => {
            let command = attributes.input(MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN)?;
            let handle = attributes.handle(MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE)?;
            // The kernel lets a command of this method ask, and about the handle's object alone.
            let asked = devx::queried_pair(&command).ok_or(Errno(libc::EINVAL))?;
            if !driver.is_pair(handle, asked) {
                return Err(Errno(libc::EINVAL));
            }
            attributes
                .command(driver, MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT)
                .map(drop)
        }
        MLX5_IB_METHOD_DEVX_OBJ_DESTROY => {
            driver.remove_object(attributes.handle(MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE)?);
            Ok(())
        }
        _ => Err(Errno(libc::EPROTONOSUPPORT)),
    }
}

/// Calls a method.
pub(crate) fn call(
    driver: &mut Driver,
    head: &MethodHead,
    attributes: &mut [Attribute],
) -> Result<(), Errno> {
    let mut attributes = Attributes(attributes);
    let attributes = &mut attributes;
    match (head.object_id, head.method_id) {
        (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC) => allocate_page(driver, attributes),
        // Pages stay mapped as long as the program keeps them.
        (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY) => Ok(()),
        (MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_REG) => register_memory(driver, attributes),
        (MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_DEREG) => {
            driver.remove_umem(attributes.handle(MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE)? as u32);
            Ok(())
        }
        (MLX5_IB_OBJECT_DEVX, method) => devx(driver, method, attributes),
        (MLX5_IB_OBJECT_DEVX_OBJ, method) => devx_object(driver, method, attributes),
        _ => Err(Errno(libc::EPROTONOSUPPORT)),
    }
}
