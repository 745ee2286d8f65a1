//! The side of a queue pair that peers' requests come to.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::memory::access;
use super::wire::{Action, Request, receive_request, send_answer};
use super::{Alive, Nic};
use crate::prm::Syndrome;

/// Answers peers of a queue pair until it is gone, by threads of its own.
pub(super) fn listen(nic: &Arc<Nic>, socket: &Path, alive: Alive) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let nic = Arc::clone(nic);
    let accept = move || {
        for stream in listener.incoming().map_while(Result::ok) {
            if !alive.load(Ordering::Acquire) {
                break;
            }
            let (nic, alive) = (Arc::clone(&nic), Arc::clone(&alive));
            std::thread::spawn(move || serve(&nic, stream, &alive));
        }
    };
    std::thread::Builder::new().name("softhca-accept".to_owned()).spawn(accept).map(drop)
}

/// Answers one peer's queue pair in order, until either side is gone.
fn serve(nic: &Nic, mut stream: UnixStream, alive: &Alive) {
    while let Ok(request) = receive_request(&mut stream) {
        // A queue pair that is destroyed does not answer: the peer's retries are exceeded.
        if !alive.load(Ordering::Acquire) {
            return;
        }
        let count = nic.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if nic.controls.silent_from.is_some_and(|first| count >= first) {
            continue;
        }
        let refused = nic.controls.failure.filter(|failure| count >= failure.from_request);
        let answer = match refused {
            Some(failure) => Err(Syndrome(failure.syndrome)),
            None => nic.answer(&request),
        };
        if send_answer(&mut stream, &answer).is_err() {
            return;
        }
    }
}

impl Nic {
    /// Does what a peer asks for.
    fn answer(&self, request: &Request) -> Result<Vec<u8>, Syndrome> {
        let area = request.area;
        let done = match &request.action {
            Action::Write(bytes) => self.memory.write(area, access::REMOTE_WRITE, bytes).map(|()| Vec::new()),
            Action::Read => self.memory.read(area, access::REMOTE_READ),
            Action::Change(_) if !area.address.is_multiple_of(area.bytes) => {
                return Err(Syndrome::REMOTE_INVALID_REQUEST);
            }
            Action::Change(change) => self.memory.change(area, *change).map(|old| old.to_ne_bytes().to_vec()),
        };
        done.ok_or(Syndrome::REMOTE_ACCESS)
    }
}
