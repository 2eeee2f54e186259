//! Reads every message that a peer, compatible or not, can send, without a connection.

use super::frame::{self, FrameHeader};
use crate::backends::codec;
use allfold_net::handshake;
use allfold_net::{Secret, Security};

/// Reads bytes as every message that a peer, compatible or not, can send, and drops the results: for fuzzers. Bytes may be
/// refused; reading never panics, hangs, or allocates by a length in the bytes.
pub fn read_anything(bytes: &[u8]) {
    if let Some(header) = bytes.first_chunk() {
        // A fuzzer does not find the right checksum, so each header is also tried with the right checksum.
        for header in [*header, frame::sealed(*header)] {
            if let Ok(header) = FrameHeader::decode(&header) {
                let _ = header.fingerprint.call(header.sequence, "");
            }
        }
    }
    let _ = codec::Reader { rest: bytes, known: "" }.error();
    let _ = codec::Reader { rest: bytes, known: "" }.lost();
    let secret = Security::TrustedFabric(Secret::new([1; Secret::BYTES]));
    let opening = handshake::opening(&secret, &[0; 32], &[0; 32]);
    if let Some(hello) = bytes.first_chunk() {
        let _ = handshake::read_opening(hello, &secret);
    }
    if let Some(proof) = bytes.first_chunk() {
        let _ = handshake::Acceptor::new(&secret, &opening, &opening).verify(proof);
    }
}
