//! Statuses of completions in words.

use core::ffi::c_uint;

use super::bindings::{
    IBV_WC_BAD_RESP_ERR, IBV_WC_FATAL_ERR, IBV_WC_GENERAL_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_REM_ABORT_ERR, IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR,
};

/// What a status says (`enum ibv_wc_status`, meanings after the manual page `ibv_poll_cq(3)`).
pub(crate) fn status_words(status: c_uint) -> &'static str {
    match status {
        IBV_WC_SUCCESS => "success",
        IBV_WC_LOC_LEN_ERR => "local length error: the message is longer than the queue pair takes",
        IBV_WC_LOC_QP_OP_ERR => "local operation error: the request is not one that this queue pair can do",
        IBV_WC_LOC_PROT_ERR => "local protection error: the local range is not one of the local key's",
        IBV_WC_WR_FLUSH_ERR => "flushed: the queue pair was in its error state already",
        IBV_WC_BAD_RESP_ERR => "bad response: the peer's NIC answered what the protocol has not",
        IBV_WC_LOC_ACCESS_ERR => "local access error",
        IBV_WC_REM_INV_REQ_ERR => "remote invalid request: the peer's NIC does not take the request",
        IBV_WC_REM_ACCESS_ERR => "remote access error: the remote range is not one of the remote key's",
        IBV_WC_REM_OP_ERR => "remote operation error: the peer's NIC could not carry the request out",
        IBV_WC_RETRY_EXC_ERR => "retries exceeded: the peer's NIC does not answer; the peer may have ended",
        IBV_WC_RNR_RETRY_EXC_ERR => "receiver not ready: the peer has no receive posted",
        IBV_WC_REM_ABORT_ERR => "remote abort",
        IBV_WC_FATAL_ERR => "fatal error of the NIC",
        IBV_WC_RESP_TIMEOUT_ERR => "response timeout: no answer within the patience",
        IBV_WC_GENERAL_ERR => "general error",
        _ => "a status that is not listed",
    }
}
