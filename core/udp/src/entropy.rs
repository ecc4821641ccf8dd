//! The kernel's random bytes.
//!
//! Owns: [`KernelEntropy`].

use muster_transport::Entropy;

/// Unpredictable bytes by getrandom(2).
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelEntropy;

impl Entropy for KernelEntropy {
    fn fill(&mut self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            let rest = &mut bytes[filled..];
            // SAFETY: the pointer and the length are those of `rest`.
            let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
            if got < 0 {
                let error = std::io::Error::last_os_error();
                // Continuing with predictable keys would be worse than stopping.
                assert_eq!(error.raw_os_error(), Some(libc::EINTR), "getrandom failed: {error}");
                continue;
            }
            filled += got as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_fills_every_byte_and_does_not_repeat() {
        let (mut one, mut two) = ([0u8; 4096], [0u8; 4096]);
        KernelEntropy.fill(&mut one);
        KernelEntropy.fill(&mut two);
        assert_ne!(one, two);
        assert!(one.chunks(32).all(|chunk| chunk.iter().any(|byte| *byte != 0)));
        KernelEntropy.fill(&mut []);
    }
}
