//! The messages between launchers. Every message is 512 bytes:
//!
//! ```text
//! kind 4 | epoch 4 | four numbers 16 | length of the text 4 | text 484
//! ```

use crate::end::End;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const SIZE: usize = 512;
const TEXT: usize = SIZE - 28;

/// A message between the coordinator and an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// To an agent: start your ranks, numbered from `first` on.
    Start { epoch: u32, world: u32, first: u32, port: u16 },
    /// To an agent: end the ranks of this epoch.
    Stop { epoch: u32 },
    /// To an agent: the job is over; the exit code, and the text to print.
    Over { code: u8, text: String },
    /// From an agent: all of its ranks are done.
    Done { epoch: u32 },
    /// From an agent: rank `rank` failed; `stopped` is a rank of its node that a signal has stopped; `text` is the line of the
    /// failed rank's standard error that explains its end best, or that the other ranks had lost it.
    Failed { epoch: u32, rank: u32, end: End, stopped: Option<u32>, text: String },
    /// From an agent: a rank has exited with 0, this long after its process was started. The coordinator passes this to the agents of
    /// an elastic job.
    Exited { epoch: u32, rank: u32, after: Duration },
    /// From an agent: its launcher received a signal that ends the job.
    Interrupted { epoch: u32, signal: i32 },
    /// From an agent: none of its ranks runs any more.
    Stopped { epoch: u32 },
    /// From an agent: it cannot start its ranks; the exit code and the reason.
    Unable { epoch: u32, code: u8, text: String },
    /// From either side: a heartbeat.
    Beat,
    /// To an agent: the peers of one of its ranks have lost that rank, in this epoch. From an agent of an elastic job: this rank is
    /// started again, in this epoch.
    Lost { epoch: u32, rank: u32 },
}

impl Message {
    fn parts(&self) -> (u32, [u32; 5], &str) {
        match self {
            Message::Start { epoch, world, first, port } => {
                (1, [*epoch, *world, *first, u32::from(*port), 0], "")
            }
            Message::Stop { epoch } => (2, [*epoch, 0, 0, 0, 0], ""),
            Message::Over { code, text } => (3, [0, u32::from(*code), 0, 0, 0], text),
            Message::Done { epoch } => (4, [*epoch, 0, 0, 0, 0], ""),
            Message::Failed { epoch, rank, end, stopped, text } => {
                let (kind, number) = end.parts();
                // u32::MAX means that no rank is stopped; it is never a rank, since a world has at most u32::MAX ranks.
                (5, [*epoch, *rank, kind, number, stopped.unwrap_or(u32::MAX)], text)
            }
            Message::Interrupted { epoch, signal } => (6, [*epoch, signal.unsigned_abs(), 0, 0, 0], ""),
            Message::Stopped { epoch } => (7, [*epoch, 0, 0, 0, 0], ""),
            Message::Unable { epoch, code, text } => (8, [*epoch, u32::from(*code), 0, 0, 0], text),
            Message::Beat => (9, [0; 5], ""),
            Message::Lost { epoch, rank } => (10, [*epoch, *rank, 0, 0, 0], ""),
            Message::Exited { epoch, rank, after } => {
                let millis = u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
                (11, [*epoch, *rank, millis, 0, 0], "")
            }
        }
    }

    fn encode(&self) -> [u8; SIZE] {
        let (kind, numbers, text) = self.parts();
        let mut end = text.len().min(TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let words = [kind, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], end as u32];
        let mut bytes = [0; SIZE];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[SIZE - TEXT..][..end].copy_from_slice(&text.as_bytes()[..end]);
        bytes
    }

    fn decode(bytes: &[u8; SIZE]) -> Option<Message> {
        let mut words = [0u32; 7];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = place.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
        let [kind, epoch, a, b, c, d, length] = words;
        let text = bytes[SIZE - TEXT..].get(..length as usize)?;
        let text = String::from_utf8_lossy(text).into_owned();
        Some(match kind {
            1 => Message::Start { epoch, world: a, first: b, port: u16::try_from(c).ok()? },
            2 => Message::Stop { epoch },
            3 => Message::Over { code: u8::try_from(a).ok()?, text },
            4 => Message::Done { epoch },
            5 => {
                let stopped = Some(d).filter(|rank| *rank != u32::MAX);
                Message::Failed { epoch, rank: a, end: End::of_parts(b, c), stopped, text }
            }
            6 => Message::Interrupted { epoch, signal: i32::try_from(a).ok()? },
            7 => Message::Stopped { epoch },
            8 => Message::Unable { epoch, code: u8::try_from(a).ok()?, text },
            9 => Message::Beat,
            10 => Message::Lost { epoch, rank: a },
            11 => Message::Exited { epoch, rank: a, after: Duration::from_millis(u64::from(b)) },
            _ => return None,
        })
    }
}

pub(super) async fn write(stream: &mut (impl AsyncWrite + Unpin), message: &Message) -> std::io::Result<()> {
    stream.write_all(&message.encode()).await?;
    stream.flush().await
}

pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Message> {
    let mut bytes = [0; SIZE];
    stream.read_exact(&mut bytes).await?;
    Message::decode(&bytes).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_their_travel() {
        for message in [
            Message::Start { epoch: 1, world: 8, first: 4, port: 65_535 },
            Message::Stop { epoch: 2 },
            Message::Over { code: 137, text: "rank 3 failed".into() },
            Message::Done { epoch: 0 },
            Message::Failed { epoch: 3, rank: 7, end: End::Signal(9), stopped: None, text: "é".repeat(100) },
            Message::Failed { epoch: 3, rank: 7, end: End::Code(1), stopped: Some(0), text: String::new() },
            Message::Lost { epoch: 4, rank: 6 },
            Message::Exited { epoch: 4, rank: 6, after: Duration::from_millis(1500) },
            Message::Interrupted { epoch: 0, signal: 15 },
            Message::Stopped { epoch: 9 },
            Message::Unable { epoch: 1, code: 2, text: "no such folder".into() },
            Message::Beat,
        ] {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        // A longer text is cut between two characters.
        let long = Message::Over { code: 1, text: "é".repeat(1000) };
        assert!(
            matches!(Message::decode(&long.encode()), Some(Message::Over { text, .. }) if text == "é".repeat(TEXT / 2))
        );
        assert_eq!(Message::decode(&[0xff; SIZE]), None);
    }
}
