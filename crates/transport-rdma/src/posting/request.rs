//! What a request may ask for.

use crate::driver::{Atomics, NicLimits};
use crate::posted::{PostedOpcode, PostedRequest};

/// The operation of a request, if there is such a one.
pub fn opcode(request: &PostedRequest) -> Option<PostedOpcode> {
    use PostedOpcode::{CompareSwap, FetchAdd, Read, Write, WriteImmediate, WriteValue};
    let all = [Write, WriteImmediate, Read, WriteValue, FetchAdd, CompareSwap];
    all.into_iter().find(|opcode| *opcode as u32 == request.opcode)
}

/// Bytes that a request moves in messages of any length; 0 for those that always fit into a packet.
pub(crate) fn message_bytes(request: &PostedRequest) -> u32 {
    match opcode(request) {
        Some(PostedOpcode::Write | PostedOpcode::WriteImmediate | PostedOpcode::Read) => request.bytes,
        Some(PostedOpcode::WriteValue | PostedOpcode::FetchAdd | PostedOpcode::CompareSwap) | None => 0,
    }
}

/// A request in words.
pub(crate) fn words(request: &PostedRequest) -> String {
    let PostedRequest { local, remote, bytes, local_key, remote_key, .. } = request;
    let name =
        opcode(request).map_or_else(|| format!("operation {}", request.opcode), |known| format!("{known:?}"));
    format!(
        "{name} of {bytes} bytes, local {local:#x} key {local_key:#x}, remote {remote:#x} key {remote_key:#x}"
    )
}

/// Whether a NIC with these limits can be given a request.
///
/// # Errors
/// What is wrong with it: what was given, what is allowed.
pub(crate) fn check(request: &PostedRequest, limits: &NicLimits) -> Result<(), String> {
    let aligned = |what: &str, address: u64| {
        if address.is_multiple_of(8) {
            Ok(())
        } else {
            Err(format!("the {what} address is no multiple of 8"))
        }
    };
    match opcode(request) {
        None => Err("there is no such operation".to_owned()),
        Some(PostedOpcode::WriteImmediate) => {
            Err("unsupported: peers of this driver post no receives for immediate values".to_owned())
        }
        Some(PostedOpcode::Write | PostedOpcode::Read) if request.bytes > limits.most_message_bytes => {
            Err(format!("at most {} bytes are allowed", limits.most_message_bytes))
        }
        Some(PostedOpcode::WriteValue) if ![1, 2, 4, 8].contains(&request.bytes) => {
            Err("a value has 1, 2, 4 or 8 bytes".to_owned())
        }
        Some(PostedOpcode::WriteValue) if !request.remote.is_multiple_of(u64::from(request.bytes)) => {
            Err("the remote address of a value is no multiple of its bytes, and it would not go in one piece"
                .to_owned())
        }
        Some(PostedOpcode::Write | PostedOpcode::Read | PostedOpcode::WriteValue) => Ok(()),
        Some(PostedOpcode::FetchAdd | PostedOpcode::CompareSwap) if limits.atomics == Atomics::None => {
            Err("the NIC has no atomic operations".to_owned())
        }
        Some(PostedOpcode::FetchAdd | PostedOpcode::CompareSwap) => {
            aligned("local", request.local).and_then(|()| aligned("remote", request.remote))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: NicLimits =
        NicLimits { most_message_bytes: 1 << 20, inline_bytes: 8, atomics: Atomics::Standard };

    /// A request that is in order, changed.
    fn checked(
        opcode: PostedOpcode,
        limits: NicLimits,
        change: fn(&mut PostedRequest),
    ) -> Result<(), String> {
        let mut request: PostedRequest = bytemuck::Zeroable::zeroed();
        (request.opcode, request.bytes, request.local, request.remote) = (opcode as u32, 8, 64, 128);
        change(&mut request);
        check(&request, &limits)
    }

    #[test]
    fn what_is_in_order_passes() {
        use PostedOpcode::{CompareSwap, FetchAdd, Read, Write, WriteValue};
        for opcode in [Write, Read, WriteValue, FetchAdd, CompareSwap] {
            assert_eq!(checked(opcode, LIMITS, |_| ()), Ok(()), "{opcode:?}");
        }
        assert_eq!(checked(Write, LIMITS, |request| request.bytes = 0), Ok(()));
        assert_eq!(checked(Read, LIMITS, |request| request.bytes = 1 << 20), Ok(()));
    }

    #[test]
    fn what_is_not_is_refused_with_what_is_allowed() {
        use PostedOpcode::{CompareSwap, FetchAdd, Read, Write, WriteImmediate, WriteValue};
        let refused = |opcode, limits, change, expected: &str| {
            let problem = checked(opcode, limits, change).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        };
        refused(Write, LIMITS, |request| request.bytes = (1 << 20) + 1, "at most 1048576");
        refused(Read, LIMITS, |request| request.opcode = 7, "no such operation");
        refused(WriteImmediate, LIMITS, |_| (), "unsupported");
        refused(WriteValue, LIMITS, |request| request.bytes = 3, "1, 2, 4 or 8");
        refused(WriteValue, LIMITS, |request| request.remote = 132, "no multiple of its bytes");
        refused(FetchAdd, LIMITS, |request| request.remote = 132, "remote address");
        refused(CompareSwap, LIMITS, |request| request.local = 68, "local address");
        let without = NicLimits { atomics: Atomics::None, ..LIMITS };
        refused(FetchAdd, without, |_| (), "no atomic operations");
    }
}
