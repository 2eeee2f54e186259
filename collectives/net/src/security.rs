//! Security modes: who may join a job, and what is encrypted.
//!
//! | mode | for | joins | wire |
//! |---|---|---|---|
//! | [`Security::Loopback`] | one host | whoever can reach its loopback interface | plain |
//! | [`Security::Tls`] | anything else | who holds the job's secret | TLS 1.3 |
//! | [`Security::TrustedFabric`] | a network that is yours alone | who holds the job's secret | plain, CRC32C |
//! | [`Security::InsecurePlaintext`] | experiments | anyone | plain |

use crate::hidden::HiddenBytes;
use crate::{Error, Result};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// How connections between ranks are secured.
#[derive(Clone, Debug)]
pub enum Security {
    /// There is no secret, so only loopback addresses are allowed.
    Loopback,
    /// Only holders of the secret may join, over TLS 1.3.
    Tls(Secret),
    /// Only holders of the secret may join; the data after the handshake are plain.
    TrustedFabric(Secret),
    /// Anyone may join, on any address, unencrypted.
    InsecurePlaintext,
}

/// The job's secret: 32 bytes that every rank holds. It is wiped from memory when the last copy is dropped, is never printed, and
/// is left out of core dumps where the system can do that.
#[derive(Clone)]
pub struct Secret(Arc<HiddenBytes<{ Secret::BYTES }>>);

impl Secret {
    /// The size of a secret in bytes.
    pub const BYTES: usize = 32;

    /// A secret of these bytes, which should be random.
    pub fn new(bytes: [u8; Secret::BYTES]) -> Secret {
        let bytes = Zeroizing::new(bytes);
        Secret(Arc::new(HiddenBytes::filled(|hidden| hidden.copy_from_slice(&*bytes))))
    }

    /// A new secret from the operating system's random generator.
    ///
    /// # Errors
    /// The generator fails.
    pub fn random() -> Result<Secret> {
        let mut made = Ok(());
        let secret = Secret(Arc::new(HiddenBytes::filled(|hidden| made = super::crypto::fill(hidden))));
        made.map(|()| secret)
    }

    /// Reads a secret from a file: 32 bytes, or 64 hexadecimal digits and white space. Secrets come from files or inherited
    /// descriptors (`/dev/fd/N`), never from the command line, where every user of the host can read them.
    ///
    /// # Errors
    /// The file does not exist, others may read it, it has another size, or all of its bytes are zero.
    pub fn read(path: &Path) -> Result<Secret> {
        /// The most bytes that are read.
        const MOST: usize = 256;
        let wrong = |what: String| Error::Argument(format!("the secret in {}: {what}", path.display()));
        let file = std::fs::File::open(path).map_err(|e| wrong(e.to_string()))?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // Of the open file: the name may lead to another file by now.
            let meta = file.metadata().map_err(|e| wrong(e.to_string()))?;
            let mode = meta.permissions().mode() & 0o777;
            if meta.is_file() && mode & 0o077 != 0 {
                return Err(wrong(format!(
                    "others may read or write it (mode {mode:o}); `chmod 600` it first"
                )));
            }
        }
        let bytes = {
            use std::io::Read;
            let mut bytes = Zeroizing::new(Vec::with_capacity(MOST));
            file.take(MOST as u64).read_to_end(&mut bytes).map_err(|e| wrong(e.to_string()))?;
            bytes
        };
        let digits = bytes.trim_ascii();
        let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
        if bytes.len() != Secret::BYTES && digits.len() != 2 * Secret::BYTES {
            let more = if bytes.len() == MOST { " or more" } else { "" };
            let len = bytes.len();
            return Err(wrong(format!(
                "expected 32 bytes or 64 hexadecimal digits, and it has {len} bytes{more}"
            )));
        }
        let mut is_hexadecimal = true;
        // The bytes are written where they stay: a value that is returned or passed leaves copies on the stack.
        let secret = Secret(Arc::new(HiddenBytes::filled(|hidden| {
            if bytes.len() == Secret::BYTES {
                return hidden.copy_from_slice(&bytes);
            }
            for (byte, pair) in hidden.iter_mut().zip(digits.chunks_exact(2)) {
                match (digit(pair[0]), digit(pair[1])) {
                    (Some(high), Some(low)) => *byte = high << 4 | low,
                    _ => is_hexadecimal = false,
                }
            }
        })));
        // Zeros come from a file that was created and never filled.
        match (is_hexadecimal, secret.bytes().iter().all(|byte| *byte == 0)) {
            (false, _) => Err(wrong("it has a character that is not a hexadecimal digit".into())),
            (_, true) => Err(wrong(
                "all of its bytes are zero, which anyone can guess: fill it from /dev/urandom".into(),
            )),
            _ => Ok(secret),
        }
    }

    pub(super) fn bytes(&self) -> &[u8; Secret::BYTES] {
        self.0.get()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Security {
    /// The name in flags and records.
    pub fn name(&self) -> &'static str {
        match self {
            Security::Loopback => "loopback",
            Security::Tls(_) => "tls",
            Security::TrustedFabric(_) => "trusted-fabric",
            Security::InsecurePlaintext => "insecure-plaintext",
        }
    }

    /// A warning for modes that let anyone join, for standard error.
    pub fn warning(&self, port: u16) -> Option<String> {
        matches!(self, Security::InsecurePlaintext).then(|| {
            format!(
                "WARNING: insecure-plaintext: anyone who reaches port {port}, or those of the ranks, can join this job, \
                 and read and change what it sends; give it a secret by ALLFOLD_SECRET_FILE"
            )
        })
    }

    /// The number in a handshake: both sides must be in the same mode.
    pub(super) fn number(&self) -> u8 {
        match self {
            Security::Loopback => 0,
            Security::Tls(_) => 1,
            Security::TrustedFabric(_) => 2,
            Security::InsecurePlaintext => 3,
        }
    }

    /// The key of the handshake's proofs; zeros without a secret.
    pub(super) fn key(&self) -> &[u8; Secret::BYTES] {
        match self {
            Security::Tls(secret) | Security::TrustedFabric(secret) => secret.bytes(),
            Security::Loopback | Security::InsecurePlaintext => &[0; Secret::BYTES],
        }
    }

    /// Whether this address may be listened on or connected to.
    ///
    /// # Errors
    /// It is not a loopback address, and the mode is [`Security::Loopback`].
    pub fn allows(&self, address: SocketAddr) -> Result<()> {
        let local = match address.ip() {
            IpAddr::V4(ip) => ip.is_loopback(),
            IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
        };
        match self {
            Security::Loopback if !local => Err(Error::Argument(format!(
                "{address} is no loopback address: give the job a secret by ALLFOLD_SECRET_FILE, or set \
                 ALLFOLD_SECURITY=insecure-plaintext to let anyone join"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_goes_without_a_secret() {
        let addresses = ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "[::ffff:127.0.0.1]:1"];
        for address in addresses {
            Security::Loopback.allows(address.parse().unwrap()).unwrap();
        }
        for address in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "[::ffff:10.0.0.1]:1"] {
            let address = address.parse().unwrap();
            let error = Security::Loopback.allows(address).unwrap_err().to_string();
            assert!(error.contains("no loopback address"), "{error}");
            Security::InsecurePlaintext.allows(address).unwrap();
            Security::Tls(Secret::new([1; 32])).allows(address).unwrap();
        }
    }

    #[test]
    fn only_modes_open_to_anyone_print_a_warning() {
        let warning = Security::InsecurePlaintext.warning(29_500).unwrap();
        assert!(
            warning.starts_with("WARNING: ") && warning.contains("port 29500") && !warning.contains('\n')
        );
        let secret = Secret::new([1; 32]);
        for other in [Security::Loopback, Security::TrustedFabric(secret.clone()), Security::Tls(secret)] {
            assert_eq!(other.warning(1), None);
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let secret = Secret::new([0x41; 32]);
        assert_eq!(format!("{:?}", Security::Tls(secret)), "Tls(Secret(..))");
    }

    #[test]
    fn a_secret_is_read_raw_or_in_hexadecimal_from_a_file_of_ones_own() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("allfold-secret-{}", std::process::id()));
        let put = |bytes: &[u8], mode: u32| {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Secret::read(&path)
        };
        let raw = put(&[0xab; 32], 0o600).unwrap();
        assert_eq!(raw.bytes(), put(format!("{}\n", "aB".repeat(32)).as_bytes(), 0o400).unwrap().bytes());
        let says = |result: Result<Secret>, what: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };
        says(put(&[0xab; 32], 0o644), "others may read");
        says(put(b"too short", 0o600), "it has 9 bytes");
        says(put("xy".repeat(32).as_bytes(), 0o600), "not a hexadecimal digit");
        says(put(&[b'a'; 200], 0o600), "it has 200 bytes");
        says(put(&[b'a'; 1000], 0o600), "it has 256 bytes or more");
        says(put(&[0; 32], 0o600), "all of its bytes are zero");
        says(put(&[b'0'; 64], 0o600), "all of its bytes are zero");
        std::fs::remove_file(&path).unwrap();
        says(Secret::read(&path), "No such file");
    }
}
